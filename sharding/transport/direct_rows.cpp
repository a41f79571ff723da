// SPDX-License-Identifier: Apache-2.0
#include "sharding/transport/direct_rows.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace meshard {
namespace {

using Kind = MessageHeader::Kind;

// Bytes written in one call of write(), so that reading continues in between.
constexpr std::int64_t kPiece = std::int64_t{4} << 20;

bool is_direct(std::int64_t bytes)
{
    return bytes >= PeerMemory::kWorthwhileBytes;
}

char* bytes_of(const at::Tensor& tensor)
{
    return static_cast<char*>(tensor.data_ptr());
}

/// Bytes that a rank sends through its ring to ranks `begin` to `end - 1`, if it sends `sizes[r]` bytes to rank r:
/// large blocks are written directly and do not count.
std::int64_t through_ring(const std::vector<std::int64_t>& sizes, std::size_t begin, std::size_t end)
{
    std::int64_t sum = 0;
    for (auto r = begin; r < end; ++r) sum += is_direct(sizes[r]) ? 0 : sizes[r];
    return sum;
}

std::string mismatch(int sender, std::int64_t sent, std::int64_t expected)
{
    return fmt::format("all_to_all: rank {} sends {} bytes, expected {}", sender, sent, expected);
}

}  // namespace

DirectRows::DirectRows(const MessageRings& rings, const PeerRanks& peers, RowStream sent,
                       const std::vector<std::int64_t>& send_bytes, at::Tensor received,
                       const std::vector<std::int64_t>& receive_bytes)
    : peers_(peers), sent_(std::move(sent)), received_(std::move(received)), target_(received_), by_rank_(rings.size())
{
    const auto me = rings.rank(), size = rings.size();
    if (send_bytes[me] != receive_bytes[me])
        throw std::runtime_error("all_to_all: a rank sends itself another number of rows than it receives");
    std::int64_t send = 0, receive = 0;
    bool is_written_to = false;
    for (int r = 0; r < size; ++r) {
        auto& peer = by_rank_[r];
        peer.send_begin = std::exchange(send, send + send_bytes[r]);
        peer.receive_begin = std::exchange(receive, receive + receive_bytes[r]);
        peer.send_end = send;
        peer.receive_end = receive;
        peer.is_written = r == me || !is_direct(send_bytes[r]);
        writes_ |= !peer.is_written;
        is_written_to |= r != me && is_direct(receive_bytes[r]);
    }
    sent_.read(by_rank_[me].send_begin, send_bytes[me], bytes_of(received_) + by_rank_[me].receive_begin);

    if (is_written_to && peers_.memory->offset_of(received_) < 0) {
        target_ = peers_.memory->empty(received_.sizes(), received_.options());
        if (!target_.defined())
            throw std::runtime_error(fmt::format("no memory for {} bytes of other ranks' rows", receive));
    }
    auto numbers = send_bytes;  // then one target offset for each rank, and the number of bytes expected from each rank
    numbers[me] = 0;
    // Offset of each part of the ring's message in that message and in the stream.
    std::vector<std::array<std::int64_t, 2>> parts;
    for (int r = 0; r < size; ++r) {
        if (numbers[r] > 0 && !is_direct(numbers[r]))
            parts.push_back({through_ring(numbers, 0, r), by_rank_[r].send_begin});
    }
    const auto bytes = through_ring(numbers, 0, size);
    const auto offset = is_written_to ? peers_.memory->offset_of(target_) : 0;
    for (int r = 0; r < size; ++r) numbers.push_back(offset + by_rank_[r].receive_begin);
    numbers.insert(numbers.end(), receive_bytes.begin(), receive_bytes.end());
    const auto read = [stream = sent_, parts = std::move(parts), bytes](std::int64_t begin, std::int64_t count,
                                                                        char* to) {
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const auto part_end = i + 1 < parts.size() ? parts[i + 1][0] : bytes;
            const auto from = std::max(begin, parts[i][0]), end = std::min(begin + count, part_end);
            if (from < end) stream.read(parts[i][1] + (from - parts[i][0]), end - from, to + (from - begin));
        }
    };
    first_ = Outgoing({Kind::Rows, bytes}, numbers, read, bytes);
    last_ = Outgoing({Kind::Rows, 0}, {}, nullptr, 0);
}

