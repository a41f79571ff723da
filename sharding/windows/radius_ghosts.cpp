// SPDX-License-Identifier: Apache-2.0
#include "sharding/windows/radius_ghosts.h"

#include "partition/lists.h"
#include "partition/mesh/neighbor_graph.h"
#include "sharding/windows/row_coordinates.h"

#include <algorithm>

namespace meshard {

namespace {

// A row of the previous layer: rows of other parts near it become ghosts of `part`.
struct Source {
    std::int32_t part;
    std::array<double, 3> point;

    auto operator<=>(const Source&) const = default;
};

class RadiusGhosts {
public:
    RadiusGhosts(const CurveWindows& windows, RankMessages& messages, std::span<const std::int32_t> owners,
                 double radius)
        : windows_(windows), messages_(messages), owners_(owners), radius_(radius),
          coordinates_(windows, messages, RowCoordinate::Centroid)
    {
    }

    std::vector<GhostMark> find(std::int32_t num_layers)
    {
        for (level_ = 1; level_ <= num_layers; ++level_) {
            found_.clear();
            for (std::int32_t round = 0; round < windows_.num_rounds(); ++round) search_in_round(round);
            std::ranges::sort(found_);
            const auto repeated = std::ranges::unique(found_);
            found_.erase(repeated.begin(), repeated.end());
            append(marks_, found_);
            std::ranges::sort(marks_);
        }
        return std::move(marks_);
    }

private:
    bool are_near(std::int32_t a, std::int32_t b) const
    {
        return coordinates_.box(a).squared_distance(coordinates_.box(b)) <= radius_ * radius_;
    }

    // Each rank searches one of its windows, for the sources of one window of each rank after the other.
    void search_in_round(std::int32_t round)
    {
        const auto here = windows_.window_in_round(messages_.rank(), round);
        const auto coordinates = here >= 0 ? coordinates_.of(here).to_doubles() : std::vector<double>{};
        for (std::int32_t other_round = 0; other_round < windows_.num_rounds(); ++other_round) {
            const auto other = windows_.window_in_round(messages_.rank(), other_round);
            std::vector<std::vector<Source>> to(messages_.size());
            bool is_any_near = false;
            for (int searching = 0; searching < messages_.size(); ++searching) {
                const auto window = windows_.window_in_round(searching, round);
                if (window < 0) continue;
                for (int rank = 0; rank < messages_.size() && !is_any_near; ++rank) {
                    const auto asked = windows_.window_in_round(rank, other_round);
                    is_any_near = asked >= 0 && are_near(window, asked);
                }
                if (other >= 0 && are_near(window, other))
                    to[searching] = sources_near(other, coordinates_.box(window));
            }
            if (!is_any_near) continue;  // the same on all ranks
            std::vector<Source> sources;
            for (const auto& part : exchange(messages_, std::move(to))) append(sources, part);
            if (here >= 0) mark_near(here, coordinates, std::move(sources));
        }
    }

    // The sources of a window within the radius of a box.
    std::vector<Source> sources_near(std::int32_t window, const CoordinateBox& box) const
    {
        const auto coordinates = coordinates_.of(window);
        const auto values = coordinates.values<double>();
        std::vector<Source> sources;
        const auto add = [&](std::int64_t row, std::int32_t part) {
            const std::array<double, 3> point{values[3 * row], values[3 * row + 1], values[3 * row + 2]};
            if (box.squared_distance(point) <= radius_ * radius_) sources.push_back({part, point});
        };
        const auto begin = windows_.begin(window);
        const auto first = begin - windows_.positions().begin(messages_.rank());
        if (level_ == 1) {
            for (std::int64_t row = 0; row < windows_.size(window); ++row) add(row, owners_[first + row]);
        } else {
            for (auto mark = std::ranges::lower_bound(marks_, begin, {}, &GhostMark::position);
                 mark != marks_.end() && mark->position < begin + windows_.size(window); ++mark)
                if (mark->level == level_ - 1) add(mark->position - begin, mark->part);
        }
        std::ranges::sort(sources);  // coinciding points count once
        const auto repeated = std::ranges::unique(sources);
        sources.erase(repeated.begin(), repeated.end());
        return sources;
    }

    // Marks rows of other parts within the radius of a source.
    void mark_near(std::int32_t window, const std::vector<double>& coordinates, std::vector<Source> sources)
    {
        const auto first = windows_.begin(window) - windows_.positions().begin(messages_.rank());
        std::ranges::sort(sources);
        for (auto begin = sources.begin(); begin != sources.end();) {
            const auto part = begin->part;
            CoordinateBox box;
            std::vector<double> values;
            for (; begin != sources.end() && begin->part == part; ++begin) {
                box.add(begin->point);
                append(values, begin->point);
            }
            const PointTree tree(DataArray::from("Coordinates", std::move(values), 3));
            for (std::int64_t row = 0; row < windows_.size(window); ++row) {
                const auto point = coordinates_at(coordinates, row);
                if (owners_[first + row] == part || box.squared_distance(point) > radius_ * radius_) continue;
                const auto position = static_cast<std::int32_t>(windows_.begin(window) + row);
                if (!is_marked(position, part) && tree.has_any_within(point, radius_))
                    found_.push_back({position, part, level_});
            }
        }
    }

    bool is_marked(std::int32_t position, std::int32_t part) const
    {
        const auto mark = std::ranges::lower_bound(marks_, GhostMark{position, part, 0});
        return mark != marks_.end() && mark->position == position && mark->part == part;
    }

    const CurveWindows& windows_;
    RankMessages& messages_;
    std::span<const std::int32_t> owners_;
    double radius_;
    RowCoordinates coordinates_;
    std::int32_t level_ = 0;
    std::vector<GhostMark> found_, marks_;
};

}  // namespace

std::vector<GhostMark> ghosts_by_radius(const CurveWindows& windows, RankMessages& messages,
                                        std::span<const std::int32_t> owners, double radius, std::int32_t num_layers)
{
    return RadiusGhosts(windows, messages, owners, radius).find(num_layers);
}

}  // namespace meshard
