// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/device_mesh.h"
#include "sharding/tensor/gradient_origin.h"

#include <ATen/core/Tensor.h>

namespace meshard {

/// Returns whether this rank's coordinate is 0 on every axis of `device_mesh` but `data`. Where all ranks of a domain
/// hold the same gradient, only this rank's counts.
bool is_first_of_its_domain(const DeviceMesh& device_mesh);

/// This rank's summand, a plain tensor, of the gradient of a parameter that all ranks of `device_mesh` hold: the
/// gradient is the sum of all ranks' summands over every axis but `data`, averaged over `data`. A gradient that is
/// Replicate on an axis (as a plain one is unless its origin says otherwise) counts on one rank of that axis. A loss
/// that spans the axis `data` itself is one loss: it is summed over `data`. May be collective, over the axes on which
/// the gradient is sharded. @throws InvalidInput for a plain gradient that is a share along an axis of another mesh,
/// and for a sharded one of other cases along an axis `data` that `device_mesh` does not have
at::Tensor gradient_share(const at::Tensor& gradient, const DeviceMesh& device_mesh, const GradientOrigin& origin);

/// Fills a tensor with negative zeros, which mark a missing gradient. Gradients that exist are sent without negative
/// zeros, so that a sum is a negative zero only where no rank has a gradient. Ranks need no extra message to know which
/// parameters others use.
void fill_as_absent(const at::Tensor& gradient);
bool is_absent(const at::Tensor& sum);  ///< checks the first value only; false for an empty tensor

}  // namespace meshard
