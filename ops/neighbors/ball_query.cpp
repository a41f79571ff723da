// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/ball_query.h"

#include "ops/neighbors/neighbor_request.h"
#include "ops/neighbors/point_clouds.h"
#include "ops/rows/cut_rows.h"
#include "ops/rows/row_moves.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <string>

namespace meshard {
namespace {

/// The layout of the result; null for plain tensors.
SpecPtr layout_of(const at::Tensor& points, const at::Tensor& queries)
{
    if (is_sharded(queries)) return spec_of(queries);
    return is_sharded(points) ? replicated_spec(spec_of(points)->device_mesh) : nullptr;
}

/// The slots that a list's entries fill in the results, which have K slots for each query.
at::Tensor filled_slots(const at::Tensor& offsets, std::int64_t num_entries, std::int64_t slots)
{
    const auto num_queries = offsets.size(0) - 1;
    const auto first = offsets.narrow(0, 0, num_queries), counts = offsets.diff();
    const auto shift = at::arange(num_queries, offsets.options()) * slots - first;
    return at::arange(num_entries, offsets.options()) + shift.repeat_interleave(counts);
}

/// Searches cloud by cloud: `fill(points of a cloud, neighbours within a radius, K)` returns the local results, which
/// are stacked by radius.
template <class Fill>
std::vector<at::Tensor> search_balls(const at::Tensor& points, const at::Tensor& queries,
                                     const std::vector<RadiusLimit>& limits, NeighborOrder order, const Fill& fill)
{
    std::vector<at::Tensor> point_clouds, query_clouds;
    std::string error;
    try {
        point_clouds = unbind_clouds("ball_query", "points", points);
        query_clouds = unbind_clouds("ball_query", "queries", queries);
    } catch (const InvalidInput& wrong) {
        error = wrong.what();
    }
    if (error.empty() && point_clouds.size() != query_clouds.size()) {
        error = fmt::format("ball_query: {} clouds of points and {} of queries. Pass the same number of both.",
                            point_clouds.size(), query_clouds.size());
    }
    for (const auto& limit : limits) {
        if (limit.max_neighbors == kAllNeighbors)
            error =
                "ball_query: a radius has no max_neighbors, which is the number of neighbours in a row of the result.";
    }
    // Makes the other ranks throw at the start of their search.
    if (!error.empty()) throw_together(error, search_group(points, queries));
    std::vector<std::vector<at::Tensor>> found(limits.size());  // indexed by radius, then by cloud
    for (std::size_t b = 0; b < point_clouds.size(); ++b) {
        const auto lists = radius_search(point_clouds[b].detach(), query_clouds[b].detach(), limits, {.order = order});
        for (std::size_t l = 0; l < limits.size(); ++l) {
            found[l].push_back(fill(point_clouds[b], lists[l], limits[l].max_neighbors));
        }
    }
    const auto layout = layout_of(points, queries);
    std::vector<at::Tensor> results;
    for (const auto& clouds : found) {
        const auto local = at::stack(clouds);
        results.push_back(layout ? from_local(local, layout) : local);
    }
    return results;
}

}  // namespace

std::vector<at::Tensor> ball_query(const at::Tensor& points, const at::Tensor& queries,
                                   const std::vector<RadiusLimit>& limits, NeighborOrder order)
{
    return search_balls(
        points, queries, limits, order, [](const at::Tensor& cloud, const Neighbors& list, std::int64_t slots) {
            const auto rows = gather_neighbors(cloud, list);
            const auto num_queries = list.offsets.size(0) - 1;
            return scatter_distinct_rows(rows, filled_slots(list.offsets, rows.size(0), slots), num_queries * slots)
                .view({num_queries, slots * rows.size(1)});
        });
}

std::vector<at::Tensor> ball_indices(const at::Tensor& points, const at::Tensor& queries,
                                     const std::vector<RadiusLimit>& limits, NeighborOrder order)
{
    return search_balls(points, queries, limits, order,
                        [](const at::Tensor&, const Neighbors& list, std::int64_t slots) {
                            const auto num_queries = list.offsets.size(0) - 1;
                            const auto ids = at::zeros({num_queries * slots}, list.ids.options());
                            return ids.index_copy(0, filled_slots(list.offsets, list.ids.size(0), slots), list.ids)
                                .view({num_queries, slots});
                        });
}

}  // namespace meshard
