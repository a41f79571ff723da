// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace meshard {

/// What carries tensors of a device between ranks.
struct Carrier {
    std::string name;                ///< of the transport, such as `nccl`, or of the backend by whose way tensors go
    bool is_by_way_of_host = false;  ///< tensors are copied to host memory and back

    /// Such as `nccl`, or `shm, by way of the host`.
    std::string text() const { return name + (is_by_way_of_host ? ", by way of the host" : ""); }
};

}  // namespace meshard
