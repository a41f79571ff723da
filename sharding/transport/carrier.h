// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace meshard {

/// The transport that carries tensors of a device between ranks.
struct Carrier {
    /// Name of the transport, such as `nccl`; for tensors that are copied to the host, of the host's backend.
    std::string name;
    bool is_by_way_of_host = false;  ///< whether tensors are copied to host memory for sending, and back

    /// For example `nccl`, or `shm, by way of the host`.
    std::string text() const { return name + (is_by_way_of_host ? ", by way of the host" : ""); }
};

}  // namespace meshard
