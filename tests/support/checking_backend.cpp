// SPDX-License-Identifier: Apache-2.0
#include "tests/support/checking_backend.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace meshard {
namespace {

using c10d::Work;
using Counts = std::vector<std::int64_t>;

void must(bool holds, const std::string& what)
{
    if (!holds) throw std::runtime_error("checked: " + what);
}

enum class Kind : std::int64_t { AllReduce, Broadcast, AllToAll, Barrier };

const char* text_of(Kind kind)
{
    static const char* const texts[]{"all-reduce", "broadcast", "all-to-all", "barrier"};
    return texts[static_cast<std::size_t>(kind)];
}

/// What the ranks must agree on, and what one sends another.
struct Call {
    std::int64_t number;
    Kind kind;
    std::int64_t type, device, bytes, detail;  // detail: the reduction, or the rank that sends
    std::int64_t bytes_for_you;

    std::string text() const
    {
        return "collective " + std::to_string(number) + ", " + text_of(kind) + " of " + std::to_string(bytes) +
               " bytes of type " + (type < 0 ? "none" : c10::toString(static_cast<at::ScalarType>(type))) + " on " +
               c10::DeviceTypeName(static_cast<c10::DeviceType>(device), true) + ", " +
               (kind == Kind::AllReduce ? "reduction " : "from ") + std::to_string(detail);
    }
};
constexpr std::int64_t kCallNumbers = sizeof(Call) / sizeof(std::int64_t);

void require_type(const at::Tensor& tensor, bool is_reduced)
{
    const auto type = tensor.scalar_type();
    const auto of_nccl = {at::kByte,     at::kChar,  at::kInt,    at::kLong, at::kHalf,
                          at::kBFloat16, at::kFloat, at::kDouble, at::kBool};
    must(std::find(of_nccl.begin(), of_nccl.end(), type) != of_nccl.end(),
         std::string("NCCL has no type ") + c10::toString(type));
    must(!is_reduced || type != at::kBool, "NCCL reduces no booleans");
    must(tensor.is_contiguous(), "a tensor is not contiguous");
    must(!tensor.is_conj() && !tensor.is_neg(), "a tensor is a lazy conjugate or negative");
}

constexpr int kNothing = 0xFF;  // in every byte: NaN, or -1

bool holds_nothing(const at::Tensor& tensor)
{
    const auto* const bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
    return std::all_of(bytes, bytes + tensor.nbytes(), [](unsigned char byte) { return byte == kNothing; });
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b)
{
    return a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// Work on the CPU, below what watches and converts tensors.
struct Plain {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
};

/// A collective on memory of its own; `wait` delivers.
class LateWork : public Work {
public:
    /// What arrives in `target`, and what was sent from `source`, which must stay like `sent`; either may be undefined.
    LateWork(c10::intrusive_ptr<Work> work, std::string what, at::Tensor target, at::Tensor arrived, at::Tensor source,
             at::Tensor sent)
        : work_(std::move(work)), what_(std::move(what)), target_(std::move(target)), arrived_(std::move(arrived)),
          source_(std::move(source)), sent_(std::move(sent))
    {
        if (target_.defined() && target_.nbytes() > 0)
            std::memset(target_.mutable_data_ptr(), kNothing, target_.nbytes());
    }

    bool isCompleted() override { return work_->isCompleted(); }

    bool wait(std::chrono::milliseconds timeout) override
    {
        work_->wait(timeout);
        if (is_done_) return true;
        is_done_ = true;
        must(!target_.defined() || holds_nothing(target_), what_ + ": received memory was written to before `wait`");
        must(!source_.defined() || same_bytes(source_, sent_), what_ + ": sent memory was written to before `wait`");
        if (target_.defined() && target_.nbytes() > 0)
            std::memcpy(target_.mutable_data_ptr(), arrived_.const_data_ptr(), target_.nbytes());
        return true;
    }

private:
    c10::intrusive_ptr<Work> work_;
    std::string what_;
    at::Tensor target_, arrived_, source_, sent_;
    bool is_done_ = false;
};

/// A collective that was recorded: each run of the record calls it again, and waits for it where the recorded step has
/// waited.
class RecordedWork : public Work {
public:
    /// Of a call that writes to `target`, which may be undefined.
    RecordedWork(RecordedLaunches recorded, const at::Tensor& target, std::function<c10::intrusive_ptr<Work>()> call)
        : recorded_(std::move(recorded))
    {
        if (target.defined() && target.nbytes() > 0) std::memset(target.mutable_data_ptr(), kNothing, target.nbytes());
        recorded_()->push_back([call = std::move(call), pending = pending_] { *pending = call(); });
    }

    bool isCompleted() override
    {
        throw std::runtime_error("checked: a collective of a record is asked whether it is done");
    }

    bool wait(std::chrono::milliseconds) override
    {
        if (std::exchange(is_waited_for_, true)) return true;
        auto* const launches = recorded_();
        must(launches, "a collective of a record is waited for outside");
        launches->push_back([pending = pending_] {
            const Plain plain;
            (*pending)->wait();
            pending->reset();
        });
        return true;
    }

private:
    RecordedLaunches recorded_;
    std::shared_ptr<c10::intrusive_ptr<Work>> pending_ = std::make_shared<c10::intrusive_ptr<Work>>();
    bool is_waited_for_ = false;
};

class CheckingBackend : public c10d::Backend {
public:
    CheckingBackend(c10::intrusive_ptr<c10d::Backend> inner, std::function<at::Tensor(const at::Tensor&)> as_host,
                    RecordedLaunches recorded)
        : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), as_host_(std::move(as_host)),
          recorded_(std::move(recorded))
    {
    }

    const std::string getBackendName() const override { return inner_->getBackendName(); }
    void abort() override { inner_->abort(); }

    c10::intrusive_ptr<Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override
    {
        const Plain plain;
        must(tensors.size() == 1, "an all-reduce of several tensors");
        require_type(tensors[0], true);
        const auto here = on_host(tensors[0]);
        const bool is_sum = options.reduceOp == c10d::ReduceOp::SUM;
        if (is_recorded(tensors[0]))
            return recorded_call(here, [this, tensors, options]() mutable { return allreduce(tensors, options); });
        must(is_sum || !here.defined() || !here.is_floating_point() || !here.isnan().any().item<bool>(),
             "a maximum or minimum of NaN, which NCCL drops");
        agree(Kind::AllReduce, tensors[0],
              static_cast<std::int64_t>(static_cast<c10d::ReduceOp::RedOpType>(options.reduceOp)), {}, {});
        if (!here.defined()) return inner_->allreduce(tensors, options);
        std::vector<at::Tensor> own{here.clone()};
        auto work = inner_->allreduce(own, options);
        return c10::make_intrusive<LateWork>(std::move(work), "all-reduce", here, own[0], at::Tensor(), at::Tensor());
    }

    c10::intrusive_ptr<Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override
    {
        const Plain plain;
        must(tensors.size() == 1, "a broadcast of several tensors");
        require_type(tensors[0], false);
        const auto here = on_host(tensors[0]);
        if (is_recorded(tensors[0])) {
            return recorded_call(options.rootRank == getRank() ? at::Tensor() : here,
                                 [this, tensors, options]() mutable { return broadcast(tensors, options); });
        }
        agree(Kind::Broadcast, tensors[0], options.rootRank, {}, {});
        if (!here.defined()) return inner_->broadcast(tensors, options);
        std::vector<at::Tensor> own{here.clone()};
        auto work = inner_->broadcast(own, options);
        const bool sends = options.rootRank == getRank();
        return c10::make_intrusive<LateWork>(std::move(work), "broadcast", sends ? at::Tensor() : here, own[0],
                                             sends ? here : at::Tensor(), own[0]);
    }

    c10::intrusive_ptr<Work> alltoall_base(at::Tensor& out, at::Tensor& in, Counts& out_rows, Counts& in_rows,
                                           const c10d::AllToAllOptions& options) override
    {
        const Plain plain;
        require_type(out, false);
        require_type(in, false);
        must(out.scalar_type() == in.scalar_type(), "an all-to-all of two types");
        must(out.device() == in.device(), "an all-to-all from " + in.device().str() + " to " + out.device().str());
        const auto to = on_host(out), from = on_host(in);
        if (is_recorded(out)) {
            return recorded_call(to, [this, out, in, out_rows, in_rows, options]() mutable {
                return alltoall_base(out, in, out_rows, in_rows, options);
            });
        }
        agree(Kind::AllToAll, in, -1, bytes_each(in, in_rows), bytes_each(out, out_rows));
        if (!to.defined()) return inner_->alltoall_base(out, in, out_rows, in_rows, options);
        auto own_in = from.clone(), own_out = at::empty_like(to);
        auto work = inner_->alltoall_base(own_out, own_in, out_rows, in_rows, options);
        return c10::make_intrusive<LateWork>(std::move(work), "all-to-all", to, own_out, from, own_in);
    }

    c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions& options) override
    {
        agree(Kind::Barrier, at::Tensor(), -1, {}, {});
        return inner_->barrier(options);
    }

private:
    /// A tensor of the CPU with the same memory; undefined if there is no way to it.
    at::Tensor on_host(const at::Tensor& tensor)
    {
        if (tensor.is_cpu()) return tensor;
        if (!device_) device_ = tensor.device();
        must(tensor.device() == *device_, "a tensor of " + tensor.device().str() + " in a group of " + device_->str());
        return as_host_ ? as_host_(tensor) : at::Tensor();
    }

