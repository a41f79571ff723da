// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/store/area_draws.h"

#include "io/bytes/content_hash.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace meshard {
namespace {

// Mixed into the draw's key, these keep the two kinds of random numbers of one draw independent.
constexpr std::uint64_t kQuotasOfBlocks = 0x2545F4914F6CDD1D, kStartInBlock = 0x9FB21C651E98DF25;

// The points' distance is this many largest measures, so that rounding does not let two points meet one row.
constexpr double kMargin = 1.001;

/// Maps random bits to [0, 1).
double uniform_of(std::uint64_t bits)
{
    return static_cast<double>(bits >> 11) * 0x1p-53;
}

/// Gives each block a number of rows in proportion to its sum, at most its number of rows with a measure.
std::vector<std::int64_t> quotas_of(std::span<const BlockMeasures> blocks, std::int64_t count, double uniform)
{
    std::vector<std::int64_t> quotas(blocks.size(), -1);
    double sum = 0;
    for (const auto& block : blocks) sum += block.sum();
    auto left = count;
    for (bool is_settled = false; !is_settled;) {
        is_settled = true;
        const auto share_of_all = static_cast<double>(left) / sum;
        for (std::size_t b = 0; b < blocks.size(); ++b) {
            if (quotas[b] >= 0 || share_of_all * blocks[b].sum() < static_cast<double>(blocks[b].num_positive))
                continue;
            quotas[b] = std::min(blocks[b].num_positive, left);
            left -= quotas[b];
            sum -= blocks[b].sum();
            is_settled = false;
        }
    }
    double before = 0;
    const auto total = sum;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
        if (quotas[b] >= 0) continue;
        const auto taken_before = std::floor(uniform + before / total * static_cast<double>(left));
        before += blocks[b].sum();
        const auto taken = std::floor(uniform + before / total * static_cast<double>(left));
        quotas[b] = std::min(static_cast<std::int64_t>(taken - taken_before), blocks[b].num_positive);
    }
    // Rounding of the sums may leave a few rows too many or too few; the first blocks with room make up for them.
    auto rest = count - std::accumulate(quotas.begin(), quotas.end(), std::int64_t{0});
    for (std::size_t b = 0; b < blocks.size() && rest != 0; ++b) {
        const auto changed = std::clamp<std::int64_t>(quotas[b] + rest, 0, blocks[b].num_positive);
        rest -= changed - quotas[b];
        quotas[b] = changed;
    }
    return quotas;
}

/// Draws rows from one block.
class BlockDraw {
public:
    BlockDraw(std::span<const float> measures, const BlockMeasures& sums)
        : size_(std::ssize(measures)), measures_(measures), sums_(sums)
    {
    }

    /// Returns the offsets in the block of `count` drawn rows.
    std::vector<std::int64_t> rows(std::int64_t count, double uniform) const
    {
        const auto sum = sums_.sum();
        const auto distance = kMargin * sums_.largest;
        if (distance * static_cast<double>(count) <= sum) {
            auto met = met_together(uniform * sum, distance, count);
            if (std::ssize(met) == count) return met;
        }
        return met_in_all(count, uniform);
    }

private:
    /// Walks from the chunk that holds the first point over the block's end and back to its beginning.
    std::vector<std::int64_t> met_together(double point, double distance, std::int64_t count) const
    {
        double before = 0;
        std::int64_t chunk = 0;
        while (chunk + 1 < BlockMeasures::kChunks && before + sums_.sums[chunk] <= point) before += sums_.sums[chunk++];
        std::vector<std::int64_t> met;
        const auto begin = size_ * chunk / BlockMeasures::kChunks;
        // The walk goes once round the block and through the first chunk again.
        const auto end = begin + size_ + size_ / BlockMeasures::kChunks + 1;
        for (auto step = begin; step < end && std::ssize(met) < count; ++step) {
            const auto row = step % size_;
            const auto after = before + static_cast<double>(measures_[row]);
            if (point < after) {
                met.push_back(row);
                point += distance;
            }
            before = after;
        }
        return met;
    }

