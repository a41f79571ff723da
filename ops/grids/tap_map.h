// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/grids/grid_cuts.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace meshard {

/// A linear map along one dimension in which each output reads few inputs: output o is the sum over t of weight[t][o] *
/// input[index[t][o]]. Interpolation and padding are such maps, one for each dimension.
struct Taps {
    std::int64_t in = 0, out = 0;
    std::vector<std::vector<std::int64_t>> index;  ///< each 0 <= i < in
    std::vector<std::vector<double>> weight;       ///< empty: a single tap of weight one, a copy
};

/// This rank's share of a map along a cut dimension.
class TapMap {
public:
    /// The input has the layout `in` on axis `axis`; a boundary between ranks at input a becomes one at output
    /// `boundary(a)`.
    TapMap(const RuleCall& call, std::int64_t axis, const AxisLayout& in, Taps taps,
           const std::function<std::int64_t(std::int64_t)>& boundary);

    const AxisLayout& output_layout() const { return out_; }
    std::int64_t dim() const { return out_.placement.dim; }
    std::int64_t num_outputs() const { return outputs_.size(); }

    /// Computes this rank's outputs from its inputs; the adjoint maps a gradient of the outputs to one of the inputs.
    /// Collective.
    at::Tensor apply(const at::Tensor& local) const;
    at::Tensor apply_adjoint(const at::Tensor& gradient) const;

private:
    at::Tensor index_of(std::size_t tap, const at::Tensor& like) const;
    at::Tensor weight_of(std::size_t tap, const at::Tensor& like) const;

    Taps taps_;
    AxisLayout out_;
    Range outputs_;
    std::vector<RangeExchange> exchange_;  // one element; a vector, since RangeExchange cannot be default-constructed
};

}  // namespace meshard
