// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Where what VTK's own reader finds in the file (.vtu .vtp .pvtu .pvtp .vtk .stl .ply) differs from `mesh`; empty if
/// nowhere. Compared to the last bit: points, cells, types, face streams, and all arrays with types, roles and names.
std::string vtk_difference(const std::filesystem::path& path, const Mesh& mesh);

/// What VTK sees of a file in pieces or of one of them.
struct VtkSummary {
    std::int64_t num_points = 0;
    std::int64_t num_cells = 0;
    std::int64_t num_ghost_points = 0;  ///< that VTK itself takes for duplicates
    std::int64_t num_ghost_cells = 0;
    std::string cell_global_ids;  ///< name of the array in that role
    std::string point_global_ids;
};
VtkSummary vtk_summary(const std::filesystem::path& path);

/// Where what VTK reads of the pieces differs from what it reads of the file that was cut; empty if nowhere. Every
/// point and every cell, ghosts too, must equal the source's row of its global id: place, type, corners, faces, all
/// arrays to the last bit; and those that are no ghosts must be all of the source's, each once. (Piece by piece:
/// VTK 9.1 loses polyhedra where it reads an index with pieces without any.)
std::string vtk_gathered_difference(std::span<const std::filesystem::path> pieces, const std::filesystem::path& source);

/// Length, area or volume of each cell, as VTK's own filter has them.
std::vector<double> vtk_cell_sizes(const Mesh& mesh);

struct VtkEncoding {
    enum Mode { Ascii, Base64, AppendedBase64, AppendedRaw } mode = AppendedRaw;
    enum Compressor { None, Zlib, Lz4, Lzma } compressor = None;
    bool wide_header = false;
    bool big_endian = false;
};

/// Writes with VTK's own XML writer, in small blocks so that compressed arrays have several.
void write_with_vtk(const std::filesystem::path& path, const Mesh& mesh, const VtkEncoding& encoding);

/// Writes a legacy .vtk file with VTK's own writer.
void write_legacy_with_vtk(const std::filesystem::path& path, const Mesh& mesh, bool binary);

}  // namespace meshard
