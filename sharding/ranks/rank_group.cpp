// SPDX-License-Identifier: Apache-2.0
#include "sharding/ranks/rank_group.h"

#include "partition/error.h"
#include "sharding/ranks/row_stream.h"
#include "sharding/ranks/type_limits.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <numeric>

namespace meshard {
namespace {

c10d::ReduceOp reduce_op(Reduction reduction)
{
    switch (reduction) {
    case Reduction::Sum:
        return c10d::ReduceOp::SUM;
    case Reduction::Max:
        return c10d::ReduceOp::MAX;
    case Reduction::Min:
        return c10d::ReduceOp::MIN;
    }
    return c10d::ReduceOp::SUM;
}

/// Views a tensor in a type that every transport can send: a complex tensor as pairs of numbers, a type that a
/// transport lacks as one of the same size.
at::Tensor as_carried(const at::Tensor& tensor)
{
    if (tensor.is_complex()) return as_carried(at::view_as_real(tensor));
    switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kInt:
    case at::kLong:
        return tensor;
    default:
        break;
    }
    const auto bytes = tensor.element_size();
    return tensor.view(bytes == 1 ? at::kByte : bytes == 2 ? at::kHalf : bytes == 4 ? at::kInt : at::kLong);
}

/// The type in which ranks reduce. Transports differ in the types and precisions that they support; these types give
/// the same results on all of them.
at::ScalarType reduced_type(at::ScalarType type, Reduction reduction)
{
    const auto reduced = c10::isIntegralType(type, /*includeBool=*/true)
                             ? (type == at::kLong || type == at::ScalarType::UInt32 ? at::kLong : at::kInt)
                             : sum_type(type);
    const bool is_known = type != at::ScalarType::UInt64 &&
                          (reduced == at::kFloat || reduced == at::kDouble || reduced == at::kInt ||
                           reduced == at::kLong || (at::isComplexType(reduced) && reduction == Reduction::Sum));
    if (is_known) return reduced;
    throw InvalidInput("all_reduce: values of type {} have no {} over ranks; expected numbers of up to 64 bits with a "
                       "sign, for a sum complex ones too. Convert the tensor.",
                       at::toString(type),
                       reduction == Reduction::Sum   ? "sum"
                       : reduction == Reduction::Max ? "maximum"
                                                     : "minimum");
}

/// Maps floating-point numbers to integers in the same order. Transports treat NaN and signed zeros differently, but
/// agree on the extremes of integers. NaN becomes the largest integer for a maximum, the smallest for a minimum.
at::Tensor as_ordered(const at::Tensor& x, Reduction reduction)
{
    const auto type = x.scalar_type() == at::kDouble ? at::kLong : at::kInt;
    const auto bits = x.view(type);
    return at::where(bits.lt(0), bits.bitwise_xor(highest_value(type)), bits)
        .masked_fill_(x.isnan(), reduction == Reduction::Max ? highest_value(type) : lowest_value(type));
}

/// The inverse of `as_ordered`; the integer for NaN becomes a NaN.
at::Tensor from_ordered(const at::Tensor& ordered)
{
    const auto bits = at::where(ordered.lt(0), ordered.bitwise_xor(highest_value(ordered.scalar_type())), ordered);
    return bits.view(ordered.scalar_type() == at::kLong ? at::kDouble : at::kFloat);
}

/// The buffer that is sent in a reduction of a tensor.
struct Reduced {
    Reduced(const at::Tensor& tensor, Reduction reduction) : tensor(tensor)
    {
        const at::NoGradGuard no_grad;
        const auto type = reduced_type(tensor.scalar_type(), reduction);
        is_ordered = reduction != Reduction::Sum && at::isFloatingType(type);
        const bool fits =
            tensor.scalar_type() == type && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
        wide = fits ? tensor : tensor.to(type, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
        values = is_ordered ? as_ordered(wide, reduction) : as_carried(wide);
    }

    bool is_in_place() const { return !is_ordered && wide.is_same(tensor); }

    void second_half() const
    {
        const at::NoGradGuard no_grad;
        tensor.copy_(is_ordered ? from_ordered(values) : wide);
    }

    at::Tensor tensor;
    at::Tensor wide;    // the values in the type of sums
    at::Tensor values;  // the buffer that is sent: contiguous, of a type that every transport reduces
    bool is_ordered = false;
};

/// Waits for a collective on a buffer, then copies the result to the tensor if it was not reduced in place.
class BringBack : public c10d::Work {
public:
    BringBack(c10::intrusive_ptr<c10d::Work> work, Reduced reduced)
        : work_(std::move(work)), reduced_(std::move(reduced))
    {
    }

