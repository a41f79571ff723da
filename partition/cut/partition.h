// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// The owner (part) of each row (cell of a mesh, point of a cloud).
///
/// Invariant: every owner is in [0, num_parts). A part may be empty.
struct Partition {
    std::int32_t num_parts = 1;
    std::vector<std::int32_t> owners;

    std::int64_t num_rows() const { return static_cast<std::int64_t>(owners.size()); }

    void validate() const;  ///< @throws InvalidInput
    /// @throws InvalidInput, also if the graph has other rows.
    void validate(const char* where, std::int64_t graph_rows) const;

    bool operator==(const Partition&) const = default;
};

/// @throws InvalidInput that names `where` if there is no part.
void require_parts(const char* where, std::int64_t num_parts);

std::vector<std::int64_t> part_sizes(const Partition& partition);

/// Row p lists the rows that part p owns, ascending. @throws InvalidInput if the partition is not valid.
Csr rows_by_part(const Partition& partition);

/// The ratio of the largest part to the mean; 1 is perfect, and the value if there are no rows.
double imbalance(const Partition& partition);

/// Edges of `graph` between rows of different parts, each counted once.
std::int64_t edge_cut(const Partition& partition, const Csr& graph);

/// Number of ghosts of one layer, summed over parts (METIS: communication volume).
std::int64_t communication_volume(const Partition& partition, const Csr& graph);

/// Quality of one part.
struct PartQuality {
    std::int64_t num_owned = 0;
    std::int64_t num_ghosts = 0;               ///< number of rows in one ghost layer
    std::int64_t cut_edges = 0;                ///< number of edges from this part to others
    std::vector<std::int32_t> neighbors;       ///< parts that share an edge with this one, ascending
    std::vector<std::int64_t> neighbor_edges;  ///< number of edges to each of them: shared faces, for a cell graph
    std::int64_t num_components = 0;           ///< connected pieces of the part; 0 if empty
};

struct PartitionQuality {
    std::int64_t edge_cut = 0;
    std::int64_t communication_volume = 0;
    double imbalance = 1.0;
    std::vector<PartQuality> parts;
};

/// Measures the partition of a symmetric graph.
PartitionQuality measure_quality(const Partition& partition, const Csr& graph);

/// One line, e.g. `Partition: 353525 rows in 8 parts of 43800 to 44400, imbalance 1.005`.
std::string to_string(const Partition& partition);

}  // namespace meshard
