// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/plan/operation.h"
#include "apps/plan/step_work.h"

#include <cstdint>
#include <string>

namespace meshard {

/// How fast a rank's device computes, and how long messages between ranks take.
class StepRates {
public:
    virtual ~StepRates() = default;

    virtual double seconds(const Operation& operation) const = 0;
    virtual double seconds_of_small_calls(double count) const = 0;
    virtual double seconds(const StepMessage& message, std::int64_t num_ranks) const = 0;  ///< of all its `times`
    virtual double memory_bytes() const = 0;                                               ///< that a rank may use
    virtual WorkForm form() const = 0;
};

}  // namespace meshard
