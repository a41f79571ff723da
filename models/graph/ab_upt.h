// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/graph/anchor_attention.h"
#include "models/layers/memory_mode.h"
#include "models/layers/option_checks.h"

#include <nlohmann/json_fwd.hpp>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace meshard {

/// Pools a geometry to fewer tokens (Alkin et al. 2024, Universal physics transformers): the token of a supernode is
/// computed from the mean message of the points around it and from its own position.
class SupernodePoolingImpl : public torch::nn::Module {
public:
    /// @param max_degree   if more points are within the radius, those with the lowest ids are used
    SupernodePoolingImpl(std::int64_t num_channels, double radius, std::int64_t max_degree);

    /// @param geometry     (B, N, 3)
    /// @param supernodes   (B, M, 3), a subset of the geometry's points
    /// @return             (B, M, num_channels)
    torch::Tensor forward(const torch::Tensor& geometry, const torch::Tensor& supernodes);

private:
    std::int64_t num_channels_, max_degree_;
    double radius_;
    torch::nn::Sequential message_;
    torch::nn::Linear proj_{nullptr};
};
TORCH_MODULE(SupernodePooling);

/// Constructor arguments of an AB-UPT.
struct AbUptOptions {
    std::int64_t surface_dim = 0;  ///< must be set
    std::int64_t volume_dim = 0;   ///< must be set
    std::int64_t hidden_dim = 192;
    std::int64_t num_heads = 3;
    std::int64_t mlp_ratio = 4;
    std::int64_t geometry_depth = 1;
    double radius = 0.25;
    std::int64_t max_degree = 32;
    std::vector<std::string> physics_blocks{"perceiver", "shared", "cross",  "shared", "cross",
                                            "shared",    "cross",  "shared", "cross",  "shared"};
    std::int64_t num_surface_blocks = 2;
    std::int64_t num_volume_blocks = 2;
    std::int64_t condition_dim = 0;

    /// @throws InvalidInput naming the option, its value and what is allowed.
    void validate() const;
};

/// Reads arguments by name; absent ones keep their defaults. @throws InvalidInput for an unknown name or a value of the
/// wrong type.
AbUptOptions ab_upt_options(const nlohmann::json& arguments);
nlohmann::json to_json(const AbUptOptions& options);
std::vector<OptionInfo> ab_upt_option_infos();  ///< describes all options

/// Positions, each (B, N, 3). All tokens attend to anchors and none to queries, so that the number of queries does not
/// change other results. A query at the position of an anchor gets the anchor's result.
struct AbUptInputs {
    torch::Tensor geometry;
    torch::Tensor supernodes;  ///< a subset of the geometry's points
    torch::Tensor surface_anchors, volume_anchors;
    torch::Tensor surface_queries, volume_queries;  ///< undefined: no queries
    torch::Tensor condition;                        ///< (B, condition_dim); undefined: no condition
};

/// (B, N, surface_dim) or (B, N, volume_dim); undefined if the inputs are.
struct AbUptOutputs {
    torch::Tensor surface_anchors, volume_anchors, surface_queries, volume_queries;
};

/// Anchored-branched universal physics transformer (Alkin et al. 2025, arXiv 2502.09692): tokens of surface and volume
/// attend to their own anchors, to those of the other branch, and to a pooled geometry.
class AbUptImpl : public torch::nn::Module, public HasMemoryModes {
public:
    /// Initial values: weights normal(0, 0.02), biases and modulations 0.
    /// @throws InvalidInput as `AbUptOptions::validate`.
    explicit AbUptImpl(AbUptOptions options);

    /// Without gradients a rank processes its queries in turns, so that memory does not grow with their number; sharded
    /// anchors are then gathered once, not in each turn.
    /// @throws InvalidInput for inputs that are missing or do not fit.
    AbUptOutputs forward(const AbUptInputs& inputs);

    /// `recomputed` keeps the inputs of each block. @throws InvalidInput for `streamed`
    void set_memory(MemoryMode mode) override;

    void set_queries_of_a_turn(std::int64_t count) { queries_of_a_turn_ = count; }

    const AbUptOptions& options() const { return options_; }

private:
    /// A block as applied to queries, and the keys and values of the anchors to which they attend.
    struct Meeting {
        std::function<torch::Tensor(const Tokens& queries, const KeysAndValues& anchors)> block;
        KeysAndValues anchors;
    };
    /// The anchors of the branches, surface and volume, and what the queries of each attend to.
    struct Physics {
        std::vector<Tokens> anchors;
        std::vector<std::vector<Meeting>> meetings;
    };

    Tokens tokens_at(const char* name, const torch::Tensor& positions, torch::nn::Sequential& bias);
    Tokens geometry_tokens(const AbUptInputs& inputs);
    Physics physics_of(const AbUptInputs& inputs);
    torch::Tensor results_at(const char* name, const torch::Tensor& queries, torch::nn::Sequential& bias,
                             const std::vector<Meeting>& meetings, torch::nn::Linear& head);

    std::vector<KeysAndValues> run(AnchorBlock block, std::vector<Tokens>& branches, AnchorsOf anchors,
                                   const torch::Tensor& condition) const;
    template <class Block>
    Meeting meeting(Block block, KeysAndValues anchors, const torch::Tensor& condition) const;

    AbUptOptions options_;
    MemoryMode memory_ = MemoryMode::Stored;
    std::int64_t queries_of_a_turn_ = 16384;
    SupernodePooling encoder_{nullptr};
    torch::nn::ModuleList geometry_blocks_;
    torch::nn::Sequential surface_bias_{nullptr}, volume_bias_{nullptr};
    torch::nn::ModuleList physics_blocks_;
    torch::nn::ModuleList surface_blocks_, volume_blocks_;
    torch::nn::Linear surface_head_{nullptr}, volume_head_{nullptr};
};
TORCH_MODULE(AbUpt);

}  // namespace meshard
