// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/messages/agreement.h"
#include "sharding/transport/launch.h"

#include <memory>

namespace meshard {

/// Connects the ranks of a run started by mpirun or srun over MPI, whose collectives use shared memory on one host: a
/// small all-reduce takes a microsecond there, 1.5 ms with Gloo. Tensors of devices are copied to the host.
///
/// @param device   type of device on which the ranks compute
/// @param facts    what must be equal on all ranks; compared first
/// @throws RanksDisagree on the lowest rank, FailedElsewhere on the others
/// @return null if MPI did not start these ranks, or this build has no MPI
std::unique_ptr<World> connect_mpi(const LaunchInfo& info, double timeout_seconds, c10::DeviceType device,
                                   const Facts& facts);

}  // namespace meshard
