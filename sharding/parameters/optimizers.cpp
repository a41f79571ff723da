// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/optimizers.h"

#include "sharding/parameters/fused_adamw.h"
#include "sharding/parameters/orthogonalize.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace meshard {
namespace {

using AdamWState = torch::optim::AdamWParamState;

torch::optim::AdamWOptions adamw_options(const UpdateOptions& options)
{
    return torch::optim::AdamWOptions().betas({options.betas[0], options.betas[1]}).weight_decay(options.weight_decay);
}

/// Cost of orthogonalising a matrix: the number of multiplications, up to a constant factor.
double work_of(const std::vector<std::int64_t>& shape)
{
    const auto [shorter, longer] = std::minmax(shape[0], shape[1]);
    return static_cast<double>(shorter) * static_cast<double>(shorter) * static_cast<double>(2 * longer + shorter);
}

/// Orthogonalises matrices, those of equal shape in one batch.
std::vector<at::Tensor> orthogonalized_by_shape(const std::vector<at::Tensor>& matrices)
{
    std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::size_t>> by_shape;
    for (std::size_t i = 0; i < matrices.size(); ++i) by_shape[{matrices[i].size(0), matrices[i].size(1)}].push_back(i);
    std::vector<at::Tensor> results(matrices.size());
    for (const auto& [shape, indices] : by_shape) {
        std::vector<at::Tensor> alike;
        for (const auto i : indices) alike.push_back(matrices[i]);
        const auto found = orthogonalized(at::stack(alike));
        for (std::size_t k = 0; k < indices.size(); ++k) results[indices[k]] = found[static_cast<std::int64_t>(k)];
    }
    return results;
}

}  // namespace

Optimizers::Optimizers(const std::vector<OptimizedGroup>& groups, const RankGroup* parts_of) : parts_of_(parts_of)
{
    std::vector<torch::optim::OptimizerParamGroup> of_adamw;
    std::vector<at::Tensor> of_adamw_alone;
    for (const auto& group : groups) {
        Group own{group.options, {}};
        std::vector<at::Tensor> others;
        for (const auto& parameter : group.parameters) {
            parameters_.push_back(parameter.values);
            const bool is_own = group.options.rule == UpdateRule::Lion ||
                                (group.options.rule == UpdateRule::Muon && parameter.shape.size() == 2);
            if (is_own)
                own.members.push_back({parameter, {}, 0, 0, {}});
            else
                others.push_back(parameter.values);
        }
        if (!own.members.empty()) groups_.push_back(std::move(own));
        if (others.empty()) continue;
        of_adamw.emplace_back(others, std::make_unique<torch::optim::AdamWOptions>(adamw_options(group.options)));
        adamw_factors_.push_back(group.options.rate_factor);
    }
    if (!of_adamw.empty()) adamw_ = make_adamw(std::move(of_adamw), torch::optim::AdamWOptions());
    deal_matrices();
}

Optimizers::Optimizers(std::unique_ptr<torch::optim::AdamW> adamw) : adamw_(std::move(adamw)), adamw_factors_(1, 1.0)
{
    parameters_ = adamw_->param_groups().front().params();
}

/// Assigns each matrix to a rank: in order of decreasing cost, each to the rank with the least work so far.
void Optimizers::deal_matrices()
{
    std::vector<Member*> matrices;
    for (auto& group : groups_) {
        if (group.options.rule != UpdateRule::Muon) continue;
        for (auto& matrix : group.members) matrices.push_back(&matrix);
    }
    if (!parts_of_ || matrices.empty()) return;
    std::vector<std::int64_t> own;
    for (const auto* matrix : matrices) own.push_back(matrix->parameter.values.numel());
    const auto of_ranks = parts_of_->all_gather_integers(own);
    for (std::size_t i = 0; i < matrices.size(); ++i) {
        for (const auto& of_rank : of_ranks) matrices[i]->lengths.push_back(of_rank[i]);
    }
    std::ranges::stable_sort(matrices, [](const auto* a, const auto* b) {
        return work_of(a->parameter.shape) > work_of(b->parameter.shape);
    });
    std::vector<double> work(parts_of_->size());
    for (auto* matrix : matrices) {
        matrix->owner = static_cast<int>(std::ranges::min_element(work) - work.begin());
        work[matrix->owner] += work_of(matrix->parameter.shape);
    }
}

