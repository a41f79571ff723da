// SPDX-License-Identifier: Apache-2.0
#include "sharding/memory/saved_tensors.h"

#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <mutex>
#include <set>
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
        if (!unpack) kept = KeptTensor(std::move(saved));
    }

    at::Tensor call_unpack_hook() override { return unpack ? unpack() : kept.take(); }

    PackSaved pack;
    UnpackSaved unpack;
    KeptTensor kept;
};

/// LibTorch asks the engine for hooks on saved tensors. The base engine has none (Python's engine has those of Python);
/// this one returns ours, and leaves all else to the engine before it, whose threads a backward within a backward
/// needs.
class EngineWithHooks : public torch::autograd::Engine {
public:
    EngineWithHooks() : before_(torch::autograd::Engine::get_default_engine()) {}
    ~EngineWithHooks() override { stop(); }

    std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override
    {
        if (packers.empty()) return before_.get_default_saved_variable_hooks();
        return std::make_unique<PackedTensor>(packers.back());
    }

    std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override
    {
        return before_.make_anomaly_metadata();
    }

    torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                           const torch::autograd::variable_list& inputs, bool keep_graph,
                                           bool create_graph, bool accumulate_grad,
                                           const torch::autograd::edge_list& outputs) override
    {
        return before_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    }

    c10::intrusive_ptr<at::ivalue::Future>
    execute_with_graph_task(const std::shared_ptr<torch::autograd::GraphTask>& graph_task,
                            std::shared_ptr<torch::autograd::Node> graph_root,
                            torch::autograd::InputBuffer&& input_buffer) override
    {
        return before_.execute_with_graph_task(graph_task, std::move(graph_root), std::move(input_buffer));
    }

    static torch::autograd::Engine& get()
    {
        static EngineWithHooks engine;
        return engine;
    }

private:
    torch::autograd::Engine& before_;
};

}  // namespace

KeptTensor::KeptTensor(at::Tensor tensor)
    : tensor_(std::move(tensor)), num_writes_(tensor_.is_inference() ? 0 : tensor_._version())
{
}

at::Tensor KeptTensor::take()
{
    const auto now = !tensor_.defined() || tensor_.is_inference() ? num_writes_ : tensor_._version();
    TORCH_CHECK(now == num_writes_,
                "one of the variables needed for gradient computation has been modified by an inplace operation: [",
                tensor_.toString(), " ", tensor_.sizes(), "] is at version ", now, "; expected version ", num_writes_,
                " instead.");
    return tensor_;
}

SavedTensorHooks::SavedTensorHooks(PackSaved pack)
{
    static std::once_flag once;
    std::call_once(once, [] {
        EngineWithHooks::get();  // made before it is the default engine
        torch::autograd::set_default_engine_stub(&EngineWithHooks::get);
    });
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

/// Returns whether a tensor is on a device, large and in none of the memory that stays.
static std::function<bool(const at::Tensor&)> is_moved(const OffloadOptions& options)
{
    const auto staying = std::make_shared<std::set<const c10::StorageImpl*>>();  // each saved tensor has the function
    for (const auto& tensor : options.stay) {
        if (const auto& local = local_of(tensor); local.has_storage())
            staying->insert(local.storage().unsafeGetStorageImpl());
    }
    return [least = options.least_bytes, staying](const at::Tensor& local) {
        return !local.is_cpu() && static_cast<std::int64_t>(local.nbytes()) >= least &&
               !(local.has_storage() && staying->contains(local.storage().unsafeGetStorageImpl()));
    };
}

OffloadSavedTensors::OffloadSavedTensors(const OffloadOptions& options)
    : hooks_(offload_where(is_moved(options), options.page_locked))
{
}

}  // namespace meshard
