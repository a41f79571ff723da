// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

namespace meshard {

/// The type in which values of a type are added: single precision for narrower floating ones, so that a sum is rounded to its type once.
c10::ScalarType sum_type(c10::ScalarType type);

/// The value of a type that no other is below; minus infinity for floating ones. It never wins a maximum.
c10::Scalar lowest_value(c10::ScalarType type);

/// The value of a type that no other is above; infinity for floating ones. It never wins a minimum.
c10::Scalar highest_value(c10::ScalarType type);

}  // namespace meshard
