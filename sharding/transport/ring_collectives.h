// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/transport/message_rings.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace meshard {

/// One rank's share of a collective over MessageRings, done in steps that never wait. The caller calls `write` and `read` in turns until each has returned true
/// (and does not call it again after that), then `finish` once. Tensors may be on any device; their values are copied to the CPU to be sent.
class RingCollective {
public:
    virtual ~RingCollective() = default;

    /// Writes as much to this rank's ring as it has room for; true when everything is written.
    virtual bool write(MessageRings& rings) = 0;

    /// Reads what has arrived in the other ranks' rings; true when everything is received.
    /// @throws std::runtime_error if a rank sends another collective or another number of bytes than expected
    virtual bool read(MessageRings& rings) = 0;

    virtual void finish() {}
};

/// In place. Sums are added in the order of the ranks, so that all ranks get the same bits.
std::unique_ptr<RingCollective> ring_all_reduce(const MessageRings& rings, const at::Tensor& tensor, c10d::ReduceOp::RedOpType op);

std::unique_ptr<RingCollective> ring_broadcast(const MessageRings& rings, const at::Tensor& tensor, int root);

/// @param read   `read(begin, count, to)` copies bytes of the sent stream; called as long as the collective lives
std::unique_ptr<RingCollective> ring_all_to_all(const MessageRings& rings, const at::Tensor& out, std::vector<std::int64_t> receive_bytes,
                                                std::vector<std::int64_t> send_bytes, Outgoing::Source read);

std::unique_ptr<RingCollective> ring_barrier(const MessageRings& rings);

}  // namespace meshard
