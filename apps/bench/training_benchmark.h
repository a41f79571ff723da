// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/transport/launch.h"

#include <cstdint>

namespace meshard {

/// The Transolver and the cloud whose training step is timed.
struct StepShape {
    std::int64_t num_points = 20000;  ///< points of the whole cloud
    std::int64_t n_hidden = 64;
    std::int64_t n_layers = 4;
    std::int64_t n_head = 4;
    std::int64_t slice_num = 32;
};

/// Medians over pairs of steps that alternate. On one rank `plain` is the same step without sharded tensors; on several
/// it is a plain step with this rank's number of points, without communication, on all ranks at once: the machine's
/// ceiling.
struct StepTimes {
    int num_ranks = 1;
    int threads_per_rank = 1;
    double plain_seconds = 0;  ///< time of the slowest rank
    double sharded_seconds = 0;
    double sharded_over_plain = 0;  ///< median of the pairs' ratios
    std::int64_t num_messages = 0;  ///< sent by one rank in a sharded step
    std::int64_t message_bytes = 0;
};

/// Times forward, backward and AdamW. Collective over all ranks of `world`; every rank gets the same results but for
/// its own messages.
StepTimes time_training_step(const StepShape& shape, int num_repeats, World& world);

}  // namespace meshard
