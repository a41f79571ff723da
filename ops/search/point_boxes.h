// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace meshard {

/// Axis-aligned bounding box of some points, which ranks exchange; coordinates beyond the dimensions are 0.
struct PointBox {
    std::array<double, 3> low{}, high{};
    std::int64_t num_points = 0;
};

/// At most `max_boxes` bounding boxes with about equal numbers of points; none if there are no points.
template <class T>
std::vector<PointBox> point_boxes(std::span<const T> points, int dimensions, int max_boxes);

/// Lower and upper bound of the squared distance between a point and all points in a box. `period` is empty, or has a
/// length for each axis, 0 for an open one; with periods, points may be in any periodic image.
/// @param epsilon   of the type in which distances across a period are computed elsewhere
struct DistanceRange {
    double least = 0;
    double most = 0;
};
DistanceRange distance_range(const PointBox& box, const std::array<double, 3>& point, std::span<const double> period,
                             double epsilon = std::numeric_limits<double>::epsilon());

}  // namespace meshard
