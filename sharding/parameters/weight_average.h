// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshard {

/// A running mean of parameters: each update sets e to d e + (1 - d) p with d = min(decay, (1 + t) / (10 + t)), where t
/// is the number of updates before, so that the start is soon forgotten. Starts as a copy of the parameters. For
/// parameters that are sharded over ranks each rank averages its parts. The host does not wait for a device.
class WeightAverage {
public:
    /// @param parameters   plain leaves in float or wider   @throws InvalidInput if the decay is not in (0, 1)
    WeightAverage(std::vector<at::Tensor> parameters, double decay);

    /// Call it after each change of the parameters.
    void update();

    /// Exchanges the values of parameters and means. A second call restores them bit for bit.
    void swap();

    std::int64_t num_updates() const { return num_updates_; }
    void set_num_updates(std::int64_t count) { num_updates_ = count; }

    const std::vector<at::Tensor>& parameters() const { return parameters_; }
    const std::vector<at::Tensor>& means() const { return means_; }

    /// The mean of a parameter; null for any other tensor.
    const at::Tensor* mean_of(const at::Tensor& parameter) const;

    /// Resets the means to the present parameters.
    void restart();

private:
    std::vector<at::Tensor> parameters_, means_;
    double decay_ = 0;
    std::int64_t num_updates_ = 0;
};

}  // namespace meshard
