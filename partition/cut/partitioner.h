// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/cut/partition.h"
#include "partition/cut/refinement.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// Rows to cut. The caller keeps the graph and arrays alive.
struct PartitionProblem {
    const Csr* graph = nullptr;             ///< neighbours of each row (`mesh_graph`)
    std::span<const float> centroids = {};  ///< (rows, 3), for the methods that go by coordinates; may be empty for the others
    std::int32_t num_parts = 1;
    BalanceTarget balance = {};
    std::uint64_t seed = 0;
    std::span<const std::int32_t> edge_weights = {};  ///< of each entry of the graph, positive, or none: what cutting it costs
};

/// A method: any function of this form. The result has the problem's number of rows and of parts; parts may be above the
/// bound or empty, which `refine_partition` repairs.
using Partitioner = std::function<Partition(const PartitionProblem&)>;

struct PartitionMethod {
    std::string name;
    std::string purpose;  ///< one line for people
    bool needs_centroids = false;
    bool refine = true;  ///< whether the cut is refined by default
    Partitioner partition;
};

/// The methods that go by name:
///
/// | name      | what                                                                                                   |
/// | --------- | ------------------------------------------------------------------------------------------------------ |
/// | metis     | METIS's k-way                                                                                          |
/// | recursive | METIS's recursive bisection                                                                            |
/// | scotch    | Scotch with 64-bit indices                                                                             |
/// | rcb       | recursive coordinate bisection                                                                         |
/// | hilbert   | runs along the Hilbert curve                                                                           |
/// | auto      | metis and rcb, and keeps the better after refinement; scotch if the graph is too large for METIS        |
std::span<const PartitionMethod> partition_methods();

/// @throws InvalidInput for an unknown name, with the nearest known one.
const PartitionMethod& partition_method(std::string_view name);

struct CutOptions {
    std::string method = "metis";
    std::vector<std::int32_t> levels = {};  ///< e.g. {4, 2}: first in 4, each of these in 2; empty or the product is the number of parts
    bool refine = true;
    RefinementEffort effort = RefinementEffort::Fast;
    double ghost_share = 0.35;  ///< as in RefinementOptions
    bool contiguous = false;
};

struct CutResult {
    Partition partition;
    std::string method;                   ///< the method used; with `auto` the one chosen
    std::vector<std::int32_t> in_pieces;  ///< with `contiguous`: parts that are not connected all the same
};

/// Cuts by the method of that name, and refines with `options.refine`. No part is above the bound or empty if a cut without such parts is found.
///
/// Refined, neither the cut nor the largest ghost count is above that of the method's own start (of `auto`: METIS's; of `metis` perhaps METIS's on joined
/// rows), unless that had to be made whole. With `RefinementEffort::Thorough` there are several starts, of which the best goes on. A graph beyond METIS's 32
/// bits goes to Scotch. Same problem and options, same result. With edge weights, as in a graph of clusters, methods minimise their sum, and the result is
/// repaired (`repair_partition`) but not refined: searches do not know edge weights.
/// @throws InvalidInput if the problem lacks what the method needs, or the levels do not multiply to the number of parts.
CutResult cut_rows(const PartitionProblem& problem, const CutOptions& options);

/// The same from a given partition (of a file, of an earlier run).
CutResult improve_cut(Partition start, const PartitionProblem& problem, const CutOptions& options);

}  // namespace meshard
