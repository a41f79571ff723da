// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <vector>

namespace meshard {

/// Work of a device that is recorded, in its order; null while none is.
using RecordedLaunches = std::function<std::vector<std::function<void()>>*()>;

/// A group that sends by `inner`, which carries CPU tensors, and holds the ranks to what NCCL asks for: the same
/// collectives in the same order with the same types and sizes; contiguous tensors of types that NCCL has, on one type
/// of device for all ranks and always the same device of a rank; no NaN in a maximum or minimum, which NCCL drops.
/// Results arrive as late as they may: in `wait`. Until then received memory holds no numbers, and neither it nor what
/// is sent may be written to. Every collective sends a few numbers more. What does not hold throws std::runtime_error
/// on the ranks that see it.
///
/// @param as_host   a tensor of a device as one of the CPU with the same memory; empty: `inner` gets tensors of devices
/// as they are
/// @param recorded  where collectives on tensors of a device go instead of being done, as NCCL's go to a graph: nothing
/// is sent then, and received memory has
///                  no numbers. Each run of the record calls them again, with all their checks.
c10::intrusive_ptr<c10d::Backend> checked(c10::intrusive_ptr<c10d::Backend> inner,
                                          std::function<at::Tensor(const at::Tensor&)> as_host,
                                          RecordedLaunches recorded = {});

}  // namespace meshard
