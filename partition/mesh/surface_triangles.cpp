// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/surface_triangles.h"

#include "partition/lists.h"
#include "partition/mesh/cell_rings.h"
#include "partition/mesh/vector_algebra.h"

#include <algorithm>
#include <numeric>

namespace meshard {

namespace {

/// Twice the area vector of a polygon. Relative to a corner, large coordinates do not cancel in the cross products.
Vector3 twice_area(std::span<const Vector3> corners)
{
    Vector3 area{};
    for (std::size_t k = 2; k < corners.size(); ++k)
        add_scaled(area, cross(corners[k - 1] - corners[0], corners[k] - corners[0]), 1);
    return area;
}

/// A polygon of which ears are cut, seen along its area vector.
class EarCutter {
public:
    explicit EarCutter(std::span<const Vector3> corners)
        : corners_(corners), normal_(twice_area(corners)), rounding_(1e-6 * norm(normal_)), left_(corners.size())
    {
        std::iota(left_.begin(), left_.end(), 0);
    }

    std::vector<std::array<std::int32_t, 3>> cut()
    {
        std::vector<std::array<std::int32_t, 3>> triangles;
        std::size_t at = 0, tried = 0;
        bool drops_straight = false;  // a corner within a side is left out last: neighbours may share it
        while (left_.size() > 2 && tried < left_.size()) {
            at %= left_.size();
            const std::array triangle{left_[(at + left_.size() - 1) % left_.size()], left_[at],
                                      left_[(at + 1) % left_.size()]};
            const auto turn = turn_of(triangle[0], triangle[1], triangle[2]);
            const bool is_ear = turn > 0 && !holds_a_corner(triangle);
            if (!is_ear && !(drops_straight && turn == 0)) {
                ++at;
                if (++tried == left_.size() && !drops_straight) {
                    drops_straight = true;
                    tried = 0;
                }
                continue;
            }
            if (is_ear) triangles.push_back(triangle);
            left_.erase(left_.begin() + static_cast<std::ptrdiff_t>(at));
            tried = 0;
            drops_straight = false;
        }
        if (left_.size() > 2) triangles.clear();
        return triangles;
    }

private:
    /// Above 0 if c lies left of the line from a to b; 0 on it, but for the rounding of coordinates.
    double turn_of(std::int32_t a, std::int32_t b, std::int32_t c) const
    {
        const auto ab = corners_[b] - corners_[a], ac = corners_[c] - corners_[a];
        const auto turn = dot(normal_, cross(ab, ac));
        return std::abs(turn) <= rounding_ * norm(ab) * norm(ac) ? 0 : turn;
    }

    /// Whether a corner lies within the triangle or on its new side. On the others lie those of a bridge to a hole,
    /// whose two sides are at one place.
    bool holds_a_corner(const std::array<std::int32_t, 3>& triangle) const
    {
        return std::ranges::any_of(left_, [&](std::int32_t other) {
            return std::ranges::none_of(triangle, [&](auto own) { return corners_[own] == corners_[other]; }) &&
                   turn_of(triangle[0], triangle[1], other) > 0 && turn_of(triangle[1], triangle[2], other) > 0 &&
                   turn_of(triangle[2], triangle[0], other) >= 0;
        });
    }

    std::span<const Vector3> corners_;
    Vector3 normal_;
    double rounding_;
    std::vector<std::int32_t> left_;
};

}  // namespace

bool is_fan(std::span<const Vector3> corners, const Vector3& apex)
{
    const auto normal = twice_area(corners);
    const auto least = -1e-12 * dot(normal, normal);  // triangles of no area, by their rounding
    for (std::size_t k = 0; k < corners.size(); ++k)
        if (dot(normal, cross(corners[k] - apex, corners[(k + 1) % corners.size()] - apex)) < least) return false;
    return true;
}

std::vector<std::array<std::int32_t, 3>> cut_ears(std::span<const Vector3> corners)
{
    return EarCutter(corners).cut();
}

SurfaceTriangles surface_triangles(const Mesh& mesh)
{
    SurfaceTriangles surface{mesh.points.to_doubles(), {}};
    auto& [points, triangles] = surface;
    std::vector<std::int32_t> ring;
    std::vector<Vector3> positions;
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        for_each_ring(mesh, i, ring, [&](std::span<const std::int32_t> corners) {
            if (corners.size() < 3) return;
            if (corners.size() == 3) {
                append(triangles, corners);
                return;
            }
            positions.clear();
            Vector3 mean{};
            for (const auto corner : corners) {
                const auto* position = &points[3 * static_cast<std::size_t>(corner)];
                positions.push_back({position[0], position[1], position[2]});
                add_scaled(mean, positions.back(), 1 / static_cast<double>(corners.size()));
            }
            if (!is_fan(positions, mean)) {
                const auto ears = cut_ears(positions);
                for (const auto& ear : ears)
                    for (const auto corner : ear) triangles.push_back(corners[corner]);
                if (!ears.empty()) return;
            }
            const auto middle = std::ssize(points) / 3;
            append(points, mean);
            for (std::size_t k = 0; k < corners.size(); ++k)
                triangles.insert(triangles.end(), {corners[k], corners[(k + 1) % corners.size()], middle});
        });
    }
    return surface;
}

}  // namespace meshard
