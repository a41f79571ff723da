// SPDX-License-Identifier: Apache-2.0
#include "models/diffusion/dit.h"

#include "models/layers/option_checks.h"
#include "ops/attention/neighbourhood_attention.h"
#include "ops/grids/grid_rows.h"
#include "sharding/memory/recompute.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>

namespace meshard {
namespace {

constexpr double kPositionStd = 0.02, kRmsNormEps = 1e-6;

/// y = x / sqrt(mean(x^2) + epsilon) * weight over the last dimension (Zhang and Sennrich 2019).
class RmsNormImpl : public torch::nn::Module {
public:
    RmsNormImpl(std::int64_t num_channels, bool affine)
    {
        if (affine) weight_ = register_parameter("weight", torch::ones(num_channels));
    }

    torch::Tensor forward(const torch::Tensor& x)
    {
        const auto normalised = x * torch::rsqrt(x.square().mean(-1, /*keepdim=*/true) + kRmsNormEps);
        return weight_.defined() ? normalised * weight_ : normalised;
    }

private:
    torch::Tensor weight_;
};
TORCH_MODULE(RmsNorm);

torch::nn::LayerNorm channel_norm(std::int64_t num_channels, bool affine, double epsilon)
{
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({num_channels}).elementwise_affine(affine).eps(epsilon));
}

/// Makes an empty module, whose name prefixes those of its children.
std::shared_ptr<torch::nn::Module> group()
{
    return std::make_shared<torch::nn::Module>();
}

/// Reshapes (B, C) so that it broadcasts to tokens (B, N, C).
torch::Tensor for_all_tokens(const torch::Tensor& vectors)
{
    return vectors.unsqueeze(1);
}

/// Layer norm without weights, followed by a scale and a shift.
torch::Tensor modulated(const torch::Tensor& tokens, const torch::Tensor& shift, const torch::Tensor& scale,
                        double epsilon)
{
    return torch::layer_norm(tokens, {tokens.size(-1)}, {}, {}, epsilon) * (1 + for_all_tokens(scale)) +
           for_all_tokens(shift);
}

torch::nn::Sequential modulation(std::int64_t in, std::int64_t out)
{
    torch::nn::Sequential layers;
    layers->push_back(torch::nn::SiLU());
    layers->push_back(torch::nn::Linear(in, out));
    return layers;
}

/// Frequencies from 1 to 1 / max_positions, computed in single precision as in the reference.
torch::Tensor time_frequencies(std::int64_t count, std::int64_t divisor, std::int64_t max_positions)
{
    const auto exponents = torch::arange(count, torch::kFloat) / static_cast<double>(divisor);
    return torch::pow(1.0 / static_cast<double>(max_positions), exponents);
}

/// A linear layer of EDM's networks: Xavier's initial weights, zero biases. It draws numbers for both, as in the
/// reference.
torch::nn::Linear edm_linear(std::int64_t in, std::int64_t out)
{
    torch::nn::Linear layer(in, out);
    const torch::NoGradGuard no_grad;
    layer->weight.copy_(std::sqrt(6.0 / static_cast<double>(in + out)) * (torch::rand({out, in}) * 2 - 1));
    torch::rand({out});
    layer->bias.zero_();
    return layer;
}

void set_zero(torch::nn::LinearImpl& layer)
{
    layer.weight.zero_();
    layer.bias.zero_();
}

}  // namespace

