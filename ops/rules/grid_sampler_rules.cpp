// SPDX-License-Identifier: Apache-2.0
// Sampling of an image at given positions: every rank samples at its own positions, or its own samples and channels;
// the image's grid must be whole.
#include "ops/rules/rank_parts.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// Layouts of image (N, C, ...), positions (N, ..., n) and samples (N, C, ...), and of their gradients.
struct Sampling {
    AxisLayouts image, places, samples;
    AxisLayouts image_gradient, places_gradient;
};

Sampling plan(const RuleCall& call, const at::Tensor& image, const at::Tensor& places)
{
    const AxisLayouts none(call.num_axes());
    Sampling s{none, none, none, none, none};
    const AxisLayout pending{Partial(), nullptr, 1};
    for (const auto axis : call.axes()) {
        const auto &i = call.layout(image, axis), &p = call.layout(places, axis);
        if (p.is_shard() && p.placement.dim < places.dim() - 1) {
            s.places[axis] = s.samples[axis] = s.places_gradient[axis] = p;
            if (p.placement.dim == 0) {
                s.image[axis] = s.image_gradient[axis] = p;
            } else {
                s.samples[axis].placement.dim += 1;
                s.image_gradient[axis] = pending;
            }
        } else if (i.is_shard() && i.placement.dim <= 1) {
            s.image[axis] = s.samples[axis] = s.image_gradient[axis] = i;
            if (i.placement.dim == 0)
                s.places[axis] = s.places_gradient[axis] = i;
            else
                s.places_gradient[axis] = pending;
        }
    }
    return s;
}

bool possible(const Sampling& s, const at::Tensor& image, const at::Tensor& places)
{
    return image.numel() > 0 && places.numel() > 0 && !cut_one_dim_twice(s.image) && !cut_one_dim_twice(s.places) &&
           !cut_one_dim_twice(s.samples);
}

/// grid_sampler_2d, grid_sampler_3d (input, grid, interpolation, padding, align_corners)
void sample(RuleCall& call)
{
    const auto image = call.tensor(0), places = call.tensor(1);
    const auto s = plan(call, image, places);
    if (!possible(s, image, places)) return gathered_rule(call);
    call.reduce({image, places});
    const auto part = local_of(with_layouts(call, image, s.image)),
               own = local_of(with_layouts(call, places, s.places));
    const auto spec = call.spec(s.samples);
    if (part.numel() == 0 || own.numel() == 0) {
        auto shape = own.sizes().vec();
        shape.pop_back();
        shape.insert(shape.begin() + 1, part.size(1));
        return call.finish({wrap(at::empty(shape, part.options()), spec)});
    }
    call.arg(0) = part;
    call.arg(1) = own;
    call.run({spec});
}

/// grid_sampler_Nd_backward(grad_output, input, grid, interpolation, padding, align_corners, output_mask) ->
/// grad_input, grad_grid
void sample_backward(RuleCall& call)
{
    const auto image = call.tensor(1), places = call.tensor(2);
    const auto s = plan(call, image, places);
    if (!possible(s, image, places)) return gathered_rule(call);
    call.reduce(call.tensors());
    const auto part = local_of(with_layouts(call, image, s.image)),
               own = local_of(with_layouts(call, places, s.places));
    const std::vector<SpecPtr> specs{call.spec(s.image_gradient), call.spec(s.places_gradient)};
    const auto gradient = local_of(with_layouts(call, call.tensor(0), s.samples));
    if (part.numel() == 0 || own.numel() == 0) {
        const auto mask = call.arg(6).toBoolList();
        at::Tensor of_image, of_places;
        if (mask.get(0)) of_image = wrap(at::zeros_like(part), specs[0]);
        if (mask.get(1)) of_places = wrap(at::zeros_like(own), specs[1]);
        return call.finish({of_image, of_places});
    }
    call.arg(0) = gradient;
    call.arg(1) = part;
    call.arg(2) = own;
    call.run(specs);
}

const RuleRegistration grid_sampler_rules[] = {
    {"interpolation", {"aten::grid_sampler_2d", "aten::grid_sampler_3d"}, sample},
    {"interpolation", {"aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward"}, sample_backward},
};

}  // namespace
}  // namespace meshard
