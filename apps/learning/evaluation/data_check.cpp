// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/data_check.h"

#include "apps/console/text_table.h"
#include "partition/mesh/vector_algebra.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <span>

namespace meshard {
namespace {

constexpr double kClosure = 0.01, kClosureShare = 0.03;  // by how much a coefficient may miss the table's
constexpr double kShareClosed = 0.9;                     // share of open cases that a guess must close to be named
constexpr double kOutward = 0.02;                        // least |sum (x - c).a| / A^1.5 that is clear; a ball has 0.28
constexpr double kAlong = 0.05;                          // least |sum tau.e A| / sum |tau| A that is clear
constexpr double kFarOff = 20;                           // standard deviations from the mean
constexpr double kSame = 1e-9;                           // relative difference of sums that differ by their order
constexpr std::size_t kMostNamed = 5;

struct KnownCase {
    const CaseSource* source;
    const char* split;
    const CaseFigures* figures;
};

/// Joins the first kMostNamed texts and says how many more there are.
std::string named_cases(const std::vector<std::string>& names)
{
    const auto first = std::span(names).first(std::min(names.size(), kMostNamed));
    const auto text = fmt::format("{}", fmt::join(first, ", "));
    return names.size() > kMostNamed ? fmt::format("{} and {} more", text, names.size() - kMostNamed) : text;
}

/// Returns 1 if normals point out of the body, -1 if they point into it, 0 if the figures do not show it.
int direction_of_normals(const CaseFigures& figures)
{
    const auto& forces = figures.forces;
    if (!figures.is_surface || !(forces.area > 0)) return 0;
    const Vector3 center{forces.place[0] / forces.area, forces.place[1] / forces.area, forces.place[2] / forces.area};
    const auto volume = forces.outward - dot(center, forces.area_vector);
    if (std::abs(volume) < kOutward * std::pow(forces.area, 1.5)) return 0;
    return volume > 0 ? 1 : -1;
}

int direction_of_shear(const CaseFigures& figures, const Vector3& drag)
{
    const auto along = dot(figures.forces.true_shear, drag);
    if (!(figures.shear_size > 0) || std::abs(along) < kAlong * figures.shear_size) return 0;
    return along > 0 ? 1 : -1;
}

/// Reports the sign that all cases share, or a contradiction that names the smaller group of cases.
void judge_sign(DataFindings& to, const std::vector<KnownCase>& cases,
                const std::function<int(const KnownCase&)>& sign_of, const char* name, const char* positive,
                const char* negative, const char* remedy)
{
    std::array<std::vector<std::string>, 2> ids;
    for (const auto& one : cases) {
        if (const auto sign = sign_of(one); sign != 0) ids[sign < 0].push_back(one.source->id);
    }
    if (ids[0].empty() && ids[1].empty()) return;
    if (!ids[0].empty() && !ids[1].empty()) {
        const auto few = ids[0].size() < ids[1].size() ? 0 : 1;
        to.contradictions.push_back(fmt::format(
            "Differently from case to case: {} in {} ({}) and not in the other {}. {}", few == 0 ? positive : negative,
            count_text(std::ssize(ids[few]), "case"), named_cases(ids[few]), ids[1 - few].size(), remedy));
        return;
    }
    to.found.emplace_back(ids[1].empty() ? positive : negative);
    to.numbers[name] = ids[1].empty() ? 1 : -1;
}

/// Computes the coefficients of a case as if its pressure were of `kind`.
std::optional<Coefficients> by_kind(const KnownCase& one, const ForceSettings& settings, const std::string& kind)
{
    std::string why;
    const auto flow = flow_reference(settings, *one.source, kind, why);
    if (!flow) return std::nullopt;
    return coefficients(one.figures->forces, *flow);
}

bool is_closed(double integral, double table)
{
    return std::abs(integral - table) <= kClosure + kClosureShare * std::abs(table);
}

/// A mistake in the settings that may explain the forces, and the factors that undo it.
struct Guess {
    std::string remedy;
    std::string kind;
    double factor = 1, shear_factor = 1;
};

/// @param source   case whose density is tried as a factor of the shear stress
std::vector<Guess> guesses_for(const JudgedFields& layout, const ForceSettings& settings, const CaseSource& source)
{
    const auto field =
        layout
            .fields[std::ranges::find(layout.fields, layout.pressure_kind, &FieldConfig::kind) - layout.fields.begin()]
            .name;
    std::vector<Guess> guesses;
    for (const char* kind : {"kinematic", "static", "cp"}) {
        if (kind == layout.pressure_kind) continue;
        guesses.push_back({fmt::format("With data.fields.{}.kind={} they close: set it", field, kind), kind});
    }
    guesses.push_back(
        {"With half the reference area they close: correct data.forces.area (half bodies have half the area)",
         layout.pressure_kind, 2});
    guesses.push_back(
        {"With twice the reference area they close: correct data.forces.area (half bodies have half the area)",
         layout.pressure_kind, 0.5});
    const auto rho = number_of_case(settings.density, source).value_or(1.0);
    if (rho != 1) {
        guesses.push_back({fmt::format("With the shear stress times the density {:g} they close: pressure and shear "
                                       "stress are in different units",
                                       rho),
                           layout.pressure_kind, 1, rho});
        guesses.push_back({fmt::format("With the shear stress divided by the density {:g} they close: pressure and "
                                       "shear stress are in different units",
                                       rho),
                           layout.pressure_kind, 1, 1 / rho});
    }
    guesses.push_back(
        {"Without the shear stress they close: the table has the pressure's part alone", layout.pressure_kind, 1, 0});
    return guesses;
}

/// Returns the least and the largest over the cases of the highest pressure above that of the free stream, divided by
/// the dynamic pressure as if the pressure were of `kind`.
std::optional<std::array<double, 2>> stagnation(const std::vector<KnownCase>& cases, const ForceSettings& settings,
                                                const JudgedFields& layout, const std::string& kind)
{
    auto of_unit_area = settings;
    of_unit_area.area = "1";
    std::array<double, 2> range{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
    for (const auto& one : cases) {
        std::string why;
        const auto flow = flow_reference(of_unit_area, *one.source, kind, why);
        if (!flow || !one.figures->is_surface) continue;
        const auto ratio = (one.figures->channels[layout.pressure].high - flow->ambient) * flow->scale;
        range = {std::min(range[0], ratio), std::max(range[1], ratio)};
    }
    return std::isfinite(range[0]) && std::isfinite(range[1]) ? std::optional(range) : std::nullopt;
}

/// Compares the table's coefficients with the integrals of the true fields. Returns whether all of them close; nothing
/// if none could be compared.
std::optional<bool> judge_closure(DataFindings& to, const std::vector<KnownCase>& cases, const ForceSettings& settings,
                                  const JudgedFields& layout)
{
    if (layout.pressure < 0 || layout.shear < 0) return std::nullopt;
    struct Compared {
        const KnownCase* one;
        double integral, table;
    };
    bool is_good = true, is_any = false;
    for (const bool is_drag : {true, false}) {
        const std::string name = is_drag ? "Cd" : "Cl";
        const auto& column = is_drag ? settings.drag : settings.lift;
        std::vector<Compared> compared;
        std::vector<std::string> missed;
        double largest = 0;
        std::string largest_id;
        for (const auto& one : cases) {
            const auto table = table_value(*one.source, column);
            const auto found = one.figures->is_surface && one.figures->forces.area > 0
                                   ? by_kind(one, settings, layout.pressure_kind)
                                   : std::nullopt;
            if (!table || !found) continue;
            const auto integral = found->all[is_drag ? 0 : 1].truth;
            if (!std::isfinite(integral)) continue;  // judge_values reports it
            compared.push_back({&one, integral, *table});
            if (!is_closed(integral, *table))
                missed.push_back(fmt::format("{} ({:.4f} and {:.4f})", one.source->id, integral, *table));
            if (largest_id.empty() || std::abs(integral - *table) > largest) {
                largest = std::abs(integral - *table);
                largest_id = one.source->id;
            }
        }
        if (compared.empty()) continue;
        is_any = true;
        to.numbers[is_drag ? "cd_closure" : "cl_closure"] = {
            {"n", compared.size()}, {"max_abs", largest}, {"worst", largest_id}};
        if (missed.empty()) {
            to.found.push_back(fmt::format(
                "{} of the fields and {} of the table are {:.2g} apart at most ({} {})", name, column, largest,
                compared.size() == 1 ? "case" : count_text(std::ssize(compared), "case") + ", most in", largest_id));
            continue;
        }
        is_good = false;
        auto text =
            fmt::format("{}: the integral of the true fields and the table's {} are apart in {} of {}: {}. ", name,
                        column, missed.size(), count_text(std::ssize(compared), "case"), named_cases(missed));
        // A change of settings is one of all cases: those that close without it must close with it, too.
        const Guess* best = nullptr;
        std::vector<std::string> still_open;
        const auto guesses = guesses_for(layout, settings, *compared.front().one->source);
        for (const auto& guess : guesses) {
            still_open.clear();
            bool opens_another = false;
            for (const auto& pair : compared) {
                auto scaled = *pair.one->figures;
                for (auto& number : scaled.forces.true_shear) number *= guess.shear_factor;
                const auto found = by_kind({pair.one->source, pair.one->split, &scaled}, settings, guess.kind);
                if (found && is_closed(guess.factor * found->all[is_drag ? 0 : 1].truth, pair.table)) continue;
                opens_another |= is_closed(pair.integral, pair.table);
                still_open.push_back(pair.one->source->id);
            }
            if (!opens_another &&
                static_cast<double>(still_open.size()) <= (1 - kShareClosed) * static_cast<double>(missed.size())) {
                best = &guess;
                break;
            }
        }
        std::vector<double> ratios;
        for (const auto& pair : compared) ratios.push_back(pair.table / pair.integral);
        std::ranges::nth_element(ratios, ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2));
        if (best) {
            text += best->remedy + (still_open.empty() ? "." : ". Not so " + named_cases(still_open) + ".");
        } else if (2 * missed.size() > compared.size()) {
            text += fmt::format("The table has {:.3g} times the integral (median): look at data.forces.area, "
                                "data.reference (U_inf, rho), data.fields.*.kind, "
                                "and whether the surface has all parts of the body.",
                                ratios[ratios.size() / 2]);
            const auto range = stagnation(cases, settings, layout, layout.pressure_kind);
            if (range && ((*range)[0] > 1.1 || (*range)[1] < 0.9)) {
                text += fmt::format(" The highest pressure is {:.3f} to {:.3f} of the dynamic pressure; where the flow "
                                    "comes to rest it should be 1.",
                                    (*range)[0], (*range)[1]);
            }
        } else {
            text += "The others close: repair these cases or leave them out of data.split.";
        }
        to.contradictions.push_back(text);
    }
    return is_any ? std::optional(is_good) : std::nullopt;
}

void judge_pressure(DataFindings& to, const std::vector<KnownCase>& cases, const ForceSettings& settings,
                    const JudgedFields& layout, bool forces_close)
{
    if (layout.pressure < 0) return;
    const auto range = stagnation(cases, settings, layout, layout.pressure_kind);
    if (!range) return;
    const auto text = fmt::format("the highest pressure is {:.3f} to {:.3f} of the dynamic pressure ({})", (*range)[0],
                                  (*range)[1], layout.pressure_kind);
    to.found.push_back(text);
    to.numbers["highest_pressure"] = *range;
    if (forces_close) return;
    const auto fits = [](const std::array<double, 2>& found) { return found[0] > 0.95 && found[1] < 1.05; };
    const bool is_off = (*range)[0] > 1.1 || (*range)[1] < 0.9;
    const auto field =
        layout
            .fields[std::ranges::find(layout.fields, layout.pressure_kind, &FieldConfig::kind) - layout.fields.begin()]
            .name;
    for (const char* kind : {"kinematic", "static", "cp"}) {
        const auto other =
            is_off && kind != layout.pressure_kind ? stagnation(cases, settings, layout, kind) : std::nullopt;
        if (!other || !fits(*other)) continue;
        to.contradictions.push_back(
            fmt::format("T{0}, where the flow comes to rest it should be 1; as {1} it is {2:.3f} to {3:.3f}. "
                        "Set data.fields.{4}.kind={1}, or correct data.reference (U_inf, rho).",
                        text.substr(1), kind, (*other)[0], (*other)[1], field));
        return;
    }
    if ((*range)[0] > 1.5 || (*range)[1] < 0.5) {
        to.warnings.push_back(fmt::format(
            "{}; where the flow comes to rest it should be near 1: look at data.reference.U_inf, data.fields.{}.kind, "
            "and whether the pressure has an offset",
            text, field));
    }
}

/// Whether two cases have the same figures, or the same in a mirror.
bool is_same_case(const CaseFigures& a, const CaseFigures& b, const JudgedFields& layout)
{
    const auto near = [](double x, double y, double size) {
        return std::abs(x - y) <= kSame * std::max({size, std::abs(x), std::abs(y)});
    };
    // Fields of zeros identify no case.
    const bool is_zero = std::ranges::all_of(a.channels, [](const auto& channel) { return channel.squares == 0; });
    if (is_zero || a.num_rows != b.num_rows || !near(a.forces.area, b.forces.area, 0)) return false;
    for (std::size_t c = 0; c < a.channels.size(); ++c) {
        if (!near(a.channels[c].squares, b.channels[c].squares, 0)) return false;
    }
    for (int k = 0; k < 3; ++k) {
        const auto size = std::sqrt(a.forces.area) * a.forces.area;
        if (!near(std::abs(a.forces.place[k]), std::abs(b.forces.place[k]), size)) return false;
        if (layout.pressure < 0) continue;
        const auto force = std::sqrt(a.channels[layout.pressure].squares) * a.forces.area;
        if (!near(std::abs(a.forces.true_pressure[k]), std::abs(b.forces.true_pressure[k]), force)) return false;
    }
    return true;
}

/// Whether the inputs of the model besides the points are the same in two cases.
bool has_equal_inputs(const CaseSource& a, const CaseSource& b, const DataConfig& data)
{
    if (a.wall != b.wall) return false;
    auto told = data.constants;
    if (!data.time.empty()) told.push_back(data.time);
    return std::ranges::all_of(told, [&](const auto& column) { return a.number(column) == b.number(column); });
}

void judge_repeats(DataFindings& to, const std::vector<KnownCase>& cases, const DataConfig& data,
                   const JudgedFields& layout)
{
    std::vector<std::string> across, within;
    for (std::size_t i = 0; i < cases.size(); ++i) {
        for (std::size_t k = i + 1; k < cases.size(); ++k) {
            if (!is_same_case(*cases[i].figures, *cases[k].figures, layout) ||
                !has_equal_inputs(*cases[i].source, *cases[k].source, data))
                continue;
            auto& to_list = cases[i].split == cases[k].split ? within : across;
            to_list.push_back(fmt::format("{} ({}) and {} ({})", cases[i].source->id, cases[i].split,
                                          cases[k].source->id, cases[k].split));
        }
    }
    if (!across.empty()) {
        to.contradictions.push_back("Cases with the same or mirrored points and fields are in two splits, so that "
                                    "errors of val and test mean nothing: " +
                                    named_cases(across) + ". Leave one of each pair out of data.split.");
    }
    if (!within.empty())
        to.warnings.push_back("cases have the same or mirrored points and fields: " + named_cases(within));
}

void judge_values(DataFindings& to, const std::vector<KnownCase>& cases, const DataConfig& data,
                  const JudgedFields& layout)
{
    std::vector<std::string> not_finite, flat;
    for (const auto& one : cases) {
        const auto& channels = one.figures->channels;
        if (std::ranges::any_of(channels, [](const auto& channel) { return !std::isfinite(channel.squares); }))
            not_finite.push_back(one.source->id);
        if (one.figures->num_cells_without_area > 0 && one.figures->forces.area > 0)
            flat.push_back(fmt::format("{} ({})", one.source->id, one.figures->num_cells_without_area));
    }
    if (!not_finite.empty())
        to.contradictions.push_back("Fields have values that are not finite in " + named_cases(not_finite) +
                                    ". Repair these cases or leave them out.");
    if (!flat.empty()) to.warnings.push_back("cells have no area in case " + named_cases(flat));

    std::int64_t channel = 0;
    for (std::size_t f = 0; f < layout.fields.size(); ++f) {
        for (std::int64_t k = 0; k < layout.channels[f]; ++k, ++channel) {
            double count = 0, sum = 0, squares = 0, least = std::numeric_limits<double>::infinity(), largest = -least;
            for (const auto& one : cases) {
                if (one.split != cases.front().split) continue;  // training cases come first
                count += static_cast<double>(one.figures->num_rows);
                sum += one.figures->channels[channel].sum;
                squares += one.figures->channels[channel].squares;
                least = std::min(least, one.figures->channels[channel].low);
                largest = std::max(largest, one.figures->channels[channel].high);
            }
            const auto mean = sum / count, deviation = std::sqrt(std::max(0.0, squares / count - mean * mean));
            const auto& field = layout.fields[f];
            const auto name = (field.state.empty() ? "" : "what is learnt of ") + field.name +
                              (layout.channels[f] == 3 ? std::string(".") + "xyz"[k] : "");
            if (!(least < largest)) {
                if (std::isfinite(deviation))
                    to.warnings.push_back(fmt::format("{} is {:g} everywhere in the training cases", name, mean));
                continue;
            }
            constexpr double kRounding = std::numeric_limits<float>::epsilon(), kFew = 8;
            if (deviation <= kFew * kRounding * std::abs(mean))
                to.warnings.push_back(fmt::format("{} deviates by {:.3g} from {:.6g}, of which single precision tells "
                                                  "{:.2g}: subtract a level from it",
                                                  name, deviation, mean, kRounding * std::abs(mean)));
            std::vector<std::string> far;
            for (const auto& one : cases) {
                const auto& [s, q, low, high] = one.figures->channels[channel];
                const auto farthest = high - mean > mean - low ? high : low;
                if (std::abs(farthest - mean) > kFarOff * deviation)
                    far.push_back(fmt::format("{} ({:.4g})", one.source->id, farthest));
            }
            if (!far.empty()) {
                to.warnings.push_back(fmt::format(
                    "{} has values more than {:g} standard deviations ({:.3g}) from its mean ({:.3g}) in {}: {}", name,
                    kFarOff, deviation, mean, count_text(std::ssize(far), "case"), named_cases(far)));
            }
        }
    }
    for (const auto& column : data.constants) {
        const auto first = table_value(*cases.front().source, column);
        const bool is_same = cases.size() > 1 && first && std::ranges::all_of(cases, [&](const auto& one) {
                                 return table_value(*one.source, column) == first;
                             });
        if (is_same)
            to.warnings.push_back(fmt::format(
                "data.constants has {}, which is {:g} in all cases and tells the model nothing", column, *first));
    }
}

}  // namespace

DataFindings judge_data(const CaseLists& lists, std::span<const CaseFigures> figures, const DataConfig& data,
                        const ForceSettings& settings, const JudgedFields& layout)
{
    std::vector<KnownCase> cases;
    for (const auto& [split, sources] :
         {std::pair{"train", &lists.train}, std::pair{"val", &lists.val}, std::pair{"test", &lists.test}}) {
        for (const auto& source : *sources) cases.push_back({&source, split, &figures[cases.size()]});
    }
    DataFindings findings;
    judge_sign(
        findings, cases, [](const KnownCase& one) { return direction_of_normals(*one.figures); }, "normals",
        "normals point out of the body", "normals point into the body",
        "Set data.orient=outward, which turns them, or leave these cases out: a model that is told normals would learn "
        "both.");
    const auto along_normals = [](const KnownCase& one) {
        const auto& found = *one.figures;
        if (!(found.normals_length > 0) || std::abs(found.normals_along) < 0.5 * found.normals_length) return 0;
        return found.normals_along > 0 ? 1 : -1;
    };
    const auto array = "the array " + data.normals;
    judge_sign(findings, cases, along_normals, "array_of_normals",
               (array + " agrees with the order of the points").c_str(),
               (array + " points against the order of the points").c_str(),
               "Set data.orient=outward, which turns both, or leave these cases out.");
    if (layout.shear >= 0) {
        const auto sign_of_shear = [&](const KnownCase& one) {
            auto of_unit_area = settings;
            of_unit_area.area = "1";
            std::string why;
            const auto flow = flow_reference(of_unit_area, *one.source, "kinematic", why);
            return flow && one.figures->is_surface ? direction_of_shear(*one.figures, flow->drag) : 0;
        };
        judge_sign(findings, cases, sign_of_shear, "shear", "the shear stress is that on the body",
                   "the shear stress is that on the fluid (OpenFOAM's sign)",
                   "Turn the sign of the field in these cases, or leave them out.");
    }
    if (!settings.area.empty() && layout.pressure >= 0) {
        std::vector<std::string> without;
        std::string why, first;
        for (const auto& one : cases) {
            if (flow_reference(settings, *one.source, layout.pressure_kind, why)) continue;
            if (without.empty()) first = why;
            without.push_back(one.source->id);
        }
        if (!without.empty())
            findings.warnings.push_back(
                fmt::format("{} without drag and lift: {}", count_text(std::ssize(without), "case"), first));
    }
    const auto closes = judge_closure(findings, cases, settings, layout);
    // Force closure, where it could be checked, has named the remedy, and the highest pressure adds nothing to it.
    if (!data.series.learns_changes())  // else channels are of changes
        judge_pressure(findings, cases, settings, layout, closes.has_value());
    judge_values(findings, cases, data, layout);
    judge_repeats(findings, cases, data, layout);
    findings.numbers["warnings"] = findings.warnings;
    findings.numbers["contradictions"] = findings.contradictions;
    return findings;
}

}  // namespace meshard
