// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

namespace meshard {

/// Byte streams between processes that share memory: every rank writes to its own ring buffer, and all other ranks read
/// it. Not thread-safe.
class MessageRings {
public:
    static constexpr std::int64_t kLine = 64;  ///< messages begin on a cache line

    /// Bytes of shared memory that `size` ranks need; it must be zero at the start.
    static std::int64_t bytes(int size);

    /// @param memory   a mapping of `bytes(size)` bytes, which the destructor unmaps
    MessageRings(void* memory, int rank, int size);
    ~MessageRings();  ///< calls `leave`
    MessageRings(const MessageRings&) = delete;
    MessageRings& operator=(const MessageRings&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }

    /// Writes up to `bytes` bytes to this rank's ring; returns how many there was room for. `fill(data, at, count)`
    /// must write bytes at, ..., at + count - 1 of the message to `data`.
    template <class F>
    std::int64_t put(std::int64_t bytes, F&& fill)
    {
        const auto n = std::min(bytes, room());
        const auto position = written(rank_).load(std::memory_order_relaxed);
        in_pieces(rank_, position, n, fill);
        written(rank_).store(position + n, std::memory_order_release);
        return n;
    }

    /// Bytes that `peer` has written and this rank has not read yet.
    std::int64_t available(int peer) const
    {
        return std::max<std::int64_t>(0, written(peer).load(std::memory_order_acquire) - read_position_[peer]);
    }

    /// Calls f(data, at, count) on one or two pieces that make up the next n bytes of `peer`, which must be available.
    /// Does not mark them as read (`advance`).
    template <class F>
    void peek(int peer, std::int64_t n, F&& f) const
    {
        in_pieces(peer, read_position_[peer], n, f);
    }

    /// Marks the next n bytes of `peer` as read, even if they have not been written yet.
    void advance(int peer, std::int64_t n);

    /// Returns whether this rank can write nothing more before `peer` reads.
    bool is_full_for(int peer) const
    {
        return written(rank_).load(std::memory_order_relaxed) - consumed(rank_, peer).load(std::memory_order_acquire) >=
               kRingBytes;
    }

    /// Sets the number of the collective to which messages belong from now on. Ranks count those that they start,
    /// since some write nothing in one.
    void set_collective(std::int64_t number) { collective_ = number; }
    std::int64_t collective() const { return collective_; }

    /// Announces to the other ranks that this rank will send nothing more.
    void leave() { counter(size_ + rank_).store(1, std::memory_order_release); }
    bool has_left(int rank) const { return counter(size_ + rank).load(std::memory_order_acquire) != 0; }

private:
    // Small enough to stay in the cache, large enough for a layer's message.
    static constexpr std::int64_t kRingBytes = std::int64_t{2} << 20;

    /// A counter that one rank writes and others read, on its own cache line.
    struct alignas(kLine) Counter {
        std::atomic<std::int64_t> value{0};
    };

    std::int64_t room() const;  // free bytes in this rank's ring

    // Memory layout: written[size], left[size], consumed[writer][reader], then the rings.
    static std::int64_t counter_bytes(std::int64_t size);
    std::atomic<std::int64_t>& counter(std::int64_t i) const { return static_cast<Counter*>(memory_)[i].value; }
    std::atomic<std::int64_t>& written(int rank) const { return counter(rank); }
    std::atomic<std::int64_t>& consumed(int writer, int reader) const
    {
        return counter(2 * size_ + writer * size_ + reader);
    }

    template <class F>
    void in_pieces(int writer, std::int64_t position, std::int64_t n, F&& f) const
    {
        char* ring = static_cast<char*>(memory_) + counter_bytes(size_) + writer * kRingBytes;
        const auto start = position % kRingBytes;
        const auto first = std::min(n, kRingBytes - start);
        if (first > 0) f(ring + start, std::int64_t{0}, first);
        if (n > first) f(ring, first, n - first);
    }

    void* memory_;
    int rank_, size_;
    std::int64_t collective_ = 0;
    std::vector<std::int64_t> read_position_;  // position in each peer's stream
};

constexpr std::int64_t aligned(std::int64_t bytes)
{
    return (bytes + MessageRings::kLine - 1) / MessageRings::kLine * MessageRings::kLine;
}

/// Header of each message. It identifies the collective, so that ranks that call different collectives get an error.
struct MessageHeader {
    enum class Kind : std::int64_t { AllReduce = 1, Broadcast, AllToAll, Barrier, Rows };

    Kind kind;
    std::int64_t bytes;
    /// Of the tensor's numbers; Undefined for rows, which are sent as bytes, and barriers.
    c10::ScalarType type = c10::ScalarType::Undefined;
    c10d::ReduceOp::RedOpType reduction = c10d::ReduceOp::UNUSED;
    std::int64_t collective = 0;  ///< set when the message is written
};

/// One message of this rank to all others. Header and data are padded to whole cache lines, so that no number wraps
/// around the ring's end.
class Outgoing {
public:
    Outgoing() = default;

    /// `sizes` are sent with the header. `data` must stay valid until `put` has returned true.
    Outgoing(MessageHeader header, const std::vector<std::int64_t>& sizes, const char* data, std::int64_t bytes);

    /// A message whose data `read(begin, count, to)` copies to `to`.
    using Source = std::function<void(std::int64_t begin, std::int64_t count, char* to)>;
    Outgoing(MessageHeader header, const std::vector<std::int64_t>& sizes, Source read, std::int64_t bytes);

    /// Writes as much to the ring as there is room for; returns true when all is written.
    bool put(MessageRings& rings);

private:
    std::vector<char> head_;
    Source read_;
    std::int64_t bytes_ = 0;
    std::int64_t position_ = 0;
};

/// Reads the next message of a peer.
class Incoming {
public:
    /// Reads the header if it has arrived; returns true once it has been read.
    /// @throws std::runtime_error if the message belongs to another collective than `expected`, or has another size
    /// (any size is accepted if the expected one is negative)
    bool read_header(MessageRings& rings, int peer, MessageHeader expected, std::int64_t num_sizes);
    bool has_header() const { return known_; }

    /// Copies the available part of a message of n bytes to `into`; returns true when all of it has been read, padding
    /// included.
    bool take(MessageRings& rings, int peer, std::int64_t n, char* into);

    std::vector<std::int64_t> sizes;  ///< received with the header

private:
    bool known_ = false;
    std::int64_t position_ = 0;  // bytes read so far
};

}  // namespace meshard
