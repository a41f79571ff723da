// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/memory/device_graph.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// Forward and backward of training steps, recorded (`DeviceGraph`) where their shapes repeat: a step is then one launch, and the host does next to nothing.
///
/// A kind of step, that is its key and the shapes and types of its tensors, runs as it is three times, until all that is done once has been done: indices are
/// on the device, workspaces taken, kernels loaded. Then it is recorded, for up to `kMostGraphs` kinds; further kinds run as they are. Each graph keeps the
/// memory that its step needs. Steps that cannot be recorded run as they are, all of them from then on, and `why_not` says why.
class StepGraphs {
public:
    static constexpr int kWarmUps = 3;
    static constexpr std::size_t kMostGraphs = 8;

    using Tensors = std::vector<at::Tensor>;

    /// @param parameters   whose gradients a step makes
    StepGraphs(Tensors parameters, c10::DeviceType type) : parameters_(std::move(parameters)), type_(type) {}

    /// The loss of one step: `step` computes it from tensors like `inputs`, undefined ones among them, and its gradients. Parameters have no gradients before.
    /// @param key   what a step depends on besides the numbers in its tensors; everything else must be the same in each step
    at::Tensor run(const std::string& key, const Tensors& inputs, const std::function<at::Tensor(const Tensors&)>& step);

    std::size_t num_graphs() const;
    std::int64_t num_replays() const { return num_replays_; }
    const std::optional<std::string>& why_not() const { return why_not_; }

private:
    /// One kind of step.
    struct Kind {
        int num_runs = 0;
        std::optional<DeviceGraph> graph;
        Tensors inputs, gradients;  // which the graph reads and writes
        at::Tensor loss;
    };

    bool record(Kind& kind, const Tensors& inputs, const std::function<at::Tensor(const Tensors&)>& step);
    at::Tensor replay(Kind& kind, const Tensors& inputs);

    Tensors parameters_;
    c10::DeviceType type_;
    std::map<std::string, Kind> kinds_;
    std::int64_t num_replays_ = 0;
    std::optional<std::string> why_not_;
};

}  // namespace meshard