void Optimizers::set_rate(double rate)
{
    rate_ = rate;
    if (!adamw_) return;
    auto& groups = adamw_->param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i)
        static_cast<torch::optim::AdamWOptions&>(groups[i].options()).lr(rate * adamw_factors_[i]);
}

void Optimizers::set_first_beta(double beta)
{
    for (auto& group : groups_) group.options.betas[0] = beta;
    if (!adamw_) return;
    for (auto& group : adamw_->param_groups()) {
        auto& options = static_cast<torch::optim::AdamWOptions&>(group.options());
        options.betas({beta, std::get<1>(options.betas())});
    }
}

void Optimizers::step()
{
    if (adamw_) adamw_->step();
    const at::NoGradGuard no_grad;
    for (auto& group : groups_) {
        for (auto& one : group.members) {
            if (!one.mean.defined()) one.mean = at::zeros_like(one.parameter.values, at::MemoryFormat::Preserve);
            if (one.parameter.values.grad().defined()) ++one.step;
        }
        if (group.options.rule == UpdateRule::Lion)
            step_lion(group);
        else
            step_muon(group);
    }
}

void Optimizers::step_lion(Group& group) const
{
    std::vector<at::Tensor> parameters, gradients, means;
    for (const auto& one : group.members) {
        if (!one.parameter.values.grad().defined() || one.parameter.values.numel() == 0) continue;
        parameters.push_back(one.parameter.values);
        gradients.push_back(one.parameter.values.grad());
        means.push_back(one.mean);
    }
    if (parameters.empty()) return;
    const auto rate = rate_ * group.options.rate_factor;
    const auto [beta1, beta2] = group.options.betas;
    at::_foreach_mul_(parameters, 1 - rate * group.options.weight_decay);
    const auto directions = at::_foreach_mul(means, beta1);
    at::_foreach_add_(directions, gradients, 1 - beta1);
    at::_foreach_sign_(directions);
    at::_foreach_add_(parameters, directions, -rate);
    at::_foreach_mul_(means, beta2);
    at::_foreach_add_(means, gradients, 1 - beta2);
}

void Optimizers::step_muon(Group& group) const
{
    const auto rate = rate_ * group.options.rate_factor, momentum = group.options.momentum;
    std::vector<at::Tensor> directions;
    for (const auto& one : group.members) {
        // Parameters without a gradient are sent too: ranks that hold no part of a matrix cannot know whether it has
        // one.
        const auto gradient =
            one.parameter.values.grad().defined() ? one.parameter.values.grad() : at::zeros_like(one.mean);
        one.mean.mul_(momentum).add_(gradient, 1 - momentum);
        directions.push_back(one.mean.mul(momentum).add_(gradient, 1 - momentum));
    }
    const auto updates = parts_of_ ? orthogonalized_parts(group, directions) : orthogonalized_by_shape(directions);
    for (std::size_t i = 0; i < group.members.size(); ++i) {
        const auto& [values, shape] = group.members[i].parameter;
        if (!values.grad().defined()) continue;
        const auto rows = static_cast<double>(shape[0]), columns = static_cast<double>(shape[1]);
        const auto size = group.options.matches_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                                      : std::sqrt(std::max(1.0, rows / columns));
        at::Tensor(values).mul_(1 - rate * group.options.weight_decay).add_(updates[i], -rate * size);
    }
}

