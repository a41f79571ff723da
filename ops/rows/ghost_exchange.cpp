// SPDX-License-Identifier: Apache-2.0
#include "ops/rows/ghost_exchange.h"

#include "ops/rows/cut_rows.h"
#include "ops/rows/row_moves.h"
#include "partition/error.h"
#include "sharding/ranks/row_stream.h"
#include "sharding/ranks/type_limits.h"
#include "sharding/ranks/value_hash.h"
#include "sharding/tensor/with_backward.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace meshard {
namespace {

using Plan = std::shared_ptr<const ExchangePlan>;

std::string wrong_rows(const char* where, const at::Tensor& tensor, std::int64_t expected, const ExchangePlan& plan)
{
    if (tensor.dim() >= 1 && tensor.size(0) == expected) return {};
    return fmt::format(
        "{}: a tensor of {} rows, expected {}; the plan has {} owned + {} ghost rows. Is it of another layout?", where,
        tensor.dim() < 1 ? 0 : tensor.size(0), expected, plan.num_owned(), plan.num_ghosts());
}

std::int64_t bytes_of_row(const at::Tensor& rows, at::ScalarType type)
{
    return rows.dim() < 1
               ? 0
               : c10::multiply_integers(rows.sizes().slice(1)) * static_cast<std::int64_t>(c10::elementSize(type));
}

/// Bytes of a row of all fields, and a hash of their types: what the ranks compare.
struct RowForm {
    std::int64_t bytes = 0, types = 0;

    void add(const at::Tensor& rows, at::ScalarType type)
    {
        bytes += bytes_of_row(rows, type);
        types = static_cast<std::int64_t>(mix(static_cast<std::uint64_t>(types), static_cast<std::uint64_t>(type)));
    }
};

/// Called before rows are sent: throws if this rank has an `error`. Before the first exchange of a plan made by
/// `ExchangePlan::find`, and in debug builds before each, ranks exchange their errors, and all throw together. Other
/// exchanges send rows only: a rank with an error then aborts its group, so that no other rank waits for it.
void agree(const std::string& error, const RowForm& form, const ExchangePlan& plan)
{
    const auto& group = plan.group();
#ifdef NDEBUG
    if (plan.is_agreed()) {
        if (error.empty()) return;
        group.abort();
        throw InvalidInput(error);
    }
#endif
    throw_together(error, group);
    const auto all = group.all_gather_integers(std::vector<std::int64_t>{form.bytes, form.types});
    for (std::size_t r = 1; r < all.size(); ++r) {
        if (all[r] == all[0]) continue;
        throw InvalidInput("ghost exchange: rank {} sends rows of {} bytes, rank 0 rows of {}{}. Exchange "
                           "the same fields, of one shape and type, on every rank.",
                           r, all[r][0], all[0][0], all[r][0] == all[0][0] ? " in other types" : "");
    }
    plan.set_agreed();
}

void agree_on_rows(const char* where, const at::Tensor& rows, std::int64_t expected, const ExchangePlan& plan)
{
    RowForm form;
    form.add(rows, rows.scalar_type());
    agree(wrong_rows(where, rows, expected, plan), form, plan);
}

/// Converts (rows, ...) to the type in which rows are sent.
at::Tensor as_sent(const at::Tensor& rows, std::optional<at::ScalarType> wire_type)
{
    return wire_type && rows.is_floating_point() ? rows.to(*wire_type) : rows;
}

/// Concatenates the rows of several tensors along the columns: in their type if all have the same, otherwise as bytes.
at::Tensor packed(const std::vector<at::Tensor>& parts, std::int64_t num_rows)
{
    const bool same = std::ranges::all_of(
        parts, [&](const at::Tensor& part) { return part.scalar_type() == parts[0].scalar_type(); });
    std::vector<at::Tensor> columns;
    for (const auto& part : parts) {
        const auto width = part.numel() / std::max<std::int64_t>(1, num_rows);
        const auto flat = part.resolve_conj().resolve_neg().contiguous().view(
            {num_rows, num_rows == 0 ? c10::multiply_integers(part.sizes().slice(1)) : width});
        // Copied: for one row or none, `contiguous` keeps strides that do not allow a view in another type.
        columns.push_back(same ? flat : at::empty(flat.sizes(), flat.options()).copy_(flat).view(at::kByte));
    }
    return columns.size() == 1 ? columns[0] : at::cat(columns, 1);
}

/// The inverse of `packed`: one tensor like each of `likes`, with `num_rows` rows, in the types that were sent.
std::vector<at::Tensor> unpacked(const at::Tensor& buffer, const std::vector<at::Tensor>& likes, std::int64_t num_rows)
{
    if (likes.size() == 1 && buffer.scalar_type() == likes[0].scalar_type()) {  // a view, no copy
        auto shape = likes[0].sizes().vec();
        shape[0] = num_rows;
        return {buffer.view(shape)};
    }
    std::vector<at::Tensor> parts;
    std::int64_t column = 0;
    for (const auto& like : likes) {
        auto shape = like.sizes().vec();
        shape[0] = num_rows;
        const auto numbers = c10::multiply_integers(like.sizes().slice(1));
        auto part = at::empty(shape, buffer.options().dtype(like.scalar_type()));
        const auto here = part.view({num_rows, numbers}).view(buffer.scalar_type());
        here.copy_(buffer.narrow(1, column, here.size(1)));
        column += here.size(1);
        parts.push_back(std::move(part));
    }
    return parts;
}

std::vector<std::int64_t> scaled(const std::vector<std::int64_t>& counts, std::int64_t factor)
{
    auto result = counts;
    for (auto& count : result) count *= factor;
    return result;
}

/// Starts to send rows of `buffer` to each rank; `received` is complete after `wait` of the result.
PendingCollective start(const at::Tensor& buffer, const std::vector<std::int64_t>& send,
                        const std::vector<std::int64_t>& receive, const RankGroup& group, at::Tensor& received)
{
    const auto width = buffer.size(1);
    std::int64_t rows = 0;
    for (const auto count : receive) rows += count;
    received = at::empty({rows, width}, buffer.options());
    auto flat = received.view({-1});
    return group.start_exchange(buffer.view({-1}), scaled(send, width), flat, scaled(receive, width));
}

/// A pending exchange that sends ghost rows to their owners, several tensors in one message.
class ReturningGhosts {
public:
    ReturningGhosts(std::vector<at::Tensor> ghosts, Plan plan, std::optional<at::ScalarType> wire_type)
        : ghosts_(std::move(ghosts)), plan_(std::move(plan))
    {
        for (const auto& rows : ghosts_) sent_.push_back(as_sent(rows, wire_type));
        buffer_ = packed(sent_, plan_->num_ghosts());
        pending_ = start(buffer_, plan_->receive_counts(), plan_->send_counts(), plan_->group(), received_);
    }

