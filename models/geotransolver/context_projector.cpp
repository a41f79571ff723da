// SPDX-License-Identifier: Apache-2.0
#include "models/geotransolver/context_projector.h"

#include <torch/torch.h>

namespace meshard {

ContextProjectorImpl::ContextProjectorImpl(SliceOptions options, double concrete_rate) : slices_(std::move(options))
{
    // The order in which the reference makes its layers, and so draws random numbers. It leaves the slices' weights as they are drawn.
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
