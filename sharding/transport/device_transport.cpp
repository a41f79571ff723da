// SPDX-License-Identifier: Apache-2.0
#include "sharding/transport/device_transport.h"

#include "partition/error.h"
#include "sharding/ranks/row_stream.h"
#include "sharding/transport/nccl_backend.h"

#include <ATen/ATen.h>
#include <fmt/core.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <unistd.h>
#include <utility>

namespace meshard {
namespace {

using c10d::Work;

/// The registered transports, by type of device.
class Transports {
public:
    static Transports& all()
    {
        static Transports transports;
        return transports;
    }

    void set(c10::DeviceType type, DeviceTransport transport)
    {
        const std::lock_guard lock(mutex_);
        by_type_[type] = std::move(transport);
    }

    std::map<c10::DeviceType, DeviceTransport> get() const
    {
        const std::lock_guard lock(mutex_);
        return by_type_;
    }

private:
    Transports() { by_type_[c10::DeviceType::CUDA] = nccl_transport(); }

    mutable std::mutex mutex_;
    std::map<c10::DeviceType, DeviceTransport> by_type_;
};

/// A collective on copies of tensors in host memory; `wait` copies the results back to the device.
class HostCopies : public Work {
public:
    HostCopies(c10::intrusive_ptr<Work> work, std::vector<at::Tensor> here, std::vector<at::Tensor> results)
        : work_(std::move(work)), here_(std::move(here)), results_(std::move(results))
    {
    }

    bool isCompleted() override { return work_->isCompleted(); }

    bool wait(std::chrono::milliseconds timeout) override
    {
        work_->wait(timeout);
        const at::NoGradGuard no_grad;
        for (std::size_t i = 0; i < results_.size(); ++i) results_[i].copy_(here_[i]);
        return true;
    }

private:
    c10::intrusive_ptr<Work> work_;
    std::vector<at::Tensor> here_, results_;
};

/// Whether a backend says that a message has failed; those that cannot tell have not.
bool has_failed(c10d::Backend& backend)
{
    try {
        return backend.getError() != c10d::ErrorType::SUCCESS;
    } catch (const c10::Error&) {
        return false;
    }
}

class HostAndDevices : public c10d::Backend {
public:
    HostAndDevices(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<c10d::Store> store,
                   std::chrono::milliseconds limit, std::string required)
        : Backend(host->getRank(), host->getSize()), host_(std::move(host)), store_(std::move(store)), limit_(limit),
          required_(std::move(required))
    {
    }

    const std::string getBackendName() const override { return host_->getBackendName(); }

    c10::intrusive_ptr<Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override
    {
        if (auto* const own = serving(tensors.front())) return own->allreduce(tensors, options);
        auto here = on_host(tensors);
        return with_results(host_->allreduce(here, options), here, tensors);
    }

    c10::intrusive_ptr<Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override
    {
        if (auto* const own = serving(tensors.front())) return own->broadcast(tensors, options);
        auto here = on_host(tensors);
        return with_results(host_->broadcast(here, options), here, tensors);
    }

    c10::intrusive_ptr<Work> alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_rows,
                                           std::vector<std::int64_t>& in_rows,
                                           const c10d::AllToAllOptions& options) override
    {
        if (auto* const own = serving(out)) return own->alltoall_base(out, in, out_rows, in_rows, options);
        require_not_recording(out.device());
        auto received = at::empty(out.sizes(), out.options().device(at::kCPU)), sent = in.cpu();
        return with_results(host_->alltoall_base(received, sent, out_rows, in_rows, options), {received}, {out});
    }

    /// @throws Error if a transport of devices has given up a message meanwhile: NCCL does so in the background, and
    /// what a device computed since may have used what had not arrived
    c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions& options) override
    {
        for (const auto& [type, carrier] : carriers_) {
            if (carrier.backend && has_failed(*carrier.backend))
                throw Error("a message over {} has failed or taken too long.", carrier.name);
        }
        return host_->barrier(options);
    }

    /// Only transports of devices that have connected can coalesce; the host's backend cannot.
    bool supportsCoalescing() const override
    {
        return std::ranges::any_of(carriers_, [](const auto& carrier) { return coalesces(carrier.second); });
    }

    void startCoalescing() override
    {
        for (auto& [type, carrier] : carriers_) {
            if (coalesces(carrier)) carrier.backend->startCoalescing();
        }
    }

