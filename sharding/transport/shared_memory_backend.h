// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <string>

namespace meshard {

/// Connects ranks of one host through shared memory, without sockets: a message costs two copies, a large exchange of
/// rows one (`DirectRows`).
///
/// Every rank writes to its own ring buffer, and all others read it. A collective starts by writing its message to the
/// ring as far as there is room, and does the rest when the caller waits for it. Sums are added in rank order, so that
/// every rank gets the same bits. Supports all-reduce, broadcast, all-to-all with uneven sizes, and barrier; tensors of
/// devices are copied to the CPU.
///
/// Collective over the group; `store` is the group's own. `has_ended(rank)` returns whether a rank's process is known
/// to have ended. Returns null on every rank if one of them has no access to the shared memory (another host or
/// container).
c10::intrusive_ptr<c10d::Backend> connect_shared_memory(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                        int size, std::chrono::milliseconds time_limit,
                                                        std::function<bool(int)> has_ended);

}  // namespace meshard