/// Collects the matrices at their owners, orthogonalises them there and returns this rank's parts.
std::vector<at::Tensor> Optimizers::orthogonalized_parts(const Group& group,
                                                         const std::vector<at::Tensor>& momenta) const
{
    const auto num_ranks = parts_of_->size(), me = parts_of_->rank();
    const auto& members = group.members;
    std::vector<std::size_t> by_owner(members.size());  // member indices in the order in which they are sent
    std::iota(by_owner.begin(), by_owner.end(), std::size_t{0});
    std::ranges::stable_sort(by_owner, [&](auto a, auto b) { return members[a].owner < members[b].owner; });

    std::vector<at::Tensor> sent;
    std::vector<std::size_t> own;
    std::vector<std::int64_t> send_lengths(num_ranks), receive_lengths(num_ranks);
    for (const auto i : by_owner) {
        sent.push_back(momenta[i].reshape({-1}));
        send_lengths[members[i].owner] += momenta[i].numel();
        if (members[i].owner != me) continue;
        own.push_back(i);
        for (int rank = 0; rank < num_ranks; ++rank) receive_lengths[rank] += members[i].lengths[rank];
    }
    const auto received = parts_of_->all_to_all_rows(at::cat(sent), send_lengths, receive_lengths);

    std::vector<std::vector<at::Tensor>> pieces(own.size());
    std::int64_t offset = 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
        for (std::size_t k = 0; k < own.size(); ++k) {
            const auto length = members[own[k]].lengths[rank];
            pieces[k].push_back(received.narrow(0, offset, length));
            offset += length;
        }
    }
    std::vector<at::Tensor> matrices;
    for (std::size_t k = 0; k < own.size(); ++k)
        matrices.push_back(at::cat(pieces[k]).view(members[own[k]].parameter.shape));
    const auto results = orthogonalized_by_shape(matrices);

    std::vector<at::Tensor> returned{received.narrow(0, 0, 0)};
    std::vector<std::int64_t> taken(own.size());
    for (int rank = 0; rank < num_ranks; ++rank) {
        for (std::size_t k = 0; k < own.size(); ++k) {
            const auto length = members[own[k]].lengths[rank];
            returned.push_back(results[k].reshape({-1}).narrow(0, taken[k], length));
            taken[k] += length;
        }
    }
    const auto back = parts_of_->all_to_all_rows(at::cat(returned), receive_lengths, send_lengths);
    std::vector<at::Tensor> parts(members.size());
    offset = 0;
    for (const auto i : by_owner) {
        parts[i] = back.narrow(0, offset, momenta[i].numel()).view(momenta[i].sizes());
        offset += momenta[i].numel();
    }
    return parts;
}

void Optimizers::zero_grad()
{
    for (auto& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
}

std::optional<std::pair<std::size_t, std::size_t>> Optimizers::find(const at::Tensor& parameter) const
{
    for (std::size_t g = 0; g < groups_.size(); ++g) {
        for (std::size_t i = 0; i < groups_[g].members.size(); ++i) {
            if (groups_[g].members[i].parameter.values.is_same(parameter)) return std::pair(g, i);
        }
    }
    return std::nullopt;
}

std::optional<OptimizerState> Optimizers::state(const at::Tensor& parameter) const
{
    if (const auto place = find(parameter)) {
        const auto& own = groups_[place->first].members[place->second];
        if (own.step == 0) return std::nullopt;
        return OptimizerState{own.step, own.mean, {}};
    }
    if (!adamw_) return std::nullopt;
    const auto found = adamw_->state().find(parameter.unsafeGetTensorImpl());
    if (found == adamw_->state().end()) return std::nullopt;
    const auto& state = static_cast<const AdamWState&>(*found->second);
    return OptimizerState{state.step(), state.exp_avg(), state.exp_avg_sq()};
}

void Optimizers::set_state(const at::Tensor& parameter, const OptimizerState& state)
{
    if (const auto place = find(parameter)) {
        auto& own = groups_[place->first].members[place->second];
        own.step = state.step;
        own.mean = state.mean.to(parameter.device());
        return;
    }
    if (!state.squares.defined()) return;
    auto made = std::make_unique<AdamWState>();
    made->step(state.step);
    made->exp_avg(state.mean.to(parameter.device()));
    made->exp_avg_sq(state.squares.to(parameter.device()));
    adamw_->state()[parameter.unsafeGetTensorImpl()] = std::move(made);
}

}  // namespace meshard