DitAttentionImpl::DitAttentionImpl(const DitOptions& options) : options_(options)
{
    const auto dim = options.hidden_size;
    const auto& attention = options.attention;
    if (options.use_nan_mask_tokens) mask_token_ = register_parameter("mask_token", torch::zeros({1, 1, dim}));
    auto* place = static_cast<torch::nn::Module*>(this);
    if (!options.has_neighbourhoods()) place = register_module("attn_op", group()).get();
    qkv_ = place->register_module(
        "qkv",
        torch::nn::Linear(
            torch::nn::LinearOptions(dim, 3 * dim).bias(options.has_neighbourhoods() ? attention.qkv_bias : true)));
    if (!options.has_neighbourhoods() && !attention.qk_norm_type.empty()) {
        for (auto [name, norm] : {std::pair("q_norm", &q_norm_), std::pair("k_norm", &k_norm_)}) {
            if (attention.qk_norm_type == "RMSNorm")
                *norm = torch::nn::AnyModule(
                    place->register_module(name, RmsNorm(options.head_dim(), attention.qk_norm_affine)));
            else
                *norm = torch::nn::AnyModule(
                    place->register_module(name, channel_norm(options.head_dim(), attention.qk_norm_affine, 1e-5)));
        }
    } else if (options.has_neighbourhoods() && attention.qk_norm) {
        q_norm_ = torch::nn::AnyModule(channel_norm(options.head_dim(), false, options.block.norm_eps));
        k_norm_ = torch::nn::AnyModule(channel_norm(options.head_dim(), false, options.block.norm_eps));
    }
    proj_ = place->register_module("proj", torch::nn::Linear(dim, dim));

    if (!options.has_rotations()) return;
    // Number of channels that are rotated by the row; the others are rotated by the column.
    const auto half = options.head_dim() / 2;
    const auto frequencies =
        torch::pow(attention.rope_theta, -torch::arange(0, half, 2, torch::kFloat) / static_cast<double>(half));
    const auto [rows, columns] = options.tokens();
    const auto angles = [&](std::int64_t count) {
        return torch::arange(count, torch::kFloat).unsqueeze(1) * frequencies;
    };
    const auto table = [&](const auto& function) {
        const auto pairs = [&](std::int64_t count) { return function(angles(count)).repeat_interleave(2, -1); };
        return torch::cat({pairs(rows).unsqueeze(1).expand({rows, columns, half}),
                           pairs(columns).unsqueeze(0).expand({rows, columns, half})},
                          -1)
            .unsqueeze(2);
    };
    cos_ = table([](const torch::Tensor& angle) { return angle.cos(); });
    sin_ = table([](const torch::Tensor& angle) { return angle.sin(); });
}

/// Rotates each pair of adjacent channels by its token's angle, in single precision or wider.
torch::Tensor DitAttentionImpl::rotated(const torch::Tensor& vectors)
{
    if (cos_.device() != vectors.device()) {
        cos_ = cos_.to(vectors.device());
        sin_ = sin_.to(vectors.device());
    }
    const auto x = vectors.to(torch::promote_types(vectors.scalar_type(), torch::kFloat));
    const auto pairs = x.unflatten(-1, {x.size(-1) / 2, 2});
    const auto turned = torch::stack({-pairs.select(-1, 1), pairs.select(-1, 0)}, -1).flatten(-2);
    return (x * cos_ + turned * sin_).to(vectors.scalar_type());
}

torch::Tensor DitAttentionImpl::forward(torch::Tensor tokens, const torch::Tensor& invalid, const SpecPtr& of_grid)
{
    if (invalid.defined()) tokens = tokens * (1 - invalid) + mask_token_ * invalid;
    auto parts = qkv_(tokens).chunk(3, -1);
    for (auto& part : parts) part = part.unflatten(-1, {options_.num_heads, options_.head_dim()});  // (B, N, H, D)
    if (!q_norm_.is_empty()) {
        parts[0] = q_norm_.forward(parts[0]);
        parts[1] = k_norm_.forward(parts[1]);
    }
    const auto attention_dropout = is_training() ? options_.block.attn_drop_rate : 0.0;
    const auto projected = [&](const torch::Tensor& attended) {
        return torch::dropout(proj_(attended), options_.block.proj_drop_rate, is_training());
    };
    if (!options_.has_neighbourhoods()) {
        for (auto& part : parts) part = part.transpose(1, 2);  // (B, H, N, D)
        const auto attended = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, attention_dropout,
                                                                  options_.attention.is_causal);
        return projected(attended.transpose(1, 2).flatten(2));
    }

    for (auto& part : parts)  // (B, rows, columns, H, D)
        part = grid_of_rows(part.flatten(-2), options_.tokens(), of_grid)
                   .movedim(1, -1)
                   .unflatten(-1, {options_.num_heads, options_.head_dim()});
    if (options_.has_rotations()) {
        parts[0] = rotated(parts[0]);
        parts[1] = rotated(parts[1]);
    }
    const auto& settings = options_.attention;
    const NeighbourhoodWindow window{{settings.attn_kernel, settings.attn_kernel},
                                     {settings.dilation.front(), settings.dilation.back()}};
    auto attended = neighbourhood_attention(parts[0], parts[1], parts[2], window,
                                            settings.scale > 0 ? std::make_optional(settings.scale) : std::nullopt);
    attended = torch::dropout(attended, attention_dropout, is_training());
    return projected(rows_of_grid(attended.flatten(-2).movedim(-1, 1)));
}

