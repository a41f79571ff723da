// SPDX-License-Identifier: Apache-2.0
#include "sharding/transport/mpi_backend.h"

namespace meshard {

std::unique_ptr<World> connect_mpi(const LaunchInfo&, double, c10::DeviceType, const Facts&)
{
    return nullptr;
}

}  // namespace meshard
