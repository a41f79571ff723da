// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/report/report.h"

#include "apps/learning/report/case_evaluation.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/made_folders.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <sstream>

namespace meshard {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// Reads the lines of metrics.jsonl; one that is not finished is passed over.
OrderedJson log_of(const std::filesystem::path& run)
{
    auto lines = OrderedJson::array();
    std::ifstream stream(run / "metrics.jsonl");
    for (std::string text; std::getline(stream, text);) {
        auto line = OrderedJson::parse(text, nullptr, false);
        if (line.is_object()) lines.push_back(std::move(line));
    }
    return lines;
}

/// Computes whether the error was still falling when the run ended: the lowest mean rel_l2 (without validation cases
/// the lowest loss) of the last tenth of the epochs that were judged is more than 1 % below the lowest before. Null for
/// fewer than ten of them.
OrderedJson convergence_of(const OrderedJson& log)
{
    constexpr std::size_t fewest = 10;
    constexpr double still_falling = 0.01;
    const bool has_validation =
        std::ranges::any_of(log, [](const auto& line) { return line.value("phase", "") == "val"; });
    std::vector<double> errors;
    for (const auto& line : log) {
        const auto phase = line.value("phase", "");
        if (!has_validation && phase == "train" && line["loss"].is_number())
            errors.push_back(line["loss"].get<double>());
        if (phase != "val") continue;
        double sum = 0;
        for (const auto& [field, metrics] : line["metrics"].items())
            sum += metrics["rel_l2"].is_number() ? metrics["rel_l2"].get<double>() : 0.0;
        errors.push_back(sum / static_cast<double>(line["metrics"].size()));
    }
    if (errors.size() < fewest) return {};
    const auto tenth = static_cast<std::ptrdiff_t>(errors.size() / 10);
    const auto before = *std::min_element(errors.begin(), errors.end() - tenth),
               last = *std::min_element(errors.end() - tenth, errors.end());
    const auto fell = before > 0 ? 1 - last / before : 0.0;
    return {{"of", has_validation ? "mean validation rel_l2" : "training loss"},
            {"lowest_before_last_tenth", before},
            {"lowest_in_last_tenth", last},
            {"fell_by", fell},
            {"converged", fell <= still_falling}};
}

/// Returns the indices of the worst, the best and the median case with these words, each case once.
std::vector<std::pair<std::size_t, std::string>> cases_to_draw(const Evaluation& evaluation)
{
    std::vector<std::size_t> order(evaluation.cases.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](auto i) { return mean_rel_l2(evaluation.cases[i]); });
    std::vector<std::pair<std::size_t, std::string>> drawn;
    const auto add = [&](std::size_t place, const char* why) {
        const bool is_there = std::ranges::any_of(drawn, [&](const auto& one) { return one.first == order[place]; });
        if (!is_there) drawn.emplace_back(order[place], why);
    };
    if (order.empty()) return drawn;
    add(order.size() - 1, "worst");
    add(0, "best");
    add(order.size() / 2, "median");
    return drawn;
}

/// Returns the name of a run's folder, with a number from 2 on if an earlier run of the report has it, since the name
/// stands in names of files and in tables.
std::string unique_name(const std::string& folder, std::span<const ReportedRun> earlier)
{
    auto name = folder;
    for (int number = 2; std::ranges::find(earlier, name, &ReportedRun::name) != earlier.end(); ++number)
        name = fmt::format("{}_{}", folder, number);
    return name;
}

}  // namespace

OrderedJson report_json(std::span<const ReportedRun> runs)
{
    OrderedJson json{{"format", "meshard report"}, {"version", 1}, {"runs", OrderedJson::array()}};
    for (const auto& run : runs) {
        OrderedJson curves, data;
        for (const auto& line : run.log) {
            const auto phase = line.value("phase", "");
            if (phase == "data") data = line;
            if (phase == "train") curves["loss"].push_back({line["epoch"], line["loss"]});
            if (phase != "val") continue;
            for (const auto& [field, metrics] : line["metrics"].items()) {
                if (metrics.contains("rel_l2"))
                    curves["val " + field + " rel_l2"].push_back({line["epoch"], metrics["rel_l2"]});
            }
            const auto forces = line.value("forces", OrderedJson::object());
            for (const auto& [name, metrics] : forces.items()) {
                curves["val " + name + " mae"].push_back({line["epoch"], metrics["mae"]});
            }
        }
        json["runs"].push_back({{"name", run.name},
                                {"folder", run.folder.string()},
                                {"evaluation", to_json(run.evaluation)},
                                {"data", data},
                                {"curves", curves},
                                {"convergence", convergence_of(run.log)}});
    }
    return json;
}

