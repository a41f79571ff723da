// SPDX-License-Identifier: Apache-2.0
#include "ops/search/grid_walk.h"

#include "partition/error.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace meshard {
namespace {

struct Placed {
    std::array<std::int32_t, 3> cell;  ///< z, y, x, so that comparison gives the order of the walk
    std::int32_t id;

    auto operator<=>(const Placed&) const = default;
};

constexpr float kMostCells = 1 << 30;

}  // namespace

void refuse_grid_order(double coordinate, double radius)
{
    throw InvalidInput("radius_search: the coordinate {} is too many radii ({}) from zero for the "
                       "grid's order. Move the points to zero or take a larger radius.",
                       coordinate, radius);
}

template <class T>
void require_grid_cells(std::span<const T> coordinates, const RadiusLimit& limit)
{
    const auto radius = static_cast<float>(limit.radius), per_width = 1.0f / (0.5f * radius);
    const auto bad = std::ranges::find_if(
        coordinates, [&](T x) { return !((std::abs(static_cast<float>(x)) + radius) * per_width <= kMostCells); });
    if (bad != coordinates.end()) refuse_grid_order(*bad, radius);
}
template void require_grid_cells(std::span<const float>, const RadiusLimit&);
template void require_grid_cells(std::span<const double>, const RadiusLimit&);

template <class T>
NeighborLists<T> neighbors_in_grid_order(std::span<const T> points, std::span<const T> queries,
                                         const RadiusLimit& limit)
{
    require_limit("radius_search", limit);
    require_coordinates("radius_search", "points", points, 3);
    require_coordinates("radius_search", "queries", queries, 3);
    require_grid_cells(points, limit);
    require_grid_cells(queries, limit);
    const auto radius = static_cast<float>(limit.radius), width = 0.5f * radius, per_width = 1.0f / width;
    const auto cell_of = [&](float x) { return static_cast<std::int32_t>(std::floor(x * per_width)); };
    std::vector<Placed> placed(points.size() / 3);
    for (std::size_t i = 0; i < placed.size(); ++i) {
        for (int d = 0; d < 3; ++d) placed[i].cell[2 - d] = cell_of(static_cast<float>(points[3 * i + d]));
        placed[i].id = static_cast<std::int32_t>(i);
    }
    std::ranges::sort(placed);

    NeighborLists<T> lists;
    for (std::size_t i = 0; i < queries.size() / 3; ++i) {
        std::array<float, 3> q;
        std::array<std::int32_t, 3> first, last;
        for (int d = 0; d < 3; ++d) {
            q[d] = static_cast<float>(queries[3 * i + d]);
            first[d] = cell_of(q[d] - radius);
            last[d] = cell_of(q[d] + radius);
        }
        std::int64_t left = limit.max_neighbors;
        auto at = placed.begin();
        for (auto z = first[2]; z <= last[2] && left > 0; ++z) {
            for (auto y = first[1]; y <= last[1] && left > 0; ++y) {
                at =
                    std::lower_bound(at, placed.end(), Placed{{z, y, first[0]}, 0});  // cells of one row are contiguous
                for (; at != placed.end() && at->cell[0] == z && at->cell[1] == y && at->cell[2] <= last[0] && left > 0;
                     ++at) {
                    float squared = 0;
                    for (int d = 0; d < 3; ++d) {
                        const float gap = static_cast<float>(points[3 * static_cast<std::size_t>(at->id) + d]) - q[d];
                        squared += gap * gap;
                    }
                    if (squared > radius * radius) continue;
                    lists.ids.push_back(at->id);
                    lists.distances.push_back(static_cast<T>(std::sqrt(squared)));
                    --left;
                }
            }
        }
        lists.offsets.push_back(std::ssize(lists.ids));
    }
    return lists;
}
template NeighborLists<float> neighbors_in_grid_order(std::span<const float>, std::span<const float>,
                                                      const RadiusLimit&);
template NeighborLists<double> neighbors_in_grid_order(std::span<const double>, std::span<const double>,
                                                       const RadiusLimit&);

}  // namespace meshard
