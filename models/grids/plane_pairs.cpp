// SPDX-License-Identifier: Apache-2.0
#include "models/grids/plane_pairs.h"

#include "ops/neighbors/neighbors.h"
#include "partition/error.h"
#include "sharding/tensor/host_values.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace meshard {
namespace {

const float kReach = std::sqrt(3.0F);
constexpr float kSlack = 1e-2F;  // in vertices; so that rounding does not decide which vertices are tested
constexpr std::int64_t kPointsOfTask = 2048;

/// The scale as a tensor (3), in single precision.
at::Tensor scale_of(const GridPlane& plane, const at::Device& device)
{
    const auto scale = plane.scale();
    return at::tensor({scale[0], scale[1], scale[2]}, at::TensorOptions(at::kFloat)).to(device);
}

/// Scaled coordinates of the vertices along one axis.
std::vector<float> scaled_line(const GridPlane& plane, int axis)
{
    return values_on_host<float>(
        at::linspace(plane.box_min[axis], plane.box_max[axis], plane.resolution[axis], at::TensorOptions(at::kFloat)) *
        static_cast<float>(plane.scale()[axis]));
}

/// The range of vertices along an axis that may be within reach of a coordinate.
std::pair<std::int64_t, std::int64_t> around(const std::vector<float>& line, float place)
{
    const auto n = std::ssize(line);
    if (n == 1) return {0, 1};
    const float step = (line.back() - line.front()) / static_cast<float>(n - 1);
    const auto index = [&](float at) {
        return std::clamp((at - line.front()) / step, -2.0F, static_cast<float>(n) + 2);
    };
    const auto first = static_cast<std::int64_t>(std::ceil(index(place - kReach) - kSlack)),
               last = static_cast<std::int64_t>(std::floor(index(place + kReach) + kSlack));
    return {std::max<std::int64_t>(first, 0), std::min(last + 1, n)};
}

at::Tensor joined(const std::vector<std::vector<std::int64_t>>& parts)
{
    std::int64_t count = 0;
    for (const auto& part : parts) count += std::ssize(part);
    auto all = at::empty({count}, at::TensorOptions(at::kLong));
    auto* to = all.data_ptr<std::int64_t>();
    for (const auto& part : parts) to = std::ranges::copy(part, to).out;
    return all;
}

/// The query of each entry of `neighbors`.
at::Tensor queries_of(const Neighbors& neighbors)
{
    const auto counts = neighbors.offsets.diff();
    return at::arange(counts.size(0), counts.options()).repeat_interleave(counts);
}

}  // namespace

std::array<double, 3> GridPlane::scale() const
{
    std::array<double, 3> scale{};
    for (std::size_t a = 0; a < 3; ++a) scale[a] = static_cast<double>(resolution[a]) / (box_max[a] - box_min[a]);
    return scale;
}

at::Tensor GridPlane::vertices(const at::Device& device) const
{
    std::vector<at::Tensor> lines;
    for (std::size_t a = 0; a < 3; ++a)
        lines.push_back(at::linspace(box_min[a], box_max[a], resolution[a], at::TensorOptions(at::kFloat)));
    return at::stack(at::meshgrid(lines, "ij"), -1).reshape({-1, 3}).to(device);
}

PlanePairs pairs_in_reach(const at::Tensor& points, const GridPlane& plane)
{
    const auto scaled = (points.detach().to(at::kFloat) * scale_of(plane, points.device())).cpu().contiguous();
    const auto* places = scaled.data_ptr<float>();
    const auto x_line = scaled_line(plane, 0), y_line = scaled_line(plane, 1), z_line = scaled_line(plane, 2);
    const auto num_points = scaled.size(0), num_tasks = (num_points + kPointsOfTask - 1) / kPointsOfTask;
    std::vector<std::vector<std::int64_t>> found_points(num_tasks), found_vertices(num_tasks);
    at::parallel_for(0, num_tasks, 1, [&](std::int64_t begin, std::int64_t end) {
        for (auto task = begin; task < end; ++task) {
            for (auto p = task * kPointsOfTask; p < std::min(num_points, (task + 1) * kPointsOfTask); ++p) {
                const float px = places[3 * p], py = places[3 * p + 1], pz = places[3 * p + 2];
                if (!std::isfinite(px) || !std::isfinite(py) || !std::isfinite(pz)) continue;
                const auto [x_begin, x_end] = around(x_line, px);
                const auto [y_begin, y_end] = around(y_line, py);
                const auto [z_begin, z_end] = around(z_line, pz);
                for (auto i = x_begin; i < x_end; ++i) {
                    for (auto j = y_begin; j < y_end; ++j) {
                        for (auto k = z_begin; k < z_end; ++k) {
                            const float dx = px - x_line[i], dy = py - y_line[j], dz = pz - z_line[k];
                            if (std::sqrt(dx * dx + dy * dy + dz * dz) > kReach)
                                continue;  // the distance, not its square, as in the reference
                            found_points[task].push_back(p);
                            found_vertices[task].push_back((i * plane.resolution[1] + j) * plane.resolution[2] + k);
                        }
                    }
                }
            }
        }
    });
    return {joined(found_points).to(points.device()), joined(found_vertices).to(points.device())};
}

PlanePairs nearest_vertices(const at::Tensor& points, const GridPlane& plane, std::int64_t k)
{
    const auto scale = scale_of(plane, points.device());
    const auto neighbors = knn(plane.vertices(points.device()) * scale, points.detach().to(at::kFloat) * scale, k);
    return {queries_of(neighbors), neighbors.rows};
}

PlanePairs nearest_points(const at::Tensor& cloud, const GridPlane& plane, std::int64_t k)
{
    if (cloud.size(0) <= k)
        throw InvalidInput(
            "FIGConvUNet: each vertex hears its knn_k = {} nearest points, and there are {}; there must be more.", k,
            cloud.size(0));
    const auto scale = scale_of(plane, cloud.device());
    const auto neighbors = knn(cloud.detach().to(at::kFloat) * scale, plane.vertices(cloud.device()) * scale, k);
    const auto own = (neighbors.rows < neighbors.num_points).nonzero().squeeze(1);
    return {neighbors.rows.index_select(0, own), queries_of(neighbors).index_select(0, own)};
}

}  // namespace meshard