std::vector<std::vector<Evaluation>> write_report(const ReportOptions& options, const std::filesystem::path& folder,
                                                  World& world)
{
    const bool is_first = world.rank() == 0;
    std::vector<ReportedRun> reported;
    std::vector<CasePictures> pictures;
    std::vector<std::vector<Evaluation>> evaluations;
    const auto judge = [&](const std::filesystem::path& run, std::size_t part) {
        auto model = judged_model(run, part, options.places);
        if (options.orient) model.predictor.set_orient(*options.orient);
        auto wanted = options.cases;
        if (wanted.empty() && !model.cases.val.empty()) wanted.emplace_back("val");
        if (options.cases.empty() && !model.cases.test.empty()) wanted.emplace_back("test");
        if (wanted.empty()) wanted.emplace_back("train");
        const auto cases = judged_cases(model, wanted);
        auto evaluation = evaluate(model, cases, folder, world);
        const auto named = std::filesystem::absolute(run).lexically_normal();
        const auto stem = (named.filename().empty() ? named.parent_path() : named).filename().string();
        const auto name = unique_name(part == 0 ? stem : stem + "_volume", reported);
        for (const auto& [index, why] : cases_to_draw(evaluation)) {
            const auto see = [&, index = index, why = why](std::size_t, const Mesh& whole, const at::Tensor& predicted,
                                                           const at::Tensor& truth) {
                std::int64_t first = 0;
                const auto& data = model.predictor.data();
                for (std::size_t f = 0; f < data.fields.size(); ++f) {
                    const auto count = model.predictor.channels()[f];
                    const auto stem_of_pictures = name + "_" + cases[index].first.id;
                    for (auto& drawn :
                         draw_case(whole, data.fields[f].name, data.on_cells, predicted.narrow(1, first, count),
                                   truth.narrow(1, first, count), options.planes, stem_of_pictures)) {
                        drawn.run = name;
                        drawn.id = cases[index].first.id;
                        drawn.split = cases[index].second;
                        drawn.why = why;
                        pictures.push_back(std::move(drawn));
                    }
                    first += count;
                }
            };
            evaluate(model, std::span(cases).subspan(index, 1), folder, world, see);
        }
        // Both parts share a log.
        reported.push_back({name, named, evaluation, is_first && part == 0 ? log_of(run) : OrderedJson()});
        evaluations.back().push_back(std::move(evaluation));
    };
    for (const auto& run : options.runs) {
        evaluations.emplace_back();
        for (std::size_t part = 0; part < num_trained_parts(run); ++part) judge(run, part);
    }
    if (!is_first) return evaluations;
    std::string lines;
    for (const auto& run : reported) {
        std::istringstream table(to_csv(run.evaluation));
        std::string line;
        for (bool is_head = true; std::getline(table, line); is_head = false) {
            if (!is_head || lines.empty()) lines += (is_head ? "run" : run.name) + "," + line + "\n";
        }
    }
    const HeldInterruption held;
    const MadeFolders folders(folder / "pictures" / "picture");
    std::vector<FileContent> files;
    for (const auto& of_case : pictures) {
        for (const auto& [name, light, dark] : of_case.pictures) {
            files.push_back({folder / "pictures" / (name + ".png"), light});
            files.push_back({folder / "pictures" / (name + "_dark.png"), dark});
        }
    }
    const auto numbers = report_json(reported).dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n",
               page = report_html(reported, pictures);
    files.push_back({folder / "cases.csv", lines});
    files.push_back({folder / "report.json", numbers});
    files.push_back({folder / "report.html", page});
    write_files_atomically(files);
    return evaluations;
}

}  // namespace meshard
