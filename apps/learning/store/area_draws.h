// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/store/point_draws.h"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Sums over one block of a case's rows (`StoredOrder`), by which rows of it are drawn.
struct BlockMeasures {
    static constexpr std::int64_t kChunks = 16;  ///< pieces of a block, of equally many places

    double largest = 0;
    std::int64_t num_positive = 0;
    std::array<double, kChunks> sums{};  ///< of each piece

    double sum() const;
};

/// @param measures   of all rows, none negative, in the order of their places
std::vector<BlockMeasures> block_measures(const StoredOrder& order, std::span<const float> measures);

/// Rows that were drawn.
struct DrawnRows {
    std::vector<std::int64_t> ids;   ///< ascending
    std::vector<PlaceRange> ranges;  ///< in which all of them lie, among others; within one block each
};

/// `count` different rows, each with a chance in proportion to its measure: count w / (sum of all w), exactly. Rows whose chance would be above 1 are always
/// drawn, and the others share what is left; so are whole blocks. A function of the arguments alone, and another draw in each epoch.
///
/// Blocks give rows in proportion to their sums. Within one, points lie at equal distances along the sum of the measures in the order of places, from one that
/// is drawn, and each takes the row that it meets (systematic sampling: Madow, On the theory of systematic sampling, 1949). The distance is the largest
/// measure of the block: so no row is met twice, and what is read lies together. Only where rows are met that are larger than a share of the block's sum is
/// all of it looked at.
/// @param measures   of all rows, in the order of their places; looked at where a draw goes
/// @throws InvalidInput, beginning with `where`, if fewer than `count` rows have a measure
DrawnRows drawn_by_measure(const StoredOrder& order, std::span<const BlockMeasures> blocks, std::span<const float> measures, std::int64_t count,
                           std::int64_t seed, const std::string& case_id, std::int64_t epoch);

}  // namespace meshard
