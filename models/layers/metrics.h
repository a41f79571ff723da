// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace meshard {

/// Mean squared error over all points and channels: the loss of training.
at::Tensor mean_squared_error(const at::Tensor& prediction, const at::Tensor& target);

/// ||prediction - target|| / ||target|| over all points and channels, summed in double precision. Pass both in physical
/// units. As in PhysicsNeMo, ||target||^2 is clamped to at least 1e-8, so that the error is finite for a field of
/// zeros.
double relative_l2(const at::Tensor& prediction, const at::Tensor& target);

}  // namespace meshard
