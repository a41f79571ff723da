// SPDX-License-Identifier: Apache-2.0
#include "sharding/transport/message_rings.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <sys/mman.h>

namespace meshard {
namespace {

const char* name_of(MessageHeader::Kind kind)
{
    using Kind = MessageHeader::Kind;
    switch (kind) {
    case Kind::AllReduce:
        return "all_reduce";
    case Kind::Broadcast:
        return "broadcast";
    case Kind::AllToAll:
        return "all_to_all";
    case Kind::Barrier:
        return "barrier";
    case Kind::Rows:
        return "exchange of rows";
    }
    return "?";
}

const char* name_of(c10d::ReduceOp::RedOpType reduction)
{
    switch (reduction) {
    case c10d::ReduceOp::SUM:
        return "a sum";
    case c10d::ReduceOp::MIN:
        return "the least";
    case c10d::ReduceOp::MAX:
        return "the largest";
    default:
        return "another";
    }
}

}  // namespace

std::int64_t MessageRings::counter_bytes(std::int64_t size)
{
    return (2 * size + size * size) * static_cast<std::int64_t>(sizeof(Counter));
}

std::int64_t MessageRings::bytes(int size)
{
    return counter_bytes(size) + size * kRingBytes;
}

MessageRings::MessageRings(void* memory, int rank, int size)
    : memory_(memory), rank_(rank), size_(size), read_position_(size, 0)
{
}

MessageRings::~MessageRings()
{
    leave();
    munmap(memory_, static_cast<std::size_t>(bytes(size_)));
}

std::int64_t MessageRings::room() const
{
    const auto position = written(rank_).load(std::memory_order_relaxed);
    auto slowest = position;
    for (int r = 0; r < size_; ++r) {
        if (r != rank_) slowest = std::min(slowest, consumed(rank_, r).load(std::memory_order_acquire));
    }
    return kRingBytes - (position - slowest);
}

void MessageRings::advance(int peer, std::int64_t n)
{
    read_position_[peer] += n;
    consumed(peer, rank_).store(read_position_[peer], std::memory_order_release);
}

Outgoing::Outgoing(MessageHeader header, const std::vector<std::int64_t>& sizes, const char* data, std::int64_t bytes)
    : Outgoing(
          header, sizes,
          [data](std::int64_t begin, std::int64_t count, char* to) {
              std::memcpy(to, data + begin, static_cast<std::size_t>(count));
          },
          bytes)
{
}

Outgoing::Outgoing(MessageHeader header, const std::vector<std::int64_t>& sizes, Source read, std::int64_t bytes)
    : read_(std::move(read)), bytes_(bytes)
{
    head_.resize(static_cast<std::size_t>(
        aligned(static_cast<std::int64_t>(sizeof header + sizes.size() * sizeof(std::int64_t)))));
    std::memcpy(head_.data(), &header, sizeof header);
    if (!sizes.empty()) std::memcpy(head_.data() + sizeof header, sizes.data(), sizes.size() * sizeof(std::int64_t));
}

bool Outgoing::put(MessageRings& rings)
{
    const auto head = std::ssize(head_), end = head + aligned(bytes_);
    if (position_ == 0) {
        const auto number = rings.collective();
        std::memcpy(head_.data() + offsetof(MessageHeader, collective), &number, sizeof number);
    }
    while (position_ < end) {
        const auto fill = [&](char* data, std::int64_t at, std::int64_t count) {
            const auto from = position_ + at;
            if (from < head)
                std::memcpy(data, head_.data() + from, static_cast<std::size_t>(count));
            else if (from < head + bytes_)
                read_(from - head, count, data);
            else
                std::memset(data, 0, static_cast<std::size_t>(count));  // padding
        };
        const auto n = (position_ < head ? head : position_ < head + bytes_ ? head + bytes_ : end) - position_;
        const auto put = rings.put(n, fill);
        if (put == 0) return false;
        position_ += put;
    }
    return true;
}

bool Incoming::read_header(MessageRings& rings, int peer, MessageHeader expected, std::int64_t num_sizes)
{
    if (known_) return true;
    const auto n = aligned(static_cast<std::int64_t>(sizeof(MessageHeader)) +
                           num_sizes * static_cast<std::int64_t>(sizeof(std::int64_t)));
    if (rings.available(peer) < MessageRings::kLine) return false;
    std::vector<char> bytes(n);
    const auto copy = [&](const char* data, std::int64_t at, std::int64_t count) {
        std::memcpy(bytes.data() + at, data, static_cast<std::size_t>(count));
    };
    MessageHeader header{};
    rings.peek(peer, MessageRings::kLine, copy);
    std::memcpy(&header, bytes.data(), sizeof header);
    if (header.kind == expected.kind && header.type != expected.type) {
        throw std::runtime_error(fmt::format("the ranks pass tensors of different types to {}: here {}, on rank {} {}",
                                             name_of(expected.kind), c10::toString(expected.type), peer,
                                             c10::toString(header.type)));
    }
    if (header.kind != expected.kind || (expected.bytes >= 0 && header.bytes != expected.bytes)) {
        throw std::runtime_error(
            fmt::format("the ranks call different collectives: here {} of {} bytes, on rank {} {} of {}",
                        name_of(expected.kind), expected.bytes, peer, name_of(header.kind), header.bytes));
    }
    if (header.reduction != expected.reduction)
        throw std::runtime_error(fmt::format("the ranks reduce in different ways: {} here, {} on rank {}",
                                             name_of(expected.reduction), name_of(header.reduction), peer));
    if (header.collective != rings.collective())
        throw std::runtime_error(fmt::format("the ranks disagree about an earlier collective, such as who sends in a "
                                             "broadcast: here is number {}, on rank {} number {}",
                                             rings.collective(), peer, header.collective));
    if (rings.available(peer) < n) return false;
    rings.peek(peer, n, copy);
    sizes.resize(num_sizes);
    if (num_sizes) std::memcpy(sizes.data(), bytes.data() + sizeof header, sizes.size() * sizeof(std::int64_t));
    rings.advance(peer, n);
    known_ = true;
    return true;
}

bool Incoming::take(MessageRings& rings, int peer, std::int64_t n, char* into)
{
    const auto count = std::min(rings.available(peer), aligned(n) - position_);
    const auto useful = std::min(count, n - position_);
    if (useful > 0) {
        rings.peek(peer, useful, [&](const char* data, std::int64_t at, std::int64_t k) {
            std::memcpy(into + position_ + at, data, static_cast<std::size_t>(k));
        });
    }
    position_ += count;
    rings.advance(peer, count);
    return position_ >= aligned(n);
}

}  // namespace meshard
