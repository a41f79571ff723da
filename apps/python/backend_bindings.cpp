// SPDX-License-Identifier: Apache-2.0
#include "apps/python/bindings.h"
#include "sharding/ranks/rank_group.h"
#include "sharding/transport/shared_memory_backend.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <chrono>
#include <pybind11/chrono.h>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace meshard {
namespace {

using c10d::Work;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using Tensors = std::vector<at::Tensor>;

/// Work of shared memory with what DistributedDataParallel asks for: a future, which waits for the messages when it is taken.
class WorkWithFuture : public Work {
public:
    WorkWithFuture(c10::intrusive_ptr<Work> inner, Tensors tensors) : inner_(std::move(inner)), tensors_(std::move(tensors)) {}

    bool isCompleted() override { return inner_->isCompleted(); }
    bool wait(std::chrono::milliseconds timeout) override { return inner_->wait(timeout); }
    Tensors result() override { return tensors_; }

    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override
    {
        inner_->wait();
        auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
        future->markCompleted(c10::IValue(tensors_));
        return future;
    }

private:
    c10::intrusive_ptr<Work> inner_;
    Tensors tensors_;
};

/// torch.distributed's backend `meshard`: what shared memory can do goes through it, the rest (and all, where ranks are on several hosts) through `others`.
/// Both have connections of their own, so that their messages never meet.
class TorchBackend : public c10d::Backend {
public:
    TorchBackend(int rank, int size, BackendPtr memory, BackendPtr others)
        : Backend(rank, size), memory_(memory ? std::move(memory) : others), others_(std::move(others))
    {
    }

    const std::string getBackendName() const override { return "meshard"; }

    void abort() override
    {
        memory_->abort();
        others_->abort();
    }

    c10::intrusive_ptr<Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override
    {
        static const std::set<c10d::ReduceOp::RedOpType> operations = {c10d::ReduceOp::SUM, c10d::ReduceOp::MAX, c10d::ReduceOp::MIN};
        static const std::set<at::ScalarType> types = {at::kFloat, at::kDouble, at::kLong, at::kInt, at::kShort, at::kChar, at::kByte};
        const bool is_known = operations.contains(options.reduceOp.op_) && types.contains(tensors[0].scalar_type());
        return contiguous(tensors, [&](Tensors& dense) {
            return is_known && dense.size() == 1 ? with_future(memory_->allreduce(dense, options), dense) : others_->allreduce(dense, options);
        });
    }

    c10::intrusive_ptr<Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override
    {
        return contiguous(tensors, [&](Tensors& dense) {
            return dense.size() == 1 ? with_future(memory_->broadcast(dense, options), dense) : others_->broadcast(dense, options);
        });
    }

    c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions& options) override { return memory_->barrier(options); }

    c10::intrusive_ptr<Work> allgather(std::vector<Tensors>& out, Tensors& in, const c10d::AllgatherOptions& options) override
    {
        return others_->allgather(out, in, options);
    }
    c10::intrusive_ptr<Work> _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& options) override
    {
        return others_->_allgather_base(out, in, options);
    }
    c10::intrusive_ptr<Work> allgather_coalesced(std::vector<Tensors>& out, Tensors& in, const c10d::AllgatherOptions& options) override
    {
        return others_->allgather_coalesced(out, in, options);
    }
    c10::intrusive_ptr<Work> allgather_into_tensor_coalesced(Tensors& out, Tensors& in, const c10d::AllgatherOptions& options) override
    {
        return others_->allgather_into_tensor_coalesced(out, in, options);
    }
    c10::intrusive_ptr<Work> allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override
    {
        return others_->allreduce_coalesced(tensors, options);
    }
    c10::intrusive_ptr<Work> reduce(Tensors& tensors, const c10d::ReduceOptions& options) override { return others_->reduce(tensors, options); }
    c10::intrusive_ptr<Work> gather(std::vector<Tensors>& out, Tensors& in, const c10d::GatherOptions& options) override
    {
        return others_->gather(out, in, options);
    }
    c10::intrusive_ptr<Work> scatter(Tensors& out, std::vector<Tensors>& in, const c10d::ScatterOptions& options) override
    {
        return others_->scatter(out, in, options);
    }
    c10::intrusive_ptr<Work> reduce_scatter(Tensors& out, std::vector<Tensors>& in, const c10d::ReduceScatterOptions& options) override
    {
        return others_->reduce_scatter(out, in, options);
    }
    c10::intrusive_ptr<Work> _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& options) override
    {
        return others_->_reduce_scatter_base(out, in, options);
    }
    c10::intrusive_ptr<Work> reduce_scatter_tensor_coalesced(Tensors& out, Tensors& in, const c10d::ReduceScatterOptions& options) override
    {
        return others_->reduce_scatter_tensor_coalesced(out, in, options);
    }
    c10::intrusive_ptr<Work> alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_rows, std::vector<std::int64_t>& in_rows,
                                           const c10d::AllToAllOptions& options) override
    {
        const bool has_sizes = !out_rows.empty() && !in_rows.empty();
        return (has_sizes && out.is_contiguous() ? memory_ : others_)->alltoall_base(out, in, out_rows, in_rows, options);
    }
    c10::intrusive_ptr<Work> alltoall(Tensors& out, Tensors& in, const c10d::AllToAllOptions& options) override { return others_->alltoall(out, in, options); }
    c10::intrusive_ptr<Work> send(Tensors& tensors, int to, int tag) override { return others_->send(tensors, to, tag); }
    c10::intrusive_ptr<Work> recv(Tensors& tensors, int from, int tag) override { return others_->recv(tensors, from, tag); }
    c10::intrusive_ptr<Work> recvAnysource(Tensors& tensors, int tag) override { return others_->recvAnysource(tensors, tag); }

private:
    static c10::intrusive_ptr<Work> with_future(c10::intrusive_ptr<Work> work, const Tensors& tensors)
    {
        return c10::make_intrusive<WorkWithFuture>(std::move(work), tensors);
    }

    /// Both transports take the bytes from the first number on: what is not contiguous goes through a copy, without overlap with other work.
    template <class Collective>
    static c10::intrusive_ptr<Work> contiguous(Tensors& tensors, const Collective& collective)
    {
        if (std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.is_contiguous(); })) return collective(tensors);
        Tensors dense;
        for (const auto& tensor : tensors) dense.push_back(tensor.contiguous());
        auto work = collective(dense);
        work->wait();
        for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(dense[i]);
        return work;
    }

    BackendPtr memory_, others_;
};

BackendPtr torch_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds time_limit, const BackendPtr& others)
{
    const auto names = process_names(*store, rank, size);
    auto memory = size > 1 ? connect_shared_memory(store, rank, size, time_limit, [names](int r) { return has_ended(names[r]); }) : nullptr;
    return c10::make_intrusive<TorchBackend>(rank, size, std::move(memory), others);
}

}  // namespace

void bind_backend(py::module_& module)
{
    module.def("torch_backend", &torch_backend, WithoutGil());
}

}  // namespace meshard
