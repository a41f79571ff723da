// SPDX-License-Identifier: Apache-2.0
#include "models/registry/grid_forward.h"

#include "models/diffusion/edm_sampling.h"
#include "ops/grids/grid_rows.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/types.h>

namespace meshard {
namespace {

// Of data of the deviation 1 that are told much: roll-outs of Burgers' fronts have the error of 18 levels from 80 on.
constexpr std::int64_t kNumLevels = 8;
constexpr double kLowestLevel = 0.02, kHighestLevel = 20;

/// Makes rows of what a model of grids gives, (1, C, extents), as those of the inputs lie.
at::Tensor rows_of_result(at::Tensor result, const PointInputs& inputs)
{
    const auto& layout = inputs.grid_layout;
    if (!layout) return rows_of_grid(result);
    if (!(*spec_of(result) == *layout)) result = redistribute(result, layout);
    return rows_of_grid(result, spec_of(inputs.embedding));
}

/// A tensor (1, C, extents) of another number of channels that lies as an image.
at::Tensor like_with_channels(const at::Tensor& image, std::int64_t num_channels)
{
    auto sizes = to_local(image).sizes().vec();
    sizes[1] = num_channels;
    const auto empty = torch::empty(sizes, to_local(image).options());
    return is_sharded(image) ? from_local(empty, spec_of(image)) : empty;
}

}  // namespace

void take_rows_of_grids(Model& model, const Normalizer& of_inputs, bool has_mask, const CategoryChannels& categories)
{
    auto told = [normalizer = of_inputs, has_mask, categories](const PointInputs& inputs) mutable {
        // Copied once, not in each step.
        if (const auto device = inputs.embedding.device(); normalizer.mean.device() != device)
            normalizer = normalizer.on(device);
        auto rows = categories.one_hot(normalizer.normalize(inputs.embedding));
        if (has_mask) rows = zero_for_nan(rows);
        if (inputs.constants.defined())
            rows = torch::cat({rows, torch::ones_like(rows.narrow(-1, 0, 1)) * inputs.constants.unsqueeze(1)}, -1);
        return grid_of_rows(rows, inputs.grid, inputs.grid_layout).contiguous();  // (1, C, extents)
    };
    const auto denoiser = std::dynamic_pointer_cast<EdmPreconditionerImpl>(model.module);
    if (!denoiser) {
        model.forward = [told, forward = model.forward_grid](const PointInputs& inputs) mutable {
            return rows_of_result(forward(told(inputs)), inputs);
        };
        return;
    }
    model.denoise = [told, denoiser](const PointInputs& inputs, const at::Tensor& noisy, double level) mutable {
        const auto image = grid_of_rows(noisy, inputs.grid, inputs.grid_layout).contiguous();
        const auto levels = torch::full({image.size(0)}, level, noisy.options());
        return rows_of_result(denoiser->forward(image, levels, {told(inputs), {}}), inputs);
    };
    model.sampling = std::make_shared<EdmSampling>(
        EdmSampling{.num_steps = kNumLevels, .sigma_min = kLowestLevel, .sigma_max = kHighestLevel});
    model.forward = [told, denoiser = EdmPreconditioner(denoiser),
                     sampling = model.sampling](const PointInputs& inputs) mutable {
        const auto condition = told(inputs);
        const auto like = like_with_channels(condition, denoiser->options().num_outputs());
        const auto sample = generate_images(denoiser, like, {condition, {}}, *sampling);
        return rows_of_result(sample.to(condition.scalar_type()), inputs);
    };
}

}  // namespace meshard