    /// Returns null if no operation has been coalesced.
    c10::intrusive_ptr<Work> endCoalescing() override
    {
        c10::intrusive_ptr<Work> last;
        for (auto& [type, carrier] : carriers_) {
            if (!coalesces(carrier)) continue;
            if (auto work = carrier.backend->endCoalescing()) last = std::move(work);
        }
        return last;
    }

    void abort() override
    {
        for (auto& [type, carrier] : carriers_) {
            if (carrier.backend) carrier.backend->abort();
        }
        host_->abort();
    }

    /// Adds a transport that has connected already.
    void take(c10::DeviceType type, c10::intrusive_ptr<c10d::Backend> backend)
    {
        const auto name = backend->getBackendName();
        carriers_[type] = {name, std::move(backend)};
    }

    /// Returns null if tensors of the device are copied to the host.
    c10d::Backend* own_backend(const at::Device& device) { return connected(device).backend.get(); }

    Carrier carrier(const at::Device& device)
    {
        if (device.is_cpu()) return {host_->getBackendName(), false};
        const auto& own = connected(device);
        return own.backend ? Carrier{own.name, false} : Carrier{host_->getBackendName(), true};
    }

protected:
    c10d::Backend& host() { return *host_; }

private:
    struct Connected {
        std::string name;
        c10::intrusive_ptr<c10d::Backend> backend;  // null: tensors are copied to the host
    };

    static bool coalesces(const Connected& one) { return one.backend && one.backend->supportsCoalescing(); }

    /// Returns the backend for `tensor`; null if it must be copied to the host.
    c10d::Backend* serving(const at::Tensor& tensor)
    {
        return tensor.is_cpu() ? host_.get() : connected(tensor.device()).backend.get();
    }

    const Connected& connected(const at::Device& device)
    {
        const auto found = carriers_.find(device.type());
        return found != carriers_.end() ? found->second
                                        : carriers_.emplace(device.type(), connect(device)).first->second;
    }

    static std::vector<at::Tensor> on_host(const std::vector<at::Tensor>& tensors)
    {
        std::vector<at::Tensor> here;
        for (const auto& tensor : tensors) {
            require_not_recording(tensor.device());
            here.push_back(tensor.cpu());
        }
        return here;
    }

    static c10::intrusive_ptr<Work> with_results(c10::intrusive_ptr<Work> work, std::vector<at::Tensor> here,
                                                 std::vector<at::Tensor> results)
    {
        return c10::make_intrusive<HostCopies>(std::move(work), std::move(here), std::move(results));
    }

    /// Collective: every rank of the group calls it with its first tensor of a type of device.
    Connected connect(const at::Device& device)
    {
        if (!store_) return {};
        const auto transports = Transports::all().get();
        const auto transport = transports.find(device.type());
        // Ranks compare the texts `card` of their devices. An empty text means that this rank can use no transport:
        // then no rank does.
        const bool can_use = transport != transports.end() && transport->second.why_not().empty();
        const auto card = can_use ? transport->second.name + " " + transport->second.identity(device) : std::string();
        const auto type = std::string(c10::DeviceTypeName(device.type(), /*lower_case=*/true));
        store_->set(fmt::format("{}.{}", type, getRank()), std::vector<std::uint8_t>(card.begin(), card.end()));
        std::set<std::string> cards;
        bool all_can = true;
        for (int r = 0; r < getSize(); ++r) {
            const auto bytes = store_->get(fmt::format("{}.{}", type, r));
            all_can &= !bytes.empty();
            cards.emplace(bytes.begin(), bytes.end());
        }
        if (all_can && static_cast<int>(cards.size()) == getSize()) {
            const auto& chosen = transport->second;
            return {chosen.name, chosen.connect(c10::make_intrusive<c10d::PrefixStore>(chosen.name, store_), getRank(),
                                                getSize(), limit_)};
        }
        if (can_use && transport->second.name == required_) {
            throw CommunicationError("launch: {} needs a device for each rank, but {} ranks have {}. Start "
                                     "fewer ranks, or leave MESHARD_BACKEND unset.",
                                     required_, getSize(), cards.size());
        }
        return {};
    }

    c10::intrusive_ptr<c10d::Backend> host_;
    c10::intrusive_ptr<c10d::Store> store_;  // null: no device has a transport of its own
    std::chrono::milliseconds limit_;
    std::string required_;
    std::map<c10::DeviceType, Connected> carriers_;  // for the types of devices that have been used
};

