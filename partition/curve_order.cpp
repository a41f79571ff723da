// SPDX-License-Identifier: Apache-2.0
#include "partition/curve_order.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "partition/error.h"

namespace meshard {
namespace {

constexpr int kBits = 21;   // three coordinates of 21 bits fill an index

}  // namespace

std::uint64_t hilbert_index(std::array<double, 3> point)
{
    std::array<std::uint32_t, 3> x;
    for (int d = 0; d < 3; ++d) {
        const double scaled = std::clamp(point[d], 0.0, 1.0) * ((1u << kBits) - 1);
        x[d] = static_cast<std::uint32_t>(scaled);
    }
    // Skilling's transformation of axes to the transposed index: undo the excess work, then Gray-encode.
    for (std::uint32_t q = 1u << (kBits - 1); q > 1; q >>= 1) {
        const std::uint32_t low = q - 1;
        for (auto& coordinate : x) {
            if (coordinate & q) {
                x[0] ^= low;
            } else {
                const std::uint32_t swap = (x[0] ^ coordinate) & low;
                x[0] ^= swap;
                coordinate ^= swap;
            }
        }
    }
    x[1] ^= x[0];
    x[2] ^= x[1];
    std::uint32_t flip = 0;
    for (std::uint32_t q = 1u << (kBits - 1); q > 1; q >>= 1) {
        if (x[2] & q) flip ^= q - 1;
    }
    for (auto& coordinate : x) coordinate ^= flip;

    std::uint64_t index = 0;
    for (int bit = kBits - 1; bit >= 0; --bit) {
        for (const auto coordinate : x) index = index << 1 | (coordinate >> bit & 1);
    }
    return index;
}

Partition number_parts_along_curve(const Mesh& mesh, Partition partition)
{
    if (partition.num_rows() != mesh.num_rows()) {
        throw InvalidInput("number_parts_along_curve: the partition has " + std::to_string(partition.num_rows()) + " rows, the mesh " +
                           std::to_string(mesh.num_rows()) + ". Pass the mesh that was cut.");
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
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return position[a] < position[b]; });
    for (std::int32_t i = 0; i < partition.num_parts; ++i) number[order[i]] = i;
    for (auto& owner : partition.owners) owner = number[owner];
    return partition;
}

}  // namespace meshard
