// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace meshard {

/// Empty if tensors of GPUs can go over NCCL in this process, else why not, as the end of a sentence.
std::string why_no_nccl();

/// A group whose tensors of GPUs go over NCCL, and all others over `host`. NCCL connects when the first tensor of a GPU comes, with the device that is
/// current then. Where two ranks share a GPU, which NCCL refuses, tensors of GPUs go over `host`, too, unless `required`.
///
/// `store` is the group's own. Returns `host` itself where NCCL cannot be had and is not required.
/// @throws CommunicationError where it is
c10::intrusive_ptr<c10d::Backend> with_nccl(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<c10d::Store> store,
                                            std::chrono::milliseconds time_limit, bool required);

}  // namespace meshard
