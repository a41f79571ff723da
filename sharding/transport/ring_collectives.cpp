// SPDX-License-Identifier: Apache-2.0
#include "sharding/transport/ring_collectives.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

namespace meshard {
namespace {

using Kind = MessageHeader::Kind;

// Larger sums of more than two ranks are divided: each rank sums one share.
constexpr std::int64_t kSharedOutBytes = std::int64_t{64} << 10;

template <class T>
void combine(char* into, const char* from, std::int64_t bytes, c10d::ReduceOp::RedOpType op)
{
    auto* a = reinterpret_cast<T*>(into);
    const auto* b = reinterpret_cast<const T*>(from);
    const auto n = bytes / static_cast<std::int64_t>(sizeof(T));
    // NaN takes precedence over every number, as in at::maximum.
    const auto is_nan = [](T x) { return x != x; };
    switch (op) {
    case c10d::ReduceOp::SUM:
        for (std::int64_t i = 0; i < n; ++i) a[i] = static_cast<T>(a[i] + b[i]);
        return;
    case c10d::ReduceOp::MAX:
        for (std::int64_t i = 0; i < n; ++i) a[i] = (b[i] > a[i] || is_nan(b[i])) ? b[i] : a[i];
        return;
    case c10d::ReduceOp::MIN:
        for (std::int64_t i = 0; i < n; ++i) a[i] = (b[i] < a[i] || is_nan(b[i])) ? b[i] : a[i];
        return;
    default:
        throw std::runtime_error("shared memory: unknown reduction");
    }
}

using Combine = void (*)(char*, const char*, std::int64_t, c10d::ReduceOp::RedOpType);

Combine combine_of(at::ScalarType type)
{
    switch (type) {
    case at::kFloat:
        return combine<float>;
    case at::kDouble:
        return combine<double>;
    case at::kLong:
        return combine<std::int64_t>;
    case at::kInt:
        return combine<std::int32_t>;
    case at::kShort:
        return combine<std::int16_t>;
    case at::kChar:
        return combine<std::int8_t>;
    case at::kByte:
    case at::kBool:
        return combine<std::uint8_t>;
    default:
        throw std::runtime_error(std::string("shared memory: cannot reduce values of type ") + at::toString(type) +
                                 "; convert to float");
    }
}

/// A tensor's memory during a collective: its own, or a copy on the CPU.
struct Staged {
    explicit Staged(const at::Tensor& tensor) : tensor(tensor), host(tensor.device().is_cpu() ? tensor : tensor.cpu())
    {
        if (!tensor.is_contiguous()) throw std::runtime_error("shared memory: the tensor is not contiguous");
    }
    char* data() const { return static_cast<char*>(host.data_ptr()); }
    std::int64_t bytes() const { return host.numel() * static_cast<std::int64_t>(host.element_size()); }
    void back()
    {
        if (!host.is_same(tensor)) tensor.copy_(host);
    }

    at::Tensor tensor, host;
};

/// Every rank writes its whole tensor to its ring, reads the part that it has to sum (all, or one share) from all
/// rings, and adds in rank order. If the sum is divided into shares, each rank then writes its share of the result to
/// its ring.
class AllReduce : public RingCollective {
public:
    AllReduce(const MessageRings& rings, const at::Tensor& tensor, c10d::ReduceOp::RedOpType op)
        : staged_(tensor), op_(op), combine_(combine_of(tensor.scalar_type())), incoming_(rings.size()),
          sums_(rings.size())
    {
        const auto size = rings.size();
        const auto bytes = staged_.bytes();
        shared_out_ = size > 2 && bytes > kSharedOutBytes;
        const auto share = shared_out_ ? aligned((bytes + size - 1) / size) : bytes;
        for (int r = 0; r <= size; ++r) starts_.push_back(std::min(bytes, r * share));
        begin_ = shared_out_ ? starts_[rings.rank()] : 0;
        end_ = shared_out_ ? starts_[rings.rank() + 1] : bytes;
        position_ = begin_;
        data_ = Outgoing({Kind::AllReduce, bytes, type(), op_}, {}, staged_.data(), bytes);
        // A separate buffer, since the tensor may still have to be written to the ring.
        result_.resize(end_ - begin_);
    }

    bool write(MessageRings& rings) override
    {
        data_written_ = data_written_ || data_.put(rings);
        if (!data_written_) return false;
        if (!shared_out_) return true;
        if (!summed_) return false;
        if (!sum_ready_)
            sum_ = Outgoing({Kind::AllReduce, end_ - begin_, type(), op_}, {}, result_.data(), end_ - begin_);
        sum_ready_ = true;
        return sum_.put(rings);
    }

