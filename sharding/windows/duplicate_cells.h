// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"
#include "partition/mesh/mesh_faults.h"
#include "sharding/messages/rank_messages.h"

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// Finds cells of the same type with the same points in a mesh that is read window by window. Cells that occur in
/// several windows have only points that several windows use, so that few cells must be compared across windows.
class DuplicateCells {
public:
    explicit DuplicateCells(RankMessages& messages) : messages_(messages) {}

    /// Adds a window of this rank.
    /// @param ids         number of each cell in the file
    /// @param is_shared   for each point, whether cells of several windows use it
    void add_window(std::int32_t window, const Mesh& cells, std::span<const std::int32_t> ids,
                    const std::vector<bool>& is_shared);

    /// Sends cells to the ranks that compare them; to be called after some windows. Collective.
    void send();

    /// Adds to `faults` the number of cells that repeat an earlier one, and the first of them. To be called after all
    /// windows. Over all ranks each is counted once.
    void count(MeshFaults& faults);

private:
    struct Hashed {
        std::uint64_t hash;
        std::int32_t id, window;

        auto operator<=>(const Hashed&) const = default;
    };

    void note(std::int64_t number, std::int32_t first);

    RankMessages& messages_;
    std::vector<Hashed> waiting_;  // cells to be sent
    std::vector<Hashed> shared_;   // cells that this rank compares
    std::int64_t number_ = 0, first_ = -1;
};

}  // namespace meshard
