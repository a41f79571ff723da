// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/console/stage_timer.h"
#include "apps/cut/partition_report.h"
#include "io/shards/shards_writer.h"
#include "partition/ghosts/subdomain.h"
#include "sharding/messages/rank_messages.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <utility>
#include <vector>

namespace meshard {

/// Receives the parts of a cut one by one, on any thread and rank, writes their shards and counts their rows.
class ShardSink {
public:
    /// @param folder to write to, or empty to write nothing
    ShardSink(std::filesystem::path folder, Compression compression, std::int32_t num_parts, int num_ranks,
              StageTimer& timer)
        : folder_(std::move(folder)), compression_(compression), num_parts_(num_parts), num_ranks_(num_ranks),
          timer_(timer)
    {
    }

    /// Several threads may call it at once. @throws IoError
    void take(const Subdomain& subdomain);

    /// Adds the parts to the report on rank 0, after the last part. Collective.
    /// @return on rank 0 all shards in order; empty if nothing was written.
    std::vector<WrittenShard> gather(RankMessages& messages, const Mesh& mesh, PartitionReport& report);

private:
    struct Taken {  // sent to rank 0
        std::int32_t part = 0;
        RowCounts cells, points;
        std::int64_t bytes = 0;
        std::array<double, 6> bounds{};
        std::array<char, 64> file{}, hash{};
    };

    std::filesystem::path folder_;
    Compression compression_;
    std::int32_t num_parts_;
    int num_ranks_;
    StageTimer& timer_;
    std::mutex one_at_a_time_;
    std::vector<Taken> taken_;
};

}  // namespace meshard
