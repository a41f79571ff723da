// SPDX-License-Identifier: Apache-2.0
#include "apps/console/text_table.h"
#include "apps/learning/evaluation/held_out_errors.h"
#include "apps/learning/report/report.h"
#include "io/bytes/xml.h"
#include "partition/lists.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>

namespace meshard {
namespace {

using PageJson = nlohmann::ordered_json;

constexpr const char* kStyle =
    R"(:root{color-scheme:light dark;--line:#8886;--a:#1f77b4;--b:#d95f02;--c:#1b9e77;--d:#7570b3}
body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:1100px;overflow-wrap:anywhere}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2rem;border-bottom:1px solid var(--line)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.85rem}
th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}th[data-sort]{cursor:pointer;text-decoration:underline dotted}
svg{width:100%;max-width:520px;height:auto;font-size:11px}svg text{fill:currentColor}
.frame{fill:none;stroke:currentColor;stroke-opacity:.5}.guide{stroke:currentColor;stroke-opacity:.4;stroke-dasharray:4 3}
.plots{display:flex;flex-wrap:wrap;gap:1rem}.plots>figure{flex:1 1 300px;margin:0;min-width:0}
.pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(260px,1fr));gap:.5rem}.pictures img{width:100%;height:auto}
.note{border-left:4px solid var(--b);padding-left:.6rem}figcaption{font-size:.85rem}
)";

constexpr const char* kScript =
    R"(document.querySelectorAll('th[data-sort]').forEach(function(head){head.addEventListener('click',function(){
var table=head.closest('table'),body=table.tBodies[0],k=head.cellIndex,up=head.dataset.sort!=='up';
head.dataset.sort=up?'up':'down';
Array.from(body.rows).sort(function(a,b){var x=a.cells[k].dataset.value,y=b.cells[k].dataset.value,p=parseFloat(x),q=parseFloat(y);
var c=isNaN(p)||isNaN(q)?String(x).localeCompare(String(y)):p-q;return up?c:-c;}).forEach(function(row){body.appendChild(row);});});});
)";

constexpr std::array kColors{"var(--a)", "var(--b)", "var(--c)", "var(--d)"};

std::string cell(const PageJson& value)
{
    if (value.is_null()) return "<td data-value=\"\">-</td>";
    if (value.is_string()) return fmt::format("<td data-value=\"{0}\">{0}</td>", xml_escaped(value.get<std::string>()));
    return fmt::format("<td data-value=\"{}\">{}</td>", value.dump(),
                       value.is_number_float() ? short_text(value.get<double>()) : value.dump());
}

std::string base64_of(const std::string& bytes)
{
    constexpr const char* letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        std::uint32_t group = 0;
        for (std::size_t k = 0; k < 3; ++k)
            group = group << 8 | (i + k < bytes.size() ? static_cast<std::uint8_t>(bytes[i + k]) : 0U);
        for (std::size_t k = 0; k < 4; ++k) text += i + k <= bytes.size() ? letters[group >> (18 - 6 * k) & 63U] : '=';
    }
    return text;
}

/// A line or dots of a plot.
struct PlotSeries {
    std::string name;
    std::vector<std::array<double, 2>> points;
    std::vector<std::string> titles;  ///< shown under the pointer, one a dot; without titles a line is drawn
};

struct PlotOptions {
    std::string title, x, y;
    bool log_y = false;
    bool with_diagonal = false;
};

