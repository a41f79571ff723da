// SPDX-License-Identifier: Apache-2.0
#include "ops/surface/winding_number.h"

#include "partition/mesh/vector_algebra.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

namespace meshard {
namespace {

constexpr std::int32_t kLeafSize = 8;
constexpr double kFarSquared = 9;  // a group is approximated beyond three times its radius
constexpr double kDoubt = 0.25;    // five times the error bound of the approximation

/// Solid angle of a triangle seen from the origin (van Oosterom and Strackee 1983).
double solid_angle(const Vector3& a, const Vector3& b, const Vector3& c)
{
    const double la = norm(a), lb = norm(b), lc = norm(c);
    return 2 * std::atan2(dot(a, cross(b, c)), la * lb * lc + dot(a, b) * lc + dot(b, c) * la + dot(c, a) * lb);
}

}  // namespace

WindingNumber::WindingNumber(const TriangleSurface& surface) : surface_(surface), order_(surface.num_faces())
{
    std::iota(order_.begin(), order_.end(), 0);
    std::vector<Vector3> centroids(order_.size());
    for (std::size_t f = 0; f < centroids.size(); ++f) {
        for (int k = 0; k < 3; ++k) add_scaled(centroids[f], surface.corner(static_cast<std::int64_t>(f), k), 1.0 / 3);
    }
    nodes_.push_back({.first = 0, .count = static_cast<std::int32_t>(order_.size())});
    for (std::int32_t node = 0; node < static_cast<std::int32_t>(nodes_.size()); ++node) build(node, centroids);
}

void WindingNumber::build(std::int32_t index, std::vector<Vector3>& centroids)
{
    auto node = nodes_[index];
    const auto begin = order_.begin() + node.first, end = begin + node.count;
    Vector3 low = centroids[*begin], high = low, weighted{};
    double weight = 0;
    for (auto face = begin; face != end; ++face) {
        const Vector3 a = surface_.corner(*face, 0);
        const Vector3 area = 0.5 * cross(surface_.corner(*face, 1) - a, surface_.corner(*face, 2) - a);
        add_scaled(node.area, area, 1);
        add_scaled(weighted, centroids[*face], norm(area));
        weight += norm(area);
        for (int d = 0; d < 3; ++d) {
            low[d] = std::min(low[d], centroids[*face][d]);
            high[d] = std::max(high[d], centroids[*face][d]);
        }
    }
    node.centre = weight > 0 ? (1 / weight) * weighted : 0.5 * (low + high);
    for (auto face = begin; face != end; ++face) {
        for (int k = 0; k < 3; ++k) {
            const Vector3 gap = surface_.corner(*face, k) - node.centre;
            node.radius_squared = std::max(node.radius_squared, dot(gap, gap));
        }
    }
    if (node.count > kLeafSize) {
        int axis = 0;
        for (int d = 1; d < 3; ++d) {
            if (high[d] - low[d] > high[axis] - low[axis]) axis = d;
        }
        const auto half = node.count / 2;
        std::nth_element(begin, begin + half, end, [&](auto f, auto g) {
            return std::pair(centroids[f][axis], f) < std::pair(centroids[g][axis], g);
        });
        node.children = static_cast<std::int32_t>(nodes_.size());
        nodes_.push_back({.first = node.first, .count = half});
        nodes_.push_back({.first = node.first + half, .count = node.count - half});
    }
    nodes_[index] = node;
}

double WindingNumber::sum_over(std::int32_t first, std::int32_t count, const Vector3& query) const
{
    double sum = 0;
    for (auto i = first; i < first + count; ++i) {
        sum += solid_angle(surface_.corner(order_[i], 0) - query, surface_.corner(order_[i], 1) - query,
                           surface_.corner(order_[i], 2) - query);
    }
    return sum / (4 * std::numbers::pi);
}

double WindingNumber::exact(const Vector3& query) const
{
    return sum_over(0, static_cast<std::int32_t>(order_.size()), query);
}

double WindingNumber::approximate(const Vector3& query) const
{
    std::array<std::int32_t, 128> waiting;  // two for each level
    std::size_t num_waiting = 0;
    waiting[num_waiting++] = 0;
    double sum = 0;
    while (num_waiting > 0) {
        const Node& node = nodes_[waiting[--num_waiting]];
        const Vector3 gap = node.centre - query;
        const double distance_squared = dot(gap, gap);
        if (distance_squared > kFarSquared * node.radius_squared) {
            sum += dot(gap, node.area) / (4 * std::numbers::pi * distance_squared * std::sqrt(distance_squared));
        } else if (node.children < 0) {
            sum += sum_over(node.first, node.count, query);
        } else {
            waiting[num_waiting++] = node.children;
            waiting[num_waiting++] = node.children + 1;
        }
    }
    return sum;
}

bool WindingNumber::is_inside(const Vector3& query) const
{
    const double near = approximate(query);
    return std::abs(near - 0.5) < kDoubt ? exact(query) > 0.5 : near > 0.5;
}

}  // namespace meshard
