// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace meshard {

constexpr std::size_t kCacheLine = 64;  // bytes, of the processors that we know

struct DeleteLines {
    void operator()(void* lines) const { ::operator delete(lines, std::align_val_t(kCacheLine)); }
};

/// Numbers from the start of a cache line on: a vector of 64 bytes that begins elsewhere is read and written as two.
template <class T>
using LineArray = std::unique_ptr<T[], DeleteLines>;

/// `count` numbers, not set to anything. T: float or double.
template <class T>
LineArray<T> make_lines(std::int64_t count)
{
    return LineArray<T>(static_cast<T*>(::operator new(static_cast<std::size_t>(count) * sizeof(T), std::align_val_t(kCacheLine))));
}

}  // namespace meshard
