// meshard bench data: measures how fast training's loader alone reads cases, beside the disk's own speed.
#include "apps/verbs/data_bench_command.h"

#include "apps/console/json_report.h"
#include "apps/console/text_table.h"
#include "apps/learning/cases/case_list.h"
#include "apps/learning/settings/training_config.h"
#include "apps/learning/steps/data_benchmark.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/rank_program.h"

#include <csignal>
#include <iostream>

namespace meshard {
namespace {

const volatile std::sig_atomic_t no_data_stop = 0;  // an interruption ends the program at once

struct DataBenchArguments {
    ConfigWords config;
    std::int64_t num_cases = 0;
    int num_repeats = 3;
    LocalRanks ranks;
    bool json = false;
};

bool parse_data(std::span<const std::string> arguments, DataBenchArguments& options)
{
    CLI::App app("Reads the training cases of a configuration as `meshard train` does, in its order and as many points "
                 "of each, without any step:\n"
                 "points and bytes a second, with nothing in the system's cache and with all in it, against reading "
                 "the same files plainly.\n"
                 "What is not stored yet is stored first, as by `meshard prepare`.",
                 "bench data");
    add_config_option(app, options.config,
                      "configuration (YAML) of a training run, then settings that override it; ~key removes one");
    add_named(app, "--cases", options.num_cases, "N", "cases of a data group to read; all of an epoch unless said")
        ->check(CLI::PositiveNumber);
    add_count_option(app, "--repeats", options.num_repeats, "times that each is measured; the medians are shown");
    add_rank_options(app, options.ranks,
                     "start this many ranks on this machine, which read at once (torchrun, mpirun and srun work too)");
    add_json_option(app, options.json);
    return parse_arguments(app, arguments);
}

void report(const DataRates& rates, const DataBenchArguments& options, int num_ranks)
{
    struct Line {
        const char* name;
        const char* key;
        double seconds;
        std::int64_t bytes;
        bool has_points;
    };
    const Line lines[] = {
        {"loader", "loader", rates.loader_seconds, rates.file_bytes, true},
        {"loader, files in the cache", "cached_loader", rates.cached_loader_seconds, rates.file_bytes, true},
        {"disk, the files read plainly", "disk", rates.disk_seconds, rates.file_bytes, false}};
    const auto points = static_cast<double>(rates.num_points);
    if (options.json) {
        Json json{{"cases", rates.num_cases},
                  {"points", rates.num_points},
                  {"row_bytes", rates.row_bytes},
                  {"file_bytes", rates.file_bytes},
                  {"ranks", num_ranks}};
        for (const auto& line : lines) {
            json[line.key] = {{"seconds", line.seconds},
                              {"bytes_per_second", static_cast<double>(line.bytes) / line.seconds}};
            if (line.has_points) json[line.key]["points_per_second"] = points / line.seconds;
        }
        json["loader_over_disk"] = rates.disk_seconds / rates.loader_seconds;
        print_json(json);
        return;
    }
    std::cout << rates.num_cases << " cases, " << rates.num_points << " points of "
              << fixed_text(static_cast<double>(rates.row_bytes) / std::max(points, 1.0), 0) << " bytes, in files of "
              << fixed_text(static_cast<double>(rates.file_bytes) * 1e-6, 1) << " MB; " << num_ranks << " rank(s)\n";
    TextTable table("lrrr");
    table.add_row({"", "seconds", "points/s", "MB/s of the files"});
    for (const auto& line : lines) {
        table.add_row({line.name, fixed_text(line.seconds, 3),
                       line.has_points ? fixed_text(points / line.seconds, 0) : "",
                       fixed_text(static_cast<double>(line.bytes) / line.seconds * 1e-6, 0)});
    }
    std::cout << table << "loader / disk " << fixed_text(rates.disk_seconds / rates.loader_seconds, 2) << '\n';
}

}  // namespace

int data_bench_command(std::span<const std::string> arguments)
{
    DataBenchArguments options;
    if (!parse_data(arguments, options)) return exit_code::ok;
    const auto settings = read_training_settings(options.config.file(), options.config.overrides());
    const auto config = training_config(settings);
    if (config.volume)
        throw UsageError("bench data measures one part of the cases: leave data.volume.files out for the surfaces, or "
                         "set data.volume in place of data.surface.");
    const auto cases = find_cases(config);
    add_facts(settings.facts());
    add_facts(cases.facts());
    cache_freed_memory();
    std::vector<std::string> words{"data"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run_on_ranks(
        options.ranks, "bench", words, [&](int num_ranks) { mesh_shape(config, num_ranks); },
        [&](World& world) {
            const auto shape = mesh_shape(config, world.size());
            const auto device_mesh = DeviceMesh::create(world, {shape[0], shape[1]}, {"data", "domain"});
            TrainingLog log({}, world.rank() == 0);
            const auto prepared = prepare_cases(config, cases, {}, device_mesh, at::kCPU, log, no_data_stop);
            const auto rates =
                measure_data(prepared, config, cases, options.num_cases, options.num_repeats, device_mesh);
            if (world.rank() == 0) report(rates, options, world.size());
            return exit_code::ok;
        },
        "cpu");
}

}  // namespace meshard
