// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/message_graph.h"

#include "ops/neighbors/neighbor_rows.h"
#include "ops/rows/cut_rows.h"
#include "ops/rows/ghost_exchange.h"
#include "ops/rows/row_gather.h"
#include "ops/rows/row_moves.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <unordered_map>

namespace meshard {
namespace {

/// A view of the values of a CPU tensor, which must outlive it.
std::span<const std::int64_t> span_of(const at::Tensor& tensor)
{
    return {tensor.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(tensor.numel())};
}

std::int64_t cut_axis(const ShardSpec& spec)
{
    return spec.axis_of_dim(0);
}

/// The layout of rows of which this rank has `own`, cut along the axis of `like`. Collective; all ranks throw if one
/// has an error.
SpecPtr layout_of_rows(const ShardSpec& like, std::int64_t own, const std::string& error = {})
{
    constexpr std::int64_t kWrong = -1;
    const auto axis = cut_axis(like);
    auto extents =
        std::make_shared<Extents>(like.device_mesh->group(axis).all_gather_integers(error.empty() ? own : kWrong));
    const auto wrong = std::find(extents->begin(), extents->end(), kWrong) - extents->begin();
    if (wrong < std::ssize(*extents)) {
        throw InvalidInput(
            error.empty()
                ? fmt::format(
                      "MessageGraph: the search of rank {} does not fit its nodes. See the message of that rank.",
                      wrong)
                : error);
    }
    auto axes = like.axes;
    axes[axis] = {Shard(0), std::move(extents), 1};
    return make_spec(like.device_mesh, axes);
}

/// Indices of all entries in a table with `width` entries for each row. On the CPU, like the offsets.
at::Tensor table_slots(const at::Tensor& offsets, std::int64_t width)
{
    const auto num_rows = offsets.size(0) - 1;
    const auto shift = at::arange(num_rows, at::kLong) * width - offsets.narrow(0, 0, num_rows);
    return at::arange(offsets[num_rows].item<std::int64_t>(), at::kLong) + shift.repeat_interleave(offsets.diff());
}

at::Tensor with_layout(const at::Tensor& local, const SpecPtr& spec)
{
    return spec ? from_local(local, spec) : local;
}

/// Rows of all targets or edges, made of those of `from`, with the layout `spec`, or that of `from` where none is cut.
at::Tensor with_layout(const at::Tensor& local, const SpecPtr& spec, const at::Tensor& from)
{
    return with_layout(local, !spec && is_sharded(from) && !is_sharded(local) ? spec_of(from) : spec);
}

at::Tensor own_rows(const at::Tensor& tensor)
{
    return is_sharded(tensor) ? to_local(tensor) : tensor;
}

}  // namespace

Neighbors first_by_id(const Neighbors& neighbors, std::int64_t max_neighbors)
{
    const auto offsets_here = neighbors.offsets.cpu(), ids_here = neighbors.ids.cpu();
    const auto offsets = span_of(offsets_here), ids = span_of(ids_here);
    std::vector<std::int64_t> kept_offsets{0}, kept;
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
        auto entries = numbers_from<std::int64_t>(offsets[i], offsets[i + 1] - offsets[i]);
        const auto count = std::min<std::int64_t>(max_neighbors, std::ssize(entries));
        std::partial_sort(entries.begin(), entries.begin() + count, entries.end(),
                          [&](auto a, auto b) { return ids[a] < ids[b]; });
        kept.insert(kept.end(), entries.begin(), entries.begin() + count);
        kept_offsets.push_back(std::ssize(kept));
    }
    auto result = neighbors;
    const auto entries = index_tensor(kept).to(neighbors.ids.device());
    result.offsets = index_tensor(kept_offsets).to(neighbors.offsets.device());
    for (auto* tensor : {&result.ids, &result.rows, &result.distances}) *tensor = tensor->index_select(0, entries);
    return result;
}

