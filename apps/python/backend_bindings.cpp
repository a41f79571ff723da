// SPDX-License-Identifier: Apache-2.0
#include "apps/python/bindings.h"
#include "sharding/ranks/rank_group.h"
#include "sharding/transport/device_transport.h"
#include "sharding/transport/shared_memory_backend.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <algorithm>
#include <chrono>
#include <numeric>
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

/// Adds to the work of shared memory the future that DistributedDataParallel asks for. Taking the future waits for the
/// messages.
class WorkWithFuture : public Work {
public:
    WorkWithFuture(c10::intrusive_ptr<Work> inner, Tensors tensors)
        : inner_(std::move(inner)), tensors_(std::move(tensors))
    {
    }

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

/// Copies tensors to the host for a collective, and brings the results back when the messages have come.
class HostCopies {
public:
    explicit HostCopies(bool copies) : copies_(copies) {}

    /// Tensors to which the collective writes, given as one, a list or lists of lists.
    at::Tensor operator()(const at::Tensor& tensor)
    {
        if (!copies_) return tensor;
        tensors_.push_back(tensor);
        here_.push_back(tensor.cpu());
        return here_.back();
    }
    template <class Given>
    std::vector<Given> operator()(const std::vector<Given>& given)
    {
        std::vector<Given> all;
        for (const auto& one : given) all.push_back((*this)(one));
        return all;
    }

    /// Tensors that the collective only reads: they do not come back, since results may lie in the same memory.
    at::Tensor sent(const at::Tensor& tensor) const { return copies_ ? tensor.cpu() : tensor; }
    template <class Given>
    std::vector<Given> sent(const std::vector<Given>& given) const
    {
        std::vector<Given> all;
        for (const auto& one : given) all.push_back(sent(one));
        return all;
    }

    c10::intrusive_ptr<Work> brought_back(c10::intrusive_ptr<Work> work) const
    {
        if (!copies_) return work;
        work->wait();
        const at::NoGradGuard no_grad;
        for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].copy_(here_[i]);
        return c10::make_intrusive<WorkWithFuture>(std::move(work), tensors_);
    }

private:
    bool copies_;
    Tensors tensors_, here_;
};

/// torch.distributed's backend `meshard`. Collectives that shared memory can do go through it, the rest (and all, where
/// ranks are on several hosts) through `others`. Both have connections of their own, so that their messages never meet.
/// Tensors of GPUs go over NCCL, or by way of the host where ranks share a GPU.
class TorchBackend : public c10d::Backend {
public:
    TorchBackend(int rank, int size, std::chrono::milliseconds time_limit, BackendPtr memory, BackendPtr others,
                 BackendPtr devices)
        : Backend(rank, size), options_(c10::make_intrusive<Options>(getBackendName(), time_limit)),
          memory_(memory ? std::move(memory) : others), others_(std::move(others)), devices_(std::move(devices))
    {
    }

