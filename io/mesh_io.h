// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/io_options.h"
#include "io/vtk/file_extension.h"
#include "io/vtk/mesh_blocks.h"
#include "partition/mesh/mesh.h"

#include <filesystem>
#include <string>
#include <vector>

namespace meshard {

/// Reads a mesh; the format follows from the extension:
///
/// | extension     | what is read                                                                                   |
/// | ------------- | ---------------------------------------------------------------------------------------------- |
/// | .vtu .vtp     | VTK XML: ascii, base64, appended; uncompressed, zlib, lz4, lzma                                |
/// | .pvtu .pvtp   | their pieces as one mesh without ghosts (`vtkGhostType`), in the order of global ids            |
/// |               | (`GlobalCellIds`, `GlobalPointIds`) with shared points merged, else one piece after another    |
/// | .vti .pvti    | image data as the mesh of its points and cells (`image_mesh`)                                  |
/// | .zarr .h5     | arrays of Zarr (a folder) or HDF5 as such a mesh (`ArrayGridFile`); .hdf5 and .nc, too         |
/// | .vtk          | legacy, ascii or binary: polydata and unstructured grids (by way of VTK)                       |
/// | .stl          | ascii or binary; points of exactly equal coordinates merged; of several solids the cell array  |
/// |               | `SolidId` and the field array `SolidName`                                                      |
/// | .ply          | ascii or binary: vertices, faces and their scalar properties                                   |
/// | .obj          | points, lines, faces and their groups (obj_reader.h)                                           |
/// | .foam, folder | an OpenFOAM case (foam_reader.h): the cells, with fields of the latest time                    |
/// | .vtkhdf .hdf  | unstructured grids, polygonal data, collections of them (vtkhdf.h)                             |
/// | .vtm .vtpc    | their files as blocks (collection_reader.h), which `join_blocks` puts one after another        |
/// | .pvd .series  | the latest file of a series in time                                                            |
/// | .cgns .case   | CGNS, EnSight, and Exodus (.exo) by way of VTK (vtk_bridge.h): zones, parts and element blocks |
/// | .exo          | as blocks                                                                                      |
///
/// Types, names, component names and roles of arrays are kept, field data and polyhedra too. Arrays of an uncompressed
/// file are views into the mapped file: writing to it in place while the mesh is used is not allowed.
/// @throws IoError if the file is missing, of an unknown extension, truncated, damaged or of another format than its
/// extension.
Mesh read_mesh(const std::filesystem::path& path, const ReadOptions& options = {});

/// The blocks of a file that has several, chosen by `options.blocks`; of other files the mesh as one block without a
/// name. `read_mesh` joins them. @throws as `read_mesh`; InvalidInput if there is no such block.
std::vector<MeshBlock> read_blocks(const std::filesystem::path& path, const ReadOptions& options = {});

/// Writes .vtu or .vtp (by the extension), appended raw, .pvtu or .pvtp with one piece beside it, or .vtkhdf with one
/// partition, atomically: on failure nothing is left.
///
/// `read_mesh` returns the same mesh (`difference` is empty), with one exception due to the format: .vtp and .pvtp have
/// no cell types, so that a polygon of three points comes back as a triangle, of four as a quad.
/// @throws InvalidInput as `Mesh::validate` and `require_writable_format`
/// @throws IoError if the extension is unknown or the file cannot be written.
void write_mesh(const std::filesystem::path& path, const Mesh& mesh, const WriteOptions& options = {});

/// Extensions that `read_mesh` and `write_mesh` support, e.g. `.vtu .vtp`.
std::string readable_formats();
std::string writable_formats();

/// @throws IoError if `write_mesh` does not support the extension.
void require_writable_format(const std::filesystem::path& path);
/// @throws InvalidInput, too, if the format cannot hold the cells of `mesh`: .vtp with solid cells, or cells not in
/// VTK's
///         order vertices, lines, polygons, strips.
void require_writable_format(const std::filesystem::path& path, const Mesh& mesh);

}  // namespace meshard
