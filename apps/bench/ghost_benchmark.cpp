// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/ghost_benchmark.h"

#include "apps/bench/rank_timing.h"
#include "ops/neighbors/message_graph.h"
#include "ops/neighbors/neighbors.h"
#include "ops/rows/ghost_exchange.h"
#include "ops/rows/row_gather.h"
#include "partition/cut/geometric_partitioner.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/error.h"
#include "partition/mesh/neighbor_graph.h"
#include "sharding/tensor/host_values.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>

namespace meshard {
namespace {

using RankMesh = std::shared_ptr<const DeviceMesh>;

constexpr std::int64_t kNeighbors = 16, kChannels = 64;
constexpr double kForever = 1e30;

/// Computes the owners of the points, (N), int32, on rank 0 and broadcasts them.
at::Tensor owners_of(const at::Tensor& points, const std::string& method, const DeviceMesh& mesh)
{
    auto owners = at::empty({points.size(0)}, at::kInt);
    if (mesh.all().rank() == 0) {
        const auto places = values_on_host<float>(points);
        const auto parts = static_cast<std::int32_t>(mesh.num_ranks());
        const auto partition =
            method == "metis" ? partition_with_metis(nearest_neighbor_graph(DataArray::from("points", places, 3), 6),
                                                     {.num_parts = parts})
                              : partition_by_curve(places, parts, {});
        std::ranges::copy(partition.owners, owners.mutable_data_ptr<std::int32_t>());
    }
    mesh.all().broadcast(owners, 0);
    return owners;
}

std::shared_ptr<const IndexMap> map_of(const at::Tensor& owners, int rank)
{
    const auto ids = values_on_host<std::int64_t>(owners.eq(rank).nonzero());
    return std::make_shared<const IndexMap>(IndexMap{owners.size(0), static_cast<std::int32_t>(ids.size()), ids, {}});
}

template <class T>
T over_ranks(T value, Reduction reduction, const DeviceMesh& mesh)
{
    auto number = at::full({1}, value, c10::CppTypeToScalarType<T>::value);
    mesh.all().all_reduce(number, reduction);
    return number.template item<T>();
}

SearchTraffic traffic_of(const at::Tensor& points, double radius, const std::string& method, const RankMesh& mesh)
{
    const auto owners = owners_of(points, method, *mesh);
    const auto map = map_of(owners, mesh->all().rank());
    const auto spec = shard_spec(map, mesh);
    const auto ids = at::tensor(map->global_ids, at::kLong);
    const auto own = points.index_select(0, ids);

    // Any search must receive the points that other ranks own among the neighbours of own queries in the whole cloud.
    const auto all = radius_search(points, own, radius);
    const auto within_reach = at::zeros({points.size(0)}, at::kBool)
                                  .index_fill_(0, all.ids, true)
                                  .logical_and_(owners.ne(mesh->all().rank()))
                                  .sum()
                                  .item<std::int64_t>();

    auto& counter = mesh->counter();
    const auto bytes_of = [&](const auto& work) {
        counter.reset();
        work();
        return counter.total_bytes();
    };
    const auto cut = from_local(own, spec), features = from_local(at::ones({own.size(0), 16}), spec);
    Neighbors found, again;
    SearchTraffic traffic{method};
    traffic.within_reach = within_reach;
    traffic.search_bytes = bytes_of([&] { found = radius_search(cut, cut, radius); });
    traffic.repeated_bytes = bytes_of([&] { again = radius_search(cut, cut, radius); });
    traffic.feature_bytes = bytes_of([&] { gather_neighbors(features, found); });
    counter.reset();
    gather_rows(features, from_local(found.ids, mesh, {Shard(0)}));
    traffic.gathered_rows = counter.calls().back().bytes / (16 * 4);
    traffic.ghosts = found.plan->num_ghosts();
    const auto ring_bytes = (points.size(0) - own.size(0)) * 12;
    traffic.ring_over_search =
        over_ranks(static_cast<double>(ring_bytes) / static_cast<double>(traffic.search_bytes), Reduction::Min, *mesh);
    traffic.ghosts_over_reach =
        over_ranks(static_cast<double>(traffic.ghosts) / static_cast<double>(std::max<std::int64_t>(1, within_reach)),
                   Reduction::Max, *mesh);
    if (found.ids.numel() != all.ids.numel())
        throw CommunicationError("the search in the cut cloud found other neighbours than that in the whole cloud");
    for (auto* number : {&traffic.within_reach, &traffic.ghosts, &traffic.search_bytes, &traffic.repeated_bytes,
                         &traffic.feature_bytes, &traffic.gathered_rows}) {
        *number = over_ranks(*number, Reduction::Max, *mesh);
    }
    return traffic;
}

/// Makes a plan by which each rank sends every `stride`-th of its rows to the next rank.
std::shared_ptr<const ExchangePlan> plan_to_next(std::int64_t num_rows, std::int64_t stride, const DeviceMesh& mesh)
{
    const auto& group = mesh.all();
    std::vector<std::int64_t> sent(num_rows), send(group.size(), 0), receive(group.size(), 0);
    for (std::int64_t i = 0; i < num_rows; ++i) sent[i] = stride * i;
    send[(group.rank() + 1) % group.size()] = num_rows;
    receive[(group.rank() + group.size() - 1) % group.size()] = num_rows;
    return std::make_shared<const ExchangePlan>(group, stride * num_rows, std::move(sent), std::move(send),
                                                std::move(receive));
}

ExchangeTimes time_exchange(std::int64_t num_rows, std::int64_t stride, int num_repeats, const DeviceMesh& mesh)
{
    const at::NoGradGuard no_grad;
    const auto plan = plan_to_next(num_rows, stride, mesh);
    const auto rows = at::rand({stride * num_rows, kChannels});
    const auto ready = rows.narrow(0, 0, num_rows).clone().view({-1});
    auto received = at::empty_like(ready);
    auto send = plan->send_counts(), receive = plan->receive_counts();
    for (auto* counts : {&send, &receive}) {
        for (auto& count : *counts) count *= kChannels;
    }
    double bare = kForever, whole = kForever;
    for (int i = -1; i < num_repeats; ++i) {  // runs alternate, and the first warms up
        const auto a =
            seconds_together(mesh, [&] { plan->group().start_exchange(ready, send, received, receive).wait(); });
        const auto b = seconds_together(mesh, [&] { exchange_ghosts(rows, plan); });
        if (i < 0) continue;
        bare = std::min(bare, a);
        whole = std::min(whole, b);
    }
    return {num_rows, kChannels, stride, bare, whole, whole / bare};
}

/// Makes a graph in which each node receives from ten owned nodes, and each ghost sends to one node.
Neighbors graph_with_ghosts(const std::shared_ptr<const ExchangePlan>& plan, const RankMesh& mesh)
{
    Neighbors graph;
    const auto n = plan->num_owned(), g = plan->num_ghosts();
    std::vector<std::int64_t> offsets{0}, rows;
    for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t k = 0; k < 10; ++k) rows.push_back((i + k * 37) % n);
        if (i < g) rows.push_back(n + i);
        offsets.push_back(std::ssize(rows));
    }
    graph.offsets = at::tensor(offsets, at::kLong);
    graph.rows = at::tensor(rows, at::kLong);
    graph.ids = graph.rows;
    graph.plan = plan;
    graph.queries_group = mesh->all();
    graph.num_points = n;
    graph.points_layout = spec_of(from_local(at::empty({n}), mesh, {Shard(0)}));
    return graph;
}