    const std::string getBackendName() const override { return "meshard"; }
    c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }

    void abort() override
    {
        devices_->abort();
        memory_->abort();
        others_->abort();
    }

    c10::intrusive_ptr<Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override
    {
        static const std::set<c10d::ReduceOp::RedOpType> operations = {c10d::ReduceOp::SUM, c10d::ReduceOp::MAX,
                                                                       c10d::ReduceOp::MIN};
        static const std::set<at::ScalarType> types = {at::kFloat, at::kDouble, at::kLong, at::kInt,
                                                       at::kShort, at::kChar,   at::kByte};
        if (!tensors[0].is_cpu()) {
            return contiguous(tensors, [&](Tensors& dense) {
                return served(dense[0], [&](Backend& backend, HostCopies& here) {
                    return with_list(here(dense), backend, &Backend::allreduce, options);
                });
            });
        }
        const bool is_known = operations.contains(options.reduceOp.op_) && types.contains(tensors[0].scalar_type());
        return contiguous(tensors, [&](Tensors& dense) {
            return is_known && dense.size() == 1 ? with_future(memory_->allreduce(dense, options), dense)
                                                 : others_->allreduce(dense, options);
        });
    }

    c10::intrusive_ptr<Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override
    {
        if (!tensors[0].is_cpu()) {
            return contiguous(tensors, [&](Tensors& dense) {
                return served(dense[0], [&](Backend& backend, HostCopies& here) {
                    return with_list(here(dense), backend, &Backend::broadcast, options);
                });
            });
        }
        return contiguous(tensors, [&](Tensors& dense) {
            return dense.size() == 1 ? with_future(memory_->broadcast(dense, options), dense)
                                     : others_->broadcast(dense, options);
        });
    }

    c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions& options) override { return memory_->barrier(options); }

    c10::intrusive_ptr<Work> allgather(std::vector<Tensors>& out, Tensors& in,
                                       const c10d::AllgatherOptions& options) override
    {
        return served(in.front(), &Backend::allgather, out, in, options);
    }
    c10::intrusive_ptr<Work> _allgather_base(at::Tensor& out, at::Tensor& in,
                                             const c10d::AllgatherOptions& options) override
    {
        return served(in, &Backend::_allgather_base, out, in, options);
    }
    c10::intrusive_ptr<Work> allgather_coalesced(std::vector<Tensors>& out, Tensors& in,
                                                 const c10d::AllgatherOptions& options) override
    {
        return served(in.front(), &Backend::allgather_coalesced, out, in, options);
    }
    c10::intrusive_ptr<Work> allgather_into_tensor_coalesced(Tensors& out, Tensors& in,
                                                             const c10d::AllgatherOptions& options) override
    {
        return served(in.front(), &Backend::allgather_into_tensor_coalesced, out, in, options);
    }
    c10::intrusive_ptr<Work> allreduce_coalesced(Tensors& tensors,
                                                 const c10d::AllreduceCoalescedOptions& options) override
    {
        return served(tensors.front(), [&](Backend& backend, HostCopies& here) {
            return with_list(here(tensors), backend, &Backend::allreduce_coalesced, options);
        });
    }
    c10::intrusive_ptr<Work> reduce(Tensors& tensors, const c10d::ReduceOptions& options) override
    {
        return served(tensors.front(), [&](Backend& backend, HostCopies& here) {
            return with_list(here(tensors), backend, &Backend::reduce, options);
        });
    }
    c10::intrusive_ptr<Work> gather(std::vector<Tensors>& out, Tensors& in, const c10d::GatherOptions& options) override
    {
        return served(in.front(), &Backend::gather, out, in, options);
    }
    c10::intrusive_ptr<Work> scatter(Tensors& out, std::vector<Tensors>& in,
                                     const c10d::ScatterOptions& options) override
    {
        return served(out.front(), &Backend::scatter, out, in, options);
    }
    c10::intrusive_ptr<Work> reduce_scatter(Tensors& out, std::vector<Tensors>& in,
                                            const c10d::ReduceScatterOptions& options) override
    {
        return served(out.front(), &Backend::reduce_scatter, out, in, options);
    }
    c10::intrusive_ptr<Work> _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                                                  const c10d::ReduceScatterOptions& options) override
    {
        return served(out, &Backend::_reduce_scatter_base, out, in, options);
    }
    c10::intrusive_ptr<Work> reduce_scatter_tensor_coalesced(Tensors& out, Tensors& in,
                                                             const c10d::ReduceScatterOptions& options) override
    {
        return served(out.front(), &Backend::reduce_scatter_tensor_coalesced, out, in, options);
    }
    c10::intrusive_ptr<Work> alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_rows,
                                           std::vector<std::int64_t>& in_rows,
                                           const c10d::AllToAllOptions& options) override
    {
        c10d::checkSplitSizes(out_rows, out, getSize());
        c10d::checkSplitSizes(in_rows, in, getSize());
        for (const auto* rows : {&out_rows, &in_rows})
            TORCH_CHECK(std::ranges::none_of(*rows, [](auto count) { return count < 0; }),
                        "all_to_all: a split has less than 0 rows.");
        if (!out.is_cpu()) {
            return served(out, [&](Backend& backend, HostCopies& here) {
                auto to = here(out), from = here.sent(in);
                return backend.alltoall_base(to, from, out_rows, in_rows, options);
            });
        }
        // Shared memory takes numbers of rows, and dense tensors; what this rank left out other ranks may have said.
        const auto stated = [this](std::vector<std::int64_t> rows, const at::Tensor& tensor) {
            return rows.empty() ? std::vector<std::int64_t>(getSize(), tensor.size(0) / getSize()) : rows;
        };
        auto to_rows = stated(out_rows, out), from_rows = stated(in_rows, in);
        auto to = out.contiguous(), from = in.contiguous();
        auto work = memory_->alltoall_base(to, from, to_rows, from_rows, options);
        if (!to.is_same(out)) bring_back({out}, {to}, *work);
        return work;
    }
    c10::intrusive_ptr<Work> alltoall(Tensors& out, Tensors& in, const c10d::AllToAllOptions& options) override
    {
        if (!out.front().is_cpu()) {
            return served(out.front(), [&](Backend& backend, HostCopies& here) {
                auto to = here(out), from = here.sent(in);
                return backend.alltoall(to, from, options);
            });
        }
        // Neither transport of the CPU takes lists.
        std::vector<std::int64_t> out_sizes, in_sizes;
        Tensors lines;
        for (const auto& tensor : in) in_sizes.push_back(lines.emplace_back(tensor.reshape(-1)).numel());
        for (const auto& tensor : out) out_sizes.push_back(tensor.numel());
        auto from = at::cat(lines);
        auto to = at::empty({std::accumulate(out_sizes.begin(), out_sizes.end(), std::int64_t{0})}, from.options());
        auto work = alltoall_base(to, from, out_sizes, in_sizes, options);
        auto received = to.split_with_sizes(out_sizes);
        for (std::size_t r = 0; r < out.size(); ++r) received[r] = received[r].view(out[r].sizes());
        bring_back(out, received, *work);
        return work;
    }
    // Tensors go by way of the host: a device transport is connected by all ranks, and here only two take part.
    c10::intrusive_ptr<Work> send(Tensors& tensors, int to, int tag) override
    {
        return by_host(tensors.front(), [&](Backend& backend, HostCopies& here) {
            return with_list(here.sent(tensors), backend, &Backend::send, to, tag);
        });
    }
    c10::intrusive_ptr<Work> recv(Tensors& tensors, int from, int tag) override
    {
        return by_host(tensors.front(), [&](Backend& backend, HostCopies& here) {
            return with_list(here(tensors), backend, &Backend::recv, from, tag);
        });
    }
    c10::intrusive_ptr<Work> recvAnysource(Tensors& tensors, int tag) override
    {
        return by_host(tensors.front(), [&](Backend& backend, HostCopies& here) {
            return with_list(here(tensors), backend, &Backend::recvAnysource, tag);
        });
    }

