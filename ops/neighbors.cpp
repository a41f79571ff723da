// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/ghost_exchange.h"
#include "ops/grid_walk.h"
#include "ops/point_boxes.h"
#include "partition/error.h"
#include "sharding/redistribute.h"
#include "sharding/shard_tensor.h"
#include "sharding/with_backward.h"

namespace meshard {
namespace {

constexpr int kBoxes = 64;   // that a rank publishes
constexpr std::int64_t kEverything = -1;

/// What is asked: the k nearest, or radii.
struct Request {
    const char* where;
    bool is_knn = false;
    std::int64_t k = 0;
    std::vector<RadiusLimit> limits;
    NeighborOptions options;

    std::int64_t num_lists() const { return is_knn ? 1 : static_cast<std::int64_t>(limits.size()); }
    double largest_radius() const
    {
        double radius = 0;
        for (const auto& limit : limits) radius = std::max(radius, limit.radius);
        return radius;
    }
};

/// This rank's rows of points or queries.
struct Rows {
    at::Tensor plain;                    ///< (n, D), with its history
    at::Tensor values;                   ///< the same on the CPU, contiguous, without
    std::vector<std::int64_t> ids;
    std::shared_ptr<const DeviceMesh> device_mesh;
    SpecPtr layout;
    std::int64_t axis = -1;              ///< that cuts them, or -1

