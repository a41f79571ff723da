// SPDX-License-Identifier: Apache-2.0
#include "ops/search/point_boxes.h"

#include "partition/lists.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshard {
namespace {

template <class T>
void split(std::span<const T> points, int dimensions, std::span<std::int64_t> rows, int max_boxes,
           std::vector<PointBox>& boxes)
{
    if (rows.empty()) return;
    PointBox box;
    box.num_points = std::ssize(rows);
    int axis = 0;
    for (int d = 0; d < dimensions; ++d) {
        box.low[d] = std::numeric_limits<double>::infinity();
        box.high[d] = -std::numeric_limits<double>::infinity();
        for (const auto row : rows) {
            const auto x = static_cast<double>(points[row * dimensions + d]);
            box.low[d] = std::min(box.low[d], x);
            box.high[d] = std::max(box.high[d], x);
        }
        if (box.high[d] - box.low[d] > box.high[axis] - box.low[axis]) axis = d;
    }
    if (max_boxes == 1 || rows.size() == 1) {
        boxes.push_back(box);
        return;
    }
    const auto half = rows.size() / 2;
    std::nth_element(rows.begin(), rows.begin() + half, rows.end(), [&](std::int64_t a, std::int64_t b) {
        return points[a * dimensions + axis] < points[b * dimensions + axis];
    });
    split(points, dimensions, rows.first(half), max_boxes / 2, boxes);
    split(points, dimensions, rows.subspan(half), max_boxes - max_boxes / 2, boxes);
}

}  // namespace

template <class T>
std::vector<PointBox> point_boxes(std::span<const T> points, int dimensions, int max_boxes)
{
    auto rows = numbers_from<std::int64_t>(0, points.size() / dimensions);
    std::vector<PointBox> boxes;
    split<T>(points, dimensions, rows, max_boxes, boxes);
    return boxes;
}
template std::vector<PointBox> point_boxes(std::span<const float>, int, int);
template std::vector<PointBox> point_boxes(std::span<const double>, int, int);

DistanceRange distance_range(const PointBox& box, const std::array<double, 3>& point, std::span<const double> period,
                             double epsilon)
{
    DistanceRange range;
    for (std::size_t d = 0; d < 3; ++d) {
        double least = std::max({box.low[d] - point[d], point[d] - box.high[d], 0.0});
        double most = std::max(box.high[d] - point[d], point[d] - box.low[d]);
        if (d < period.size() && period[d] > 0) {
            // Chooses the periodic image of the box whose center is nearest to the point, and its two neighbours.
            const double length = period[d], center = (box.low[d] + box.high[d]) / 2 - point[d],
                         half = (box.high[d] - box.low[d]) / 2;
            const double offset = std::abs(center - length * std::round(center / length));
            // The differences of sums may have rounding errors much larger than the last bit of a small distance.
            const double lost =
                8 * epsilon * (std::abs(box.low[d]) + std::abs(box.high[d]) + std::abs(point[d]) + length);
            least = std::max(0.0, std::min(offset, length - offset) - half - lost);
            most = std::min(length / 2, offset + half) + lost;
        }
        range.least += least * least;
        range.most += most * most;
    }
    return range;
}

}  // namespace meshard