    bool read(MessageRings& rings) override
    {
        if (!summed_ && !sum_up(rings)) return false;
        if (!shared_out_) return true;
        if (!data_written_) return false;  // the tensor is overwritten below: all of it must be in the ring before
        bool all = true;
        for (int r = 0; r < rings.size(); ++r) {
            if (r == rings.rank()) continue;
            const auto n = starts_[r + 1] - starts_[r];
            all &= sums_[r].read_header(rings, r, {Kind::AllReduce, n, type(), op_}, 0) &&
                   sums_[r].take(rings, r, n, staged_.data() + starts_[r]);
        }
        return all;
    }

    void finish() override
    {
        std::memcpy(staged_.data() + begin_, result_.data(), result_.size());
        staged_.back();
    }

private:
    at::ScalarType type() const { return staged_.tensor.scalar_type(); }

    bool sum_up(MessageRings& rings)
    {
        const auto size = rings.size(), me = rings.rank();
        const auto bytes = staged_.bytes();
        for (int r = 0; r < size; ++r) {
            if (r == me || incoming_[r].has_header()) continue;
            if (!incoming_[r].read_header(rings, r, {Kind::AllReduce, bytes, type(), op_}, 0)) return false;
            rings.advance(r, begin_);  // bytes for the shares of lower ranks
        }
        while (position_ < end_) {
            auto n = end_ - position_;
            for (int r = 0; r < size; ++r) {
                if (r != me) n = std::min(n, rings.available(r));
            }
            if (n < end_ - position_) n = n / MessageRings::kLine * MessageRings::kLine;
            if (n == 0) return false;
            n = std::min<std::int64_t>(n, 64 << 10);  // the block stays in the cache while all ranks' values are added
            char* sum = result_.data() + (position_ - begin_);
            for (int r = 0; r < size; ++r) {
                const auto add = [&](const char* data, std::int64_t at, std::int64_t k) {
                    if (r == 0)
                        std::memcpy(sum + at, data, static_cast<std::size_t>(k));
                    else
                        combine_(sum + at, data, k, op_);
                };
                if (r == me) {
                    add(staged_.data() + position_, 0, n);
                } else {
                    rings.peek(r, n, add);
                    rings.advance(r, n);
                }
            }
            position_ += n;
        }
        for (int r = 0; r < size; ++r) {
            if (r != me) rings.advance(r, aligned(bytes) - end_);
        }
        summed_ = true;
        return true;
    }

    Staged staged_;
    c10d::ReduceOp::RedOpType op_;
    Combine combine_;
    std::vector<Incoming> incoming_, sums_;
    std::vector<std::int64_t> starts_;
    std::vector<char> result_;
    Outgoing data_, sum_;
    std::int64_t begin_ = 0, end_ = 0, position_ = 0;
    bool shared_out_ = false, data_written_ = false, summed_ = false, sum_ready_ = false;
};

class Broadcast : public RingCollective {
public:
    Broadcast(const MessageRings& rings, const at::Tensor& tensor, int root)
        : staged_(tensor), root_(root), is_root_(root == rings.rank())
    {
        if (is_root_) message_ = Outgoing(header(), {}, staged_.data(), staged_.bytes());
    }

    bool write(MessageRings& rings) override { return !is_root_ || message_.put(rings); }

    bool read(MessageRings& rings) override
    {
        const auto n = staged_.bytes();
        return is_root_ ||
               (incoming_.read_header(rings, root_, header(), 0) && incoming_.take(rings, root_, n, staged_.data()));
    }

    bool awaits(int rank) const override { return rank == root_; }

    void finish() override
    {
        if (!is_root_) staged_.back();
    }

private:
    MessageHeader header() const { return {Kind::Broadcast, staged_.bytes(), staged_.tensor.scalar_type()}; }