std::string plot(const PlotOptions& options, std::vector<PlotSeries> series)
{
    constexpr double width = 420, height = 300, left = 58, right = 12, top = 12, bottom = 40;
    constexpr double infinity = std::numeric_limits<double>::infinity();
    std::array<double, 2> low{infinity, infinity}, high{-infinity, -infinity};
    for (auto& one : series) {
        for (auto& point : one.points) {
            if (options.log_y) point[1] = std::log10(std::max(point[1], 1e-30));
            for (int k = 0; k < 2; ++k) {
                low[k] = std::min(low[k], point[k]);
                high[k] = std::max(high[k], point[k]);
            }
        }
    }
    if (!std::isfinite(low[0])) return {};
    if (options.with_diagonal) {
        low.fill(std::min(low[0], low[1]));
        high.fill(std::max(high[0], high[1]));
    }
    for (int k = 0; k < 2; ++k) {
        const auto margin = high[k] > low[k] ? 0.05 * (high[k] - low[k]) : std::max(1e-6, 0.05 * std::abs(low[k]));
        low[k] -= margin;
        high[k] += margin;
    }
    const auto x = [&](double value) { return left + (value - low[0]) / (high[0] - low[0]) * (width - left - right); };
    const auto y = [&](double value) {
        return height - bottom - (value - low[1]) / (high[1] - low[1]) * (height - top - bottom);
    };
    std::ostringstream out;
    out << "<figure><figcaption>" << xml_escaped(options.title) << "</figcaption><svg viewBox=\"0 0 " << width << " "
        << height << "\" role=\"img\">";
    out << "<rect class=\"frame\" x=\"" << left << "\" y=\"" << top << "\" width=\"" << width - left - right
        << "\" height=\"" << height - top - bottom << "\"/>";
    for (int tick = 0; tick <= 4; ++tick) {
        const auto at_x = low[0] + (high[0] - low[0]) * tick / 4, at_y = low[1] + (high[1] - low[1]) * tick / 4;
        out << "<text x=\"" << x(at_x) << "\" y=\"" << height - bottom + 14 << "\" text-anchor=\"middle\">"
            << short_text(at_x) << "</text>";
        out << "<text x=\"" << left - 4 << "\" y=\"" << y(at_y) + 4 << "\" text-anchor=\"end\">"
            << short_text(options.log_y ? std::pow(10, at_y) : at_y) << "</text>";
    }
    out << "<text x=\"" << width / 2 << "\" y=\"" << height - 8 << "\" text-anchor=\"middle\">"
        << xml_escaped(options.x) << "</text>";
    out << "<text x=\"" << left + 6 << "\" y=\"" << top + 14 << "\">" << xml_escaped(options.y) << "</text>";
    if (options.with_diagonal) {
        out << "<line class=\"guide\" x1=\"" << x(low[0]) << "\" y1=\"" << y(low[0]) << "\" x2=\"" << x(high[0])
            << "\" y2=\"" << y(high[0]) << "\"/>";
    }
    std::size_t color = 0;
    for (const auto& one : series) {
        const auto* paint = kColors[color % kColors.size()];
        if (one.titles.empty()) {
            out << "<polyline fill=\"none\" stroke-width=\"1.6\" stroke=\"" << paint << "\" points=\"";
            for (const auto& point : one.points)
                out << short_text(x(point[0])) << "," << short_text(y(point[1])) << " ";
            out << "\"><title>" << xml_escaped(one.name) << "</title></polyline>";
        }
        for (std::size_t i = 0; i < one.titles.size(); ++i) {
            out << "<circle r=\"4\" fill=\"" << paint << "\" cx=\"" << short_text(x(one.points[i][0])) << "\" cy=\""
                << short_text(y(one.points[i][1])) << "\"><title>" << xml_escaped(one.titles[i]) << "</title></circle>";
        }
        out << "<text x=\"" << width - right - 6 << "\" y=\"" << top + 14 + 13 * static_cast<double>(color)
            << "\" text-anchor=\"end\" style=\"fill:" << paint << "\">" << xml_escaped(one.name) << "</text>";
        ++color;
    }
    out << "</svg></figure>";
    return out.str();
}

/// Returns a table that its reader can sort by each column.
std::string table(const std::vector<std::string>& names, const std::vector<std::vector<PageJson>>& rows)
{
    std::string html = "<div class=\"wide\"><table><thead><tr>";
    for (const auto& name : names) html += "<th data-sort=\"\">" + xml_escaped(name) + "</th>";
    html += "</tr></thead><tbody>";
    for (const auto& row : rows) {
        html += "<tr>";
        for (const auto& value : row) html += cell(value);
        html += "</tr>";
    }
    return html + "</tbody></table></div>";
}

