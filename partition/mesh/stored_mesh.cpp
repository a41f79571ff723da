// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/stored_mesh.h"

#include "partition/lists.h"
#include "partition/mesh/cell_type.h"

#include <utility>

namespace meshard {

HeldMesh::HeldMesh(Mesh mesh)
    : rest_(std::move(mesh)), cells_(std::exchange(rest_.cells, {})),
      face_streams_(std::exchange(rest_.face_streams, {})), cell_types_(std::exchange(rest_.cell_types, {}))
{
}

Mesh HeldMesh::cells(std::span<const std::int32_t> cells) const
{
    Mesh mesh;
    mesh.kind = rest_.kind;
    mesh.points = rest_.points;
    mesh.cell_types.reserve(cells.size());
    for (const auto cell : cells) {
        mesh.cells.push_row(cells_.row(cell));
        mesh.cell_types.push_back(cell_types_[cell]);
    }
    if (face_streams_.num_rows() == 0 || !contains(mesh.cell_types, kPolyhedron)) return mesh;
    for (const auto cell : cells) mesh.face_streams.push_row(face_streams_.row(cell));
    return mesh;
}

}  // namespace meshard
