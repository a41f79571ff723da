// meshard report: writes one page on runs that shows whether to trust them.
#include "apps/learning/report/case_evaluation.h"
#include "apps/learning/report/report.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/output_file.h"
#include "apps/program/rank_program.h"
#include "apps/program/verbs.h"

#include <filesystem>
#include <iostream>
#include <optional>

namespace meshard {
namespace {

struct ReportArguments {
    std::vector<std::string> runs;
    std::vector<std::string> places;  // settings that say where the data lie now
    std::vector<std::string> cases;
    std::string output;
    std::vector<Threshold> thresholds;
    std::vector<PlaneAcross> planes;
    std::optional<Orient> orient;
    LocalRanks ranks;
    std::string device = "auto";
};

bool parse(std::span<const std::string> arguments, ReportArguments& options)
{
    CLI::App app("Judges runs on their validation and test cases and writes one page without anything from elsewhere: "
                 "errors of each field,\n"
                 "drag and lift, curves of training, a table of the cases, pictures of the best, the median and the "
                 "worst (report.html); the\n"
                 "same numbers as report.json and cases.csv. Of simulations in time: errors of roll-outs against time, "
                 "some states, an animation.",
                 "report");
    std::vector<std::string> bounds, planes;
    add_named(app, "runs", options.runs, "RUN...",
              "folders of runs of `meshard train`; data.root=DIR, data.forces.length=L: as now, not as in training")
        ->required();
    add_named(app, "-o,--output", options.output, "DIR", "folder of the report")->required();
    add_named(app, "--cases", options.cases, "CASES",
              "train, val, test, all or ids of the run's cases, separated by commas")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->default_str("val,test");
    add_named(app, "--plane", planes, "AXIS=NUMBER",
              "of volumes show the cells that this plane crosses, e.g. x=1.2; may be repeated")
        ->allow_extra_args(false)
        ->default_str("y=0, or the middle");
    add_named(
        app, "--fail-if", bounds, "NUMBER>BOUND",
        "end with exit code 1 if this holds for a run, as evaluate has it, e.g. 'test.cd.mae>0.01'; may be repeated")
        ->allow_extra_args(false);
    add_orient_option(app, options.orient, "what each run did in training (data.orient)");
    add_device_option(app, options.device);
    add_rank_options(app, options.ranks);
    if (!parse_arguments(app, arguments)) return false;
    options.places = take_data_path_overrides(options.runs);
    if (options.runs.empty()) throw UsageError("runs is required. See `meshard report --help`.");
    for (const auto& bound : bounds) options.thresholds.emplace_back(bound);
    for (const auto& plane : planes) options.planes.push_back(PlaneAcross::from_text(plane));
    return true;
}

}  // namespace

int report_command(std::span<const std::string> arguments)
{
    ReportArguments options;
    if (!parse(arguments, options)) return exit_code::ok;
    say_on_interruption_of("report", "Nothing was written; the same command begins anew.");
    cache_freed_memory();
    const auto verify = [&](int) {
        for (const auto& run : options.runs) {
            const auto model = judged_model(run, 0, options.places);
            judged_cases(model, options.cases);
            require_result_folder(options.output, model.case_tables);
        }
    };
    const auto body = [&](World& world) {
        verify(world.size());  // a launcher's ranks come here without this check
        const auto folder = std::filesystem::absolute(options.output);
        const auto of_runs = write_report(
            {{options.runs.begin(), options.runs.end()}, options.places, options.cases, options.planes, options.orient},
            folder, world);
        if (world.rank() != 0) return exit_code::ok;
        for (const auto& evaluations : of_runs) {
            for (const auto& evaluation : evaluations) std::cout << to_text(evaluation);
        }
        std::cout << (folder / "report.html").string() << std::endl;
        bool is_broken = false;
        for (std::size_t run = 0; run < of_runs.size(); ++run)
            is_broken |= break_thresholds(options.thresholds, joined_json(of_runs[run]), "report",
                                          of_runs.size() > 1 ? options.runs[run] : "");
        return is_broken ? exit_code::check_failed : exit_code::ok;
    };
    return run_on_ranks(options.ranks, "report", arguments, verify, body, options.device);
}

}  // namespace meshard
