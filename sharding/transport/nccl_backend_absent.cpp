// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "sharding/transport/nccl_backend.h"

namespace meshard {

std::string why_no_nccl()
{
    return "this build is for CPUs (MESHARD_WITH_CUDA is off)";
}

c10::intrusive_ptr<c10d::Backend> with_nccl(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<c10d::Store>, std::chrono::milliseconds, bool required)
{
    if (required) throw CommunicationError("launch: NCCL was asked for, but " + why_no_nccl() + ".");
    return host;
}

}  // namespace meshard
