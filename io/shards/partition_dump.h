// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// Parses a list of dump kinds such as `metis,foam`. @throws InvalidInput naming an unknown one.
std::vector<std::string> parse_dump_kinds(std::string_view list);

/// Writes a cut for other programs, row after row, so that no process needs all rows. For `metis`: `mesh.graph` and
/// `mesh.graph.part.<num_parts>`, as METIS, KaHIP and others read them (a line `vertices edges`, then for each vertex
/// its neighbours, numbered from 1; the part of each vertex on a line of its own). For `foam`: `cellDecomposition` and
/// a `decomposeParDict` that refers to it, as OpenFOAM's `decomposePar` reads them with `method manual` if the former
/// is in the case's `constant` folder.
class PartitionDump {
public:
    /// @param num_entries   of the graph, which is symmetric. @throws InvalidInput for an unknown kind, IoError
    PartitionDump(const std::filesystem::path& folder, std::span<const std::string> kinds, std::int64_t num_rows,
                  std::int64_t num_entries, std::int32_t num_parts);
    ~PartitionDump();

    /// Returns whether one of the kinds needs the graph besides the owners.
    static bool needs_graph(std::span<const std::string> kinds);

    /// Adds the next rows: their neighbours by number in the whole (for kinds that need them), and their owners.
    void add(const Csr& neighbors, std::span<const std::int32_t> owners);

    /// Called after the last row: writes all files and returns their names. @throws IoError
    std::vector<std::filesystem::path> commit();

private:
    class TextOutput;

    std::unique_ptr<TextOutput> begin(const std::string& name);

    std::filesystem::path folder_;
    std::int32_t num_parts_;
    std::unique_ptr<TextOutput> graph_, parts_, decomposition_;  // null if not requested
    std::vector<std::filesystem::path> written_;
};

/// Dumps a cut in memory. @throws as PartitionDump
std::vector<std::filesystem::path> dump_partition(const std::filesystem::path& folder,
                                                  std::span<const std::string> kinds, const Csr& graph,
                                                  std::span<const std::int32_t> owners, std::int32_t num_parts);

}  // namespace meshard
