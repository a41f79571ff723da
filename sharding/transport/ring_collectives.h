// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "sharding/transport/message_rings.h"

namespace meshard {

/// A collective of ranks that talk by rings, as one of them does it: bit by bit, without ever waiting. `write` and `read` are called by turns until
/// each has said true, after which it is not called again; then `finish`, once. Tensors may be on any device, and travel by way of the CPU.
class RingCollective {
public:
    virtual ~RingCollective() = default;

    /// Says what there is room for; true when all is said.
    virtual bool write(MessageRings& rings) = 0;

    /// Hears what has come; true when all is heard. @throws std::runtime_error if a rank says something else than is expected
    virtual bool read(MessageRings& rings) = 0;

    virtual void finish() {}
};

/// In place; sums are formed in the order of the ranks, so that all get the same bits.
std::unique_ptr<RingCollective> ring_all_reduce(const MessageRings& rings, const at::Tensor& tensor, c10d::ReduceOp::RedOpType op);

std::unique_ptr<RingCollective> ring_broadcast(const MessageRings& rings, const at::Tensor& tensor, int root);

/// @param read   gives the bytes that are sent, for as long as the collective lives
std::unique_ptr<RingCollective> ring_all_to_all(const MessageRings& rings, const at::Tensor& out, std::vector<std::int64_t> receive_bytes,
                                                std::vector<std::int64_t> send_bytes, Outgoing::Source read);

std::unique_ptr<RingCollective> ring_barrier(const MessageRings& rings);

}  // namespace meshard
