// SPDX-License-Identifier: Apache-2.0
#include "sharding/rank_group.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <csignal>
#include <fstream>
#include <numeric>

#include "partition/error.h"
#include "sharding/row_stream.h"

namespace meshard {
namespace {

c10d::ReduceOp reduce_op(Reduction reduction)
{
    switch (reduction) {
    case Reduction::Sum: return c10d::ReduceOp::SUM;
    case Reduction::Max: return c10d::ReduceOp::MAX;
    case Reduction::Min: return c10d::ReduceOp::MIN;
    }
    return c10d::ReduceOp::SUM;
}

/// What transports know how to carry and to add: a complex tensor as pairs of numbers, in the same memory.
at::Tensor as_numbers(const at::Tensor& tensor) { return tensor.is_complex() ? at::view_as_real(tensor) : tensor; }

std::int64_t byte_size(const at::Tensor& tensor)
{
    return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

std::int64_t sum_of(std::span<const std::int64_t> values)
{
    return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

}  // namespace

bool has_ended(const std::string& name)
{
    const auto colon = name.rfind(':');
    char host[256] = {};
    if (colon == std::string::npos || gethostname(host, sizeof host - 1) != 0 || name.substr(0, colon) != host) return false;
    std::ifstream stat("/proc/" + name.substr(colon + 1) + "/stat");
    std::string text;
    if (!std::getline(stat, text)) return true;
    const auto after_name = text.rfind(')');
    return after_name != std::string::npos && after_name + 2 < text.size() && text[after_name + 2] == 'Z';
}

PendingCollective::PendingCollective(c10::intrusive_ptr<c10d::Work> work, std::string what, const RankGroup* group, std::vector<at::Tensor> buffers)
    : work_(std::move(work)), what_(std::move(what)), group_(group)
{
    if (buffers.empty()) return;
    // Cleared by `wait`. A transfer that nobody waited for may still write: its buffers are given up, not freed.
    buffers_ = {new std::vector<at::Tensor>(std::move(buffers)), [](std::vector<at::Tensor>* left) {
                    if (left->empty()) delete left;
                }};
}

void PendingCollective::wait()
{
    if (!work_) return;
    const auto work = std::exchange(work_, {});
    try {
        work->wait();
    } catch (const std::exception& error) {
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
    // A rank that is gone takes a moment to be seen as gone: its sockets close before its process has ended.
    std::string gone;
    for (int attempt = 0; attempt < 20 && gone.empty(); ++attempt) {
        if (attempt > 0) usleep(50'000);
        for (int r = 0; r < static_cast<int>(names_.size()); ++r) {
            if (r != rank_ && has_ended(names_[r])) gone += (gone.empty() ? "" : ", ") + std::to_string(r);
        }
        if (names_.empty()) break;
    }
    std::string message = what + " over '" + axis_ + "' failed on rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ": ";
    if (!gone.empty()) return message + "rank " + gone + " has ended. Its own message says why; start the run again.";
    const auto line_end = error.find('\n');
    return message + "a rank did not answer (" + error.substr(0, std::min<std::size_t>(line_end, 160)) +
           "). See the other ranks' messages; a longer time limit is set with MESHARD_TIMEOUT_SECONDS.";
}

void RankGroup::record(const char* operation, std::int64_t bytes) const { counter_->record(operation, axis_, bytes); }

void RankGroup::all_reduce(at::Tensor& tensor, Reduction reduction) const { start_all_reduce(tensor, reduction).wait(); }

PendingCollective RankGroup::start_all_reduce(at::Tensor& tensor, Reduction reduction) const
{
    if (size_ == 1) return {};
    if (tensor.numel() == 0) return {};   // the same on all ranks: shapes agree
    record("all_reduce", byte_size(tensor));
    c10d::AllreduceOptions options;
    options.reduceOp = reduce_op(reduction);
    std::vector<at::Tensor> tensors{as_numbers(tensor)};
    try {
        return {backend_->allreduce(tensors, options), "all_reduce", this};
    } catch (const std::exception& error) {
        throw CommunicationError(describe_failure("all_reduce", error.what()));
    }
}

at::Tensor RankGroup::all_gather_rows(const at::Tensor& local, std::span<const std::int64_t> rows) const
{
    if (size_ == 1) return local;
    auto shape = local.sizes().vec();
    shape[0] = sum_of(rows);
    auto whole = at::empty(shape, local.options());
    const std::int64_t row_bytes = shape[0] > 0 ? byte_size(whole) / shape[0] : 0;
    record("all_gather", byte_size(whole) - row_bytes * rows[rank_]);
    try {
        std::vector<c10::intrusive_ptr<c10d::Work>> works;
        std::int64_t offset = 0;
        for (int r = 0; r < size_; ++r) {
            auto slot = whole.narrow(0, offset, rows[r]);
            offset += rows[r];
            if (r == rank_) slot.copy_(local);
            if (slot.numel() == 0) continue;
            c10d::BroadcastOptions options;
            options.rootRank = r;
            std::vector<at::Tensor> tensors{as_numbers(slot)};
            works.push_back(backend_->broadcast(tensors, options));
        }
        for (auto& work : works) work->wait();
    } catch (const std::exception& error) {
        throw CommunicationError(describe_failure("all_gather", error.what()));
    }
    return whole;
}

at::Tensor RankGroup::all_to_all_rows(const at::Tensor& rows, std::span<const std::int64_t> send_rows,
                                      std::span<const std::int64_t> receive_rows) const
{
    if (size_ == 1) return rows;
    auto shape = rows.sizes().vec();
    shape[0] = sum_of(receive_rows);
    auto received = at::empty(shape, rows.options());
    auto sent = as_numbers(rows.resolve_conj().contiguous()), target = as_numbers(received);
    const std::int64_t row_bytes = shape[0] > 0 ? byte_size(received) / shape[0] : 0;
    record("all_to_all", byte_size(received) - row_bytes * receive_rows[rank_]);
    std::vector<std::int64_t> out(receive_rows.begin(), receive_rows.end()), in(send_rows.begin(), send_rows.end());
    try {
        backend_->alltoall_base(target, sent, out, in)->wait();
    } catch (const std::exception& error) {
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

PendingCollective RankGroup::start_exchange(const at::Tensor& sent, std::span<const std::int64_t> send_counts, at::Tensor& received,
                                            std::span<const std::int64_t> receive_counts, const char* what) const
{
    if (size_ == 1) {
        received.copy_(sent);
        return {};
    }
    record(what, byte_size(received) - receive_counts[rank_] * static_cast<std::int64_t>(received.element_size()));
    std::vector<std::int64_t> out(receive_counts.begin(), receive_counts.end()), in(send_counts.begin(), send_counts.end());
    // Gloo keeps its last tensors until the next collective; on the CPU it gets aliases that own nothing.
    const auto lent = [](const at::Tensor& tensor) {
        return as_numbers(tensor.is_cpu() ? at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.options()) : tensor);
    };
    auto source = lent(sent), target = lent(received);
    try {
        return {backend_->alltoall_base(target, source, out, in), what, this, {sent, received}};
    } catch (const std::exception& error) {
        throw CommunicationError(describe_failure(what, error.what()));
    }
}

PendingCollective RankGroup::start_row_exchange(const RowStream& sent, std::span<const std::int64_t> send_rows, at::Tensor& received,
                                                std::span<const std::int64_t> receive_rows) const
{
    auto* const by_rows = dynamic_cast<RowExchange*>(backend_.get());
    auto bytes = received.view({-1}).view(at::kByte);
    std::vector<std::int64_t> in(send_rows.begin(), send_rows.end()), out(receive_rows.begin(), receive_rows.end());
    for (auto* counts : {&in, &out}) {
        for (auto& count : *counts) count *= sent.row_bytes();
    }
    if (!by_rows) return start_exchange(sent.whole(), in, bytes, out);
    record("exchange", byte_size(received) - out[rank_]);
    try {
        return {by_rows->exchange_rows(sent, in, bytes, out), "exchange", this, {received}};
    } catch (const std::exception& error) {
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
    if (size_ == 1 || tensor.numel() == 0) return;
    record("broadcast", byte_size(tensor));
    c10d::BroadcastOptions options;
    options.rootRank = source_rank;
    std::vector<at::Tensor> tensors{as_numbers(tensor)};
    try {
        backend_->broadcast(tensors, options)->wait();
    } catch (const std::exception& error) {
        throw CommunicationError(describe_failure("broadcast", error.what()));
    }
}

std::vector<std::vector<std::int64_t>> RankGroup::all_gather_integers(std::span<const std::int64_t> own) const
{
    const auto n = static_cast<std::int64_t>(own.size());
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

bool RankGroup::all_agree(bool mine) const
{
    auto flag = at::full({1}, mine ? 1 : 0, at::kInt);
    all_reduce(flag, Reduction::Min);
    return flag.item<int>() == 1;
}

void RankGroup::barrier() const
{
    if (size_ == 1) return;
    record("barrier", 0);
    try {
        backend_->barrier()->wait();
    } catch (const std::exception& error) {
        throw CommunicationError(describe_failure("barrier", error.what()));
    }
}

void RankGroup::abort() const
{
    if (backend_) backend_->abort();
}

}  // namespace meshard