std::string tables_of_fields(const PageJson& run)
{
    std::vector<std::string> metrics, names{"field"};  // all fields have the metrics of the first
    std::vector<std::vector<PageJson>> rows;
    for (const auto& [split, numbers] : run["evaluation"]["splits"].items()) {
        for (const auto& [field, values] : numbers["fields"].items()) {
            if (metrics.empty())
                for (const auto& [metric, value] : values.items())
                    if (value.contains("mean")) metrics.push_back(metric);
            std::vector<PageJson> row{split + " " + field};
            for (const auto& metric : metrics) row.push_back(values[metric]["mean"]);
            for (const auto* which : {"median", "max", "worst"}) row.push_back(values["rel_l2"][which]);
            for (const auto* part : {"x", "y", "z"})
                row.push_back(values.contains(part) ? values[part]["rel_l2"]["mean"] : PageJson());
            rows.push_back(std::move(row));
        }
    }
    append(names, metrics);
    for (const auto* name : {"rel_l2 median", "rel_l2 max", "worst case", "x.rel_l2", "y.rel_l2", "z.rel_l2"})
        names.emplace_back(name);
    return table(names, rows);
}

/// Names the worst case of each split with several cases, and why it is the worst.
std::string worst_cases(const PageJson& run)
{
    std::string html;
    for (const auto& [split, numbers] : run["evaluation"]["splits"].items()) {
        if (!numbers.contains("worst")) continue;
        html += fmt::format("<p>Worst of {}: case {}. {}.</p>", xml_escaped(split),
                            xml_escaped(numbers["worst"]["id"].get<std::string>()),
                            xml_escaped(numbers["worst"]["why"].get<std::string>()));
    }
    return html;
}

std::string table_of_forces(const PageJson& run)
{
    constexpr std::array coefficients{"cd",      "cd_table", "cd_head", "cd_shape", "cl",  "cl_table",
                                      "cl_head", "cl_shape", "cs",      "cmx",      "cmy", "cmz"};
    const auto& splits = run["evaluation"]["splits"];
    // The longest list of metrics has those of all others, since some coefficients have no interval.
    PageJson metrics;
    for (const auto& [split, numbers] : splits.items()) {
        for (const char* name : coefficients)
            if (numbers.contains(name) && numbers[name].size() > metrics.size()) metrics = numbers[name];
    }
    std::vector<std::string> names{"coefficient"};
    for (const auto& [metric, value] : metrics.items()) names.push_back(metric);
    std::vector<std::vector<PageJson>> rows;
    for (const auto& [split, numbers] : splits.items()) {
        for (const char* name : coefficients) {
            if (!numbers.contains(name)) continue;
            std::vector<PageJson> row{split + " " + name};
            for (const auto& [metric, value] : metrics.items()) row.push_back(numbers[name].value(metric, PageJson()));
            rows.push_back(std::move(row));
        }
    }
    return rows.empty() ? "" : table(names, rows);
}

std::string table_of_cases(const PageJson& run)
{
    const auto& cases = run["evaluation"]["cases"];
    if (cases.empty()) return {};
    const bool is_of_runs = cases[0].contains("rollout");
    const auto metrics = is_of_runs ? std::vector{"rel_l2_one_step", "rel_l2", "rel_l2_end", "persistence_rel_l2_end"}
                                    : std::vector{"rel_l2", "mae", "max_abs"};
    std::vector<std::string> names{is_of_runs ? "run" : "case", "split", "points"};
    for (const auto& [field, values] : cases[0]["fields"].items()) {
        for (const char* metric : metrics) names.push_back(field + " " + metric);
    }
    std::vector<std::pair<const char*, const char*>> coefficients;
    constexpr std::pair<const char*, const char*> titles[] = {{"cd", "Cd"},   {"cl", "Cl"},   {"cs", "Cs"},
                                                              {"cmx", "Cmx"}, {"cmy", "Cmy"}, {"cmz", "Cmz"}};
    for (const auto& [name, title] : titles) {
        if (std::ranges::none_of(cases, [&](const auto& one) { return one.contains(name); })) continue;
        for (const char* which : {"predicted", "true", "table", "error"}) {
            if (which == std::string_view("table") && title != std::string_view("Cd")) continue;
            coefficients.emplace_back(name, which);
            names.push_back(fmt::format("{} {}", title, which));
        }
    }
    names.emplace_back("seconds");
    std::vector<std::vector<PageJson>> rows;
    for (const auto& one : cases) {
        std::vector<PageJson> row{one["id"], one["split"], one["num_points"]};
        for (const auto& [field, values] : one["fields"].items()) {
            for (const char* metric : metrics) row.push_back(values[metric]);
        }
        for (const auto& [name, which] : coefficients)
            row.push_back(one.contains(name) ? one[name].value(which, PageJson()) : PageJson());
        row.push_back(one["seconds"]);
        rows.push_back(std::move(row));
    }
    return table(names, rows);
}

