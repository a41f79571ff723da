// SPDX-License-Identifier: Apache-2.0
#include "models/graph/ab_upt.h"

#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "models/layers/grid_points.h"
#include "models/layers/option_checks.h"
#include "models/layers/option_table.h"

namespace meshard {
namespace {

constexpr double kWeightStd = 0.02;

/// Calls `visit(name, member)` for every option: the only list of names.
template <class Options, class Visit>
void for_each_option(Options& options, Visit&& visit)
{
    visit("surface_dim", options.surface_dim);
    visit("volume_dim", options.volume_dim);
    visit("hidden_dim", options.hidden_dim);
    visit("num_heads", options.num_heads);
    visit("mlp_ratio", options.mlp_ratio);
    visit("geometry_depth", options.geometry_depth);
    visit("radius", options.radius);
    visit("max_degree", options.max_degree);
    visit("physics_blocks", options.physics_blocks);
    visit("num_surface_blocks", options.num_surface_blocks);
    visit("num_volume_blocks", options.num_volume_blocks);
    visit("condition_dim", options.condition_dim);
}

torch::nn::Sequential bias_mlp(std::int64_t dim)
{
    return torch::nn::Sequential(torch::nn::Linear(dim, dim), torch::nn::GELU(), torch::nn::Linear(dim, dim));
}

}  // namespace

void AbUptOptions::validate() const
{
    const OptionChecks checks("AB-UPT");
    checks.at_least(1, {{"surface_dim", surface_dim}, {"volume_dim", volume_dim}, {"hidden_dim", hidden_dim}, {"num_heads", num_heads}, {"mlp_ratio", mlp_ratio},
                        {"max_degree", max_degree}});
    checks.at_least(0, {{"geometry_depth", geometry_depth}, {"num_surface_blocks", num_surface_blocks}, {"num_volume_blocks", num_volume_blocks},
                        {"condition_dim", condition_dim}});
    checks.multiple("hidden_dim", hidden_dim, "num_heads", num_heads);
    constexpr std::int64_t kLeastHeadDim = 6;   // a pair of channels for each axis
    if (hidden_dim / num_heads < kLeastHeadDim || hidden_dim / num_heads % 2 != 0) {
        checks.refuse("hidden_dim / num_heads must be even and at least 6, and is " + std::to_string(hidden_dim / num_heads) + ".");
    }
    for (const auto& block : physics_blocks) checks.one_of("an entry of physics_blocks", block, {"perceiver", "shared", "cross", "joint"});
    if (!(radius > 0)) checks.refuse("radius must be above 0, and is " + std::to_string(radius) + ".");
}

AbUptOptions ab_upt_options(const nlohmann::json& arguments)
{
    return read_options<AbUptOptions>("AB-UPT", arguments, [](auto& options, auto&& visit) { for_each_option(options, visit); });
}

nlohmann::json to_json(const AbUptOptions& options)
{
    nlohmann::json arguments;
    for_each_option(options, [&](const char* name, const auto& member) { arguments[name] = member; });
    return arguments;
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
        if (kind == "perceiver") physics_blocks_->push_back(PerceiverBlock(block));
        else physics_blocks_->push_back(AnchorBlock(block));
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
        if (item.key().ends_with("modulation")) linear->weight.zero_();
        else linear->weight.normal_(0.0, kWeightStd);
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
    std::vector<Branch> geometry{{.anchors = {encoder_(point_rows("geometry", inputs.geometry), supernodes), rotary_angles(supernodes, head_dim)}, .queries = {}}};
    for (const auto& block : *geometry_blocks_) block->as<AnchorBlock>()->forward(geometry, AnchorsOf::Own, inputs.condition);

    std::vector<Branch> branches(2);   // surface, volume
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
    AbUptOutputs outputs{.surface_anchors = surface_head_(surface.anchors.values), .volume_anchors = volume_head_(volume.anchors.values), .surface_queries = {}, .volume_queries = {}};
    if (inputs.surface_queries.defined()) outputs.surface_queries = surface_head_(surface.queries.values);
    if (inputs.volume_queries.defined()) outputs.volume_queries = volume_head_(volume.queries.values);
    return outputs;
}

}  // namespace meshard
