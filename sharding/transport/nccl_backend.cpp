// SPDX-License-Identifier: Apache-2.0
#include "sharding/transport/nccl_backend.h"

#include "partition/error.h"

#include <ATen/cuda/CUDAContext.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <set>
#include <utility>

namespace meshard {
namespace {

class HostAndNccl : public c10d::Backend {
public:
    HostAndNccl(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds limit, bool required)
        : Backend(host->getRank(), host->getSize()), host_(std::move(host)), store_(std::move(store)), limit_(limit), required_(required)
    {
    }

    const std::string getBackendName() const override { return host_->getBackendName() + "+nccl"; }

    c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override
    {
        return serving(tensors.front()).allreduce(tensors, options);
    }

    c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override
    {
        return serving(tensors.front()).broadcast(tensors, options);
    }

    c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_rows, std::vector<std::int64_t>& in_rows,
                                                 const c10d::AllToAllOptions& options) override
    {
        return serving(out).alltoall_base(out, in, out_rows, in_rows, options);
    }

    c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override { return host_->barrier(options); }

    void abort() override
    {
        if (nccl_) nccl_->abort();
        host_->abort();
    }

private:
    c10d::Backend& serving(const at::Tensor& tensor)
    {
        if (!tensor.is_cuda()) return *host_;
        if (!asked_) connect(tensor.device());
        return nccl_ ? *nccl_ : *host_;
    }

    /// Collective: every rank of the group comes here with its first tensor of a GPU.
    void connect(const at::Device& device)
    {
        asked_ = true;
        const auto& uuid = at::cuda::getDeviceProperties(device.index())->uuid;
        store_->set("gpu." + std::to_string(getRank()), std::vector<std::uint8_t>(std::begin(uuid.bytes), std::end(uuid.bytes)));
        std::set<std::vector<std::uint8_t>> gpus;
        for (int r = 0; r < getSize(); ++r) gpus.insert(store_->get("gpu." + std::to_string(r)));
        if (static_cast<int>(gpus.size()) < getSize()) {
            if (!required_) return;
            throw CommunicationError("launch: NCCL needs a GPU for each rank, but " + std::to_string(getSize()) + " ranks have " + std::to_string(gpus.size()) +
                                     ". Start fewer ranks, or leave MESHARD_BACKEND unset.");
        }
        auto options = c10d::ProcessGroupNCCL::Options::create();
        options->timeout = limit_;
        nccl_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>("nccl", store_), getRank(), getSize(), options);
    }

    c10::intrusive_ptr<c10d::Backend> host_, nccl_;
    c10::intrusive_ptr<c10d::Store> store_;
    std::chrono::milliseconds limit_;
    bool required_, asked_ = false;
};

}  // namespace

std::string why_no_nccl()
{
    return at::cuda::is_available() ? "" : "no GPU is seen by this process";
}

c10::intrusive_ptr<c10d::Backend> with_nccl(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds time_limit,
                                            bool required)
{
    if (const auto why = why_no_nccl(); !why.empty()) {
        if (required) throw CommunicationError("launch: NCCL was asked for, but " + why + ".");
        return host;
    }
    return c10::make_intrusive<HostAndNccl>(std::move(host), std::move(store), time_limit, required);
}

}  // namespace meshard
