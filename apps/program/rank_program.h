// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/transport/launch.h"

#include <functional>
#include <span>
#include <string>

namespace meshard {

/// Runs `body` on every rank of this run, and gives the exit code.
///
/// Ranks come from a launcher (torchrun, mpirun, srun), or are started here: with `num_local_ranks` above 1 and no launcher
/// around, this process starts as many copies of itself with the same arguments and waits for them. `verify` runs first, in
/// the process the user started, so that a mistake is found once and before anything is started.
///
/// Before all else the ranks compare `facts_of_command`. The first rank that fails ends all; its message is the one shown. Where several ranks share a machine each takes one thread,
/// unless OMP_NUM_THREADS says otherwise.
/// @param num_local_ranks   0 or less: as the launcher says, else one
/// @param device            where the ranks compute, as `device_of_rank` takes it: chosen and made current before all else
/// @throws UsageError if the launcher started another number of ranks, or there is no such device.
int run_on_ranks(int num_local_ranks, const std::string& verb, std::span<const std::string> arguments, const std::function<void(int num_ranks)>& verify,
                 const std::function<int(World& world)>& body, const std::string& device = "cpu");

/// Keeps freed memory in the process: tensors' by `keep_tensor_memory`, other by `keep_freed_blocks`.
void keep_freed_memory();

}  // namespace meshard
