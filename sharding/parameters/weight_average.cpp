// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/weight_average.h"

#include "partition/error.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace meshard {

WeightAverage::WeightAverage(std::vector<at::Tensor> parameters, double decay)
    : parameters_(std::move(parameters)), decay_(decay)
{
    if (!(decay > 0 && decay < 1))
        throw InvalidInput("WeightAverage: the decay is {}; give a number between 0 and 1.", decay);
    restart();
}

void WeightAverage::restart()
{
    means_.clear();
    for (const auto& parameter : parameters_) means_.push_back(parameter.detach().clone());
    num_updates_ = 0;
}

void WeightAverage::update()
{
    const at::NoGradGuard no_grad;
    const auto t = static_cast<double>(num_updates_++);
    const auto decay = std::min(decay_, (1 + t) / (10 + t));
    if (!means_.empty()) at::_foreach_lerp_(means_, parameters_, 1 - decay);
}

void WeightAverage::swap()
{
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < means_.size(); ++i) {
        const auto kept = parameters_[i].clone();
        parameters_[i].copy_(means_[i]);
        means_[i].copy_(kept);
    }
}

const at::Tensor* WeightAverage::mean_of(const at::Tensor& parameter) const
{
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
        if (parameters_[i].is_same(parameter)) return &means_[i];
    }
    return nullptr;
}

}  // namespace meshard
