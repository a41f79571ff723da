// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// Appends numbers that never fall and are not negative: the first and then the differences, each in about as many bits as the mean one has and two
/// (Rice 1979).
void pack_ascending(std::span<const std::int64_t> numbers, std::vector<std::uint8_t>& bytes);

/// The next `count` of them; `at` moves on.
std::vector<std::int64_t> unpack_ascending(std::span<const std::uint8_t> bytes, std::size_t& at, std::int64_t count);

/// Points as the cells in which they lie, of 2^12 along their longest side unless that is finer than wanted: a few bits more than the mean distance has along the curve, for messages in which a little more than the truth
/// does no harm.
struct PointCells {
    std::array<double, 3> low{};
    double width = 0;
    std::vector<std::int64_t> codes;   ///< of each cell with a point, ascending: places along the axes, bits interleaved

    /// No point is farther from the middle of its cell, in coordinates of type T.
    template <class T>
    double reach(int dimensions) const;

    /// (cells, dimensions)
    template <class T>
    std::vector<T> middles(int dimensions) const;
};

/// @param least_width   cells are at least so wide: fewer bytes, and less truth
template <class T>
PointCells point_cells(std::span<const T> points, int dimensions, double least_width = 0);

/// For each point its cell's place among the codes.
template <class T>
std::vector<std::int64_t> cell_of_each(const PointCells& cells, std::span<const T> points, int dimensions);

/// The cells as bytes, and back.
std::vector<std::uint8_t> packed(const PointCells& cells);
PointCells unpacked_cells(std::span<const std::uint8_t> bytes);

}  // namespace meshard
