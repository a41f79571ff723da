// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

// Reductions of messages by their targets, in two steps: sums, which ranks can add up, and results from them. `reductions` are names among mean, sum, max, min,
// var and std; `edges` (E, C) the messages, `targets` (E), int64, the rows that they go to.

/// Whether max or min is among them.
bool has_extremes(const std::vector<std::string>& reductions);

/// The largest value of each target's edges and the largest negative value, (targets, 2 C), without gradients; minus infinity without edges.
at::Tensor edge_extremes(const at::Tensor& edges, const at::Tensor& targets, std::int64_t num_targets);

/// What is added up over the edges of all ranks, (targets, width), so that `edge_reductions` has all reductions: values, squares, and, for the extremes, the
/// edges that attain them and their number, so that the gradient of an extreme goes to its edge; the number of edges last.
/// @param extremes   of the edges of all ranks; undefined unless `has_extremes`
at::Tensor edge_sums(const std::vector<std::string>& reductions, const at::Tensor& edges, const at::Tensor& targets, std::int64_t num_targets,
                     const at::Tensor& extremes);

std::int64_t width_of_edge_sums(const std::vector<std::string>& reductions, std::int64_t channels);

/// From these sums, (..., width), to (..., C reductions). Targets without edges get zeros, of a standard deviation the root of its floor.
at::Tensor edge_reductions(const std::vector<std::string>& reductions, const at::Tensor& sums, std::int64_t channels);

}  // namespace meshard
