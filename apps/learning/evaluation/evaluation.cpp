// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/evaluation.h"

#include "apps/console/console.h"
#include "apps/console/text_table.h"
#include "apps/learning/evaluation/held_out_errors.h"
#include "io/bytes/atomic_file.h"
#include "partition/lists.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <limits>
#include <sstream>

namespace meshard {
namespace {

using Json = nlohmann::ordered_json;

const std::array<std::string, 2> kDragAndLift{"cd", "cl"};
constexpr std::int64_t kFewCases = 10;  // r2 and ranks of fewer cases say little

/// Returns null for a number that is not finite.
Json number_json(double value)
{
    return std::isfinite(value) ? Json(value) : Json(nullptr);
}

/// Whether a metric is the rel_l2 of a field, not that of a component.
bool is_of_whole_field(const std::string& metric)
{
    return metric.ends_with(".rel_l2") && std::ranges::count(metric, '.') == 1;
}

/// Whether predicted fields, or the states of a roll-out, are not finite. (The rel_l2 of one case may be undefined.)
bool has_diverged(const EvaluatedCase& one)
{
    return std::ranges::any_of(one.metrics, [&](const auto& metric) {
        const bool tells = one.rolled_out ? is_of_whole_field(metric.first) : metric.first.ends_with(".mae");
        return tells && std::isnan(metric.second);
    });
}

/// Sets the value at a path such as `a.b.c`.
void put(Json& json, const std::string& path, Json value)
{
    auto* at = &json;
    std::istringstream words(path);
    std::string word, next;
    std::getline(words, word, '.');
    while (std::getline(words, next, '.')) {
        at = &(*at)[word];
        word = next;
    }
    (*at)[word] = std::move(value);
}

/// Returns the cases of one of several data sets.
Evaluation of_set(const Evaluation& evaluation, const std::string& set)
{
    Evaluation part{.model = {}, .guess = evaluation.guess};
    std::ranges::copy_if(evaluation.cases, std::back_inserter(part.cases),
                         [&](const auto& one) { return one.source.set == set; });
    return part;
}

/// Returns the names of the data sets of a split's cases; none if the run has a single one.
std::vector<std::string> sets_of(const Evaluation& evaluation, const std::string& split)
{
    std::vector<std::string> sets;
    for (const auto& one : evaluation.cases) {
        if (one.split == split && !one.source.set.empty() && !contains(sets, one.source.set))
            sets.push_back(one.source.set);
    }
    return sets;
}

std::vector<const EvaluatedCase*> cases_of(const Evaluation& evaluation, const std::string& split)
{
    std::vector<const EvaluatedCase*> cases;
    for (const auto& one : evaluation.cases) {
        if (one.split == split) cases.push_back(&one);
    }
    return cases;
}

/// The name that evaluations give a coefficient: Cs is cs.
std::string evaluated_name(const Coefficient& coefficient)
{
    std::string name = coefficient.name;
    name.front() = 'c';
    return name;
}

/// Returns name and value of each force number of a case.
Metrics force_numbers(const EvaluatedCase& one)
{
    Metrics numbers;
    for (std::size_t k = 0; k < 2; ++k)
        if (one.of_head[k]) numbers.emplace_back(kDragAndLift[k] + ".head", *one.of_head[k]);
    if (!one.forces) return numbers;
    for (std::size_t k = 0; k < one.forces->all.size(); ++k) {
        const auto& found = one.forces->all[k];
        const auto name = evaluated_name(found);
        numbers.emplace_back(name + ".predicted", found.predicted);
        numbers.emplace_back(name + ".true", found.truth);
        numbers.emplace_back(name + ".error", found.predicted - found.truth);
        if (k >= 2) continue;
        const auto& of_table = one.of_table[k];
        numbers.emplace_back(name + ".table", of_table.value_or(NAN));
        numbers.emplace_back(name + ".error_table", of_table ? found.predicted - *of_table : NAN);
        numbers.emplace_back(name + ".data_error", of_table ? found.truth - *of_table : NAN);
        if (k > 0) continue;
        numbers.emplace_back("cd.pressure_predicted", one.forces->pressure_drag_predicted);
        numbers.emplace_back("cd.pressure_true", one.forces->pressure_drag_true);
    }
    for (std::size_t k = 0; k < 2; ++k)
        if (one.of_shape[k]) numbers.emplace_back(kDragAndLift[k] + ".shape", *one.of_shape[k]);
    return numbers;
}

Json spread_json(const std::vector<const EvaluatedCase*>& cases, std::size_t metric)
{
    std::vector<double> values;
    for (const auto* one : cases) values.push_back(one->metrics[metric].second);
    for (const auto* one : cases) {
        if (!has_diverged(*one) || std::isfinite(one->metrics[metric].second)) continue;
        return {{"mean", nullptr}, {"median", nullptr}, {"std", nullptr}, {"max", nullptr}, {"worst", one->source.id}};
    }
    const auto spread = spread_of(values);
    return {{"mean", number_json(spread.mean)},
            {"median", number_json(spread.median)},
            {"std", number_json(spread.deviation)},
            {"max", number_json(spread.largest)},
            {"worst", spread.largest_case < 0 ? Json(nullptr) : Json(cases[spread.largest_case]->source.id)}};
}

Json roll_out_of_case(const RolledOutRun& run)
{
    Json json{{"times", run.times}};
    for (const auto& [name, kind] : kErrorKinds) {
        for (std::size_t f = 0; f < run.fields.size(); ++f) {
            auto& values = json[name][run.fields[f]] = Json::array();
            for (const auto& of_state : run.*kind) values.push_back(number_json(of_state[f]));
        }
    }
    return json;
}

Json case_json(const EvaluatedCase& one)
{
    Json json{{"id", one.source.id},
              {"split", one.split},
              {"file", one.source.file.string()},
              {"num_points", one.num_points},
              {"seconds", one.seconds ? Json(*one.seconds) : Json()}};
    for (const auto& [name, value] : one.metrics) put(json["fields"], name, number_json(value));
    if (one.rolled_out) json["rollout"] = roll_out_of_case(*one.rolled_out);
    if (one.isolation) json["isolation"] = *one.isolation;
    if (!one.beyond.empty()) json["beyond"] = one.beyond;
    for (const auto& [field, region] : one.error_regions)
        json["error_regions"][field] = {
            {"bounds", region.bounds}, {"error_share", region.error_share}, {"row_share", region.row_share}};
    for (const auto& [name, value] : force_numbers(one)) put(json, name, number_json(value));
    if (!one.drag_along_x.empty()) {
        json["drag_along_x"] = {{"low_x", one.low_x},
                                {"high_x", one.high_x},
                                {"true", one.drag_along_x[0]},
                                {"predicted", one.drag_along_x[1]}};
    }
    return json;
}

/// Returns the numbers of one split, as `to_json` describes them.
Json split_json(const Evaluation& evaluation, const std::string& split)
{
    const auto cases = cases_of(evaluation, split);
    Json to{{"num_cases", cases.size()}};
    if (const auto worst = worst_case(evaluation, split))
        to["worst"] = {{"id", worst->one->source.id},
                       {"why", worst->text()},
                       {"field", worst->field},
                       {"times_median", number_json(worst->times_median)},
                       {"beyond", worst->one->beyond}};
    for (std::size_t m = 0; m < cases.front()->metrics.size(); ++m)
        put(to["fields"], cases.front()->metrics[m].first, spread_json(cases, m));
    if (const auto runs = roll_outs_of(evaluation, split); !runs.empty()) to["rollout"] = roll_out_json(runs);
    for (const auto& series : coefficients_of(evaluation, split)) {
        for (const auto& [name, value] : coefficient_metrics(series.predicted, series.truth, series.guess))
            to[series.name][name] = number_json(value);
        if (series.interval) {
            to[series.name]["interval"] = *series.interval;
            to[series.name]["coverage"] = series.coverage();
        }
        std::vector<double> errors;
        for (std::size_t i = 0; i < series.truth.size(); ++i)
            errors.push_back(std::abs(series.predicted[i] - series.truth[i]));
        const auto worst = spread_of(errors).largest_case;
        if (worst >= 0) to[series.name]["worst"] = series.ids[worst];
    }
    for (const auto* one : cases) {
        for (const auto& [field, counts] : one->error_histograms) {
            auto& of_field = to["error_histograms"][field];
            if (of_field.is_null())
                of_field = {{"low", -1},
                            {"high", 1},
                            {"below", 0.0},
                            {"counts", std::vector<double>(counts.size() - 2)},
                            {"above", 0.0}};
            of_field["below"] = of_field["below"].get<double>() + counts.front();
            of_field["above"] = of_field["above"].get<double>() + counts.back();
            for (std::size_t bin = 0; bin + 2 < counts.size(); ++bin)
                of_field["counts"][bin] = of_field["counts"][bin].get<double>() + counts[bin + 1];
        }
    }
    return to;
}

/// Makes a table of fields for a person.
TextTable field_table(const Json& of_fields)
{
    TextTable fields("lrrrrlr");
    fields.add_row({"  field", "rel_l2", "median", "max", "mae", " worst case", "rel_l2 of the training mean"});
    for (const auto& [name, metrics] : of_fields.items()) {
        const auto number = [&](const char* metric, const char* which) {
            const auto& value = metrics[metric][which];
            return value.is_number() ? short_text(value.get<double>()) : std::string("-");
        };
        const auto& worst = metrics["rel_l2"]["worst"];
        fields.add_row({"  " + name, number("rel_l2", "mean"), number("rel_l2", "median"), number("rel_l2", "max"),
                        number("mae", "mean"), " " + (worst.is_string() ? worst.get<std::string>() : "-"),
                        number("guess_rel_l2", "mean")});
    }
    return fields;
}

/// Makes a table of roll-outs for a person, a line a field.
TextTable roll_out_table(const Json& fields)
{
    TextTable table("lrrrrrrrl");
    table.add_row({"  field", "one step", "rolled out", "persistence", "mean", "at the end", "persistence", "mean",
                   " worst run"});
    for (const auto& [name, metrics] : fields.items()) {
        std::vector<std::string> row{"  " + name};
        for (const char* metric : {"rel_l2_one_step", "rel_l2", "persistence_rel_l2", "guess_rel_l2", "rel_l2_end",
                                   "persistence_rel_l2_end", "guess_rel_l2_end"}) {
            const auto& value = metrics[metric]["mean"];
            row.push_back(value.is_number() ? short_text(value.get<double>()) : "-");
        }
        const auto& worst = metrics["rel_l2"]["worst"];
        row.push_back(" " + (worst.is_string() ? worst.get<std::string>() : "-"));
        table.add_row(std::move(row));
    }
    return table;
}

}  // namespace

Metrics roll_out_metrics(const RolledOutRun& run)
{
    Metrics metrics;
    for (std::size_t f = 0; f < run.fields.size(); ++f) {
        const auto add = [&](const char* name, double value) {
            metrics.emplace_back(run.fields[f] + "." + name, value);
        };
        const auto mean = [&](ErrorsOfStates RolledOutRun::* kind) { return mean_error({&run, 1}, kind, f); };
        add("rel_l2", mean(&RolledOutRun::errors));
        add("rel_l2_one_step", mean(&RolledOutRun::of_one_step));
        add("rel_l2_end", run.errors.back()[f]);
        add("persistence_rel_l2", mean(&RolledOutRun::of_persistence));
        add("persistence_rel_l2_end", run.of_persistence.back()[f]);
        add("guess_rel_l2", mean(&RolledOutRun::of_mean));
        add("guess_rel_l2_end", run.of_mean.back()[f]);
        add("integral_end", run.integral_drift.back()[f]);
        add("energy_end", run.energy_drift.back()[f]);
    }
    return metrics;
}

std::vector<RolledOutRun> roll_outs_of(const Evaluation& evaluation, const std::string& split)
{
    std::vector<RolledOutRun> runs;
    for (const auto& one : evaluation.cases)
        if (one.rolled_out && (split.empty() || one.split == split)) runs.push_back(*one.rolled_out);
    return runs;
}

double mean_rel_l2(const EvaluatedCase& one)
{
    if (has_diverged(one)) return std::numeric_limits<double>::infinity();
    double sum = 0;
    int count = 0;
    for (const auto& [name, value] : one.metrics) {
        if (!is_of_whole_field(name)) continue;
        if (!std::isfinite(value)) continue;
        sum += value;
        ++count;
    }
    return count > 0 ? sum / count : 0;
}

std::string WorstCase::text() const
{
    auto text = fmt::format("{} has {} times the median rel_l2", field, short_text(times_median));
    for (const auto& [name, region] : one->error_regions)
        if (name == field) text += "; " + region.text(one->on_cells);
    if (one->isolation)
        text += fmt::format("; its shape and constants lie {} times as far from the nearest training case as training "
                            "cases lie from theirs",
                            short_text(*one->isolation));
    if (!one->has_ranges) return text;
    if (one->beyond.empty()) return text + "; each of its inputs lies within the range of the training cases";
    return text + fmt::format("; beyond the training cases: {}", fmt::join(one->beyond, ", "));
}

std::optional<WorstCase> worst_case(const Evaluation& evaluation, const std::string& split)
{
    const auto cases = cases_of(evaluation, split);
    if (cases.size() < 2) return std::nullopt;
    WorstCase worst{*std::ranges::max_element(cases, {}, [](const auto* one) { return mean_rel_l2(*one); }), {}, 0};
    for (std::size_t m = 0; m < worst.one->metrics.size(); ++m) {
        const auto& [name, value] = worst.one->metrics[m];
        if (!is_of_whole_field(name)) continue;
        std::vector<double> values;
        for (const auto* one : cases) values.push_back(one->metrics[m].second);
        const auto times = value / spread_of(values).median;
        if (worst.field.empty() || times > worst.times_median)
            worst = {worst.one, name.substr(0, name.find('.')), times};
    }
    return worst;
}

std::optional<FlowReference> add_forces(EvaluatedCase& one, const CaseSums& sums, const JudgedFields& layout,
                                        const ForceSettings& settings, std::string& why)
{
    if (layout.pressure < 0) {
        why = "no field has the kind of a pressure (data.fields.NAME.kind: kinematic, static or cp)";
        return std::nullopt;
    }
    if (!(sums.forces.area > 0)) {
        why = "the cells have no area";
        return std::nullopt;
    }
    const auto flow = flow_reference(settings, one.source, layout.pressure_kind, why);
    if (!flow) return std::nullopt;
    one.forces = coefficients(sums.forces, *flow);
    one.of_table = {table_value(one.source, settings.drag), table_value(one.source, settings.lift)};
    return flow;
}

void add_of_head(EvaluatedCase& one, const std::vector<std::string>& names, std::span<const double> values,
                 const ForceSettings& settings)
{
    for (std::size_t k = 0; k < names.size(); ++k) one.of_head[names[k] == "cd" ? 0 : 1] = values[k];
    if (names.empty()) return;
    one.of_table = {table_value(one.source, settings.drag), table_value(one.source, settings.lift)};
}

std::vector<std::string> splits_of(const Evaluation& evaluation)
{
    std::vector<std::string> splits;
    for (const char* split : {"train", "val", "test", "given"}) {
        if (std::ranges::any_of(evaluation.cases, [&](const auto& one) { return one.split == split; }))
            splits.emplace_back(split);
    }
    return splits;
}

std::vector<CoefficientSeries> coefficients_of(const Evaluation& evaluation, const std::string& split)
{
    std::vector<CoefficientSeries> series;  // pairs of drag and lift
    for (const char* by : {"", "_table", "_head", "_shape"})
        for (std::size_t k = 0; k < 2; ++k)
            series.push_back({.name = kDragAndLift[k] + by, .guess = evaluation.guess[k]});
    const auto add = [](CoefficientSeries& to, const EvaluatedCase& one, double predicted, double truth) {
        to.predicted.push_back(predicted);
        to.truth.push_back(truth);
        to.ids.push_back(one.source.id);
    };
    for (const auto* one : cases_of(evaluation, split)) {
        const auto found = one->forces ? one->forces->all : std::vector<Coefficient>();
        for (std::size_t k = 0; k < 2; ++k) {
            const auto& of_table = one->of_table[k];
            if (const auto truth = of_table ? of_table : found.empty() ? std::nullopt : std::optional(found[k].truth)) {
                if (one->of_head[k]) add(series[4 + k], *one, *one->of_head[k], *truth);
                if (one->of_shape[k]) add(series[6 + k], *one, *one->of_shape[k], *truth);
            }
            if (found.empty()) continue;
            add(series[k], *one, found[k].predicted, found[k].truth);
            if (of_table) add(series[2 + k], *one, found[k].predicted, *of_table);
        }
        for (std::size_t k = 2; k < found.size(); ++k) {
            const auto name = evaluated_name(found[k]);
            auto to = std::ranges::find(series, name, &CoefficientSeries::name);
            if (to == series.end()) to = series.insert(to, {.name = name});
            add(*to, *one, found[k].predicted, found[k].truth);
        }
    }
    for (std::size_t k = 0; k < 2; ++k)
        series[series[2 + k].truth.empty() ? k : 2 + k].interval = evaluation.interval[k];
    std::erase_if(series, [](const auto& one) { return one.truth.empty(); });
    return series;
}

double CoefficientSeries::coverage() const
{
    double num_inside = 0;
    for (std::size_t i = 0; i < truth.size(); ++i) num_inside += std::abs(predicted[i] - truth[i]) <= *interval;
    return num_inside / static_cast<double>(truth.size());
}

Json to_json(const Evaluation& evaluation)
{
    Json json{
        {"format", "meshard evaluation"}, {"version", 1}, {"model", evaluation.model}, {"notes", evaluation.notes}};
    json["splits"] = Json::object();
    for (const auto& split : splits_of(evaluation)) {
        json["splits"][split] = split_json(evaluation, split);
        for (const auto& set : sets_of(evaluation, split))
            json["splits"][split]["sets"][set] = split_json(of_set(evaluation, set), split);
    }
    json["cases"] = Json::array();
    for (const auto& one : evaluation.cases) json["cases"].push_back(case_json(one));
    return json;
}

namespace {

using NamedEvaluation = std::pair<std::string, const Evaluation*>;

void add_columns(std::vector<std::string>& columns, const Metrics& numbers)
{
    for (const auto& [name, value] : numbers)
        if (!contains(columns, name)) columns.push_back(name);
}

std::string table_of(std::span<const NamedEvaluation> runs, bool has_names)
{
    struct Row {
        const std::string* run;
        const EvaluatedCase* of;
        Metrics numbers;
    };
    std::vector<Row> rows;
    std::vector<std::string> columns, force_columns;
    for (const auto& [run, evaluation] : runs) {
        const auto first = std::ssize(rows);
        for (const auto& one : evaluation->cases) rows.push_back({&run, &one, one.metrics});
        std::ranges::stable_sort(rows.begin() + first, rows.end(), std::greater<>(),
                                 [](const Row& row) { return mean_rel_l2(*row.of); });
        for (auto row = rows.begin() + first; row != rows.end(); ++row) {
            const auto forces = force_numbers(*row->of);
            add_columns(columns, row->numbers);
            add_columns(force_columns, forces);
            append(row->numbers, forces);
        }
    }
    append(columns, force_columns);

    std::string text = has_names ? "run,id,split,num_points,seconds" : "id,split,num_points,seconds";
    for (const auto& name : columns) text += "," + csv_text(name);
    text += "\n";
    for (const auto& [run, one, numbers] : rows) {
        text += fmt::format("{}{},{},{},{}", has_names ? csv_text(*run) + "," : "", csv_text(one->source.id),
                            one->split, one->num_points, one->seconds ? exact_text(*one->seconds) : "");
        for (const auto& name : columns) {
            const auto found = std::ranges::find(numbers, name, &Metrics::value_type::first);
            text += "," + (found == numbers.end() ? std::string() : exact_text(found->second));
        }
        text += "\n";
    }
    return text;
}

}  // namespace

std::string to_csv(const Evaluation& evaluation)
{
    return table_of(std::array{NamedEvaluation("", &evaluation)}, false);
}

std::string to_csv(std::span<const std::pair<std::string, const Evaluation*>> runs)
{
    return table_of(runs, true);
}

std::string to_text(const Evaluation& evaluation)
{
    std::ostringstream out;
    const auto json = to_json(evaluation);
    for (const auto& split : splits_of(evaluation)) {
        const auto cases = cases_of(evaluation, split);
        const bool is_of_runs = cases.front()->rolled_out.has_value();
        out << split << ": " << count_text(std::ssize(cases), is_of_runs ? "run" : "case") << "\n";
        const auto& of_fields = json["splits"][split]["fields"];
        out << (is_of_runs ? roll_out_table(of_fields) : field_table(of_fields));
        if (json["splits"][split].contains("worst")) {
            const auto& worst = json["splits"][split]["worst"];
            out << "  worst, " << worst["id"].get<std::string>() << ": " << worst["why"].get<std::string>() << "\n";
        }
        for (const auto& set : sets_of(evaluation, split)) {
            const auto& of_set = json["splits"][split]["sets"][set];
            out << "  " << set << " (" << count_text(of_set["num_cases"].get<std::int64_t>(), "case") << "): rel_l2";
            for (const auto& [name, metrics] : of_set["fields"].items()) {
                const auto& value = metrics["rel_l2"]["mean"];
                out << " " << name << " " << (value.is_number() ? short_text(value.get<double>()) : "-");
            }
            out << "\n";
        }
        const auto series = coefficients_of(evaluation, split);
        if (series.empty()) continue;
        TextTable forces("lrrrrrrr");
        forces.add_row({"  coefficient", "mae", "bias", "std", "max", "r2", "spearman", "mae of the training mean"});
        for (const auto& one : series) {
            std::vector<std::string> row{"  " + one.name};
            const auto metrics = coefficient_metrics(one.predicted, one.truth, one.guess);
            for (const char* wanted : {"mae", "bias", "std", "max_abs", "r2", "spearman", "guess_mae"}) {
                row.push_back(short_text(std::ranges::find(metrics, wanted, &Metrics::value_type::first)->second));
            }
            forces.add_row(std::move(row));
        }
        out << forces;
        for (const auto& one : series) {
            if (one.interval)
                out << fmt::format("  {}: {:.0f} % lie within ±{} of the prediction, expected are {:.0f} %\n", one.name,
                                   100 * one.coverage(), short_text(*one.interval), 100 * kCoverage);
        }
        if (std::ssize(cases) < kFewCases) {
            out << "  " << count_text(std::ssize(cases), "case") << ": r2 and spearman of fewer than " << kFewCases
                << " say little\n";
        }
    }
    return out.str();
}

Json joined_json(std::span<const Evaluation> parts)
{
    auto numbers = to_json(parts.front());
    if (parts.size() == 1) return numbers;
    numbers["volume"] = to_json(parts.back());
    for (const auto& [split, of_split] : numbers["volume"]["splits"].items())
        numbers["splits"][split]["fields"].update(of_split["fields"]);
    return numbers;
}

void write_evaluation(const Evaluation& evaluation, const std::filesystem::path& folder)
{
    const auto table = to_csv(evaluation),
               numbers = to_json(evaluation).dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
    const auto runs = roll_outs_of(evaluation);
    const auto states = roll_out_csv(runs);
    const std::array files{FileContent{folder / "cases.csv", table}, FileContent{folder / "evaluation.json", numbers},
                           FileContent{folder / "rollout.csv", states}};
    write_files_atomically(std::span(files).first(runs.empty() ? 2 : 3));
}

Threshold::Threshold(const std::string& text_) : text(text_)
{
    const auto at = text.find_first_of("<>");
    const auto refuse = [&] {
        throw UsageError("--fail-if {}: expected NUMBER>BOUND or NUMBER<BOUND, e.g. test.cd.mae>0.01.", text);
    };
    if (at == std::string::npos || at == 0) refuse();
    path = text.substr(0, text.find_last_not_of(' ', at - 1) + 1);
    const bool or_equal = at + 1 < text.size() && text[at + 1] == '=';
    comparison = text.substr(at, or_equal ? 2 : 1);
    bound = parse_numbers(text.substr(at + comparison.size()), "--fail-if " + text, 1)[0];
}

double Threshold::value_in(const Json& evaluation) const
{
    const auto* at = &evaluation.at("splits");
    std::istringstream words(path);
    std::string so_far;
    for (std::string word; std::getline(words, word, '.');) {
        if (so_far.find('.') == std::string::npos && !so_far.empty() && at->is_object() && !at->contains(word) &&
            at->contains("fields") && at->at("fields").contains(word))
            at = &at->at("fields");
        if (!at->is_object() || !at->contains(word)) {
            std::string known;
            for (const auto& [name, value] : at->items()) known += (known.empty() ? "" : ", ") + name;
            throw UsageError("--fail-if {}: there is no '{}'{}{}.", text, word, so_far.empty() ? "" : " in " + so_far,
                             at->is_object() ? "; there is " + known : "");
        }
        at = &at->at(word);
        so_far += (so_far.empty() ? "" : ".") + word;
    }
    if (at->is_object() && at->contains("mean")) at = &at->at("mean");
    if (!at->is_number())
        throw UsageError("--fail-if {}: {} is {}.", text, path,
                         at->is_null() ? "not defined for these cases" : "no number");
    return at->get<double>();
}

bool Threshold::is_broken_by(double value) const
{
    if (comparison == ">") return value > bound;
    if (comparison == ">=") return value >= bound;
    if (comparison == "<") return value < bound;
    return value <= bound;
}

bool break_thresholds(std::span<const Threshold> thresholds, const Json& evaluation, const std::string& verb,
                      const std::string& run)
{
    bool is_broken = false;
    for (const auto& threshold : thresholds) {
        const auto value = threshold.value_in(evaluation);
        if (!threshold.is_broken_by(value)) continue;
        std::cerr << "meshard " << verb << ": --fail-if " << threshold.text << ": "
                  << (run.empty() ? "" : "of " + run + " ") << threshold.path << " is " << value << std::endl;
        is_broken = true;
    }
    return is_broken;
}

}  // namespace meshard
