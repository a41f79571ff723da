// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/sweep/run_results.h"

#include "apps/console/text_table.h"
#include "apps/learning/evaluation/field_metrics.h"
#include "apps/learning/evaluation/rolled_out_run.h"
#include "apps/learning/settings/settings.h"
#include "io/bytes/csv_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

namespace meshard {
namespace {

using SweepJson = nlohmann::ordered_json;

/// Coefficients that a case may have, and their labels in tables.
constexpr std::array<std::pair<const char*, const char*>, 10> kCoefficients{{{"cd", "Cd"},
                                                                             {"cd_head", "Cd by the head"},
                                                                             {"cd_shape", "Cd by the shape alone"},
                                                                             {"cl", "Cl"},
                                                                             {"cl_head", "Cl by the head"},
                                                                             {"cl_shape", "Cl by the shape alone"},
                                                                             {"cs", "Cs"},
                                                                             {"cmx", "Cmx"},
                                                                             {"cmy", "Cmy"},
                                                                             {"cmz", "Cmz"}}};

/// Mean and standard deviation (of n - 1).
struct MeanAndSpread {
    std::size_t count = 0;
    double mean = 0;
    std::optional<double> spread;
};

MeanAndSpread mean_and_spread(const std::vector<double>& values)
{
    MeanAndSpread found{.count = values.size(), .spread = {}};
    for (const auto value : values) found.mean += value / static_cast<double>(values.size());
    if (values.size() < 2) return found;
    double squares = 0;
    for (const auto value : values) squares += (value - found.mean) * (value - found.mean);
    found.spread = std::sqrt(squares / static_cast<double>(values.size() - 1));
    return found;
}

/// The finished runs of one place of the grid.
struct PlaceInGrid {
    std::string point;
    std::vector<double> errors, drag_errors, seconds;
    std::vector<HeldOutCase> cases;  ///< cases of all runs, one run after the other
};

/// Predictions and truths of a coefficient, a row a case and run.
struct CoefficientRows {
    std::vector<double> predicted, truth;
};

CoefficientRows rows_of_each_run(const PlaceInGrid& place, const std::string& coefficient)
{
    CoefficientRows rows;
    for (const auto& one : place.cases) {
        const auto found = one.coefficients.find(coefficient);
        if (found == one.coefficients.end()) continue;
        rows.predicted.push_back(found->second.predicted);
        rows.truth.push_back(found->second.truth);
    }
    return rows;
}

/// Returns a row for each case: the mean of the runs that predicted it.
CoefficientRows rows_of_mean(const PlaceInGrid& place, const std::string& coefficient)
{
    std::map<std::string, std::vector<JudgedCoefficient>> by_case;
    for (const auto& one : place.cases) {
        const auto found = one.coefficients.find(coefficient);
        if (found != one.coefficients.end()) by_case[one.id].push_back(found->second);
    }
    CoefficientRows rows;
    for (const auto& [id, judged] : by_case) {
        double sum = 0;
        for (const auto& one : judged) sum += one.predicted;
        rows.predicted.push_back(sum / static_cast<double>(judged.size()));
        rows.truth.push_back(judged.front().truth);
    }
    return rows;
}

std::vector<PlaceInGrid> places_in_grid(std::span<const SweptRun> runs)
{
    std::vector<PlaceInGrid> places;
    for (const auto& [run, result, state] : runs) {
        auto place = std::ranges::find(places, run.point, &PlaceInGrid::point);
        if (place == places.end()) place = places.insert(places.end(), {run.point, {}, {}, {}, {}});
        if (!result) continue;
        place->errors.push_back(result->error);
        place->seconds.push_back(result->seconds);
        place->cases.insert(place->cases.end(), result->cases.begin(), result->cases.end());
        if (result->drag_error) place->drag_errors.push_back(*result->drag_error);
    }
    std::ranges::stable_sort(places, {}, [](const auto& place) {
        const auto mean = place.errors.empty() ? INFINITY : mean_and_spread(place.errors).mean;
        return std::isnan(mean) ? INFINITY : mean;
    });
    return places;
}

SweepJson or_null(const std::optional<double>& value)
{
    return value && std::isfinite(*value) ? SweepJson(*value) : SweepJson(nullptr);
}

std::string with_spread(const std::vector<double>& values)
{
    if (values.empty()) return "-";
    const auto found = mean_and_spread(values);
    return fmt::format("{:.4g}", found.mean) + (found.spread ? fmt::format(" ± {:.2g}", *found.spread) : "");
}

std::vector<HeldOutCase> cases_in(const std::filesystem::path& file)
{
    std::ifstream stream(file);
    const auto table = read_csv(stream, file.string());
    std::vector<HeldOutCase> cases;
    for (const auto& row : table.rows) {
        const auto number = [&](const std::string& column) -> std::optional<double> {
            const auto at = table.column(column);
            return at < row.values.size() ? number_in(row.values[at]) : std::nullopt;
        };
        HeldOutCase one{.id = row.values.front(), .coefficients = {}};
        for (const std::string name : {"cd", "cl", "cs", "cmx", "cmy", "cmz"}) {
            const auto predicted = number(name + ".predicted");
            auto truth = number(name + ".table");
            if (!truth) truth = number(name + ".true");
            if (predicted && truth) one.coefficients[name] = {*predicted, *truth};
            for (const std::string other : {"head", "shape"}) {
                const auto found = number(name + "." + other);
                if (found && truth) one.coefficients[name + "_" + other] = {*found, *truth};
            }
        }
        cases.push_back(std::move(one));
    }
    std::ranges::sort(cases, {}, &HeldOutCase::id);
    return cases;
}

}  // namespace

std::optional<RunResult> result_of(const std::filesystem::path& run)
{
    RunResult result;
    result.best_error = INFINITY;
    bool is_judged = false, has_ended = false;
    std::ifstream stream(run / "metrics.jsonl");
    for (std::string text; std::getline(stream, text);) {
        const auto line = SweepJson::parse(text, nullptr, false);
        if (!line.is_object()) continue;
        const auto phase = line.value("phase", "");
        if (phase == "memory") has_ended = true;
        if (phase == "train_step") has_ended = false;  // the run was given more epochs
        if (phase == "train") {
            if (line.contains("loss") && line["loss"].is_number()) result.loss = line["loss"];
            result.seconds += line.value("seconds_in_steps", 0.0);
        }
        if (phase != "val") continue;
        result.error = error_of_validation(line);
        result.best_error = std::fmin(result.best_error, result.error);
        const auto forces = line.value("forces", SweepJson::object());
        for (const char* name : {"cd", "cd_table"}) {
            if (forces.contains(name) && forces[name]["mae"].is_number())
                result.drag_error = forces[name]["mae"].get<double>();
        }
        is_judged = true;
    }
    if (!has_ended || !is_judged) return std::nullopt;
    result.cases = cases_in(run / "val_cases.csv");
    return result;
}

SweepJson sweep_json(std::span<const SweptRun> runs)
{
    SweepJson json{
        {"format", "meshard sweep"}, {"version", 1}, {"runs", SweepJson::array()}, {"points", SweepJson::array()}};
    for (const auto& [run, result, state] : runs) {
        SweepJson one{{"name", run.name}, {"point", run.point}, {"settings", run.words},
                      {"fold", run.fold}, {"seed", run.seed},   {"state", state}};
        one["val_cases"] = run.val;
        if (result) {
            one["rel_l2"] = or_null(result->error);
            one["best_rel_l2"] = or_null(result->best_error);
            one["cd_mae"] = or_null(result->drag_error);
            one["loss"] = or_null(result->loss);
            one["seconds_in_steps"] = result->seconds;
            one["cases"] = SweepJson::array();
            for (const auto& judged : result->cases) {
                SweepJson entry{{"id", judged.id}};
                for (const auto& [name, coefficient] : judged.coefficients)
                    entry[name] = {{"predicted", coefficient.predicted}, {"true", coefficient.truth}};
                one["cases"].push_back(std::move(entry));
            }
        }
        json["runs"].push_back(std::move(one));
    }
    for (const auto& place : places_in_grid(runs)) {
        const auto entry = [](const std::vector<double>& values) -> SweepJson {
            if (values.empty()) return nullptr;
            const auto found = mean_and_spread(values);
            return {{"mean", or_null(found.mean)}, {"spread", or_null(found.spread)}};
        };
        SweepJson one{{"point", place.point},
                      {"n", place.errors.size()},
                      {"rel_l2", entry(place.errors)},
                      {"cd_mae", entry(place.drag_errors)},
                      {"seconds_in_steps", entry(place.seconds)}};
        for (const auto& [name, label] : kCoefficients) {
            const auto figures = [](const CoefficientRows& rows) {
                SweepJson all;
                for (const auto& [metric, value] : coefficient_metrics(rows.predicted, rows.truth, {})) {
                    if (metric != "guess_mae") all[metric] = or_null(value);
                }
                return all;
            };
            const auto rows = rows_of_each_run(place, name);
            if (!rows.truth.empty())
                one[name] = {{"each_run", figures(rows)}, {"mean_of_runs", figures(rows_of_mean(place, name))}};
        }
        json["points"].push_back(std::move(one));
    }
    return json;
}

std::string sweep_csv(std::span<const SweptRun> runs)
{
    std::string text = "name,point,fold,seed,state,rel_l2,best_rel_l2,cd_mae,loss,seconds_in_steps\n";
    for (const auto& [run, result, state] : runs) {
        text += fmt::format("{},{},{},{},{}", csv_text(run.name), csv_text(run.point), run.fold, run.seed, state);
        const auto numbers = result ? std::array{result->error, result->best_error, result->drag_error.value_or(NAN),
                                                 result->loss, result->seconds}
                                    : std::array{double(NAN), double(NAN), double(NAN), double(NAN), double(NAN)};
        for (const auto number : numbers) text += "," + exact_text(number);
        text += "\n";
    }
    return text;
}

std::string sweep_text(std::span<const SweptRun> runs)
{
    TextTable table("lrlll");
    table.add_row({"settings", "runs", " val rel_l2", " val Cd mae", " seconds in steps"});
    for (const auto& place : places_in_grid(runs)) {
        table.add_row({place.point.empty() ? "as configured" : place.point, std::to_string(place.errors.size()),
                       " " + with_spread(place.errors), " " + with_spread(place.drag_errors),
                       " " + with_spread(place.seconds)});
    }
    std::ostringstream text;
    text << table;

    // Coefficients of all folds are judged together, since a fold of a few cases can rank nothing.
    TextTable forces("llrrrrr");
    forces.add_row({"settings", " ", "cases", "mae", "bias", "max", "spearman"});
    bool has_forces = false;
    for (const auto& place : places_in_grid(runs)) {
        for (const auto& [name, label] : kCoefficients) {
            const auto each = rows_of_each_run(place, name), mean = rows_of_mean(place, name);
            if (each.truth.size() < 2) continue;
            has_forces = true;
            const auto add = [&](const std::string& what, const CoefficientRows& rows) {
                const auto found = coefficient_metrics(rows.predicted, rows.truth, {});
                const auto number = [&](const std::string& metric) {
                    const auto value = std::ranges::find(found, metric, &Metrics::value_type::first)->second;
                    return std::isfinite(value) ? number_text(value) : std::string("-");
                };
                forces.add_row({place.point.empty() ? "as configured" : place.point, " " + what,
                                std::to_string(mean.truth.size()), number("mae"), number("bias"), number("max_abs"),
                                number("spearman")});
            };
            add(label, each);
            if (mean.truth.size() < each.truth.size() && !std::string_view(name).ends_with("_shape"))
                add(std::string(label) + ", mean of runs", mean);
        }
    }
    if (has_forces) text << "\nall validation cases together, each predicted without having been seen\n" << forces;
    return text.str();
}

}  // namespace meshard
