// SPDX-License-Identifier: Apache-2.0
#include "models/grids/fno.h"

#include "models/layers/option_table.h"
#include "ops/grids/grid_modes.h"
#include "ops/slices/activations.h"
#include "sharding/memory/recompute.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <torch/nn/init.h>

#include <cmath>

namespace meshard {
namespace {

constexpr std::int64_t kDefaultModes = 16, kDefaultPadding = 8, kDefaultDimension = 2;

/// Names of the activations without parameters: in the reference's checkpoints one with a parameter is listed under
/// several names.
std::vector<std::string> plain_activations()
{
    std::vector<std::string> names;
    for (const auto& function : activation_functions()) {
        if (function.parameter == ActivationFunction::Parameter::None) names.emplace_back(function.name);
    }
    return names;
}

/// A linear map of the channels of each cell, as a convolution in the grid's number of dimensions.
torch::Tensor map_cells(const torch::Tensor& grid, const torch::Tensor& weight, const torch::Tensor& bias)
{
    return grid.dim() == 4 ? torch::conv2d(grid, weight, bias) : torch::conv3d(grid, weight, bias);
}

/// Draws the values of the reference's fully connected layers, after those of LibTorch's.
void draw_again(torch::Tensor weight, torch::Tensor bias)
{
    torch::nn::init::xavier_uniform_(weight);
    torch::nn::init::zeros_(bias);
}

std::shared_ptr<torch::nn::Module> holder_of(const char* name, const std::shared_ptr<torch::nn::Module>& module)
{
    auto holder = std::make_shared<torch::nn::Module>();
    holder->register_module(name, module);
    return holder;
}

}  // namespace

const OptionTable<FnoOptions>& fno_option_table()
{
    using O = FnoOptions;
    static const OptionTable<O> table(
        "FNO", {
                   {"in_channels", &O::in_channels, "channels of the grid", {.least = 1}},
                   {"out_channels", &O::out_channels, "channels of the result", {.least = 1}},
                   {"decoder_layers", &O::decoder_layers, "hidden layers of the decoder", {.least = 0}},
                   {"decoder_layer_size", &O::decoder_layer_size, "their channels", {.least = 1}},
                   {"decoder_activation_fn",
                    &O::decoder_activation_fn,
                    "activation of the decoder",
                    {.words = plain_activations()}},
                   {"dimension", &O::dimension, "directions of the grid", {.least = 2, .most = 3}},
                   {"latent_channels", &O::latent_channels, "channels of the layers", {.least = 2}},
                   {"num_fno_layers", &O::num_fno_layers, "layers", {.least = 1}},
                   {"num_fno_modes", &O::num_fno_modes, "modes kept along each direction", {.least = 1}},
                   {"padding", &O::padding, "cells added at the end of each direction", {.least = 0}},
                   {"padding_type",
                    &O::padding_type,
                    "what these cells hold",
                    {.words = {"constant", "replicate", "reflect", "circular"}}},
                   {"activation_fn", &O::activation_fn, "activation of the layers", {.words = plain_activations()}},
                   {"coord_features", &O::coord_features, "adds each cell's place between 0 and 1 to its channels"},
               });
    return table;
}

void FnoOptions::validate() const
{
    fno_option_table().check(*this);
    const OptionChecks checks("FNO");
    const auto expect_one_a_direction = [&](const char* name, const std::vector<std::int64_t>& values) {
        if (std::ssize(values) == dimension) return;
        checks.refuse("{} must be one number or one a direction, {}, and has {} entries.", name, dimension,
                      values.size());
    };
    expect_one_a_direction("num_fno_modes", num_fno_modes);
    expect_one_a_direction("padding", padding);
}

nlohmann::json with_modes_of_each_direction(nlohmann::json arguments)
{
    const auto given = arguments.find("dimension");
    const auto dimension =
        given != arguments.end() && given->is_number_integer() ? given->get<std::int64_t>() : kDefaultDimension;
    if (dimension < 1 || dimension > 4) return arguments;  // `validate` reports it
    const auto fill = [&](const char* name, std::int64_t fallback) {
        auto& value = arguments[name];
        if (value.is_null()) value = fallback;
        if (value.is_number()) value = std::vector<nlohmann::json>(dimension, value);
    };
    fill("num_fno_modes", kDefaultModes);
    fill("padding", kDefaultPadding);
    auto& padding = arguments["padding"];
    while (padding.is_array() && std::ssize(padding) < dimension) padding.push_back(0);
    return arguments;
}

FnoOptions fno_options(const nlohmann::json& arguments)
{
    return fno_option_table().read(with_modes_of_each_direction(arguments));
}

CellLinearImpl::CellLinearImpl(std::int64_t in, std::int64_t out, std::int64_t num_directions)
{
    std::vector<std::int64_t> shape(num_directions + 2, 1);
    shape[0] = out;
    shape[1] = in;
    weight = register_parameter("weight", torch::empty(shape));
    bias = register_parameter("bias", torch::empty({out}));
    torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0));
    const auto bound = 1 / std::sqrt(static_cast<double>(in));
    torch::nn::init::uniform_(bias, -bound, bound);
}

