// SPDX-License-Identifier: Apache-2.0
#include "ops/point_cells.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace meshard {
namespace {

constexpr int kBits = 12;   // of a place along an axis
constexpr std::int64_t kPlaces = std::int64_t{1} << kBits;

std::int64_t interleaved(const std::array<std::int64_t, 3>& places, int dimensions)
{
    std::int64_t code = 0;
    for (int bit = kBits - 1; bit >= 0; --bit) {
        for (int d = 0; d < dimensions; ++d) code = code << 1 | (places[d] >> bit & 1);
    }
    return code;
}

}  // namespace

void pack_ascending(std::span<const std::int64_t> numbers, std::vector<std::uint8_t>& bytes)
{
    std::int64_t last = 0;
    for (const auto number : numbers) {
        auto difference = static_cast<std::uint64_t>(number - last);
        for (; difference >= 128; difference >>= 7) bytes.push_back(static_cast<std::uint8_t>(difference | 128));
        bytes.push_back(static_cast<std::uint8_t>(difference));
        last = number;
    }
}

std::vector<std::int64_t> unpack_ascending(std::span<const std::uint8_t> bytes, std::size_t& at, std::int64_t count)
{
    std::vector<std::int64_t> numbers(count);
    std::int64_t last = 0;
    for (auto& number : numbers) {
        std::uint64_t difference = 0;
        int shift = 0;
        for (; bytes[at] >= 128; shift += 7) difference |= static_cast<std::uint64_t>(bytes[at++] & 127) << shift;
        difference |= static_cast<std::uint64_t>(bytes[at++]) << shift;
        number = last += static_cast<std::int64_t>(difference);
    }
    return numbers;
}

template <class T>
PointCells point_cells(std::span<const T> points, int dimensions)
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
    cells.width = longest > 0 ? longest / static_cast<double>(kPlaces) : 0;
    for (std::size_t i = 0; i < points.size(); i += dimensions) {
        std::array<std::int64_t, 3> places{};
        for (int d = 0; d < dimensions && cells.width > 0; ++d) {
            places[d] = std::clamp<std::int64_t>(static_cast<std::int64_t>((static_cast<double>(points[i + d]) - cells.low[d]) / cells.width), 0, kPlaces - 1);
        }
        cells.codes.push_back(interleaved(places, dimensions));
    }
    std::sort(cells.codes.begin(), cells.codes.end());
    cells.codes.erase(std::unique(cells.codes.begin(), cells.codes.end()), cells.codes.end());
    return cells;
}
template PointCells point_cells(std::span<const float>, int);
template PointCells point_cells(std::span<const double>, int);

template <class T>
double PointCells::reach(int dimensions) const
{
    // Half a diagonal, and what is lost when middles are rounded to T.
    double largest = 0;
    for (int d = 0; d < dimensions; ++d) largest = std::max(largest, std::abs(low[d]) + width * static_cast<double>(kPlaces));
    return std::sqrt(static_cast<double>(dimensions)) * (0.5 * width * (1 + 1e-9) + 4 * largest * static_cast<double>(std::numeric_limits<T>::epsilon()));
}
template double PointCells::reach<float>(int) const;
template double PointCells::reach<double>(int) const;

template <class T>
std::vector<T> PointCells::middles(int dimensions) const
{
    std::vector<T> result;
    result.reserve(codes.size() * dimensions);
    for (const auto code : codes) {
        std::array<std::int64_t, 3> places{};
        for (int bit = kBits * dimensions - 1; bit >= 0; --bit) {
            auto& place = places[dimensions - 1 - bit % dimensions];
            place = place << 1 | (code >> bit & 1);
        }
        for (int d = 0; d < dimensions; ++d) result.push_back(static_cast<T>(low[d] + (static_cast<double>(places[d]) + 0.5) * width));
    }
    return result;
}
template std::vector<float> PointCells::middles(int) const;
template std::vector<double> PointCells::middles(int) const;

std::vector<std::uint8_t> packed(const PointCells& cells)
{
    const std::array<double, 4> frame{cells.low[0], cells.low[1], cells.low[2], cells.width};
    std::vector<std::uint8_t> bytes(sizeof frame);
    std::memcpy(bytes.data(), frame.data(), sizeof frame);
    const std::int64_t count = static_cast<std::int64_t>(cells.codes.size());
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
