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

/// Whether a plain gradient is this rank's share or the whole. A gradient that passes `from_local` of a sharded tensor
/// is the contribution of this rank's rows (a share); the gradient of a computation that all ranks do alike is the
/// whole on each.
struct GradientOrigin {
    /// Axes on which each rank has its own share; the whole is the sum of the shares.
    std::vector<MeshAxis> share_axes;
    bool mixed = false;  ///< gradients of different origins have been added, and cannot be separated

    bool operator==(const GradientOrigin&) const = default;
};

/// Origins of all gradients in the backward pass that runs in this thread, derived from its graph.
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
    // Indexed by input; no entry if all are whole.
    std::unordered_map<const torch::autograd::Node*, std::vector<GradientOrigin>> origins_;
};

/// Numbers by which ranks compare their plain gradients of one parameter.
struct PlainGradientSum {
    double projection = 0, norm = 0;
    bool exists = false;

    void add(const at::Tensor& gradient);
};

/// Compares `own`, one entry for each parameter, with the other ranks' along every axis but `data`. Collective over
/// those axes.
/// @throws InvalidInput, naming the parameter, if they differ: then the ranks have not done the same computation.
void check_plain_gradients(const std::vector<PlainGradientSum>& own, const std::vector<std::string>& names,
                           const std::vector<at::ScalarType>& types, const DeviceMesh& device_mesh);

/// @throws InvalidInput, naming the parameter, if its gradient is mixed.
void check_origin(const GradientOrigin& origin, const std::string& name);

}  // namespace meshard
