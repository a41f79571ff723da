// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace meshard {

/// Pools a geometry to fewer tokens (Alkin et al. 2024, Universal physics transformers): the token of a supernode is
/// computed from the mean message of the points around it and from its own position.
class SupernodePoolingImpl : public torch::nn::Module {
public:
    /// @param max_degree   if more points are within the radius, those with the lowest ids are used
    SupernodePoolingImpl(std::int64_t num_channels, double radius, std::int64_t max_degree);

    /// @param geometry     (B, N, 3)
    /// @param supernodes   (B, M, 3), a subset of the geometry's points
    /// @return             (B, M, num_channels)
    torch::Tensor forward(const torch::Tensor& geometry, const torch::Tensor& supernodes);

private:
    std::int64_t num_channels_, max_degree_;
    double radius_;
    torch::nn::Sequential message_;
    torch::nn::Linear proj_{nullptr};
};
TORCH_MODULE(SupernodePooling);

}  // namespace meshard
