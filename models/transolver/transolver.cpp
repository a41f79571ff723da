// SPDX-License-Identifier: Apache-2.0
#include "models/transolver/transolver.h"

#include "models/layers/grid_points.h"
#include "models/transolver/physics_attention.h"
#include "partition/error.h"

#include <ATen/record_function.h>
#include <fmt/core.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

namespace meshard {
namespace {

constexpr double kWeightStd = 0.02;
constexpr double kLongestPeriod = 10000.0;

/// Distances of each point of a regular grid over the unit square to the points of a ref x ref grid: (1, N, ref^2).
torch::Tensor distances_to_reference(at::IntArrayRef grid, std::int64_t ref)
{
    const auto points = [](std::int64_t rows, std::int64_t columns) {
        const auto y = torch::linspace(0, 1, rows, torch::kDouble).to(torch::kFloat),
                   x = torch::linspace(0, 1, columns, torch::kDouble).to(torch::kFloat);
        const auto axes = torch::meshgrid({y, x}, "ij");
        return torch::stack({axes[0].flatten(), axes[1].flatten()}, 1);  // (rows * columns, 2)
    };
    const auto offsets = points(grid[0], grid[1]).unsqueeze(1) - points(ref, ref).unsqueeze(0);
    return offsets.square().sum(-1).sqrt().unsqueeze(0);
}

}  // namespace

TransolverBlockImpl::TransolverBlockImpl(const TransolverOptions& options, torch::nn::AnyModule attention, bool is_last)
    : attention_(std::move(attention))
{
    const auto num_channels = options.n_hidden;
    ln_1_ = register_module("ln_1", layer_norm(num_channels));
    register_module("Attn", attention_.ptr());
    ln_mlp1_ = register_module(
        "ln_mlp1", torch::nn::Sequential(layer_norm(num_channels), Mlp(num_channels, options.mlp_ratio * num_channels,
                                                                       num_channels, options.act)));
    if (is_last) {
        ln_mlp2_ = register_module("ln_mlp2", torch::nn::Sequential(layer_norm(num_channels),
                                                                    torch::nn::Linear(num_channels, options.out_dim)));
    }
}

torch::Tensor TransolverBlockImpl::forward(torch::Tensor x)
{
    x = x + attention_.forward<torch::Tensor>(ln_1_(x));
    x = x + ln_mlp1_->forward(x);
    return ln_mlp2_ ? ln_mlp2_->forward(x) : x;
}

BlockFusion TransolverBlockImpl::fusion() const
{
    BlockFusion fusion;
    auto& block = fusion.block;
    const auto* attention = attention_.ptr()->as<PhysicsAttentionImpl>();
    fusion.obstacle = attention ? attention->fuse_into(block) : "its attention is not physics attention";
    fuse_norms_and_mlp(ln_1_, ln_mlp1_, block);
    if (ln_mlp2_) {
        const auto& norm = ln_mlp2_->at<torch::nn::LayerNormImpl>(0);
        const auto& head = ln_mlp2_->at<torch::nn::LinearImpl>(1);
        block.weights.norm3 = {norm.weight, norm.bias};
        block.weights.head = {head.weight, head.bias};
        block.shape.outputs = head.weight.size(0);
    }
    return fusion;
}

TimeEmbeddingImpl::TimeEmbeddingImpl(std::int64_t num_channels)
{
    const auto half = num_channels / 2;
    const auto exponents = torch::arange(half, torch::kFloat32) / static_cast<double>(half);
    freqs_ = register_buffer("freqs", torch::pow(1 / kLongestPeriod, exponents));
}

torch::Tensor TimeEmbeddingImpl::forward(const torch::Tensor& time)
{
    const auto angles = time.unsqueeze(1) * freqs_.unsqueeze(0);  // (B, C/2)
    return torch::cat({torch::cos(angles), torch::sin(angles)}, 1);
}

TransolverImpl::TransolverImpl(TransolverOptions options) : options_(std::move(options))
{
    options_.validate();
    const auto num_channels = options_.n_hidden;
    const auto embedding_dim = options_.unified_pos ? options_.ref * options_.ref : options_.embedding_dim;
    if (options_.unified_pos)
        unified_position_ =
            register_buffer("embedding", distances_to_reference(options_.structured_shape, options_.ref));
    preprocess_ = register_module(
        "preprocess", Mlp(options_.functional_dim + embedding_dim, 2 * num_channels, num_channels, options_.act));
    if (options_.time_input) {
        time_embed_ = register_module("time_embed", TimeEmbedding(num_channels));
        time_fc_ = register_module("time_fc", torch::nn::Sequential());
        time_fc_->push_back(torch::nn::Linear(num_channels, num_channels));
        time_fc_->push_back(torch::nn::SiLU());
        time_fc_->push_back(torch::nn::Linear(num_channels, num_channels));
    }
    blocks_ = register_module("blocks", make_blocks([this] {
                                  const SliceOptions slices{.dim = options_.n_hidden,
                                                            .num_heads = options_.n_head,
                                                            .head_dim = options_.n_hidden / options_.n_head,
                                                            .num_slices = options_.slice_num,
                                                            .plus = options_.plus,
                                                            .grid = options_.structured_shape,
                                                            .noise = noise_,
                                                            .authors_constants = options_.authors_constants};
                                  return torch::nn::AnyModule(PhysicsAttention(slices, options_.dropout));
                              }));
    draw_weights();
}

torch::nn::ModuleList TransolverImpl::make_blocks(const MakeAttention& make_attention) const
{
    torch::nn::ModuleList blocks;
    for (std::int64_t i = 0; i < options_.n_layers; ++i)
        blocks->push_back(TransolverBlock(options_, make_attention(), i + 1 == options_.n_layers));
    return blocks;
}

void TransolverImpl::replace_blocks(const MakeAttention& make_attention)
{
    blocks_ = replace_module("blocks", make_blocks(make_attention));
    draw_weights();
}

void TransolverImpl::draw_weights()
{
    torch::NoGradGuard no_grad;
    for (const auto& module : modules(/*include_self=*/false)) {
        const auto* linear = module->as<torch::nn::Linear>();
        if (!linear) continue;
        linear->weight.normal_(0.0, kWeightStd);
        if (linear->bias.defined()) linear->bias.zero_();
    }
}

torch::Tensor TransolverImpl::point_inputs(const torch::Tensor& fx, const torch::Tensor& embedding,
                                           const torch::Tensor& time) const
{
    const at::IntArrayRef grid = options_.structured_shape;
    const auto features = flat_points("Transolver", "fx", fx, grid, options_.functional_dim);
    auto position = unified_position_;
    if (options_.unified_pos) {
        position = position.expand({features.size(0), -1, -1});
    } else if (options_.embedding_dim > 0 || embedding.defined()) {
        position = flat_points("Transolver", "embedding", embedding, grid, options_.embedding_dim);
    }
    if (time.defined() != options_.time_input) {
        throw InvalidInput(options_.time_input ? "Transolver: the model has time_input, and no time was given."
                                               : "Transolver: a time was given, and the model has no time_input.");
    }
    return position.defined() ? torch::cat({position, features}, -1) : features;
}

torch::Tensor TransolverImpl::time_offset(const torch::Tensor& time)
{
    return time.defined() ? time_fc_->forward(time_embed_(time)) : torch::Tensor();
}

TransolverImpl::ModelFusion TransolverImpl::fusion(const torch::Tensor& inputs, const torch::Tensor& time)
{
    ModelFusion fusion;
    fusion.model.mlp = preprocess_->fused();
    fusion.obstacle = fusion_obstacle(inputs, fusion.model.mlp);
    for (std::size_t i = 0; i < blocks_->size() && !fusion.obstacle; ++i) {
        auto block = blocks_[i]->as<TransolverBlock>()->fusion();
        fusion.obstacle = obstacle_of(inputs, block);
        fusion.model.blocks.push_back(std::move(block.block));
    }
    if (!fusion.obstacle) fusion.model.offset = time_offset(time);
    return fusion;
}

StreamedModel TransolverImpl::fused(const torch::Tensor& inputs, const torch::Tensor& time)
{
    auto fusion = this->fusion(inputs, time);
    if (!fusion.obstacle) return std::move(fusion.model);
    throw InvalidInput(
        "Transolver: memory mode `streamed` and slice states need blocks that are fused, and a block is not: "
        "{}. Use `recomputed`.",
        fusion.obstacle);
}

torch::Tensor TransolverImpl::run(const torch::Tensor& inputs, const torch::Tensor& time)
{
    const auto form = form_of_all(inputs, memory_);
    if (form == BlockForm::Streamed) return streamed_blocks(inputs, fused(inputs, time));
    if (form == BlockForm::Inferred) {
        const auto all = fusion(inputs, time);
        if (!all.obstacle)
            return inferred_blocks(inputs, all.model, /*keep_projections=*/memory_ == MemoryMode::Stored);
    }
    auto x = preprocess_->on_points(inputs, time_offset(time));  // (B, N, C)
    for (std::size_t i = 0; i < blocks_->size(); ++i) {
        RECORD_USER_SCOPE(fmt::format("block {}", i + 1));
        auto& block = *blocks_[i]->as<TransolverBlock>();
        x = run_block(block.fusion(), memory_, rows_of(noise_),
                      [&block](const std::vector<torch::Tensor>& given) { return block.forward(given[0]); }, {x});
    }
    return x;
}

std::vector<BlockChoice> TransolverImpl::block_forms(const torch::Tensor& points)
{
    const auto form = form_of_all(points, memory_);
    if (form == BlockForm::Streamed) fused(points, {});
    if (form && !fusion(points, {}).obstacle) return std::vector<BlockChoice>(blocks_->size(), {*form, nullptr});
    std::vector<BlockChoice> choices;
    for (const auto& block : *blocks_) {
        const auto* obstacle = obstacle_of(points, block->as<TransolverBlock>()->fusion());
        choices.push_back({form_of_one(obstacle, memory_), obstacle});
    }
    return choices;
}

std::optional<MemoryMode> TransolverImpl::inference_memory(std::int64_t num_points, std::int64_t bytes) const
{
    if (!can_stream()) return std::nullopt;
    const auto of_one_layer = num_points * options_.n_hidden * static_cast<std::int64_t>(sizeof(float));
    if (2 * of_one_layer <= bytes) return MemoryMode::Stored;
    return of_one_layer <= bytes ? MemoryMode::Recomputed : MemoryMode::Streamed;
}

bool TransolverImpl::can_stream() const
{
    return std::all_of(blocks_->begin(), blocks_->end(),
                       [](const auto& block) { return !block->template as<TransolverBlock>()->fusion().obstacle; });
}

torch::Tensor TransolverImpl::forward(const torch::Tensor& fx, const torch::Tensor& embedding,
                                      const torch::Tensor& time)
{
    const auto inputs = point_inputs(fx, embedding, time);
    noise_->rows.set_rows({embedding, fx});  // constants, which are expanded over the points, have no ids
    const auto x = run(inputs, time);
    return fx.dim() == 3 ? x : x.unflatten(1, options_.structured_shape);
}

}  // namespace meshard
