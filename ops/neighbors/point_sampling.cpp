// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/point_sampling.h"

#include "ops/rows/cut_rows.h"
#include "partition/error.h"
#include "partition/random_numbers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <vector>

namespace meshard {
namespace {

/// A random number for each id, all different.
class IdNumbers {
public:
    explicit IdNumbers(std::uint64_t seed) : start_(RandomNumbers(seed).next()) {}
    std::uint64_t operator()(std::int64_t id) const
    {
        return RandomNumbers(start_ + 0x9e3779b97f4a7c15u * static_cast<std::uint64_t>(id)).next();
    }

private:
    std::uint64_t start_;
};

/// The `count`-th smallest (from 1) of all ranks' numbers, by a radix search with one all-reduce for every eight bits.
std::uint64_t nth_smallest(const std::vector<std::uint64_t>& numbers, std::int64_t count, const RankGroup& group)
{
    std::uint64_t found = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        auto counts = at::zeros({256}, at::kLong);
        auto* bucket = counts.mutable_data_ptr<std::int64_t>();
        for (const auto number : numbers) {
            const bool is_candidate = shift == 56 || number >> (shift + 8) == found >> (shift + 8);
            if (is_candidate) ++bucket[number >> shift & 255];
        }
        group.all_reduce(counts);
        bucket = counts.mutable_data_ptr<std::int64_t>();
        std::uint64_t digit = 0;
        while (bucket[digit] < count) count -= bucket[digit++];
        found |= digit << shift;
    }
    return found;
}

}  // namespace

PointSample random_sample(const at::Tensor& points, std::int64_t count, std::uint64_t seed)
{
    const auto part = cut_rows_of("random_sample", "points", points);
    const auto group = part.group();
    const auto num_rows = points.dim() > 0 ? points.size(0) : 0;
    std::string error;
    if (points.dim() == 0)
        error = "random_sample: the points are a single number; expected rows.";
    else if (count < 0 || count > num_rows)
        error = "random_sample: " + std::to_string(count) + " rows are asked for, there are " +
                std::to_string(num_rows) + ".";
    throw_together(error, group);
    const auto all = group.all_gather_integers(std::vector{count, static_cast<std::int64_t>(seed)});
    if (std::ranges::any_of(all, [&](const auto& of_rank) { return of_rank != all[0]; }))
        throw InvalidInput(
            "random_sample: ranks pass different arguments. Call it with the same numbers and seed on every rank.");

    const IdNumbers number_of(seed);
    const auto own_ids = part.ids();
    std::vector<std::uint64_t> numbers;
    for (const auto id : own_ids) numbers.push_back(number_of(id));
    std::vector<std::int64_t> rows, ids;
    if (count > 0) {
        const auto largest = nth_smallest(numbers, count, group);
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            if (numbers[i] <= largest) rows.push_back(static_cast<std::int64_t>(i));
        }
    }
    std::ranges::sort(rows, [&](auto a, auto b) { return own_ids[a] < own_ids[b]; });
    for (const auto row : rows) ids.push_back(own_ids[row]);
    const auto device = part.own.device();
    return {at::tensor(rows, at::kLong).to(device), at::tensor(ids, at::kLong).to(device)};
}

}  // namespace meshard
