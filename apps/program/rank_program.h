// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/program/command_line.h"
#include "sharding/transport/launch.h"

#include <functional>
#include <span>
#include <string>

namespace meshard {

/// Runs `body` on every rank of this run and returns the exit code. Collective over the ranks.
///
/// Ranks come from a launcher (torchrun, mpirun, srun), or are started here: with a number of ranks above 1 and no
/// launcher around, this process starts as many copies of itself with the same arguments and waits for them. `verify`
/// runs first, in the process that the user started, so that a mistake is found once and before anything is started.
///
/// The ranks first compare `facts_of_command`. The first rank that fails ends all others, and only its message is
/// shown. Each of several ranks computes on one thread, unless OMP_NUM_THREADS is set.
/// @param device   where the ranks compute (`device_of_rank`)
/// @throws UsageError if the launcher started another number of ranks, there is no such device, or this machine cannot
///         hold so many ranks (`check_local_ranks`).
int run_on_ranks(const LocalRanks& ranks, const std::string& verb, std::span<const std::string> arguments,
                 const std::function<void(int num_ranks)>& verify, const std::function<int(World& world)>& body,
                 const std::string& device = "cpu");

/// Adds the option `--device` of verbs whose ranks may compute on GPUs.
void add_device_option(CLI::App& app, std::string& device);

/// Checks that this machine can hold the ranks that are to be started here. What one needs is measured on this process,
/// which has loaded the same libraries.
/// @throws UsageError if there are more than four ranks for each core that this process may use, unless
///         `ranks.oversubscribes`, or if they need more memory than is free before they have read any data
void check_local_ranks(const LocalRanks& ranks);

/// Makes this process keep freed memory for later allocations: that of tensors by `keep_tensor_memory`, other memory by
/// `keep_freed_blocks`.
void cache_freed_memory();

}  // namespace meshard
