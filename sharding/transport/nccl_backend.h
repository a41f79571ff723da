// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace meshard {

/// Empty if this process can send GPU tensors over NCCL, else the reason why not, as the end of a sentence.
std::string why_no_nccl();

/// A group that sends GPU tensors over NCCL, and all others over `host`. NCCL connects at the first GPU tensor, with the device that is current then. Where two
/// ranks share a GPU, which NCCL refuses, GPU tensors go over `host` too, unless `required`.
///
/// `store` is the group's own. Returns `host` itself if NCCL is not available and not required.
/// @throws CommunicationError if it is not available and required
c10::intrusive_ptr<c10d::Backend> with_nccl(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds time_limit,
                                            bool required);

}  // namespace meshard
