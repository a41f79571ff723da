// SPDX-License-Identifier: Apache-2.0
#include "sharding/windows/row_places.h"

#include "sharding/windows/curve_windows.h"

namespace meshard {

RowPlaces::RowPlaces(const CurveWindows& windows, RankMessages& messages, PlaceOfRow place) : windows_(windows), place_(place)
{
    if (place == PlaceOfRow::Middle) middles_.reserve(3 * windows.ids().size());
    std::vector<PlaceBox> boxes;
    for (auto window = windows.first_window(); window < windows.end_window(); ++window) {
        if (place == PlaceOfRow::Middle) {
            const auto middles = windows.middles(window);
            middles_.insert(middles_.end(), middles.begin(), middles.end());
        }
        const auto places = of(window).to_doubles();
        boxes.emplace_back();
        for (std::int64_t row = 0; row < windows.size(window); ++row) boxes.back().add(place_at(places, row));
    }
    boxes_ = gather_everywhere(messages, boxes);
}

DataArray RowPlaces::of(std::int32_t window) const
{
    if (place_ == PlaceOfRow::Point) return windows_.points_of_rows(window);
    const auto first = middles_.begin() + 3 * (windows_.begin(window) - windows_.begin(windows_.first_window()));
    return DataArray::from("Middles", std::vector<float>(first, first + 3 * windows_.size(window)), 3);
}

std::array<double, 3> place_at(const std::vector<double>& places, std::int64_t row)
{
    return {places[3 * row], places[3 * row + 1], places[3 * row + 2]};
}

}  // namespace meshard
