// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// One part's numbering of rows (cells or points): **owned first, ghosts after**.
///
///     local row   0 ............ num_owned-1 | num_owned .......... num_local-1
///                 owned, mine to compute     | ghosts, copies from part a, then b, ...
///
/// Owned rows are sorted by global id, ghosts by (owner, global id). Over all parts the owned rows are all rows, each
/// once; no ghost is owned here.
///
/// Example: 7 cells in a row, parts 0 0 1 1 1 0 2, one ghost layer. Part 1 owns cells 2 3 4; its ghosts are 1 and 5,
/// both owned by part 0: global_ids = 2 3 4 | 1 5, num_owned = 3, ghost_owners = 0 0.
struct IndexMap {
    std::int64_t num_global = 0;
    std::int32_t num_owned = 0;
    std::vector<std::int64_t> global_ids;    ///< global id of each local row
    std::vector<std::int32_t> ghost_owners;  ///< the part that owns each ghost

    std::int32_t num_local() const { return static_cast<std::int32_t>(global_ids.size()); }
    std::int32_t num_ghosts() const { return num_local() - num_owned; }
    std::span<const std::int64_t> owned() const { return {global_ids.data(), static_cast<std::size_t>(num_owned)}; }
    std::span<const std::int64_t> ghosts() const { return std::span(global_ids).subspan(num_owned); }

    /// Local row of a global id, or -1 if this part does not hold it. Binary search.
    std::int32_t local_row(std::int64_t global_id) const;

    /// @param part   the part that has this map  @throws InvalidInput naming the first invariant that does not hold
    void validate(std::int32_t part) const;

    bool operator==(const IndexMap&) const = default;
};

/// One line, e.g. `IndexMap: 1187 owned + 240 ghosts from parts 1, 3`.
std::string to_string(const IndexMap& index_map);

}  // namespace meshard
