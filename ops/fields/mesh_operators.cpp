// SPDX-License-Identifier: Apache-2.0
#include "ops/fields/mesh_operators.h"

#include "ops/rows/cut_rows.h"
#include "ops/rows/ghost_exchange.h"
#include "partition/ghosts/ghost_graph.h"
#include "partition/lists.h"
#include "partition/mesh/cell_type.h"
#include "partition/mesh/mesh_graph.h"
#include "partition/mesh/vector_algebra.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace meshard {
namespace {

using Form = MeshOperator::Form;
using Ghosts = MeshOperator::Ghosts;
using Entries = std::vector<Stencil::Entry>;

/// A stencil with one row for each owned cell, whose entries `f(cell, entries)` appends.
template <class F>
Stencil cell_stencil(const MeshGeometry& geometry, const IndexMap& columns, int components, F&& f)
{
    Stencil stencil;
    stencil.num_columns = columns.num_local();
    stencil.components = components;
    Entries entries;
    for (std::int32_t cell = 0; cell < geometry.cell_ids().num_owned; ++cell) {
        entries.clear();
        f(cell, entries);
        stencil.push_row(entries, columns.global_ids);
    }
    return stencil;
}

MeshOperator between_cells(const char* name, const MeshGeometry& geometry, Form form, Stencil stencil)
{
    return {name, geometry.cells(), geometry.cells(), form, Ghosts::OfInput, std::move(stencil)};
}

/// Number of local cells, or with `of_owned` of owned cells, that use each local point.
at::Tensor cells_of_points(const MeshGeometry& geometry, bool of_owned)
{
    const auto& cells = geometry.mesh().cells;
    auto counts = at::zeros({geometry.point_ids().num_local()}, at::kDouble);
    auto* count = counts.mutable_data_ptr<double>();
    const auto end = cells.offsets[of_owned ? geometry.cell_ids().num_owned : cells.num_rows()];
    for (std::int64_t e = 0; e < end; ++e) count[cells.indices[e]] += 1;
    return counts;
}

/// Number of cells of the whole mesh that use each local point. Collective.
at::Tensor cells_of_points_in_whole(const MeshGeometry& geometry)
{
    const auto counts = cells_of_points(geometry, true);
    const auto& plan = geometry.points().plan;
    return plan ? with_ghosts(scatter_ghosts(counts, plan), plan) : counts;
}

/// Throws on every rank unless each rank has all cells around the points of its owned cells.
void require_vertex_ghosts(const MeshGeometry& geometry)
{
    const auto& plan = geometry.points().plan;
    if (!plan) return;
    const auto all = cells_of_points_in_whole(geometry).contiguous(), here = cells_of_points(geometry, false);
    const auto *in_whole = all.const_data_ptr<double>(), *in_part = here.const_data_ptr<double>();
    const auto& cells = geometry.mesh().cells;
    std::string error;
    for (std::int64_t e = 0; e < cells.offsets[geometry.cell_ids().num_owned]; ++e) {
        const auto point = cells.indices[e];
        if (in_whole[point] == in_part[point]) continue;
        error = fmt::format(
            "least_squares_gradient: the subdomain lacks cells around point {}. Cut the mesh with --ghosts vertex.",
            geometry.point_ids().global_ids[point]);
        break;
    }
    throw_together(error, plan->group());
}

/// Throws on every rank if so many cells meet at a facet of an owned cell that their order in the whole mesh decides
/// which are neighbours.
void require_mutual_neighbors(const char* where, const MeshGeometry& geometry)
{
    const auto& plan = geometry.points().plan;
    if (!plan) return;
    const auto& mesh = geometry.mesh();
    const auto counts = cells_of_points_in_whole(geometry).contiguous();
    const auto* count = counts.const_data_ptr<double>();
    std::vector<bool> is_crowded(mesh.num_points());
    for (std::int64_t point = 0; point < mesh.num_points(); ++point)
        is_crowded[point] = count[point] > most_mutual_cells;
    auto facets = facets_of_marked_points(mesh, dimensions_of(mesh.cell_types), is_crowded);
    std::ranges::sort(facets);
    std::string error;
    for (std::size_t begin = 0, end = 0; begin < facets.size() && error.empty(); begin = end) {
        while (end < facets.size() && facets[end].key == facets[begin].key) ++end;
        const auto owned = std::find_if(
            facets.begin() + static_cast<std::ptrdiff_t>(begin), facets.begin() + static_cast<std::ptrdiff_t>(end),
            [&](const SharedFacet& facet) { return facet.cell < geometry.cell_ids().num_owned; });
        if (end - begin < 3 || owned == facets.begin() + static_cast<std::ptrdiff_t>(end)) continue;
        error = fmt::format("{}: cell {} has a facet that may belong to more than {} cells; a rank does not know all "
                            "of them. Compute it on one rank, or repair the mesh.",
                            where, geometry.cell_ids().global_ids[owned->cell], most_mutual_cells);
    }
    throw_together(error, plan->group());
}

/// Cells of one dimension around points with many cells, sorted by global id. Each cell has as neighbours those 1, 2,
/// 4, 8, ... positions before and after it in a ring: near and far ones, which span all directions that the cells span,
/// in entries whose number grows with the logarithm of that of the cells.
class CellsAroundPoints {
public:
    /// At points with at most so many cells all of them are neighbours.
    static constexpr std::int64_t most_mutual_cells = 256;

