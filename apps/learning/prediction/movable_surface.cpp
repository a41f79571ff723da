// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/movable_surface.h"

#include "partition/lists.h"
#include "partition/mesh/cell_rings.h"

#include <torch/types.h>

#include <vector>

namespace meshard {
namespace {

at::Tensor indices(const std::vector<std::int64_t>& values)
{
    return torch::tensor(values, torch::kLong);
}

/// Copies a tensor of the first rank to all.
at::Tensor on_all_ranks(at::Tensor of_first, const RankGroup& ranks, at::ScalarType type)
{
    if (ranks.size() == 1) return of_first;
    const auto count = ranks.all_gather_integers(ranks.rank() == 0 ? of_first.numel() : 0)[0];
    if (ranks.rank() != 0) of_first = torch::empty({count}, type);
    if (count > 0) ranks.broadcast(of_first, 0);
    return of_first;
}

/// Adds up rows by number: (entries, ...) to (num_sums, ...).
at::Tensor sums(const at::Tensor& rows, const at::Tensor& numbers, std::int64_t num_sums)
{
    auto sizes = rows.sizes().vec();
    sizes[0] = num_sums;
    return torch::zeros(sizes, rows.options()).index_add(0, numbers, rows);
}

/// (C) as factors of rows, (C, ...).
at::Tensor as_factors(const at::Tensor& of_rows, const at::Tensor& rows)
{
    return rows.dim() == 1 ? of_rows : of_rows.unsqueeze(1);
}

/// (T, 3, 3) to (T, 3): area vectors of triangles.
at::Tensor vectors_of(const at::Tensor& corners)
{
    const auto apex = corners.select(1, 0);
    return 0.5 * torch::linalg_cross(corners.select(1, 1) - apex, corners.select(1, 2) - apex);
}

}  // namespace

at::Tensor lengths_of(const at::Tensor& vectors)
{
    return torch::linalg_vector_norm(vectors, 2, at::IntArrayRef{-1});
}

MovableSurface::MovableSurface(const Mesh& whole, const RankGroup& ranks, const at::Device& device)
{
    std::vector<std::int64_t> corners, cell_of_corner, triangles, cell_of_triangle, ring_of_triangle, ring_points,
        middle_of_ring_point;
    at::Tensor points;
    if (ranks.rank() == 0) {
        points = torch::tensor(whole.points.to_doubles(), torch::kDouble);
        std::int64_t num_middles = 0, num_rings = 0;
        std::vector<std::int32_t> ring;
        for (std::int64_t cell = 0; cell < whole.num_cells(); ++cell) {
            for (const auto corner : whole.cells.row(cell)) {
                corners.push_back(corner);
                cell_of_corner.push_back(cell);
            }
            for_each_ring(whole, cell, ring, [&](std::span<const std::int32_t> around) {
                if (around.size() < 3) return;
                if (around.size() == 3) {
                    append(triangles, around);
                    cell_of_triangle.push_back(cell);
                    ring_of_triangle.push_back(num_rings++);
                    return;
                }
                for (std::size_t k = 0; k < around.size(); ++k)
                    triangles.insert(triangles.end(),
                                     {around[k], around[(k + 1) % around.size()], whole.num_points() + num_middles});
                cell_of_triangle.insert(cell_of_triangle.end(), around.size(), cell);
                ring_of_triangle.insert(ring_of_triangle.end(), around.size(), num_rings++);
                append(ring_points, around);
                middle_of_ring_point.insert(middle_of_ring_point.end(), around.size(), num_middles++);
            });
        }
    }
    num_cells_ = ranks.all_gather_integers(whole.num_cells())[0];
    const auto shared = [&](const std::vector<std::int64_t>& values) {
        return on_all_ranks(indices(values), ranks, torch::kLong).to(device);
    };
    points_ = on_all_ranks(points, ranks, torch::kDouble).view({-1, 3}).to(device).requires_grad_();
    corners_ = shared(corners);
    cell_of_corner_ = shared(cell_of_corner);
    triangles_ = shared(triangles).view({-1, 3});
    cell_of_triangle_ = shared(cell_of_triangle);
    ring_of_triangle_ = shared(ring_of_triangle);
    ring_points_ = shared(ring_points);
    middle_of_ring_point_ = shared(middle_of_ring_point);
    const auto ones = [&](const at::Tensor& like) { return torch::ones({like.size(0)}, points_.options()).detach(); };
    counts_ = sums(ones(corners_), cell_of_corner_, num_cells_);
    const auto num_middles = middle_of_ring_point_.numel() > 0 ? middle_of_ring_point_[-1].item<std::int64_t>() + 1 : 0;
    ring_counts_ = sums(ones(ring_points_), middle_of_ring_point_, num_middles);
}

std::int64_t MovableSurface::num_apart() const
{
    const auto used = std::get<0>(at::_unique(corners_));
    return used.size(0) - std::get<0>(at::unique_dim(points_.detach().index_select(0, used), 0)).size(0);
}

at::Tensor MovableSurface::cell_places() const
{
    return sums(points_.index_select(0, corners_), cell_of_corner_, num_cells_) / counts_.unsqueeze(1);
}

at::Tensor MovableSurface::corners_of_triangles() const
{
    return triangle_vertices().index_select(0, triangles_.flatten()).view({-1, 3, 3});
}

at::Tensor MovableSurface::area_vectors() const
{
    return sums(vectors_of(corners_of_triangles()), cell_of_triangle_, num_cells_);
}

at::Tensor MovableSurface::centroids() const
{
    const auto corners = corners_of_triangles();
    // As `surface_centroids`: triangles outside of a concave polygon are turned round, and count negative.
    const auto vectors = vectors_of(corners);
    const auto num_rings = ring_of_triangle_.numel() > 0 ? ring_of_triangle_[-1].item<std::int64_t>() + 1 : 0;
    const auto whole = sums(vectors, ring_of_triangle_, num_rings);
    const auto length = lengths_of(whole).unsqueeze(1);
    const auto normals = whole / torch::where(length > 0, length, torch::ones_like(length));
    const auto areas = (vectors * normals.index_select(0, ring_of_triangle_)).sum(1, true);
    const auto area = sums(areas, cell_of_triangle_, num_cells_);
    const auto has_area = area > 0;
    const auto mean = sums(areas * corners.mean(1), cell_of_triangle_, num_cells_) /
                      torch::where(has_area, area, torch::ones_like(area));
    return torch::where(has_area, mean, cell_places());
}

at::Tensor MovableSurface::sums_at_points(const at::Tensor& of_cells) const
{
    return sums(of_cells.index_select(0, cell_of_corner_), corners_, points_.size(0));
}

at::Tensor MovableSurface::shares_at_points(const at::Tensor& of_cells) const
{
    return sums_at_points(of_cells / as_factors(counts_, of_cells));
}

at::Tensor MovableSurface::means_in_cells(const at::Tensor& of_points) const
{
    return sums(of_points.index_select(0, corners_), cell_of_corner_, num_cells_) / counts_;
}

at::Tensor MovableSurface::triangle_vertices() const
{
    if (ring_points_.numel() == 0) return points_;
    const auto middles = sums(points_.index_select(0, ring_points_), middle_of_ring_point_, ring_counts_.size(0));
    return torch::cat({points_, middles / ring_counts_.unsqueeze(1)});
}

}  // namespace meshard
