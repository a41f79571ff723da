// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/io_options.h"
#include "io/vtk/mesh_blocks.h"

#include <filesystem>
#include <vector>

namespace meshard {

/// Returns whether `path` is an OpenFOAM case: its folder, or a file `.foam` or `.OpenFOAM` in it.
bool is_foam_case(const std::filesystem::path& path);

/// Reads an OpenFOAM case: the cells as block `internalMesh` and each patch as the surface `boundary/<name>`; of a case
/// with several regions `<region>/internalMesh` and so on. Without `options.blocks` only the cells.
///
/// Mesh and fields are those of the latest time, or of `options.time`. Cells get their volume fields, points their
/// point fields, patches the boundary's values, or those of the cell behind the face if the boundary has none.
/// Components of symmetric tensors are in VTK's order XX YY ZZ XY YZ XZ. In addition there are
///
/// - cell arrays `CellZoneId` (-1: in no zone; Int32) of cells and `PatchId` of patches,
/// - field arrays `TimeValue`, `PatchName`, `PatchType`, `PatchNumFaces`, `CellZoneName`; of several regions with names
///   `<region>/<name>`, over which the ids count.
///
/// A decomposed case (`processor0`, `processor1`, ...) is read as one mesh if the case itself has no mesh, lacks the
/// wanted time, or has only earlier times, and in the last case without numbers of decomposePar (the mesh was generated
/// in parallel) at every time that processors have: in the order of the whole mesh as decomposePar stored it, else
/// processor after processor, with shared points merged by means of the patches between processors (which are left
/// out).
///
/// Fields of other meshes (surface fields, clouds) are left out. A field that cannot be evaluated without running
/// OpenFOAM (`#calc`, `#codeStream`) is left out with a warning.
/// @throws IoError if a file or processor is missing or damaged, there is no such time, or a processor lacks the
/// latest.
/// @throws InvalidInput if there is no such block.
std::vector<MeshBlock> read_foam_case(const std::filesystem::path& path, const ReadOptions& options);

/// The times of a case among which `options.time` chooses, ascending: its own and those of its processors; without its
/// own if only the processors have the mesh of the run.
/// @throws IoError if it does not exist, or a processor lacks a time that the first one has.
std::vector<double> foam_times(const std::filesystem::path& path);

/// Reads the same blocks as one mesh (`join_blocks`), in which patches of one region share their points with each other
/// and the cells.
Mesh read_foam_mesh(const std::filesystem::path& path, const ReadOptions& options);

}  // namespace meshard
