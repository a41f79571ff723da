// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/store/keyed_permutation.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// `count` different ones of the numbers 0 to `num_points` - 1, ascending: a function of the arguments alone. The epochs' draws from one case have no number in
/// common until fewer than `count` are left; then another order begins. `count` is at most `num_points`. Only the numbers drawn are computed
/// (`KeyedPermutation`).
std::vector<std::int64_t> drawn_points(std::int64_t num_points, std::int64_t count, std::int64_t seed, const std::string& case_id, std::int64_t epoch);

/// Places from `first` on, within one block.
struct PlaceRange {
    std::int64_t first = 0, count = 0;

    bool operator==(const PlaceRange&) const = default;
};

/// The order in which stored rows of a case lie: blocks of rows whose ids follow each other, each block shuffled in itself. It depends on the case's id and
/// number of rows only, and so on no cut: row `id` has a place, and each part stores its rows in the order of their places. Consecutive places are a random
/// choice of a block's rows, which lie together in each part's file.
///
/// Example: 200,000 rows are 3 blocks, of the places and ids 0 .. 66,665, 66,666 .. 133,332 and 133,333 .. 199,999.
class StoredOrder {
public:
    StoredOrder(std::int64_t num_rows, const std::string& case_id);

    std::int64_t num_blocks() const { return num_blocks_; }
    std::int64_t begin_of(std::int64_t block) const;  ///< its first place, which is also its first id; of `num_blocks` the number of rows
    std::int64_t block_of(std::int64_t row) const;    ///< of a place, or of an id
    std::int64_t place_of(std::int64_t id) const;
    std::int64_t id_at(std::int64_t place) const;
    std::vector<std::int64_t> places_of(std::span<const std::int64_t> ids) const;  ///< faster than one by one where neighbours are of one block

    /// Ids at some places of a block, which are counted from its first.
    std::vector<std::int64_t> ids_of(std::int64_t block, std::span<const std::int64_t> places) const;

    /// Places of `count` rows: of each block its share, in ranges that lie together but for one that goes over the block's end. As with `drawn_points` no
    /// place comes back in the epochs that follow (from 1) before fewer than `count` are left; then the ranges begin elsewhere.
    /// @throws InvalidInput for less than two rows of each of several blocks
    std::vector<PlaceRange> drawn_ranges(std::int64_t count, std::int64_t seed, std::int64_t epoch) const;

    /// Ids of these rows, ascending.
    std::vector<std::int64_t> drawn_ids(std::int64_t count, std::int64_t seed, std::int64_t epoch) const;

private:
    KeyedPermutation permutation_of(std::int64_t block) const;

    std::int64_t num_rows_;
    std::int64_t num_blocks_;
    std::uint64_t key_;
};

}  // namespace meshard
