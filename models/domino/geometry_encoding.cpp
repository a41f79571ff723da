// SPDX-License-Identifier: Apache-2.0
#include "models/domino/geometry_encoding.h"

#include "models/domino/point_networks.h"
#include "models/layers/activation.h"
#include "ops/neighbors/ball_query.h"

namespace meshard {
namespace {

torch::nn::Conv3d same_conv(std::int64_t in, std::int64_t out)
{
    return torch::nn::Conv3d(torch::nn::Conv3dOptions(in, out, 3).padding(1));
}

/// (B, 1, X, Y, Z) to (B, 3, X, Y, Z): differences along X, Y and Z with unit spacing, central ones inside, one-sided
/// at both ends.
torch::Tensor grid_gradient(const torch::Tensor& x)
{
    // One convolution computes all three differences; it takes the cells beyond the ends as zero.
    auto stencils = torch::zeros({3, 1, 3, 3, 3}, x.options());
    for (int axis = 0; axis < 3; ++axis) {
        const auto line = stencils[axis][0];
        const auto along = axis == 0   ? line.select(1, 1).select(1, 1)
                           : axis == 1 ? line.select(0, 1).select(1, 1)
                                       : line.select(0, 1).select(0, 1);
        along[0] = -0.5;
        along[2] = 0.5;
    }
    const auto central = torch::conv3d(x, stencils, {}, 1, at::IntArrayRef{1, 1, 1});
    // At an end it therefore gives half of the next cell; twice that, minus the cell itself, is the one-sided
    // difference.
    auto at_ends =
        torch::zeros({1, 3, x.size(2), x.size(3), x.size(4)}, torch::TensorOptions(x.scalar_type()).device(x.device()));
    auto sign = torch::zeros_like(at_ends);
    for (int axis = 0; axis < 3; ++axis) {
        for (const bool is_last : {false, true}) {
            const auto index = is_last ? x.size(2 + axis) - 1 : 0;
            at_ends.select(1, axis).select(1 + axis, index).fill_(1);
            sign.select(1, axis).select(1 + axis, index).fill_(is_last ? 1 : -1);
        }
    }
    return central * (1 + at_ends) + x * sign;
}

}  // namespace

ConvProcessorImpl::ConvProcessorImpl(std::int64_t in, std::int64_t out, std::int64_t filters, const std::string& act)
    : act_(Activation(act))
{
    const auto f = filters;
    const struct {
        const char* name;
        std::int64_t in, out;
    } layers[] = {{"conv1", in, f},          {"conv2", f, 2 * f},     {"conv3", 2 * f, 4 * f},
                  {"conv3_1", 4 * f, 4 * f}, {"conv4", 4 * f, 2 * f}, {"conv5", 4 * f, f},
                  {"conv6", 2 * f, in},      {"conv7", 2 * in, in},   {"conv8", in, out}};
    for (const auto& layer : layers) convs_.push_back(register_module(layer.name, same_conv(layer.in, layer.out)));
}

torch::Tensor ConvProcessorImpl::forward(const torch::Tensor& x)
{
    const auto active = [&](int i, const torch::Tensor& input) { return act_.forward(convs_[i]->forward(input)); };
    const auto halved = [](const torch::Tensor& input) { return torch::max_pool3d(input, 2); };
    const auto doubled_beside = [](const torch::Tensor& coarse, const torch::Tensor& fine) {
        return torch::cat({torch::upsample_nearest3d(coarse, fine.sizes().slice(2)), fine}, 1);
    };
    const auto x1 = halved(active(0, x)), x2 = halved(active(1, x1));
    auto t = active(3, halved(active(2, x2)));
    t = doubled_beside(active(4, t), x2);
    t = doubled_beside(active(5, t), x1);
    t = doubled_beside(active(6, t), x);
    return convs_[8]->forward(active(7, t));
}

UNet3d domino_unet(std::int64_t in, std::int64_t out, std::int64_t filters, const std::string& act, bool gates)
{
    UNet3dOptions options;
    options.in_channels = in;
    options.out_channels = out;
    options.model_depth = 3;
    options.feature_map_channels = {filters, 2 * filters, 4 * filters};
    options.num_conv_blocks = 1;
    options.conv_activation = act;
    options.normalization = gates ? "layernorm" : "";
    options.use_attn_gate = gates;
    if (gates) {
        options.attn_decoder_feature_maps = {4 * filters, 2 * filters};
        options.attn_feature_map_channels = {2 * filters, filters};
        options.attn_intermediate_channels = 4 * filters;
    }
    return UNet3d(options);
}

GeometryEncodingImpl::Processor GeometryEncodingImpl::make_processor(torch::nn::Module& parent, const std::string& name,
                                                                     std::int64_t in)
{
    const auto out = options_.base_neurons_out, filters = options_.base_filters;
    if (options_.processor_type == "unet") {
        auto unet = parent.register_module(
            name, domino_unet(in, out, filters, options_.processor_activation, options_.self_attention));
        return [unet](const torch::Tensor& x) mutable { return unet->forward(x); };
    }
    const auto place = parent.register_module(name, std::make_shared<torch::nn::Module>());
    auto conv = place->register_module("0", ConvProcessor(in, out, filters, options_.processor_activation));
    return [conv](const torch::Tensor& x) mutable { return conv->forward(x); };
}

GeometryEncodingImpl::GeometryEncodingImpl(const DominoOptions& options, bool is_volume)
    : options_(options.geometry), type_(options.geometry_encoding_type),
      hops_(is_volume ? options.geometry.volume_hops : options.geometry.surface_hops),
      sdf_scales_(is_volume ? options.geometry.volume_sdf_scales : options.geometry.surface_sdf_scales)
{
    const auto& queries = is_volume ? options_.volume : options_.surface;
    const auto in = options_.base_neurons_in, out = options_.base_neurons_out, width = options_.base_neurons;
    const auto places = register_module("geo_processors", std::make_shared<torch::nn::Module>());
    for (std::size_t j = 0; j < queries.radii.size(); ++j) {
        limits_.push_back({queries.radii[j], queries.neighbors[j]});
        processors_.push_back(make_processor(*places, std::to_string(j), in));
    }
    for (const auto slots : queries.neighbors) {
        conv_out_->push_back(FourierMlp(3 * slots, std::vector<std::int64_t>{width, width / 2, in},
                                        options_.fourier_features, options_.num_modes, options_.activation));
        processor_out_->push_back(same_conv(out, 1));
    }
    register_module("geo_conv_out", conv_out_);
    register_module("geo_processor_out", processor_out_);
    sdf_processor_ = make_processor(*this, "geo_processor_sdf", 5 + std::ssize(sdf_scales_));
    sdf_out_ = register_module("geo_processor_sdf_out", same_conv(out, 1));
    if (options_.cross_attention) {
        const auto channels = options.encoding_channels(queries.radii.size());
        combined_ = register_module("combined_unet", domino_unet(channels, channels, options_.base_filters,
                                                                 options_.processor_activation, true));
    }
}

torch::Tensor GeometryEncodingImpl::distance_channels(const torch::Tensor& sdf) const
{
    std::vector<torch::Tensor> channels{sdf};
    for (const auto scale : sdf_scales_) channels.push_back(sdf / (scale + sdf.abs()));
    channels.push_back(sdf.detach().lt(0).to(sdf.scalar_type()));
    channels.push_back(grid_gradient(sdf));
    return torch::cat(channels, 1);
}

torch::Tensor GeometryEncodingImpl::forward(const torch::Tensor& geometry, const torch::Tensor& grid,
                                            const torch::Tensor& sdf)
{
    std::vector<torch::Tensor> encodings;
    if (type_ != "sdf") {
        const auto around =
            ball_query(geometry, grid.flatten(1, 3).detach(), limits_, NeighborOrder::Grid);  // (B, cells, 3 K) each
        for (std::size_t j = 0; j < limits_.size(); ++j) {
            auto x = torch::tanh(conv_out_[j]->as<FourierMlp>()->forward(around[j]));
            x = x.unflatten(1, grid.sizes().slice(1, 3)).permute({0, 4, 1, 2, 3});  // (B, in, X, Y, Z)
            for (std::int64_t hop = 0; hop < hops_; ++hop) x = x + processors_[j](x) / static_cast<double>(hops_);
            encodings.push_back(processor_out_[j]->as<torch::nn::Conv3d>()->forward(x));
        }
    }
    if (type_ != "stl") encodings.push_back(sdf_out_(sdf_processor_(distance_channels(sdf.unsqueeze(1)))));
    const auto encoding = torch::cat(encodings, 1);
    return combined_ ? combined_->forward(encoding) : encoding;
}

}  // namespace meshard
