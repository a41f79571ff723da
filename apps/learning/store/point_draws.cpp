// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/store/point_draws.h"

#include "io/bytes/content_hash.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <algorithm>
#include <optional>

namespace meshard {
namespace {

// A step reads a range of each block: small blocks or very many blocks would make these reads short.
constexpr std::int64_t kRowsOfBlock = std::int64_t{1} << 16, kMostBlocks = 64;

// Rounding down twice may cost a block one row of its share; with two rows a share stays above 0.
constexpr std::int64_t kLeastOfBlock = 2;

// Mixed into a key, these keep the two kinds of random numbers that one key gives independent.
constexpr std::uint64_t kOrderOfBlocks = 0x5851F42D4C957F2D, kStartOfRanges = 0x14057B7EF767814F;

}  // namespace

std::vector<std::int64_t> drawn_points(std::int64_t num_points, std::int64_t count, std::int64_t seed,
                                       const std::string& case_id, std::int64_t epoch)
{
    const auto draws_an_order = num_points / count, order = (epoch - 1) / draws_an_order,
               first = (epoch - 1) % draws_an_order * count;
    const KeyedPermutation permutation(static_cast<std::uint64_t>(num_points),
                                       mixed_numbers(xxh64_of_text(case_id), seed, order));
    std::vector<std::int64_t> drawn(count);
    for (std::int64_t i = 0; i < count; ++i)
        drawn[i] = static_cast<std::int64_t>(permutation(static_cast<std::uint64_t>(first + i)));
    std::ranges::sort(drawn);
    return drawn;
}

StoredOrder::StoredOrder(std::int64_t num_rows, const std::string& case_id)
    : num_rows_(num_rows), num_blocks_(std::clamp<std::int64_t>(num_rows / kRowsOfBlock, 1, kMostBlocks)),
      key_(mixed_numbers(xxh64_of_text(case_id), kOrderOfBlocks))
{
}

std::int64_t StoredOrder::begin_of(std::int64_t block) const
{
    return num_rows_ * block / num_blocks_;
}

std::int64_t StoredOrder::block_of(std::int64_t row) const
{
    auto block = row * num_blocks_ / num_rows_;
    while (begin_of(block + 1) <= row) ++block;
    return block;
}

KeyedPermutation StoredOrder::permutation_of(std::int64_t block) const
{
    return {static_cast<std::uint64_t>(begin_of(block + 1) - begin_of(block)), mixed_numbers(key_, block)};
}

std::int64_t StoredOrder::place_of(std::int64_t id) const
{
    const auto block = block_of(id), begin = begin_of(block);
    return begin + static_cast<std::int64_t>(permutation_of(block).place_of(static_cast<std::uint64_t>(id - begin)));
}

std::vector<std::int64_t> StoredOrder::places_of(std::span<const std::int64_t> ids) const
{
    std::vector<std::int64_t> places;
    places.reserve(ids.size());
    std::int64_t begin = 0, end = 0;
    std::optional<KeyedPermutation> permutation;  // permutes the ids from `begin` to `end`
    for (const auto id : ids) {
        if (id < begin || id >= end) {
            const auto block = block_of(id);
            begin = begin_of(block);
            end = begin_of(block + 1);
            permutation.emplace(permutation_of(block));
        }
        places.push_back(begin +
                         static_cast<std::int64_t>(permutation->place_of(static_cast<std::uint64_t>(id - begin))));
    }
    return places;
}

std::int64_t StoredOrder::id_at(std::int64_t place) const
{
    const auto block = block_of(place), begin = begin_of(block);
    return begin + static_cast<std::int64_t>(permutation_of(block)(static_cast<std::uint64_t>(place - begin)));
}

std::vector<std::int64_t> StoredOrder::ids_of(std::int64_t block, std::span<const std::int64_t> places) const
{
    const auto begin = begin_of(block);
    // Made once for all places, since making it costs as much as using it.
    const auto permutation = permutation_of(block);
    std::vector<std::int64_t> ids;
    ids.reserve(places.size());
    for (const auto place : places)
        ids.push_back(begin + static_cast<std::int64_t>(permutation(static_cast<std::uint64_t>(place))));
    return ids;
}

std::vector<PlaceRange> StoredOrder::drawn_ranges(std::int64_t count, std::int64_t seed, std::int64_t epoch) const
{
    if (num_blocks_ > 1 && count < kLeastOfBlock * num_blocks_) {
        throw InvalidInput("data.sampling is blocks, and data.sampling_resolution {}: a case of {} points "
                           "has {} blocks, of which each gives at least {}. "
                           "Raise it, or set data.sampling=uniform.",
                           count, num_rows_, num_blocks_, kLeastOfBlock);
    }
    const auto draws_an_order = num_rows_ / count, order = (epoch - 1) / draws_an_order,
               draw = (epoch - 1) % draws_an_order;
    // Rows that the first `draws` draws take from all blocks before this one; rounded down, so that all blocks together
    // give `count` rows a draw.
    const auto taken_before = [&](std::int64_t draws, std::int64_t block) {
        return draws * count * begin_of(block) / num_rows_;
    };
    const auto taken_of = [&](std::int64_t draws, std::int64_t block) {
        return taken_before(draws, block + 1) - taken_before(draws, block);
    };
    std::vector<PlaceRange> ranges;
    for (std::int64_t block = 0; block < num_blocks_; ++block) {
        const auto begin = begin_of(block), size = begin_of(block + 1) - begin;
        const auto start = static_cast<std::int64_t>(mixed_numbers(key_, kStartOfRanges, seed, order, block) %
                                                     static_cast<std::uint64_t>(size));
        const auto before = taken_of(draw, block), number = taken_of(draw + 1, block) - before,
                   first = (start + before) % size;
        const auto to_end = std::min(number, size - first);
        if (to_end > 0) ranges.push_back({begin + first, to_end});
        if (number > to_end) ranges.push_back({begin, number - to_end});
    }
    return ranges;
}

std::vector<std::int64_t> StoredOrder::drawn_ids(std::int64_t count, std::int64_t seed, std::int64_t epoch) const
{
    std::vector<std::int64_t> ids;
    for (const auto& range : drawn_ranges(count, seed, epoch)) {
        const auto block = block_of(range.first);
        auto places = numbers_from<std::int64_t>(range.first - begin_of(block), range.count);
        const auto drawn = ids_of(block, places);
        append(ids, drawn);
    }
    std::ranges::sort(ids);
    return ids;
}

}  // namespace meshard