MessageGraph::MessageGraph(Neighbors neighbors) : neighbors_(std::move(neighbors))
{
    const auto num_targets = neighbors_.offsets.size(0) - 1;
    std::string error;
    if (neighbors_.is_batch || num_targets != neighbors_.num_points) {
        error = fmt::format(
            "MessageGraph: the search had {} queries and {} points{}. Search one cloud with its own points as queries.",
            num_targets, neighbors_.num_points, neighbors_.is_batch ? " in a batch" : "");
    }
    target_spec_ = neighbors_.points_layout;
    lay_out_edges(error);
}

MessageGraph::MessageGraph(Neighbors neighbors, const at::Tensor& targets) : neighbors_(std::move(neighbors))
{
    if (is_sharded(targets) && spec_of(targets)->axis_of_dim(0) >= 0) target_spec_ = spec_of(targets);
    const auto num_targets = (target_spec_ ? local_of(targets) : targets).size(0);
    std::string error;
    if (neighbors_.is_batch || num_targets != neighbors_.offsets.size(0) - 1) {
        error = fmt::format(
            "MessageGraph: the search had {} queries, and there are {} targets. Pass the rows that were the queries.",
            neighbors_.offsets.size(0) - 1, num_targets);
    } else if (neighbors_.points_layout && !target_spec_) {
        error = "MessageGraph: the points are cut among ranks and the targets are not. Cut both.";
    }
    lay_out_edges(error);
}

void MessageGraph::lay_out_edges(const std::string& error)
{
    const auto& like = target_spec_ ? target_spec_ : neighbors_.points_layout;
    if (!error.empty() && (!like || cut_axis(*like) < 0)) throw InvalidInput(error);
    // Joins the collective in which the other ranks exchange their numbers of edges.
    if (!error.empty()) layout_of_rows(*like, 0, error);
    const auto& offsets = neighbors_.offsets;
    targets_ = at::arange(offsets.size(0) - 1, offsets.options()).repeat_interleave(offsets.diff());
    if (target_spec_) edge_spec_ = layout_of_rows(*target_spec_, targets_.size(0));
    if (!exchanges_ghosts(neighbors_)) return;
    const auto num_owned = neighbors_.plan->num_owned();
    const auto flags = offsets.options().dtype(at::kBool);
    const auto is_border = at::zeros({offsets.size(0) - 1}, flags);
    is_border.index_fill_(0, targets_.masked_select(neighbors_.rows >= num_owned), true);
    const auto part_of = [&](const at::Tensor& chosen) {
        Part part;
        part.nodes = chosen.nonzero().view({-1});
        part.edges = chosen.index_select(0, targets_).nonzero().view({-1});
        part.offsets =
            at::cat({at::zeros({1}, offsets.options()), offsets.diff().index_select(0, part.nodes).cumsum(0)});
        part.sources = neighbors_.rows.index_select(0, part.edges);
        part.targets = targets_.index_select(0, part.edges);
        part.spec = layout_of_rows(*target_spec_, part.edges.size(0));
        return part;
    };
    inner_ = part_of(is_border.logical_not());
    border_ = part_of(is_border);
    // The border part copies only those owned rows that are sources of its edges.
    const auto is_needed =
        at::zeros({num_owned + neighbors_.plan->num_ghosts()}, flags).index_fill_(0, border_.sources, true);
    is_needed.narrow(0, num_owned, neighbors_.plan->num_ghosts()).fill_(true);
    border_sources_ = is_needed.narrow(0, 0, num_owned).nonzero().view({-1});
    border_.sources = (is_needed.cumsum(0) - 1).index_select(0, border_.sources);
    edge_order_ = at::cat({inner_.edges, border_.edges}).argsort();
    node_order_ = at::cat({inner_.nodes, border_.nodes}).argsort();
}

at::Tensor MessageGraph::from_sources(const at::Tensor& nodes) const
{
    return with_layout(gather_neighbors(nodes, neighbors_), edge_spec_, nodes);
}

