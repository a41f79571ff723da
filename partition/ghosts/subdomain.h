// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/cut/partition.h"
#include "partition/ghosts/ghost_layer.h"
#include "partition/ghosts/index_map.h"
#include "partition/mesh/mesh.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// One part's geometry: its owned cells and points, and its ghosts.
///
/// The partition cuts cells (of a cloud: points). A point of a mesh belongs to the part of the first cell, in the
/// source's order, that uses it; a point that no cell uses belongs to part 0. Local points are those of the local
/// cells, plus the owned ones; owned first, ghosts after, as for cells.
struct Subdomain {
    std::int32_t part = 0;
    std::int32_t num_parts = 1;
    std::int32_t num_ghost_layers = 0;
    Mesh mesh;       ///< local rows only
    IndexMap cells;  ///< empty for a cloud
    IndexMap points;
    /// For each local cell (of a cloud: point) 0 if owned, k if in the k-th ghost layer.
    std::vector<std::uint8_t> ghost_levels;

    /// Numbering of the rows that are cut: cells, or the points of a cloud.
    const IndexMap& rows() const { return cells.num_global == 0 ? points : cells; }

    void validate() const;  ///< @throws InvalidInput
};

/// The owner of each point of `mesh` by the rule of Subdomain; for a cloud the partition's owners.
std::vector<std::int32_t> point_owners(const Mesh& mesh, const Partition& partition);

/// Extracts every part. `graph` is the neighbour graph of the rows (`mesh_graph`); without ghost layers it may be
/// empty. Memory: the source and all parts.
/// @throws InvalidInput if sizes disagree.
std::vector<Subdomain> extract_subdomains(const Mesh& mesh, const Csr& graph, const Partition& partition,
                                          std::int32_t num_ghost_layers);

/// `extract_subdomains` with given ghosts (`ghost_layers`), one entry for each part.
std::vector<Subdomain> extract_subdomains(const Mesh& mesh, const Partition& partition,
                                          std::span<const GhostLayer> ghosts, std::int32_t num_ghost_layers);

/// Extracts one part after the other, for callers that need not hold all parts at once.
class SubdomainCutter {
public:
    /// Keeps references to the mesh and the partition, which must outlive it. @throws InvalidInput if sizes disagree.
    SubdomainCutter(const Mesh& mesh, const Partition& partition, std::int32_t num_ghost_layers);

    /// Extracts part `part` with these ghosts. `local_index` is a buffer that the calls of one thread share, empty at
    /// first; each thread needs its own.
    Subdomain cut(std::int32_t part, const GhostLayer& ghosts, std::vector<std::int32_t>& local_index) const;

private:
    std::vector<std::int32_t> local_rows(std::span<const std::int32_t> owned, const GhostLayer& ghosts,
                                         std::vector<std::uint8_t>& levels) const;
    std::vector<std::int32_t> local_points(std::span<const std::int32_t> owned, std::span<const std::int32_t> cells,
                                           std::vector<std::int32_t>& local_index) const;

    const Mesh& mesh_;
    const Partition& partition_;
    std::int32_t num_ghost_layers_;
    Csr rows_of_part_;
    Partition point_partition_;
    Csr points_of_part_;
};

/// Extracts one part only.
Subdomain extract_subdomain(const Mesh& mesh, const Csr& graph, const Partition& partition, std::int32_t part,
                            std::int32_t num_ghost_layers);

/// Puts the owned rows of all parts back in the source's order: the inverse of `extract_subdomains`.
/// @throws InvalidInput if a cell or point is owned by no part or by two.
Mesh merge_subdomains(std::span<const Subdomain> subdomains);

/// One line, e.g. `Subdomain 1 of 4: 1187 owned + 240 ghost cells, 1301 + 260 points`.
std::string to_string(const Subdomain& subdomain);

}  // namespace meshard