    /// Returns for each owned row the sum of its received ghosts, added in rank order; (num_owned, ...), in the type of
    /// sums.
    std::vector<at::Tensor> end()
    {
        pending_.wait();
        auto parts = unpacked(received_, sent_, plan_->num_sent());
        for (std::size_t i = 0; i < parts.size(); ++i)
            parts[i] = scatter_rows(parts[i].to(sum_type(ghosts_[i].scalar_type())),
                                    plan_->sent_rows(parts[i].device()), plan_->num_owned());
        return parts;
    }

private:
    std::vector<at::Tensor> ghosts_, sent_;
    Plan plan_;
    at::Tensor buffer_, received_;
    PendingCollective pending_;
};

/// Adds ghost rows to their owners' rows: the backward of a ghost exchange. Its own backward is a ghost exchange.
std::vector<at::Tensor> added_at_owners(const std::vector<at::Tensor>& ghosts, const Plan& plan,
                                        std::optional<at::ScalarType> wire_type)
{
    std::vector<at::Tensor> sums;
    {
        const at::NoGradGuard no_grad;
        std::vector<at::Tensor> rows;
        for (const auto& tensor : ghosts) rows.push_back(tensor.detach());
        sums = ReturningGhosts(std::move(rows), plan, wire_type).end();
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = sums[i].to(ghosts[i].scalar_type());
    }
    set_backward(sums, ghosts, "ScatterGhostsBackward", [plan, wire_type](const std::vector<at::Tensor>& gradients) {
        return begin_ghost_exchange(gradients, plan, wire_type).end();
    });
    return sums;
}

/// Every owned row plus the rows of its ghosts on other ranks.
at::Tensor ghosts_added(const at::Tensor& local, const Plan& plan)
{
    agree_on_rows("scatter_ghosts", local, plan->num_local(), *plan);
    at::Tensor sums;
    {
        const at::NoGradGuard no_grad;
        const auto rows = local.detach();
        const auto of_ghosts =
            ReturningGhosts({rows.narrow(0, plan->num_owned(), plan->num_ghosts())}, plan, std::nullopt).end()[0];
        sums = (rows.narrow(0, 0, plan->num_owned()) + of_ghosts).to(rows.scalar_type());
    }
    return with_backward(sums, local, "ScatterGhostsBackward",
                         [plan](const at::Tensor& gradient) { return with_ghosts(gradient, plan); });
}

}  // namespace

