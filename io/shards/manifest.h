// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/cut/partition.h"
#include "partition/mesh/mesh.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

/// Data of a shards folder that its subdomains do not have: their source, and the options of the cut.
struct ShardsInfo {
    std::string source = {};       ///< path as the user gave it
    std::string source_hash = {};  ///< `hash_file` of it
    std::string method = {};       ///< e.g. `metis`
    std::int64_t seed = 0;
    NamedTexts options = {};        ///< further options of the cut, e.g. {"imbalance", "1.03"}
    NamedTexts versions = {};       ///< versions of the libraries used, e.g. {"METIS", "5.1.0"}
    PartitionQuality quality = {};  ///< may be left empty
};

/// An array of the source, and its name in the pieces.
struct ManifestArray {
    std::string group;      ///< `point`, `cell` or `field`
    std::string name;       ///< in the source
    std::string stored_as;  ///< name in the pieces; differs if the source has an array with one of meshard's names
    ScalarType type = ScalarType::Float32;
    std::int32_t num_components = 1;
    std::string attribute;  ///< role, as in DataArray
};

struct ManifestPart {
    std::string file;  ///< relative to the folder
    std::int64_t num_owned_cells = 0;
    std::int64_t num_ghost_cells = 0;
    std::int64_t num_owned_points = 0;
    std::int64_t num_ghost_points = 0;
    std::int64_t num_bytes = 0;
    std::string hash;  ///< `hash_file` of it
};

/// The content of manifest.json.
struct Manifest {
    ShardsInfo info;
    MeshKind kind = MeshKind::Unstructured;
    std::int64_t num_cells = 0;  ///< number of cells of the source
    std::int64_t num_points = 0;
    std::int32_t num_ghost_layers = 0;
    std::array<double, 6> bounds{};  ///< x, y and z, each lowest then highest; zeros if there are no points
    std::vector<ManifestArray> arrays;
    std::vector<ManifestPart> parts;

    std::int32_t num_parts() const { return static_cast<std::int32_t>(parts.size()); }
};

/// Returns whether `dir` is a folder with a manifest.json.
bool is_shards_folder(const std::filesystem::path& dir);

/// @throws IoError if `dir` is no shards folder, its manifest is damaged, or differs from what was written;
/// UnknownVersion.
Manifest read_manifest(const std::filesystem::path& dir);

void write_manifest(const std::filesystem::path& dir, const Manifest& manifest);  ///< @throws IoError

}  // namespace meshard
