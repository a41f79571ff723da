// SPDX-License-Identifier: Apache-2.0
#include "ops/search/point_cells.h"

#include "partition/lists.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace meshard {
namespace {

constexpr int kBits = 12;  // bits of a cell's coordinate along an axis
constexpr std::int64_t kCellsPerAxis = std::int64_t{1} << kBits;

std::int64_t interleaved(const std::array<std::int64_t, 3>& coordinates, int dimensions)
{
    std::int64_t code = 0;
    for (int bit = kBits - 1; bit >= 0; --bit) {
        for (int d = 0; d < dimensions; ++d) code = code << 1 | (coordinates[d] >> bit & 1);
    }
    return code;
}

constexpr std::uint64_t kEscape = 24;  // after this number of ones the difference follows in 64 bits

/// The number of low bits for which the code of all differences is about the shortest.
int best_low_bits(std::span<const std::int64_t> numbers)
{
    std::array<double, 65> counts{};  // counts[b]: number of differences with b bits
    std::int64_t last = 0;
    for (const auto number : numbers)
        counts[std::bit_width(static_cast<std::uint64_t>(number - std::exchange(last, number)))] += 1;
    int best = 0;
    double fewest = std::numeric_limits<double>::infinity();
    for (int low = 0; low < 63; ++low) {
        double bits = 0;
        for (int width = 0; width <= 64; ++width) {
            const double high = width > low ? 0.75 * std::exp2(width - low) : 0;
            bits += counts[width] * (high < kEscape ? high + 1 + low : kEscape + 64);
        }
        if (bits >= fewest) continue;
        fewest = bits;
        best = low;
    }
    return best;
}

/// Appends bits, the lowest first, to `bytes`.
struct BitWriter {
    std::vector<std::uint8_t>& bytes;
    int bit = 8;

    void put(std::uint64_t value, int count)
    {
        for (int i = 0; i < count; ++i) {
            if (bit == 8) {
                bytes.push_back(0);
                bit = 0;
            }
            bytes.back() |= static_cast<std::uint8_t>((value >> i & 1) << bit++);
        }
    }
};

struct BitReader {
    std::span<const std::uint8_t> bytes;
    std::size_t at;
    int bit = 0;

    std::uint64_t take(int count)
    {
        std::uint64_t value = 0;
        for (int i = 0; i < count; ++i) {
            value |= static_cast<std::uint64_t>(bytes[at] >> bit & 1) << i;
            if (++bit == 8) {
                bit = 0;
                ++at;
            }
        }
        return value;
    }
};

template <class T>
std::int64_t code_of(const PointCells& cells, const T* point, int dimensions)
{
    std::array<std::int64_t, 3> coordinates{};
    for (int d = 0; d < dimensions && cells.width > 0; ++d) {
        coordinates[d] = std::clamp<std::int64_t>(
            static_cast<std::int64_t>((static_cast<double>(point[d]) - cells.low[d]) / cells.width), 0,
            kCellsPerAxis - 1);
    }
    return interleaved(coordinates, dimensions);
}

}  // namespace

void pack_ascending(std::span<const std::int64_t> numbers, std::vector<std::uint8_t>& bytes)
{
    const int low_bits = best_low_bits(numbers);
    bytes.push_back(static_cast<std::uint8_t>(low_bits));
    BitWriter writer{bytes};
    std::int64_t last = 0;
    for (const auto number : numbers) {
        const auto difference = static_cast<std::uint64_t>(number - last);
        const auto high = difference >> low_bits;
        for (std::uint64_t i = 0; i < std::min<std::uint64_t>(high, kEscape); ++i) writer.put(1, 1);
        if (high < kEscape) writer.put(0, 1);
        writer.put(difference, high < kEscape ? low_bits : 64);
        last = number;
    }
}

std::vector<std::int64_t> unpack_ascending(std::span<const std::uint8_t> bytes, std::size_t& at, std::int64_t count)
{
    const int low_bits = bytes[at++];
    BitReader reader{bytes, at};
    std::vector<std::int64_t> numbers(count);
    std::int64_t last = 0;
    for (auto& number : numbers) {
        std::uint64_t high = 0;
        while (high < kEscape && reader.take(1) == 1) ++high;
        const auto difference = high < kEscape ? high << low_bits | reader.take(low_bits) : reader.take(64);
        number = last += static_cast<std::int64_t>(difference);
    }
    at = reader.at + (reader.bit > 0);
    return numbers;
}

