// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/surface_geometry.h"

#include <cmath>
#include <cstdint>
#include <span>

namespace meshard {

inline Vector3 operator+(const Vector3& a, const Vector3& b)
{
    return {a[0] + b[0], a[1] + b[1], a[2] + b[2]};
}

inline Vector3 operator-(const Vector3& a, const Vector3& b)
{
    return {a[0] - b[0], a[1] - b[1], a[2] - b[2]};
}

inline Vector3 operator*(double scale, const Vector3& a)
{
    return {scale * a[0], scale * a[1], scale * a[2]};
}

inline Vector3 cross(const Vector3& a, const Vector3& b)
{
    return {a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
}

inline double dot(const Vector3& a, const Vector3& b)
{
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

inline double norm(const Vector3& a)
{
    return std::sqrt(dot(a, a));
}

/// `a` with length one; zero stays zero.
inline Vector3 unit(const Vector3& a)
{
    const double length = norm(a);
    return length > 0 ? (1 / length) * a : a;
}

inline void add_scaled(Vector3& sum, const Vector3& a, double scale)
{
    for (int d = 0; d < 3; ++d) sum[d] += scale * a[d];
}

/// The mean of the vectors `x[point]`.
inline Vector3 mean_of(std::span<const Vector3> x, std::span<const std::int32_t> points)
{
    Vector3 mean{};
    for (const std::int32_t point : points) add_scaled(mean, x[point], 1.0 / static_cast<double>(points.size()));
    return mean;
}

}  // namespace meshard
