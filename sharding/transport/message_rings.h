// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace meshard {

/// Streams of bytes between processes that share memory: every rank writes to its own ring buffer, and all other ranks read it. Not thread-safe.
class MessageRings {
public:
    static constexpr std::int64_t kLine = 64;  ///< messages begin on a cache line

    /// Bytes of the memory that `size` ranks share; it must be zero at the start.
    static std::int64_t bytes(int size);

    /// `memory` is a mapping of that many bytes, which this object unmaps at its end.
    MessageRings(void* memory, int rank, int size);
    ~MessageRings();  ///< calls `leave`
    MessageRings(const MessageRings&) = delete;
    MessageRings& operator=(const MessageRings&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }

    /// Writes up to `bytes` bytes to this rank's ring; returns how many had room. `fill(data, at, count)` writes bytes at, ..., at + count - 1 to `data`.
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
    std::int64_t available(int peer) const { return std::max<std::int64_t>(0, written(peer).load(std::memory_order_acquire) - read_position_[peer]); }

    /// Calls f(data, at, count) on up to two pieces of the next n bytes of `peer`, which must be available. Does not mark them as read (`advance`).
    template <class F>
    void peek(int peer, std::int64_t n, F&& f) const
    {
        in_pieces(peer, read_position_[peer], n, f);
    }

    /// Marks the next n bytes of `peer` as read, whether they are available or still to come.
    void advance(int peer, std::int64_t n);

    /// Tells the other ranks that this rank will send nothing more.
    void leave() { counter(size_ + rank_).store(1, std::memory_order_release); }
    bool has_left(int rank) const { return counter(size_ + rank).load(std::memory_order_acquire) != 0; }

private:
    static constexpr std::int64_t kRingBytes = std::int64_t{2} << 20;  // small enough to stay in the cache, large enough for a layer's message

    /// A number that one rank writes and others read, on a cache line of its own.
    struct alignas(kLine) Counter {
        std::atomic<std::int64_t> value{0};
    };

    std::int64_t room() const;  // free bytes in this rank's ring

    // In memory: written[size], left[size], consumed[writer][reader], then the rings.
    static std::int64_t counter_bytes(std::int64_t size);
    std::atomic<std::int64_t>& counter(std::int64_t i) const { return static_cast<Counter*>(memory_)[i].value; }
    std::atomic<std::int64_t>& written(int rank) const { return counter(rank); }
    std::atomic<std::int64_t>& consumed(int writer, int reader) const { return counter(2 * size_ + writer * size_ + reader); }

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
    std::vector<std::int64_t> read_position_;  // in each peer's stream
};

constexpr std::int64_t aligned(std::int64_t bytes)
{
    return (bytes + MessageRings::kLine - 1) / MessageRings::kLine * MessageRings::kLine;
}

/// Header of each message: the collective that it belongs to, so that ranks that call different collectives get an error.
struct MessageHeader {
    enum class Kind : std::int64_t { AllReduce = 1, Broadcast, AllToAll, Barrier, Rows };

    Kind kind;
    std::int64_t bytes;
};

/// One message of this rank to all others. Header and data are padded to whole cache lines, so that no number is split at the ring's end.
class Outgoing {
public:
    Outgoing() = default;

    /// `sizes` are sent with the header. `data` must live until `put` has returned true.
    Outgoing(MessageHeader header, const std::vector<std::int64_t>& sizes, const char* data, std::int64_t bytes);

    /// The same with data that `read(begin, count, to)` copies.
    using Source = std::function<void(std::int64_t begin, std::int64_t count, char* to)>;
    Outgoing(MessageHeader header, const std::vector<std::int64_t>& sizes, Source read, std::int64_t bytes);

    /// Writes as much to the ring as it has room for; true when all is written.
    bool put(MessageRings& rings);

private:
    std::vector<char> head_;
    Source read_;
    std::int64_t bytes_ = 0;
    std::int64_t position_ = 0;
};

/// The next message of a peer.
class Incoming {
public:
    /// Reads the header if it has arrived; true once it has been read. @throws std::runtime_error if it belongs to another collective than `expected`,
    /// or to a message of another size (negative: any size).
    bool read_header(MessageRings& rings, int peer, MessageHeader expected, std::int64_t num_sizes);
    bool has_header() const { return known_; }

    /// Copies what has arrived of a message of n bytes to `into`; true when all of it has been read, padding included.
    bool take(MessageRings& rings, int peer, std::int64_t n, char* into);

    std::vector<std::int64_t> sizes;  ///< received with the header

private:
    bool known_ = false;
    std::int64_t position_ = 0;  // bytes taken
};

}  // namespace meshard
