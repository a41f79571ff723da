// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshard {

/// A running mean of parameters: after each update e becomes d e + (1 - d) p with d = min(decay, (1 + t) / (10 + t)), where t counts the updates before, so
/// that the start is soon forgotten. Starts as the parameters are. Of parameters that are cut among ranks each keeps the mean of its parts. Nothing waits for a
/// device.
class WeightAverage {
public:
    /// @param parameters   plain leaves in float or wider   @throws InvalidInput if the decay is not in (0, 1)
    WeightAverage(std::vector<at::Tensor> parameters, double decay);

    /// To be called when the parameters have changed.
    void update();

    /// Exchanges the values of parameters and means. Called twice, all is as before, to the bit.
    void swap();

    std::int64_t num_updates() const { return num_updates_; }
    void set_num_updates(std::int64_t count) { num_updates_ = count; }

    const std::vector<at::Tensor>& parameters() const { return parameters_; }
    const std::vector<at::Tensor>& means() const { return means_; }

    /// Null for a tensor that is none of the parameters.
    const at::Tensor* mean_of(const at::Tensor& parameter) const;

    /// The means begin again as the parameters are now.
    void restart();

private:
    std::vector<at::Tensor> parameters_, means_;
    double decay_ = 0;
    std::int64_t num_updates_ = 0;
};

}  // namespace meshard
