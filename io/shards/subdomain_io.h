// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/shards/manifest.h"
#include "partition/ghosts/subdomain.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace meshard {

/// Writes a shards folder:
///
///     DIR/manifest.json            what was cut, how, and what each piece holds
///     DIR/mesh.pvtu | mesh.pvtp    opens all pieces in ParaView
///     DIR/pieces/mesh_0000.vtu     one a part (piece_io.h describes its arrays)
///
/// The folder appears complete or not at all: it is written as `DIR.partial-<process>` in the same folder and renamed
/// at the end. `info.source_hash` is computed from the file `info.source` if it is empty and the file exists.
/// @throws IoError if DIR exists or cannot be written.
/// @throws InvalidInput if `subdomains` are not the parts 0, 1, ... of one mesh.
void save_subdomains(const std::filesystem::path& dir, std::span<const Subdomain> subdomains, ShardsInfo info);

/// Whether the bytes of a piece are compared with the manifest's hash before they are used.
enum class PieceCheck : std::uint8_t { Compare, Trust };

inline PieceCheck check_of(bool verify)
{
    return verify ? PieceCheck::Compare : PieceCheck::Trust;
}

/// Part `part` of a shards folder, as it was given to `save_subdomains`. Arrays are views into the mapped piece.
/// @throws IoError if DIR is no shards folder or the piece does not match the manifest.
/// @throws InvalidInput if the folder has no such part.
Subdomain load_subdomain(const std::filesystem::path& dir, std::int32_t part, PieceCheck check = PieceCheck::Compare);

/// `load_subdomain` with a manifest that was read before.
Subdomain load_subdomain(const std::filesystem::path& dir, const Manifest& manifest, std::int32_t part,
                         PieceCheck check = PieceCheck::Compare);

std::vector<Subdomain> load_subdomains(const std::filesystem::path& dir, PieceCheck check = PieceCheck::Compare);

/// Compares a piece with its manifest entry. @throws IoError if it is missing, or has another size or hash
void require_written_piece(const std::filesystem::path& dir, const ManifestPart& part);

/// Name of the file in a shards folder that opens all pieces: `mesh.pvtu` or `mesh.pvtp`.
const char* index_name(MeshKind kind);

}  // namespace meshard
