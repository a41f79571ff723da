// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "io/mesh_io.h"
#include "partition/mesh.h"

namespace meshard {

/// Writes `mesh` as VTK XML with appended raw data: an unstructured grid, or polygonal data for `MeshKind::Surface`.
/// Connectivity and offsets are Int64, sizes UInt64; uncompressed arrays begin at multiples of 8 bytes so that they can be
/// mapped. Cells of a surface must be in VTK's order. Atomic. @throws InvalidInput, IoError
void write_vtk_xml(const std::filesystem::path& path, const Mesh& mesh, MeshKind kind, const WriteOptions& options);

/// Writes the index of a data set in pieces: `PUnstructuredGrid` or `PPolyData`. `like` has the arrays that all pieces have,
/// `sources` are the pieces' paths relative to the index. @throws IoError
void write_vtk_index(const std::filesystem::path& path, const Mesh& like, std::span<const std::string> sources,
                     std::int32_t num_ghost_layers);

}  // namespace meshard
