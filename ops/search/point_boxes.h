// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// Axis-aligned bounding box of some points; axes beyond the dimensions are 0. Ranks send each other such boxes of their points.
struct PointBox {
    std::array<double, 3> low{}, high{};
    std::int64_t num_points = 0;
};

/// At most `max_boxes` bounding boxes with about the same number of points each; none for no points.
template <class T>
std::vector<PointBox> point_boxes(std::span<const T> points, int dimensions, int max_boxes);

/// Lower and upper bound of the squared distance between a point and all points in a box. `period` is empty, or one length for each axis, 0 for an open one;
/// with periods, points may lie in any periodic image.
struct DistanceRange {
    double least = 0;
    double most = 0;
};
DistanceRange distance_range(const PointBox& box, const std::array<double, 3>& point, std::span<const double> period);

}  // namespace meshard
