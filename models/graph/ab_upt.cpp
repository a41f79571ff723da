// SPDX-License-Identifier: Apache-2.0
#include "models/graph/ab_upt.h"

#include "models/layers/grid_points.h"
#include "models/layers/option_table.h"

#include <nlohmann/json.hpp>
#include <torch/torch.h>

namespace meshard {
namespace {

constexpr double kWeightStd = 0.02;

const OptionTable<AbUptOptions>& option_table()
{
    using O = AbUptOptions;
    static const OptionTable<O> table(
        "AB-UPT", {
                      {"surface_dim", &O::surface_dim, "channels of the surface's result", {.least = 1}},
                      {"volume_dim", &O::volume_dim, "channels of the volume's result", {.least = 1}},
                      {"hidden_dim", &O::hidden_dim, "channels", {.least = 1}},
                      {"num_heads", &O::num_heads, "attention heads; divides hidden_dim", {.least = 1}},
                      {"mlp_ratio", &O::mlp_ratio, "width of the blocks' MLPs over hidden_dim", {.least = 1}},
                      {"geometry_depth", &O::geometry_depth, "blocks among the supernodes", {.least = 0}},
                      {"radius", &O::radius, "of a supernode's neighbourhood, in the units of the positions", {.least = 0, .above = true}},
                      {"max_degree", &O::max_degree, "points of a neighbourhood that are kept, first by index", {.least = 1}},
                      {"physics_blocks", &O::physics_blocks, "blocks of the common branch, in order", {.words = {"perceiver", "shared", "cross", "joint"}}},
                      {"num_surface_blocks", &O::num_surface_blocks, "blocks with weights of the surface's own", {.least = 0}},
                      {"num_volume_blocks", &O::num_volume_blocks, "blocks with weights of the volume's own", {.least = 0}},
                      {"condition_dim", &O::condition_dim, "numbers of a case that modulate every block; 0 for none", {.least = 0}},
                  });
    return table;
}

torch::nn::Sequential bias_mlp(std::int64_t dim)
{
    return torch::nn::Sequential(torch::nn::Linear(dim, dim), torch::nn::GELU(), torch::nn::Linear(dim, dim));
}

}  // namespace

void AbUptOptions::validate() const
{
    option_table().check(*this);
    const OptionChecks checks("AB-UPT");
    checks.multiple("hidden_dim", hidden_dim, "num_heads", num_heads);
    constexpr std::int64_t kLeastHeadDim = 6;  // a pair of channels for each axis
    if (hidden_dim / num_heads < kLeastHeadDim || hidden_dim / num_heads % 2 != 0) {
        checks.refuse("hidden_dim / num_heads must be even and at least 6, and is " + std::to_string(hidden_dim / num_heads) + ".");
    }
}

AbUptOptions ab_upt_options(const nlohmann::json& arguments)
{
    return option_table().read(arguments);
}

nlohmann::json to_json(const AbUptOptions& options)
{
    return option_table().write(options);
}

std::vector<OptionInfo> ab_upt_option_infos()
{
    return option_table().infos();
}

AbUptImpl::AbUptImpl(AbUptOptions options) : options_(std::move(options))
{
    options_.validate();
    const auto dim = options_.hidden_dim;
    const AnchorBlockOptions block{.dim = dim, .num_heads = options_.num_heads, .mlp_ratio = options_.mlp_ratio, .condition_dim = options_.condition_dim};
    const auto add_anchor_blocks = [&](torch::nn::ModuleList& blocks, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) blocks->push_back(AnchorBlock(block));
    };
    encoder_ = register_module("encoder", SupernodePooling(dim, options_.radius, options_.max_degree));
    add_anchor_blocks(geometry_blocks_, options_.geometry_depth);
    register_module("geometry_blocks", geometry_blocks_);
    surface_bias_ = register_module("surface_bias", bias_mlp(dim));
    volume_bias_ = register_module("volume_bias", bias_mlp(dim));
    for (const auto& kind : options_.physics_blocks) {
        if (kind == "perceiver")
            physics_blocks_->push_back(PerceiverBlock(block));
        else
            physics_blocks_->push_back(AnchorBlock(block));
    }
    register_module("physics_blocks", physics_blocks_);
    add_anchor_blocks(surface_blocks_, options_.num_surface_blocks);
    register_module("surface_blocks", surface_blocks_);
    add_anchor_blocks(volume_blocks_, options_.num_volume_blocks);
    register_module("volume_blocks", volume_blocks_);
    surface_head_ = register_module("surface_head", torch::nn::Linear(dim, options_.surface_dim));
    volume_head_ = register_module("volume_head", torch::nn::Linear(dim, options_.volume_dim));