    Staged staged_;
    int root_;
    bool is_root_;
    Outgoing message_;
    Incoming incoming_;
};

class AllToAll : public RingCollective {
public:
    /// `read(begin, count, to)` copies bytes of the sent stream to `to`; called during the lifetime of this object.
    AllToAll(const MessageRings& rings, const at::Tensor& out, std::vector<std::int64_t> receive_bytes,
             std::vector<std::int64_t> send_bytes, Outgoing::Source read)
        : out_(out), receive_(std::move(receive_bytes)), incoming_(receive_.size()), taken_(receive_.size(), 0),
          finished_(receive_.size(), false)
    {
        const auto me = rings.rank();
        const auto before = [me](const std::vector<std::int64_t>& bytes) {
            return std::accumulate(bytes.begin(), bytes.begin() + me, std::int64_t{0});
        };
        if (send_bytes[me] != receive_[me])
            throw std::runtime_error("all_to_all: a rank sends itself another number of rows than it receives");
        read(before(send_bytes), receive_[me], out_.data() + before(receive_));
        const auto all = std::accumulate(send_bytes.begin(), send_bytes.end(), std::int64_t{0});
        message_ = Outgoing({Kind::AllToAll, all, out_.tensor.scalar_type()}, send_bytes, std::move(read), all);
    }

    bool write(MessageRings& rings) override { return message_.put(rings); }

    bool read(MessageRings& rings) override
    {
        const auto me = rings.rank(), size = rings.size();
        bool all = true;
        std::int64_t start = 0;
        for (int r = 0; r < size; start += receive_[r], ++r) {
            if (r == me || finished_[r]) continue;
            auto& incoming = incoming_[r];
            const bool is_new = !incoming.has_header();
            if (!incoming.read_header(rings, r, {Kind::AllToAll, -1, out_.tensor.scalar_type()}, size)) {
                all = false;
                continue;
            }
            const auto before = std::accumulate(incoming.sizes.begin(), incoming.sizes.begin() + me, std::int64_t{0});
            const auto total = std::accumulate(incoming.sizes.begin(), incoming.sizes.end(), std::int64_t{0});
            if (incoming.sizes[me] != receive_[r]) {
                throw std::runtime_error(
                    fmt::format("all_to_all: rank {} sends {} bytes, expected {}", r, incoming.sizes[me], receive_[r]));
            }
            if (is_new) rings.advance(r, before);  // skips what the peer sends to other ranks
            const auto n = std::min(rings.available(r), receive_[r] - taken_[r]);
            if (n > 0) {
                rings.peek(r, n, [&](const char* data, std::int64_t at, std::int64_t k) {
                    std::memcpy(out_.data() + start + taken_[r] + at, data, static_cast<std::size_t>(k));
                });
                taken_[r] += n;
                rings.advance(r, n);
            }
            finished_[r] = taken_[r] == receive_[r];
            if (finished_[r])
                rings.advance(r, aligned(total) - before - receive_[r]);
            else
                all = false;
        }
        return all;
    }

    bool awaits(int rank) const override { return !finished_[rank]; }

    void finish() override { out_.back(); }

private:
    Staged out_;
    std::vector<std::int64_t> receive_;
    std::vector<Incoming> incoming_;
    std::vector<std::int64_t> taken_;  // bytes
    std::vector<bool> finished_;
    Outgoing message_;
};

class Barrier : public RingCollective {
public:
    explicit Barrier(const MessageRings& rings) : message_({Kind::Barrier, 0}, {}, nullptr, 0), incoming_(rings.size())
    {
    }
    bool write(MessageRings& rings) override { return message_.put(rings); }
    bool read(MessageRings& rings) override
    {
        bool all = true;
        for (int r = 0; r < rings.size(); ++r) {
            if (r != rings.rank()) all &= incoming_[r].read_header(rings, r, {Kind::Barrier, 0}, 0);
        }
        return all;
    }

private:
    Outgoing message_;
    std::vector<Incoming> incoming_;
};

}  // namespace

std::unique_ptr<RingCollective> ring_all_reduce(const MessageRings& rings, const at::Tensor& tensor,
                                                c10d::ReduceOp::RedOpType op)
{
    return std::make_unique<AllReduce>(rings, tensor, op);
}

std::unique_ptr<RingCollective> ring_broadcast(const MessageRings& rings, const at::Tensor& tensor, int root)
{
    return std::make_unique<Broadcast>(rings, tensor, root);
}

std::unique_ptr<RingCollective> ring_all_to_all(const MessageRings& rings, const at::Tensor& out,
                                                std::vector<std::int64_t> receive_bytes,
                                                std::vector<std::int64_t> send_bytes, Outgoing::Source read)
{
    return std::make_unique<AllToAll>(rings, out, std::move(receive_bytes), std::move(send_bytes), std::move(read));
}

std::unique_ptr<RingCollective> ring_barrier(const MessageRings& rings)
{
    return std::make_unique<Barrier>(rings);
}

}  // namespace meshard
