// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace meshard {

/// Ranks on one host that talk through memory they share: no sockets; a message costs two copies, rows in large numbers one (`DirectRows`).
///
/// Every rank has a ring of bytes that it writes and all others read; a collective writes what it must say into its own ring when it is
/// started, as far as that has room, and does the rest when it is waited for. Sums are formed in the order of the ranks, so that every rank
/// gets the same bits. Serves all-reduce, broadcast, all-to-all with uneven sizes, and barrier, of CPU tensors; others travel by way of the CPU.
///
/// Collective over the group; `store` is the group's own. `has_ended(rank)` says whether a rank's process is known to be gone.
/// Returns null on every rank if one of them cannot see the shared memory (another host or container).
c10::intrusive_ptr<c10d::Backend> connect_shared_memory(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                        std::chrono::milliseconds time_limit, std::function<bool(int)> has_ended);

}  // namespace meshard
