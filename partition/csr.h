// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Rows of different lengths, concatenated: the only ragged array type (graphs, cells, neighbour lists, send lists).
///
/// Row i is `indices[offsets[i]] .. indices[offsets[i + 1] - 1]`. Invariants: offsets start at 0, never decrease, and
/// end at `indices.size()`. Offsets are 64-bit because they count entries; indices are 32-bit because they number local
/// rows.
struct Csr {
    std::vector<std::int64_t> offsets{0};
    std::vector<std::int32_t> indices;

    std::int64_t num_rows() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
    std::int64_t num_entries() const { return static_cast<std::int64_t>(indices.size()); }

    std::span<const std::int32_t> row(std::int64_t i) const
    {
        return {indices.data() + offsets[i], static_cast<std::size_t>(offsets[i + 1] - offsets[i])};
    }

    void push_row(std::span<const std::int32_t> entries)
    {
        indices.insert(indices.end(), entries.begin(), entries.end());
        offsets.push_back(static_cast<std::int64_t>(indices.size()));
    }

    bool operator==(const Csr&) const = default;

    /// @throws InvalidInput if an invariant does not hold, or if an index is outside [0, num_columns).
    void validate(std::int64_t num_columns) const;
};

/// Groups items by label: row `label` lists the i with `labels[i] == label`, ascending. Labels must be in [0,
/// num_labels).
Csr rows_by_label(std::span<const std::int32_t> labels, std::int32_t num_labels);

/// One line, e.g. `Csr: 353525 rows, 2044018 entries`.
std::string to_string(const Csr& csr);

}  // namespace meshard