OverlapTimes time_overlap(std::int64_t num_ghosts, int num_repeats, const RankMesh& mesh)
{
    const at::NoGradGuard no_grad;
    const auto plan = plan_to_next(num_ghosts, 2, *mesh);
    const auto neighbors = graph_with_ghosts(plan, mesh);
    const MessageGraph graph(neighbors);
    const auto own = at::rand({plan->num_owned(), kChannels}), ghosts = at::rand({num_ghosts, kChannels});
    // The same graph over owned nodes and ghosts that were received before needs no communication.
    auto silent_neighbors = neighbors;
    silent_neighbors.plan = nullptr;
    silent_neighbors.points_layout = nullptr;
    silent_neighbors.queries_group = RankGroup();
    silent_neighbors.num_points += num_ghosts;
    const MessageGraph silent(silent_neighbors, own);
    const auto nodes = from_local(own, neighbors.points_layout), all_nodes = at::cat({own, ghosts});
    const auto weight = at::rand({2 * kChannels, kChannels});
    const auto update = [&](const at::Tensor&, const at::Tensor& sources, const at::Tensor& targets) {
        return at::gelu(at::cat({sources, targets}, 1).mm(weight));
    };
    OverlapTimes times{num_ghosts, graph.num_edges()};
    times.exchange_seconds = times.step_seconds = times.silent_seconds = kForever;
    for (int i = -1; i < num_repeats; ++i) {
        const auto a = seconds_together(*mesh, [&] { exchange_ghosts(own, plan); });
        const auto b = seconds_together(*mesh, [&] { graph.updated_edges(nodes, nodes, {}, update); });
        const auto c = seconds_together(*mesh, [&] { silent.updated_edges(all_nodes, all_nodes, {}, update); });
        if (i < 0) continue;
        times.exchange_seconds = std::min(times.exchange_seconds, a);
        times.step_seconds = std::min(times.step_seconds, b);
        times.silent_seconds = std::min(times.silent_seconds, c);
    }
    times.visible_share = (times.step_seconds - times.silent_seconds) / times.exchange_seconds;
    return times;
}

}  // namespace

GhostReport measure_ghosts(std::int64_t num_points, std::int64_t num_rows, int num_repeats, World& world)
{
    if (world.size() < 2)
        throw InvalidInput("bench ghosts: one rank has no ghosts. Start it with --nproc 2 or more, or by mpirun.");
    const auto mesh = DeviceMesh::create(world, {world.size()}, {"domain"});
    GhostReport report;
    report.num_ranks = world.size();
    report.threads_per_rank = at::get_num_threads();
    report.backend = world.backend_name();
    report.num_points = num_points;
    torch::manual_seed(0);
    const auto points = torch::rand({num_points, 3});
    const auto radius = std::cbrt(kNeighbors / (4.0 / 3 * 3.14159265 * static_cast<double>(num_points)));
    for (const char* method : {"metis", "curve"}) report.traffic.push_back(traffic_of(points, radius, method, mesh));
    for (const std::int64_t stride : {1, 2})
        report.exchanges.push_back(time_exchange(num_rows, stride, num_repeats, *mesh));
    report.overlap = time_overlap(num_rows / 8, num_repeats, mesh);
    return report;
}

}  // namespace meshard
