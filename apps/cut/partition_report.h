// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/cut/partition.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

struct RowCounts {
    std::int64_t owned = 0;
    std::int64_t ghosts = 0;
};

/// The report of a finished cut.
struct PartitionReport {
    std::string source;
    std::string output;  ///< empty for a dry run
    std::string method;  ///< the method that was used
    std::int32_t num_parts = 0;
    std::int32_t ghost_layers = 0;
    std::string ghost_neighbors;
    std::int32_t seed = 0;
    double imbalance_allowed = 1;
    std::int64_t num_cells = 0;
    std::int64_t num_points = 0;
    PartitionQuality quality;
    std::vector<std::pair<std::string, double>> imbalances;  ///< for each weight the largest part divided by its share
    bool is_above_bound = false;                             ///< whether a part has more of a weight than is allowed
    std::vector<std::int32_t> in_pieces;                     ///< parts that are not connected, with --contiguous
    std::vector<RowCounts> cells;                            ///< one for each part
    std::vector<RowCounts> points;
    std::vector<std::int64_t> bytes;        ///< size of each piece on disk; empty after a dry run
    std::vector<std::int64_t> ghost_bytes;  ///< bytes that each part receives in one exchange of all fields
    std::string index_file;                 ///< the file to open in ParaView
    std::vector<std::pair<std::string, double>> seconds;
    std::vector<std::uint64_t> stage_peaks;  ///< peak memory of the process at the end of each stage
    std::uint64_t peak_bytes = 0;

    bool is_cloud() const { return num_cells == 0; }
};

void print_as_json(const PartitionReport& report);
void print_as_text(const PartitionReport& report);

/// Writes a heading and one line for each part. @throws IoError
void write_as_csv(const PartitionReport& report, const std::filesystem::path& file);

}  // namespace meshard
