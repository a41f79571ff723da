// SPDX-License-Identifier: Apache-2.0
#include "ops/ghost_exchange.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>

#include "ops/row_moves.h"
#include "partition/error.h"
#include "sharding/with_backward.h"

namespace meshard {
namespace {

using Plan = std::shared_ptr<const ExchangePlan>;

/// Several inputs and outputs, one step back.
struct FieldsBackward : torch::autograd::Node {
    std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> backward;

    torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override { return backward(std::move(gradients)); }
    std::string name() const override { return "GhostExchangeBackward"; }
};

void require_rows(const char* where, const at::Tensor& tensor, std::int64_t expected, const ExchangePlan& plan)
{
    if (tensor.dim() >= 1 && tensor.size(0) == expected) return;
    throw InvalidInput(std::string(where) + ": a tensor of " + std::to_string(tensor.dim() < 1 ? 0 : tensor.size(0)) + " rows, expected " +
                       std::to_string(expected) + "; the plan has " + std::to_string(plan.num_owned()) + " owned + " +
                       std::to_string(plan.num_ghosts()) + " ghost rows. Is it of another layout?");
}

/// (rows, ...) in the type that travels.
at::Tensor as_sent(const at::Tensor& rows, std::optional<at::ScalarType> wire_type)
{
    return wire_type && rows.is_floating_point() ? rows.to(*wire_type) : rows;
}

/// Rows of several tensors side by side: as they are if they share a type, else as bytes.
at::Tensor packed(const std::vector<at::Tensor>& parts, std::int64_t num_rows)
{
    const bool same = std::all_of(parts.begin(), parts.end(), [&](const at::Tensor& part) { return part.scalar_type() == parts[0].scalar_type(); });
    std::vector<at::Tensor> columns;
    for (const auto& part : parts) {
        const auto width = part.numel() / std::max<std::int64_t>(1, num_rows);
        const auto flat = part.contiguous().view({num_rows, num_rows == 0 ? c10::multiply_integers(part.sizes().slice(1)) : width});
        // A copy: of one row or none, `contiguous` keeps strides that a view in another type refuses.
        columns.push_back(same ? flat : at::empty(flat.sizes(), flat.options()).copy_(flat).view(at::kByte));
    }
    return columns.size() == 1 ? columns[0] : at::cat(columns, 1);
}

/// The inverse: one tensor like each of `likes`, of `num_rows` rows and in the types that travelled.
std::vector<at::Tensor> unpacked(const at::Tensor& buffer, const std::vector<at::Tensor>& likes, std::int64_t num_rows)
{
    if (likes.size() == 1 && buffer.scalar_type() == likes[0].scalar_type()) {   // as it came, no copy
        auto shape = likes[0].sizes().vec();
        shape[0] = num_rows;
        return {buffer.view(shape)};
    }
    std::vector<at::Tensor> parts;
    std::int64_t column = 0;
    for (const auto& like : likes) {
        auto shape = like.sizes().vec();
        shape[0] = num_rows;
        const auto width = c10::multiply_integers(like.sizes().slice(1)) *
                           (buffer.scalar_type() == like.scalar_type() ? 1 : static_cast<std::int64_t>(like.element_size()));
        const auto columns = buffer.narrow(1, column, width);
        auto part = at::empty(columns.sizes(), columns.options()).copy_(columns);
        column += width;
        if (buffer.scalar_type() != like.scalar_type()) part = part.view(like.scalar_type());
        parts.push_back(part.view(shape));
    }
    return parts;
}

std::vector<std::int64_t> scaled(const std::vector<std::int64_t>& counts, std::int64_t factor)
{
    auto result = counts;
    for (auto& count : result) count *= factor;
    return result;
}

/// Sends rows of `buffer` to each rank; `received` is filled when the result has been waited for.
PendingCollective start(const at::Tensor& buffer, const std::vector<std::int64_t>& send, const std::vector<std::int64_t>& receive,
                        const RankGroup& group, at::Tensor& received)
{
    const auto width = buffer.size(1);
    std::int64_t rows = 0;
    for (const auto count : receive) rows += count;
    received = at::empty({rows, width}, buffer.options());
    auto flat = received.view({-1});
    return group.start_exchange(buffer.view({-1}), scaled(send, width), flat, scaled(receive, width));
}

/// Adds ghosts' rows, several tensors in one message, to zeros of the owned ones.
std::vector<at::Tensor> added_at_owners(std::vector<at::Tensor> ghosts, const ExchangePlan& plan, std::optional<at::ScalarType> wire_type)
{
    std::vector<at::Tensor> sent;
    for (const auto& rows : ghosts) sent.push_back(as_sent(rows, wire_type));
    at::Tensor received;
    const auto buffer = packed(sent, plan.num_ghosts());
    start(buffer, plan.receive_counts(), plan.send_counts(), plan.group(), received).wait();
    auto parts = unpacked(received, sent, plan.num_sent());
    const auto index = plan.sent_rows().to(received.device());
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = summed_rows(parts[i].to(ghosts[i].scalar_type()), index, plan.num_owned());
    return parts;
}

}  // namespace

PendingGhosts begin_ghost_exchange(at::TensorList fields, const Plan& plan, std::optional<at::ScalarType> wire_type)
{
    if (fields.empty()) throw InvalidInput("begin_ghost_exchange: no fields. Pass one tensor or more.");
    for (const auto& field : fields) require_rows("begin_ghost_exchange", field, plan->num_owned(), *plan);
    PendingGhosts ghosts;
    ghosts.plan_ = plan;
    ghosts.fields_ = fields.vec();
    ghosts.wire_type_ = wire_type;
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> sent;
    const auto index = plan->sent_rows().to(fields[0].device());
    for (const auto& field : fields) sent.push_back(as_sent(gathered_rows(field.detach(), index), wire_type));
    ghosts.sent_ = packed(sent, plan->num_sent());
    ghosts.pending_ = start(ghosts.sent_, plan->send_counts(), plan->receive_counts(), plan->group(), ghosts.received_);
    return ghosts;
}

std::vector<at::Tensor> PendingGhosts::end()
{
    if (!plan_) throw InvalidInput("PendingGhosts::end: nothing is under way. Call it once after begin_ghost_exchange.");
    pending_.wait();
    std::vector<at::Tensor> ghosts, as_travelled;
    {
        const at::NoGradGuard no_grad;
        for (const auto& field : fields_) as_travelled.push_back(as_sent(field.detach().narrow(0, 0, 0), wire_type_));
        ghosts = unpacked(received_, as_travelled, plan_->num_ghosts());
        for (std::size_t i = 0; i < ghosts.size(); ++i) ghosts[i] = ghosts[i].to(fields_[i].scalar_type());
    }
    const auto plan = std::exchange(plan_, nullptr);
    std::vector<std::size_t> differentiable;
    torch::autograd::edge_list edges;
    for (std::size_t i = 0; i < fields_.size(); ++i) {
        if (fields_[i].is_floating_point() && fields_[i].requires_grad()) differentiable.push_back(i);
    }
    if (!at::GradMode::is_enabled() || differentiable.empty()) return ghosts;

    const auto node = std::shared_ptr<FieldsBackward>(new FieldsBackward, torch::autograd::deleteNode);
    std::vector<at::Tensor> likes;
    for (const auto i : differentiable) {
        edges.push_back(torch::autograd::impl::gradient_edge(fields_[i]));
        likes.push_back(ghosts[i]);
    }
    node->set_next_edges(std::move(edges));
    node->backward = [plan, wire_type = wire_type_, shapes = likes](std::vector<at::Tensor> gradients) {
        const at::NoGradGuard no_grad;
        for (std::size_t i = 0; i < gradients.size(); ++i) {
            if (!gradients[i].defined()) gradients[i] = at::zeros_like(shapes[i]);
        }
        return added_at_owners(std::move(gradients), *plan, wire_type);
    };
    for (const auto i : differentiable) {
        ghosts[i] = ghosts[i].detach();
        torch::autograd::set_history(ghosts[i], node);
    }
    return ghosts;
}

at::Tensor ghost_rows(const at::Tensor& owned, const Plan& plan) { return begin_ghost_exchange({owned}, plan).end()[0]; }

at::Tensor with_ghosts(const at::Tensor& owned, const Plan& plan) { return at::cat({owned, ghost_rows(owned, plan)}); }

at::Tensor add_ghosts_to_owners(const at::Tensor& local, const Plan& plan)
{
    require_rows("add_ghosts_to_owners", local, plan->num_local(), *plan);
    at::Tensor sums;
    {
        const at::NoGradGuard no_grad;
        const auto rows = local.detach();
        sums = added_at_owners({rows.narrow(0, plan->num_owned(), plan->num_ghosts())}, *plan, std::nullopt)[0];
        sums = rows.narrow(0, 0, plan->num_owned()) + sums;
    }
    return with_backward(sums, local, "AddGhostsBackward", [plan](const at::Tensor& gradient) { return with_ghosts(gradient, plan); });
}

at::Tensor reduce_ghosts_to_owners(const at::Tensor& local, const Plan& plan, GhostReduction reduction)
{
    if (reduction == GhostReduction::Sum) return add_ghosts_to_owners(local, plan);
    require_rows("reduce_ghosts_to_owners", local, plan->num_local(), *plan);
    const auto index = plan->sent_rows().to(local.device());
    if (reduction == GhostReduction::Mean) {
        const auto copies = summed_rows(at::ones({plan->num_sent()}, local.options().requires_grad(false)), index, plan->num_owned()) + 1;
        auto shape = std::vector<std::int64_t>(local.dim(), 1);
        shape[0] = plan->num_owned();
        return add_ghosts_to_owners(local, plan) / copies.view(shape);
    }
    at::Tensor extreme;
    {
        const at::NoGradGuard no_grad;
        at::Tensor received;
        const auto rows = local.detach();
        const std::vector<at::Tensor> sent{rows.narrow(0, plan->num_owned(), plan->num_ghosts())};
        start(packed(sent, plan->num_ghosts()), plan->receive_counts(), plan->send_counts(), plan->group(), received).wait();
        extreme = rows.narrow(0, 0, plan->num_owned())
                      .clone()
                      .index_reduce_(0, index, unpacked(received, sent, plan->num_sent())[0], reduction == GhostReduction::Max ? "amax" : "amin");
    }
    if (!at::GradMode::is_enabled() || !local.requires_grad()) return extreme;
    // The rows that are the extreme, each with its share; the sum has the right gradient, the extreme itself the right bits.
    const auto chosen = local.detach().eq(with_ghosts(extreme, plan));
    const auto count = add_ghosts_to_owners(chosen.to(local.scalar_type()), plan);
    const auto shared = add_ghosts_to_owners(at::where(chosen, local, at::zeros_like(local)), plan) / count;
    return extreme + (shared - shared.detach());
}

}  // namespace meshard
