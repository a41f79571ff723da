// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/random_numbers.h"

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

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

/// Draws `count` different numbers from 0 to `num_points` - 1, ascending, as a function of the arguments alone. The
/// epochs' draws from one case have no number in common until fewer than `count` are left; then another order begins.
/// `count` is at most `num_points`. Only the drawn numbers are computed (`KeyedPermutation`).
std::vector<std::int64_t> drawn_points(std::int64_t num_points, std::int64_t count, std::int64_t seed,
                                       const std::string& case_id, std::int64_t epoch);

/// A range of `count` places from `first` on, within one block.
struct PlaceRange {
    std::int64_t first = 0, count = 0;

    bool operator==(const PlaceRange&) const = default;
};

/// The order in which the rows of a case are stored: blocks of rows with consecutive ids, each block shuffled in
/// itself. It depends only on the case's id and number of rows, not on the cut: each row has a place by its id, and
/// each part stores its rows in the order of their places. Consecutive places are a random choice of a block's rows,
/// and they lie together in each part's file.
///
/// Example: 200,000 rows are 3 blocks, with the places and ids 0 .. 66,665, 66,666 .. 133,332 and 133,333 .. 199,999.
class StoredOrder {
public:
    StoredOrder(std::int64_t num_rows, const std::string& case_id);

    std::int64_t num_blocks() const { return num_blocks_; }
    /// A block's first place, which is also its first id; for `num_blocks` the number of rows.
    std::int64_t begin_of(std::int64_t block) const;
    std::int64_t block_of(std::int64_t row) const;  ///< the block of a place or an id
    std::int64_t place_of(std::int64_t id) const;
    std::int64_t id_at(std::int64_t place) const;
    /// Faster than one by one if neighbours share a block.
    std::vector<std::int64_t> places_of(std::span<const std::int64_t> ids) const;

    /// Returns the ids at some places of a block; places are counted from the block's first.
    std::vector<std::int64_t> ids_of(std::int64_t block, std::span<const std::int64_t> places) const;

    /// Draws the places of `count` rows. Each block gives its share as one range, or as two where it goes over the
    /// block's end. As with `drawn_points`, no place comes back in later epochs (from 1) until fewer than `count` are
    /// left; then the ranges begin elsewhere.
    /// @throws InvalidInput if there are several blocks and `count` is less than two rows of each
    std::vector<PlaceRange> drawn_ranges(std::int64_t count, std::int64_t seed, std::int64_t epoch) const;

    /// Returns the ids of the rows of `drawn_ranges`, ascending.
    std::vector<std::int64_t> drawn_ids(std::int64_t count, std::int64_t seed, std::int64_t epoch) const;

private:
    KeyedPermutation permutation_of(std::int64_t block) const;

    std::int64_t num_rows_;
    std::int64_t num_blocks_;
    std::uint64_t key_;
};

}  // namespace meshard