    bool is_recorded(const at::Tensor& tensor) const { return !tensor.is_cpu() && recorded_ && recorded_(); }

    c10::intrusive_ptr<Work> recorded_call(const at::Tensor& target, std::function<c10::intrusive_ptr<Work>()> call)
    {
        return c10::make_intrusive<RecordedWork>(recorded_, target, std::move(call));
    }

    Counts bytes_each(const at::Tensor& rows, const Counts& counts) const
    {
        must(static_cast<int>(counts.size()) == getSize() &&
                 std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == rows.size(0),
             "rows for all-to-all that do not fit their counts");
        const auto row = c10::multiply_integers(rows.sizes().slice(1)) * static_cast<std::int64_t>(rows.element_size());
        Counts bytes;
        for (const auto count : counts) bytes.push_back(count * row);
        return bytes;
    }

    /// All ranks call the same. `sent` and `received`: bytes for and from each rank, where they are not all the
    /// tensor's.
    void agree(Kind kind, const at::Tensor& tensor, std::int64_t detail, const Counts& sent, const Counts& received)
    {
        Call mine{++number_, kind, -1, 0, 0, detail, 0};
        if (tensor.defined()) {
            mine.type = static_cast<std::int64_t>(tensor.scalar_type());
            mine.device = static_cast<std::int64_t>(tensor.device().type());
            mine.bytes = sent.empty() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
        }
        auto asked = at::empty({getSize() * kCallNumbers}, at::kLong), told = at::empty_like(asked);
        for (int r = 0; r < getSize(); ++r) {
            mine.bytes_for_you = sent.empty() ? 0 : sent[r];
            std::memcpy(asked.mutable_data_ptr<std::int64_t>() + r * kCallNumbers, &mine, sizeof mine);
        }
        Counts each(getSize(), kCallNumbers);
        inner_->alltoall_base(told, asked, each, each)->wait();
        for (int r = 0; r < getSize(); ++r) {
            Call theirs;
            std::memcpy(&theirs, told.const_data_ptr<std::int64_t>() + r * kCallNumbers, sizeof theirs);
            must(std::memcmp(&mine, &theirs, sizeof mine - sizeof mine.bytes_for_you) == 0,
                 "rank " + std::to_string(getRank()) + " calls " + mine.text() + "; rank " + std::to_string(r) +
                     " calls " + theirs.text());
            must(received.empty() || received[r] == theirs.bytes_for_you,
                 "rank " + std::to_string(getRank()) + " has room for " +
                     (received.empty() ? "" : std::to_string(received[r])) + " bytes of rank " + std::to_string(r) +
                     ", which sends " + std::to_string(theirs.bytes_for_you));
        }
    }

    c10::intrusive_ptr<c10d::Backend> inner_;
    std::function<at::Tensor(const at::Tensor&)> as_host_;
    RecordedLaunches recorded_;
    std::optional<c10::Device> device_;
    std::int64_t number_ = 0;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> checked(c10::intrusive_ptr<c10d::Backend> inner,
                                          std::function<at::Tensor(const at::Tensor&)> as_host,
                                          RecordedLaunches recorded)
{
    return c10::make_intrusive<CheckingBackend>(std::move(inner), std::move(as_host), std::move(recorded));
}

}  // namespace meshard
