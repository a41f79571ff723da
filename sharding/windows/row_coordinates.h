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

/// A box of places; empty at first.
struct PlaceBox {
    static constexpr double infinity = std::numeric_limits<double>::infinity();

    std::array<double, 3> low{infinity, infinity, infinity}, high{-infinity, -infinity, -infinity};

    void add(const std::array<double, 3>& place)
    {
        for (int d = 0; d < 3; ++d) {
            low[d] = std::min(low[d], place[d]);
            high[d] = std::max(high[d], place[d]);
        }
    }

    /// From a place, or from another box. Never above what it is to a place within, rounding included.
    double squared_distance(const std::array<double, 3>& place) const { return squared_distance(PlaceBox{place, place}); }
    double squared_distance(const PlaceBox& other) const
    {
        double sum = 0;
        for (int d = 0; d < 3; ++d) {
            const auto gap = std::max({0.0, low[d] - other.high[d], other.low[d] - high[d]});
            sum += gap * gap;
        }
        return sum;
    }
};

/// What counts as the place of a row.
enum class PlaceOfRow : std::uint8_t {
    Middle,  ///< `row_centroids`, for ghosts by distance; 12 bytes a row are kept
    Point    ///< the point that it is, for the graph of a cloud or of vertices
};

/// Where the rows of windows lie, for searches by distance.
class RowPlaces {
public:
    /// Collective.
    RowPlaces(const CurveWindows& windows, RankMessages& messages, PlaceOfRow place);

    /// (rows, 3), of a window of this rank.
    DataArray of(std::int32_t window) const;

    /// Around the rows of any window.
    const PlaceBox& box(std::int32_t window) const { return boxes_[window]; }

private:
    const CurveWindows& windows_;
    PlaceOfRow place_;
    std::vector<float> middles_;  // of this rank's positions
    std::vector<PlaceBox> boxes_;
};

/// One row of such an array.
std::array<double, 3> place_at(const std::vector<double>& places, std::int64_t row);

}  // namespace meshard
