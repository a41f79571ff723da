// SPDX-License-Identifier: Apache-2.0
#include "sharding/ranks/type_limits.h"

#include <ATen/Dispatch.h>

#include <limits>

namespace meshard {
namespace {

c10::Scalar limit_of(c10::ScalarType type, bool highest)
{
    if (type == c10::kBool) return highest;
    constexpr auto kInfinity = std::numeric_limits<double>::infinity();
    if (c10::isFloatingType(type)) return highest ? kInfinity : -kInfinity;
    c10::Scalar value;
    AT_DISPATCH_INTEGRAL_TYPES(type, "limit_of", [&] {
        using Limits = std::numeric_limits<scalar_t>;
        value = highest ? Limits::max() : Limits::lowest();
    });
    return value;
}

}  // namespace

c10::ScalarType sum_type(c10::ScalarType type)
{
    return c10::isReducedFloatingType(type)       ? c10::kFloat
           : type == c10::ScalarType::ComplexHalf ? c10::ScalarType::ComplexFloat
                                                  : type;
}

c10::Scalar lowest_value(c10::ScalarType type)
{
    return limit_of(type, false);
}

c10::Scalar highest_value(c10::ScalarType type)
{
    return limit_of(type, true);
}

}  // namespace meshard
