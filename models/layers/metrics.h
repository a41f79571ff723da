// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace meshard {

/// Mean squared error over all points and channels: the loss of training.
at::Tensor mean_squared_error(const at::Tensor& prediction, const at::Tensor& target);

/// ||prediction - target|| / ||target|| over all points and channels, summed in double precision. Pass both in physical
/// units.
double relative_l2(const at::Tensor& prediction, const at::Tensor& target);

/// The same of the sums of squares of errors and truth. For a truth of zeros it is finite: ||target||^2 is 1e-8 then,
/// as in PhysicsNeMo, which takes at least that for small units, too.
double relative_l2(double error_squared, double truth_squared);

}  // namespace meshard
