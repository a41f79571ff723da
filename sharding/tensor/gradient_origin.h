// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sharding/ranks/device_mesh.h"

namespace torch::autograd {
struct Node;
}

namespace meshard {

/// What a plain gradient stands for. One that comes back through `from_local` from a tensor that is cut is what this rank's rows contribute; one of a
/// computation that all ranks do alike is the whole on each of them.
struct GradientOrigin {
    std::vector<std::string> share_axes;   ///< names of the axes on which each rank has its own share, and the shares add up
    bool mixed = false;             ///< gradients of several kinds have been added up: nobody can tell them apart

    bool operator==(const GradientOrigin&) const = default;
};

/// Origins of the gradients of the backward under way in this thread, from its graph.
class GradientOrigins {
public:
    GradientOrigins();

    /// Of what arrives at input `input` of `node`.
    GradientOrigin at(const torch::autograd::Node* node, std::uint32_t input) const;

    /// Of what arrives at a leaf.
    GradientOrigin of_leaf(const at::Tensor& leaf) const;

    bool are_of(int graph_task) const { return graph_task == graph_task_; }

private:
    int graph_task_;
    std::unordered_map<const torch::autograd::Node*, std::vector<GradientOrigin>> origins_;   // by input; empty where all are whole
};

/// Numbers from which other ranks see whether they have the same plain gradient.
struct PlainGradientSum {
    double projection = 0, norm = 0;
    bool exists = false;

    void add(const at::Tensor& gradient);
};

/// Compares what ranks have noted, one entry a parameter: those that differ along another axis than `data` must agree. Collective over those axes.
/// @throws InvalidInput, naming the parameter: plain gradients that differ are none of a computation that all ranks do alike.
void check_plain_gradients(const std::vector<PlainGradientSum>& own, const std::vector<std::string>& names, const std::vector<at::ScalarType>& types,
                           const DeviceMesh& device_mesh);

/// @throws InvalidInput if a parameter's gradient is mixed.
void check_origin(const GradientOrigin& origin, const std::string& name);

}  // namespace meshard