bool DirectRows::write(MessageRings& rings)
{
    first_sent_ = first_sent_ || first_.put(rings);
    if (!first_sent_) return false;
    if (!writes_) return true;
    const auto me = rings.rank(), size = rings.size();
    bool all = true;
    // Each rank starts with another peer, so that not all write to the same one.
    for (int step = 1; step < size; ++step) {
        const auto r = (me + step) % size;
        auto& peer = by_rank_[r];
        if (peer.is_written) continue;
        all = false;
        if (!peer.first.has_header()) continue;
        const auto offset = peer.first.sizes[size + me], expected = peer.first.sizes[2 * size + me],
                   begin = peer.send_begin, done = peer.written;
        if (expected != peer.send_end - begin)
            throw std::runtime_error(mismatch(rings.rank(), peer.send_end - begin, expected));
        const auto count = std::min(kPiece, peer.send_end - begin - done);
        sent_.write_to_peer(begin + done, count, peers_.views[r]->at(offset + done));
        peer.written += count;
        peer.is_written = begin + peer.written == peer.send_end;
        return false;
    }
    return all && last_.put(rings);
}

/// Reads what has arrived from a rank; returns true when nothing more will come from it.
bool DirectRows::receive(MessageRings& rings, int rank)
{
    auto& peer = by_rank_[rank];
    const auto me = static_cast<std::size_t>(rings.rank()), size = static_cast<std::size_t>(rings.size());
    if (!peer.is_received) {
        const bool is_new = !peer.first.has_header();
        if (!peer.first.read_header(rings, rank, {Kind::Rows, -1}, static_cast<std::int64_t>(3 * size))) return false;
        const auto& sizes = peer.first.sizes;
        const auto expected = peer.receive_end - peer.receive_begin;
        // Thrown in every call: the progress thread does not report it.
        if (sizes[me] != expected) throw std::runtime_error(mismatch(rank, sizes[me], expected));
        if (is_new) {
            peer.will_end = std::any_of(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(size), is_direct);
            rings.advance(rank, through_ring(sizes, 0, me));  // skips what the peer sends to other ranks
        }
        const auto left = is_direct(expected) ? 0 : expected - peer.taken,
                   count = std::min(rings.available(rank), left);
        if (count > 0) {
            rings.peek(rank, count, [&](const char* data, std::int64_t at, std::int64_t k) {
                std::memcpy(bytes_of(received_) + peer.receive_begin + peer.taken + at, data,
                            static_cast<std::size_t>(k));
            });
            peer.taken += count;
            rings.advance(rank, count);
        }
        if (count < left) return false;
        rings.advance(rank, aligned(through_ring(sizes, 0, size)) - through_ring(sizes, 0, me + 1));
        peer.is_received = true;
    }
    return !peer.will_end || peer.last.read_header(rings, rank, {Kind::Rows, 0}, 0);
}

bool DirectRows::read(MessageRings& rings)
{
    bool all = true;
    for (int r = 0; r < rings.size(); ++r) {
        if (r != rings.rank()) all &= receive(rings, r);
    }
    return all;
}

void DirectRows::finish()
{
    if (target_.is_same(received_)) return;
    for (const auto& peer : by_rank_) {
        const auto begin = peer.receive_begin, count = peer.receive_end - begin;
        if (is_direct(count) && peer.will_end)
            std::memcpy(bytes_of(received_) + begin, bytes_of(target_) + begin, static_cast<std::size_t>(count));
    }
}

}  // namespace meshard
