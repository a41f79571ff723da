// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/report/report.h"

#include "apps/learning/evaluation/rolled_out_run.h"
#include "apps/learning/report/case_evaluation.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/made_folders.h"
#include "partition/lists.h"
#include "sharding/tensor/host_values.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>

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
        if (const auto error = error_of_validation(line); std::isfinite(error)) errors.push_back(error);
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

/// Returns the indices of the worst, the best and, of cases that are no runs, the median one with these words, each
/// case once.
std::vector<std::pair<std::size_t, std::string>> cases_to_draw(const Evaluation& evaluation)
{
    auto order = numbers_from<std::size_t>(0, evaluation.cases.size());
    std::ranges::stable_sort(order, {}, [&](auto i) { return mean_rel_l2(evaluation.cases[i]); });
    std::vector<std::pair<std::size_t, std::string>> drawn;
    const auto add = [&](std::size_t place, const char* why) {
        const bool is_there = std::ranges::any_of(drawn, [&](const auto& one) { return one.first == order[place]; });
        if (!is_there) drawn.emplace_back(order[place], why);
    };
    if (order.empty()) return drawn;
    add(order.size() - 1, "worst");
    add(0, "best");
    if (!evaluation.cases.front().rolled_out) add(order.size() / 2, "median");
    return drawn;
}

/// Predicts a case once more, and returns on the first rank what is drawn of it: the case, or of a run its first and
/// last state and others between them, at even steps. Collective.
std::vector<DrawnState> states_of_case(JudgedModel& model, std::span<const JudgedCase> cases, std::size_t index,
                                       const EvaluatedCase& evaluated, const std::filesystem::path& folder,
                                       World& world)
{
    constexpr std::int64_t most_rows = 5'000'000, most_states = 24;
    const auto num_states = evaluated.rolled_out ? std::ssize(evaluated.rolled_out->times) : std::int64_t{1};
    const auto num_kept =
        std::min(num_states,
                 std::clamp<std::int64_t>(most_rows / std::max<std::int64_t>(1, evaluated.num_points), 3, most_states));
    std::vector<std::int64_t> kept{0};
    for (std::int64_t i = 1; i < num_kept; ++i) kept.push_back(i * (num_states - 1) / (num_kept - 1));
    std::vector<DrawnState> states;
    const auto see = [&](const SeenCase& seen) {
        if (!contains(kept, static_cast<std::int64_t>(seen.state))) return;
        auto& state = states.emplace_back();
        state.mesh = seen.whole;
        state.mesh.point_data.clear();
        state.mesh.cell_data.clear();
        state.predicted = seen.predicted;
        state.truth = seen.truth;
        if (!evaluated.rolled_out) return;
        state.when = fmt::format("t = {:.4g}", evaluated.rolled_out->times[seen.state]);
        std::int64_t first = 0;
        for (std::size_t f = 0; f < model.predictor.channels().size(); ++f) {
            const auto count = model.predictor.channels()[f];
            if (model.predictor.data().fields[f].state == kCoordinates) {
                const auto places = seen.predicted.narrow(1, first, count);
                state.moved = DataArray::from(state.mesh.points.name(), values_on_host<float>(places), 3);
            }
            first += count;
        }
    };
    evaluate(model, cases.subspan(index, 1), folder, world, see);
    return states;
}

/// Returns the first field that is no coordinates, or 0.
std::size_t field_to_animate(const DataConfig& data)
{
    for (std::size_t f = 0; f < data.fields.size(); ++f)
        if (data.fields[f].state != kCoordinates) return f;
    return 0;
}

/// Returns the first, the middle and the last of some states.
std::vector<DrawnState> stills_of(std::span<const DrawnState> states)
{
    std::vector<DrawnState> stills{states.front()};
    if (states.size() > 2) stills.push_back(states[states.size() / 2]);
    if (states.size() > 1) stills.push_back(states.back());
    return stills;
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
            if (phase == "train" && line["loss"].is_number()) curves["loss"].push_back({line["epoch"], line["loss"]});
            if (phase != "val") continue;
            for (const auto& [field, metrics] : line["metrics"].items()) {
                if (metrics.contains("rel_l2"))
                    curves["val " + field + " rel_l2"].push_back({line["epoch"], metrics["rel_l2"]});
            }
            if (line.contains("rollout")) {
                for (const auto& [field, value] : line["rollout"]["rel_l2"].items())
                    curves["val " + field + " rolled out"].push_back({line["epoch"], value});
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
    std::vector<Animation> animations;
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
            const auto seen = states_of_case(model, cases, index, evaluation.cases[index], folder, world);
            if (seen.empty()) continue;  // not the first rank
            const auto& data = model.predictor.data();
            DrawnField field{.name = {}, .on_cells = data.on_cells};
            for (std::size_t f = 0; f < data.fields.size(); ++f, field.first += field.count) {
                field.name = data.fields[f].name;
                field.count = model.predictor.channels()[f];
                const auto stem = name + "_" + cases[index].first.id;
                if (why == "worst" && !seen.front().when.empty() && f == field_to_animate(data)) {
                    auto& animation = animations.emplace_back(animate_states(seen, field, options.planes, stem));
                    animation.run = name;
                    animation.id = cases[index].first.id;
                }
                for (auto& drawn : draw_states(stills_of(seen), field, options.planes, stem)) {
                    drawn.run = name;
                    drawn.id = cases[index].first.id;
                    drawn.split = cases[index].second;
                    drawn.why = why;
                    pictures.push_back(std::move(drawn));
                }
            }
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
    std::vector<std::pair<std::string, const Evaluation*>> tables;
    for (const auto& run : reported) tables.emplace_back(run.name, &run.evaluation);
    const HeldInterruption held;
    const MadeFolders folders(folder / "pictures" / "picture");
    std::vector<FileContent> files;
    for (const auto& of_case : pictures) {
        for (const auto& [name, light, dark] : of_case.pictures) {
            files.push_back({folder / "pictures" / (name + ".png"), light});
            files.push_back({folder / "pictures" / (name + "_dark.png"), dark});
        }
    }
    for (const auto& animation : animations)
        if (!animation.gif.empty()) files.push_back({folder / "pictures" / (animation.name + ".gif"), animation.gif});
    const auto numbers = report_json(reported).dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n",
               page = report_html(reported, pictures, animations);
    const auto lines = to_csv(tables);
    files.push_back({folder / "cases.csv", lines});
    files.push_back({folder / "report.json", numbers});
    files.push_back({folder / "report.html", page});
    write_files_atomically(files);
    return evaluations;
}

}  // namespace meshard