    /// Looks at all rows: takes those whose chance would be above 1 first, then the others at equal distances.
    std::vector<std::int64_t> met_in_all(std::int64_t count, double uniform) const
    {
        auto by_size = numbers_from<std::int64_t>(0, size_);
        const auto measure = [&](std::int64_t row) { return static_cast<double>(measures_[row]); };
        std::ranges::stable_sort(by_size, [&](auto a, auto b) { return measure(a) > measure(b); });
        double sum = 0;
        for (auto row = by_size.rbegin(); row != by_size.rend(); ++row) sum += measure(*row);
        std::vector<std::int64_t> drawn;
        while (std::ssize(drawn) < count) {
            const auto row = by_size[drawn.size()];
            if (measure(row) * static_cast<double>(count - std::ssize(drawn)) < sum) break;
            sum -= measure(row);
            drawn.push_back(row);
        }
        std::vector<bool> is_taken(size_);
        for (const auto row : drawn) is_taken[row] = true;
        const auto distance = sum / static_cast<double>(std::max<std::int64_t>(1, count - std::ssize(drawn)));
        auto point = uniform * distance;
        double before = 0;
        for (std::int64_t row = 0; row < size_ && std::ssize(drawn) < count; ++row) {
            if (is_taken[row]) continue;
            before += measure(row);
            if (!(point < before)) continue;
            is_taken[row] = true;
            drawn.push_back(row);
            point += distance;
        }
        // Rounding may let the last point lie behind all rows.
        for (const auto row : by_size) {
            if (std::ssize(drawn) == count) break;
            if (!is_taken[row]) drawn.push_back(row);
        }
        std::ranges::sort(drawn);
        return drawn;
    }

    std::int64_t size_;
    std::span<const float> measures_;
    const BlockMeasures& sums_;
};

/// Adds the offsets, in the order in which they were met, as ranges of places. Where they go over the block's end they
/// make two ranges, otherwise one.
void add_ranges(const std::vector<std::int64_t>& offsets, std::int64_t first_place, std::vector<PlaceRange>& ranges)
{
    for (std::size_t begin = 0; begin < offsets.size();) {
        auto end = begin + 1;
        while (end < offsets.size() && offsets[end] > offsets[end - 1]) ++end;
        ranges.push_back({first_place + offsets[begin], offsets[end - 1] - offsets[begin] + 1});
        begin = end;
    }
}

}  // namespace

double BlockMeasures::sum() const
{
    return std::accumulate(sums.begin(), sums.end(), 0.0);
}

std::vector<BlockMeasures> block_measures(const StoredOrder& order, std::span<const float> measures)
{
    std::vector<BlockMeasures> blocks;
    for (std::int64_t block = 0; block < order.num_blocks(); ++block) {
        const auto first = order.begin_of(block), size = order.begin_of(block + 1) - first;
        auto& sums = blocks.emplace_back();
        for (std::int64_t chunk = 0; chunk < BlockMeasures::kChunks; ++chunk) {
            for (auto i = size * chunk / BlockMeasures::kChunks; i < size * (chunk + 1) / BlockMeasures::kChunks; ++i) {
                const auto measure = static_cast<double>(measures[first + i]);
                sums.sums[chunk] += measure;
                sums.largest = std::max(sums.largest, measure);
                sums.num_positive += measure > 0;
            }
        }
    }
    return blocks;
}

DrawnRows drawn_by_measure(const StoredOrder& order, std::span<const BlockMeasures> blocks,
                           std::span<const float> measures, std::int64_t count, std::int64_t seed,
                           const std::string& case_id, std::int64_t epoch)
{
    std::int64_t num_positive = 0;
    for (const auto& block : blocks) num_positive += block.num_positive;
    if (num_positive < count) {
        throw InvalidInput("case {}: {} points have an area, and data.sampling_resolution is {}. Lower it, "
                           "or set data.sampling=uniform.",
                           case_id, num_positive, count);
    }
    const auto key = mixed_numbers(xxh64_of_text(case_id), seed, epoch);
    const auto quotas = quotas_of(blocks, count, uniform_of(mixed_numbers(key, kQuotasOfBlocks)));
    DrawnRows drawn;
    for (std::int64_t b = 0; b < order.num_blocks(); ++b) {
        const auto quota = quotas[b];
        if (quota == 0) continue;
        const auto first = order.begin_of(b), size = order.begin_of(b + 1) - first;
        const BlockDraw draw(measures.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(size)),
                             blocks[b]);
        const auto offsets = draw.rows(quota, uniform_of(mixed_numbers(key, kStartInBlock, b)));
        add_ranges(offsets, first, drawn.ranges);
        const auto rows = order.ids_of(b, offsets);
        append(drawn.ids, rows);
    }
    std::ranges::sort(drawn.ids);
    return drawn;
}

}  // namespace meshard
