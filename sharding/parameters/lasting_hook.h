// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace meshard {

/// Base class of hooks on a leaf that `KeptHooks` keeps.
struct LastingHook : torch::autograd::FunctionPreHook {};

/// Keeps the lasting hooks of a leaf during its lifetime: PyTorch removes the C++ hooks of a tensor when the first
/// Python hook is registered on it.
class KeptHooks {
public:
    explicit KeptHooks(at::Tensor leaf) : leaf_(std::move(leaf))
    {
        if (!leaf_.is_leaf() || !leaf_.requires_grad()) return;
        auto& hooks = torch::autograd::impl::hooks(leaf_);
        for (auto& hook : hooks) {
            if (dynamic_cast<const LastingHook*>(hook.get())) kept_.push_back(std::move(hook));
        }
        std::erase(hooks, nullptr);
    }

    ~KeptHooks()
    {
        if (kept_.empty()) return;
        auto& hooks = torch::autograd::impl::hooks(leaf_);
        hooks.insert(hooks.begin(), std::make_move_iterator(kept_.begin()), std::make_move_iterator(kept_.end()));
    }

    KeptHooks(const KeptHooks&) = delete;
    KeptHooks& operator=(const KeptHooks&) = delete;

private:
    at::Tensor leaf_;
    std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>> kept_;
};

}  // namespace meshard
