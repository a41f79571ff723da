// meshard evaluate: compares a trained model with cases whose fields are known: errors of fields, drag and lift.
#include "apps/console/json_report.h"
#include "apps/learning/report/case_evaluation.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/output_file.h"
#include "apps/program/rank_program.h"
#include "apps/program/verbs.h"
#include "io/bytes/made_folders.h"

#include <filesystem>
#include <iostream>
#include <optional>

namespace meshard {
namespace {

struct EvaluateArguments {
    std::string model;
    std::vector<std::string> cases;
    std::vector<std::string> places;  // settings that say where the data lie now
    std::string output;
    std::vector<Threshold> thresholds;
    LocalRanks ranks;
    std::string device = "auto";
    bool json = false;
    std::optional<Orient> orient;
};

bool parse(std::span<const std::string> arguments, EvaluateArguments& options)
{
    CLI::App app(
        "Predicts cases whose fields are known, on all of their points, and compares: errors of each field, drag and "
        "lift, a line\n"
        "a case (cases.csv) and all numbers (evaluation.json). Beside each error stands that of the training mean. "
        "Runs\n"
        "of simulations in time are rolled out from their first states to their ends: errors of one step, over the\n"
        "roll-out and at its end, and a line a state (rollout.csv).",
        "evaluate");
    std::vector<std::string> bounds;
    add_named(app, "model", options.model, "RUN|CHECKPOINT",
              "folder of a run of `meshard train` (its best checkpoint), or one of its checkpoints")
        ->required();
    add_named(app, "cases", options.cases, "CASES",
              "train, val, test, all, ids of cases, or files with the fields; data.root=DIR, data.forces.length=L: "
              "as now, not as in training")
        ->default_str("test, or val where there is no test");
    add_named(app, "-o,--output", options.output, "DIR", "folder for evaluation.json, cases.csv and rollout.csv")
        ->default_str("evaluation in the run's folder");
    add_named(app, "--fail-if", bounds, "NUMBER>BOUND",
              "end with exit code 1 if this holds, e.g. 'test.cd.mae>0.01', test.pressure.rel_l2.max; may be repeated")
        ->allow_extra_args(false);
    add_orient_option(app, options.orient, "what the run did in training (data.orient)");
    app.add_flag("--json", options.json, "evaluation.json on stdout instead of the tables");
    add_device_option(app, options.device);
    add_rank_options(app, options.ranks);
    if (!parse_arguments(app, arguments)) return false;
    options.places = take_data_path_overrides(options.cases);
    for (const auto& bound : bounds) options.thresholds.emplace_back(bound);
    return true;
}

std::filesystem::path output_folder(const EvaluateArguments& options, const JudgedModel& model)
{
    if (!options.output.empty()) return std::filesystem::absolute(options.output);
    if (model.run.empty())
        throw UsageError("{} lies in no run's folder. Say with -o where the numbers go.", options.model);
    return std::filesystem::absolute(model.run) / "evaluation";
}

/// One part of a model (surface, volume, or the only one) and the cases on which it is judged.
struct JudgedPart {
    JudgedModel model;
    std::vector<JudgedCase> cases;
    std::filesystem::path folder;
};

/// Returns each part for which cases are named; a file belongs to the part of its type.
std::vector<JudgedPart> judged_parts(const EvaluateArguments& options)
{
    const auto num_parts = num_trained_parts(options.model);
    std::vector<JudgedPart> parts;
    for (std::size_t part = 0; part < num_parts; ++part) {
        auto words = options.cases;
        if (num_parts > 1)
            std::erase_if(words, [&](const auto& word) {
                return std::filesystem::is_regular_file(word) && part_of_file(word) != part;
            });
        if (words.empty() && !options.cases.empty()) continue;
        auto model = judged_model(options.model, part, options.places);
        if (options.orient) model.predictor.set_orient(*options.orient);
        auto cases = judged_cases(model, words);
        auto folder = output_folder(options, model);
        parts.push_back({std::move(model), std::move(cases), part == 0 ? folder : folder / "volume"});
    }
    return parts;
}

}  // namespace

int evaluate_command(std::span<const std::string> arguments)
{
    EvaluateArguments options;
    if (!parse(arguments, options)) return exit_code::ok;
    say_on_interruption_of("evaluate", "Nothing was written; the same command begins anew.");
    cache_freed_memory();
    const auto parts = [&] {
        auto parts = judged_parts(options);
        for (const auto& part : parts) require_result_folder(part.folder, part.model.case_tables);
        return parts;
    };
    const auto verify = [&](int) { parts(); };
    const auto body = [&](World& world) {
        std::vector<Evaluation> evaluations;
        for (auto& [model, cases, folder] : parts()) {
            evaluations.push_back(evaluate(model, cases, folder, world));
            if (world.rank() != 0) continue;
            const auto& evaluation = evaluations.back();
            for (const auto& note : evaluation.notes) warn("evaluate", note);
            {
                const HeldInterruption held;
                const MadeFolders folders(folder / "cases.csv");
                write_evaluation(evaluation, folder);
            }
            if (options.json) continue;
            std::cout << to_text(evaluation) << "all numbers: " << (folder / "evaluation.json").string()
                      << ", a line a case: " << (folder / "cases.csv").string()
                      << (roll_outs_of(evaluation).empty() ? ""
                                                           : ", a line a state: " + (folder / "rollout.csv").string())
                      << " (model: " << evaluation.model << ")" << std::endl;
        }
        if (world.rank() != 0) return exit_code::ok;
        const auto numbers = joined_json(evaluations);
        if (options.json) print_json(numbers);
        return break_thresholds(options.thresholds, numbers, "evaluate") ? exit_code::check_failed : exit_code::ok;
    };
    return run_on_ranks(options.ranks, "evaluate", arguments, verify, body, options.device);
}

}  // namespace meshard
