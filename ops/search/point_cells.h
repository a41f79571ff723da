// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// Appends ascending numbers that are not negative: the first one, then the differences, as a Rice code (Rice 1979). A difference takes about two bits more
/// than the mean difference has.
void pack_ascending(std::span<const std::int64_t> numbers, std::vector<std::uint8_t>& bytes);

/// Reads the next `count` numbers from byte `at` on; moves `at` behind them.
std::vector<std::int64_t> unpack_ascending(std::span<const std::uint8_t> bytes, std::size_t& at, std::int64_t count);

/// An approximation of points for messages: the cells of a uniform grid that hold at least one point, with 2^12 cells along the longest side of the points'
/// box, or fewer if `least_width` is larger. Costs a few bits a cell. For searches that may ask for points a little beyond what they need.
struct PointCells {
    std::array<double, 3> low{};
    double width = 0;
    std::vector<std::int64_t> codes;  ///< of each cell with a point, ascending: Morton code, the bits of its coordinates along the axes interleaved

    /// Upper bound of the distance between a point and the centroid of its cell, with centroids in type T.
    template <class T>
    double reach(int dimensions) const;

    /// Centroids of the cells, (cells, dimensions).
    template <class T>
    std::vector<T> centroids(int dimensions) const;
};

/// @param least_width   lower bound of the cells' width: larger cells, fewer bytes
template <class T>
PointCells point_cells(std::span<const T> points, int dimensions, double least_width = 0);

/// For each point the index of its cell in `codes`.
template <class T>
std::vector<std::int64_t> cell_of_each(const PointCells& cells, std::span<const T> points, int dimensions);

/// The cells as bytes, and back.
std::vector<std::uint8_t> packed(const PointCells& cells);
PointCells unpacked_cells(std::span<const std::uint8_t> bytes);

}  // namespace meshard
