// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/rank_group.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <memory>

namespace meshard {

/// What the ranks share of a training step in one message: its loss, and whether one of them is to stop. On a device the numbers are copied to the host while
/// the device and the host go on; the first read waits for the copy.
class StepNews {
public:
    /// Collective. @param own   (2), double, on the rank's device: its share of the loss, and 1 if it is to stop, else 0
    StepNews(at::Tensor own, const RankGroup& ranks);

    double loss() const { return number(0); }
    bool wants_stop() const { return number(1) > 0; }

private:
    double number(std::int64_t i) const;

    at::Tensor host_;
    std::shared_ptr<c10::Event> copied_;  // null on the CPU
};

}  // namespace meshard
