// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/rank_group.h"

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace meshard {

enum class UpdateRule : std::uint8_t {
    AdamW,  ///< Loshchilov and Hutter 2019
    Lion,   ///< Chen et al. 2023: each step is a sign
    Muon    ///< Jordan et al. 2024, with Nesterov's momentum: matrices are orthogonalised; other parameters use AdamW
};

struct UpdateOptions {
    UpdateRule rule = UpdateRule::AdamW;
    double rate_factor = 1;   ///< multiplies the common learning rate
    double weight_decay = 0;  ///< decoupled: a step subtracts rate * weight_decay * weights
    std::array<double, 2> betas{0.9, 0.999};
    double momentum = 0.95;  ///< for Muon
    /// Scale Muon's steps to the size of AdamW's, 0.2 sqrt(max(rows, columns)) (Liu et al. 2025), instead of
    /// sqrt(max(1, rows / columns)).
    bool matches_adamw = true;
};

/// A parameter to optimise.
struct OptimizedParameter {
    at::Tensor values;                ///< a leaf: the whole parameter, or this rank's part of it, flat
    std::vector<std::int64_t> shape;  ///< shape of the whole parameter
};

struct OptimizedGroup {
    UpdateOptions options;
    std::vector<OptimizedParameter> parameters;
};

/// Optimiser state of one parameter.
struct OptimizerState {
    std::int64_t step = 0;  ///< number of updates so far
    at::Tensor mean;        ///< running mean of gradients, or Muon's momentum
    at::Tensor squares;     ///< running mean of squared gradients; undefined except for AdamW
};

/// The optimisers of a model: each group of parameters has its own rule and options. For parameters that are sharded
/// over ranks, AdamW and Lion update the local parts; for Muon each matrix has an owner that collects its momentum,
/// orthogonalises it and sends the parts back, in two messages for all matrices. On the CPU, AdamW has the bits and the
/// state of torch::optim::AdamW. The host never waits for a device.
class Optimizers {
public:
    /// Collective over `parts_of`.
    /// @param parts_of   ranks over which parameters are sharded; null if every rank holds whole, equal parameters.
    ///                   Must outlive this object.
    explicit Optimizers(const std::vector<OptimizedGroup>& groups, const RankGroup* parts_of = nullptr);

    /// Wraps one of LibTorch's optimisers as the only group, of whole parameters.
    explicit Optimizers(std::unique_ptr<torch::optim::AdamW> adamw);

    /// Sets the learning rate of the next steps; each group multiplies it by its `rate_factor`.
    void set_rate(double rate);

    /// Sets the first decay rate of AdamW and Lion in all groups.
    void set_first_beta(double beta);

    /// Updates the parameters that have a gradient. Collective over `parts_of`.
    void step();

    void zero_grad();

    const std::vector<at::Tensor>& parameters() const { return parameters_; }

    /// The state of a parameter; none before its first step.
    std::optional<OptimizerState> state(const at::Tensor& parameter) const;

    /// Restores a state; starts anew if it lacks what the parameter's rule needs.
    void set_state(const at::Tensor& parameter, const OptimizerState& state);

    /// Returns whether the state of a parameter has `squares`.
    bool keeps_squares(const at::Tensor& parameter) const { return !find(parameter); }

private:
    struct Member {
        OptimizedParameter parameter;
        std::vector<std::int64_t> lengths;  // length of each rank's part; empty for a whole parameter
        int owner = 0;                      // rank that orthogonalises the matrix
        std::int64_t step = 0;
        at::Tensor mean;
    };
    struct Group {
        UpdateOptions options;
        std::vector<Member> members;
    };

    /// Indices of group and member; none for a parameter that AdamW updates.
    std::optional<std::pair<std::size_t, std::size_t>> find(const at::Tensor& parameter) const;

    void deal_matrices();
    void step_lion(Group& group) const;
    void step_muon(Group& group) const;
    std::vector<at::Tensor> orthogonalized_parts(const Group& group, const std::vector<at::Tensor>& momenta) const;

    const RankGroup* parts_of_ = nullptr;
    double rate_ = 0;
    std::unique_ptr<torch::optim::AdamW> adamw_;  // null if no parameter uses AdamW
    std::vector<double> adamw_factors_;           // `rate_factor` of each AdamW group
    std::vector<Group> groups_;                   // groups that use Lion or Muon
    std::vector<at::Tensor> parameters_;
};

}  // namespace meshard
