// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sharding/transport/peer_memory.h"
#include "sharding/transport/ring_collectives.h"
#include "sharding/ranks/row_stream.h"

namespace meshard {

/// Ranks that can all write to each other's memory.
struct PeerRanks {
    std::shared_ptr<PeerMemory> memory;                   ///< of this process; null if they cannot
    std::vector<std::shared_ptr<const PeerView>> views;   ///< by rank; none if they cannot

    bool can_write() const { return !views.empty(); }
};

/// An exchange of rows: those for a rank that wants many of them are written where it wants them, in one copy; the others travel with what every rank says
/// through its ring. Ranks first say how much they have for each other, how much they expect and where it is to go; then, those who wrote, that all is written.
class DirectRows : public RingCollective {
public:
    /// @param peers      that can write; must outlive this
    /// @param received   contiguous bytes on the CPU; best from `empty_for_peers`, else what is written goes there from other memory at the end
    /// @throws std::runtime_error if there is no room for that memory
    DirectRows(const MessageRings& rings, const PeerRanks& peers, RowStream sent, const std::vector<std::int64_t>& send_bytes, at::Tensor received,
               const std::vector<std::int64_t>& receive_bytes);

    /// A piece at a time of what is written to others' memory.
    bool write(MessageRings& rings) override;

    bool read(MessageRings& rings) override;

    void finish() override;

private:
    struct Peer {
        std::int64_t send_begin = 0, send_end = 0, written = 0;        // of the stream
        std::int64_t receive_begin = 0, receive_end = 0, taken = 0;   // of what is received; taken from the ring
        bool is_written = false, is_heard = false, will_end = false;
        Incoming first, last;
    };

    bool hear(MessageRings& rings, int rank);

    const PeerRanks& peers_;
    RowStream sent_;
    at::Tensor received_, landing_;   // the same, if others can write to it
    std::vector<Peer> by_rank_;
    Outgoing first_, last_;
    bool first_said_ = false, writes_ = false;
};

}  // namespace meshard
