// SPDX-License-Identifier: Apache-2.0
#include "sharding/windows/row_coordinates.h"

#include "sharding/windows/curve_windows.h"

namespace meshard {

RowCoordinates::RowCoordinates(const CurveWindows& windows, RankMessages& messages, RowCoordinate kind)
    : windows_(windows), kind_(kind)
{
    if (kind == RowCoordinate::Centroid) centroids_.reserve(3 * windows.ids().size());
    std::vector<CoordinateBox> boxes;
    for (auto window = windows.first_window(); window < windows.end_window(); ++window) {
        if (kind == RowCoordinate::Centroid) {
            const auto centroids = windows.centroids<double>(window);
            centroids_.insert(centroids_.end(), centroids.begin(), centroids.end());
        }
        const auto coordinates = of(window).to_doubles();
        boxes.emplace_back();
        for (std::int64_t row = 0; row < windows.size(window); ++row)
            boxes.back().add(coordinates_at(coordinates, row));
    }
    boxes_ = gather_everywhere(messages, boxes);
}

DataArray RowCoordinates::of(std::int32_t window) const
{
    if (kind_ == RowCoordinate::Point) return windows_.points_of_rows(window);
    const auto first = centroids_.begin() + 3 * (windows_.begin(window) - windows_.begin(windows_.first_window()));
    return DataArray::from("Centroids", std::vector<double>(first, first + 3 * windows_.size(window)), 3);
}

std::array<double, 3> coordinates_at(const std::vector<double>& coordinates, std::int64_t row)
{
    return {coordinates[3 * row], coordinates[3 * row + 1], coordinates[3 * row + 2]};
}

}  // namespace meshard
