// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/data_array.h"
#include "sharding/messages/rank_messages.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

namespace meshard {

class CurveWindows;

/// A bounding box; empty at first.
struct CoordinateBox {
    static constexpr double infinity = std::numeric_limits<double>::infinity();

    std::array<double, 3> low{infinity, infinity, infinity}, high{-infinity, -infinity, -infinity};

    void add(const std::array<double, 3>& point)
    {
        for (int d = 0; d < 3; ++d) {
            low[d] = std::min(low[d], point[d]);
            high[d] = std::max(high[d], point[d]);
        }
    }

    /// Distance to a point, or to another box. Rounding never makes it larger than the distance to a point in the box.
    double squared_distance(const std::array<double, 3>& point) const
    {
        return squared_distance(CoordinateBox{point, point});
    }
    double squared_distance(const CoordinateBox& other) const
    {
        double sum = 0;
        for (int d = 0; d < 3; ++d) {
            const auto gap = std::max({0.0, low[d] - other.high[d], other.low[d] - high[d]});
            sum += gap * gap;
        }
        return sum;
    }
};

/// Which coordinates represent a row.
enum class RowCoordinate : std::uint8_t {
    Centroid,  ///< its centroid (`row_centroids`), for ghosts by distance; takes 24 bytes for each row
    Point      ///< its point, for the graph of a cloud or of vertices
};

/// Coordinates of the rows of windows, for searches by distance.
class RowCoordinates {
public:
    /// Collective.
    RowCoordinates(const CurveWindows& windows, RankMessages& messages, RowCoordinate kind);

    /// (rows, 3), for a window of this rank.
    DataArray of(std::int32_t window) const;

    /// The bounding box of the rows of any window.
    const CoordinateBox& box(std::int32_t window) const { return boxes_[window]; }

private:
    const CurveWindows& windows_;
    RowCoordinate kind_;
    std::vector<double> centroids_;  // for this rank's positions
    std::vector<CoordinateBox> boxes_;
};

/// One row of an array (rows, 3).
std::array<double, 3> coordinates_at(const std::vector<double>& coordinates, std::int64_t row);

}  // namespace meshard
