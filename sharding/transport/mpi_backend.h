// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/messages/agreement.h"
#include "sharding/transport/launch.h"

#include <memory>

namespace meshard {

/// Connects the ranks of a run started by mpirun or srun over MPI, whose collectives use shared memory on one host: a small all-reduce takes a microsecond
/// there, 1.5 ms with Gloo. Tensors of devices go by way of the host.
///
/// @param device   type of device on which the ranks compute
/// @param facts    what all ranks must have in common, compared before all else
/// @throws RanksDisagree on the lowest rank, FailedElsewhere on the others
/// @return null if MPI does not see these ranks (the program was started without its help), or this build has no MPI
std::unique_ptr<World> connect_mpi(const LaunchInfo& info, double timeout_seconds, c10::DeviceType device, const Facts& facts);

}  // namespace meshard