/// State shared by the two halves of backward. The half for `end` runs first and sends the ghosts' gradients; the half
/// for `begin` waits for them and adds them. The backward of everything computed between `begin` and `end` runs in
/// between.
struct PendingGhosts::Backward {
    std::optional<ReturningGhosts> pending;
    std::vector<at::Tensor> added;  ///< used instead of `pending` if the backward is recorded itself
};

PendingGhosts begin_ghost_exchange(at::TensorList fields, const Plan& plan, std::optional<at::ScalarType> wire_type)
{
    std::string error = fields.empty() ? "begin_ghost_exchange: no fields. Pass one tensor or more." : "";
    if (error.empty() && wire_type && !at::isFloatingType(*wire_type))
        error =
            fmt::format("begin_ghost_exchange: the wire type is {}; give a floating type.", at::toString(*wire_type));
    RowForm form;
    for (const auto& field : fields) {
        if (error.empty()) error = wrong_rows("begin_ghost_exchange", field, plan->num_owned(), *plan);
        form.add(field, wire_type && field.is_floating_point() ? *wire_type : field.scalar_type());
    }
    agree(error, form, *plan);
    PendingGhosts ghosts;
    ghosts.plan_ = plan;
    ghosts.fields_ = fields.vec();
    ghosts.wire_type_ = wire_type;
    std::vector<at::Tensor> differentiable;
    for (const auto& field : fields) {
        if (field.requires_grad()) differentiable.push_back(field);
    }
    if (at::GradMode::is_enabled() && !differentiable.empty()) {
        ghosts.backward_ = std::make_shared<PendingGhosts::Backward>();
        // On the fields' device, so that the engine runs its node in order with the other nodes of that device.
        std::vector<at::Tensor> token{at::empty({0}, differentiable[0].options().requires_grad(false))};
        set_backward(token, differentiable, "GhostExchangeBackward",
                     [backward = ghosts.backward_](const std::vector<at::Tensor>&) {
                         if (!backward->added.empty()) return std::exchange(backward->added, {});
                         auto added = backward->pending->end();
                         backward->pending.reset();
                         return added;
                     });
        ghosts.token_ = token[0];
    }
    const at::NoGradGuard no_grad;
    if (wire_type || std::ranges::any_of(fields, [](const at::Tensor& field) { return !field.is_cpu(); })) {
        std::vector<at::Tensor> sent;
        for (const auto& field : fields)
            sent.push_back(as_sent(take_rows(field, plan->sent_rows(field.device())), wire_type));
        ghosts.sent_ = packed(sent, plan->num_sent());
        ghosts.pending_ =
            start(ghosts.sent_, plan->send_counts(), plan->receive_counts(), plan->group(), ghosts.received_);
        return ghosts;
    }
    // No packed copy is made: the transport reads the rows from the fields.
    const RowStream sent(fields.vec(), plan->sent_rows());
    const auto width = fields.size() == 1 ? c10::multiply_integers(fields[0].sizes().slice(1)) : sent.row_bytes();
    ghosts.received_ = plan->group().empty_received({plan->num_ghosts(), width},
                                                    fields.size() == 1 ? fields[0].options().requires_grad(false)
                                                                       : at::TensorOptions(at::kByte));
    ghosts.pending_ =
        plan->group().start_row_exchange(sent, plan->send_counts(), ghosts.received_, plan->receive_counts());
    return ghosts;
}

