// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace meshard {

/// A small generator of random numbers (splitmix64): the same numbers on every machine.
class RandomNumbers {
public:
    explicit RandomNumbers(std::uint64_t seed) : state_(seed) {}

    std::uint64_t next()
    {
        auto z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }

    /// A uniform random number in [0, end); `end` is not 0.
    std::uint32_t below(std::uint32_t end) { return static_cast<std::uint32_t>((next() >> 32) * end >> 32); }

private:
    std::uint64_t state_;
};

}  // namespace meshard
