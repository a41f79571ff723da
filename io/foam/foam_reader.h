// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

#include "io/vtk/mesh_blocks.h"
#include "io/bytes/io_options.h"

namespace meshard {

/// Whether `path` is an OpenFOAM case: its folder, or a file `.foam` or `.OpenFOAM` in it.
bool is_foam_case(const std::filesystem::path& path);

/// Reads an OpenFOAM case: the cells as block `internalMesh` and each patch as the surface `boundary/<name>`; of a case with
/// several regions `<region>/internalMesh` and so on. Without wishes only the cells.
///
/// Mesh and fields are those of the latest time, or of `options.time`. Cells get their volume fields, points their point fields,
/// patches the boundary's values, where it has none those of the cell behind the face. Symmetric tensors stand in VTK's order
/// XX YY ZZ XY YZ XZ. Beside the fields there are
///
/// - cell arrays `CellZoneId` (-1: in no zone; Int32) of cells and `PatchId` of patches,
/// - field arrays `TimeValue`, `PatchName`, `PatchType`, `PatchNumFaces`, `CellZoneName`.
///
/// A decomposed case (`processor0`, `processor1`, ...) is read as one mesh where the case itself has no mesh, not the wanted time, or
/// only earlier times: in the order of the whole as decomposePar noted it, else processor after processor with the points between them
/// made one by the processors' patches (which are left out).
///
/// Fields of other meshes (surface fields, clouds) are left out. A field that cannot be evaluated without running OpenFOAM
/// (`#calc`, `#codeStream`) is left out with a warning.
/// @throws IoError if a file is missing or damaged, or there is no such time.
/// @throws InvalidInput if there is no such block.
std::vector<MeshBlock> read_foam_case(const std::filesystem::path& path, const ReadOptions& options);

/// The same blocks as one mesh (`join_blocks`), in which patches of one region share their points with each other and the cells.
Mesh read_foam_mesh(const std::filesystem::path& path, const ReadOptions& options);

}  // namespace meshard