std::vector<at::Tensor> PendingGhosts::end()
{
    if (!plan_)
        throw InvalidInput("PendingGhosts::end: no exchange is pending. Call it once after begin_ghost_exchange.");
    pending_.wait();
    std::vector<at::Tensor> ghosts, likes;
    {
        const at::NoGradGuard no_grad;
        for (const auto& field : fields_) likes.push_back(as_sent(field.detach().narrow(0, 0, 0), wire_type_));
        ghosts = unpacked(received_, likes, plan_->num_ghosts());
        for (std::size_t i = 0; i < ghosts.size(); ++i) ghosts[i] = ghosts[i].to(fields_[i].scalar_type());
    }
    const auto plan = std::exchange(plan_, nullptr);
    if (!at::GradMode::is_enabled() || !backward_) return ghosts;
    std::vector<at::Tensor> differentiable;
    for (std::size_t i = 0; i < fields_.size(); ++i) {
        if (!fields_[i].requires_grad()) continue;
        ghosts[i] = ghosts[i].detach();
        differentiable.push_back(ghosts[i]);
    }
    set_backward(differentiable, {token_}, "GhostsBackward",
                 [plan, wire_type = wire_type_, backward = backward_](std::vector<at::Tensor> gradients) {
                     if (at::GradMode::is_enabled())
                         backward->added = added_at_owners(gradients, plan, wire_type);
                     else
                         backward->pending.emplace(std::move(gradients), plan, wire_type);
                     return std::vector<at::Tensor>(1);
                 });
    return ghosts;
}

at::Tensor exchange_ghosts(const at::Tensor& owned, const Plan& plan)
{
    return begin_ghost_exchange({owned}, plan).end()[0];
}

at::Tensor with_ghosts(const at::Tensor& owned, const Plan& plan)
{
    return at::cat({owned, exchange_ghosts(owned, plan)});
}

at::Tensor scatter_ghosts(const at::Tensor& local, const Plan& plan, GhostReduction reduction)
{
    if (reduction == GhostReduction::Sum) return ghosts_added(local, plan);
    if (reduction == GhostReduction::Mean && at::isIntegralType(local.scalar_type(), true))
        throw InvalidInput("scatter_ghosts: a mean of {}; give a floating type.", at::toString(local.scalar_type()));
    agree_on_rows("scatter_ghosts", local, plan->num_local(), *plan);
    const auto index = plan->sent_rows(local.device());
    if (reduction == GhostReduction::Mean) {
        const auto type = local.scalar_type(), wide = sum_type(type);  // in half precision the sum might overflow
        const auto ones = at::ones({plan->num_sent()}, local.options().dtype(wide).requires_grad(false));
        const auto copies = scatter_rows(ones, index, plan->num_owned()) + 1;
        auto shape = std::vector<std::int64_t>(local.dim(), 1);
        shape[0] = plan->num_owned();
        return (ghosts_added(local.to(wide), plan) / copies.view(shape)).to(type);
    }
    at::Tensor extreme;
    {
        const at::NoGradGuard no_grad;
        at::Tensor received;
        const auto rows = local.detach();
        const std::vector<at::Tensor> sent{rows.narrow(0, plan->num_owned(), plan->num_ghosts())};
        start(packed(sent, plan->num_ghosts()), plan->receive_counts(), plan->send_counts(), plan->group(), received)
            .wait();
        extreme = rows.narrow(0, 0, plan->num_owned())
                      .clone()
                      .index_reduce_(0, index, unpacked(received, sent, plan->num_sent())[0],
                                     reduction == GhostReduction::Max ? "amax" : "amin");
    }
    if (!at::GradMode::is_enabled() || !local.requires_grad()) return extreme;
    // The rows that equal the extreme share its gradient.
    const auto chosen = local.detach().eq(with_ghosts(extreme, plan));
    const auto count = ghosts_added(chosen.to(local.scalar_type()), plan);
    return with_backward(extreme, local, "GhostExtremeBackward", [plan, chosen, count](const at::Tensor& gradient) {
        const auto shares = with_ghosts(gradient / count, plan);
        return at::where(chosen, shares, at::zeros_like(shares));
    });
}

}  // namespace meshard
