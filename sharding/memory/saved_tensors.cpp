// SPDX-License-Identifier: Apache-2.0
#include "sharding/memory/saved_tensors.h"

#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <mutex>
#include <vector>

namespace meshard {
namespace {

thread_local std::vector<PackSaved> packers;

struct PackedTensor : torch::autograd::SavedVariableHooks {
    explicit PackedTensor(PackSaved pack) : pack(std::move(pack)) {}

    void call_pack_hook(const at::Tensor& tensor) override
    {
        // Detached: a result that its own operator saves must not keep that operator alive.
        auto saved = tensor.detach();
        unpack = pack(saved);
        if (!unpack) kept = std::move(saved);
    }

    at::Tensor call_unpack_hook() override { return unpack ? unpack() : kept; }

    PackSaved pack;
    UnpackSaved unpack;
    at::Tensor kept;
};

/// LibTorch asks the engine for hooks on saved tensors. The base engine has none (Python's engine has those of Python);
/// this one returns ours.
class EngineWithHooks : public torch::autograd::Engine {
public:
    ~EngineWithHooks() override { stop(); }

    std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override
    {
        if (packers.empty()) return nullptr;
        return std::make_unique<PackedTensor>(packers.back());
    }

    static torch::autograd::Engine& get()
    {
        static EngineWithHooks engine;
        return engine;
    }
};

}  // namespace

SavedTensorHooks::SavedTensorHooks(PackSaved pack)
{
    static std::once_flag once;
    std::call_once(once, [] { torch::autograd::set_default_engine_stub(&EngineWithHooks::get); });
    packers.push_back(std::move(pack));
}

SavedTensorHooks::~SavedTensorHooks()
{
    packers.pop_back();
}

PackSaved offload_where(std::function<bool(const at::Tensor&)> moves, bool page_locked)
{
    return [moves = std::move(moves), page_locked](const at::Tensor& tensor) -> UnpackSaved {
        const auto& local = local_of(tensor);
        if (!moves(local)) return {};
        const auto device = local.device();
        const bool page_lock = page_locked && !device.is_cpu();
        auto host = at::empty_like(local, local.options().device(at::kCPU).pinned_memory(page_lock));
        // Both copies are queued on the stream, so that neither needs a wait.
        host.copy_(local, /*non_blocking=*/page_lock);
        if (!is_sharded(tensor))
            return [host, device, page_lock] { return host.to(device, page_lock, device.is_cpu()); };
        return [host, device, page_lock, spec = spec_of(tensor), strides = tensor.strides().vec()] {
            return wrap(host.to(device, page_lock, device.is_cpu()), spec, strides);
        };
    };
}

OffloadSavedTensors::OffloadSavedTensors(const OffloadOptions& options)
    : hooks_(offload_where(
          [least = options.least_bytes](const at::Tensor& local) {
              return !local.is_cpu() && static_cast<std::int64_t>(local.nbytes()) >= least;
          },
          options.page_locked))
{
}

}  // namespace meshard
