// SPDX-License-Identifier: Apache-2.0
#include "sharding/exchange/row_routes.h"

#include "partition/error.h"
#include "partition/lists.h"
#include "sharding/exchange/row_copies.h"
#include "sharding/ranks/type_limits.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"
#include "sharding/tensor/with_backward.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace meshard {
namespace {

at::Tensor integer_tensor(std::span<const std::int64_t> values)
{
    return at::tensor(at::ArrayRef<std::int64_t>(values.data(), values.size()), at::kLong);
}

std::span<const std::int64_t> span_of(const at::Tensor& tensor)
{
    return {tensor.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(tensor.numel())};
}

/// Returns the counts that every rank sends to this one, given the counts that this rank sends.
std::vector<std::int64_t> exchange_counts(const std::vector<std::int64_t>& send, const RankGroup& group)
{
    const auto all = group.all_gather_integers(send);
    std::vector<std::int64_t> receive;
    for (const auto& rank : all) receive.push_back(rank[group.rank()]);
    return receive;
}

/// The ids are divided into consecutive blocks, one for each rank, which stores the owners of the ids in its block.
struct Directory {
    std::int64_t block;
    int num_ranks;

    Directory(std::int64_t num_global, int num_ranks)
        : block(std::max<std::int64_t>(1, (num_global + num_ranks - 1) / num_ranks)), num_ranks(num_ranks)
    {
    }
    int rank_of(std::int64_t id) const { return static_cast<int>(id / block); }

    std::vector<std::int64_t> counts(std::span<const std::int64_t> sorted_ids) const
    {
        std::vector<std::int64_t> counts(num_ranks, 0);
        for (const auto id : sorted_ids) ++counts[rank_of(id)];
        return counts;
    }
};

/// Throws on all ranks if one rank has found a bad id.
void throw_if_any(std::optional<std::int64_t> bad, const RankGroup& group, const char* what)
{
    const auto all = group.all_gather_integers(std::vector<std::int64_t>{bad.has_value(), bad.value_or(0)});
    for (std::size_t r = 0; r < all.size(); ++r) {
        if (all[r][0]) {
            throw InvalidInput(
                "RowRoutes: id {} {} (found by rank {}). Pass index maps of one and the same whole, each on its rank.",
                all[r][1], what, r);
        }
    }
}

std::optional<std::int64_t> first_outside(std::span<const std::int64_t> ids, std::int64_t num_global)
{
    const auto found = std::ranges::find_if(ids, [&](std::int64_t id) { return id < 0 || id >= num_global; });
    return found == ids.end() ? std::nullopt : std::optional(*found);
}

}  // namespace

std::shared_ptr<const RowRoutes> RowRoutes::find(std::span<const std::int64_t> owned,
                                                 std::span<const std::int64_t> wanted, std::int64_t num_global,
                                                 const RankGroup& group)
{
    auto routes = std::shared_ptr<RowRoutes>(new RowRoutes);
    routes->group_ = group;
    routes->num_owned_ = std::ssize(owned);
    throw_if_any(first_outside(owned, num_global), group, "is owned, but lies outside of the whole");
    throw_if_any(first_outside(wanted, num_global), group, "is wanted, but lies outside of the whole");
    const Directory directory(num_global, group.size());

    // Owners send their ids to the directory.
    std::vector<std::int64_t> owned_sorted(owned.begin(), owned.end());
    std::ranges::sort(owned_sorted);
    auto send = directory.counts(owned_sorted);
    auto receive = exchange_counts(send, group);
    const auto told = group.all_to_all_rows(integer_tensor(owned_sorted), send, receive);
    const auto first = std::min(num_global, directory.block * group.rank());
    const auto last = std::min(num_global, first + directory.block);
    std::vector<std::int64_t> owners(last - first, -1);
    std::optional<std::int64_t> twice;
    std::int64_t next = 0;
    for (int r = 0; r < group.size(); ++r) {
        for (std::int64_t i = 0; i < receive[r]; ++i) {
            const auto id = span_of(told)[next++];
            if (owners[id - first] >= 0 && !twice) twice = id;
            owners[id - first] = r;
        }
    }
    throw_if_any(twice, group, "is owned twice");

    // Every rank looks up the owners of the rows that it wants, each id once.
    std::vector<std::int64_t> unique(wanted.begin(), wanted.end());
    sort_unique(unique);
    send = directory.counts(unique);
    receive = exchange_counts(send, group);
    const auto asked = group.all_to_all_rows(integer_tensor(unique), send, receive);
    std::vector<std::int64_t> answers;
    std::optional<std::int64_t> unknown;
    for (const auto id : span_of(asked)) {
        answers.push_back(owners[id - first]);
        if (answers.back() < 0 && !unknown) unknown = id;
    }
    throw_if_any(unknown, group, "is wanted, but owned by nobody");
    const auto owner_of = group.all_to_all_rows(integer_tensor(answers), receive, send);

    // Requests are sent to the owners, sorted by (owner, id).
    auto order = numbers_from<std::int64_t>(0, unique.size());
    const auto owner = span_of(owner_of);
    std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) { return owner[a] < owner[b]; });
    std::vector<std::int64_t> requests;
    std::vector<std::int64_t> place(unique.size());  // position of each unique id among the received rows
    routes->receive_rows_.assign(group.size(), 0);
    for (const auto i : order) {
        place[i] = std::ssize(requests);
        requests.push_back(unique[i]);
        ++routes->receive_rows_[owner[i]];
    }
    routes->send_rows_ = exchange_counts(routes->receive_rows_, group);
    const auto requested = group.all_to_all_rows(integer_tensor(requests), routes->receive_rows_, routes->send_rows_);

    auto by_id = numbers_from<std::int64_t>(0, owned.size());
    std::ranges::sort(by_id, [&](std::int64_t a, std::int64_t b) { return owned[a] < owned[b]; });
    std::vector<std::int64_t> sent;
    for (const auto id : span_of(requested)) {
        sent.push_back(*std::ranges::lower_bound(
            by_id, id, [&](std::int64_t row, std::int64_t value) { return owned[row] < value; }));
    }
    routes->sent_ = integer_tensor(sent);
    std::vector<std::int64_t> wanted_place;
    for (const auto id : wanted) wanted_place.push_back(place[std::ranges::lower_bound(unique, id) - unique.begin()]);
    routes->wanted_ = integer_tensor(wanted_place);
    return routes;
}

