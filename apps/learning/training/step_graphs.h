// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/memory/device_graph.h"
#include "sharding/ranks/rank_group.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// What a step is given.
struct StepInputs {
    using Tensors = std::vector<at::Tensor>;

    std::string key;      ///< what it depends on besides the numbers in its tensors and its subject
    std::string subject;  ///< of what it is: the name of a case
    Tensors tensors;      ///< plain or sharded; undefined ones among them
    std::vector<std::shared_ptr<const void>> kept;  ///< what must live as long as a graph of this step
};

/// Forward and backward of training steps, recorded (`DeviceGraph`) where their shapes repeat: a step is then one
/// launch, and the host does next to nothing.
///
/// A kind of step, that is its key and the shapes, types and layouts of its tensors, runs as it is three times, until
/// all that is done once has been done: indices are on the device, workspaces taken, kernels loaded. Then it is
/// recorded with tensors of the graph's own, into which those of each step are copied, for up to `kMostGraphs` kinds;
/// further kinds run as they are. Each graph keeps the memory that its step needs.
///
/// A step that depends on the host's view of its tensors, such as a search for neighbours that is kept as long as the
/// points are, cannot be recorded so. Then each subject is a kind of its own, recorded with its very tensors, as long
/// as these are the same ones each time. Steps that cannot be recorded so either run as they are, all of them from then
/// on, and `why_not` says why.
///
/// The first runs of a graph are compared with the step itself. Where they differ, the step depends on something that
/// is not among its inputs, and is not run from graphs.
///
/// With several ranks every function is collective: a kind is then what it is on all ranks, and all of them record and
/// run a graph in the same step, or none.
class StepGraphs {
public:
    static constexpr int kWarmUps = 3, kWarmUpsOfSubject = 1, kChecked = 3;
    static constexpr std::size_t kMostGraphs = 8, kMostKinds = 1000;

    using Tensors = StepInputs::Tensors;
    using Step = std::function<at::Tensor(const Tensors&)>;

    /// @param parameters   whose gradients a step makes  @param state   other tensors to which it writes, such as means
    /// that a normalisation keeps
    /// @param tolerance   of loss and gradients, relative: a library may choose other products in a graph, which are
    /// rounded otherwise
    StepGraphs(Tensors parameters, Tensors state, c10::DeviceType type, RankGroup group = {}, double tolerance = 0)
        : parameters_(std::move(parameters)), state_(std::move(state)), type_(type), group_(std::move(group)),
          tolerance_(tolerance)
    {
    }

    /// The loss of one step: `step` computes it from tensors like those of `inputs`, and its gradients. Parameters have
    /// no gradients before.
    at::Tensor run(const StepInputs& inputs, const Step& step);

    std::size_t num_graphs() const;
    std::int64_t num_replays() const { return num_replays_; }
    const std::optional<std::string>& why_not() const { return why_not_; }

private:
    using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

    /// Tensors of a subject: those of its last run, its first ones, or others.
    enum class Seen : std::uint8_t { Same, First, Others };

    /// One kind of step.
    struct Kind {
        int num_runs = 0, num_checked = 0;
        std::optional<DeviceGraph> graph;
        Tensors inputs, gradients;  // which the graph reads and writes
        std::vector<std::shared_ptr<const void>> kept;
        at::Tensor loss;
    };

    std::string kind_of(const StepInputs& inputs) const;
    Seen see(const StepInputs& inputs);
    Seen least_similar(Seen seen) const;
    bool record(Kind& kind, const StepInputs& inputs, const Step& step, Seen seen);
    at::Tensor replay(Kind& kind, const Tensors& tensors);
    at::Tensor checked(Kind& kind, const Tensors& tensors, const Step& step);
    bool agrees(const Tensors& found, const Tensors& expected, const std::function<Tensors()>& again) const;
    Tensors take_gradients();
    void give_up(const std::string& why);

    Tensors parameters_, state_;
    c10::DeviceType type_;
    RankGroup group_;
    double tolerance_;
    bool is_by_subject_ = false;
    std::string why_not_from_copies_;
    std::map<std::string, Kind> kinds_;
    std::map<std::string, std::vector<WeakTensor>> last_;  // of each subject
    std::int64_t num_replays_ = 0;
    std::optional<std::string> why_not_;
};

}  // namespace meshard
