// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace meshard {

constexpr std::size_t kCacheLine = 64;  // bytes of a cache line of common processors

struct DeleteLines {
    void operator()(void* lines) const { ::operator delete(lines, std::align_val_t(kCacheLine)); }
};

/// An array that starts at a cache line: a vector of 64 bytes across two lines is read and written in two accesses.
template <class T>
using LineArray = std::unique_ptr<T[], DeleteLines>;

/// `count` numbers, not initialised. T: float or double.
template <class T>
LineArray<T> make_lines(std::int64_t count)
{
    return LineArray<T>(
        static_cast<T*>(::operator new(static_cast<std::size_t>(count) * sizeof(T), std::align_val_t(kCacheLine))));
}

}  // namespace meshard
