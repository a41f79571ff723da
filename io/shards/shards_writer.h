// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>

#include "io/bytes/block_codec.h"
#include "io/bytes/interruption.h"
#include "io/shards/manifest.h"
#include "partition/ghosts/subdomain.h"

namespace meshard {

/// A folder that appears complete or not at all: it grows as `DIR.partial-<process>` beside its place and is renamed in the end.
class PartialFolder {
public:
    /// @throws IoError if `dir` exists or cannot be made.
    explicit PartialFolder(const std::filesystem::path& dir);
    ~PartialFolder();   ///< removes what was not committed
    PartialFolder(const PartialFolder&) = delete;
    PartialFolder& operator=(const PartialFolder&) = delete;

    const std::filesystem::path& path() const { return partial_; }
    void commit();      ///< @throws IoError, Interrupted

private:
    void remove() const;

    UnfinishedOutput unfinished_;
    std::filesystem::path final_, partial_, first_made_;
    bool is_committed_ = false;
};

/// What the manifest says of one part, and where the points are that it holds.
struct WrittenShard {
    ManifestPart part;
    std::array<double, 6> bounds{};     ///< as in Manifest; the lowest above the highest if there are no points
};

/// Writes the piece of one part into a shards folder that is being made. @throws IoError
WrittenShard write_shard(const std::filesystem::path& folder, const Subdomain& subdomain, Compression compression = Compression::None);

/// What all subdomains of `mesh` have in common: kind, arrays without rows, field data, counts.
Subdomain without_rows(const Mesh& mesh, std::int32_t num_parts, std::int32_t num_ghost_layers);

/// Writes what a shards folder has beside its pieces: the index, and a manifest whose parts, bounds and arrays are those of `shards`, which are
/// all parts in order. `like` is one of the subdomains, with its rows or without. `info.source_hash` is filled from the file `info.source` if
/// it is empty and the file is there.
void finish_shards(const std::filesystem::path& folder, const Subdomain& like, const std::vector<WrittenShard>& shards, ShardsInfo info);

}  // namespace meshard
