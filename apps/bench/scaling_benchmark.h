// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/bench/model_benchmark.h"
#include "sharding/transport/launch.h"

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// The speed of the machine when all ranks work at the same time.
struct MachineCeilings {
    double sgemm_gflops = 0;          ///< speed of one rank, while all multiply
    double copy_gigabytes = 0;        ///< read and written per second by one rank, while all copy
    double message_microseconds = 0;  ///< time of an all-reduce of 8 bytes
    double reduce_gigabytes = 0;      ///< per second, in an all-reduce of 4 MB
};

inline const std::vector<std::string> kScalingWorkloads{"transolver", "attention", "vit", "unet", "spectral"};

/// One workload, forward and backward.
struct ScalingResult {
    std::string workload;
    /// `strong`: one problem over all ranks; `weak`: the problem grows with the ranks; `gathered`: the same on gathered
    /// rows.
    std::string kind;
    double ceiling_seconds = 0;     ///< plain runs of a rank's share, without communication, on all ranks at once
    double sharded_seconds = 0;     ///< 0, as both others: not measured
    double efficiency = 0;          ///< median of the pairs' ratios ceiling / sharded
    std::int64_t num_messages = 0;  ///< sent by one rank in one run
    std::int64_t message_bytes = 0;
};

struct ScalingReport {
    int num_ranks = 1;
    int threads_per_rank = 1;
    std::string backend;
    MachineCeilings ceilings;
    std::vector<ScalingResult> results;
};

/// Times forward, backward and AdamW of a Transolver. On one rank the ceiling is the same step without sharded tensors;
/// on several a plain step with this rank's number of points on all ranks at once. Collective over all ranks of
/// `world`; every rank gets the same results but for its own messages.
ScalingResult time_training_step(const StepShape& shape, const std::string& kind, int num_repeats, World& world);

/// Times ring attention (even and uneven shards), a Transolver of two sizes, and a vision transformer and a U-Net of
/// volumes on grids cut into blocks. Plain and sharded runs alternate; results are medians of the slowest rank's times.
/// The plain share of a rank is: for attention, its queries with all keys; for models of grids, the time of the whole
/// divided by the number of ranks, and nothing where ranks share cores: their messages alone are counted; for the
/// Transolver, its points. A spectral convolution is compared with itself on a gathered grid, which is no ceiling but
/// shows what the cut saves. Collective over all ranks of `world`; every rank gets the same results but for its
/// messages.
/// @param workloads   of `kScalingWorkloads`
ScalingReport measure_scaling(const std::vector<std::string>& workloads, int num_repeats, World& world);

}  // namespace meshard
