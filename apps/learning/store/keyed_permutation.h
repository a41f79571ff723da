// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/random_numbers.h"

#include <cstdint>
#include <utility>

namespace meshard {

/// Mixes several numbers into one, each bit of which depends on all of their bits.
template <class... Numbers>
std::uint64_t mixed_numbers(std::uint64_t first, Numbers... rest)
{
    auto result = RandomNumbers(first).next();
    ((result = RandomNumbers(result ^ static_cast<std::uint64_t>(rest)).next()), ...);
    return result;
}

/// A permutation of the numbers below `size`, chosen by a key. Each number is computed without the others, by a Feistel
/// network (Black and Rogaway, Ciphers with arbitrary finite domains, 2002).
class KeyedPermutation {
public:
    KeyedPermutation(std::uint64_t size, std::uint64_t key) : size_(size), key_(key)
    {
        while ((std::uint64_t{1} << 2 * half_bits_) < size) ++half_bits_;
    }

    std::uint64_t operator()(std::uint64_t place) const
    {
        do place = network(place);
        while (place >= size_);  // the network permutes up to four times as many numbers as wanted
        return place;
    }

    /// The inverse: returns the place whose number this is.
    std::uint64_t place_of(std::uint64_t number) const
    {
        do number = inverse_network(number);
        while (number >= size_);
        return number;
    }

private:
    static constexpr std::uint64_t kRounds = 6;

    std::uint64_t network(std::uint64_t number) const
    {
        const auto mask = (std::uint64_t{1} << half_bits_) - 1;
        auto left = number >> half_bits_, right = number & mask;
        for (std::uint64_t round = 0; round < kRounds; ++round)
            left = std::exchange(right, left ^ (mixed_numbers(key_, round, right) & mask));
        return left << half_bits_ | right;
    }

    std::uint64_t inverse_network(std::uint64_t number) const
    {
        const auto mask = (std::uint64_t{1} << half_bits_) - 1;
        auto left = number >> half_bits_, right = number & mask;
        for (auto round = kRounds; round-- > 0;)
            right = std::exchange(left, right ^ (mixed_numbers(key_, round, left) & mask));
        return left << half_bits_ | right;
    }

    std::uint64_t size_;
    std::uint64_t key_;
    int half_bits_ = 1;
};

}  // namespace meshard
