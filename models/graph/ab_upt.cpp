// SPDX-License-Identifier: Apache-2.0
#include "models/graph/ab_upt.h"

#include "models/graph/anchor_attention.h"
#include "models/layers/grid_points.h"
#include "models/layers/option_table.h"
#include "ops/neighbors/message_graph.h"
#include "ops/neighbors/point_clouds.h"
#include "sharding/memory/recompute.h"
#include "sharding/tensor/shard_tensor.h"

#include <nlohmann/json.hpp>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

namespace meshard {
namespace {

constexpr double kWeightStd = 0.02;

const OptionTable<AbUptOptions>& option_table()
{
    using O = AbUptOptions;
    static const OptionTable<O> table(
        "AB-UPT",
        {
            {"surface_dim", &O::surface_dim, "channels of the surface's result", {.least = 1}},
            {"volume_dim", &O::volume_dim, "channels of the volume's result", {.least = 1}},
            {"hidden_dim", &O::hidden_dim, "channels", {.least = 1}},
            {"num_heads", &O::num_heads, "attention heads; divides hidden_dim", {.least = 1}},
            {"mlp_ratio", &O::mlp_ratio, "width of the blocks' MLPs over hidden_dim", {.least = 1}},
            {"geometry_depth", &O::geometry_depth, "blocks among the supernodes", {.least = 0}},
            {"radius",
             &O::radius,
             "of a supernode's neighbourhood, in the units of the positions",
             {.least = 0, .above = true}},
            {"max_degree", &O::max_degree, "points of a neighbourhood that are kept, first by index", {.least = 1}},
            {"physics_blocks",
             &O::physics_blocks,
             "blocks of the common branch, in order",
             {.words = {"perceiver", "shared", "cross", "joint"}}},
            {"num_surface_blocks", &O::num_surface_blocks, "blocks with weights of the surface's own", {.least = 0}},
            {"num_volume_blocks", &O::num_volume_blocks, "blocks with weights of the volume's own", {.least = 0}},
            {"condition_dim",
             &O::condition_dim,
             "numbers of a case that modulate every block; 0 for none",
             {.least = 0}},
        });
    return table;
}

torch::nn::Sequential bias_mlp(std::int64_t dim)
{
    return torch::nn::Sequential(torch::nn::Linear(dim, dim), torch::nn::GELU(), torch::nn::Linear(dim, dim));
}

/// The rows that all ranks process in turn `turn`, (B, n, 3): at most `count` of each rank.
torch::Tensor rows_of_turn(const torch::Tensor& positions, std::int64_t turn, std::int64_t count)
{
    const auto taken = [&](std::int64_t extent) { return std::clamp<std::int64_t>(extent - turn * count, 0, count); };
    const auto own = to_local(positions);
    const auto rows = own.narrow(1, std::min(turn * count, own.size(1)), taken(own.size(1)));
    const auto axis = is_sharded(positions) ? spec_of(positions)->axis_of_dim(1) : -1;
    if (axis < 0) return is_sharded(positions) ? from_local(rows, spec_of(positions)) : rows;
    auto axes = spec_of(positions)->axes;
    Extents extents;
    for (const auto extent : *axes[axis].extents) extents.push_back(taken(extent));
    axes[axis] = {Shard(1), std::make_shared<const Extents>(std::move(extents)), 1};
    return from_local(rows, make_spec(spec_of(positions)->device_mesh, axes));
}

/// The largest number of rows of a rank.
std::int64_t most_rows(const torch::Tensor& positions)
{
    const auto axis = is_sharded(positions) ? spec_of(positions)->axis_of_dim(1) : -1;
    return axis < 0 ? positions.size(1) : *std::ranges::max_element(*spec_of(positions)->axes[axis].extents);
}

/// Gathers the rows of all ranks of keys and values, (B, H, N, D).
torch::Tensor with_all_rows(const torch::Tensor& x)
{
    const auto axis = is_sharded(x) ? spec_of(x)->axis_of_dim(2) : -1;
    if (axis < 0) return x;
    auto axes = spec_of(x)->axes;
    axes[axis] = {Replicate(), nullptr, 1};
    return redistribute(x, make_spec(spec_of(x)->device_mesh, axes));
}

}  // namespace

SupernodePoolingImpl::SupernodePoolingImpl(std::int64_t num_channels, double radius, std::int64_t max_degree)
    : num_channels_(num_channels), max_degree_(max_degree), radius_(radius)
{
    message_->push_back(torch::nn::Linear(2 * num_channels, num_channels));
    message_->push_back(torch::nn::GELU());
    message_->push_back(torch::nn::Linear(num_channels, num_channels));
    register_module("message", message_);
    proj_ = register_module("proj", torch::nn::Linear(2 * num_channels, num_channels));
}

torch::Tensor SupernodePoolingImpl::forward(const torch::Tensor& geometry, const torch::Tensor& supernodes)
{
    const auto clouds = unbind_clouds("AB-UPT", "geometry", geometry),
               supernode_clouds = unbind_clouds("AB-UPT", "supernodes", supernodes);
    std::vector<torch::Tensor> pooled;
    for (std::size_t b = 0; b < clouds.size(); ++b) {
        const MessageGraph graph(
            first_by_id(radius_search(clouds[b].detach(), supernode_clouds[b].detach(), radius_), max_degree_),
            supernode_clouds[b]);
        const auto sources = position_embedding(graph.from_sources(clouds[b]), num_channels_);            // (E, C)
        const auto targets = position_embedding(graph.from_targets(supernode_clouds[b]), num_channels_);  // (E, C)
        const auto messages = message_->forward(torch::cat({sources, targets}, -1));                      // (E, C)
        const auto means = graph.to_targets(messages, SegmentReduction::Mean);                            // (M, C)
        pooled.push_back(proj_(torch::cat({means, position_embedding(supernode_clouds[b], num_channels_)}, -1)));
    }
    return torch::stack(pooled);
}

void AbUptOptions::validate() const
{
    option_table().check(*this);
    const OptionChecks checks("AB-UPT");
    checks.multiple("hidden_dim", hidden_dim, "num_heads", num_heads);
    constexpr std::int64_t kLeastHeadDim = 6;  // a pair of channels for each axis
    if (hidden_dim / num_heads < kLeastHeadDim || hidden_dim / num_heads % 2 != 0) {
        checks.refuse("hidden_dim / num_heads must be even and at least 6, and is {}.", hidden_dim / num_heads);
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
    const AnchorBlockOptions block{.dim = dim,
                                   .num_heads = options_.num_heads,
                                   .mlp_ratio = options_.mlp_ratio,
                                   .condition_dim = options_.condition_dim};
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

void AbUptImpl::set_memory(MemoryMode mode)
{
    memory_ = unless_streamed("AB-UPT", mode);
}

std::vector<KeysAndValues> AbUptImpl::run(AnchorBlock block, std::vector<Tokens>& branches, AnchorsOf anchors,
                                          const torch::Tensor& condition) const
{
    if (memory_ == MemoryMode::Stored) return block->forward(branches, anchors, condition);
    std::vector<torch::Tensor> inputs;
    for (const auto& branch : branches) inputs.insert(inputs.end(), {branch.values, branch.angles});
    if (condition.defined()) inputs.push_back(condition);
    const auto num_branches = branches.size();
    const auto outputs = checkpoint(
        [block, anchors, num_branches](const std::vector<torch::Tensor>& given) mutable {
            std::vector<Tokens> tokens;
            for (std::size_t i = 0; i < num_branches; ++i) tokens.push_back({given[2 * i], given[2 * i + 1]});
            const auto own =
                block->forward(tokens, anchors, given.size() > 2 * num_branches ? given.back() : torch::Tensor());
            std::vector<torch::Tensor> results;
            for (std::size_t i = 0; i < num_branches; ++i)
                results.insert(results.end(), {tokens[i].values, own[i].keys, own[i].values});
            return results;
        },
        inputs);
    std::vector<KeysAndValues> own;
    for (std::size_t i = 0; i < num_branches; ++i) {
        branches[i].values = outputs[3 * i];
        own.push_back({outputs[3 * i + 1], outputs[3 * i + 2]});
    }
    return own;
}

template <class Block>
AbUptImpl::Meeting AbUptImpl::meeting(Block block, KeysAndValues anchors, const torch::Tensor& condition) const
{
    const auto stored = [block, condition](const Tokens& tokens, const KeysAndValues& seen) mutable {
        return block->forward(tokens, seen, condition);
    };
    if (memory_ == MemoryMode::Stored) return {stored, std::move(anchors)};
    const auto recomputed = [block, condition](const Tokens& tokens, const KeysAndValues& seen) {
        std::vector<torch::Tensor> inputs{tokens.values, tokens.angles, seen.keys, seen.values};
        if (condition.defined()) inputs.push_back(condition);
        return checkpoint(
            [block](const std::vector<torch::Tensor>& given) mutable -> std::vector<torch::Tensor> {
                return {block->forward({given[0], given[1]}, {given[2], given[3]},
                                       given.size() > 4 ? given[4] : torch::Tensor())};
            },
            inputs)[0];
    };
    return {recomputed, std::move(anchors)};
}

Tokens AbUptImpl::tokens_at(const char* name, const torch::Tensor& positions, torch::nn::Sequential& bias)
{
    const auto x = flat_points("AB-UPT", name, positions, {}, 3);
    return {bias->forward(position_embedding(x, options_.hidden_dim)),
            rotary_angles(x, options_.hidden_dim / options_.num_heads)};
}

Tokens AbUptImpl::geometry_tokens(const AbUptInputs& inputs)
{
    const auto supernodes = flat_points("AB-UPT", "supernodes", inputs.supernodes, {}, 3);
    std::vector<Tokens> geometry{{encoder_(flat_points("AB-UPT", "geometry", inputs.geometry, {}, 3), supernodes),
                                  rotary_angles(supernodes, options_.hidden_dim / options_.num_heads)}};
    for (const auto& block : *geometry_blocks_)
        run(AnchorBlock(std::dynamic_pointer_cast<AnchorBlockImpl>(block)), geometry, AnchorsOf::Own, inputs.condition);
    return geometry[0];
}

AbUptImpl::Physics AbUptImpl::physics_of(const AbUptInputs& inputs)
{
    const auto geometry = geometry_tokens(inputs);
    Physics physics{.anchors = {tokens_at("surface_anchors", inputs.surface_anchors, surface_bias_),
                                tokens_at("volume_anchors", inputs.volume_anchors, volume_bias_)},
                    .meetings = std::vector<std::vector<Meeting>>(2)};
    const auto listen = [&](PerceiverBlock block) {
        const auto seen = block->keys_of(geometry, inputs.condition);
        const auto met = meeting(block, seen, inputs.condition);
        for (std::size_t i = 0; i < physics.anchors.size(); ++i) {
            physics.anchors[i].values = met.block(physics.anchors[i], seen);
            physics.meetings[i].push_back(met);
        }
    };
    const auto attend = [&](const std::shared_ptr<torch::nn::Module>& module, AnchorsOf anchors, std::size_t first,
                            std::size_t count) {
        const AnchorBlock block(std::dynamic_pointer_cast<AnchorBlockImpl>(module));
        std::vector<Tokens> branches(physics.anchors.begin() + first, physics.anchors.begin() + first + count);
        const auto seen = attended_by_branches(run(block, branches, anchors, inputs.condition), anchors);
        for (std::size_t i = 0; i < count; ++i) {
            physics.anchors[first + i] = branches[i];
            physics.meetings[first + i].push_back(meeting(block, seen[i], inputs.condition));
        }
    };
    for (std::size_t i = 0; i < options_.physics_blocks.size(); ++i) {
        const auto& kind = options_.physics_blocks[i];
        if (kind == "perceiver")
            listen(PerceiverBlock(std::dynamic_pointer_cast<PerceiverBlockImpl>(physics_blocks_->ptr(i))));
        else
            attend(physics_blocks_->ptr(i),
                   kind == "shared"  ? AnchorsOf::Own
                   : kind == "cross" ? AnchorsOf::Other
                                     : AnchorsOf::All,
                   0, 2);
    }
    for (const auto& block : *surface_blocks_) attend(block, AnchorsOf::Own, 0, 1);
    for (const auto& block : *volume_blocks_) attend(block, AnchorsOf::Own, 1, 1);
    return physics;
}

torch::Tensor AbUptImpl::results_at(const char* name, const torch::Tensor& queries, torch::nn::Sequential& bias,
                                    const std::vector<Meeting>& meetings, torch::nn::Linear& head)
{
    if (!queries.defined()) return {};
    const auto answers = [&](const torch::Tensor& positions, const std::vector<Meeting>& met) {
        auto tokens = tokens_at(name, positions, bias);
        for (const auto& meeting : met) tokens.values = meeting.block(tokens, meeting.anchors);
        return head(tokens.values);
    };
    const auto num_turns = (most_rows(queries) + queries_of_a_turn_ - 1) / queries_of_a_turn_;
    if (torch::GradMode::is_enabled() || num_turns <= 1) return answers(queries, meetings);
    auto met = meetings;
    if (is_sharded(queries)) {
        for (auto& meeting : met)
            meeting.anchors = {with_all_rows(meeting.anchors.keys), with_all_rows(meeting.anchors.values)};
    }
    std::vector<torch::Tensor> results;
    for (std::int64_t turn = 0; turn < num_turns; ++turn) {
        const auto rows = rows_of_turn(queries, turn, queries_of_a_turn_);
        auto result = answers(rows, met);
        // One row and one channel may lie as a cut of either.
        if (is_sharded(rows)) result = redistribute(result, spec_of(rows));
        results.push_back(to_local(result));
    }
    const auto all = torch::cat(results, 1);
    return is_sharded(queries) ? from_local(all, spec_of(queries)) : all;
}

AbUptOutputs AbUptImpl::forward(const AbUptInputs& inputs)
{
    const auto physics = physics_of(inputs);
    return {.surface_anchors = surface_head_(physics.anchors[0].values),
            .volume_anchors = volume_head_(physics.anchors[1].values),
            .surface_queries = results_at("surface_queries", inputs.surface_queries, surface_bias_, physics.meetings[0],
                                          surface_head_),
            .volume_queries =
                results_at("volume_queries", inputs.volume_queries, volume_bias_, physics.meetings[1], volume_head_)};
}

}  // namespace meshard
