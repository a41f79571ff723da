// SPDX-License-Identifier: Apache-2.0
#include "apps/cut/partition_report.h"

#include "apps/console/json_report.h"
#include "apps/console/text_table.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/made_folders.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <sstream>

namespace meshard {

namespace {

/// Returns the largest number of neighbours of a part divided by the mean; 1 without neighbours.
double balance_of_neighbors(const PartitionQuality& quality)
{
    double most = 0, sum = 0;
    for (const PartQuality& part : quality.parts) {
        most = std::max(most, static_cast<double>(part.neighbors.size()));
        sum += static_cast<double>(part.neighbors.size());
    }
    return sum > 0 ? most * static_cast<double>(quality.parts.size()) / sum : 1;
}

std::vector<std::size_t> parts_in_pieces(const PartitionQuality& quality)
{
    std::vector<std::size_t> parts;
    for (std::size_t p = 0; p < quality.parts.size(); ++p)
        if (quality.parts[p].num_components > 1) parts.push_back(p);
    return parts;
}

/// Prints `Max number of cells = 100 (0% above average 100)`, as OpenFOAM's decomposePar does.
template <class F>
void print_maximum(const std::string& what, std::size_t num_parts, F&& value_of)
{
    double largest = 0;
    double sum = 0;
    for (std::size_t p = 0; p < num_parts; ++p) {
        const auto value = static_cast<double>(value_of(p));
        largest = std::max(largest, value);
        sum += value;
    }
    const double average = sum / static_cast<double>(num_parts);
    std::cout << "  Max number of " << what << " = " << number_text(largest);
    if (average > 0)
        std::cout << " (" << number_text(std::round(1000 * (largest / average - 1)) / 10) << "% above average "
                  << number_text(average) << ")";
    std::cout << '\n';
}

// Returns the largest imbalance of all weights, relative to the parts' capacities.
double largest_imbalance(const PartitionReport& report)
{
    double largest = report.imbalances.empty() ? report.quality.imbalance : 0;
    for (const auto& [weight, imbalance] : report.imbalances) largest = std::max(largest, imbalance);
    return largest;
}

}  // namespace

void print_as_json(const PartitionReport& report)
{
    Json parts = Json::array();
    for (std::size_t p = 0; p < report.quality.parts.size(); ++p) {
        const PartQuality& part = report.quality.parts[p];
        parts.push_back({{"part", p},
                         {"cells", report.cells[p].owned},
                         {"points", report.points[p].owned},
                         {"ghost_cells", report.cells[p].ghosts},
                         {"ghost_points", report.points[p].ghosts},
                         {"neighbors", part.neighbors},
                         {"shared_faces", part.neighbor_edges},
                         {"components", part.num_components}});
        if (!report.ghost_bytes.empty()) parts.back()["ghost_bytes"] = report.ghost_bytes[p];
        if (!report.bytes.empty()) parts.back()["bytes"] = report.bytes[p];
    }
    Json imbalances;
    for (const auto& [weight, imbalance] : report.imbalances) imbalances[weight] = imbalance;
    Json seconds, peaks;
    for (const auto& [stage, duration] : report.seconds) seconds[stage] = duration;
    for (std::size_t i = 0; i < report.stage_peaks.size(); ++i) peaks[report.seconds[i].first] = report.stage_peaks[i];
    print_json({{"source", report.source},
                {"output", report.output},
                {"method", report.method},
                {"seed", report.seed},
                {"num_parts", report.num_parts},
                {"ghost_layers", report.ghost_layers},
                {"ghost_neighbors", report.ghost_neighbors},
                {"num_cells", report.num_cells},
                {"num_points", report.num_points},
                {"edge_cut", report.quality.edge_cut},
                {"communication_volume", report.quality.communication_volume},
                {"imbalance", report.quality.imbalance},
                {"imbalance_allowed", report.imbalance_allowed},
                {"imbalances", std::move(imbalances)},
                {"balance_of_neighbors", balance_of_neighbors(report.quality)},
                {"parts_in_pieces", parts_in_pieces(report.quality)},
                {"parts", std::move(parts)},
                {"seconds", std::move(seconds)},
                {"stage_peak_rss_bytes", std::move(peaks)},
                {"peak_rss_bytes", report.peak_bytes}});
}

void print_as_text(const PartitionReport& report)
{
    const auto& parts = report.quality.parts;
    const bool cloud = report.is_cloud();
    const std::vector<RowCounts>& rows = cloud ? report.points : report.cells;
    const std::string row = cloud ? "point" : "cell";
    const std::string facet = cloud ? "edges" : "shared faces";

    std::cout << report.source << ": ";
    if (!cloud) std::cout << count_text(report.num_cells, "cell") << ", ";
    std::cout << count_text(report.num_points, "point") << " in " << count_text(report.num_parts, "part") << " by "
              << report.method << " with " << count_text(report.ghost_layers, "ghost layer") << "\n\n";

    const bool on_disk = !report.bytes.empty();
    TextTable table((cloud ? "rrr" : "rrrrr") + std::string(on_disk ? "r" : "") + "rrl");
    std::vector<std::string> heading{"part"};
    if (!cloud) heading.push_back("cells");
    heading.push_back("points");
    if (!cloud) heading.push_back("ghost cells");
    heading.push_back("ghost points");
    if (on_disk) heading.push_back("on disk");
    heading.insert(heading.end(), {"pieces", facet, fmt::format("neighbours ({})", facet)});
    table.add_row(std::move(heading));
    for (std::size_t p = 0; p < parts.size(); ++p) {
        std::string neighbors;
        for (std::size_t k = 0; k < parts[p].neighbors.size(); ++k) {
            neighbors +=
                fmt::format("{}{} ({})", k == 0 ? "" : ", ", parts[p].neighbors[k], parts[p].neighbor_edges[k]);
        }
        std::vector<std::string> cells{std::to_string(p)};
        if (!cloud) cells.push_back(std::to_string(report.cells[p].owned));
        cells.push_back(std::to_string(report.points[p].owned));
        if (!cloud) cells.push_back(std::to_string(report.cells[p].ghosts));
        cells.push_back(std::to_string(report.points[p].ghosts));
        if (on_disk) cells.push_back(bytes_text(static_cast<std::uint64_t>(report.bytes[p])));
        cells.push_back(std::to_string(parts[p].num_components));
        cells.push_back(std::to_string(parts[p].cut_edges));
        cells.push_back(neighbors);
        table.add_row(std::move(cells));
    }
    std::cout << table << "\n  Edge cut: " << report.quality.edge_cut << " " << facet
              << ", communication volume: " << report.quality.communication_volume
              << ", imbalance: " << fixed_text(largest_imbalance(report), 4) << " (allowed "
              << number_text(report.imbalance_allowed) << ")\n";
    if (report.imbalances.size() > 1 || (!report.imbalances.empty() && report.imbalances[0].first != "cells")) {
        std::cout << "  Imbalance by weight:";
        for (const auto& [weight, imbalance] : report.imbalances)
            std::cout << ' ' << weight << ' ' << fixed_text(imbalance, 4);
        std::cout << '\n';
    }
    print_maximum(row + "s", parts.size(), [&](std::size_t p) { return rows[p].owned; });
    print_maximum("ghost " + row + "s", parts.size(), [&](std::size_t p) { return rows[p].ghosts; });
    print_maximum("neighbours", parts.size(), [&](std::size_t p) { return parts[p].neighbors.size(); });
    print_maximum((cloud ? "edges" : "faces") + std::string(" to other parts"), parts.size(),
                  [&](std::size_t p) { return parts[p].cut_edges; });

    if (!report.ghost_bytes.empty())
        print_maximum("bytes received in an exchange of ghosts", parts.size(),
                      [&](std::size_t p) { return report.ghost_bytes[p]; });

    std::cout << "\n  Seconds:";
    for (std::size_t i = 0; i < report.seconds.size(); ++i) {
        std::cout << (i == 0 ? " " : ", ") << report.seconds[i].first << ' ' << fixed_text(report.seconds[i].second, 3);
    }
    for (std::size_t i = 0; i < report.stage_peaks.size(); ++i)
        std::cout << (i == 0 ? "\n  Peak memory by the end of: " : ", ") << report.seconds[i].first << ' '
                  << bytes_text(report.stage_peaks[i]);
    std::cout << "\n  Peak memory: " << bytes_text(report.peak_bytes) << "\n\n";
    if (report.output.empty())
        std::cout << "Nothing written: this was a dry run.\n";
    else
        std::cout << "Written to " << report.output << "; open its " << report.index_file << " in ParaView.\n";
}

void write_as_csv(const PartitionReport& report, const std::filesystem::path& file)
{
    std::ostringstream out;
    out << "part,cells,points,ghost_cells,ghost_points,neighbors,shared_faces,components,ghost_bytes,bytes\n";
    for (std::size_t p = 0; p < report.quality.parts.size(); ++p) {
        const PartQuality& part = report.quality.parts[p];
        out << p << ',' << report.cells[p].owned << ',' << report.points[p].owned << ',' << report.cells[p].ghosts
            << ',' << report.points[p].ghosts << ',' << part.neighbors.size() << ',' << part.cut_edges << ','
            << part.num_components << ',' << (report.ghost_bytes.empty() ? 0 : report.ghost_bytes[p]) << ','
            << (report.bytes.empty() ? 0 : report.bytes[p]) << '\n';
    }
    const MadeFolders folders(file);
    write_file_atomically(file, out.str());
}

}  // namespace meshard
