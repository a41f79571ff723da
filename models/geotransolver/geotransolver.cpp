// SPDX-License-Identifier: Apache-2.0
#include "models/geotransolver/geotransolver.h"

#include "models/layers/grid_points.h"
#include "models/layers/mlp.h"
#include "partition/error.h"

#include <ATen/record_function.h>
#include <fmt/core.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

namespace meshard {
namespace {

SliceOptions slice_options(const GeoTransolverOptions& options, std::int64_t dim, std::int64_t head_dim,
                           const SharedNoise& noise)
{
    return {.dim = dim,
            .num_heads = options.n_head,
            .head_dim = head_dim,
            .num_slices = options.slice_num,
            .plus = options.plus,
            .grid = options.structured_shape,
            .noise = noise};
}

/// Checks an input of the context: it must be given if, and only if, the model has it.
torch::Tensor required(const char* name, const torch::Tensor& tensor, std::int64_t dim)
{
    if (tensor.defined() != (dim > 0)) {
        throw InvalidInput(
            std::string("GeoTransolver: ") + name +
            (dim > 0 ? " is missing; the model was made to take it." : " was given, and the model takes none."));
    }
    return tensor;
}

}  // namespace

ContextBuilderImpl::ContextBuilderImpl(const GeoTransolverOptions& options, const SharedNoise& noise)
{
    const double concrete_rate = options.concrete_dropout ? options.dropout : -1.0;
    const auto slices = [&](std::int64_t dim) {
        return slice_options(options, dim, options.context_head_dim(), noise);
    };
    if (options.include_local_features) {
        LocalFeaturesOptions local{.num_channels = options.n_hidden_local,
                                   .slices = slices(options.n_hidden_local),
                                   .concrete_rate = concrete_rate};
        for (std::size_t s = 0; s < options.radii.size(); ++s)
            local.scales.push_back({options.radii[s], options.neighbors_in_radius[s]});
        for (std::size_t i = 0; i < options.functional_dim.size(); ++i)
            local_extractors_->push_back(LocalFeatures(local));
        register_module("local_extractors", local_extractors_);
    }
    if (options.geometry_dim > 0) {
        geometry_tokenizer_ =
            register_module("geometry_tokenizer", ContextProjector(slices(options.geometry_dim), concrete_rate));
    }
    if (options.global_dim > 0) {
        auto without_grid = slices(options.global_dim);
        without_grid.grid.clear();  // global values are not on the grid
        global_tokenizer_ = register_module("global_tokenizer", ContextProjector(without_grid, concrete_rate));
    }
}

ContextBuilderImpl::Result ContextBuilderImpl::forward(const std::vector<torch::Tensor>& positions,
                                                       const torch::Tensor& geometry,
                                                       const torch::Tensor& global_embedding)
{
    Result result;
    std::vector<torch::Tensor> parts;
    for (std::size_t i = 0; i < local_extractors_->size(); ++i) {
        auto local = local_extractors_[i]->as<LocalFeatures>()->forward(positions[i], geometry);
        parts.insert(parts.end(), local.tokens.begin(), local.tokens.end());
        result.local_features.push_back(std::move(local.features));
    }
    if (geometry_tokenizer_) parts.push_back(geometry_tokenizer_(geometry));
    if (global_tokenizer_) parts.push_back(global_tokenizer_(global_embedding));
    if (!parts.empty()) result.context = torch::cat(parts, -1);
    return result;
}

GeoTransolverBlockImpl::GeoTransolverBlockImpl(const GeoTransolverOptions& options, const SharedNoise& noise)
{
    const auto num_channels = options.num_channels();
    ln_1_ = register_module("ln_1", layer_norm(num_channels));
    const GaleOptions gale{.slices = slice_options(options, num_channels, options.head_dim(), noise),
                           .context_dim = options.context_dim(),
                           .state_mixing_mode = options.state_mixing_mode,
                           .dropout = options.dropout,
                           .concrete_dropout = options.concrete_dropout};
    if (options.attention_type == "GALE_FA")
        gale_fa_ = register_module("Attn", GaleFa(gale));
    else
        gale_ = register_module("Attn", Gale(gale));
    ln_mlp1_ = register_module(
        "ln_mlp1", torch::nn::Sequential(layer_norm(num_channels), Mlp(num_channels, options.mlp_ratio * num_channels,
                                                                       num_channels, options.act)));
    if (options.concrete_dropout) {
        attn_dropout_ = register_module("attn_dropout", ConcreteDropout(options.dropout, rows_of(noise)));
        ffn_dropout_ = register_module("ffn_dropout", ConcreteDropout(options.dropout, rows_of(noise)));
    }
}

torch::Tensor GeoTransolverBlockImpl::forward(torch::Tensor x, const torch::Tensor& context)
{
    const auto normalized = ln_1_(x);
    x = (gale_ ? gale_(normalized, context) : gale_fa_(normalized, context)) + x;
    if (attn_dropout_) x = attn_dropout_(x);
    x = ln_mlp1_->forward(x) + x;
    return ffn_dropout_ ? ffn_dropout_(x) : x;
}

BlockFusion GeoTransolverBlockImpl::fusion(const torch::Tensor& context) const
{
    BlockFusion fusion;
    fusion.obstacle = gale_fa_        ? "its attention is GALE_FA"
                      : attn_dropout_ ? "it has dropout at learned rates"
                                      : gale_->fuse_into(fusion.block, context);
    fuse_norms_and_mlp(ln_1_, ln_mlp1_, fusion.block);
    return fusion;
}

GeoTransolverImpl::GeoTransolverImpl(GeoTransolverOptions options) : options_(std::move(options))
{
    options_.validate();
    const auto num_channels = options_.n_hidden;
    context_builder_ = register_module("context_builder", ContextBuilder(options_, noise_));
    for (const auto dim : options_.functional_dim)
        preprocess_->push_back(Mlp(dim, 2 * num_channels, num_channels, options_.act));
    register_module("preprocess", preprocess_);
    for (std::int64_t i = 0; i < options_.n_layers; ++i) blocks_->push_back(GeoTransolverBlock(options_, noise_));
    register_module("blocks", blocks_);
    const auto num_out = options_.num_channels();
    for (const auto dim : options_.out_dim)
        heads_->push_back(torch::nn::Sequential(layer_norm(num_out), torch::nn::Linear(num_out, dim)));
    register_module("ln_mlp_out", heads_);
    if (options_.time_input) {
        auto time_fc = register_module("time_fc", torch::nn::Sequential());
        time_fc->push_back(torch::nn::Linear(num_channels, num_channels));
        time_fc->push_back(torch::nn::SiLU());
        time_fc->push_back(torch::nn::Linear(num_channels, num_channels));
    }
}

std::vector<torch::Tensor> GeoTransolverImpl::local_positions(const GeoTransolverInputs& inputs) const
{
    if (!options_.include_local_features) return {};
    if (inputs.local_positions.size() != options_.functional_dim.size()) {
        throw InvalidInput("GeoTransolver: local_positions has {} streams, and the model {}; "
                           "include_local_features needs the positions of every stream's points.",
                           inputs.local_positions.size(), options_.functional_dim.size());
    }
    std::vector<torch::Tensor> positions;
    for (std::size_t i = 0; i < inputs.local_positions.size(); ++i) {
        positions.push_back(flat_points("GeoTransolver", "local_positions", inputs.local_positions[i], {}, 3));
        if (positions[i].size(1) == inputs.local_embedding[i].size(1)) continue;
        throw InvalidInput("GeoTransolver: stream {} has {} local_positions and {} rows of "
                           "local_embedding. Pass one position for each row.",
                           i, positions[i].size(1), inputs.local_embedding[i].size(1));
    }
    return positions;
}

void GeoTransolverImpl::set_memory(MemoryMode mode)
{
    memory_ = unless_streamed("GeoTransolver", mode);
}

std::vector<BlockChoice> GeoTransolverImpl::block_forms(const torch::Tensor& points)
{
    std::vector<BlockChoice> choices;
    for (const auto& block : *blocks_) {
        const auto* obstacle = obstacle_of(points, block->as<GeoTransolverBlock>()->fusion({}));
        choices.push_back({form_of_one(obstacle, memory_), obstacle});
    }
    return choices;
}

std::vector<torch::Tensor> GeoTransolverImpl::forward(const GeoTransolverInputs& inputs)
{
    constexpr const char* kModel = "GeoTransolver";
    const at::IntArrayRef grid = options_.structured_shape;
    const auto num_streams = options_.functional_dim.size();
    if (inputs.local_embedding.size() != num_streams) {
        throw InvalidInput("GeoTransolver: local_embedding has {} streams, and the model {}.",
                           inputs.local_embedding.size(), num_streams);
    }
    auto geometry = required("geometry", inputs.geometry, options_.geometry_dim);
    if (geometry.defined()) geometry = flat_points(kModel, "geometry", geometry, grid, options_.geometry_dim);
    auto global_embedding = required("global_embedding", inputs.global_embedding, options_.global_dim);
    if (global_embedding.defined())
        global_embedding = flat_points(kModel, "global_embedding", global_embedding, {}, options_.global_dim);
    std::vector<torch::Tensor> streams;
    for (std::size_t i = 0; i < num_streams; ++i)
        streams.push_back(
            flat_points(kModel, "local_embedding", inputs.local_embedding[i], grid, options_.functional_dim[i]));
    const auto positions = local_positions(inputs);

    noise_->rows.set_rows(inputs.geometry);
    const auto [context, local_features] = context_builder_(positions, geometry, global_embedding);
    for (std::size_t i = 0; i < num_streams; ++i) {
        streams[i] = preprocess_[i]->as<Mlp>()->on_points(streams[i]);                              // (B, N_i, C)
        if (!local_features.empty()) streams[i] = torch::cat({streams[i], local_features[i]}, -1);  // (B, N_i, E)
    }
    for (std::size_t number = 0; number < blocks_->size(); ++number) {
        RECORD_USER_SCOPE(fmt::format("block {}", number + 1));
        auto& block = *blocks_[number]->as<GeoTransolverBlock>();
        const auto eager = [&block](const std::vector<torch::Tensor>& given) {
            return block.forward(given[0], given[1]);
        };
        for (std::size_t i = 0; i < num_streams; ++i) {
            noise_->rows.set_rows(inputs.local_embedding[i]);
            streams[i] = run_block(block.fusion(context), memory_, rows_of(noise_), eager, {streams[i], context});
        }
    }
    for (std::size_t i = 0; i < num_streams; ++i) {
        auto& x = streams[i];
        x = heads_[i]->as<torch::nn::Sequential>()->forward(x);  // (B, N_i, out_dim)
        if (inputs.local_embedding[i].dim() != 3) x = x.unflatten(1, grid);
    }
    return streams;
}

}  // namespace meshard
