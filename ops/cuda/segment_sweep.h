// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/executor.h"

#include <cstdint>

namespace meshard {

enum class SegmentSweep : std::uint8_t { Sum, Mean, Max, Min };

template <class T>
struct SweepSegment {
    const T* values;
    const std::int64_t* offsets;
    std::int64_t channels;
    SegmentSweep kind;
    T* results;
    std::int64_t* arguments;

    MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
    {
        const auto begin = offsets[i / channels], end = offsets[i / channels + 1], channel = i % channels;
        T result = 0;
        std::int64_t argument = -1;
        for (auto e = begin; e < end; ++e) {
            const T value = values[e * channels + channel];
            if (kind == SegmentSweep::Sum || kind == SegmentSweep::Mean) {
                result += value;
                continue;
            }
            const bool is_better = argument < 0 || (kind == SegmentSweep::Max ? value > result : value < result);
            const bool is_first_nan = value != value && result == result;
            if (!is_better && !is_first_nan) continue;
            result = value;
            argument = e;
        }
        if (kind == SegmentSweep::Mean && end > begin) result /= static_cast<T>(end - begin);
        results[i] = result;
        if (arguments != nullptr) arguments[i] = argument;
    }
};

/// Reduces the entries of each row of a Csr like `segment_reduce`: one thread for each row and channel, entries in
/// their order.
///
/// @param values     (entries, channels)  @param offsets  (num_rows + 1)
/// @param results    (num_rows, channels); 0 for rows without entries
/// @param arguments  for Max and Min, (num_rows, channels): the first entry that is the extreme, where NaN exceeds
///                   everything; -1 without entries. May be null.
template <class T, class Executor>
void sweep_segments(const Executor& executor, const T* values, const std::int64_t* offsets, std::int64_t num_rows,
                    std::int64_t channels, SegmentSweep kind, T* results, std::int64_t* arguments)
{
    executor.for_each(num_rows * channels, SweepSegment<T>{values, offsets, channels, kind, results, arguments});
}

}  // namespace meshard
