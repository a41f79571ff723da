// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/device_mesh.h"
#include "sharding/tensor/gradient_origin.h"

#include <ATen/core/Tensor.h>

namespace meshard {

/// Whether this rank is the first along every axis of `device_mesh` but `data`: the one that counts where all ranks of a domain hold
/// the same.
bool is_first_of_its_domain(const DeviceMesh& device_mesh);

/// This rank's part, a plain tensor, of the gradient of a parameter that all ranks of `device_mesh` hold: the parts of all ranks,
/// summed over every axis but `data` and averaged over `data`, make up the gradient. One that is whole on an axis, as a plain one is where its
/// origin does not say otherwise, counts on one rank of that axis. A loss that spans the axis `data` itself is one loss: it is summed over `data`.
/// May be collective, over the axes on which the gradient is cut.
at::Tensor gradient_share(const at::Tensor& gradient, const DeviceMesh& device_mesh, const GradientOrigin& origin);

/// Ranks learn of each other's use of a parameter without a message: a gradient that exists is handed in with its negative zeros made
/// positive, one that does not as negative zeros. The sum is a negative zero only where no rank has a gradient.
void fill_as_absent(const at::Tensor& gradient);
bool is_absent(const at::Tensor& sum);  ///< looks at the first number; false where there is none

}  // namespace meshard