at::Tensor MessageGraph::from_targets(const at::Tensor& nodes) const
{
    return with_layout(take_rows(own_rows(nodes), targets_), edge_spec_, nodes);
}

EdgeParts MessageGraph::parts_of(const at::Tensor& edges) const
{
    if (!edge_order_.defined()) return {edges, {}};
    const auto own = own_rows(edges);
    return {with_layout(take_rows(own, inner_.edges), inner_.spec),
            with_layout(take_rows(own, border_.edges), border_.spec)};
}

at::Tensor MessageGraph::whole(const EdgeParts& edges) const
{
    if (!edge_order_.defined()) return edges.inner;
    return with_layout(take_rows(at::cat({own_rows(edges.inner), own_rows(edges.border)}), edge_order_), edge_spec_);
}

EdgeParts MessageGraph::updated_edges(const at::Tensor& sources, const at::Tensor& targets, const EdgeParts& edges,
                                      const EdgeUpdate& update) const
{
    if (!edge_order_.defined()) return {update(edges.inner, from_sources(sources), from_targets(targets)), {}};
    const auto own_sources = own_rows_of("MessageGraph", sources, neighbors_), own_targets = own_rows(targets);
    const auto updated = [&](const Part& part, const at::Tensor& own_edges, const at::Tensor& rows) {
        return update(own_edges, with_layout(take_rows(rows, part.sources), part.spec),
                      with_layout(take_rows(own_targets, part.targets), part.spec));
    };
    auto pending = begin_ghost_exchange({own_sources}, neighbors_.plan);
    EdgeParts result;
    result.inner = updated(inner_, edges.inner, own_sources);
    result.border =
        updated(border_, edges.border, at::cat({take_rows(own_sources, border_sources_), pending.end()[0]}));
    return result;
}

at::Tensor MessageGraph::to_targets(const EdgeParts& edges, SegmentReduction reduction) const
{
    if (!edge_order_.defined()) return to_targets(edges.inner, reduction);
    const auto reduced = [&](const Part& part, const at::Tensor& rows) {
        return segment_reduce(own_rows(rows), part.offsets, reduction).values;
    };
    return with_layout(take_rows(at::cat({reduced(inner_, edges.inner), reduced(border_, edges.border)}), node_order_),
                       target_spec_);
}

at::Tensor MessageGraph::to_targets(const at::Tensor& edges, SegmentReduction reduction) const
{
    return with_layout(segment_reduce(own_rows(edges), neighbors_.offsets, reduction).values, target_spec_, edges);
}