torch::Tensor CellLinearImpl::forward(const torch::Tensor& grid) const
{
    return map_cells(grid, weight, bias);
}

SpectralConvolutionImpl::SpectralConvolutionImpl(std::int64_t channels, std::vector<std::int64_t> num_modes)
    : num_modes_(std::move(num_modes))
{
    std::vector<std::int64_t> shape{channels, channels};
    shape.insert(shape.end(), num_modes_.begin(), num_modes_.end());
    shape.push_back(2);
    const auto scale = 1 / static_cast<double>(channels * channels);
    for (std::size_t i = 0; i < std::size_t{1} << (num_modes_.size() - 1); ++i)
        weights_.push_back(register_parameter(fmt::format("weights{}", i + 1), scale * torch::rand(shape)));
}

torch::Tensor SpectralConvolutionImpl::multiplied(const torch::Tensor& modes) const
{
    // The parts of all corners are concatenated: low and high modes of the first direction, then of the second, and so
    // on.
    const auto corner = [&](std::size_t number) {
        auto part = modes;
        for (std::size_t a = 0; a + 1 < num_modes_.size(); ++a)
            part = part.narrow(static_cast<std::int64_t>(a) + 2, (number >> a & 1) != 0 ? num_modes_[a] : 0,
                               num_modes_[a]);
        return torch::einsum(num_modes_.size() == 2 ? "bixy,ioxy->boxy" : "bixyz,ioxyz->boxyz",
                             {part, torch::view_as_complex(weights_[number])});
    };
    if (num_modes_.size() == 2) return torch::cat({corner(0), corner(1)}, 2);
    return torch::cat({torch::cat({corner(0), corner(1)}, 2), torch::cat({corner(2), corner(3)}, 2)}, 3);
}

torch::Tensor SpectralConvolutionImpl::forward(const torch::Tensor& grid)
{
    const auto modes = grid_modes(grid, num_modes_, shares_);
    const auto products = shares_.empty() ? multiplied(modes) : from_local(multiplied(to_local(modes)), spec_of(modes));
    return grid_from_modes(products, grid, num_modes_);
}

AxisLayout SpectralConvolutionImpl::share_modes(std::int64_t num_ranks)
{
    shares_ = even_extents(num_modes_.back(), num_ranks);
    return {Shard(std::ssize(num_modes_) + 1), std::make_shared<const Extents>(shares_), 1};
}

std::map<std::string, AxisLayout> share_modes(torch::nn::Module& model, std::int64_t num_ranks)
{
    std::map<std::string, AxisLayout> cuts;
    if (num_ranks == 1) return cuts;
    for (const auto& item : model.named_modules()) {
        auto* layer = dynamic_cast<SpectralConvolutionImpl*>(item.value().get());
        if (!layer) continue;
        const auto cut = layer->share_modes(num_ranks);
        for (const auto& parameter : layer->named_parameters()) cuts.emplace(item.key() + "." + parameter.key(), cut);
    }
    return cuts;
}

FnoImpl::FnoImpl(FnoOptions options) : options_(std::move(options))
{
    options_.validate();
    const auto& o = options_;
    activation_ = Activation(o.activation_fn);  // without parameters, and so without names in checkpoints
    decoder_activation_ = Activation(o.decoder_activation_fn);

    torch::nn::ModuleList decoder_layers;
    auto in = o.latent_channels;
    for (std::int64_t i = 0; i <= o.decoder_layers; ++i) {
        const bool is_last = i == o.decoder_layers;
        const auto out = is_last ? o.out_channels : o.decoder_layer_size;
        decoder_.emplace_back(in, out);
        draw_again(decoder_.back()->weight, decoder_.back()->bias);
        if (!is_last) decoder_layers->push_back(holder_of("linear", decoder_.back().ptr()));
        in = out;
    }
    auto decoder = std::make_shared<torch::nn::Module>(), encoder = std::make_shared<torch::nn::Module>();
    decoder->register_module("layers", decoder_layers);
    decoder->register_module("final_layer", holder_of("linear", decoder_.back().ptr()));
    register_module("decoder_net", decoder);

    const auto half = o.latent_channels / 2;
    auto lift = std::make_shared<torch::nn::Module>();
    lift_ = {CellLinear(nullptr), CellLinear(nullptr)};
    for (std::size_t i = 0; i < 2; ++i) {
        lift_[i] = i == 0 ? CellLinear(o.in_channels + (o.coord_features ? o.dimension : 0), half, o.dimension)
                          : CellLinear(half, o.latent_channels, o.dimension);
        draw_again(lift_[i]->weight, lift_[i]->bias);
        if (o.dimension == 2) lift_[i]->bias.requires_grad_(false);
        lift->register_module(std::to_string(2 * i), holder_of("conv", lift_[i].ptr()));
    }
    encoder->register_module("lift_network", lift);
    torch::nn::ModuleList spectral, linear;
    for (std::int64_t i = 0; i < o.num_fno_layers; ++i) {
        spectral_.emplace_back(o.latent_channels, o.num_fno_modes);
        linear_.emplace_back(o.latent_channels, o.latent_channels, o.dimension);
        spectral->push_back(spectral_.back());
        linear->push_back(linear_.back());
    }
    encoder->register_module("spconv_layers", spectral);
    encoder->register_module("conv_layers", linear);
    register_module("spec_encoder", encoder);
}

