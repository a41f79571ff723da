// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/row_stream.h"
#include "sharding/transport/peer_memory.h"
#include "sharding/transport/ring_collectives.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace meshard {

/// The ranks of one machine, if all of them can write to each other's memory.
struct PeerRanks {
    std::shared_ptr<PeerMemory> memory;  ///< memory of this process; null if some rank cannot write to it
    /// Indexed by rank; empty if some rank cannot write to another.
    std::vector<std::shared_ptr<const PeerView>> views;

    bool can_write() const { return !views.empty(); }
};

/// An exchange of rows. The sender copies large blocks of rows (`PeerMemory::kWorthwhileBytes` and more) directly into
/// the receiver's buffer, with one copy; smaller blocks go through the sender's ring. Every rank first sends the
/// numbers of bytes that it sends and expects, and the offsets of its receive buffers; a rank that has written to other
/// ranks' buffers sends a second, empty message when all of it is written.
class DirectRows : public RingCollective {
public:
    /// @param peers      ranks that can write to each other's memory; must outlive this object
    /// @param received   receive buffer, contiguous bytes on the CPU; allocate it with `empty_for_peers`, otherwise the
    ///                   rows are received in a temporary buffer and copied at the end
    /// @throws std::runtime_error if that temporary buffer cannot be allocated
    DirectRows(const MessageRings& rings, const PeerRanks& peers, RowStream sent,
               const std::vector<std::int64_t>& send_bytes, at::Tensor received,
               const std::vector<std::int64_t>& receive_bytes);

    /// Writes at most one piece (4 MiB) to another rank's buffer in each call.
    bool write(MessageRings& rings) override;

    bool read(MessageRings& rings) override;

    bool awaits(int rank) const override
    {
        const auto& peer = by_rank_[rank];
        return !peer.is_received || (peer.will_end && !peer.last.has_header());
    }

    void finish() override;

private:
    struct Peer {
        // Bytes of the sent stream; written: copied to the peer so far.
        std::int64_t send_begin = 0, send_end = 0, written = 0;
        // Bytes of the receive buffer; taken: copied from the peer's ring so far.
        std::int64_t receive_begin = 0, receive_end = 0, taken = 0;
        bool is_written = false, is_received = false, will_end = false;
        Incoming first, last;
    };

    bool receive(MessageRings& rings, int rank);

    const PeerRanks& peers_;
    RowStream sent_;
    // target_: buffer in which other ranks write; received_ itself if it is in PeerMemory.
    at::Tensor received_, target_;
    std::vector<Peer> by_rank_;
    Outgoing first_, last_;
    bool first_sent_ = false, writes_ = false;
};

}  // namespace meshard
