// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/edge_list.h"

#include "ops/rows/cut_rows.h"
#include "ops/rows/row_moves.h"
#include "partition/error.h"
#include "partition/ghosts/index_map.h"
#include "sharding/exchange/exchange_plan.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace meshard {
namespace {

std::string list_error(const at::Tensor& list, std::int64_t num_nodes)
{
    if (list.scalar_type() != at::kLong || list.dim() != 2 || list.size(0) != 2)
        return fmt::format("edge_index: expected (2, E) of int64, sources and targets, found {} of {}.",
                           c10::str(list.sizes()), c10::toString(list.scalar_type()));
    if (list.size(1) > 0) {
        const auto least = list.min().item<std::int64_t>(), most = list.max().item<std::int64_t>();
        if (least < 0 || most >= num_nodes)
            return fmt::format("edge_index: names the row {}, and there are {} nodes, from 0.",
                               least < 0 ? least : most, num_nodes);
    }
    return {};
}

}  // namespace

EdgeListGraph graph_of_edges(const at::Tensor& nodes, const at::Tensor& edge_index)
{
    if (is_sharded(edge_index))
        throw InvalidInput("edge_index: expected a plain tensor with the edges of the whole graph on every rank, found "
                           "a sharded one.");
    const auto cut = cut_rows_of("MeshGraphNet", "nodes", nodes);
    const auto group = cut.group();
    const auto list = edge_index.cpu().contiguous();
    throw_together(list_error(list, cut.num_global), group);

    // The owner and the local index of every row: every rank holds the whole list of edges, so that this table is not
    // larger.
    const auto own_ids = cut.ids();
    std::vector<std::int64_t> owner(cut.num_global), local_row(cut.num_global, -1);
    if (cut.is_cut()) {
        const auto counts = group.all_gather_integers(std::ssize(own_ids));
        const auto ids = group.all_gather_rows(index_tensor(own_ids), counts);
        const auto* id = ids.const_data_ptr<std::int64_t>();
        for (std::size_t rank = 0; rank < counts.size(); ++rank) {
            for (std::int64_t i = 0; i < counts[rank]; ++i) owner[*id++] = static_cast<std::int64_t>(rank);
        }
    }
    for (std::size_t row = 0; row < own_ids.size(); ++row) local_row[own_ids[row]] = static_cast<std::int64_t>(row);

    const auto num_edges = list.size(1);
    const auto* const sources = list.const_data_ptr<std::int64_t>();
    const auto* const targets = sources + num_edges;
    std::vector<std::int64_t> held;
    for (std::int64_t e = 0; e < num_edges; ++e) {
        if (local_row[targets[e]] >= 0) held.push_back(e);
    }
    std::ranges::stable_sort(held, [&](auto a, auto b) { return local_row[targets[a]] < local_row[targets[b]]; });

    std::vector<std::int64_t> offsets(own_ids.size() + 1, 0), ghosts;
    for (const auto e : held) {
        ++offsets[local_row[targets[e]] + 1];
        if (local_row[sources[e]] < 0) ghosts.push_back(sources[e]);
    }
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
    std::ranges::sort(ghosts, [&](auto a, auto b) { return std::pair(owner[a], a) < std::pair(owner[b], b); });
    ghosts.erase(std::unique(ghosts.begin(), ghosts.end()), ghosts.end());

    Neighbors neighbors;
    if (cut.is_cut()) {
        IndexMap map;
        map.num_global = cut.num_global;
        map.num_owned = static_cast<std::int32_t>(own_ids.size());
        map.global_ids = own_ids;
        for (const auto id : ghosts) {
            local_row[id] = std::ssize(map.global_ids);
            map.global_ids.push_back(id);
            map.ghost_owners.push_back(static_cast<std::int32_t>(owner[id]));
        }
        if (group.size() > 1) {
            neighbors.plan = ExchangePlan::find(map, group);
            neighbors.plan->set_agreed();  // every rank knows the sizes of all ranks' nodes
        }
        neighbors.queries_group = group;
        neighbors.points_layout = cut.layout;
    }
    std::vector<std::int64_t> ids, rows;
    for (const auto e : held) {
        ids.push_back(sources[e]);
        rows.push_back(local_row[sources[e]]);
    }
    neighbors.offsets = index_tensor(offsets);
    neighbors.ids = index_tensor(ids);
    neighbors.rows = index_tensor(rows);
    neighbors.num_points = std::ssize(own_ids);
    return {MessageGraph(std::move(neighbors)), index_tensor(held)};
}

}  // namespace meshard