std::string plots_of_forces(const PageJson& run)
{
    std::string html;
    constexpr std::array<std::pair<const char*, const char*>, 6> coefficients{{{"cd", "Drag coefficient"},
                                                                               {"cl", "Lift coefficient"},
                                                                               {"cs", "Side force coefficient"},
                                                                               {"cmx", "Moment coefficient about x"},
                                                                               {"cmy", "Moment coefficient about y"},
                                                                               {"cmz", "Moment coefficient about z"}}};
    for (const auto& [name, title] : coefficients) {
        std::vector<PlotSeries> series;
        for (const auto& [split, numbers] : run["evaluation"]["splits"].items()) {
            PlotSeries dots{split, {}, {}};
            for (const auto& one : run["evaluation"]["cases"]) {
                if (one["split"] != split || !one.contains(name) || !one[name].contains("true")) continue;
                const auto truth = one[name]["true"].get<double>(), predicted = one[name]["predicted"].get<double>();
                dots.points.push_back({truth, predicted});
                dots.titles.push_back(fmt::format("case {}: true {}, predicted {}", one["id"].get<std::string>(),
                                                  short_text(truth), short_text(predicted)));
            }
            if (!dots.points.empty()) series.push_back(std::move(dots));
        }
        if (series.empty()) continue;
        html += plot({.title = title,
                      .x = "true (integral of the fields)",
                      .y = "predicted",
                      .log_y = false,
                      .with_diagonal = true},
                     series);
    }
    return html;
}

std::string plot_along_x(const PageJson& one)
{
    std::vector<PlotSeries> series;
    const auto low = one["drag_along_x"]["low_x"].get<double>(), high = one["drag_along_x"]["high_x"].get<double>();
    for (const char* name : {"true", "predicted"}) {
        PlotSeries line{name, {{low, 0}}, {}};
        double sum = 0;
        const auto& bins = one["drag_along_x"][name];
        for (std::size_t i = 0; i < bins.size(); ++i) {
            sum += bins[i].get<double>();
            line.points.push_back(
                {low + (high - low) * static_cast<double>(i + 1) / static_cast<double>(bins.size()), sum});
        }
        series.push_back(std::move(line));
    }
    return plot({.title = "Drag summed along x, case " + one["id"].get<std::string>(), .x = "x", .y = "Cd up to x"},
                series);
}

/// Plots for each field the shares of its points by their error.
std::string histograms(const PageJson& run)
{
    std::vector<std::string> fields;
    for (const auto& [split, numbers] : run["evaluation"]["splits"].items()) {
        if (!numbers.contains("error_histograms")) continue;
        for (const auto& [field, counts] : numbers["error_histograms"].items()) {
            if (!contains(fields, field)) fields.push_back(field);
        }
    }
    std::string html;
    for (const auto& field : fields) {
        std::vector<PlotSeries> series;
        for (const auto& [split, numbers] : run["evaluation"]["splits"].items()) {
            if (!numbers.contains("error_histograms")) continue;
            const auto& found = numbers["error_histograms"][field];
            const auto counts = found["counts"].get<std::vector<double>>();
            const auto low = found["low"].get<double>(),
                       width = (found["high"].get<double>() - low) / static_cast<double>(counts.size());
            auto total = found["below"].get<double>() + found["above"].get<double>();
            for (const auto count : counts) total += count;
            PlotSeries steps{split, {{low, 0}}, {}};
            for (std::size_t bin = 0; bin < counts.size(); ++bin) {
                const auto share = 100 * counts[bin] / std::max(total, 1.0),
                           begin = low + width * static_cast<double>(bin);
                steps.points.push_back({begin, share});
                steps.points.push_back({begin + width, share});
            }
            steps.points.push_back({found["high"].get<double>(), 0});
            series.push_back(std::move(steps));
        }
        html += plot({.title = "Errors of " + field,
                      .x = "predicted - true, in deviations of the training cases",
                      .y = "% of points and components"},
                     series);
    }
    return html;
}

