// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include "ops/cut_rows.h"
#include "ops/ghost_exchange.h"
#include "ops/grid_search.h"
#include "ops/grid_walk.h"
#include "ops/neighbor_ghosts.h"
#include "ops/neighbor_request.h"
#include "ops/on_gpu.h"
#include "ops/row_moves.h"
#include "ops/tile_schedule.h"
#include "partition/error.h"
#include "sharding/merged_plan.h"
#include "sharding/redistribute.h"
#include "sharding/shard_tensor.h"
#include "sharding/with_backward.h"

namespace meshard {
namespace {

/// Gradients of what every rank holds, but only some queries of each rank use, are summed.
at::Tensor summed_gradient(const at::Tensor& whole, const RankGroup& group)
{
    if (group.size() == 1) return whole;
    return with_backward(whole.detach().alias(), whole, "SumOverQueriesBackward", [group](const at::Tensor& gradient) {
        auto sum = gradient.clone(at::MemoryFormat::Contiguous);
        group.all_reduce(sum);
        return sum;
    });
}

/// Owned rows and ghosts. Where every rank has all queries, each has the whole gradient of its own rows already.
at::Tensor table_of(const at::Tensor& rows, const std::shared_ptr<const ExchangePlan>& plan, const RankGroup& queries_group)
{
    if (!plan) return summed_gradient(rows, queries_group);
    if (queries_group.size() > 1 || plan->group().size() == 1) return with_ghosts(rows, plan);
    return at::cat({rows, ghost_rows(rows.detach(), plan)});
}

template <class Number>
at::Tensor tensor_on(at::Device device, const std::vector<Number>& numbers)
{
    return at::tensor(numbers, c10::CppTypeToScalarType<Number>::value).to(device);
}

/// Queries on LibTorch's threads, unless one of them asks.
SearchPieces on_threads()
{
    if (at::in_parallel_region()) return {};
    return {max_threads(), [](std::int64_t count, const std::function<void(std::int64_t)>& work) {
                run_on_threads(count, [&](std::int64_t begin, std::int64_t end, int) {
                    for (auto i = begin; i < end; ++i) work(i);
                });
            }};
}

template <class T>
std::vector<FoundNeighbors> found_on_cpu(const NeighborRequest& request, std::span<const T> points, int dimensions, std::span<const T> queries,
                                         const std::vector<std::int32_t>& excluded)
{
    std::vector<NeighborLists<T>> lists;
    if (request.options.order == NeighborOrder::Grid) {
        for (const auto& limit : request.limits) lists.push_back(neighbors_in_grid_order<T>(points, queries, limit));
    } else {
        const PointSearch<T> search(points, dimensions, request.options.period, on_threads());
        if (request.is_knn) lists.push_back(search.knn(queries, request.k, excluded));
        else lists = search.within(queries, request.limits, excluded);
    }
    std::vector<FoundNeighbors> found;
    for (const auto& list : lists) {
        auto places = at::empty({static_cast<std::int64_t>(list.ids.size())}, at::kLong);
        std::copy(list.ids.begin(), list.ids.end(), places.template mutable_data_ptr<std::int64_t>());
        found.push_back({at::tensor(list.offsets, at::kLong), places, at::tensor(list.distances, c10::CppTypeToScalarType<T>::value)});
    }
    return found;
}

template <class T>
std::vector<Neighbors> search_rows(const NeighborRequest& request, const NeighborInput& points, const NeighborInput& queries, const RankGroup& group)
{
    const auto width = static_cast<int>(points.values.size(1));
    const bool is_cut = points.is_cut() && group.size() > 1;
    const auto held = is_cut ? neighbor_candidates<T>(request, points, queries, group)
                             : std::make_shared<const NeighborCandidates<T>>(NeighborCandidates<T>{.ids = points.ids});
    const auto& candidates = *held;
    // Lives as long as what it was found with, so that the next search may find that.
    const auto plan = candidates.plan ? std::shared_ptr<const ExchangePlan>(held, candidates.plan.get()) : nullptr;
    const auto table = is_cut ? std::span<const T>(candidates.points) : points.span<T>();

    std::vector<std::int32_t> excluded;
    if (request.options.exclude_self) {
        for (const auto id : queries.ids) {
            const auto place = std::lower_bound(candidates.ids.begin(), candidates.ids.end(), id) - candidates.ids.begin();
            const bool is_here = place < static_cast<std::int64_t>(candidates.ids.size()) && candidates.ids[place] == id;
            excluded.push_back(is_here ? static_cast<std::int32_t>(place) : -1);
        }
    }
    const auto device = points.plain.device();
    std::vector<FoundNeighbors> found;
    if (device.is_cuda()) {
        const auto type = c10::CppTypeToScalarType<T>::value;
        const auto rows = (is_cut ? tensor_on(device, candidates.points).view({-1, width}) : points.plain.detach().to(type)).contiguous();
        const auto asked = queries.plain.detach().to(type).contiguous(), hidden = excluded.empty() ? at::Tensor() : tensor_on(device, excluded);
        on_gpu(rows, [&](const auto& executor) { found = GridSearch<T, std::decay_t<decltype(executor)>>(executor, rows, asked, hidden).answer(request); });
    } else {
        found = found_on_cpu<T>(request, table, width, queries.span<T>(), excluded);
    }
    const auto ids = points.is_cut() ? tensor_on(device, candidates.ids) : at::Tensor(), rows = is_cut ? tensor_on(device, candidates.rows) : at::Tensor();

    const bool differentiable = at::GradMode::is_enabled() && (points.plain.requires_grad() || queries.plain.requires_grad());
    const auto queries_group = queries.is_cut() ? group : RankGroup();
    at::Tensor rows_with_history;
    if (differentiable) rows_with_history = table_of(points.plain, plan, queries_group);
    std::vector<Neighbors> result;
    for (const auto& list : found) {
        Neighbors neighbors;
        neighbors.plan = plan;
        neighbors.queries_group = queries_group;
        neighbors.num_points = points.size();
        if (points.is_cut()) neighbors.points_layout = points.layout;
        neighbors.offsets = list.offsets;
        neighbors.ids = ids.defined() ? ids.index_select(0, list.places) : list.places;
        neighbors.rows = rows.defined() ? rows.index_select(0, list.places) : list.places;
        if (differentiable) {
            const auto query_rows = at::arange(queries.size(), list.offsets.options()).repeat_interleave(list.offsets.diff());
            auto gaps = gathered_rows(rows_with_history, neighbors.rows) - gathered_rows(queries.plain, query_rows);
            if (!request.options.period.empty()) {
                auto images = at::zeros_like(gaps);
                for (std::int64_t d = 0; d < width; ++d) {
                    const auto length = request.options.period[d];
                    if (length > 0) images.select(1, d).copy_(gaps.detach().select(1, d).div(length).round_().mul_(length));
                }
                gaps = gaps - images;
            }
            neighbors.distances = at::linalg_vector_norm(gaps, 2, at::IntArrayRef{1});
        } else {
            neighbors.distances = list.distances.to(points.plain.scalar_type());
        }
        result.push_back(std::move(neighbors));
    }
    return result;
}

const RankGroup& group_of(const at::Tensor& points, const at::Tensor& queries, RankGroup& alone)
{
    for (const auto& tensor : {points, queries}) {
        if (!is_sharded(tensor)) continue;
        const auto& spec = spec_of(tensor);
        for (std::size_t a = 0; a < spec->axes.size(); ++a) {
            if (spec->axes[a].is_shard()) return spec->device_mesh->group(static_cast<std::int64_t>(a));
        }
    }
    return alone;
}

std::vector<Neighbors> search_cloud(const NeighborRequest& request, const at::Tensor& points, const at::Tensor& queries, std::optional<std::int64_t> batch)
{
    RankGroup alone;
    const auto& group = group_of(points, queries, alone);
    NeighborInput point_rows, query_rows;
    std::string error;
    try {
        point_rows = neighbor_input(request.where, "points", points, batch);
        query_rows = neighbor_input(request.where, "queries", queries, batch);
        require_searchable(request, point_rows, query_rows);
    } catch (const InvalidInput& wrong) {
        error = wrong.what();
    }
    throw_together(error, group);
    const auto mine = fingerprint(request, point_rows, query_rows);
    for (const auto& rank : group.all_gather_integers(std::vector<std::int64_t>{mine})) {
        if (rank[0] != mine) error = std::string(request.where) + ": ranks pass different arguments. Call it with the same k, radii, options and types on every rank.";
    }
    throw_together(error, group);
    return point_rows.values.scalar_type() == at::kDouble ? search_rows<double>(request, point_rows, query_rows, group)
                                                          : search_rows<float>(request, point_rows, query_rows, group);
}

/// The lists of a batch's clouds end to end. Owned rows of all clouds come first, ghosts of all after them.
Neighbors joined(const std::vector<const Neighbors*>& clouds)
{
    Neighbors all;
    const auto& first = *clouds[0];
    all.queries_group = first.queries_group;
    all.points_layout = first.points_layout;
    all.num_points = first.num_points;
    all.num_batches = static_cast<std::int64_t>(clouds.size());
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
            const auto places = merged.ghost_places[b].to(own.device()) + all.num_batches * all.num_points;
            own = at::where(cloud.rows < all.num_points, own, places.index_select(0, (cloud.rows - all.num_points).clamp_min(0)));
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

std::vector<Neighbors> search(const NeighborRequest& request, const at::Tensor& points, const at::Tensor& queries)
{
    if (points.dim() != 3) return search_cloud(request, points, queries, std::nullopt);
    if (queries.dim() != 3 || queries.size(0) != points.size(0) || points.size(0) == 0) {
        throw InvalidInput(std::string(request.where) + ": points of " + std::to_string(points.size(0)) + " clouds and queries of " +
                           (queries.dim() == 3 ? std::to_string(queries.size(0)) : "no batch") + "; expected (B, N, D) and (B, M, D), B 1 or more.");
    }
    std::vector<std::vector<Neighbors>> clouds;
    for (std::int64_t b = 0; b < points.size(0); ++b) clouds.push_back(search_cloud(request, points, queries, b));
    std::vector<Neighbors> result;
    for (std::int64_t l = 0; l < request.num_lists(); ++l) {
        std::vector<const Neighbors*> lists;
        for (const auto& cloud : clouds) lists.push_back(&cloud[l]);
        result.push_back(joined(lists));
    }
    return result;
}

}  // namespace

Neighbors knn(const at::Tensor& points, const at::Tensor& queries, std::int64_t k, const NeighborOptions& options)
{
    return std::move(search({"knn", true, k, {}, options}, points, queries).front());
}

Neighbors radius_search(const at::Tensor& points, const at::Tensor& queries, double radius, std::int64_t max_neighbors, const NeighborOptions& options)
{
    return std::move(radius_search(points, queries, {RadiusLimit{radius, max_neighbors}}, options).front());
}

std::vector<Neighbors> radius_search(const at::Tensor& points, const at::Tensor& queries, const std::vector<RadiusLimit>& limits,
                                     const NeighborOptions& options)
{
    return search({"radius_search", false, 0, limits, options}, points, queries);
}

at::Tensor neighbor_rows(const at::Tensor& features, const Neighbors& neighbors)
{
    if (is_sharded(features)) reduce_partials(features);
    const bool is_cut = is_sharded(features) && spec_of(features)->has_shard();
    if (is_cut != static_cast<bool>(neighbors.points_layout) || (is_cut && !(*spec_of(features) == *neighbors.points_layout))) {
        throw InvalidInput("neighbor_rows: the features lie as " + (is_cut ? to_string(*spec_of(features)) : std::string("a whole")) + ", the points did as " +
                           (neighbors.points_layout ? to_string(*neighbors.points_layout) : std::string("a whole")) + ". Redistribute the features, or search again.");
    }
    auto rows = is_sharded(features) ? to_local(features) : features;
    if (neighbors.num_batches > 0) rows = rows.flatten(0, 1);
    const auto expected = std::max<std::int64_t>(1, neighbors.num_batches) * neighbors.num_points;
    if (rows.dim() < 1 || rows.size(0) != expected) {
        throw InvalidInput("neighbor_rows: features of " + std::to_string(rows.dim() < 1 ? 0 : rows.size(0)) + " rows, the search was among " +
                           std::to_string(expected) + " points. Pass one row a point.");
    }
    const auto& plan = neighbors.plan;
    if (!plan || plan->group().size() == 1 || neighbors.queries_group.size() == 1) {
        return gathered_rows(table_of(rows, plan, neighbors.queries_group), neighbors.rows);
    }
    // Own rows are copied while ghosts are on their way.
    auto pending = begin_ghost_exchange({rows}, plan);
    const auto places = neighbors.rows.to(rows.device());
    const auto is_ghost = places >= plan->num_owned();
    const auto ghost_entries = is_ghost.nonzero().view({-1}), own_entries = is_ghost.logical_not().nonzero().view({-1});
    auto shape = rows.sizes().vec();
    shape[0] = places.size(0);
    auto found = at::empty(shape, rows.options().requires_grad(false));
    found.index_copy_(0, own_entries, gathered_rows(rows, places.index_select(0, own_entries)));
    const auto ghosts = pending.end()[0];
    return found.index_copy_(0, ghost_entries, gathered_rows(ghosts, places.index_select(0, ghost_entries) - plan->num_owned()));
}

}  // namespace meshard