void FnoImpl::set_memory(MemoryMode mode)
{
    memory_ = unless_streamed("FNO", mode);
}

void FnoImpl::require_shape(const torch::Tensor& grid) const
{
    const auto& o = options_;
    bool fits = grid.dim() == o.dimension + 2 && grid.size(1) == o.in_channels;
    for (std::int64_t a = 0; fits && a < o.dimension; ++a) {
        const auto size = grid.size(a + 2) + o.padding[a];
        fits = grid.size(a + 2) > 0 && o.num_fno_modes[a] <= (a + 1 == o.dimension ? size / 2 + 1 : size);
    }
    if (fits) {
        for (std::int64_t a = 0; a < o.dimension; ++a) {
            const auto most = o.padding_type == "reflect" ? grid.size(a + 2) - 1 : grid.size(a + 2);
            if (o.padding[a] > most && (o.padding_type == "reflect" || o.padding_type == "circular"))
                OptionChecks("FNO").refuse(
                    "padding {} of type {} takes as many other cells of the grid, and direction {} "
                    "of {} has {} at most. Choose a smaller padding, or padding_type constant.",
                    o.padding[a], o.padding_type, a, c10::str(grid.sizes().slice(2)), most);
        }
        return;
    }
    OptionChecks("FNO").refuse("the grid must be (batch, {}, {} extents), and has the shape {}; with the padding {} "
                               "each extent must be at least as large as num_fno_modes {}, of the last one half and 1.",
                               o.in_channels, o.dimension, c10::str(grid.sizes()),
                               c10::str(c10::IntArrayRef(o.padding)), c10::str(c10::IntArrayRef(o.num_fno_modes)));
}

torch::Tensor FnoImpl::with_coordinates(const torch::Tensor& grid) const
{
    if (!options_.coord_features) return grid;
    std::vector<torch::Tensor> channels{grid};
    const auto zeros = torch::zeros_like(grid.narrow(1, 0, 1));
    for (std::int64_t dim = 2; dim < grid.dim(); ++dim) {
        std::vector<std::int64_t> shape(grid.dim(), 1);
        shape[dim] = grid.size(dim);
        // In single precision for grids of any type, as in the reference.
        channels.push_back(zeros + torch::linspace(0, 1, grid.size(dim), grid.options().dtype(torch::kFloat))
                                       .to(grid.scalar_type())
                                       .view(shape));
    }
    return torch::cat(channels, 1);
}

torch::Tensor FnoImpl::padded(const torch::Tensor& grid) const
{
    std::vector<std::int64_t> ends;
    bool any = false;
    for (auto padding = options_.padding.rbegin(); padding != options_.padding.rend(); ++padding) {
        ends.insert(ends.end(), {0, *padding});
        any = any || *padding > 0;
    }
    return any ? at::pad(grid, ends, options_.padding_type) : grid;
}

torch::Tensor FnoImpl::decoded(torch::Tensor grid)
{
    for (std::size_t i = 0; i < decoder_.size(); ++i) {
        auto weight = decoder_[i]->weight;
        while (weight.dim() < grid.dim()) weight = weight.unsqueeze(-1);
        grid = map_cells(grid, weight, decoder_[i]->bias);
        if (i + 1 < decoder_.size()) grid = decoder_activation_(grid);
    }
    return grid;
}

torch::Tensor FnoImpl::forward(const torch::Tensor& grid)
{
    require_shape(grid);
    auto x = padded(lift_[1]->forward(activation_(lift_[0]->forward(with_coordinates(grid)))));
    for (std::size_t i = 0; i < spectral_.size(); ++i) {
        const auto layer = [this, i](const torch::Tensor& input) {
            const auto sum = linear_[i]->forward(input) + spectral_[i].ptr()->forward(input);
            return i + 1 < spectral_.size() ? activation_.ptr()->forward(sum) : sum;
        };
        x = memory_ == MemoryMode::Recomputed ? checkpoint(layer, x) : layer(x);
    }
    for (std::int64_t dim = 2; dim < grid.dim(); ++dim) x = x.narrow(dim, 0, grid.size(dim));
    return decoded(x);
}

}  // namespace meshard
