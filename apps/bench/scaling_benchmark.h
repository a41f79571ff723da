// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/transport/launch.h"

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// What the machine itself gives to ranks that work at the same time.
struct MachineCeilings {
    double sgemm_gflops = 0;          ///< of one rank, all multiplying at once
    double copy_gigabytes = 0;        ///< per second of one rank, read and written, all copying at once
    double message_microseconds = 0;  ///< an all-reduce of 8 bytes
    double reduce_gigabytes = 0;      ///< per second, an all-reduce of 4 MB
};

/// One workload, forward and backward.
struct ScalingResult {
    std::string workload;
    std::string kind;            ///< `strong`: one problem over all ranks; `weak`: a problem of the same size for every rank
    double ceiling_seconds = 0;  ///< independent plain programs with a rank's share of the work, on all ranks at once
    double sharded_seconds = 0;
    double efficiency = 0;          ///< median of the pairs' ratios ceiling / sharded
    std::int64_t num_messages = 0;  ///< of one rank in one run
    std::int64_t message_bytes = 0;
};

struct ScalingReport {
    int num_ranks = 1;
    int threads_per_rank = 1;
    std::string backend;
    MachineCeilings ceilings;
    std::vector<ScalingResult> results;
};

/// Ring attention (even shards, and uneven ones), a vision transformer, and a Transolver of two sizes. Plain and sharded runs alternate; the slowest rank
/// counts; medians. A plain share is: of the attention, the rank's queries against all keys; of the vision transformer, the whole divided by the number of
/// ranks; of the Transolver, the rank's points. Collective over all ranks of `world`; every rank gets the same figures but for its messages.
ScalingReport measure_scaling(int num_repeats, World& world);

}  // namespace meshard