    explicit CellsAroundPoints(const MeshGeometry& geometry)
        : geometry_(geometry), around_(ghost_relation(geometry.mesh(), {.neighbors = GhostNeighbors::Vertex}))
    {
    }

    /// Appends the neighbours of `cell` at `point`, possibly itself, possibly with repetitions.
    void append(std::int32_t cell, std::int32_t point, std::vector<std::int32_t>& found)
    {
        const auto cells = around_.rows_of_item.row(point);
        const auto dimension = dimension_of(cell);
        if (std::ssize(cells) <= most_mutual_cells) {
            std::copy_if(cells.begin(), cells.end(), std::back_inserter(found),
                         [&](std::int32_t other) { return dimension_of(other) == dimension; });
            return;
        }
        auto& ring = rings_[{point, dimension}];
        const auto id = [&](std::int32_t other) { return geometry_.cell_ids().global_ids[other]; };
        if (ring.empty()) {
            std::copy_if(cells.begin(), cells.end(), std::back_inserter(ring),
                         [&](std::int32_t other) { return dimension_of(other) == dimension; });
            std::ranges::sort(ring, {}, id);
            ring.erase(std::unique(ring.begin(), ring.end()), ring.end());
        }
        const auto size = std::ssize(ring);
        const auto place = std::ranges::lower_bound(ring, id(cell), {}, id) - ring.begin();
        for (std::int64_t step = 1; step < size; step *= 2) {
            found.push_back(ring[(place + step) % size]);
            found.push_back(ring[(place + size - step) % size]);
        }
    }

private:
    int dimension_of(std::int32_t cell) const { return cell_dimension(geometry_.mesh().cell_types[cell]); }

    const MeshGeometry& geometry_;
    GhostRelation around_;
    std::map<std::pair<std::int32_t, int>, std::vector<std::int32_t>> rings_;
};

/// For each owned cell its neighbours of the same dimension, ascending.
Csr gradient_neighbors(const MeshGeometry& geometry, GradientNeighbors neighbors)
{
    const auto& mesh = geometry.mesh();
    if (neighbors == GradientNeighbors::Facet) {
        require_mutual_neighbors("least_squares_gradient", geometry);
        return facet_graph(mesh);
    }
    CellsAroundPoints around(geometry);
    Csr graph;
    std::vector<std::int32_t> row;
    for (std::int32_t i = 0; i < geometry.cell_ids().num_owned; ++i) {
        row.clear();
        for (const auto point : mesh.cells.row(i)) around.append(i, point, row);
        sort_unique(row);
        std::erase(row, i);
        graph.push_row(row);
    }
    return graph;
}

/// Sets `offset` to the vector between the centroids of a cell and its neighbour; for polygons to its projection on the
/// cell's plane. Returns offset / |offset|^2.
Vector3 weighted_offset(const MeshGeometry& geometry, std::span<const Vector3> areas, std::int32_t cell,
                        std::int32_t neighbor, Vector3& offset)
{
    const auto& centroids = geometry.measures().centroids;
    offset = centroids[neighbor] - centroids[cell];
    const Vector3 normal = unit(areas[cell]);
    add_scaled(offset, normal, -dot(offset, normal));
    const double length_squared = dot(offset, offset);
    return length_squared > 0 ? (1 / length_squared) * offset : Vector3{};
}

Vector3 product(const double* matrix, const Vector3& x)
{
    return {dot({matrix[0], matrix[1], matrix[2]}, x), dot({matrix[3], matrix[4], matrix[5]}, x),
            dot({matrix[6], matrix[7], matrix[8]}, x)};
}

}  // namespace

