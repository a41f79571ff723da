// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/executor.h"

#include <cstdint>

namespace meshard {

/// The size of the widest word, 8, 4, 2 or 1 bytes, in which rows of `row_bytes` bytes at these addresses can be
/// copied: a GPU reads and writes a word only at a multiple of its size. A tensor that starts inside another's memory
/// may be aligned to its element size only.
inline std::int64_t word_bytes(std::int64_t row_bytes, const void* from, const void* to)
{
    const auto all = static_cast<std::uint64_t>(row_bytes) | reinterpret_cast<std::uintptr_t>(from) |
                     reinterpret_cast<std::uintptr_t>(to);
    return all % 8 == 0 ? 8 : all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
}

template <class Word>
struct PackWord {
    const Word* rows;
    const std::int64_t* index;
    std::int64_t words;  // words of a row
    Word* packed;

    MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
    {
        packed[i] = rows[index[i / words] * words + i % words];
    }
};

/// packed[i] = rows[index[i]] for n rows of `words` words each: gathers the rows that a rank sends.
template <class Word, class Executor>
void pack_rows(const Executor& executor, const Word* rows, const std::int64_t* index, std::int64_t n,
               std::int64_t words, Word* packed)
{
    executor.for_each(n * words, PackWord<Word>{rows, index, words, packed});
}

template <class Word>
struct UnpackWord {
    const Word* packed;
    const std::int64_t* index;
    std::int64_t words;
    Word* rows;

    MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
    {
        rows[index[i / words] * words + i % words] = packed[i];
    }
};

/// rows[index[i]] = packed[i]: scatters the rows that a rank has received. Indices must be unique.
template <class Word, class Executor>
void unpack_rows(const Executor& executor, const Word* packed, const std::int64_t* index, std::int64_t n,
                 std::int64_t words, Word* rows)
{
    executor.for_each(n * words, UnpackWord<Word>{packed, index, words, rows});
}

template <class T>
struct AddPacked {
    const T* packed;
    const std::int64_t* offsets;
    const std::int64_t* positions;
    std::int64_t channels;
    T* rows;

    MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
    {
        const auto row = i / channels, channel = i % channels;
        T sum = rows[i];
        for (auto e = offsets[row]; e < offsets[row + 1]; ++e) sum += packed[positions[e] * channels + channel];
        rows[i] = sum;
    }
};

/// Adds to row r the packed rows positions[offsets[r]], ..., positions[offsets[r + 1] - 1], in this order, so that sums
/// have the same bits every time: for the gradients that ghosts send to their owners.
template <class T, class Executor>
void add_packed_rows(const Executor& executor, const T* packed, const std::int64_t* offsets,
                     const std::int64_t* positions, std::int64_t num_rows, std::int64_t channels, T* rows)
{
    executor.for_each(num_rows * channels, AddPacked<T>{packed, offsets, positions, channels, rows});
}

}  // namespace meshard
