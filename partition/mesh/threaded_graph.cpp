// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/mesh/mesh_graph.h"
#include "partition/run_on_threads.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

namespace meshard {

namespace {

// A run of the cells; points keep their numbers.
struct Run {
    std::int64_t begin = 0, end = 0;
    Mesh cells;
    std::vector<bool> uses_point;
    Csr graph;
    std::vector<SharedFacet> facets;
    FacetCrowds crowds;
};

Csr rows_of(const Csr& from, std::int64_t begin, std::int64_t end)
{
    Csr rows;
    const auto first = from.offsets[begin];
    rows.indices.assign(from.indices.begin() + first, from.indices.begin() + from.offsets[end]);
    rows.offsets.resize(end - begin + 1);
    for (auto i = begin; i <= end; ++i) rows.offsets[i - begin] = from.offsets[i] - first;
    return rows;
}

void take_cells(const Mesh& mesh, Run& run)
{
    run.cells.points = mesh.points;
    run.cells.cells = rows_of(mesh.cells, run.begin, run.end);
    run.cells.cell_types.assign(mesh.cell_types.begin() + run.begin, mesh.cell_types.begin() + run.end);
    if (mesh.has_polyhedra()) run.cells.face_streams = rows_of(mesh.face_streams, run.begin, run.end);
    run.uses_point.assign(mesh.num_points(), false);
    for (const auto point : run.cells.cells.indices) run.uses_point[point] = true;
}

// Neighbours by facets that runs may share, in both directions, ascending.
std::vector<std::pair<std::int32_t, std::int32_t>>
edges_at_shared_facets(const Mesh& mesh, const std::vector<Run>& runs, FacetCrowds& crowds)
{
    std::vector<SharedFacet> facets;
    for (const auto& run : runs) append(facets, run.facets);
    sort_unique(facets);  // a cell may have the facet twice
    std::vector<std::pair<std::int32_t, std::int32_t>> edges;
    for (std::size_t begin = 0, end = 0; begin < facets.size(); begin = end) {
        while (end < facets.size() && facets[end].key == facets[begin].key) ++end;
        const auto group = std::span(facets).subspan(begin, end - begin);
        if (group.size() > 2) {
            const std::array first{group[0].cell, group[1].cell, group[2].cell};
            crowds.add(first, {mesh.cell_types[first[0]], mesh.cell_types[first[1]], mesh.cell_types[first[2]]},
                       static_cast<std::int32_t>(group.size()));
        }
        for (const auto& [low, high] : cells_joined_by(group)) {
            edges.emplace_back(low, high);
            edges.emplace_back(high, low);
        }
    }
    sort_unique(edges);
    return edges;
}

Csr graph_of_runs(const Mesh& mesh, std::int64_t num_runs, std::int32_t num_threads, FacetCrowds& crowds)
{
    const auto num_cells = mesh.num_cells();
    const auto cells_a_run = (num_cells + num_runs - 1) / num_runs;
    std::vector<Run> runs(num_runs);
    const auto for_each_run = [&](auto&& work) {
        run_on_threads(num_threads, [&](const std::function<std::int64_t()>& next) {
            for (auto r = next(); r < num_runs; r = next()) work(runs[r]);
        });
    };
    for (std::int64_t r = 0; r < num_runs; ++r) {
        runs[r].begin = std::min(r * cells_a_run, num_cells);
        runs[r].end = std::min((r + 1) * cells_a_run, num_cells);
    }
    for_each_run([&](Run& run) { take_cells(mesh, run); });
    std::vector<bool> is_used(mesh.num_points(), false), is_shared(mesh.num_points(), false);
    for (const auto& run : runs)
        for (std::size_t point = 0; point < is_used.size(); ++point) {
            if (run.uses_point[point] && is_used[point]) is_shared[point] = true;
            if (run.uses_point[point]) is_used[point] = true;
        }
    const auto dimensions = dimensions_of(mesh.cell_types);
    for_each_run([&](Run& run) {
        run.graph = cell_graph(run.cells, dimensions, &is_shared, &run.crowds);
        if (run.crowds.first_cell >= 0) run.crowds.first_cell += static_cast<std::int32_t>(run.begin);
        run.facets = facets_of_marked_points(run.cells, dimensions, is_shared);
        for (auto& facet : run.facets) facet.cell += static_cast<std::int32_t>(run.begin);
        run.cells = {};
    });

    crowds = {};
    for (const auto& run : runs) {
        if (crowds.first_cell < 0) crowds.first_cell = run.crowds.first_cell;
        crowds.most_cells = std::max(crowds.most_cells, run.crowds.most_cells);
    }
    const auto edges = edges_at_shared_facets(mesh, runs, crowds);
    for_each_run([&](Run& run) {
        const auto at = [&](std::int64_t cell) {
            return std::ranges::lower_bound(edges, cell, {}, [](const auto& edge) { return std::int64_t{edge.first}; });
        };
        run.graph = with_edges(run.graph, static_cast<std::int32_t>(run.begin), {at(run.begin), at(run.end)});
    });
    Csr graph;
    graph.offsets.assign(num_cells + 1, 0);
    for (const auto& run : runs)
        for (auto cell = run.begin; cell < run.end; ++cell)
            graph.offsets[cell + 1] = graph.offsets[cell] + std::ssize(run.graph.row(cell - run.begin));
    graph.indices.resize(graph.offsets.back());
    for_each_run([&](Run& run) {
        std::ranges::copy(run.graph.indices, graph.indices.begin() + graph.offsets[run.begin]);
        run.graph = {};
    });
    return graph;
}

}  // namespace

Csr cell_graph_on_threads(const Mesh& mesh, std::int32_t num_threads, FacetCrowds* crowds)
{
    const auto num_runs = std::clamp<std::int64_t>(num_threads, 1, std::max<std::int64_t>(mesh.num_cells(), 1));
    if (num_runs == 1) return cell_graph(mesh, crowds);
    try {
        FacetCrowds unasked;
        return graph_of_runs(mesh, num_runs, num_threads, crowds != nullptr ? *crowds : unasked);
    } catch (const InvalidInput&) {
        return cell_graph(mesh, crowds);  // throws the same error with the cell's number in the whole
    }
}

}  // namespace meshard