/// Used if the host's backend gathers rows of CPU tensors while it sends them.
class HostRowsAndDevices : public HostAndDevices, public RowExchange {
public:
    HostRowsAndDevices(c10::intrusive_ptr<c10d::Backend> host, RowExchange& rows, c10::intrusive_ptr<c10d::Store> store,
                       std::chrono::milliseconds limit, std::string required)
        : HostAndDevices(std::move(host), std::move(store), limit, std::move(required)), rows_(rows)
    {
    }

    at::Tensor empty_received(at::IntArrayRef sizes, const at::TensorOptions& options) override
    {
        return options.device().is_cpu() ? rows_.empty_received(sizes, options) : at::empty(sizes, options);
    }

    c10::intrusive_ptr<Work> exchange_rows(RowStream sent, const std::vector<std::int64_t>& send_bytes,
                                           const at::Tensor& received,
                                           const std::vector<std::int64_t>& receive_bytes) override
    {
        return rows_.exchange_rows(std::move(sent), send_bytes, received, receive_bytes);
    }

private:
    RowExchange& rows_;  // the host's backend
};

c10::intrusive_ptr<c10d::Backend> wrapped(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<c10d::Store> store,
                                          std::chrono::milliseconds limit, const std::string& required)
{
    if (auto* const rows = dynamic_cast<RowExchange*>(host.get())) {
        return c10::make_intrusive<HostRowsAndDevices>(std::move(host), *rows, std::move(store), limit, required);
    }
    return c10::make_intrusive<HostAndDevices>(std::move(host), std::move(store), limit, required);
}

}  // namespace

void register_device_transport(c10::DeviceType type, DeviceTransport transport)
{
    Transports::all().set(type, std::move(transport));
}

std::string why_no_transport(c10::DeviceType type)
{
    const auto transports = Transports::all().get();
    const auto found = transports.find(type);
    return found == transports.end() ? "no transport is registered for its type" : found->second.why_not();
}

std::string identity_of(const at::Device& device)
{
    const auto transports = Transports::all().get();
    const auto found = transports.find(device.type());
    if (found != transports.end() && found->second.why_not().empty()) return found->second.identity(device);
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    return std::string(host) + " " + device.str();
}

c10::intrusive_ptr<c10d::Backend> with_device_transports(c10::intrusive_ptr<c10d::Backend> host,
                                                         c10::intrusive_ptr<c10d::Store> store,
                                                         std::chrono::milliseconds time_limit,
                                                         const std::string& required)
{
    bool any = false;
    for (const auto& [type, transport] : Transports::all().get()) {
        const auto why = transport.why_not();
        any |= why.empty();
        if (!why.empty() && transport.name == required)
            throw CommunicationError("launch: {} was asked for, but {}.", required, why);
    }
    return any ? wrapped(std::move(host), std::move(store), time_limit, required) : host;
}

c10::intrusive_ptr<c10d::Backend> with_device_backend(c10::intrusive_ptr<c10d::Backend> host, c10::DeviceType type,
                                                      c10::intrusive_ptr<c10d::Backend> device)
{
    auto group = by_way_of_host(std::move(host));
    dynamic_cast<HostAndDevices&>(*group).take(type, std::move(device));
    return group;
}

c10d::Backend* device_backend_of(c10d::Backend& group, const at::Device& device)
{
    auto* const devices = dynamic_cast<HostAndDevices*>(&group);
    return devices && !device.is_cpu() ? devices->own_backend(device) : nullptr;
}

void require_not_recording(const at::Device& device)
{
    const auto transports = Transports::all().get();
    const auto found = transports.find(device.type());
    if (found == transports.end() || !found->second.is_recording || !found->second.is_recording()) return;
    throw InvalidInput("messages of {} go by way of the host, which a graph cannot record: the ranks share a device, "
                       "or a rank has no {}. Give each rank a device of its own, or run the step without a graph.",
                       device.str(), found->second.name);
}

c10::intrusive_ptr<c10d::Backend> by_way_of_host(c10::intrusive_ptr<c10d::Backend> host)
{
    return wrapped(std::move(host), {}, {}, {});
}

Carrier carrier_of(c10d::Backend& group, const at::Device& device)
{
    if (auto* const devices = dynamic_cast<HostAndDevices*>(&group)) return devices->carrier(device);
    return {group.getBackendName(), !device.is_cpu()};
}

}  // namespace meshard