DeepGraph::DeepGraph(const MessageGraph& graph, std::int64_t num_steps)
{
    const auto& shallow = graph.neighbors();
    if (!shallow.points_layout)
        throw InvalidInput(
            "DeepGraph: the nodes are not cut among ranks, so there are no ghosts. Use the graph itself.");
    shallow_spec_ = shallow.points_layout;
    num_owned_ = shallow.num_points;
    const auto offsets_here = shallow.offsets.cpu(), ids_here = shallow.ids.cpu();
    const auto offsets = span_of(offsets_here), own_sources = span_of(ids_here);

    // Other ranks gather rows from a table with the ids of every node's sources, padded with -1.
    std::int64_t own_degree = 0;
    for (std::int64_t i = 0; i < num_owned_; ++i) own_degree = std::max(own_degree, offsets[i + 1] - offsets[i]);
    const std::vector<std::int64_t> mine{own_degree, num_steps};
    const auto& group = shallow_spec_->device_mesh->group(cut_axis(*shallow_spec_));
    const auto all = group.all_gather_integers(mine);
    for (const auto& rank : all) {
        // Each rank compares with rank 0, so that every rank throws.
        if (rank[1] != all[0][1]) {
            throw InvalidInput(
                "DeepGraph: ranks pass different numbers of steps, {} and {}. Pass the same number on every rank.",
                all[0][1], rank[1]);
        }
        max_degree_ = std::max(max_degree_, rank[0]);
    }
    owned_slots_ = table_slots(offsets_here, max_degree_);
    const auto own_lists = at::full({num_owned_ * max_degree_}, -1, at::kLong)
                               .index_copy(0, owned_slots_, ids_here)
                               .view({num_owned_, max_degree_});
    const auto lists = from_local(own_lists, shallow_spec_);

    std::unordered_map<std::int64_t, std::int64_t> row_of;
    for (const auto id : own_row_ids(*shallow_spec_, cut_axis(*shallow_spec_), num_owned_))
        row_of.emplace(id, std::ssize(row_of));
    std::vector<std::int64_t> deep_offsets(offsets.begin(), offsets.end()), rows, ghosts, frontier;
    const auto reach = [&](std::int64_t id) {
        const auto [found, is_new] = row_of.emplace(id, std::ssize(row_of));
        if (is_new) frontier.push_back(id);
        rows.push_back(found->second);
    };
    for (const auto id : own_sources) reach(id);
    std::vector<std::int64_t> inner_offsets{0};
    std::size_t num_inner = 0;
    for (std::int64_t step = 1; step < num_steps; ++step) {
        const auto asked = std::exchange(frontier, {});
        append(ghosts, asked);
        const auto answers = gather_rows(lists, index_tensor(asked)).contiguous();
        for (std::size_t g = 0; g < asked.size(); ++g) {
            for (std::int64_t k = 0; k < max_degree_; ++k) {
                const auto id = answers.const_data_ptr<std::int64_t>()[static_cast<std::int64_t>(g) * max_degree_ + k];
                if (id < 0) break;
                reach(id);
            }
            deep_offsets.push_back(std::ssize(rows));
            inner_offsets.push_back(std::ssize(rows) - std::ssize(own_sources));
        }
        num_inner = ghosts.size();
    }
    append(ghosts, frontier);
    deep_offsets.resize(static_cast<std::size_t>(num_owned_) + ghosts.size() + 1, std::ssize(rows));

    ghost_ids_ = index_tensor(ghosts);
    inner_ghost_ids_ = ghost_ids_.narrow(0, 0, static_cast<std::int64_t>(num_inner));
    ghost_slots_ = table_slots(index_tensor(inner_offsets), max_degree_);
    deep_spec_ = layout_of_rows(*shallow_spec_, num_nodes());
    Neighbors deep;
    deep.offsets = index_tensor(deep_offsets).to(shallow.offsets.device());
    deep.rows = index_tensor(rows).to(shallow.rows.device());
    deep.points_layout = deep_spec_;
    deep.num_points = num_nodes();
    local_ = std::make_unique<MessageGraph>(std::move(deep));
}

at::Tensor DeepGraph::with_ghost_nodes(const at::Tensor& nodes) const
{
    return from_local(at::cat({to_local(nodes), gather_rows(nodes, ghost_ids_)}), deep_spec_);
}

at::Tensor DeepGraph::with_ghost_edges(const at::Tensor& edges) const
{
    const auto own = to_local(edges);
    auto shape = own.sizes().vec();
    shape[0] = num_owned_ * max_degree_;
    const auto table = at::zeros(shape, own.options())
                           .index_copy(0, owned_slots_.to(own.device()), own)
                           .unflatten(0, {num_owned_, max_degree_});
    const auto asked = gather_rows(from_local(table, shallow_spec_), inner_ghost_ids_).flatten(0, 1);
    return from_local(at::cat({own, asked.index_select(0, ghost_slots_.to(asked.device()))}), local_->edge_layout());
}

at::Tensor DeepGraph::owned_nodes(const at::Tensor& nodes) const
{
    return from_local(to_local(nodes).narrow(0, 0, num_owned_), shallow_spec_);
}

}  // namespace meshard