    bool isCompleted() override { return work_->isCompleted(); }

    bool wait(std::chrono::milliseconds timeout) override
    {
        work_->wait(timeout);
        reduced_.second_half();
        return true;
    }

private:
    c10::intrusive_ptr<c10d::Work> work_;
    Reduced reduced_;
};

/// Counts the time that the host waits, as long as this lives.
class Waiting {
public:
    explicit Waiting(CommCounter& counter) : counter_(counter) {}
    ~Waiting()
    {
        counter_.record_wait(std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

private:
    CommCounter& counter_;
    const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Several collectives with one `wait`.
class AllOf : public c10d::Work {
public:
    /// Null entries, which had nothing to send, are dropped.
    explicit AllOf(std::vector<c10::intrusive_ptr<c10d::Work>> works) : works_(std::move(works))
    {
        std::erase(works_, nullptr);
    }

    bool isCompleted() override
    {
        return std::ranges::all_of(works_, [](const auto& work) { return work->isCompleted(); });
    }

    bool wait(std::chrono::milliseconds timeout) override
    {
        for (const auto& work : works_) work->wait(timeout);
        return true;
    }

private:
    std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

std::int64_t byte_size(const at::Tensor& tensor)
{
    return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

std::int64_t sum_of(std::span<const std::int64_t> values)
{
    return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

/// To be called in a handler. Rethrows an exception that other ranks have no part in.
void rethrow_own_failure(const std::exception& error)
{
    if (dynamic_cast<const InvalidInput*>(&error) || dynamic_cast<const c10::OutOfMemoryError*>(&error)) throw;
}

}  // namespace

bool has_ended(const std::string& name)
{
    const auto colon = name.rfind(':');
    char host[256] = {};
    if (colon == std::string::npos || gethostname(host, sizeof host - 1) != 0 || name.substr(0, colon) != host)
        return false;
    std::ifstream stat("/proc/" + name.substr(colon + 1) + "/stat");
    std::string text;
    if (!std::getline(stat, text)) return true;
    const auto after_name = text.rfind(')');
    return after_name != std::string::npos && after_name + 2 < text.size() && text[after_name + 2] == 'Z';
}

PendingCollective::PendingCollective(c10::intrusive_ptr<c10d::Work> work, std::string what, const RankGroup* group,
                                     std::vector<at::Tensor> buffers)
    : work_(std::move(work)), what_(std::move(what)), group_(group)
{
    if (buffers.empty()) return;
    // `wait` clears the buffers. A transfer that was never waited for may still write to them: they are leaked, not
    // freed.
    buffers_ = {new std::vector<at::Tensor>(std::move(buffers)), [](std::vector<at::Tensor>* left) {
                    if (left->empty()) delete left;
                }};
}

void PendingCollective::wait()
{
    if (!work_) return;
    const auto work = std::exchange(work_, {});
    RECORD_USER_SCOPE("wait for " + what_ + " over " + group_->axis());
    const Waiting waiting(*group_->counter_);
    try {
        work->wait();
    } catch (const std::exception& error) {
        rethrow_own_failure(error);
        throw CommunicationError(group_->describe_failure(what_, error.what()));
    }
    if (buffers_) buffers_->clear();
}

bool PendingCollective::is_done() const
{
    if (!work_) return true;
    try {
        return work_->isCompleted();
    } catch (const std::exception& error) {
        rethrow_own_failure(error);
        throw CommunicationError(group_->describe_failure(what_, error.what()));
    }
}

RankGroup::RankGroup() : counter_(std::make_shared<CommCounter>()) {}

RankGroup::RankGroup(c10::intrusive_ptr<c10d::Backend> backend, std::string axis, std::shared_ptr<CommCounter> counter,
                     std::vector<std::string> names)
    : backend_(std::move(backend)), axis_(std::move(axis)), counter_(std::move(counter)), names_(std::move(names))
{
    if (backend_) {
        rank_ = backend_->getRank();
        size_ = backend_->getSize();
    }
}

std::string RankGroup::describe_failure(const std::string& what, const std::string& error) const
{
    // A rank's sockets close before its process has ended: the loop waits a moment for the process to be known as
    // ended.
    std::string gone;
    for (int attempt = 0; attempt < 20 && gone.empty(); ++attempt) {
        if (attempt > 0) usleep(50'000);
        for (int r = 0; r < static_cast<int>(names_.size()); ++r) {
            if (r != rank_ && has_ended(names_[r])) gone += (gone.empty() ? "" : ", ") + std::to_string(r);
        }
        if (names_.empty()) break;
    }
    std::string message = fmt::format("{} over '{}' failed on rank {} of {}: ", what, axis_, rank_, size_);
    if (!gone.empty())
        return message + "rank " + gone + " has ended. See its own message for the reason; start the run again.";
    const auto line_end = error.find('\n');
    return message + "a rank did not answer (" + error.substr(0, std::min<std::size_t>(line_end, 160)) +
           "). See the other ranks' messages; a longer time limit is set with MESHARD_TIMEOUT_SECONDS.";
}

void RankGroup::require_counts(const char* what, std::span<const std::int64_t> counts, std::int64_t held,
                               std::int64_t expected) const
{
    if (counts.size() == static_cast<std::size_t>(size_) && held == expected &&
        std::ranges::all_of(counts, [](std::int64_t count) { return count >= 0; }))
        return;
    throw InvalidInput("{} over '{}': counts [{}] on rank {} of {}, whose tensor has {}. Give one count a "
                       "rank, none negative, which fit the tensor.",
                       what, axis_, fmt::join(counts, ", "), rank_, size_, held);
}

void RankGroup::record(const char* operation, std::int64_t bytes) const
{
    counter_->record(operation, axis_, bytes);
}

void RankGroup::all_reduce(at::Tensor& tensor, Reduction reduction) const
{
    start_all_reduce(tensor, reduction).wait();
}

PendingCollective RankGroup::start_all_reduce(at::Tensor& tensor, Reduction reduction) const
{
    if (size_ == 1) return {};
    if (tensor.numel() == 0) return {};  // on all ranks alike: shapes agree
    RECORD_USER_SCOPE("all_reduce over " + axis_);
    record("all_reduce", byte_size(tensor));
    c10d::AllreduceOptions options;
    options.reduceOp = reduce_op(reduction);
    const Reduced reduced(tensor, reduction);
    std::vector<at::Tensor> tensors{reduced.values};
    try {
        auto work = backend_->allreduce(tensors, options);
        if (!reduced.is_in_place()) work = c10::make_intrusive<BringBack>(std::move(work), reduced);
        return {std::move(work), "all_reduce", this};
    } catch (const std::exception& error) {
        rethrow_own_failure(error);
        throw CommunicationError(describe_failure("all_reduce", error.what()));
    }
}

at::Tensor RankGroup::all_gather_rows(const at::Tensor& local, std::span<const std::int64_t> rows) const
{
    at::Tensor whole;
    start_all_gather_rows(local, rows, whole).wait();
    return whole;
}

PendingCollective RankGroup::start_all_gather_rows(const at::Tensor& local, std::span<const std::int64_t> rows,
                                                   at::Tensor& whole) const
{
    require_counts("all_gather_rows", rows, local.size(0),
                   rows.size() > static_cast<std::size_t>(rank_) ? rows[rank_] : -1);
    if (size_ == 1) {
        whole = local;
        return {};
    }
    auto shape = local.sizes().vec();
    shape[0] = sum_of(rows);
    whole = at::empty(shape, local.options());
    const std::int64_t row_bytes = shape[0] > 0 ? byte_size(whole) / shape[0] : 0;
    RECORD_USER_SCOPE("all_gather over " + axis_);
    record("all_gather", byte_size(whole) - row_bytes * rows[rank_]);
    // Broadcasts are coalesced into one operation of the transport if it supports that.
    const bool is_coalesced = !local.is_cpu() && backend_->supportsCoalescing();
    try {
        std::vector<c10::intrusive_ptr<c10d::Work>> works;
        if (is_coalesced) backend_->startCoalescing();
        std::int64_t offset = 0;
        for (int r = 0; r < size_; ++r) {
            auto slot = whole.narrow(0, offset, rows[r]);
            offset += rows[r];
            if (r == rank_) slot.copy_(local);
            if (slot.numel() == 0) continue;
            c10d::BroadcastOptions options;
            options.rootRank = r;
            std::vector<at::Tensor> tensors{as_carried(slot)};
            works.push_back(backend_->broadcast(tensors, options));
        }
        if (is_coalesced) works = {backend_->endCoalescing()};
        return {c10::make_intrusive<AllOf>(std::move(works)), "all_gather", this, {whole}};
    } catch (const std::exception& error) {
        rethrow_own_failure(error);
        throw CommunicationError(describe_failure("all_gather", error.what()));
    }
}

at::Tensor RankGroup::all_to_all_rows(const at::Tensor& rows, std::span<const std::int64_t> send_rows,
                                      std::span<const std::int64_t> receive_rows) const
{
    require_counts("all_to_all_rows", send_rows, rows.size(0), sum_of(send_rows));
    require_counts("all_to_all_rows", receive_rows, 0, 0);
    if (size_ == 1) return rows;
    auto shape = rows.sizes().vec();
    shape[0] = sum_of(receive_rows);
    auto received = at::empty(shape, rows.options());
    auto sent = as_carried(rows.resolve_conj().resolve_neg().contiguous()), target = as_carried(received);
    const std::int64_t row_bytes = shape[0] > 0 ? byte_size(received) / shape[0] : 0;
    RECORD_USER_SCOPE("all_to_all over " + axis_);
    record("all_to_all", byte_size(received) - row_bytes * receive_rows[rank_]);
    std::vector<std::int64_t> out(receive_rows.begin(), receive_rows.end()), in(send_rows.begin(), send_rows.end());
    const Waiting waiting(*counter_);
    try {
        backend_->alltoall_base(target, sent, out, in)->wait();
    } catch (const std::exception& error) {
        rethrow_own_failure(error);
        throw CommunicationError(describe_failure("all_to_all", error.what()));
    }
    return received;
}

PendingCollective RankGroup::start_ring_shift(const at::Tensor& sent, at::Tensor& received) const
{
    std::vector<std::int64_t> send(size_), receive(size_);
    send[(rank_ + 1) % size_] = sent.numel();
    receive[(rank_ + size_ - 1) % size_] = received.numel();
    return start_exchange(sent, send, received, receive, "ring_shift");
}

PendingCollective RankGroup::start_exchange(const at::Tensor& sent, std::span<const std::int64_t> send_counts,
                                            at::Tensor& received, std::span<const std::int64_t> receive_counts,
                                            const char* what) const
{
    require_counts(what, send_counts, sent.numel(), sum_of(send_counts));
    require_counts(what, receive_counts, received.numel(), sum_of(receive_counts));
    if (size_ == 1) {
        received.copy_(sent);
        return {};
    }
    RECORD_USER_SCOPE(std::string(what) + " over " + axis_);
    record(what, byte_size(received) - receive_counts[rank_] * static_cast<std::int64_t>(received.element_size()));
    std::vector<std::int64_t> out(receive_counts.begin(), receive_counts.end()),
        in(send_counts.begin(), send_counts.end());
    // Gloo keeps its last tensors until the next collective; on the CPU it gets aliases that own no memory.
    const auto lent = [](const at::Tensor& tensor) {
        return as_carried(tensor.is_cpu() ? at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.options())
                                          : tensor);
    };
    auto source = lent(sent), target = lent(received);
    try {
        return {backend_->alltoall_base(target, source, out, in), what, this, {sent, received}};
    } catch (const std::exception& error) {
        rethrow_own_failure(error);
        throw CommunicationError(describe_failure(what, error.what()));
    }
}

PendingCollective RankGroup::start_row_exchange(const RowStream& sent, std::span<const std::int64_t> send_rows,
                                                at::Tensor& received, std::span<const std::int64_t> receive_rows) const
{
    auto* const by_rows = dynamic_cast<RowExchange*>(backend_.get());
    auto bytes = received.view({-1}).view(at::kByte);
    std::vector<std::int64_t> in(send_rows.begin(), send_rows.end()), out(receive_rows.begin(), receive_rows.end());
    for (auto* counts : {&in, &out}) {
        for (auto& count : *counts) count *= sent.row_bytes();
    }
    if (!by_rows) return start_exchange(sent.whole(), in, bytes, out);
    RECORD_USER_SCOPE("exchange over " + axis_);
    record("exchange", byte_size(received) - out[rank_]);
    try {
        return {by_rows->exchange_rows(sent, in, bytes, out), "exchange", this, {received}};
    } catch (const std::exception& error) {
        rethrow_own_failure(error);
        throw CommunicationError(describe_failure("exchange", error.what()));
    }
}

at::Tensor RankGroup::empty_received(at::IntArrayRef sizes, const at::TensorOptions& options) const
{
    auto* const by_rows = dynamic_cast<RowExchange*>(backend_.get());
    return by_rows ? by_rows->empty_received(sizes, options) : at::empty(sizes, options);
}

void RankGroup::broadcast(at::Tensor& tensor, int source_rank) const
{
    if (source_rank < 0 || source_rank >= size_)
        throw InvalidInput("broadcast over '{}': rank {} of {} cannot be the source.", axis_, source_rank, size_);
    if (size_ == 1 || tensor.numel() == 0) return;
    RECORD_USER_SCOPE("broadcast over " + axis_);
    record("broadcast", byte_size(tensor));
    c10d::BroadcastOptions options;
    options.rootRank = source_rank;
    std::vector<at::Tensor> tensors{as_carried(tensor)};
    const Waiting waiting(*counter_);
    try {
        backend_->broadcast(tensors, options)->wait();
    } catch (const std::exception& error) {
        rethrow_own_failure(error);
        throw CommunicationError(describe_failure("broadcast", error.what()));
    }
}

std::vector<std::vector<std::int64_t>> RankGroup::all_gather_integers(std::span<const std::int64_t> own) const
{
    const auto n = std::ssize(own);
    if (size_ == 1) return {{own.begin(), own.end()}};
    auto mine = at::tensor(at::ArrayRef<std::int64_t>(own.data(), own.size()), at::kLong).view({1, n});
    const std::vector<std::int64_t> one_each(size_, 1);
    const auto all = all_gather_rows(mine, one_each);
    std::vector<std::vector<std::int64_t>> result(size_);
    for (int r = 0; r < size_; ++r) {
        const auto* row = all.const_data_ptr<std::int64_t>() + r * n;
        result[r].assign(row, row + n);
    }
    return result;
}

std::vector<std::int64_t> RankGroup::all_gather_integers(std::int64_t own) const
{
    std::vector<std::int64_t> numbers;
    for (const auto& of_rank : all_gather_integers(std::span(&own, 1))) numbers.push_back(of_rank[0]);
    return numbers;
}

bool RankGroup::all_agree(bool mine) const
{
    auto flag = at::full({1}, mine ? 1 : 0, at::kInt);
    all_reduce(flag, Reduction::Min);
    return flag.item<int>() == 1;
}

void RankGroup::barrier() const
{
    if (size_ == 1) return;
    RECORD_USER_SCOPE("barrier over " + axis_);
    record("barrier", 0);
    try {
        backend_->barrier()->wait();
    } catch (const std::exception& error) {
        rethrow_own_failure(error);
        throw CommunicationError(describe_failure("barrier", error.what()));
    }
}

void RankGroup::abort() const
{
    if (backend_) backend_->abort();
}

}  // namespace meshard