    torch::NoGradGuard no_grad;
    for (const auto& item : named_modules("", /*include_self=*/false)) {
        const auto* linear = item.value()->as<torch::nn::Linear>();
        if (!linear) continue;
        if (item.key().ends_with("modulation"))
            linear->weight.zero_();
        else
            linear->weight.normal_(0.0, kWeightStd);
        linear->bias.zero_();
    }
}

AbUptOutputs AbUptImpl::forward(const AbUptInputs& inputs)
{
    const auto dim = options_.hidden_dim, head_dim = dim / options_.num_heads;
    const auto point_rows = [](const char* name, const torch::Tensor& tensor) { return flat_points("AB-UPT", name, tensor, {}, 3); };
    const auto tokens = [&](const char* name, const torch::Tensor& positions, torch::nn::Sequential& bias) -> Tokens {
        const auto x = point_rows(name, positions);
        return {bias->forward(position_embedding(x, dim)), rotary_angles(x, head_dim)};
    };

    const auto supernodes = point_rows("supernodes", inputs.supernodes);
    std::vector<Branch> geometry{
        {.anchors = {encoder_(point_rows("geometry", inputs.geometry), supernodes), rotary_angles(supernodes, head_dim)}, .queries = {}}};
    for (const auto& block : *geometry_blocks_) block->as<AnchorBlock>()->forward(geometry, AnchorsOf::Own, inputs.condition);

    std::vector<Branch> branches(2);  // surface, volume
    branches[0].anchors = tokens("surface_anchors", inputs.surface_anchors, surface_bias_);
    branches[1].anchors = tokens("volume_anchors", inputs.volume_anchors, volume_bias_);
    if (inputs.surface_queries.defined()) branches[0].queries = tokens("surface_queries", inputs.surface_queries, surface_bias_);
    if (inputs.volume_queries.defined()) branches[1].queries = tokens("volume_queries", inputs.volume_queries, volume_bias_);
    for (std::size_t i = 0; i < options_.physics_blocks.size(); ++i) {
        const auto& kind = options_.physics_blocks[i];
        if (kind == "perceiver") {
            physics_blocks_[i]->as<PerceiverBlock>()->forward(branches, geometry[0].anchors, inputs.condition);
        } else {
            const auto anchors = kind == "shared" ? AnchorsOf::Own : kind == "cross" ? AnchorsOf::Other : AnchorsOf::All;
            physics_blocks_[i]->as<AnchorBlock>()->forward(branches, anchors, inputs.condition);
        }
    }

    const auto decode = [&](const Branch& branch, torch::nn::ModuleList& blocks) {
        std::vector<Branch> alone{branch};
        for (const auto& block : *blocks) block->as<AnchorBlock>()->forward(alone, AnchorsOf::Own, inputs.condition);
        return alone.front();
    };
    const auto surface = decode(branches[0], surface_blocks_), volume = decode(branches[1], volume_blocks_);
    AbUptOutputs outputs{.surface_anchors = surface_head_(surface.anchors.values),
                         .volume_anchors = volume_head_(volume.anchors.values),
                         .surface_queries = {},
                         .volume_queries = {}};
    if (inputs.surface_queries.defined()) outputs.surface_queries = surface_head_(surface.queries.values);
    if (inputs.volume_queries.defined()) outputs.volume_queries = volume_head_(volume.queries.values);
    return outputs;
}

}  // namespace meshard
