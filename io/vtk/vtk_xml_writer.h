// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/io_options.h"
#include "partition/mesh/mesh.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Declares an array in a file, or in the index of a parallel one: the attributes type, name and components, each after
/// a blank.
std::string vtk_declaration(const DataArray& array);

/// Numbers of vertices, lines, polygons and strips of a surface, whose cells are in this order in `.vtp`.
/// @throws InvalidInput for cells of other types, or in another order
std::array<std::int64_t, 4> polydata_counts(const Mesh& mesh);

/// Writes `mesh` as VTK XML with appended raw data: an unstructured grid, or polygonal data for `MeshKind::Surface`.
/// Connectivity and offsets are Int64, sizes UInt64; uncompressed arrays begin at multiples of 8 bytes so that they can
/// be mapped. Cells of a surface must be in VTK's order. Atomic. @throws InvalidInput, IoError
void write_vtk_xml(const std::filesystem::path& path, const Mesh& mesh, MeshKind kind, const WriteOptions& options);

/// Writes the index of a data set in pieces: `PUnstructuredGrid` or `PPolyData`. `like` has the arrays that all pieces
/// have, `sources` are the pieces' paths relative to the index, `hashes` those of their bytes (`hash_file`). With
/// hashes the number of pieces is written, too; `read_vtk_parallel` compares both, and other programs ignore them.
/// @throws IoError
void write_vtk_index(const std::filesystem::path& path, const Mesh& like, std::span<const std::string> sources,
                     std::int32_t num_ghost_layers, std::span<const std::string> hashes = {});

/// Writes `pieces` as `<stem>_0000.vtu`, ... beside the index `path` (.pvtu or .pvtp), which is written last: on
/// failure nothing is left, and a killed run leaves no index. All pieces must have the same arrays.
/// @return the files that were written. @throws InvalidInput, IoError
std::vector<std::filesystem::path> write_vtk_parallel(const std::filesystem::path& path, std::span<const Mesh> pieces,
                                                      std::int32_t num_ghost_layers, const WriteOptions& options);

}  // namespace meshard