DitBlockImpl::DitBlockImpl(const DitOptions& options, double drop_path_rate)
    : options_(options), drop_path_rate_(drop_path_rate)
{
    const auto dim = options.hidden_size,
               hidden = static_cast<std::int64_t>(static_cast<double>(dim) * options.mlp_ratio);
    const auto& block = options.block;
    attention_ = register_module("attention", DitAttention(options));
    const auto linear = register_module("linear", group());
    mlp_ = linear->register_module("layers", torch::nn::Sequential());
    mlp_->push_back(torch::nn::Linear(dim, hidden));
    mlp_->push_back(torch::nn::GELU(torch::nn::GELUOptions().approximate("tanh")));
    // Changes the parameter names of later layers, as in the reference.
    if (block.mlp_drop_rate > 0) mlp_->push_back(torch::nn::Dropout(block.mlp_drop_rate));
    mlp_->push_back(torch::nn::Linear(hidden, dim));
    if (block.mlp_drop_rate > 0 && block.final_mlp_dropout) mlp_->push_back(torch::nn::Dropout(block.mlp_drop_rate));
    modulation_ = register_module("adaptive_modulation", modulation(dim, 6 * dim));
}

/// The gate with zeros for the samples that skip the block in training, and scaled up for the others (Huang et al.
/// 2016, Deep networks with stochastic depth).
torch::Tensor DitBlockImpl::path(const torch::Tensor& gate) const
{
    if (!is_training() || drop_path_rate_ == 0) return gate;
    const auto kept = torch::empty({gate.size(0), 1}, gate.options()).bernoulli_(1 - drop_path_rate_);
    return drop_path_rate_ < 1 ? gate * kept / (1 - drop_path_rate_) : gate * kept;
}

torch::Tensor DitBlockImpl::forward(torch::Tensor tokens, const torch::Tensor& condition, const torch::Tensor& invalid,
                                    std::optional<double> dropout, const SpecPtr& of_grid)
{
    const auto parts = modulation_->at<torch::nn::LinearImpl>(1).forward(condition).chunk(6, 1);
    const auto &shift1 = parts[0], &scale1 = parts[1], &gate1 = parts[2], &shift2 = parts[3], &scale2 = parts[4],
               &gate2 = parts[5];
    auto input = modulated(tokens, shift1, scale1, options_.block.norm_eps);
    if (dropout) input = torch::dropout(input, *dropout, is_training());
    tokens = tokens + for_all_tokens(path(gate1)) * attention_(input, invalid, of_grid);
    return tokens +
           for_all_tokens(path(gate2)) * mlp_->forward(modulated(tokens, shift2, scale2, options_.block.norm_eps));
}