/// Plots errors and drifts of each field against time: means over the runs of a split, at the times of its longest.
std::string plots_of_roll_outs(const PageJson& run)
{
    std::string html;
    for (const auto& [split, numbers] : run["evaluation"]["splits"].items()) {
        if (!numbers.contains("rollout")) continue;
        std::vector<const PageJson*> roll_outs;
        for (const auto& one : run["evaluation"]["cases"])
            if (one["split"] == split) roll_outs.push_back(&one["rollout"]);
        const auto& times = (*std::ranges::max_element(roll_outs, {}, [](const auto* one) {
                                return one->at("times").size();
                            }))->at("times");
        for (const auto& [field, values] : numbers["fields"].items()) {
            const auto line_of = [&](const char* kind, const char* name) {
                PlotSeries line{name, {}, {}};
                for (std::size_t i = 0; i < times.size(); ++i) {
                    double sum = 0, count = 0;
                    for (const auto* one : roll_outs) {
                        const auto& of_states = one->at(kind).at(field);
                        if (i >= of_states.size() || !of_states[i].is_number()) continue;
                        sum += of_states[i].get<double>();
                        ++count;
                    }
                    if (count > 0) line.points.push_back({times[i].get<double>(), sum / count});
                }
                return line;
            };
            html += plot({.title = fmt::format("{}: relative L2 error of {}, rolled out", split, field),
                          .x = "time",
                          .y = "",
                          .log_y = true},
                         {line_of("rel_l2", "model"), line_of("persistence", "persistence"),
                          line_of("mean", "training mean"), line_of("one_step", "model, one step")});
            html += plot(
                {.title = fmt::format("{}: drift of {}, relative to the truth", split, field), .x = "time", .y = ""},
                {line_of("integral", "integral"), line_of("energy", "energy")});
        }
    }
    return html;
}

std::string curves(const PageJson& report)
{
    std::vector<std::string> names;
    for (const auto& run : report["runs"]) {
        for (const auto& [name, points] : run["curves"].items()) {
            if (!contains(names, name)) names.push_back(name);
        }
    }
    std::string html;
    for (const auto& name : names) {
        std::vector<PlotSeries> series;
        for (const auto& run : report["runs"]) {
            if (!run["curves"].contains(name)) continue;
            PlotSeries line{run["name"], {}, {}};
            for (const auto& point : run["curves"][name]) {
                if (point[1].is_number()) line.points.push_back({point[0].get<double>(), point[1].get<double>()});
            }
            series.push_back(std::move(line));
        }
        html += plot({.title = name, .x = "epoch", .y = "", .log_y = true}, series);
    }
    return html;
}

/// Says for each field and drag whether the model is better than the training mean, of runs also than persistence.
std::string verdict(const PageJson& run)
{
    std::string html = "<ul>";
    for (const auto& [split, numbers] : run["evaluation"]["splits"].items()) {
        const auto line = [&](const std::string& what, const PageJson& found, const PageJson& guess, const char* of) {
            if (!found.is_number() || !guess.is_number()) return;
            const bool is_better = found.get<double>() < guess.get<double>();
            html += fmt::format("<li>{} {}, {} than {} of {}</li>", xml_escaped(split + ": " + what),
                                short_text(found.get<double>()), is_better ? "better" : "<b>not better</b>",
                                short_text(guess.get<double>()), of);
        };
        for (const auto& [field, values] : numbers["fields"].items()) {
            line(field + " rel_l2", values["rel_l2"]["mean"], values["guess_rel_l2"]["mean"], "the training mean");
            if (values.contains("persistence_rel_l2"))
                line(field + " rel_l2", values["rel_l2"]["mean"], values["persistence_rel_l2"]["mean"],
                     "persistence, the first state");
        }
        for (const char* name : {"cd_table", "cd"}) {
            if (!numbers.contains(name)) continue;
            line(std::string(name) + " mae", numbers[name]["mae"], numbers[name]["guess_mae"], "the training mean");
            if (!numbers[name].contains("interval")) continue;
            html += fmt::format("<li>{}: {}: {:.0f} % lie within ±{} of the prediction, expected are {:.0f} %</li>",
                                xml_escaped(split), name, 100 * numbers[name]["coverage"].get<double>(),
                                short_text(numbers[name]["interval"].get<double>()), 100 * kCoverage);
        }
    }
    return html + "</ul>";
}

