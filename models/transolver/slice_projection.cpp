// SPDX-License-Identifier: Apache-2.0
#include "models/transolver/slice_projection.h"

#include "ops/fused/scaled_slices.h"
#include "ops/slices/slice_ops.h"

#include <ATen/OpMathType.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>

#include <limits>
#include <utility>

namespace meshard {
namespace {

constexpr double kWeightEpsilon = 1e-2, kAuthorsWeightEpsilon = 1e-5;
constexpr double kInitialTemperature = 0.5;
constexpr double kMinTemperature = 0.5;
constexpr double kMaxTemperature = 5.0;
constexpr double kAuthorsMinTemperature = 0.1;  // on grids only
constexpr double kNoiseEpsilon = 1e-8;

torch::nn::AnyModule make_projection(torch::nn::Module& owner, const char* name, std::int64_t in, std::int64_t out,
                                     std::size_t num_dims)
{
    if (num_dims == 2)
        return torch::nn::AnyModule(
            owner.register_module(name, torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1))));
    if (num_dims == 3)
        return torch::nn::AnyModule(
            owner.register_module(name, torch::nn::Conv3d(torch::nn::Conv3dOptions(in, out, 3).padding(1))));
    return torch::nn::AnyModule(owner.register_module(name, torch::nn::Linear(in, out)));
}

}  // namespace

SharedNoise make_noise()
{
    return std::make_shared<SliceNoise>(at::globalContext().defaultGenerator(at::kCPU).current_seed());
}

void SliceProjection::add_temperature(torch::nn::Module& owner)
{
    temperature_ =
        owner.register_parameter("temperature", torch::full({1, 1, options_.num_heads, 1}, kInitialTemperature));
}

void SliceProjection::add_slices(torch::nn::Module& owner)
{
    in_project_slice_ =
        owner.register_module("in_project_slice", torch::nn::Linear(options_.head_dim, options_.num_slices));
}

void SliceProjection::make_slices_orthogonal()
{
    torch::nn::init::orthogonal_(in_project_slice_->weight);
}

void SliceProjection::add_projections(torch::nn::Module& owner)
{
    const auto inner = options_.num_heads * options_.head_dim;
    in_project_x_ = make_projection(owner, "in_project_x", options_.dim, inner, options_.grid.size());
    if (!options_.plus)
        in_project_fx_ = make_projection(owner, "in_project_fx", options_.dim, inner, options_.grid.size());
}

void SliceProjection::add_point_temperature(torch::nn::Module& owner)
{
    if (!options_.plus) return;
    proj_temperature_ = owner.register_module("proj_temperature", torch::nn::Sequential());
    proj_temperature_->push_back(torch::nn::Linear(options_.head_dim, options_.num_slices));
    proj_temperature_->push_back(torch::nn::GELU());
    proj_temperature_->push_back(torch::nn::Linear(options_.num_slices, 1));
    proj_temperature_->push_back(torch::nn::GELU());
}

torch::Tensor SliceProjection::project(torch::nn::AnyModule& module, const torch::Tensor& x) const
{
    const auto batch = x.size(0), num_points = x.size(1);
    if (options_.grid.empty())
        return module.forward<torch::Tensor>(x).view({batch, num_points, options_.num_heads, options_.head_dim});
    auto on_grid = x.unflatten(1, options_.grid).movedim(-1, 1);                 // (B, C, extents)
    on_grid = module.forward<torch::Tensor>(std::move(on_grid)).movedim(1, -1);  // (B, extents, H * D)
    return on_grid.reshape({batch, num_points, options_.num_heads, options_.head_dim});
}

std::pair<double, double> SliceProjection::temperature_bounds() const
{
    constexpr auto kNone = std::numeric_limits<double>::infinity();
    if (!options_.authors_constants) return {kMinTemperature, kMaxTemperature};
    return options_.grid.empty() ? std::pair(-kNone, kNone) : std::pair(kAuthorsMinTemperature, kMaxTemperature);
}

double SliceProjection::weight_epsilon() const
{
    return options_.authors_constants ? kAuthorsWeightEpsilon : kWeightEpsilon;
}

torch::Tensor SliceProjection::slice_weights(const torch::Tensor& x_mid, bool is_training)
{
    auto logits = in_project_slice_(x_mid);  // (B, N, H, S)
    if (!options_.plus) {
        const auto [least, most] = temperature_bounds();
        return torch::softmax(logits * temperature_.clamp(least, most).reciprocal(), -1);
    }

    // Luo et al. 2025, Transolver++, section 3.2.
    const auto temperature =
        (temperature_ + proj_temperature_->forward(x_mid)).clamp_min(kMinPointTemperature);  // (B, N, H, 1)
    if (has_noise(is_training)) {
        logits = logits.to(at::toOpMathType(logits.scalar_type()));  // in float16 log(kNoiseEpsilon) is infinite
        const auto uniform = options_.noise->given ? options_.noise->given(logits) : options_.noise->rows.draw(logits);
        logits = logits - torch::log(-torch::log(uniform + kNoiseEpsilon) + kNoiseEpsilon);
    }
    return torch::softmax(logits / temperature, -1).to(x_mid.scalar_type());
}

bool SliceProjection::has_noise(bool is_training) const
{
    const auto* noise = options_.noise.get();
    return options_.plus && noise &&
           (noise->given || noise->when == NoiseWhen::Always || (noise->when == NoiseWhen::Training && is_training));
}

const char* SliceProjection::fuse_into(FusedBlock& block, bool is_training) const
{
    if (!options_.grid.empty()) return "its points are on a grid, where projections are convolutions";
    if (has_noise(is_training) && options_.noise->given) return "its noise comes from the caller's function";
    block.shape.heads = options_.num_heads;
    block.shape.head_dim = options_.head_dim;
    block.shape.slices = options_.num_slices;
    block.epsilon = weight_epsilon();
    const auto& x = in_project_x_.get<torch::nn::Linear>();
    block.weights.project_x = {x->weight, x->bias};
    if (options_.plus) {
        const auto &hidden = proj_temperature_->at<torch::nn::LinearImpl>(0),
                   &out = proj_temperature_->at<torch::nn::LinearImpl>(2);
        block.shape.point_temperature = true;
        block.weights.slices = {in_project_slice_->weight.expand({options_.num_heads, -1, -1}),
                                in_project_slice_->bias.expand({options_.num_heads, -1})};
        block.weights.temperature = temperature_.view({options_.num_heads});
        block.weights.temperature_hidden = {hidden.weight, hidden.bias};
        block.weights.temperature_out = {out.weight, out.bias};
        if (has_noise(is_training)) block.noise = rows_of(options_.noise);
        return nullptr;
    }
    const auto& fx = in_project_fx_.get<torch::nn::Linear>();
    const auto [least, most] = temperature_bounds();
    block.weights.project_fx = {fx->weight, fx->bias};
    block.weights.slices =
        slices_by_temperature({in_project_slice_->weight, in_project_slice_->bias}, temperature_, least, most);
    return nullptr;
}

SliceProjection::Slices SliceProjection::slice(const torch::Tensor& x, bool is_training)
{
    const auto x_mid = project(in_project_x_, x);                            // (B, N, H, D)
    const auto fx_mid = options_.plus ? x_mid : project(in_project_fx_, x);  // (B, N, H, D)
    const auto weights = slice_weights(x_mid, is_training);
    return {weights, slice_tokens(weights, fx_mid, weight_epsilon())};
}

}  // namespace meshard