private:
    template <class Call>
    c10::intrusive_ptr<Work> by_host(const at::Tensor& first, const Call& call)
    {
        if (!first.is_cpu()) require_not_recording(first.device());
        HostCopies here(!first.is_cpu());
        return here.brought_back(call(*others_, here));
    }

    /// Runs a collective on the transport of the device of `first`, or by way of the host if it has none.
    template <class Call>
    c10::intrusive_ptr<Work> served(const at::Tensor& first, const Call& call)
    {
        auto* const own = first.is_cpu() ? nullptr : device_backend_of(*devices_, first.device());
        if (!own) return by_host(first, call);
        HostCopies none(false);
        return call(*own, none);
    }

    template <class Out, class In, class Options>
    c10::intrusive_ptr<Work> served(const at::Tensor& first,
                                    c10::intrusive_ptr<Work> (Backend::*collective)(Out&, In&, const Options&),
                                    Out& out, In& in, const Options& options)
    {
        return served(first, [&](Backend& backend, HostCopies& here) {
            auto to = here(out);
            auto from = here.sent(in);
            return (backend.*collective)(to, from, options);
        });
    }

    template <class... Parameters, class... Arguments>
    static c10::intrusive_ptr<Work> with_list(Tensors tensors, Backend& backend,
                                              c10::intrusive_ptr<Work> (Backend::*collective)(Tensors&, Parameters...),
                                              const Arguments&... arguments)
    {
        return (backend.*collective)(tensors, arguments...);
    }

    static c10::intrusive_ptr<Work> with_future(c10::intrusive_ptr<Work> work, const Tensors& tensors)
    {
        return c10::make_intrusive<WorkWithFuture>(std::move(work), tensors);
    }

    /// Runs a collective on contiguous copies of tensors that are not, since transports take the bytes from the first
    /// number on. Then it does not overlap with other work.
    template <class Collective>
    static c10::intrusive_ptr<Work> contiguous(Tensors& tensors, const Collective& collective)
    {
        if (std::ranges::all_of(tensors, [](const at::Tensor& tensor) { return tensor.is_contiguous(); }))
            return collective(tensors);
        Tensors dense;
        for (const auto& tensor : tensors) dense.push_back(tensor.contiguous());
        auto work = collective(dense);
        bring_back(tensors, dense, *work);
        return work;
    }

    /// Waits for a collective, and copies its results to the caller's tensors, which may be parameters.
    static void bring_back(const Tensors& to, const Tensors& from, Work& work)
    {
        work.wait();
        const at::NoGradGuard no_grad;
        for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
    }

    c10::intrusive_ptr<Options> options_;
    BackendPtr memory_, others_, devices_;
};

BackendPtr torch_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                         std::chrono::milliseconds time_limit, const BackendPtr& others)
{
    const auto names = process_names(*store, rank, size);
    auto memory =
        size > 1 ? connect_shared_memory(store, rank, size, time_limit, [names](int r) { return has_ended(names[r]); })
                 : nullptr;
    const auto own = c10::make_intrusive<c10d::PrefixStore>("devices", store);
    return c10::make_intrusive<TorchBackend>(rank, size, time_limit, std::move(memory), others,
                                             with_device_transports(others, own, time_limit, ""));
}

}  // namespace

void bind_backend(py::module_& module)
{
    module.def("torch_backend", &torch_backend, WithoutGil());
    module.def("time_limit", [](c10d::Backend& backend) { return backend.getBackendOptions()->timeout; });
}

}  // namespace meshard
