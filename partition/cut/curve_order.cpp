// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/curve_order.h"

#include "partition/error.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace meshard {
namespace {

constexpr int kBits = 21;  // three coordinates of 21 bits fill an index

// For each orientation of the curve (state) and one bit of each coordinate: next state * 8 + digit of the index.
using CurveTable = std::array<std::array<std::uint16_t, 8>, 96>;

// Skilling's loops over all bits as steps of one bit: each step gives a digit, and exchanges the axes of the lower
// bits, inverts some of them, and flips the Gray code or not.
CurveTable make_curve_table()
{
    struct State {
        std::array<std::uint8_t, 3> axis{0, 1, 2};
        std::array<std::uint8_t, 3> inverted{0, 0, 0};
        std::uint8_t flipped = 0;

        bool operator==(const State&) const = default;
    };
    CurveTable table{};
    std::vector<State> states{State{}};
    for (std::size_t s = 0; s < states.size(); ++s) {
        for (unsigned octant = 0; octant < 8; ++octant) {
            State next = states[s];
            std::array<unsigned, 3> x;
            for (int i = 0; i < 3; ++i) x[i] = (octant >> (2 - next.axis[i]) & 1) ^ next.inverted[i];
            for (int i = 0; i < 3; ++i) {
                if (x[i]) {
                    next.inverted[0] ^= 1;
                } else {
                    std::swap(next.axis[0], next.axis[i]);
                    std::swap(next.inverted[0], next.inverted[i]);
                }
            }
            x[1] ^= x[0];
            x[2] ^= x[1];
            const unsigned flip = states[s].flipped ? 7 : 0;
            const unsigned digit = (x[0] << 2 | x[1] << 1 | x[2]) ^ flip;
            next.flipped ^= x[2];
            auto found = std::find(states.begin(), states.end(), next);
            if (found == states.end()) found = states.insert(states.end(), next);
            table[s][octant] = static_cast<std::uint16_t>((found - states.begin()) * 8 + digit);
        }
    }
    return table;
}

}  // namespace

std::uint64_t hilbert_index(std::array<double, 3> point)
{
    std::array<std::uint32_t, 3> x;
    for (int d = 0; d < 3; ++d) {
        const double scaled = std::clamp(point[d], 0.0, 1.0) * ((1u << kBits) - 1);
        x[d] = static_cast<std::uint32_t>(scaled);
    }
    static const CurveTable table = make_curve_table();
    std::uint64_t index = 0;
    std::uint32_t state = 0;
    for (int bit = kBits - 1; bit >= 0; --bit) {
        const auto octant = (x[0] >> bit & 1) << 2 | (x[1] >> bit & 1) << 1 | (x[2] >> bit & 1);
        const auto step = table[state][octant];
        index = index << 3 | (step & 7);
        state = step >> 3;
    }
    return index;
}

Partition number_parts_along_curve(const Mesh& mesh, Partition partition)
{
    if (partition.num_rows() != mesh.num_rows()) {
        throw InvalidInput(
            "number_parts_along_curve: the partition has {} rows, the mesh {}. Pass the mesh that was cut.",
            partition.num_rows(), mesh.num_rows());
    }
    struct Sum {
        std::array<double, 3> point{};
        std::int64_t count = 0;
    };
    std::vector<Sum> sums(partition.num_parts);
    std::array<double, 3> lowest, highest;
    lowest.fill(std::numeric_limits<double>::infinity());
    highest.fill(-std::numeric_limits<double>::infinity());
    with_scalar_type(mesh.points.type(), [&]<class T>() {
        const auto points = mesh.points.values<T>();
        const auto add = [&](Sum& sum, std::int64_t point) {
            for (int d = 0; d < 3; ++d) {
                const auto value = static_cast<double>(points[3 * point + d]);
                sum.point[d] += value;
                lowest[d] = std::min(lowest[d], value);
                highest[d] = std::max(highest[d], value);
            }
            ++sum.count;
        };
        for (std::int64_t row = 0; row < partition.num_rows(); ++row) {
            auto& sum = sums[partition.owners[row]];
            if (mesh.is_point_cloud()) {
                add(sum, row);
            } else {
                for (const auto point : mesh.cells.row(row)) add(sum, point);
            }
        }
    });

    std::vector<std::uint64_t> position(partition.num_parts, std::numeric_limits<std::uint64_t>::max());
    double longest = 0;
    for (int d = 0; d < 3; ++d) longest = std::max(longest, highest[d] - lowest[d]);
    for (std::int32_t part = 0; part < partition.num_parts; ++part) {
        const auto& sum = sums[part];
        if (sum.count == 0) continue;
        std::array<double, 3> unit{};
        for (int d = 0; d < 3; ++d) {
            if (longest > 0) unit[d] = (sum.point[d] / static_cast<double>(sum.count) - lowest[d]) / longest;
        }
        position[part] = hilbert_index(unit);
    }
    std::vector<std::int32_t> order(partition.num_parts), number(partition.num_parts);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) { return position[a] < position[b]; });
    for (std::int32_t i = 0; i < partition.num_parts; ++i) number[order[i]] = i;
    for (auto& owner : partition.owners) owner = number[owner];
    return partition;
}

}  // namespace meshard
