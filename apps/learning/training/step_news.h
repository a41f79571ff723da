// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/rank_group.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace meshard {

/// What the ranks share of a training step in one message: its loss, whether one of them is to stop, and the norm of
/// the gradients. On a device the numbers are copied to the host while the device and the host go on; the first read
/// waits for the copy.
class StepSummary {
public:
    StepSummary() = default;

    /// Collective. @param own   double, on the rank's device: its share of the loss, kInterrupted or kOutOfTime if it
    /// is to stop, else 0, and on request its share of the gradients' norm
    StepSummary(at::Tensor own, const RankGroup& ranks);

    /// What the current stream of a device has been given before a step, to know the device's own time of it; null on
    /// the CPU.
    static std::shared_ptr<const c10::Event> beginning(const at::Device& device);

    /// Seconds of the device from such a beginning until the numbers were there; on the CPU, where the host computes,
    /// nothing. As the first read, waits.
    std::optional<double> seconds_since(const std::shared_ptr<const c10::Event>& beginning) const;

    double loss() const { return number(0); }
    /// What a rank sends that wants to stop; sums of many still tell them apart.
    static constexpr double kInterrupted = 1, kOutOfTime = 1.0 / (1 << 20);

    bool wants_stop() const { return number(1) > 0; }
    bool is_interrupted() const { return number(1) >= kInterrupted; }
    double gradient_norm() const { return number(2); }

private:
    double number(std::int64_t i) const;
    void wait() const;

    at::Tensor host_;

    std::shared_ptr<c10::Event> copied_;  // null on the CPU
    mutable bool is_there_ = false;
};

}  // namespace meshard
