// SPDX-License-Identifier: Apache-2.0
#include "apps/cut/shard_sink.h"

#include <algorithm>

namespace meshard {

namespace {

// Returns the bytes of one row in all arrays.
std::int64_t bytes_per_row(const std::vector<DataArray>& arrays)
{
    std::int64_t bytes = 0;
    for (const DataArray& array : arrays)
        bytes += array.num_components() * static_cast<std::int64_t>(size_of(array.type()));
    return bytes;
}

}  // namespace

void ShardSink::take(const Subdomain& subdomain)
{
    Taken taken;
    taken.part = subdomain.part;
    taken.cells = {subdomain.cells.num_owned, subdomain.cells.num_ghosts()};
    taken.points = {subdomain.points.num_owned, subdomain.points.num_ghosts()};
    if (!folder_.empty()) {
        const auto shard = write_shard(folder_, subdomain, compression_);
        taken.bytes = shard.part.num_bytes;
        taken.bounds = shard.bounds;
        std::ranges::copy(shard.part.file, taken.file.begin());
        std::ranges::copy(shard.part.hash, taken.hash.begin());
    }
    const std::lock_guard lock(one_at_a_time_);
    taken_.push_back(taken);
    timer_.advance(std::min(1.0, static_cast<double>(taken_.size()) * num_ranks_ / num_parts_));
}

std::vector<WrittenShard> ShardSink::gather(RankMessages& messages, const Mesh& mesh, PartitionReport& report)
{
    auto all = gather_on_first(messages, std::move(taken_));
    std::ranges::sort(all, {}, &Taken::part);
    const auto cell_bytes = bytes_per_row(mesh.cell_data), point_bytes = bytes_per_row(mesh.point_data);
    std::vector<WrittenShard> shards;
    for (const auto& taken : all) {
        report.cells.push_back(taken.cells);
        report.points.push_back(taken.points);
        report.ghost_bytes.push_back(cell_bytes * taken.cells.ghosts + point_bytes * taken.points.ghosts);
        if (folder_.empty()) continue;
        report.bytes.push_back(taken.bytes);
        shards.push_back({{.file = taken.file.data(),
                           .num_owned_cells = taken.cells.owned,
                           .num_ghost_cells = taken.cells.ghosts,
                           .num_owned_points = taken.points.owned,
                           .num_ghost_points = taken.points.ghosts,
                           .num_bytes = taken.bytes,
                           .hash = taken.hash.data()},
                          taken.bounds});
    }
    return shards;
}

}  // namespace meshard
