// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/neighbor_rows.h"

#include "ops/rows/ghost_exchange.h"
#include "ops/rows/row_moves.h"
#include "partition/error.h"
#include "sharding/exchange/row_copies.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"
#include "sharding/tensor/with_backward.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <vector>

namespace meshard {
namespace {

at::Tensor summed(const at::Tensor& share, const RankGroup& group);

/// Marks a tensor that every rank holds and each uses in part: backward sums the gradients of all ranks.
at::Tensor shared(const at::Tensor& whole, const RankGroup& group)
{
    if (group.size() == 1) return whole;
    return with_backward(whole.detach().alias(), whole, "SumOverQueriesBackward",
                         [group](const at::Tensor& gradient) { return summed(gradient, group); });
}

/// The adjoint of `shared`: the sum over all ranks.
at::Tensor summed(const at::Tensor& share, const RankGroup& group)
{
    auto sum = share.detach().clone(at::MemoryFormat::Contiguous);
    group.all_reduce(sum);
    return with_backward(sum, share, "ShareOfSumBackward",
                         [group](const at::Tensor& gradient) { return shared(gradient, group); });
}

/// Gathers rows of owned points and ghosts, one for each entry, in two steps: those of owned points in the constructor,
/// those of ghosts in `with`.
class EntryRows {
public:
    EntryRows(const at::Tensor& rows, const at::Tensor& entries)
        : entries_(entries.to(rows.device())), num_owned_(rows.size(0))
    {
        const auto index = at::where(entries_ < num_owned_, entries_, at::full_like(entries_, -1));
        auto shape = rows.sizes().vec();
        shape[0] = entries.size(0);
        found_ = at::empty(shape, rows.options().requires_grad(false));
        take_some_rows_into(found_, rows, index);
        // Not a view of `found_`, to which `with` writes: LibTorch's operators on devices would look for a view's
        // history.
        own_ = with_backward(found_.detach(), rows, "OwnEntriesBackward",
                             [index, num_owned = num_owned_](const at::Tensor& gradient) {
                                 return scatter_some_rows(gradient, index, num_owned);
                             });
    }

    at::Tensor with(const at::Tensor& ghosts)
    {
        const auto index = at::where(entries_ < num_owned_, at::full_like(entries_, -1), entries_ - num_owned_);
        take_some_rows_into(found_, ghosts, index);
        // The whole gradient is also passed on to the own rows: their backward ignores entries of ghosts.
        std::vector<at::Tensor> all{found_.alias()};
        set_backward(all, {own_, ghosts}, "EntriesBackward",
                     [index, num_ghosts = ghosts.size(0)](std::vector<at::Tensor> gradients) {
                         return std::vector<at::Tensor>{gradients[0],
                                                        scatter_some_rows(gradients[0], index, num_ghosts)};
                     });
        return all[0];
    }

private:
    at::Tensor entries_, found_, own_;
    std::int64_t num_owned_;
};

/// Whether both have an index map and as many rows on this rank, but rows with other global ids.
bool have_other_ids(const ShardSpec& features, const ShardSpec& points)
{
    const auto &here = features.index_map, &there = points.index_map;
    return here && there && here != there && here->num_owned == there->num_owned &&
           !std::equal(here->owned().begin(), here->owned().end(), there->owned().begin());
}

}  // namespace

at::Tensor rows_with_ghosts(const at::Tensor& rows, const std::shared_ptr<const ExchangePlan>& plan,
                            const RankGroup& queries_group)
{
    if (!plan) return shared(rows, queries_group);
    if (queries_group.size() > 1 || plan->group().size() == 1) return with_ghosts(rows, plan);
    // Every rank has all queries, and therefore already the complete gradient of its own rows.
    return at::cat({rows, exchange_ghosts(rows.detach(), plan)});
}

bool exchanges_ghosts(const Neighbors& neighbors)
{
    return neighbors.plan && neighbors.plan->group().size() > 1 && neighbors.queries_group.size() > 1;
}

at::Tensor own_rows_of(const char* where, const at::Tensor& features, const Neighbors& neighbors)
{
    if (is_sharded(features)) reduce_partials(features);
    const bool is_cut = is_sharded(features) && spec_of(features)->has_shard();
    if (is_cut != static_cast<bool>(neighbors.points_layout) ||
        (is_cut && !(*spec_of(features) == *neighbors.points_layout))) {
        throw InvalidInput(
            "{}: the features have layout {}, the points had {}. Redistribute the features, or search again.", where,
            is_cut ? to_string(*spec_of(features)) : std::string("whole"),
            neighbors.points_layout ? to_string(*neighbors.points_layout) : std::string("whole"));
    }
    if (is_cut && have_other_ids(*spec_of(features), *neighbors.points_layout)) {
        throw InvalidInput("{}: the features' rows have other global ids than the points' had. "
                           "Redistribute the features by id, or search again.",
                           where);
    }
    auto rows = is_sharded(features) ? to_local(features) : features;
    if (neighbors.is_batch) rows = rows.flatten(0, 1);
    const auto expected = (neighbors.is_batch ? neighbors.num_batches : 1) * neighbors.num_points;
    if (rows.dim() < 1 || rows.size(0) != expected) {
        throw InvalidInput("{}: features of {} rows, the search was among {} points. Pass one row for each point.",
                           where, rows.dim() < 1 ? 0 : rows.size(0), expected);
    }
    return rows;
}

at::Tensor gather_neighbors(const at::Tensor& features, const Neighbors& neighbors)
{
    const auto rows = own_rows_of("gather_neighbors", features, neighbors);
    if (!exchanges_ghosts(neighbors))
        return take_rows(rows_with_ghosts(rows, neighbors.plan, neighbors.queries_group), neighbors.rows);
    auto pending = begin_ghost_exchange({rows}, neighbors.plan);
    EntryRows found(rows, neighbors.rows);  // copies own rows while ghosts are received
    return found.with(pending.end()[0]);
}

}  // namespace meshard
