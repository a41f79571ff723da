// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// A box around some points, axis by axis; axes beyond the dimensions are 0. What a rank tells others of where its points are.
struct PointBox {
    std::array<double, 3> low{}, high{};
    std::int64_t num_points = 0;
};

/// At most `max_boxes` tight boxes of about as many points each; none for no points.
template <class T>
std::vector<PointBox> point_boxes(std::span<const T> points, int dimensions, int max_boxes);

/// Bounds of the squared distance between a point and the points of a box: none is nearer than the first, none farther than the second. `period` is
/// empty or one an axis, 0 for an open one; then points may lie in any image.
struct DistanceRange {
    double least = 0;
    double most = 0;
};
DistanceRange distance_range(const PointBox& box, const std::array<double, 3>& point, std::span<const double> period);

}  // namespace meshard