    bool is_cut() const { return axis >= 0; }
    std::int64_t size() const { return values.size(0); }
    template <class T>
    std::span<const T> span() const { return {values.const_data_ptr<T>(), static_cast<std::size_t>(values.numel())}; }
};

Rows rows_of(const char* where, const char* what, const at::Tensor& tensor)
{
    Rows rows;
    auto here = tensor;
    if (is_sharded(tensor)) {
        reduce_partials(tensor);
        const auto spec = spec_of(tensor);
        rows.device_mesh = spec->device_mesh;
        rows.layout = spec;
        for (std::size_t a = 0; a < spec->axes.size(); ++a) {
            const auto& layout = spec->axes[a];
            if (layout.is_replicate()) continue;
            if (layout.placement.dim != 0 || layout.blocks != 1 || rows.is_cut()) {
                throw InvalidInput(std::string(where) + ": the " + what + " lie as " + to_string(*spec) + ", expected a cut along the rows of one cloud. Search the clouds of a batch one by one.");
            }
            rows.axis = static_cast<std::int64_t>(a);
        }
        here = to_local(tensor);
        if (rows.is_cut()) {
            const auto& map = spec->index_map;
            if (map && map->num_owned == here.size(0)) {
                rows.ids.assign(map->owned().begin(), map->owned().end());
            } else {
                rows.ids.resize(here.size(0));
                std::iota(rows.ids.begin(), rows.ids.end(), spec->axes[rows.axis].offset(spec->device_mesh->coordinate(rows.axis)));
            }
        }
    }
    if (here.dim() != 2 || !here.is_floating_point() || here.size(1) < 1 || here.size(1) > 3) {
        throw InvalidInput(std::string(where) + ": the " + what + " are a tensor of " + std::to_string(here.dim()) + " dimensions and type " +
                           c10::toString(here.scalar_type()) + (here.dim() == 2 ? " with " + std::to_string(here.size(1)) + " columns" : std::string()) +
                           "; expected (n, 1), (n, 2) or (n, 3) of a floating type.");
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

/// All ranks throw if one has found something wrong: what the first of them found.
void throw_together(const std::string& error, const RankGroup& group)
{
    const auto lengths = group.all_gather_integers(std::vector<std::int64_t>{static_cast<std::int64_t>(error.size())});
    for (int r = 0; r < static_cast<int>(lengths.size()); ++r) {
        if (lengths[r][0] == 0) continue;
        auto text = at::zeros({lengths[r][0]}, at::kByte);
        if (group.rank() == r) std::copy(error.begin(), error.end(), text.mutable_data_ptr<std::uint8_t>());
        group.broadcast(text, r);
        std::string message(reinterpret_cast<const char*>(text.const_data_ptr<std::uint8_t>()), lengths[r][0]);
        throw InvalidInput(group.size() == 1 ? message : message + " (Found by rank " + std::to_string(r) + ".)");
    }
}

std::int64_t fingerprint(const Request& request, const Rows& points, const Rows& queries)
{
    std::vector<double> values{static_cast<double>(request.k), static_cast<double>(points.values.size(1)), static_cast<double>(points.values.scalar_type()),
                               static_cast<double>(points.axis), static_cast<double>(queries.axis), static_cast<double>(request.options.exclude_self),
                               static_cast<double>(request.options.order)};
    for (const auto& limit : request.limits) {
        values.push_back(limit.radius);
        values.push_back(static_cast<double>(limit.max_neighbors));
    }
    values.insert(values.end(), request.options.period.begin(), request.options.period.end());
    std::uint64_t hash = values.size();
    for (const auto value : values) hash = (hash ^ std::bit_cast<std::uint64_t>(value + 0.0)) * 0x9e3779b97f4a7c15u + (hash >> 29);
    return static_cast<std::int64_t>(hash);
}

void check(const Request& request, const Rows& points, const Rows& queries)
{
    const auto dimensions = static_cast<int>(points.values.size(1));
    const auto fail = [&](const std::string& text) { throw InvalidInput(std::string(request.where) + ": " + text); };
    if (queries.values.size(1) != dimensions || points.plain.scalar_type() != queries.plain.scalar_type()) {
        fail("points of " + std::to_string(dimensions) + " dimensions and type " + c10::toString(points.plain.scalar_type()) + ", queries of " +
             std::to_string(queries.values.size(1)) + " and " + c10::toString(queries.plain.scalar_type()) + ". Make them alike.");
    }
    if (points.is_cut() && queries.is_cut() && (points.device_mesh != queries.device_mesh || points.axis != queries.axis)) {
        fail("points and queries are cut among different ranks. Cut both along the same axis of one device mesh.");
    }
    if (request.is_knn && request.k < 1) fail("k is " + std::to_string(request.k) + "; it must be 1 or more.");
    if (!request.is_knn && request.limits.empty()) fail("no radii. Pass one or more.");
    for (const auto& limit : request.limits) require_limit(request.where, limit);
    const auto& period = request.options.period;
    if (!period.empty() && static_cast<int>(period.size()) != dimensions) {
        fail(std::to_string(period.size()) + " periods for " + std::to_string(dimensions) + " dimensions. Pass one an axis, 0 for an open one.");
    }
    for (const auto length : period) {
        if (!(length >= 0) || !std::isfinite(length)) fail("a period is negative or not finite. Pass a length, or 0 for an open axis.");
    }
    if (request.options.order == NeighborOrder::Grid && (request.is_knn || dimensions != 3 || !period.empty() || request.options.exclude_self)) {
        fail("the grid's order is for radius searches in 3 open dimensions that leave nothing out. Use NeighborOrder::Nearest.");
    }
    if (points.values.scalar_type() == at::kDouble) {
        require_coordinates(request.where, "points", points.span<double>(), dimensions);
        require_coordinates(request.where, "queries", queries.span<double>(), dimensions);
    } else {
        require_coordinates(request.where, "points", points.span<float>(), dimensions);
        require_coordinates(request.where, "queries", queries.span<float>(), dimensions);
    }
}

std::vector<std::int64_t> exchanged(const std::vector<std::int64_t>& send, const RankGroup& group)
{
    std::vector<std::int64_t> receive;
    for (const auto& rank : group.all_gather_integers(send)) receive.push_back(rank[group.rank()]);
    return receive;
}

std::vector<std::int64_t> without_flags(std::vector<std::int64_t> counts)
{
    for (auto& count : counts) count = std::max<std::int64_t>(0, count);
    return counts;
}

template <class T>
at::Tensor tensor_of(const std::vector<T>& values, std::int64_t width)
{
    auto tensor = at::empty({static_cast<std::int64_t>(values.size()) / width, width}, c10::CppTypeToScalarType<T>::value);
    std::copy(values.begin(), values.end(), tensor.template mutable_data_ptr<T>());
    return tensor;
}

template <class T>
std::span<const T> values_of(const at::Tensor& tensor)
{
    return {tensor.const_data_ptr<T>(), static_cast<std::size_t>(tensor.numel())};
}

/// The boxes of all ranks, one list a rank.
std::vector<std::vector<PointBox>> published_boxes(const std::vector<PointBox>& mine, const RankGroup& group)
{
    std::vector<double> numbers;
    for (const auto& box : mine) {
        numbers.insert(numbers.end(), box.low.begin(), box.low.end());
        numbers.insert(numbers.end(), box.high.begin(), box.high.end());
        numbers.push_back(static_cast<double>(box.num_points));
    }
    std::vector<std::int64_t> counts;
    for (const auto& rank : group.all_gather_integers(std::vector<std::int64_t>{static_cast<std::int64_t>(mine.size())})) counts.push_back(rank[0]);
    const auto all = group.all_gather_rows(tensor_of(numbers, 7), counts);
    const auto* at = all.const_data_ptr<double>();
    std::vector<std::vector<PointBox>> boxes(counts.size());
    for (std::size_t r = 0; r < counts.size(); ++r) {
        for (std::int64_t i = 0; i < counts[r]; ++i, at += 7) {
            boxes[r].push_back({{at[0], at[1], at[2]}, {at[3], at[4], at[5]}, static_cast<std::int64_t>(at[6])});
        }
    }
    return boxes;
}

PointBox hull(const std::vector<PointBox>& boxes)
{
    auto all = boxes.front();
    for (const auto& box : boxes) {
        for (int d = 0; d < 3; ++d) {
            all.low[d] = std::min(all.low[d], box.low[d]);
            all.high[d] = std::max(all.high[d], box.high[d]);
        }
    }
    return all;
}

/// A squared distance within which at least k points lie for certain: of boxes that end there, nearest ends first.
double certain_bound(const std::vector<std::vector<PointBox>>& boxes, const std::array<double, 3>& x, std::int64_t k, std::span<const double> period)
{
    std::vector<std::pair<double, std::int64_t>> ends;
    for (const auto& rank : boxes) {
        for (const auto& box : rank) ends.emplace_back(distance_range(box, x, period).most, box.num_points);
    }
    std::sort(ends.begin(), ends.end());
    std::int64_t count = 0;
    for (const auto& [most, num_points] : ends) {
        if ((count += num_points) >= k) return most;
    }
    return std::numeric_limits<double>::infinity();
}

/// What a search on cut points works on: own points and ghosts, ordered by global id.
template <class T>
struct Candidates {
    std::shared_ptr<const ExchangePlan> plan;
    std::vector<T> points;
    std::vector<std::int64_t> ids, rows;   ///< of each: global id, and row among owned and ghosts
};

/// Places of `ids` in ascending order.
std::vector<std::int64_t> order_of(const std::vector<std::int64_t>& ids)
{
    std::vector<std::int64_t> order(ids.size());
    std::iota(order.begin(), order.end(), 0);
    if (!std::is_sorted(ids.begin(), ids.end())) std::sort(order.begin(), order.end(), [&](auto a, auto b) { return ids[a] < ids[b]; });
    return order;
}

template <class T>
std::vector<T> picked(std::span<const T> rows, const std::vector<std::int64_t>& order, std::size_t width)
{
    std::vector<T> result(order.size() * width);
    for (std::size_t i = 0; i < order.size(); ++i) std::copy_n(rows.begin() + order[i] * width, width, result.begin() + i * width);
    return result;
}

/// Brings the points of other ranks that some query of this rank needs.
template <class T>
Candidates<T> candidates_for(const Request& request, const Rows& points, const Rows& queries, const RankGroup& group)
{
    const auto dimensions = static_cast<std::size_t>(points.values.size(1));
    const int width = static_cast<int>(dimensions);
    const auto& period = request.options.period;
    const auto order = order_of(points.ids);
    const auto own = picked(points.span<T>(), order, dimensions);     // by ascending id
    const double slack = 1 + 16 * static_cast<double>(std::numeric_limits<T>::epsilon());
    const auto wanted = request.k + (request.options.exclude_self ? 1 : 0);
    std::optional<PointSearch<T>> search;
    if (request.is_knn) search.emplace(own, width, period);

    const auto boxes = published_boxes(point_boxes<T>(own, width, kBoxes), group);
    std::vector<std::optional<PointBox>> hulls;
    std::vector<std::int64_t> held;   // points of each rank
    for (const auto& rank : boxes) {
        hulls.push_back(rank.empty() ? std::nullopt : std::optional(hull(rank)));
        held.push_back(0);
        for (const auto& box : rank) held.back() += box.num_points;
    }

    // How far each query looks, and whom it asks.
    const auto rows = queries.span<T>();
    const auto num_queries = static_cast<std::size_t>(queries.size());
    std::vector<double> bounds(num_queries, 0);
    if (request.is_knn) {
        const auto near = search->knn(rows, wanted);
        for (std::size_t i = 0; i < num_queries; ++i) {
            const bool enough = near.offsets[i + 1] - near.offsets[i] == wanted;
            const double farthest = enough ? static_cast<double>(near.distances[near.offsets[i + 1] - 1]) : 0.0;
            bounds[i] = enough ? farthest * farthest * slack : std::numeric_limits<double>::infinity();
        }
    } else {
        const auto radius = static_cast<double>(static_cast<T>(request.largest_radius()));
        bounds.assign(num_queries, radius * radius * slack);
    }
    std::vector<std::vector<T>> asking(group.size());
    for (std::size_t i = 0; i < num_queries; ++i) {
        std::array<double, 3> x{};
        for (std::size_t d = 0; d < dimensions; ++d) x[d] = static_cast<double>(rows[i * dimensions + d]);
        const auto reaches = [&](int r) {
            const auto reached = [&](const PointBox& box) { return distance_range(box, x, period).least <= bounds[i] * slack; };
            return r != group.rank() && hulls[r] && reached(*hulls[r]) && std::any_of(boxes[r].begin(), boxes[r].end(), reached);
        };
        bool is_certain = !request.is_knn;
        for (int r = 0; r < group.size(); ++r) {
            if (!reaches(r)) continue;
            if (!is_certain) {
                bounds[i] = std::min(bounds[i], certain_bound(boxes, x, wanted, period) * slack);
                is_certain = true;
                if (!reaches(r)) continue;
            }
            asking[r].insert(asking[r].end(), rows.begin() + i * dimensions, rows.begin() + (i + 1) * dimensions);
            if (request.is_knn) asking[r].push_back(static_cast<T>(std::min(bounds[i] * slack, 1e30)));
        }
    }

    // More questions than the other has points: then all its points are the shorter answer.
    const auto question_width = dimensions + (request.is_knn ? 1 : 0);
    std::vector<std::int64_t> send(group.size());
    std::vector<T> questions;
    for (int r = 0; r < group.size(); ++r) {
        send[r] = static_cast<std::int64_t>(asking[r].size() / question_width);
        if (send[r] > held[r]) send[r] = kEverything;
        if (send[r] > 0) questions.insert(questions.end(), asking[r].begin(), asking[r].end());
    }
    const auto receive = exchanged(send, group);
    const auto asked = group.all_to_all_rows(tensor_of(questions, static_cast<std::int64_t>(question_width)), without_flags(send), without_flags(receive));

    // Which own points each rank needs, each once.
    std::vector<std::int64_t> answer_counts(group.size(), 0), answers;
    const auto* from = asked.template const_data_ptr<T>();
    for (int r = 0; r < group.size(); ++r) {
        const auto count = static_cast<std::size_t>(std::max<std::int64_t>(0, receive[r]));
        std::vector<T> their_queries, their_bounds;
        for (std::size_t i = 0; i < count; ++i, from += question_width) {
            their_queries.insert(their_queries.end(), from, from + dimensions);
            if (request.is_knn) their_bounds.push_back(from[dimensions]);
        }
        std::vector<char> is_needed(order.size(), receive[r] == kEverything);
        if (count > 0 && request.is_knn) {
            for (const auto id : search->knn(their_queries, wanted, {}, their_bounds).ids) is_needed[id] = 1;
        } else if (count > 0) {
            // One query within the radius is enough, so the points ask for their nearest.
            const RadiusLimit limit{request.largest_radius(), 1};
            const auto near = PointSearch<T>(their_queries, width, period).within(own, {&limit, 1});
            for (std::size_t i = 0; i < order.size(); ++i) is_needed[i] = near[0].offsets[i + 1] > near[0].offsets[i];
        }
        for (std::size_t i = 0; i < order.size(); ++i) {
            if (!is_needed[i]) continue;
            answers.push_back(order[i]);
            ++answer_counts[r];
        }
    }
    const auto ghost_counts = exchanged(answer_counts, group);
    const std::span<const std::int64_t> own_ids = points.ids;
    const auto ghost_points = group.all_to_all_rows(tensor_of(picked(points.span<T>(), answers, dimensions), width), answer_counts, ghost_counts);
    const auto ghost_ids = group.all_to_all_rows(tensor_of(picked(own_ids, answers, 1), 1), answer_counts, ghost_counts);

    Candidates<T> candidates;
    candidates.plan = std::make_shared<const ExchangePlan>(group, points.size(), std::move(answers), std::move(answer_counts), ghost_counts);
    std::vector<std::int64_t> all_ids = points.ids;
    const auto more = values_of<std::int64_t>(ghost_ids);
    all_ids.insert(all_ids.end(), more.begin(), more.end());
    std::vector<T> all_points(points.span<T>().begin(), points.span<T>().end());
    const auto more_points = values_of<T>(ghost_points);
    all_points.insert(all_points.end(), more_points.begin(), more_points.end());
    candidates.rows = order_of(all_ids);
    candidates.points = picked<T>(all_points, candidates.rows, dimensions);
    candidates.ids = picked<std::int64_t>(all_ids, candidates.rows, 1);
    return candidates;
}

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

template <class T>
std::vector<Neighbors> search_rows(const Request& request, const Rows& points, const Rows& queries, const RankGroup& group)
{
    const auto width = static_cast<int>(points.values.size(1));
    Candidates<T> candidates;
    const bool is_cut = points.is_cut() && group.size() > 1;
    if (is_cut) candidates = candidates_for<T>(request, points, queries, group);
    else candidates.ids = points.ids;
    const auto table = is_cut ? std::span<const T>(candidates.points) : points.span<T>();

    std::vector<std::int32_t> excluded;
    if (request.options.exclude_self) {
        for (const auto id : queries.ids) {
            const auto place = std::lower_bound(candidates.ids.begin(), candidates.ids.end(), id) - candidates.ids.begin();
            const bool is_here = place < static_cast<std::int64_t>(candidates.ids.size()) && candidates.ids[place] == id;
            excluded.push_back(is_here ? static_cast<std::int32_t>(place) : -1);
        }
    }
    std::vector<NeighborLists<T>> lists;
    if (request.options.order == NeighborOrder::Grid) {
        for (const auto& limit : request.limits) lists.push_back(neighbors_in_grid_order<T>(table, queries.span<T>(), limit));
    } else {
        const PointSearch<T> search(table, width, request.options.period);
        if (request.is_knn) lists.push_back(search.knn(queries.span<T>(), request.k, excluded));
        else lists = search.within(queries.span<T>(), request.limits, excluded);
    }

    const bool differentiable = at::GradMode::is_enabled() && (points.plain.requires_grad() || queries.plain.requires_grad());
    const auto queries_group = queries.is_cut() ? group : RankGroup();
    at::Tensor rows_with_history;
    if (differentiable) rows_with_history = table_of(points.plain, candidates.plan, queries_group);
    const auto device = points.plain.device();
    std::vector<Neighbors> result;
    for (const auto& list : lists) {
        Neighbors neighbors;
        neighbors.plan = candidates.plan;
        neighbors.queries_group = queries_group;
        neighbors.num_points = points.size();
        if (points.is_cut()) neighbors.points_layout = points.layout;
        neighbors.offsets = tensor_of(list.offsets, 1).view({-1});
        std::vector<std::int64_t> ids, rows;
        for (const auto place : list.ids) {
            ids.push_back(candidates.ids[place]);
            rows.push_back(is_cut ? candidates.rows[place] : place);
        }
        neighbors.ids = tensor_of(ids, 1).view({-1});
        neighbors.rows = tensor_of(rows, 1).view({-1});
        if (differentiable) {
            const auto counts = neighbors.offsets.narrow(0, 1, queries.size()) - neighbors.offsets.narrow(0, 0, queries.size());
            const auto query_rows = at::arange(queries.size(), at::kLong).repeat_interleave(counts);
            auto gaps = rows_with_history.index_select(0, neighbors.rows.to(device)) - queries.plain.index_select(0, query_rows.to(device));
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
            neighbors.distances = tensor_of(list.distances, 1).view({-1}).to(points.plain.options().requires_grad(false));
        }
        for (auto* tensor : {&neighbors.offsets, &neighbors.ids, &neighbors.rows}) *tensor = tensor->to(device);
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

std::vector<Neighbors> search(const Request& request, const at::Tensor& points, const at::Tensor& queries);

/// The clouds of a batch one by one, their lists end to end.
std::vector<Neighbors> search_batch(const Request& request, const at::Tensor& points, const at::Tensor& queries)
{
    if (is_sharded(points) || is_sharded(queries) || queries.dim() != 3 || queries.size(0) != points.size(0)) {
        throw InvalidInput(std::string(request.where) + ": a batch of " + std::to_string(points.size(0)) +
                           " clouds; expected as many batches of queries, both plain. Search sharded clouds one by one.");
    }
    std::vector<std::vector<Neighbors>> all;
    for (std::int64_t b = 0; b < points.size(0); ++b) all.push_back(search(request, points.select(0, b), queries.select(0, b)));
    std::vector<Neighbors> result(request.num_lists());
    const auto integers = points.options().dtype(at::kLong).requires_grad(false);
    for (std::size_t l = 0; l < result.size(); ++l) {
        std::vector<at::Tensor> offsets{at::zeros({1}, integers)}, ids{at::zeros({0}, integers)}, rows{at::zeros({0}, integers)};
        std::vector<at::Tensor> distances{at::zeros({0}, points.options().requires_grad(false))};
        std::int64_t entries = 0;
        for (std::size_t b = 0; b < all.size(); ++b) {
            const auto& one = all[b][l];
            offsets.push_back(one.offsets.narrow(0, 1, one.offsets.size(0) - 1) + entries);
            ids.push_back(one.ids);
            rows.push_back(one.rows + static_cast<std::int64_t>(b) * points.size(1));
            distances.push_back(one.distances);
            entries += one.ids.numel();
        }
        result[l].offsets = at::cat(offsets);
        result[l].ids = at::cat(ids);
        result[l].rows = at::cat(rows);
        result[l].distances = at::cat(distances);
        result[l].num_batches = points.size(0);
        result[l].num_points = points.size(1);
    }
    return result;
}

std::vector<Neighbors> search(const Request& request, const at::Tensor& points, const at::Tensor& queries)
{
    if (!is_sharded(points) && points.dim() == 3) return search_batch(request, points, queries);
    RankGroup alone;
    const auto& group = group_of(points, queries, alone);
    Rows point_rows, query_rows;
    std::string error;
    try {
        point_rows = rows_of(request.where, "points", points);
        query_rows = rows_of(request.where, "queries", queries);
        check(request, point_rows, query_rows);
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
    return table_of(rows, neighbors.plan, neighbors.queries_group).index_select(0, neighbors.rows);
}

}  // namespace meshard