DitImpl::DitImpl(DitOptions options) : options_(std::move(options))
{
    options_.validate();
    const auto dim = options_.hidden_size;
    const auto [patch_rows, patch_columns] = options_.patch();
    const auto [rows, columns] = options_.tokens();

    const auto tokenizer = register_module("tokenizer", group());
    if (options_.learned_positions)
        positions_ = tokenizer->register_parameter("pos_embed", torch::zeros({1, rows * columns, dim}));
    const auto x_embedder = tokenizer->register_module("x_embedder", group());
    patches_ = x_embedder->register_module(
        "proj", torch::nn::Conv2d(torch::nn::Conv2dOptions(options_.in_channels, dim, {patch_rows, patch_columns})
                                      .stride({patch_rows, patch_columns})));

    const auto& embedder = options_.embedder;
    const auto conditioning = register_module("conditioning_embedder", group());
    if (options_.conditioning_embedder == "dit") {
        const auto num_waves = embedder.freq_embed_dim > 0 ? embedder.freq_embed_dim : dim;
        const auto hidden = embedder.mlp_hidden_dim > 0 ? embedder.mlp_hidden_dim : 2 * dim;
        const auto time = conditioning->register_module("t_embedder", group());
        frequencies_ =
            time->register_buffer("freqs", time_frequencies(num_waves / 2, num_waves / 2, embedder.max_positions));
        time_mlp_ = time->register_module("mlp", torch::nn::Sequential());
        time_mlp_->push_back(torch::nn::Linear(num_waves / 2 * 2, hidden));
        time_mlp_->push_back(torch::nn::SiLU());
        time_mlp_->push_back(torch::nn::Linear(hidden, dim));
        if (options_.condition_dim > 0) {
            map_condition_ = conditioning->register_module(
                "cond_embedder", torch::nn::Linear(torch::nn::LinearOptions(options_.condition_dim, dim).bias(false)));
            const torch::NoGradGuard no_grad;
            map_condition_->weight.zero_();
        }
    } else {
        const auto num_waves = embedder.noise_channels;
        const auto noise = conditioning->register_module("map_noise", group());
        frequencies_ =
            noise->register_buffer("freqs", time_frequencies(num_waves / 2, num_waves / 2 - 1, embedder.max_positions));
        if (options_.condition_dim > 0)
            map_condition_ =
                conditioning->register_module("map_condition", edm_linear(options_.condition_dim, num_waves));
        map_layer0_ = conditioning->register_module("map_layer0", edm_linear(num_waves, dim));
        map_layer1_ = conditioning->register_module("map_layer1", edm_linear(dim, dim));
    }

    const auto detokenizer = register_module("detokenizer", group());
    const bool has_conv_head = options_.detokenizer == "proj_reshape_2d_conv";
    const auto projection = (has_conv_head ? detokenizer->register_module("proj", group()) : detokenizer)
                                ->register_module("proj_layer", group());
    output_projection_ = projection->register_module(
        "output_projection", torch::nn::Linear(dim, patch_rows * patch_columns * options_.num_outputs()));
    output_modulation_ = projection->register_module("adaptive_modulation", modulation(dim, 2 * dim));
    if (has_conv_head) {
        conv_head_ = detokenizer->register_module("conv_head", torch::nn::Sequential());
        for (std::int64_t i = 0; i < options_.conv_layers; ++i) {
            const auto in = i == 0 ? options_.num_outputs() : options_.conv_hidden;
            const auto out = i + 1 == options_.conv_layers ? options_.num_outputs() : options_.conv_hidden;
            if (i > 0) conv_head_->push_back(torch::nn::GELU());
            conv_head_->push_back(torch::nn::Conv2d(
                torch::nn::Conv2dOptions(in, out, options_.conv_kernel).padding(options_.conv_kernel / 2)));
        }
    }
    for (std::int64_t i = 0; i < options_.depth; ++i)
        blocks_->push_back(DitBlock(options_, options_.drop_path_rates.empty() ? 0.0 : options_.drop_path_rates[i]));
    register_module("blocks", blocks_);
    if (options_.dit_initialization) initialize();
}

