// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/program/command_line.h"
#include "sharding/transport/launch.h"

#include <functional>
#include <span>
#include <string>

namespace meshard {

/// Runs `body` on every rank of this run, and gives the exit code.
///
/// Ranks come from a launcher (torchrun, mpirun, srun), or are started here: with a number of ranks above 1 and no launcher
/// around, this process starts as many copies of itself with the same arguments and waits for them. `verify` runs first, in
/// the process the user started, so that a mistake is found once and before anything is started.
///
/// Before all else the ranks compare `facts_of_command`. The first rank that fails ends all; its message is the one shown. Where several ranks share a machine
/// each takes one thread, unless OMP_NUM_THREADS says otherwise.
/// @param device            where the ranks compute, as `device_of_rank` takes it: chosen and made current before all else
/// @throws UsageError if the launcher started another number of ranks, there is no such device, or this machine does not bear so many ranks
///         (`check_local_ranks`).
int run_on_ranks(const LocalRanks& ranks, const std::string& verb, std::span<const std::string> arguments, const std::function<void(int num_ranks)>& verify,
                 const std::function<int(World& world)>& body, const std::string& device = "cpu");

/// @throws UsageError if ranks that are to be started here are more than four for each core that this process may use, unless it is insisted upon, or need more
///         memory before they have read any data than is free. What one needs is measured on this process, which has loaded the same libraries.
void check_local_ranks(const LocalRanks& ranks);

/// Keeps freed memory in the process: tensors' by `keep_tensor_memory`, other by `keep_freed_blocks`.
void cache_freed_memory();

}  // namespace meshard
