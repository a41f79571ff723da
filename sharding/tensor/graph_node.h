// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <memory>
#include <utility>

namespace meshard {

/// Pointer to a node of autograd's graph; the type differs between versions of LibTorch.
using GraphNode = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

/// Makes a new node.
template <typename Node>
auto make_graph_node()
{
#if TORCH_VERSION_MINOR >= 15
    return c10::make_intrusive<Node>();
#else
    return std::shared_ptr<Node>(new Node, torch::autograd::deleteNode);
#endif
}

}  // namespace meshard