void DitImpl::initialize()
{
    const torch::NoGradGuard no_grad;
    for (const auto& item : named_modules("", /*include_self=*/false)) {
        auto* linear = dynamic_cast<torch::nn::LinearImpl*>(item.value().get());
        const bool is_of_edm =
            item.key().find("conditioning_embedder.map_") != std::string::npos || item.key().ends_with("cond_embedder");
        if (!linear || is_of_edm) continue;
        torch::nn::init::xavier_uniform_(linear->weight);
        if (linear->bias.defined()) linear->bias.zero_();
    }
    torch::nn::init::xavier_uniform_(patches_->weight.view({patches_->weight.size(0), -1}));
    patches_->bias.zero_();
    if (positions_.defined()) positions_.normal_(0, kPositionStd);
    set_zero(output_modulation_->at<torch::nn::LinearImpl>(1));
    set_zero(*output_projection_);
    if (conv_head_) {
        auto& last = conv_head_->at<torch::nn::Conv2dImpl>(conv_head_->size() - 1);
        last.weight.zero_();
        last.bias.zero_();
    }
    for (const auto& block : *blocks_) {
        const auto modulation = block->named_modules()["adaptive_modulation"];
        set_zero(modulation->as<torch::nn::SequentialImpl>()->at<torch::nn::LinearImpl>(1));
    }
}

void DitImpl::set_memory(MemoryMode mode)
{
    memory_ = unless_streamed("DiT", mode);
}

void DitImpl::check_inputs(const torch::Tensor& image, const torch::Tensor& time, const torch::Tensor& condition,
                           const torch::Tensor& invalid_mask, std::optional<double> dropout) const
{
    const OptionChecks checks("DiT");
    const auto [rows, columns] = options_.image();
    const auto refuse = [&](const char* what, const std::string& expected, const torch::Tensor& found) {
        checks.refuse("the {} must be {}, and has the shape {}.", what, expected, c10::str(found.sizes()));
    };
    const auto size = fmt::format("{}, {})", rows, columns);
    if (image.dim() != 4 || image.size(1) != options_.in_channels || image.size(2) != rows || image.size(3) != columns)
        refuse("image", fmt::format("(batch, {}, {}", options_.in_channels, size), image);
    const auto batch = image.size(0);
    if (time.dim() != 1 || time.size(0) != batch) refuse("time", fmt::format("({}), one number a sample", batch), time);
    if (condition.defined() && options_.condition_dim == 0)
        checks.refuse("a condition is given, but the model has a condition_dim of none.");
    if (condition.defined() &&
        (condition.dim() != 2 || condition.size(0) != batch || condition.size(1) != options_.condition_dim))
        refuse("condition", fmt::format("({}, {})", batch, options_.condition_dim), condition);
    if (invalid_mask.defined() && !options_.use_nan_mask_tokens)
        checks.refuse("a mask of invalid pixels is given, but the model has no use_nan_mask_tokens.");
    if (invalid_mask.defined()) {
        const bool fits = (invalid_mask.dim() == 3 || (invalid_mask.dim() == 4 && invalid_mask.size(1) == 1)) &&
                          invalid_mask.size(0) == batch && invalid_mask.size(-2) == rows &&
                          invalid_mask.size(-1) == columns;
        if (!fits) refuse("mask of invalid pixels", fmt::format("({}, {}", batch, size), invalid_mask);
    }
    if (dropout && !options_.block.intermediate_dropout)
        checks.refuse("a dropout rate is given, but block_kwargs has no intermediate_dropout.");
}

/// Embeds time and condition in one vector, (B, C).
torch::Tensor DitImpl::embedded(const torch::Tensor& time, const torch::Tensor& condition)
{
    const auto angles = time.to(frequencies_.scalar_type()).unsqueeze(1) * frequencies_;
    if (options_.conditioning_embedder == "dit") {
        const auto of_time = time_mlp_->forward(torch::cat({angles.cos(), angles.sin()}, 1));
        return condition.defined() ? of_time + map_condition_(condition) : of_time;
    }
    auto waves = torch::cat({angles.sin(), angles.cos()}, 1);
    if (condition.defined())
        waves = waves + map_condition_(condition * std::sqrt(static_cast<double>(options_.condition_dim)));
    return map_layer1_(torch::silu(map_layer0_(waves)));
}