std::string section_of(const PageJson& run, std::span<const CasePictures> pictures,
                       std::span<const Animation> animations)
{
    const auto name = run["name"].get<std::string>();
    auto html = fmt::format("<section><h2>{}</h2><p>{}</p>{}", xml_escaped(name),
                            xml_escaped(run["evaluation"]["model"].get<std::string>()), verdict(run));
    for (const auto& note : run["evaluation"]["notes"])
        html += "<p class=\"note\">" + xml_escaped(note.get<std::string>()) + "</p>";
    for (const char* which : {"contradictions", "warnings"}) {
        if (!run["data"].contains(which)) continue;
        for (const auto& sentence : run["data"][which])
            html += "<p class=\"note\">" + xml_escaped("data: " + sentence.get<std::string>()) + "</p>";
    }
    if (const auto& end = run["convergence"]; end.is_object() && !end["converged"].get<bool>()) {
        html += fmt::format("<p class=\"note\">Training had not converged: in the last tenth of its epochs the {} "
                            "still fell by {} %. Train longer.</p>",
                            end["of"].get<std::string>(), short_text(100 * end["fell_by"].get<double>()));
    }
    html += "<h3>Fields, means over cases</h3>" + tables_of_fields(run) + worst_cases(run);
    if (const auto errors = plots_of_roll_outs(run); !errors.empty())
        html += "<h3>Roll-outs, means over runs</h3><div class=\"plots\">" + errors + "</div>";
    if (const auto errors = histograms(run); !errors.empty()) html += "<div class=\"plots\">" + errors + "</div>";
    const auto forces = table_of_forces(run);
    if (!forces.empty()) html += "<h3>Drag and lift</h3>" + forces + "<div class=\"plots\">" + plots_of_forces(run);
    std::vector<std::string> drawn;
    for (const auto& picture : pictures) {
        if (picture.run == name && !contains(drawn, picture.id)) drawn.push_back(picture.id);
    }
    for (const auto& one : run["evaluation"]["cases"]) {
        if (one.contains("drag_along_x") && contains(drawn, one["id"].get<std::string>())) html += plot_along_x(one);
    }
    if (!forces.empty()) html += "</div>";
    html += "<h3>Cases</h3>" + table_of_cases(run);
    for (const auto& animation : animations) {
        if (animation.run != name) continue;
        html += "<h3>" + xml_escaped(fmt::format("run {} (worst), {}", animation.id, animation.field)) + "</h3>";
        if (animation.gif.empty())
            html += "<p class=\"note\">" + xml_escaped("There is no animation: " + animation.why_none + ".") + "</p>";
        else
            html += fmt::format("<div class=\"wide\"><img alt=\"{}\" src=\"data:image/gif;base64,{}\"></div>",
                                xml_escaped(animation.name), base64_of(animation.gif));
    }
    for (const auto& picture : pictures) {
        if (picture.run != name) continue;
        const auto what = fmt::format("{} {} ({}), {}{}{}", picture.when.empty() ? "case" : "run", picture.id,
                                      picture.why, picture.field, picture.when.empty() ? "" : ", " + picture.when,
                                      picture.seen.empty() ? "" : ", " + picture.seen);
        html += "<h3>" + xml_escaped(what) + "</h3><div class=\"pictures\">";
        for (const auto& [called, light, dark] : picture.pictures) {
            html += fmt::format(
                "<picture><source media=\"(prefers-color-scheme:dark)\" srcset=\"data:image/png;base64,{}\">"
                "<img alt=\"{}\" src=\"data:image/png;base64,{}\"></picture>",
                base64_of(dark), xml_escaped(called), base64_of(light));
        }
        html += "</div>";
    }
    return html + "</section>";
}

}  // namespace

std::string report_html(std::span<const ReportedRun> runs, std::span<const CasePictures> pictures,
                        std::span<const Animation> animations)
{
    const auto report = report_json(runs);
    std::string html = "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
                       "content=\"width=device-width,initial-scale=1\">";
    html += "<link rel=\"icon\" href=\"data:,\"><title>meshard report</title><style>" + std::string(kStyle) +
            "</style></head><body><h1>meshard report</h1>";
    for (const auto& run : report["runs"]) html += section_of(run, pictures, animations);
    if (const auto lines = curves(report); !lines.empty())
        html += "<section><h2>Curves</h2><div class=\"plots\">" + lines + "</div></section>";
    return html + "<script>" + kScript + "</script></body></html>\n";
}

}  // namespace meshard
