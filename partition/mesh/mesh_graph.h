// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/error.h"
#include "partition/mesh/mesh.h"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Error about a cell that cannot be used. Code that processes a part of a mesh replaces the cell's local number by
/// that in the whole mesh (`with_number`).
class BadCell : public InvalidInput {
public:
    BadCell(std::string before, std::int64_t cell, std::string after)
        : InvalidInput(before + std::to_string(cell) + after), before_(std::move(before)), after_(std::move(after)),
          cell_(cell)
    {
    }

    std::int64_t cell() const { return cell_; }
    BadCell with_number(std::int64_t cell) const { return {before_, cell, after_}; }

private:
    std::string before_, after_;
    std::int64_t cell_;
};

/// At a facet with up to so many cells all of them are neighbours of one another; see `cell_graph` for facets with
/// more.
constexpr std::int32_t most_mutual_cells = 64;

/// Facets with more than two cells that `cell_graph` has found.
struct FacetCrowds {
    std::int32_t first_cell = -1;  ///< first cell with a non-manifold facet (a face of three solids or more, an edge of
                                   ///< three polygons or more), or -1
    std::int32_t most_cells = 0;   ///< largest number of cells at a facet, or 0 if none has more than two

    /// Records a facet with three cells or more: the first three with their types, and their number.
    void add(const std::array<std::int32_t, 3>& first_cells, const std::array<std::uint8_t, 3>& types,
             std::int32_t num_cells);

    bool operator==(const FacetCrowds&) const = default;
};

/// Cells that share a face (solids), an edge (polygons), an end point (lines) or a point (vertices): the dual graph.
///
/// Two cells are neighbours when they have one such facet with the same set of points, whatever its order. A facet of
/// three or more cells joins all of them; of more than `most_mutual_cells` it joins the first ones, by number, with one
/// another and each further cell with the one before it, so that a point at which 100,000 lines end has 100,000 edges
/// and not 5,000,000,000. Works for every VTK cell type, polyhedra and higher-order cells (by their corners) included;
/// mixed dimensions meet where a facet of the higher one is the lower one itself (a wall polygon and its solid).
/// Symmetric, no loops, no double edges, each row ascending.
///
/// The ends of a poly-line are those of the whole line; a strip has the edges of all its triangles; a convex point set
/// has the faces of its hull. A face with fewer than three different points, or an edge with one, is no facet. Time and
/// memory are proportional to the number of facets: 0.3 s and 40 bytes a facet for a million hexahedra.
/// @throws BadCell for a cell whose faces are not defined: an unknown or parametric type, too few points, no face
/// stream.
Csr cell_graph(const Mesh& mesh, FacetCrowds* crowds = nullptr);

/// Whether there are cells of dimension 1, 2 and 3.
using CellDimensions = std::array<bool, 4>;

CellDimensions dimensions_of(std::span<const std::uint8_t> cell_types);

/// `cell_graph` for a part of a mesh; `dimensions` are those of the whole mesh. Facets whose points are all in
/// `without`, if given, are left out.
Csr cell_graph(const Mesh& mesh, const CellDimensions& dimensions, const std::vector<bool>* without,
               FacetCrowds* crowds = nullptr);

/// A facet with a key by which parts of a mesh compare facets: its points in ascending order, padded with -1; with more
/// than four points (-number of points, and 96 bits of hashes).
struct SharedFacet {
    std::array<std::int32_t, 4> key;
    std::int32_t cell;

    auto operator<=>(const SharedFacet&) const = default;
};

/// The facets whose points are all marked: those that cells outside of this part of a mesh may share.
std::vector<SharedFacet> facets_of_marked_points(const Mesh& mesh, const CellDimensions& dimensions,
                                                 const std::vector<bool>& marks);

/// The pairs of neighbours, lower first, at one facet with these cells, which must ascend.
std::vector<std::pair<std::int32_t, std::int32_t>> cells_joined_by(std::span<const SharedFacet> cells);

/// Adds edges to a graph: `edges` (row, neighbour) ascend; numbers in them start with `first`, which is also the number
/// of neighbour 0 of `graph`.
Csr with_edges(const Csr& graph, std::int32_t first, std::span<const std::pair<std::int32_t, std::int32_t>> edges);

/// `cell_graph` computed by several threads, each for a run of the cells; facets that runs share are matched at the
/// end. The same graph; fast if neighbours have near numbers. Memory: one more copy of the cells.
Csr cell_graph_on_threads(const Mesh& mesh, std::int32_t num_threads, FacetCrowds* crowds = nullptr);

/// The graph of the rows that a partition cuts: `cell_graph`, or for a point cloud (and for a mesh of vertex cells
/// only) the symmetric graph of the 8 nearest neighbours.
Csr mesh_graph(const Mesh& mesh, std::int32_t num_threads = 1, FacetCrowds* crowds = nullptr);

}  // namespace meshard
