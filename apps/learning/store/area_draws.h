// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/store/point_draws.h"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Sums over one block of a case's rows (`StoredOrder`), from which rows of it are drawn.
struct BlockMeasures {
    static constexpr std::int64_t kChunks = 16;  ///< a block is split into so many chunks of equally many places

    double largest = 0;
    std::int64_t num_positive = 0;
    std::array<double, kChunks> sums{};  ///< the sum of each chunk

    double sum() const;
};

/// Computes the sums of each block.
/// @param measures   of all rows, none negative, in the order of their places
std::vector<BlockMeasures> block_measures(const StoredOrder& order, std::span<const float> measures);

/// The rows of one draw.
struct DrawnRows {
    std::vector<std::int64_t> ids;   ///< ascending
    std::vector<PlaceRange> ranges;  ///< they cover all drawn rows and may cover others; none goes beyond a block
};

/// Draws `count` different rows, each with a chance in exact proportion to its measure w: count w / (sum of all w).
/// Rows whose chance would be above 1 are always drawn, and the others share what is left; whole blocks likewise. The
/// draw depends on the arguments alone and differs from epoch to epoch.
///
/// Blocks give rows in proportion to their sums. Within a block, points lie at equal distances along the running sum of
/// the measures in the order of places, and each takes the row that it meets (systematic sampling: Madow, On the theory
/// of systematic sampling, 1949). Where the block's sum allows, the distance is a little more than the block's largest
/// measure: then no row is met twice, and the rows that are read lie together. Otherwise the whole block is looked at.
/// @param measures   of all rows, in the order of their places
/// @throws InvalidInput naming the case if fewer than `count` rows have a measure
DrawnRows drawn_by_measure(const StoredOrder& order, std::span<const BlockMeasures> blocks,
                           std::span<const float> measures, std::int64_t count, std::int64_t seed,
                           const std::string& case_id, std::int64_t epoch);

}  // namespace meshard
