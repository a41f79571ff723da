// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/block_codec.h"
#include "io/bytes/made_folders.h"
#include "io/shards/manifest.h"
#include "partition/ghosts/subdomain.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace meshard {

/// A folder that appears complete or not at all: it is written as `DIR.partial-<process>` in the same parent folder and
/// renamed at the end.
class PartialFolder {
public:
    /// @throws IoError if `dir` exists or cannot be made.
    explicit PartialFolder(const std::filesystem::path& dir);
    ~PartialFolder();  ///< removes the folder if it was not committed
    PartialFolder(const PartialFolder&) = delete;
    PartialFolder& operator=(const PartialFolder&) = delete;

    const std::filesystem::path& path() const { return partial_; }
    void commit();  ///< @throws IoError, Interrupted

private:
    std::filesystem::path final_, partial_;
    std::optional<MadeFolders> above_;
    bool is_committed_ = false;
};

/// The manifest's entry for one part, and the bounds of the part's points.
struct WrittenShard {
    ManifestPart part;
    std::array<double, 6> bounds{};  ///< as in Manifest; lowest above highest if there are no points
};

/// Writes the piece of one part into a shards folder that is being made. @throws IoError
WrittenShard write_shard(const std::filesystem::path& folder, const Subdomain& subdomain,
                         Compression compression = Compression::None);

/// A subdomain without rows, with the data that all subdomains of `mesh` share: kind, names and types of arrays, field
/// data, counts.
Subdomain without_rows(const Mesh& mesh, std::int32_t num_parts, std::int32_t num_ghost_layers);

/// Writes the index and the manifest of a shards folder. `shards` are all parts in order; the manifest gets their
/// entries and bounds. `like` is one of the subdomains, with its rows or without. `info.source_hash` is computed from
/// the file `info.source` if it is empty and the file exists.
void finish_shards(const std::filesystem::path& folder, const Subdomain& like, const std::vector<WrittenShard>& shards,
                   ShardsInfo info);

}  // namespace meshard
