// SPDX-License-Identifier: Apache-2.0
#include "sharding/ranks/type_limits.h"

#include <ATen/Dispatch.h>

#include <limits>

namespace meshard {

c10::ScalarType sum_type(c10::ScalarType type)
{
    return c10::isReducedFloatingType(type)       ? c10::kFloat
           : type == c10::ScalarType::ComplexHalf ? c10::ScalarType::ComplexFloat
                                                  : type;
}

c10::Scalar lowest_value(c10::ScalarType type)
{
    if (type == c10::kBool) return false;
    if (c10::isFloatingType(type)) return -std::numeric_limits<double>::infinity();
    c10::Scalar value;
    AT_DISPATCH_INTEGRAL_TYPES(type, "lowest_value", [&] { value = std::numeric_limits<scalar_t>::lowest(); });
    return value;
}

c10::Scalar highest_value(c10::ScalarType type)
{
    if (type == c10::kBool) return true;
    if (c10::isFloatingType(type)) return std::numeric_limits<double>::infinity();
    c10::Scalar value;
    AT_DISPATCH_INTEGRAL_TYPES(type, "highest_value", [&] { value = std::numeric_limits<scalar_t>::max(); });
    return value;
}

}  // namespace meshard
