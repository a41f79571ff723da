// SPDX-License-Identifier: Apache-2.0
#include "models/transolver/transolver.h"

#include <algorithm>

#include <torch/torch.h>

#include "models/layers/grid_points.h"
#include "models/transolver/physics_attention.h"
#include "partition/error.h"

namespace meshard {
namespace {

constexpr double kWeightStd = 0.02;
constexpr double kLongestPeriod = 10000.0;

/// Distances of each point of a regular grid over the unit square to those of a ref x ref grid: (1, N, ref^2).
torch::Tensor distances_to_reference(at::IntArrayRef grid, std::int64_t ref)
{
    const auto points = [](std::int64_t rows, std::int64_t columns) {
        const auto y = torch::linspace(0, 1, rows, torch::kDouble).to(torch::kFloat), x = torch::linspace(0, 1, columns, torch::kDouble).to(torch::kFloat);
        const auto axes = torch::meshgrid({y, x}, "ij");
        return torch::stack({axes[0].flatten(), axes[1].flatten()}, 1);                  // (rows * columns, 2)
    };
    const auto offsets = points(grid[0], grid[1]).unsqueeze(1) - points(ref, ref).unsqueeze(0);
    return offsets.square().sum(-1).sqrt().unsqueeze(0);
}

}  // namespace

TransolverBlockImpl::TransolverBlockImpl(const TransolverOptions& options, torch::nn::AnyModule attention, bool is_last) : attention_(std::move(attention))
{
    const auto num_channels = options.n_hidden;
    ln_1_ = register_module("ln_1", layer_norm(num_channels));
    register_module("Attn", attention_.ptr());
    ln_mlp1_ = register_module("ln_mlp1", torch::nn::Sequential(layer_norm(num_channels),
                                                                Mlp(num_channels, options.mlp_ratio * num_channels, num_channels, options.act)));
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

std::optional<FusedBlock> TransolverBlockImpl::fused() const
{
    const auto* attention = attention_.ptr()->as<PhysicsAttentionImpl>();
    FusedBlock block;
    block.weights.assign(kNumBlockWeights, ln_1_->weight.new_empty({0}));
    if (!attention || !attention->fuse_into(block)) return std::nullopt;
    fuse_norms_and_mlp(ln_1_, ln_mlp1_, block);
    if (ln_mlp2_) {
        const auto& norm = ln_mlp2_->at<torch::nn::LayerNormImpl>(0);
        const auto& head = ln_mlp2_->at<torch::nn::LinearImpl>(1);
        block.weights[kNorm3Scale] = norm.weight;
        block.weights[kNorm3Shift] = norm.bias;
        block.weights[kHead] = head.weight;
        block.weights[kHeadBias] = head.bias;
        block.shape.outputs = head.weight.size(0);
    }
    return block;
}

TimeEmbeddingImpl::TimeEmbeddingImpl(std::int64_t num_channels)
{
    const auto half = num_channels / 2;
    const auto exponents = torch::arange(half, torch::kFloat32) / static_cast<double>(half);
    freqs_ = register_buffer("freqs", torch::pow(1 / kLongestPeriod, exponents));
}

torch::Tensor TimeEmbeddingImpl::forward(const torch::Tensor& time)
{
    const auto angles = time.unsqueeze(1) * freqs_.unsqueeze(0);   // (B, C/2)
    return torch::cat({torch::cos(angles), torch::sin(angles)}, 1);
}

TransolverImpl::TransolverImpl(TransolverOptions options) : options_(std::move(options))
{
    options_.validate();
    const auto num_channels = options_.n_hidden;
    const auto embedding_dim = options_.unified_pos ? options_.ref * options_.ref : options_.embedding_dim;
    if (options_.unified_pos) unified_position_ = register_buffer("embedding", distances_to_reference(options_.structured_shape, options_.ref));
    preprocess_ = register_module("preprocess", Mlp(options_.functional_dim + embedding_dim, 2 * num_channels, num_channels, options_.act));
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
    for (std::int64_t i = 0; i < options_.n_layers; ++i) blocks->push_back(TransolverBlock(options_, make_attention(), i + 1 == options_.n_layers));
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

torch::Tensor TransolverImpl::point_inputs(const torch::Tensor& fx, const torch::Tensor& embedding, const torch::Tensor& time) const
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

std::optional<StreamedModel> TransolverImpl::fused(const torch::Tensor& inputs, const torch::Tensor& time)
{
    StreamedModel model;
    model.mlp = preprocess_->fused();
    if (!inputs.is_cpu() || !can_fuse(inputs, {model.mlp.hidden})) return std::nullopt;
    for (const auto& module : *blocks_) {
        const auto block = module->as<TransolverBlock>()->fused();
        if (!block || !can_fuse(inputs, block->weights)) return std::nullopt;
        model.blocks.push_back(*block);
    }
    model.offset = time_offset(time);
    return model;
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
    return std::all_of(blocks_->begin(), blocks_->end(), [](const auto& block) { return block->template as<TransolverBlock>()->fused().has_value(); });
}

StreamedModel TransolverImpl::streamed(const torch::Tensor& inputs, const torch::Tensor& time)
{
    if (auto model = fused(inputs, time)) return std::move(*model);
    throw InvalidInput("Transolver: memory mode `streamed` and slice states serve physics attention of points in any order, without dropout in training, exact mode and "
                       "noise of the caller's, in float or double, on CPUs. Use `recomputed`.");
}

torch::Tensor TransolverImpl::run_block(TransolverBlockImpl& block, const torch::Tensor& x) const
{
    if (const auto fused = block.fused(); fused && can_fuse(x, fused->weights)) {
        return fused_block(x, *fused, {.keep_activations = memory_ == MemoryMode::Stored});
    }
    if (memory_ == MemoryMode::Stored) return block.forward(x);
    return recomputed(noise_, [&block](const std::vector<torch::Tensor>& inputs) { return block.forward(inputs[0]); }, {x});
}

torch::Tensor TransolverImpl::forward(const torch::Tensor& fx, const torch::Tensor& embedding, const torch::Tensor& time)
{
    const auto inputs = point_inputs(fx, embedding, time);
    noise_->rows.set_rows(fx);
    torch::Tensor x;
    if (memory_ == MemoryMode::Streamed) {
        x = streamed_blocks(inputs, streamed(inputs, time));
    } else if (const auto model = torch::GradMode::is_enabled() ? std::nullopt : fused(inputs, time)) {
        x = inferred_blocks(inputs, *model, /*keep_projections=*/memory_ == MemoryMode::Stored);
    } else {
        const auto mlp = preprocess_->fused();
        const auto offset = time_offset(time);
        if (inputs.is_cpu() && can_fuse(inputs, {mlp.hidden})) {
            x = fused_mlp(inputs, mlp, offset);                                         // (B, N, C)
        } else {
            x = preprocess_(inputs);
            if (offset.defined()) x = x + offset.unsqueeze(1);
        }
        for (const auto& block : *blocks_) x = run_block(*block->as<TransolverBlock>(), x);
    }
    return fx.dim() == 3 ? x : x.unflatten(1, options_.structured_shape);
}

std::vector<torch::Tensor> TransolverImpl::slice_states(const torch::Tensor& fx, const torch::Tensor& embedding, const torch::Tensor& time)
{
    const torch::NoGradGuard no_grad;
    const auto inputs = point_inputs(fx, embedding, time);
    noise_->rows.set_rows(fx);
    return slice_states_of(inputs, streamed(inputs, time));
}

torch::Tensor TransolverImpl::forward_with_states(const std::vector<torch::Tensor>& states, const torch::Tensor& fx, const torch::Tensor& embedding, const torch::Tensor& time)
{
    const torch::NoGradGuard no_grad;
    const auto inputs = point_inputs(fx, embedding, time);
    noise_->rows.set_rows(fx);
    return blocks_with_states(inputs, streamed(inputs, time), states);
}

}  // namespace meshard
