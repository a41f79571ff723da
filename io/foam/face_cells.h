// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// Cells in VTK's form, made from faces.
struct FaceCells {
    Csr cells;  ///< points of each cell in VTK's order; of a polyhedron in order of first use
    std::vector<std::uint8_t> types;
    Csr face_streams;  ///< as in Mesh; faces turned outwards; no rows if there is no polyhedron
};

/// Makes cells from faces in the form of OpenFOAM and CGNS: `faces` with their points, the `owner` of each face, and
/// the `neighbour` of the first `neighbour.size()` of them. A face's points are counter-clockwise seen from outside its
/// owner.
///
/// Cells of four triangles become tetrahedra, of a quad and four triangles pyramids, of two triangles and three quads
/// wedges, of six quads hexahedra, if they fit together as such; all others polyhedra.
/// @pre owner and neighbour are in [0, num_cells), neighbour.size() <= owner.size() == faces.num_rows().
FaceCells cells_from_faces(const Csr& faces, std::span<const std::int32_t> owner,
                           std::span<const std::int32_t> neighbour, std::int64_t num_cells);

}  // namespace meshard
