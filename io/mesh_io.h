// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "partition/mesh.h"

namespace meshard {

struct WriteOptions {
    bool compress = false;      ///< zlib; off so that a reader can map the file instead of copying it
    bool sync = true;           ///< wait until the bytes are on the disk, not only with the system
};

/// Reads a mesh; the format follows from the extension:
///
/// | extension     | what is read                                                                                   |
/// | ------------- | ---------------------------------------------------------------------------------------------- |
/// | .vtu .vtp     | VTK XML: ascii, base64, appended; uncompressed or zlib (lz4 and lzma by way of VTK)              |
/// | .pvtu .pvtp   | their pieces as one mesh: ghosts (`vtkGhostType`) dropped; with `GlobalCellIds` and               |
/// |               | `GlobalPointIds` rows in that order and shared points merged, else one piece after another        |
/// | .vtk          | legacy, ascii or binary: polydata and unstructured grids (by way of VTK)                         |
/// | .stl          | ascii or binary; points of exactly equal coordinates merged; of several solids the cell array    |
/// |               | `SolidId` and the field array `SolidName`                                                       |
/// | .ply          | ascii or binary: vertices, faces and their scalar properties                                    |
///
/// Types, names, component names and roles of arrays are kept, field data and polyhedra too. Arrays of an uncompressed file
/// are views into the mapped file: writing to it in place while the mesh is used is not allowed.
/// @throws IoError if the file is missing, of an unknown extension, truncated, damaged or not what its extension says.
Mesh read_mesh(const std::filesystem::path& path);

/// Writes .vtu or .vtp (by the extension), appended raw, atomically: on failure nothing is left.
///
/// What `read_mesh` gives back equals `mesh` (`difference` is empty), with one exception that lies in the format: .vtp has no
/// cell types, so that a polygon of three points comes back as a triangle, of four as a quad.
/// @throws InvalidInput if the format cannot hold the mesh: .vtp with solid cells, or cells not in VTK's order vertices, lines,
///         polygons, strips.
/// @throws IoError if the extension is unknown or the file cannot be written.
void write_mesh(const std::filesystem::path& path, const Mesh& mesh, const WriteOptions& options = {});

/// Extension of the file type that holds meshes of this kind without loss: `.vtp` or `.vtu`.
const char* extension_of(MeshKind kind);

}  // namespace meshard
