// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

// Reductions of messages by target, in two steps: sums, which can be added over ranks, and results computed from these.
// `reductions` are names among mean, sum, max, min, var and std; `edges` (E, C) are the messages, `targets` (E), int64,
// their target rows.

/// Returns whether max or min is among them.
bool has_extremes(const std::vector<std::string>& reductions);

/// For each target the largest value of its edges, and the largest negated value, (targets, 2 C), without gradients;
/// minus infinity without edges.
at::Tensor edge_extremes(const at::Tensor& edges, const at::Tensor& targets, std::int64_t num_targets);

/// The sums, (targets, width), from which `edge_reductions` computes all reductions once they are added over all ranks:
/// values, squares, and, for the extremes, the edges that attain them and their number, so that the gradient of an
/// extreme goes to its edge; the number of edges is last.
/// @param extremes   extremes over the edges of all ranks; undefined unless `has_extremes`
at::Tensor edge_sums(const std::vector<std::string>& reductions, const at::Tensor& edges, const at::Tensor& targets,
                     std::int64_t num_targets, const at::Tensor& extremes);

std::int64_t width_of_edge_sums(const std::vector<std::string>& reductions, std::int64_t channels);

/// Computes reductions from these sums: (..., width) to (..., C reductions). Targets without edges get zeros, for a
/// standard deviation the root of its lower bound.
at::Tensor edge_reductions(const std::vector<std::string>& reductions, const at::Tensor& sums, std::int64_t channels);

}  // namespace meshard