/// (B, N, 1) for the tokens: one if any pixel of the patch is invalid.
torch::Tensor DitImpl::invalid_tokens(const torch::Tensor& mask, const torch::Tensor& tokens) const
{
    if (!mask.defined()) return {};
    const auto pixels = (mask.dim() == 3 ? mask.unsqueeze(1) : mask).detach().ne(0).to(tokens.scalar_type());
    const auto [rows, columns] = options_.patch();
    return tokens_of(torch::max_pool2d(pixels, {rows, columns}, {rows, columns}));
}

/// (B, C, rows, columns) to (B, N, C). Causal attention needs the tokens in the image's order, for which blocks are
/// gathered.
torch::Tensor DitImpl::tokens_of(const torch::Tensor& grid) const
{
    return options_.attention.is_causal ? grid.movedim(1, -1).flatten(1, 2) : rows_of_grid(grid);
}

torch::Tensor DitImpl::image_of(const torch::Tensor& tokens, const torch::Tensor& condition, const SpecPtr& of_grid)
{
    const auto parts = output_modulation_->at<torch::nn::LinearImpl>(1).forward(condition).chunk(2, 1);
    const auto pixels = output_projection_(modulated(tokens, parts[0], parts[1], options_.block.norm_eps));
    const auto [rows, columns] = options_.patch();
    const auto image = grid_of_rows(pixels, options_.tokens(), of_grid)
                           .movedim(1, -1)
                           .unflatten(-1, {rows, columns, options_.num_outputs()})
                           .permute({0, 5, 1, 3, 2, 4})
                           .flatten(4, 5)
                           .flatten(2, 3);
    return conv_head_ ? image + conv_head_->forward(image) : image;
}

torch::Tensor DitImpl::forward(const torch::Tensor& image, const torch::Tensor& time, const torch::Tensor& condition,
                               const torch::Tensor& invalid_mask, std::optional<double> dropout)
{
    check_inputs(image, time, condition, invalid_mask, dropout);
    torch::Tensor patches;
    if (options_.force_tokenization_fp32 && image.scalar_type() != torch::kDouble) {
        const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
        patches = patches_(image.to(torch::kFloat));
    } else {
        patches = patches_(image);
    }
    const auto of_grid = is_sharded(patches) && !options_.attention.is_causal ? spec_of(patches) : nullptr;
    if (positions_.defined()) {
        auto positions = positions_.unflatten(1, options_.tokens()).movedim(-1, 1);  // (1, C, rows, columns)
        // On blocks, a rank's share of the gradient is then that of its own positions, and none is gathered.
        if (of_grid && of_grid->axis_of_dim(0) < 0) positions = from_local(own_part(positions, *of_grid), of_grid);
        patches = patches + positions;
    }
    auto tokens = tokens_of(patches);
    const auto invalid = invalid_tokens(invalid_mask, tokens);
    // The activation that starts every modulation is computed once, so that its gradients are added before ranks sum
    // them.
    const auto c = torch::silu(embedded(time, condition));
    for (const auto& module : *blocks_) {
        auto& block = *module->as<DitBlock>();
        const auto run = [&block, dropout, of_grid](const std::vector<torch::Tensor>& given) {
            return std::vector<torch::Tensor>{
                block.forward(given[0], given[1], given.size() > 2 ? given[2] : torch::Tensor(), dropout, of_grid)};
        };
        std::vector<torch::Tensor> inputs{tokens, c};
        if (invalid.defined()) inputs.push_back(invalid);
        tokens = (memory_ == MemoryMode::Recomputed ? checkpoint(run, inputs) : run(inputs))[0];
    }
    return image_of(tokens, c, of_grid);
}

}  // namespace meshard
