// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "partition/mesh/mesh_graph.h"
#include "partition/run_on_threads.h"

#include <algorithm>
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
    std::int32_t crowded = -1;
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

// Whether the first three of the cells at a facet are all solids or all polygons.
bool is_crowded(const Mesh& mesh, std::span<const SharedFacet> facets)
{
    if (facets.size() < 3 || cell_dimension(mesh.cell_types[facets[0].cell]) < 2) return false;
    return std::ranges::all_of(facets.first(3), [&](const SharedFacet& facet) {
        return cell_dimension(mesh.cell_types[facet.cell]) == cell_dimension(mesh.cell_types[facets[0].cell]);
    });
}

// Neighbours in different runs, in both directions. Sets `crowded` to the first cell with a non-manifold facet.
std::vector<std::pair<std::int32_t, std::int32_t>> edges_between(const Mesh& mesh, const std::vector<Run>& runs, std::int64_t cells_a_run,
                                                                 std::int32_t& crowded)
{
    std::vector<SharedFacet> facets;
    for (const auto& run : runs) facets.insert(facets.end(), run.facets.begin(), run.facets.end());
    std::ranges::sort(facets);
    std::vector<std::pair<std::int32_t, std::int32_t>> edges;
    for (std::size_t begin = 0, end = 0; begin < facets.size(); begin = end) {
        while (end < facets.size() && facets[end].key == facets[begin].key) ++end;
        const auto group = std::span(facets).subspan(begin, end - begin);
        if (is_crowded(mesh, group) && (crowded < 0 || group[0].cell < crowded)) crowded = group[0].cell;
        for (auto i = begin; i < end; ++i)
            for (auto j = begin; j < end; ++j)
                if (facets[i].cell / cells_a_run != facets[j].cell / cells_a_run) edges.emplace_back(facets[i].cell, facets[j].cell);
    }
    std::ranges::sort(edges);
    edges.erase(std::ranges::unique(edges).begin(), edges.end());
    return edges;
}

Csr graph_of_runs(const Mesh& mesh, std::int64_t num_runs, std::int32_t num_threads, std::int32_t& crowded)
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
        run.graph = cell_graph(run.cells, dimensions, &run.crowded);
        if (run.crowded >= 0) run.crowded += static_cast<std::int32_t>(run.begin);
        run.facets = facets_of_marked_points(run.cells, dimensions, is_shared);
        for (auto& facet : run.facets) facet.cell += static_cast<std::int32_t>(run.begin);
        run.cells = {};
    });

    crowded = -1;
    for (const auto& run : runs)
        if (run.crowded >= 0 && crowded < 0) crowded = run.crowded;
    const auto edges = edges_between(mesh, runs, cells_a_run, crowded);
    Csr graph;
    graph.offsets.assign(num_cells + 1, 0);
    for (const auto& edge : edges) ++graph.offsets[edge.first + 1];
    for (const auto& run : runs)
        for (auto cell = run.begin; cell < run.end; ++cell)
            graph.offsets[cell + 1] += graph.offsets[cell] + static_cast<std::int64_t>(run.graph.row(cell - run.begin).size());
    graph.indices.resize(graph.offsets.back());
    for_each_run([&](Run& run) {
        auto edge = std::ranges::lower_bound(edges, run.begin, {}, [](const auto& e) { return std::int64_t{e.first}; });
        for (auto cell = run.begin; cell < run.end; ++cell) {
            auto* to = graph.indices.data() + graph.offsets[cell];
            // Runs before come first, those after last: rows stay ascending.
            for (; edge != edges.end() && edge->first == cell && edge->second < run.begin; ++edge) *to++ = edge->second;
            for (const auto neighbor : run.graph.row(cell - run.begin)) *to++ = static_cast<std::int32_t>(run.begin) + neighbor;
            for (; edge != edges.end() && edge->first == cell; ++edge) *to++ = edge->second;
        }
        run.graph = {};
    });
    return graph;
}

}  // namespace

Csr cell_graph_on_threads(const Mesh& mesh, std::int32_t num_threads, std::int32_t* crowded)
{
    const auto num_runs = std::clamp<std::int64_t>(num_threads, 1, std::max<std::int64_t>(mesh.num_cells(), 1));
    if (num_runs == 1) return cell_graph(mesh, crowded);
    try {
        std::int32_t unasked = -1;
        return graph_of_runs(mesh, num_runs, num_threads, crowded != nullptr ? *crowded : unasked);
    } catch (const InvalidInput&) {
        return cell_graph(mesh, crowded);  // throws the same error with the cell's number in the whole
    }
}

}  // namespace meshard
