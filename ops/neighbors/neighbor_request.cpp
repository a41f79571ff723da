// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/neighbor_request.h"

#include "ops/rows/cut_rows.h"
#include "ops/search/grid_walk.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace meshard {

NeighborInput neighbor_input(const char* where, const char* what, const at::Tensor& tensor,
                             std::optional<std::int64_t> batch)
{
    NeighborInput rows;
    const std::int64_t row_dim = batch ? 1 : 0;
    auto here = tensor;
    if (is_sharded(tensor)) {
        reduce_partials(tensor);
        const auto spec = spec_of(tensor);
        rows.device_mesh = spec->device_mesh;
        rows.layout = spec;
        for (std::size_t a = 0; a < spec->axes.size(); ++a) {
            const auto& layout = spec->axes[a];
            if (layout.is_replicate()) continue;
            // Divides the clouds of the batch, not their rows.
            if (batch && layout.placement.dim == 0 && layout.blocks == 1) continue;
            if (layout.placement.dim != row_dim || layout.blocks != 1 || rows.is_cut()) {
                throw InvalidInput("{}: the {} have layout {}, expected a cut along their rows, or of a batch along "
                                   "its clouds. Redistribute them.",
                                   where, what, to_string(*spec));
            }
            rows.axis = static_cast<std::int64_t>(a);
        }
        here = to_local(tensor);
    }
    if (batch) here = here.select(0, *batch);
    if (rows.is_cut()) rows.ids = own_row_ids(*rows.layout, rows.axis, here.size(0));
    if (here.dim() != 2 || !here.is_floating_point() || here.size(1) < 1 || here.size(1) > 3) {
        throw InvalidInput("{}: the {} are a tensor of {} dimensions and type {}{}; expected (n, 1), (n, "
                           "2) or (n, 3) of a floating type.",
                           where, what, here.dim(), c10::toString(here.scalar_type()),
                           here.dim() == 2 ? fmt::format(" with {} columns", here.size(1)) : "");
    }
    if (!rows.is_cut()) {
        rows.ids.resize(here.size(0));
        std::iota(rows.ids.begin(), rows.ids.end(), 0);
    }
    const auto type = here.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    rows.plain = here;
    rows.values = here.detach().to(at::kCPU, type).contiguous();
    return rows;
}

RankGroup search_group(const at::Tensor& points, const at::Tensor& queries)
{
    for (const auto& tensor : {points, queries}) {
        if (!is_sharded(tensor)) continue;
        const auto spec = spec_of(tensor);
        const auto axis = spec->axis_of_dim(tensor.dim() == 3 ? 1 : 0);
        if (axis >= 0) return spec->device_mesh->group(axis);
    }
    return {};
}

void require_searchable(const NeighborRequest& request, const NeighborInput& points, const NeighborInput& queries)
{
    const auto dimensions = static_cast<int>(points.values.size(1));
    const auto fail = [&](const std::string& text) { throw InvalidInput("{}: {}", request.where, text); };
    if (queries.values.size(1) != dimensions || points.plain.scalar_type() != queries.plain.scalar_type()) {
        fail(fmt::format("points of {} dimensions and type {}, queries of {} and {}. Give both the same number of "
                         "dimensions and the same type.",
                         dimensions, c10::toString(points.plain.scalar_type()), queries.values.size(1),
                         c10::toString(queries.plain.scalar_type())));
    }
    if (points.plain.device() != queries.plain.device()) {
        fail("the points are on " + points.plain.device().str() + ", the queries on " + queries.plain.device().str() +
             ". Move one to the other.");
    }
    if (points.is_cut() && queries.is_cut() &&
        (points.device_mesh != queries.device_mesh || points.axis != queries.axis)) {
        fail("points and queries are cut among different ranks. Cut both along the same axis of one device mesh.");
    }
    if (request.is_knn && (request.k < 1 || request.k >= std::numeric_limits<std::int32_t>::max()))
        fail(fmt::format("k is {}; it must be 1 or more, and below 2147483647.", request.k));
    if (!request.is_knn && request.limits.empty()) fail("no radii. Pass one or more.");
    for (const auto& limit : request.limits) require_limit(request.where, limit);
    const auto& period = request.options.period;
    if (!period.empty() && static_cast<int>(period.size()) != dimensions) {
        fail(fmt::format("{} periods for {} dimensions. Pass one for each axis, 0 for an axis that is not periodic.",
                         period.size(), dimensions));
    }
    for (const auto length : period) {
        if (!(length >= 0) || !std::isfinite(length))
            fail("a period is negative or not finite. Pass a length, or 0 for an axis that is not periodic.");
    }
    if (request.options.order == NeighborOrder::Grid &&
        (request.is_knn || dimensions != 3 || !period.empty() || request.options.exclude_self)) {
        fail("NeighborOrder::Grid is for radius searches in 3 dimensions without periods and without exclude_self. Use "
             "NeighborOrder::Nearest.");
    }
    const auto require_valid = [&]<class T>(const char* what, std::span<const T> coordinates) {
        require_coordinates(request.where, what, coordinates, dimensions);
        if (request.options.order != NeighborOrder::Grid) return;
        for (const auto& limit : request.limits) require_grid_cells(coordinates, limit);
    };
    if (points.values.scalar_type() == at::kDouble) {
        require_valid("points", points.span<double>());
        require_valid("queries", queries.span<double>());
    } else {
        require_valid("points", points.span<float>());
        require_valid("queries", queries.span<float>());
    }
}

std::int64_t fingerprint(const NeighborRequest& request, const NeighborInput& points, const NeighborInput& queries)
{
    std::vector<double> values{static_cast<double>(request.k),
                               static_cast<double>(points.values.size(1)),
                               static_cast<double>(points.plain.scalar_type()),
                               static_cast<double>(points.axis),
                               static_cast<double>(queries.axis),
                               static_cast<double>(request.options.exclude_self),
                               static_cast<double>(request.options.order)};
    for (const auto& limit : request.limits) {
        values.push_back(limit.radius);
        values.push_back(static_cast<double>(limit.max_neighbors));
    }
    append(values, request.options.period);
    std::uint64_t hash = values.size();
    for (const auto value : values)
        hash = (hash ^ std::bit_cast<std::uint64_t>(value + 0.0)) * 0x9e3779b97f4a7c15u + (hash >> 29);
    return static_cast<std::int64_t>(hash);
}

}  // namespace meshard
