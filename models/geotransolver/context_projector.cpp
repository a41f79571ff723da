// SPDX-License-Identifier: Apache-2.0
#include "models/geotransolver/context_projector.h"

#include <torch/types.h>

namespace meshard {

ContextProjectorImpl::ContextProjectorImpl(SliceOptions options, double concrete_rate) : slices_(std::move(options))
{
    // Layers are made in the reference's order, since each draws random numbers. As in the reference, the slices'
    // weights are not made orthogonal.
    slices_.add_temperature(*this);
    slices_.add_projections(*this);
    slices_.add_slices(*this);
    slices_.add_point_temperature(*this);
    if (concrete_rate >= 0) output_dropout_ = register_module("output_dropout", ConcreteDropout(concrete_rate));
}

torch::Tensor ContextProjectorImpl::forward(const torch::Tensor& points)
{
    const auto tokens = slices_.slice(points, is_training()).tokens;
    return output_dropout_ ? output_dropout_(tokens) : tokens;
}

}  // namespace meshard
