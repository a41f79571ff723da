// SPDX-License-Identifier: Apache-2.0
#include "sharding/memory/recompute.h"

#include "partition/error.h"
#include "sharding/memory/saved_tensors.h"
#include "sharding/tensor/rule_table.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <array>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace meshard {
namespace {

/// States of the random generators that a function may use.
class RandomState {
public:
    explicit RandomState(const std::vector<at::Tensor>& inputs)
    {
        std::set<std::pair<c10::DeviceType, c10::DeviceIndex>> devices;
        std::set<const DeviceMesh*> meshes;
        for (const auto& input : inputs) {
            if (input.defined() && !input.is_cpu()) devices.emplace(input.device().type(), input.device().index());
            if (is_sharded(input)) meshes.insert(spec_of(input)->device_mesh.get());
        }
        add(at::detail::getDefaultCPUGenerator());
        for (const auto* mesh : meshes) {
            if (mesh->own_generator()) add(*mesh->own_generator());
        }
        for (const auto& [type, index] : devices) add(at::globalContext().defaultGenerator(at::Device(type, index)));
    }

    /// Returns the present state of the same generators.
    RandomState now() const
    {
        RandomState other;
        for (const auto& generator : generators_) other.add(generator);
        return other;
    }

    void restore() const
    {
        for (std::size_t i = 0; i < generators_.size(); ++i) {
            auto generator = generators_[i];
            const std::lock_guard lock(generator.mutex());
            generator.set_state(states_[i]);
        }
    }

private:
    RandomState() = default;

    void add(at::Generator generator)
    {
        const std::lock_guard lock(generator.mutex());
        states_.push_back(generator.get_state());
        generators_.push_back(generator);
    }

    std::vector<at::Generator> generators_;
    std::vector<at::Tensor> states_;
};

/// Values of thread-local settings: our own, and those of LibTorch that its ThreadLocalState does not save.
struct Policies {
    PlainTensorPolicy plain = plain_tensor_policy();
    GatherPolicy gather = gather_policy();
    std::array<at::ScalarType, at::autocast::_AUTOCAST_SUPPORTED_DEVICES.size()> autocast_types;
    bool is_autocast_caching = at::autocast::is_autocast_cache_enabled();

    Policies()
    {
        for (std::size_t i = 0; i < autocast_types.size(); ++i)
            autocast_types[i] = at::autocast::get_autocast_dtype(at::autocast::_AUTOCAST_SUPPORTED_DEVICES[i]);
    }

    void apply() const
    {
        set_plain_tensor_policy(plain);
        set_gather_policy(gather);
        for (std::size_t i = 0; i < autocast_types.size(); ++i)
            at::autocast::set_autocast_dtype(at::autocast::_AUTOCAST_SUPPORTED_DEVICES[i], autocast_types[i]);
        at::autocast::set_autocast_cache_enabled(is_autocast_caching);
    }
};

/// Restores all settings at the end of the second run.
struct Surroundings {
    explicit Surroundings(const RandomState& random) : random(random.now()) {}
    ~Surroundings()
    {
        policies.apply();
        random.restore();
    }
    Policies policies;
    RandomState random;
};

/// One call of `checkpoint`: the data that the second run needs. Owned by the tensors that the graph has saved through
/// it.
class Region {
public:
    Region(CheckpointFunction fn, const std::vector<at::Tensor>& inputs) : fn_(std::move(fn)), random_(inputs)
    {
        for (const auto& input : inputs) {
            // Saved as autograd saves tensors: an outer checkpoint's hooks apply to them, and a later write to one is
            // an error.
            inputs_.emplace_back(input, /*is_output=*/false);
            requires_grad_.push_back(input.defined() && input.requires_grad());
        }
    }

    /// Counts a tensor that the first run saves; returns the index by which it is unpacked.
    std::size_t note(const at::Tensor& tensor)
    {
        shapes_.push_back(tensor.sizes().vec());
        types_.push_back(tensor.scalar_type());
        return shapes_.size() - 1;
    }

    /// Called when the first run has ended.
    void complete()
    {
        complete_ = true;
        saved_.clear();
    }

    at::Tensor take(std::size_t index)
    {
        const std::lock_guard lock(mutex_);
        if (index >= saved_.size() || !saved_[index].defined()) run_again();
        return std::exchange(saved_[index], KeptTensor()).take();
    }

private:
    void run_again()
    {
        // Unpacked before the settings change: an outer checkpoint may have to run again for them, with its own
        // settings.
        std::vector<at::Tensor> inputs;
        for (std::size_t i = 0; i < inputs_.size(); ++i) {
            auto input = inputs_[i].unpack();
            if (input.defined()) input = input.detach().set_requires_grad(requires_grad_[i]);
            inputs.push_back(std::move(input));
        }

        std::vector<KeptTensor> saved;
        std::vector<std::vector<std::int64_t>> shapes;
        std::vector<at::ScalarType> types;
        {
            const at::ThreadLocalStateGuard as_then(state_);
            const at::AutoGradMode record(true);
            const Surroundings put_back(random_);
            policies_.apply();
            // The cache is not cleared after backward: the next step would use this step's weights.
            at::autocast::set_autocast_cache_enabled(false);
            random_.restore();
            const SavedTensorHooks hooks([&](const at::Tensor& tensor) -> UnpackSaved {
                saved.emplace_back(tensor);
                shapes.push_back(tensor.sizes().vec());
                types.push_back(tensor.scalar_type());
                return {};
            });
            fn_(inputs);
        }

        // A function that computes derivatives itself unpacks saved tensors before its first run has ended.
        bool same = complete_ ? saved.size() == shapes_.size() : saved.size() >= shapes_.size();
        for (std::size_t i = 0; same && i < shapes_.size(); ++i)
            same = shapes[i] == shapes_[i] && types[i] == types_[i];
        if (!same) {
            throw InvalidInput(
                "checkpoint: the second run of the function saved {} tensors for backward, the first one {}, or they "
                "differ in shape or type. Let it depend on nothing but its inputs and parameters.",
                saved.size(), shapes_.size());
        }
        saved_ = std::move(saved);
    }

    CheckpointFunction fn_;
    std::vector<torch::autograd::SavedVariable> inputs_;
    std::vector<char> requires_grad_;
    RandomState random_;
    Policies policies_;
    at::ThreadLocalState state_;
    std::vector<std::vector<std::int64_t>> shapes_;
    std::vector<at::ScalarType> types_;
    std::vector<KeptTensor> saved_;  // tensors of the second run, each until backward takes it
    bool complete_ = false;
    std::mutex mutex_;
};

}  // namespace

std::vector<at::Tensor> checkpoint(const CheckpointFunction& fn, const std::vector<at::Tensor>& inputs)
{
    if (!at::GradMode::is_enabled()) return fn(inputs);
    const auto region = std::make_shared<Region>(fn, inputs);
    const SavedTensorHooks hooks([region](const at::Tensor& tensor) -> UnpackSaved {
        return [region, index = region->note(tensor)] { return region->take(index); };
    });
    auto outputs = fn(inputs);
    region->complete();
    return outputs;
}

at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& fn, const at::Tensor& input)
{
    const CheckpointFunction lists = [fn](const std::vector<at::Tensor>& inputs) {
        return std::vector<at::Tensor>{fn(inputs[0])};
    };
    return checkpoint(lists, std::vector<at::Tensor>{input})[0];
}

}  // namespace meshard
