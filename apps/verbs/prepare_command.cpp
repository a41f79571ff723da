// meshard prepare: cuts the cases of a training run into shards and stores what training reads.
#include "apps/console/json_report.h"
#include "apps/console/repeated_times.h"
#include "apps/console/text_table.h"
#include "apps/learning/cases/case_list.h"
#include "apps/learning/grids/grid_store.h"
#include "apps/learning/settings/training_config.h"
#include "apps/learning/steps/run_cases.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/rank_program.h"
#include "apps/program/verbs.h"

#include <chrono>
#include <csignal>
#include <iostream>

namespace meshard {
namespace {

const volatile std::sig_atomic_t no_prepare_stop = 0;  // an interruption ends the program; complete cases stay

struct PrepareArguments {
    ConfigWords config;
    LocalRanks ranks;
    int num_training_ranks = 0;
    bool verify_sources = false;
    bool json = false;
};

bool parse_prepare(std::span<const std::string> arguments, PrepareArguments& options)
{
    CLI::App app("Cuts the cases of a training run into shards and stores what training reads of them, as `meshard "
                 "train` does before its first\n"
                 "step: case by case, so that it may be stopped and goes on where it was. Any number of runs may share "
                 "and make them at once.\n"
                 "Cases of grids are stored in blocks (Zarr), from which ranks read theirs whatever the cut.",
                 "prepare");
    add_config_option(app, options.config,
                      "configuration (YAML) of the training run, then settings that override it; ~key removes one");
    add_named(app, "--ranks", options.num_training_ranks, "N",
              "ranks that will train, on which data.parts=auto depends; as many as prepare unless said")
        ->check(CLI::PositiveNumber);
    add_rank_options(
        app, options.ranks,
        "start this many ranks on this machine, which deal the cases among them (torchrun, mpirun and srun work too)");
    app.add_flag("--verify-sources", options.verify_sources,
                 "read every source completely, to check that cached shards are still those of it");
    add_json_option(app, options.json);
    return parse_arguments(app, arguments);
}

/// Returns the number of ranks over which training will spread a case.
std::int64_t num_domain_ranks(const TrainingRunConfig& config, const PrepareArguments& options, int num_ranks)
{
    if (config.num_domain_ranks() > 0 || config.data.num_parts > 0)
        return std::max<std::int64_t>(1, config.num_domain_ranks());
    if (options.num_training_ranks == 0 && config.num_data_groups > num_ranks) {
        throw UsageError("parallel.data is {}, and data.parts is auto: each case is cut for the ranks that "
                         "will share it. Say with --ranks how many ranks will train.",
                         config.num_data_groups);
    }
    return mesh_shape(config, options.num_training_ranks > 0 ? options.num_training_ranks : num_ranks)[1];
}

/// Prints the report of a part, or returns it as JSON.
Json report(const RunCases& cases, const TrainingRunConfig& config, const PrepareArguments& options, double seconds)
{
    const auto bytes = cases.train.num_file_bytes() + cases.val.num_file_bytes() + cases.test.num_file_bytes();
    const auto num_points = cases.train.num_points() + cases.val.num_points() + cases.test.num_points();
    const auto normalizer = cases.train.statistics().normalizer();
    const auto store = cases.train.folder(0).parent_path();
    Json json{
        {"cases", {{"train", cases.train.size()}, {"val", cases.val.size()}, {"test", cases.test.size()}}},
        {"points",
         {{"train", cases.train.num_points()}, {"val", cases.val.num_points()}, {"test", cases.test.num_points()}}},
        {"parts", cases.num_parts},
        {"shards", config.data.shards.string()},
        {"store", store.string()},
        {"store_bytes", bytes},
        {"seconds", seconds}};
    TextTable table("lrrr");
    table.add_row({"field", "component", "mean", "deviation"});
    std::int64_t channel = 0;
    for (std::size_t f = 0; f < config.data.fields.size(); ++f) {
        const auto& name = config.data.fields[f].name;
        for (std::int64_t c = 0; c < cases.train.channels()[f]; ++c, ++channel) {
            const auto mean = normalizer.mean[channel].item<double>(),
                       deviation = normalizer.std[channel].item<double>();
            json["fields"][name].push_back({{"mean", mean}, {"std", deviation}});
            table.add_row({c == 0 ? name : "", std::to_string(c), number_text(mean), number_text(deviation)});
        }
    }
    if (options.json) return json;
    std::cout << cases.train.size() << " training, " << cases.val.size() << " validation, " << cases.test.size()
              << " test cases, " << num_points << " points; each case in " << cases.num_parts << " part(s)\n"
              << "shards in " << config.data.shards.string() << ", store in " << store.string() << " ("
              << fixed_text(static_cast<double>(bytes) * 1e-6, 1) << " MB); " << fixed_text(seconds, 1) << " s\n"
              << "Over all points of the training cases:\n"
              << table;
    return {};
}

/// Stores the cases of grids in blocks, and says what is stored. Collective.
void prepare_grid_store(const TrainingRunConfig& config, const CaseLists& cases, const PrepareArguments& options,
                        const RankGroup& ranks)
{
    const auto begin = std::chrono::steady_clock::now();
    const GridStore store(config.data);
    const auto bytes = store.write(cases.all(), ranks);
    if (ranks.rank() != 0) return;
    const auto seconds = seconds_since(begin);
    if (options.json) {
        const Json json{
            {"cases", {{"train", cases.train.size()}, {"val", cases.val.size()}, {"test", cases.test.size()}}},
            {"store", store.folder().string()},
            {"store_bytes", bytes},
            {"seconds", seconds}};
        print_json(json);
        return;
    }
    std::cout << cases.train.size() << " training, " << cases.val.size() << " validation, " << cases.test.size()
              << " test cases\nstore in " << store.folder().string() << " ("
              << fixed_text(static_cast<double>(bytes) * 1e-6, 1) << " MB); " << fixed_text(seconds, 1) << " s\n";
}

}  // namespace

int prepare_command(std::span<const std::string> arguments)
{
    PrepareArguments options;
    if (!parse_prepare(arguments, options)) return exit_code::ok;
    const std::string words = "; the same command goes on with the others.";
    say_on_interruption_of("prepare", "Cases that are complete stay" + words);
    const auto settings = read_training_settings(options.config.file(), options.config.overrides());
    const auto config = training_config(settings);
    if (config.data.is_grid && config.data.series.is_on)
        throw UsageError(
            "data.series: states of simulations on grids are read from their files, and nothing is stored.");
    const auto folder = config.data.is_grid ? GridStore(config.data).folder() : config.data.shards;
    say_on_interruption_of("prepare", "Cases that are complete stay in " + folder.string() + words);
    const auto cases = find_cases(config);
    add_facts(settings.facts());
    add_facts(cases.facts());
    cache_freed_memory();
    return run_on_ranks(
        options.ranks, "prepare", arguments,
        [&](int num_ranks) {
            if (!config.data.is_grid) num_domain_ranks(config, options, num_ranks);
        },
        [&](World& world) {
            const auto begin = std::chrono::steady_clock::now();
            const auto device_mesh = DeviceMesh::create(world, {1, world.size()}, {"data", "domain"});
            if (config.data.is_grid) {
                prepare_grid_store(config, cases, options, device_mesh->all());
                return exit_code::ok;
            }
            TrainingLog log({}, world.rank() == 0);
            const CasePreparation preparation{num_domain_ranks(config, options, world.size()), options.verify_sources};
            Json json;
            for (std::size_t part = 0; part < config.num_parts(); ++part) {
                const auto of_part = config.of_part(part);
                const auto prepared = prepare_cases(of_part, cases.of_part(part), preparation, device_mesh, at::kCPU,
                                                    log, no_prepare_stop);
                prepared.figures(of_part.data, device_mesh->all());  // the figures are stored for the check of the data
                const auto seconds = seconds_since(begin);
                if (world.rank() != 0) continue;
                if (part > 0 && !options.json) std::cout << "\nVolumes:\n";
                auto of_json = report(prepared, of_part, options, seconds);
                if (part > 0)
                    json["volume"] = std::move(of_json);
                else
                    json = std::move(of_json);
            }
            if (world.rank() == 0 && options.json) print_json(json);
            return exit_code::ok;
        },
        "cpu");
}

}  // namespace meshard
