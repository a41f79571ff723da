// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// Appends ascending non-negative numbers in compressed form: the first one, then the differences as a Rice code (Rice
/// 1979), which takes about two bits more than the mean difference has.
void pack_ascending(std::span<const std::int64_t> numbers, std::vector<std::uint8_t>& bytes);

/// Reads the next `count` numbers from byte `at` on, and advances `at`.
std::vector<std::int64_t> unpack_ascending(std::span<const std::uint8_t> bytes, std::size_t& at, std::int64_t count);

/// An approximation of points for messages: the non-empty cells of a uniform grid, with 2^12 cells along the longest
/// side of the points' box, or fewer if `least_width` is larger. Takes a few bits for each cell. For searches that may
/// request some more points than they need.
struct PointCells {
    std::array<double, 3> low{};
    double width = 0;
    /// Morton code of each non-empty cell, ascending: the bits of its coordinates along the axes, interleaved.
    std::vector<std::int64_t> codes;

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

/// Converts the cells to bytes, and back.
std::vector<std::uint8_t> packed(const PointCells& cells);
PointCells unpacked_cells(std::span<const std::uint8_t> bytes);

}  // namespace meshard
