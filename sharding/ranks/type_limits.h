// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

namespace meshard {

/// The type in which values of `type` are added: float for narrower floating types, so that a sum is rounded to `type`
/// once.
c10::ScalarType sum_type(c10::ScalarType type);

/// The smallest value of a type, minus infinity for floating types: the neutral element of a maximum.
c10::Scalar lowest_value(c10::ScalarType type);

/// The largest value of a type, infinity for floating types: the neutral element of a minimum.
c10::Scalar highest_value(c10::ScalarType type);

}  // namespace meshard
