// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/executor.h"

#include <cstdint>
#include <limits>

namespace meshard {

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
MESHARD_HOST_DEVICE inline std::uint64_t mixed_bits(std::uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

/// Key number `count` of a sequence of well mixed keys.
MESHARD_HOST_DEVICE inline std::uint64_t mixed_key(std::uint64_t key, std::uint64_t count)
{
    return mixed_bits(key + 0x9E3779B97F4A7C15 * count);
}

/// Uniform random numbers for rows: each is a function of a key, the row's id, its sample and the number's index in the
/// row. Row r of sample b has the id ids[r], or first_id + r without ids, and the sample first_sample + b.
struct RowNumbers {
    std::uint64_t key;
    const std::int64_t* ids;
    std::int64_t first_id, first_sample;

    /// The key from which all numbers of a row are computed.
    MESHARD_HOST_DEVICE std::uint64_t key_of(std::int64_t sample, std::int64_t row) const
    {
        const auto id = static_cast<std::uint64_t>(ids ? ids[row] : first_id + row);
        return mixed_key(key, mixed_key(static_cast<std::uint64_t>(first_sample + sample), id));
    }

    /// Number i of the row with this key, in [0, 1).
    template <class T>
    MESHARD_HOST_DEVICE static T number(std::uint64_t row_key, std::int64_t i)
    {
        constexpr int bits = std::numeric_limits<T>::digits;
        constexpr T unit = T(1) / static_cast<T>(std::uint64_t(1) << bits);
        return static_cast<T>(mixed_key(row_key, static_cast<std::uint64_t>(i + 1)) >> (64 - bits)) * unit;
    }
};

template <class T>
struct DrawNumber {
    RowNumbers rows;
    std::int64_t num_rows, width;
    T* numbers;

    MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
    {
        const auto place = i / width;
        numbers[i] = RowNumbers::number<T>(rows.key_of(place / num_rows, place % num_rows), i % width);
    }
};

/// Draws `width` numbers for each of `num_rows` rows of each of `num_samples` samples, (samples, rows, width).
template <class T, class Executor>
void draw_numbers(const Executor& executor, const RowNumbers& rows, std::int64_t num_samples, std::int64_t num_rows,
                  std::int64_t width, T* numbers)
{
    executor.for_each(num_samples * num_rows * width, DrawNumber<T>{rows, num_rows, width, numbers});
}

}  // namespace meshard
