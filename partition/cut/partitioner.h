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

/// Rows to cut. The graph and arrays must outlive it.
struct PartitionProblem {
    const Csr* graph = nullptr;             ///< neighbours of each row (`mesh_graph`)
    std::span<const float> centroids = {};  ///< (rows, 3), for methods that use coordinates; may be empty for others
    std::int32_t num_parts = 1;
    BalanceTarget balance = {};
    std::uint64_t seed = 0;
    /// For each entry of the graph the positive cost of cutting it; or empty.
    std::span<const std::int32_t> edge_weights = {};
};

/// A partitioning method. The result has the problem's numbers of rows and parts; parts may be above the bound or
/// empty, which `refine_partition` repairs.
using Partitioner = std::function<Partition(const PartitionProblem&)>;

struct PartitionMethod {
    std::string name;
    std::string purpose;  ///< one line for users
    bool needs_centroids = false;
    bool refine = true;  ///< whether the cut is refined by default
    Partitioner partition;
};

/// The methods by name:
///
/// | name      | method                                                                                   |
/// | --------- | ---------------------------------------------------------------------------------------- |
/// | metis     | METIS's k-way                                                                            |
/// | recursive | METIS's recursive bisection                                                              |
/// | scotch    | Scotch with 64-bit indices                                                               |
/// | rcb       | recursive coordinate bisection                                                           |
/// | hilbert   | runs along the Hilbert curve                                                             |
/// | auto      | the better of metis and rcb after refinement; scotch if the graph is too large for METIS |
std::span<const PartitionMethod> partition_methods();

/// @throws InvalidInput for an unknown name, with the nearest known one.
const PartitionMethod& partition_method(std::string_view name);

struct CutOptions {
    std::string method = "metis";
    /// E.g. {4, 2}: first into 4 parts, each of these into 2; empty, or the product is the number of parts.
    std::vector<std::int32_t> levels = {};
    bool refine = true;
    RefinementEffort effort = RefinementEffort::Fast;
    double ghost_share = 0.35;  ///< as in RefinementOptions
    bool contiguous = false;
};

struct CutResult {
    Partition partition;
    std::string method;                   ///< the method used; with `auto` the one chosen
    std::vector<std::int32_t> in_pieces;  ///< with `contiguous`: parts that could not be made connected
};

/// Cuts by the method of that name, and refines with `options.refine`. No part is above the bound or empty if a cut
/// without such parts is found.
///
/// After refinement neither the cut nor the largest ghost count is above that of the method's own start (for `auto`:
/// METIS's; for `metis` perhaps METIS's on merged rows), unless the start had to be made connected. With
/// `RefinementEffort::Thorough` there are several starts, the best of which is refined. A graph beyond METIS's 32 bits
/// is cut by Scotch. The same problem and options give the same result. With edge weights, as in a graph of clusters,
/// methods minimise their sum, and the result is repaired (`repair_partition`) but not refined: searches do not use
/// edge weights.
/// @throws InvalidInput if the problem lacks what the method needs, or the levels do not multiply to the number of
/// parts.
CutResult cut_rows(const PartitionProblem& problem, const CutOptions& options);

/// `cut_rows` from a given partition (of a file, or an earlier run) instead of a method.
CutResult improve_cut(Partition start, const PartitionProblem& problem, const CutOptions& options);

}  // namespace meshard