template <class T>
PointCells point_cells(std::span<const T> points, int dimensions, double least_width)
{
    PointCells cells;
    double longest = 0;
    for (int d = 0; d < dimensions; ++d) {
        double low = std::numeric_limits<double>::infinity(), high = -low;
        for (std::size_t i = d; i < points.size(); i += dimensions) {
            low = std::min(low, static_cast<double>(points[i]));
            high = std::max(high, static_cast<double>(points[i]));
        }
        cells.low[d] = points.empty() ? 0 : low;
        longest = std::max(longest, high - low);
    }
    cells.width = longest > 0 ? std::max(least_width, longest / static_cast<double>(kCellsPerAxis)) : 0;
    for (std::size_t i = 0; i < points.size(); i += dimensions)
        cells.codes.push_back(code_of(cells, &points[i], dimensions));
    sort_unique(cells.codes);
    return cells;
}
template PointCells point_cells(std::span<const float>, int, double);
template PointCells point_cells(std::span<const double>, int, double);

template <class T>
std::vector<std::int64_t> cell_of_each(const PointCells& cells, std::span<const T> points, int dimensions)
{
    std::vector<std::int64_t> indices;
    for (std::size_t i = 0; i < points.size(); i += dimensions) {
        indices.push_back(std::ranges::lower_bound(cells.codes, code_of(cells, &points[i], dimensions)) -
                          cells.codes.begin());
    }
    return indices;
}
template std::vector<std::int64_t> cell_of_each(const PointCells&, std::span<const float>, int);
template std::vector<std::int64_t> cell_of_each(const PointCells&, std::span<const double>, int);

template <class T>
double PointCells::reach(int dimensions) const
{
    // Half a diagonal, plus the rounding error of centroids in T.
    double largest = 0;
    for (int d = 0; d < dimensions; ++d)
        largest = std::max(largest, std::abs(low[d]) + width * static_cast<double>(kCellsPerAxis));
    return std::sqrt(static_cast<double>(dimensions)) *
           (0.5 * width * (1 + 1e-9) + 4 * largest * static_cast<double>(std::numeric_limits<T>::epsilon()));
}
template double PointCells::reach<float>(int) const;
template double PointCells::reach<double>(int) const;

template <class T>
std::vector<T> PointCells::centroids(int dimensions) const
{
    std::vector<T> result;
    result.reserve(codes.size() * dimensions);
    for (const auto code : codes) {
        std::array<std::int64_t, 3> coordinates{};
        for (int bit = kBits * dimensions - 1; bit >= 0; --bit) {
            auto& coordinate = coordinates[dimensions - 1 - bit % dimensions];
            coordinate = coordinate << 1 | (code >> bit & 1);
        }
        for (int d = 0; d < dimensions; ++d)
            result.push_back(static_cast<T>(low[d] + (static_cast<double>(coordinates[d]) + 0.5) * width));
    }
    return result;
}
template std::vector<float> PointCells::centroids(int) const;
template std::vector<double> PointCells::centroids(int) const;

std::vector<std::uint8_t> packed(const PointCells& cells)
{
    const std::array<double, 4> frame{cells.low[0], cells.low[1], cells.low[2], cells.width};
    std::vector<std::uint8_t> bytes(sizeof frame);
    std::memcpy(bytes.data(), frame.data(), sizeof frame);
    const std::int64_t count = std::ssize(cells.codes);
    pack_ascending({&count, 1}, bytes);
    pack_ascending(cells.codes, bytes);
    return bytes;
}

PointCells unpacked_cells(std::span<const std::uint8_t> bytes)
{
    std::array<double, 4> frame;
    std::memcpy(frame.data(), bytes.data(), sizeof frame);
    std::size_t at = sizeof frame;
    const auto count = unpack_ascending(bytes, at, 1)[0];
    return {{frame[0], frame[1], frame[2]}, frame[3], unpack_ascending(bytes, at, count)};
}

}  // namespace meshard
