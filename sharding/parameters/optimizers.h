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
    Lion,   ///< Chen et al. 2023: a sign for each number
    Muon    ///< Jordan et al. 2024, with Nesterov's momentum: matrices are orthogonalised; what is no matrix goes by AdamW
};

struct UpdateOptions {
    UpdateRule rule = UpdateRule::AdamW;
    double rate_factor = 1;   ///< of the learning rate that all have
    double weight_decay = 0;  ///< decoupled: a step takes rate * weight_decay of the weights away
    std::array<double, 2> betas{0.9, 0.999};
    double momentum = 0.95;     ///< of Muon
    bool matches_adamw = true;  ///< Muon's steps have the size of AdamW's, 0.2 sqrt(max(rows, columns)) (Liu et al. 2025); else sqrt(max(1, rows / columns))
};

/// A parameter that an optimiser changes, as a rank holds it.
struct OptimizedParameter {
    at::Tensor values;                ///< a leaf: the whole, or this rank's part, flat
    std::vector<std::int64_t> shape;  ///< of the whole
};

struct OptimizedGroup {
    UpdateOptions options;
    std::vector<OptimizedParameter> parameters;
};

/// What an optimiser keeps of a parameter.
struct OptimizerState {
    std::int64_t step = 0;  ///< updates so far
    at::Tensor mean;        ///< running mean of gradients; Muon's momentum
    at::Tensor squares;     ///< running mean of their squares; undefined but for AdamW
};

/// The optimisers of a model: each parameter has the rule and the options of its group. Of parameters that are cut among ranks AdamW and Lion change the parts;
/// for Muon each matrix has a rank that collects its momentum, orthogonalises it and hands the parts back, in two messages for all matrices.
/// AdamW on the CPU has the bits of torch::optim::AdamW, whose state it has, too. Nothing waits for a device.
class Optimizers {
public:
    /// @param parts_of   ranks that parameters are cut among; null: all are whole, the same on every rank. Collective over these. Must outlive this.
    explicit Optimizers(const std::vector<OptimizedGroup>& groups, const RankGroup* parts_of = nullptr);

    /// Parameters that make one group without parts, by an optimiser of LibTorch's.
    explicit Optimizers(std::unique_ptr<torch::optim::AdamW> adamw);

    /// The learning rate of the next steps, which each group takes times its factor.
    void set_rate(double rate);

    /// The first decay rate of AdamW and Lion, in place of the options'.
    void set_first_beta(double beta);

    /// Changes the parameters that have a gradient; collective over `parts_of`.
    void step();

    void zero_grad();

    const std::vector<at::Tensor>& parameters() const { return parameters_; }

    /// None before a parameter's first step.
    std::optional<OptimizerState> state(const at::Tensor& parameter) const;

    /// Goes on from a state, or begins anew where that lacks what the parameter's rule keeps.
    void set_state(const at::Tensor& parameter, const OptimizerState& state);

    /// Whether the state of a parameter has `squares`.
    bool keeps_squares(const at::Tensor& parameter) const { return !find(parameter); }

private:
    struct Member {
        OptimizedParameter parameter;
        std::vector<std::int64_t> lengths;  // of the part on each rank; empty where it is whole
        int owner = 0;                      // rank that orthogonalises it
        std::int64_t step = 0;
        at::Tensor mean;
    };
    struct Group {
        UpdateOptions options;
        std::vector<Member> members;
    };

    /// Group and place in it; none where a parameter goes by AdamW.
    std::optional<std::pair<std::size_t, std::size_t>> find(const at::Tensor& parameter) const;

    void deal_matrices();
    void step_lion(Group& group) const;
    void step_muon(Group& group) const;
    std::vector<at::Tensor> orthogonalized_parts(const Group& group, const std::vector<at::Tensor>& momenta) const;

    const RankGroup* parts_of_ = nullptr;
    double rate_ = 0;
    std::unique_ptr<torch::optim::AdamW> adamw_;  // null where no parameter goes by it
    std::vector<double> adamw_factors_;           // of its groups
    std::vector<Group> groups_;                   // of Lion and Muon
    std::vector<at::Tensor> parameters_;
};

}  // namespace meshard
