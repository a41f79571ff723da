// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/multi_scale_graph.h"

#include "ops/neighbors/point_sampling.h"
#include "ops/rows/cut_rows.h"
#include "ops/rows/row_moves.h"
#include "partition/lists.h"
#include "sharding/tensor/host_values.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

namespace meshard {
namespace {

using Ids = std::vector<std::int64_t>;

/// The numbers of all ranks, one vector for each rank.
std::vector<Ids> of_all_ranks(const Ids& own, const RankGroup& group)
{
    std::vector<Ids> all;
    if (group.size() == 1) return {own};
    const auto counts = group.all_gather_integers(std::ssize(own));
    const auto numbers = values_on_host<std::int64_t>(group.all_gather_rows(index_tensor(own), counts));
    auto begin = numbers.begin();
    for (const auto count : counts) {
        all.emplace_back(begin, begin + count);
        begin += count;
    }
    return all;
}

/// Index of a number in an ascending list that contains it.
std::int64_t place_of(const Ids& list, std::int64_t number)
{
    return std::ranges::lower_bound(list, number) - list.begin();
}

/// The points of a level, numbered in the order of their ids in the cloud.
struct Level {
    at::Tensor rows;                   // this rank's rows of the cloud
    Ids ids;                           // ids in the cloud of all points of the level, ascending
    Ids own;                           // numbers of this rank's points, ascending
    std::vector<std::int32_t> owners;  // for all points of the level
    SpecPtr layout;
    at::Tensor places;

    Level(const at::Tensor& points, const CutRows& cloud, const RankGroup& group, std::int64_t size, std::uint64_t seed)
    {
        const auto sample = random_sample(points, std::min(size, cloud.num_global), seed);
        rows = sample.rows;
        const auto by_rank = of_all_ranks(values_on_host<std::int64_t>(sample.ids), group);
        for (const auto& of_rank : by_rank) append(ids, of_rank);
        std::ranges::sort(ids);
        owners.resize(ids.size());
        for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
            for (const auto id : by_rank[rank]) owners[place_of(ids, id)] = static_cast<std::int32_t>(rank);
        }
        for (const auto id : by_rank[group.rank()]) own.push_back(place_of(ids, id));
        places = cloud.own.detach().index_select(0, rows);
        if (!cloud.is_cut()) return;
        const auto map = std::make_shared<const IndexMap>(index_map({}));
        layout = shard_spec(map, cloud.layout->device_mesh, 0);
        places = from_local(places, layout);
    }

    /// @param ghosts   numbers of other ranks' points, ascending
    IndexMap index_map(Ids ghosts) const
    {
        std::ranges::stable_sort(ghosts, [&](auto a, auto b) { return owners[a] < owners[b]; });
        IndexMap map{.num_global = std::ssize(ids),
                     .num_owned = static_cast<std::int32_t>(own.size()),
                     .global_ids = own,
                     .ghost_owners = {}};
        for (const auto ghost : ghosts) {
            map.global_ids.push_back(ghost);
            map.ghost_owners.push_back(owners[ghost]);
        }
        return map;
    }
};

}  // namespace

MultiScaleGraph multi_scale_graph(const at::Tensor& points, const std::vector<std::int64_t>& level_sizes,
                                  std::int64_t num_neighbors, std::uint64_t seed)
{
    const auto cloud = cut_rows_of("multi_scale_graph", "points", points);
    const auto group = cloud.group();
    std::string error;
    if (level_sizes.empty() || level_sizes.front() < 1 || !std::ranges::is_sorted(level_sizes))
        error = "multi_scale_graph: the numbers of points of the levels must be positive, and none less than the one "
                "before.";
    throw_together(error, group);

    const Level nodes(points, cloud, group, level_sizes.back(), seed);
    std::vector<Ids> sources(nodes.own.size());
    const auto rank = static_cast<std::int32_t>(group.rank());
    Ids crossing;  // pairs: a target on another rank, and its source on this rank
    for (std::size_t l = 0; l < level_sizes.size(); ++l) {
        const auto level = l + 1 == level_sizes.size() ? nodes : Level(points, cloud, group, level_sizes[l], seed);
        const auto found = knn(level.places, level.places, num_neighbors, {.exclude_self = true});
        const auto offsets = values_on_host<std::int64_t>(found.offsets),
                   near = values_on_host<std::int64_t>(found.ids);
        for (std::size_t i = 0; i < level.own.size(); ++i) {
            const auto here = place_of(nodes.ids, level.ids[level.own[i]]);
            const auto row = place_of(nodes.own, here);
            for (auto e = offsets[i]; e < offsets[i + 1]; ++e) {
                const auto there = place_of(nodes.ids, level.ids[near[e]]);
                sources[row].push_back(there);
                if (nodes.owners[there] == rank)
                    sources[place_of(nodes.own, there)].push_back(here);
                else
                    crossing.insert(crossing.end(), {there, here});
            }
        }
    }
    for (const auto& of_rank : of_all_ranks(crossing, group)) {
        for (std::size_t i = 0; i < of_rank.size(); i += 2) {
            if (nodes.owners[of_rank[i]] == rank) sources[place_of(nodes.own, of_rank[i])].push_back(of_rank[i + 1]);
        }
    }

    Ids ghosts, offsets{0}, ids, rows;
    for (std::size_t i = 0; i < sources.size(); ++i) {
        sources[i].push_back(nodes.own[i]);
        sort_unique(sources[i]);
        for (const auto id : sources[i]) {
            ids.push_back(id);
            if (nodes.owners[id] != rank) ghosts.push_back(id);
        }
        offsets.push_back(std::ssize(ids));
    }
    sort_unique(ghosts);
    const auto map = nodes.index_map(ghosts);
    for (const auto id : ids) rows.push_back(map.local_row(id));

    const auto device = cloud.own.device();
    MultiScaleGraph graph{.rows = nodes.rows, .layout = nodes.layout, .neighbors = {}};
    graph.neighbors.offsets = index_tensor(offsets).to(device);
    graph.neighbors.ids = index_tensor(ids).to(device);
    graph.neighbors.rows = index_tensor(rows).to(device);
    graph.neighbors.num_points = std::ssize(nodes.own);
    if (!cloud.is_cut()) return graph;
    graph.neighbors.points_layout = nodes.layout;
    graph.neighbors.queries_group = group;
    if (group.size() > 1) {
        graph.neighbors.plan = ExchangePlan::find(map, group);
        graph.neighbors.plan->set_agreed();  // every rank knows the sizes of all ranks' nodes
    }
    return graph;
}

}  // namespace meshard