at::Tensor RowRoutes::gathered(const at::Tensor& rows) const
{
    const auto device = rows.device();
    const auto received = group_.all_to_all_rows(take_some_rows(rows, sent_.to(device)), send_rows_, receive_rows_);
    return take_some_rows(received, wanted_.to(device));
}

at::Tensor RowRoutes::scattered(const at::Tensor& rows) const
{
    const auto device = rows.device();
    const auto unique = std::accumulate(receive_rows_.begin(), receive_rows_.end(), std::int64_t{0});
    const auto type = rows.scalar_type();
    const auto wide = rows.to(sum_type(type));  // rounded once
    const auto received =
        group_.all_to_all_rows(scatter_some_rows(wide, wanted_.to(device), unique), receive_rows_, send_rows_);
    return scatter_some_rows(received, sent_.to(device), num_owned_).to(type);
}

at::Tensor RowRoutes::gather(const at::Tensor& owned_rows) const
{
    if (owned_rows.dim() < 1 || owned_rows.size(0) != num_owned_) {
        throw InvalidInput("RowRoutes::gather: the tensor has {} rows, this rank owns {}. Pass the owned "
                           "rows in the order of their ids in `find`.",
                           owned_rows.dim() < 1 ? 0 : owned_rows.size(0), num_owned_);
    }
    return with_backward(gathered(owned_rows.detach()), owned_rows, "RowRoutesGatherBackward",
                         [self = *this](const at::Tensor& gradient) { return self.scatter(gradient); });
}

at::Tensor RowRoutes::scatter(const at::Tensor& wanted_rows) const
{
    if (wanted_rows.dim() < 1 || wanted_rows.size(0) != num_wanted()) {
        throw InvalidInput("RowRoutes::scatter: the tensor has {} rows, this rank wants {}. Pass one row "
                           "for every wanted id, in their order.",
                           wanted_rows.dim() < 1 ? 0 : wanted_rows.size(0), num_wanted());
    }
    return with_backward(scattered(wanted_rows.detach()), wanted_rows, "RowRoutesScatterBackward",
                         [self = *this](const at::Tensor& gradient) { return self.gather(gradient); });
}

at::Tensor full_tensor_in_global_order(const at::Tensor& tensor)
{
    reduce_partials(tensor);
    const auto spec = spec_of(tensor);
    const auto& mesh = spec->device_mesh;
    if (!spec->index_map || !mesh->has_axis("domain")) return full_tensor(tensor);
    const auto domain = mesh->axis("domain");
    const auto& layout = spec->axes[domain];
    if (!layout.is_shard()) return full_tensor(tensor);
    const auto& map = *spec->index_map;
    const bool fits = layout.blocks == 1 && (*layout.extents)[mesh->coordinate(domain)] == map.num_owned;
    if (!mesh->group(domain).all_agree(fits)) {
        throw InvalidInput("full_tensor_in_global_order: the tensor lies as {}, which is not how its index map cuts it "
                           "({}). Redistribute it to the layout of the map first.",
                           to_string(*spec), to_string(map));
    }
    const auto ids = mesh->group(domain).all_gather_rows(integer_tensor(map.owned()), *layout.extents);
    return full_tensor(tensor).index_select(layout.placement.dim, ids.argsort().to(tensor.device()));
}

}  // namespace meshard