MeshOperator least_squares_gradient(const MeshGeometry& geometry, GradientNeighbors neighbors)
{
    if (neighbors == GradientNeighbors::Vertex) require_vertex_ghosts(geometry);
    const auto graph = gradient_neighbors(geometry, neighbors);
    const auto areas = area_vectors(geometry.mesh());
    const auto num_cells = static_cast<std::int64_t>(geometry.cell_ids().num_owned);
    auto matrices = at::zeros({num_cells, 3, 3}, at::kDouble);
    auto* matrix = matrices.mutable_data_ptr<double>();
    for (std::int32_t i = 0; i < num_cells; ++i) {
        auto row = std::vector<std::int32_t>(graph.row(i).begin(), graph.row(i).end());
        // Added in the order of global ids, so that every rank gets the same bits.
        std::ranges::sort(
            row, [&](auto a, auto b) { return geometry.cell_ids().global_ids[a] < geometry.cell_ids().global_ids[b]; });
        for (const auto j : row) {
            Vector3 offset;
            const Vector3 weighted = weighted_offset(geometry, areas, i, j, offset);
            for (int a = 0; a < 3; ++a) {
                for (int b = 0; b < 3; ++b) matrix[9 * i + 3 * a + b] += weighted[a] * offset[b];
            }
        }
    }
    // The pseudo-inverse sets the gradient to zero in directions that the neighbours do not span.
    const auto inverses = at::linalg_pinv(matrices, 1e-8, true).contiguous();
    const auto* inverse = inverses.const_data_ptr<double>();
    auto stencil = cell_stencil(geometry, geometry.cell_ids(), 3, [&](std::int32_t i, Entries& entries) {
        for (const auto j : graph.row(i)) {
            Vector3 offset;
            const Vector3 weights = product(inverse + 9 * i, weighted_offset(geometry, areas, i, j, offset));
            entries.push_back({j, weights});
            entries.push_back({i, -1 * weights});
        }
    });
    return between_cells("least_squares_gradient", geometry, Form::Gradient, std::move(stencil));
}

MeshOperator green_gauss_gradient(const MeshGeometry& geometry)
{
    const auto& mesh = geometry.mesh();
    const auto positions = point_positions(mesh);
    const auto areas = area_vectors(mesh);
    Csr facets;
    auto stencil = cell_stencil(geometry, geometry.point_ids(), 3, [&](std::int32_t i, Entries& entries) {
        const double size = geometry.measures().sizes[i];
        if (!(size > 0) || cell_dimension(mesh.cell_types[i]) < 2) return;
        cell_facets(mesh, i, facets);
        if (cell_dimension(mesh.cell_types[i]) == 2) {
            const Vector3 normal = unit(areas[i]);
            for (std::int64_t k = 0; k < facets.num_rows(); ++k) {
                const auto edge = facets.row(k);
                const Vector3 half = 0.5 / size * cross(positions[edge[1]] - positions[edge[0]], normal);
                entries.push_back({edge[0], half});
                entries.push_back({edge[1], half});
            }
            return;
        }
        Vector3 inside{};
        for (const auto point : mesh.cells.row(i))
            add_scaled(inside, positions[point], 1.0 / static_cast<double>(mesh.cells.row(i).size()));
        orient_outwards(positions, inside, facets);
        for (std::int64_t k = 0; k < facets.num_rows(); ++k) {
            const auto face = facets.row(k);
            Vector3 total{};
            for_each_face_triangle(positions, face,
                                   [&](std::int32_t a, std::int32_t b, const Vector3& area, const Vector3&) {
                                       const Vector3 third = 1 / (3 * size) * area;
                                       entries.push_back({a, third});
                                       entries.push_back({b, third});
                                       // The third corner of each triangle is the mean of the face's points.
                                       add_scaled(total, third, 1.0 / static_cast<double>(face.size()));
                                   });
            for (const auto point : face) entries.push_back({point, total});
        }
    });
    return {"green_gauss_gradient", geometry.points(), geometry.cells(),
            Form::Gradient,         Ghosts::OfInput,   std::move(stencil)};
}

MeshOperator laplacian(const MeshGeometry& geometry)
{
    require_mutual_neighbors("laplacian", geometry);
    const auto neighbors = facet_neighbors(geometry.mesh());
    const auto& [sizes, centroids] = geometry.measures();
    auto stencil = cell_stencil(geometry, geometry.cell_ids(), 1, [&](std::int32_t i, Entries& entries) {
        const auto row = neighbors.cells.row(i);
        for (std::size_t k = 0; k < row.size(); ++k) {
            const double distance = norm(centroids[row[k]] - centroids[i]);
            if (!(distance > 0) || !(sizes[i] > 0)) continue;
            const double weight =
                neighbors.sizes[neighbors.cells.offsets[i] + static_cast<std::int64_t>(k)] / (distance * sizes[i]);
            entries.push_back({row[k], {weight}});
            entries.push_back({i, {-weight}});
        }
    });
    return between_cells("laplacian", geometry, Form::Scalar, std::move(stencil));
}

MeshOperator cells_to_points(const MeshGeometry& geometry)
{
    const auto counts = cells_of_points_in_whole(geometry);
    const auto* count = counts.const_data_ptr<double>();
    auto stencil = cell_stencil(geometry, geometry.point_ids(), 1, [&](std::int32_t i, Entries& entries) {
        for (const auto point : geometry.mesh().cells.row(i)) entries.push_back({point, {1 / count[point]}});
    });
    return {"cells_to_points", geometry.cells(), geometry.points(),
            Form::Scalar,      Ghosts::OfResult, stencil.transposed()};
}

at::Tensor point_normals(const MeshGeometry& geometry)
{
    const auto sums = cells_to_points(geometry)(geometry.area_vectors());
    return sums / sums.square().sum(1, true).sqrt().clamp_min(1e-300);
}

}  // namespace meshard
