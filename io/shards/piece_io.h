// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/mesh_io.h"
#include "io/shards/manifest.h"
#include "partition/ghosts/subdomain.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// The names of the arrays of `mesh` in a piece: their own, unless meshard uses that name for an array of its own.
std::vector<ManifestArray> piece_arrays(const Mesh& mesh);

/// Writes one part as an ordinary .vtu or .vtp (after its mesh's kind), with these arrays beside its own:
///
/// | cells           | points           |                                                                       |
/// | --------------- | ---------------- | --------------------------------------------------------------------- |
/// | `vtkGhostType`  | `vtkGhostType`   | UInt8: 1 for ghosts, 0 for owned rows                                   |
/// | `GlobalCellIds` | `GlobalPointIds` | Int64: row in the source; has the role GlobalIds                        |
/// | `PartitionId`   | `PartitionId`    | Int32: the owner                                                       |
/// | `GhostLevel`    |                  | UInt8: 0 for owned rows, k in the k-th layer (of a cloud: on its points) |
///
/// Rows are in local order, owned first. A .vtp with cells of several kinds keeps VTK's order (vertices, lines,
/// polygons, strips) and the local order within each.
void write_piece(const std::filesystem::path& path, const Subdomain& subdomain, const WriteOptions& options = {});

/// Writes the .pvtu or .pvtp that names the pieces. `like` is any of the subdomains: all have the same arrays;
/// `sources` are the pieces' paths relative to the index, `hashes` those of their bytes; empty: none.
void write_piece_index(const std::filesystem::path& path, const Subdomain& like, std::span<const std::string> sources,
                       std::span<const std::string> hashes = {});

/// Reads a file of `write_piece` as part `part` of a shards folder. Rows are in local order.
/// @throws IoError if the piece does not match `manifest`.
Subdomain read_piece(const std::filesystem::path& path, const Manifest& manifest, std::int32_t part);

}  // namespace meshard
