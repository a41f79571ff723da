// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/transport/message_rings.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace meshard {

/// One rank's share of a collective over MessageRings, done in steps that never wait. The caller calls `write` and
/// `read` in turn until each has returned true (and not again after that), then `finish` once. Tensors may be on any
/// device; their values are copied to the CPU to be sent.
class RingCollective {
public:
    virtual ~RingCollective() = default;

    /// Writes as much to this rank's ring as there is room for; returns true when everything is written.
    virtual bool write(MessageRings& rings) = 0;

    /// Reads what has arrived in the other ranks' rings; returns true when everything is received.
    /// @throws std::runtime_error if a rank calls another collective or sends another number of bytes than expected
    virtual bool read(MessageRings& rings) = 0;

    /// Returns whether something may still come from this rank.
    virtual bool awaits(int /*rank*/) const { return true; }

    virtual void finish() {}
};

/// In place. Sums are added in rank order, so that all ranks get the same bits.
std::unique_ptr<RingCollective> ring_all_reduce(const MessageRings& rings, const at::Tensor& tensor,
                                                c10d::ReduceOp::RedOpType op);

std::unique_ptr<RingCollective> ring_broadcast(const MessageRings& rings, const at::Tensor& tensor, int root);

/// @param read   `read(begin, count, to)` copies bytes of the sent stream to `to`; called during the lifetime of the
/// result
std::unique_ptr<RingCollective> ring_all_to_all(const MessageRings& rings, const at::Tensor& out,
                                                std::vector<std::int64_t> receive_bytes,
                                                std::vector<std::int64_t> send_bytes, Outgoing::Source read);

std::unique_ptr<RingCollective> ring_barrier(const MessageRings& rings);

}  // namespace meshard
