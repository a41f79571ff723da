// SPDX-License-Identifier: Apache-2.0
#include "partition/csr.h"

#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

namespace meshard {

void Csr::validate(std::int64_t num_columns) const
{
    if (offsets.empty()) throw InvalidInput("Csr: offsets are empty; even without rows they hold one 0.");
    if (offsets.front() != 0) throw InvalidInput("Csr: offsets start at {}, expected 0.", offsets.front());
    for (std::int64_t i = 0; i < num_rows(); ++i)
        if (offsets[i + 1] < offsets[i])
            throw InvalidInput("Csr: offsets fall from {} to {} at row {}.", offsets[i], offsets[i + 1], i);
    if (offsets.back() != num_entries())
        throw InvalidInput("Csr: offsets end at {}, but there are {} indices.", offsets.back(), num_entries());
    const auto outside = std::ranges::find_if(indices, [&](std::int32_t i) { return i < 0 || i >= num_columns; });
    if (outside != indices.end()) {
        const auto entry = outside - indices.begin();
        const auto row = std::ranges::upper_bound(offsets, entry) - offsets.begin() - 1;
        throw InvalidInput("Csr: row {} holds index {}, expected 0 to {}.", row, *outside, num_columns - 1);
    }
}

Csr rows_by_label(std::span<const std::int32_t> labels, std::int32_t num_labels)
{
    Csr rows;
    rows.offsets.assign(static_cast<std::size_t>(num_labels) + 1, 0);
    for (const auto label : labels) ++rows.offsets[label + 1];
    std::partial_sum(rows.offsets.begin(), rows.offsets.end(), rows.offsets.begin());
    rows.indices.resize(labels.size());
    std::vector<std::int64_t> next(rows.offsets.begin(), rows.offsets.end() - 1);
    for (std::size_t i = 0; i < labels.size(); ++i) rows.indices[next[labels[i]]++] = static_cast<std::int32_t>(i);
    return rows;
}

std::string to_string(const Csr& csr)
{
    return fmt::format("Csr: {} rows, {} entries", csr.num_rows(), csr.num_entries());
}

}  // namespace meshard
