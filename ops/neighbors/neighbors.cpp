// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/neighbors.h"

#include "ops/neighbors/grid_search.h"
#include "ops/neighbors/neighbor_ghosts.h"
#include "ops/neighbors/neighbor_request.h"
#include "ops/neighbors/neighbor_rows.h"
#include "ops/rows/cut_rows.h"
#include "ops/rows/on_gpu.h"
#include "ops/rows/row_moves.h"
#include "ops/rows/tile_schedule.h"
#include "ops/search/grid_walk.h"
#include "partition/error.h"
#include "sharding/exchange/merged_plan.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

namespace meshard {
namespace {

template <class Number>
at::Tensor tensor_on(at::Device device, const std::vector<Number>& numbers)
{
    return at::tensor(numbers, c10::CppTypeToScalarType<Number>::value).to(device);
}

/// Runs queries on LibTorch's threads, unless it is called from one of them.
SearchPieces on_threads()
{
    if (at::in_parallel_region()) return {};
    return {max_threads(), [](std::int64_t count, const std::function<void(std::int64_t)>& work) {
                run_on_torch_threads(count, [&](std::int64_t begin, std::int64_t end, int) {
                    for (auto i = begin; i < end; ++i) work(i);
                });
            }};
}

template <class T>
std::vector<FoundNeighbors> found_on_cpu(const NeighborRequest& request, std::span<const T> points, int dimensions,
                                         std::span<const T> queries, const std::vector<std::int32_t>& excluded)
{
    std::vector<NeighborLists<T>> lists;
    if (request.options.order == NeighborOrder::Grid) {
        for (const auto& limit : request.limits) lists.push_back(neighbors_in_grid_order<T>(points, queries, limit));
    } else {
        const PointSearch<T> search(points, dimensions, request.options.period, on_threads());
        if (request.is_knn)
            lists.push_back(search.knn(queries, request.k, excluded));
        else
            lists = search.within(queries, request.limits, excluded);
    }
    std::vector<FoundNeighbors> found;
    for (const auto& list : lists) {
        auto rows = at::empty({std::ssize(list.ids)}, at::kLong);
        std::ranges::copy(list.ids, rows.template mutable_data_ptr<std::int64_t>());
        found.push_back({at::tensor(list.offsets, at::kLong), rows,
                         at::tensor(list.distances, c10::CppTypeToScalarType<T>::value)});
    }
    return found;
}

bool is_differentiable(const NeighborInput& points, const NeighborInput& queries)
{
    return at::GradMode::is_enabled() && (points.plain.requires_grad() || queries.plain.requires_grad());
}

template <class T>
std::vector<Neighbors> search_rows(const NeighborRequest& request, const NeighborInput& points,
                                   const NeighborInput& queries, const RankGroup& group)
{
    const auto width = static_cast<int>(points.values.size(1));
    const bool is_cut = points.is_cut() && group.size() > 1;
    const auto held = is_cut ? neighbor_candidates<T>(request, points, queries, group)
                             : std::make_shared<const NeighborCandidates<T>>(NeighborCandidates<T>{.ids = points.ids});
    const auto& candidates = *held;
    // The plan keeps the candidates alive, so that the next search finds them in the cache.
    const auto plan = candidates.plan ? std::shared_ptr<const ExchangePlan>(held, candidates.plan.get()) : nullptr;
    const auto table = is_cut ? std::span<const T>(candidates.points) : points.span<T>();

    std::vector<std::int32_t> excluded;
    if (request.options.exclude_self) {
        for (const auto id : queries.ids) {
            const auto found = std::ranges::lower_bound(candidates.ids, id);
            const bool is_here = found != candidates.ids.end() && *found == id;
            excluded.push_back(is_here ? static_cast<std::int32_t>(found - candidates.ids.begin()) : -1);
        }
    }
    const auto device = points.plain.device();
    std::vector<FoundNeighbors> found;
    if (!device.is_cpu()) {
        const auto type = c10::CppTypeToScalarType<T>::value;
        const auto rows =
            (is_cut ? tensor_on(device, candidates.points).view({-1, width}) : points.plain.detach().to(type))
                .contiguous();
        const auto asked = queries.plain.detach().to(type).contiguous(),
                   hidden = excluded.empty() ? at::Tensor() : tensor_on(device, excluded);
        on_gpu(rows, [&](const auto& executor) {
            found = GridSearch<T, std::decay_t<decltype(executor)>>(executor, rows, asked, hidden).answer(request);
        });
    } else {
        found = found_on_cpu<T>(request, table, width, queries.span<T>(), excluded);
    }
    const auto ids = points.is_cut() ? tensor_on(device, candidates.ids) : at::Tensor(),
               rows = is_cut ? tensor_on(device, candidates.rows) : at::Tensor();

    const bool differentiable = is_differentiable(points, queries);
    const auto queries_group = queries.is_cut() ? group : RankGroup();
    at::Tensor rows_with_history;
    if (differentiable) rows_with_history = rows_with_ghosts(points.plain, plan, queries_group);
    std::vector<Neighbors> result;
    for (const auto& list : found) {
        Neighbors neighbors;
        neighbors.plan = plan;
        neighbors.queries_group = queries_group;
        neighbors.num_points = points.size();
        if (points.is_cut()) neighbors.points_layout = points.layout;
        neighbors.offsets = list.offsets;
        neighbors.ids = ids.defined() ? ids.index_select(0, list.rows) : list.rows;
        neighbors.rows = rows.defined() ? rows.index_select(0, list.rows) : list.rows;
        if (differentiable) {
            const auto counts = list.offsets.narrow(0, 1, queries.size()) - list.offsets.narrow(0, 0, queries.size());
            const auto query_rows = at::arange(queries.size(), list.offsets.options()).repeat_interleave(counts);
            // Differences of narrow types are computed in a wide one, as in the search.
            const auto type = c10::CppTypeToScalarType<T>::value;
            auto gaps =
                take_rows(rows_with_history, neighbors.rows).to(type) - take_rows(queries.plain, query_rows).to(type);
            if (!request.options.period.empty()) {
                auto images = at::zeros_like(gaps);
                for (std::int64_t d = 0; d < width; ++d) {
                    const auto length = request.options.period[d];
                    if (length > 0)
                        images.select(1, d).copy_(gaps.detach().select(1, d).div(length).round_().mul_(length));
                }
                gaps = gaps - images;
            }
            neighbors.distances = at::linalg_vector_norm(gaps, 2, at::IntArrayRef{1}).to(points.plain.scalar_type());
        } else {
            neighbors.distances = list.distances.to(points.plain.scalar_type());
        }
        result.push_back(std::move(neighbors));
    }
    return result;
}

/// @param num_left  number of clouds of a batch that are searched after this one; -1 without a batch
std::vector<Neighbors> search_cloud(const NeighborRequest& request, const at::Tensor& points, const at::Tensor& queries,
                                    std::optional<std::int64_t> batch, std::int64_t num_left)
{
    const auto group = search_group(points, queries);
    NeighborInput point_rows, query_rows;
    std::string error;
    try {
        point_rows = neighbor_input(request.where, "points", points, batch);
        query_rows = neighbor_input(request.where, "queries", queries, batch);
        if (request.options.order == NeighborOrder::Grid) {  // the walk's distances are single precision
            for (auto* rows : {&point_rows, &query_rows}) rows->values = rows->values.to(at::kFloat);
        }
        require_searchable(request, point_rows, query_rows);
    } catch (const InvalidInput& wrong) {
        error = wrong.what();
    }
    throw_together(error, group);
    // `num_left` and differentiability decide which messages follow, not which points are received.
    const auto mine =
        fingerprint(request, point_rows, query_rows) ^ (2 * num_left + is_differentiable(point_rows, query_rows));
    for (const auto of_rank : group.all_gather_integers(mine)) {
        if (of_rank == mine) continue;
        error = std::string(request.where) +
                ": ranks pass different arguments. Call it with the same k, radii, options, types and batches on every "
                "rank, " +
                "all or none of which need gradients.";
    }
    throw_together(error, group);
    return point_rows.values.scalar_type() == at::kDouble ? search_rows<double>(request, point_rows, query_rows, group)
                                                          : search_rows<float>(request, point_rows, query_rows, group);
}

/// Concatenates the neighbours of a batch's clouds. Rows number the owned rows of all clouds first, then the ghosts of
/// all clouds.
Neighbors joined(const std::vector<const Neighbors*>& clouds)
{
    Neighbors all;
    const auto& first = *clouds[0];
    all.queries_group = first.queries_group;
    all.points_layout = first.points_layout;
    all.num_points = first.num_points;
    all.num_batches = std::ssize(clouds);
    all.is_batch = true;
    MergedPlan merged;
    if (first.plan) {
        std::vector<std::shared_ptr<const ExchangePlan>> plans;
        for (const auto* cloud : clouds) plans.push_back(cloud->plan);
        merged = stack_plans(plans);
        all.plan = merged.plan;
    }
    std::vector<at::Tensor> offsets{first.offsets.narrow(0, 0, 1)}, ids, rows, distances;
    std::int64_t entries = 0;
    for (std::size_t b = 0; b < clouds.size(); ++b) {
        const auto& cloud = *clouds[b];
        offsets.push_back(cloud.offsets.narrow(0, 1, cloud.offsets.size(0) - 1) + entries);
        ids.push_back(cloud.ids);
        distances.push_back(cloud.distances);
        auto own = cloud.rows + static_cast<std::int64_t>(b) * all.num_points;
        if (cloud.plan && cloud.plan->num_ghosts() > 0) {
            const auto ghost_rows = merged.ghost_places[b].to(own.device()) + all.num_batches * all.num_points;
            own = at::where(cloud.rows < all.num_points, own,
                            ghost_rows.index_select(0, (cloud.rows - all.num_points).clamp_min(0)));
        }
        rows.push_back(own);
        entries += cloud.ids.numel();
    }
    all.offsets = at::cat(offsets);
    all.ids = at::cat(ids);
    all.rows = at::cat(rows);
    all.distances = at::cat(distances);
    return all;
}

/// The result on a rank that has no clouds of a batch.
Neighbors no_clouds(const at::Tensor& points, const at::Tensor& queries)
{
    Neighbors none;
    const auto own = to_local(points);  // (0, N, D)
    none.offsets = at::zeros({1}, own.options().dtype(at::kLong).requires_grad(false));
    none.ids = none.rows = at::empty({0}, none.offsets.options());
    none.distances = at::cat({own.flatten(), to_local(queries).to(own.scalar_type()).flatten()});  // keeps the history
    none.num_points = own.size(1);
    none.is_batch = true;
    return none;
}

/// The groups of ranks over which the clouds of a batch are distributed.
std::vector<RankGroup> groups_of_batch(const at::Tensor& points, const at::Tensor& queries)
{
    std::vector<RankGroup> groups;
    for (const auto& tensor : {points, queries}) {
        if (!is_sharded(tensor) || tensor.dim() != 3) continue;
        const auto& spec = spec_of(tensor);
        for (std::size_t a = 0; a < spec->axes.size(); ++a) {
            if (spec->axes[a].is_shard() && spec->axes[a].placement.dim == 0)
                groups.push_back(spec->device_mesh->group(static_cast<std::int64_t>(a)));
        }
    }
    return groups;
}

/// Searches this rank's clouds of a batch, one after the other.
std::vector<std::vector<Neighbors>> search_batch(const NeighborRequest& request, const at::Tensor& points,
                                                 const at::Tensor& queries)
{
    const auto clouds_here = [](const at::Tensor& tensor) {
        return is_sharded(tensor) ? local_of(tensor).size(0) : tensor.size(0);
    };
    const auto num_points = clouds_here(points), num_queries = queries.dim() == 3 ? clouds_here(queries) : -1;
    // The searches share errors only among ranks with rows of the same cloud; here ranks with different clouds share
    // theirs.
    std::string error;
    if (num_queries != num_points || points.size(0) == 0) {
        error = fmt::format("{}: points of {} clouds and queries of {}; expected (B, N, D) and (B, M, D) of the same "
                            "clouds, B 1 or more.",
                            request.where, num_points, num_queries >= 0 ? std::to_string(num_queries) : "no batch");
    }
    const auto groups = groups_of_batch(points, queries);
    for (std::int64_t b = 0; b < num_points && error.empty() && !groups.empty(); ++b) {
        try {
            require_searchable(request, neighbor_input(request.where, "points", points, b),
                               neighbor_input(request.where, "queries", queries, b));
        } catch (const InvalidInput& wrong) {
            error = wrong.what();
        }
    }
    for (const auto& group : groups) {
        try {
            throw_together(error, group);
        } catch (const InvalidInput& wrong) {
            error = wrong.what();
        }
    }
    // Next, errors are shared among ranks that hold other rows of the same clouds.
    if (!error.empty() || !groups.empty()) throw_together(error, search_group(points, queries));
    std::vector<std::vector<Neighbors>> clouds;
    for (std::int64_t b = 0; b < num_points; ++b)
        clouds.push_back(search_cloud(request, points, queries, b, num_points - 1 - b));
    return clouds;
}

std::vector<Neighbors> search(const NeighborRequest& request, const at::Tensor& points, const at::Tensor& queries)
{
    if (points.dim() != 3) return search_cloud(request, points, queries, std::nullopt, -1);
    const auto clouds = search_batch(request, points, queries);
    std::vector<Neighbors> result;
    for (std::int64_t l = 0; l < request.num_lists(); ++l) {
        std::vector<const Neighbors*> lists;
        for (const auto& cloud : clouds) lists.push_back(&cloud[l]);
        result.push_back(lists.empty() ? no_clouds(points, queries) : joined(lists));
        if (is_sharded(points) && spec_of(points)->has_shard()) result.back().points_layout = spec_of(points);
    }
    return result;
}

}  // namespace

Neighbors knn(const at::Tensor& points, const at::Tensor& queries, std::int64_t k, const NeighborOptions& options)
{
    return std::move(search({"knn", true, k, {}, options}, points, queries).front());
}

Neighbors radius_search(const at::Tensor& points, const at::Tensor& queries, double radius, std::int64_t max_neighbors,
                        const NeighborOptions& options)
{
    return std::move(radius_search(points, queries, {RadiusLimit{radius, max_neighbors}}, options).front());
}

std::vector<Neighbors> radius_search(const at::Tensor& points, const at::Tensor& queries,
                                     const std::vector<RadiusLimit>& limits, const NeighborOptions& options)
{
    return search({"radius_search", false, 0, limits, options}, points, queries);
}

}  // namespace meshard
