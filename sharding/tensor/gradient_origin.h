// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/device_mesh.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace meshard {

/// Whether a plain gradient is this rank's share or the whole. A gradient that comes through `from_local` from a cut tensor is the contribution of this rank's
/// rows (a share); the gradient of a computation that all ranks do in the same way is the whole on each of them.
struct GradientOrigin {
    std::vector<std::string> share_axes;  ///< names of the axes on which each rank has its own share; the whole is the sum of the shares
    bool mixed = false;                   ///< gradients of different origins have been added: they cannot be separated

    bool operator==(const GradientOrigin&) const = default;
};

/// Origins of all gradients in the backward pass that runs in this thread, computed from its graph.
class GradientOrigins {
public:
    GradientOrigins();

    /// Origin of the gradient that arrives at input `input` of `node`.
    GradientOrigin at(const torch::autograd::Node* node, std::uint32_t input) const;

    /// Origin of the gradient that arrives at a leaf.
    GradientOrigin of_leaf(const at::Tensor& leaf) const;

    bool are_of(int graph_task) const { return graph_task == graph_task_; }

private:
    int graph_task_;
    std::unordered_map<const torch::autograd::Node*, std::vector<GradientOrigin>> origins_;  // indexed by input; empty if all are whole
};

/// Numbers by which ranks compare their plain gradients of one parameter.
struct PlainGradientSum {
    double projection = 0, norm = 0;
    bool exists = false;

    void add(const at::Tensor& gradient);
};

/// Compares `own` with that of the other ranks along every axis but `data`, one entry for each parameter. Collective over those axes.
/// @throws InvalidInput, naming the parameter, if they differ: then the gradient does not come from a computation that all ranks do in the same way.
void check_plain_gradients(const std::vector<PlainGradientSum>& own, const std::vector<std::string>& names, const std::vector<at::ScalarType>& types,
                           const DeviceMesh& device_mesh);

/// @throws InvalidInput, naming the parameter, if its gradient is mixed.
void check_origin(const GradientOrigin& origin, const std::string& name);

}  // namespace meshard
