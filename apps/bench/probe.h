// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/transport/launch.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace meshard {

/// Model, inputs and cut of a `probe`.
struct ProbeRequest {
    std::filesystem::path model;     ///< TorchScript
    std::filesystem::path input;     ///< safetensors: `input` or the arguments' own names; `grad_output` if wanted
    std::vector<std::int64_t> dims;  ///< tensor dimensions to cut, one an axis of the device mesh
    std::vector<double> shares;      ///< shares of the ranks on axes of that size, equal on others; empty: 7, 3, 3, ...
    bool train = false;              ///< training mode, not evaluation
    bool backward = false;
};

/// One kind of call: an operator in given placements.
struct ProbedOperator {
    std::string name;    ///< `aten::mm`
    std::string family;  ///< family of its rule
    std::string inputs;  ///< placements, ` , ` between tensors
    std::string outputs;
    std::int64_t num_calls = 0;
    std::int64_t num_messages = 0;
    std::int64_t num_bytes = 0;
    bool gathered = false;  ///< every rank gathered the whole
};

/// How far a tensor of the sharded run is from the serial one.
struct ProbedDifference {
    std::string name;  ///< `output`, `grad_input`, `grad.<parameter>`, `buffer.<name>`
    double largest_difference = 0;
    double scale = 0;     ///< largest value of the serial tensor
    double rounding = 0;  ///< change of the serial tensor by rounding alone; only where the difference is large
    bool equal = false;
};

struct ProbeReport {
    int num_ranks = 1;
    std::string device = "cpu";  ///< with the name of the product, if it is known
    std::vector<std::int64_t> mesh_shape;
    std::string input_layout;                   ///< layout of the first input
    std::vector<ProbedOperator> operators;      ///< operators of this rank, in the order of their first calls
    std::vector<ProbedDifference> differences;  ///< on rank 0 only
    std::map<std::string, at::Tensor> tensors;  ///< whole tensors of the sharded run; on rank 0 only
    std::string refused_operator, refusal;      ///< empty if none was refused
    bool equal = false;                         ///< the same on every rank
};

/// Returns the shape of the device mesh of `num_ranks` for one or two cut dimensions: as square as their number allows,
/// the longer side first.
std::vector<std::int64_t> probe_mesh_shape(int num_ranks, std::size_t num_dims);

/// Runs a TorchScript model serially (on rank 0) and with sharded inputs (on all ranks), and compares outputs, input
/// gradients, every parameter gradient, and buffers. Collective over all ranks of `world`.
///
/// The loss is the sum of the first output times `grad_output`, or of all outputs times fixed numbers (cos i of the
/// i-th value), as in Python's `probe`. A tensor counts as equal within 1e-5 of its largest value in float, 1e-10 in
/// double, or within ten times what rounding alone does to it: a gradient that is zero but for rounding has no scale of
/// its own. Rounding is measured by serial runs whose inputs and weights are changed in their last bits, and by one in
/// double precision. Inputs that have the first one's size along a cut dimension are cut in the same way; others are
/// whole on every rank.
///
/// @throws IoError, InvalidInput for files that cannot be read or do not fit the model.
ProbeReport probe(const ProbeRequest& request, World& world);

}  // namespace meshard
