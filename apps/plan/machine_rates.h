// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/plan/step_rates.h"
#include "sharding/ranks/device_mesh.h"

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

namespace meshard {

/// This machine's own rates. The constructor measures memory, exponentials, a call of an operator, and messages of a few bytes and of megabytes. Products of
/// each shape, activations and norms, and softmax on tiles in a core's cache, are measured when they are first asked for. Each takes milliseconds; the best of
/// several runs counts. Ranks that share the machine should measure the same at the same time, so all must ask in the same order.
class MachineRates : public StepRates {
public:
    /// Collective over all ranks of `mesh`.
    explicit MachineRates(const DeviceMesh& mesh);

    double seconds(const Operation& operation) const override;
    double seconds_of_small_calls(double count) const override;
    double seconds(const StepMessage& message, std::int64_t num_ranks) const override;
    double memory_bytes() const override;
    WorkForm form() const override { return WorkForm::Cpu; }

    double copy_rate() const { return copy_rate_; }                ///< bytes per second, read and written
    double product_rate() const { return product_rate_; }          ///< of 1024 x 1024 matrices, per second
    double exponential_rate() const { return exponential_rate_; }  ///< in the cache, per second
    double message_latency() const { return message_latency_; }    ///< seconds of an all-reduce of 8 bytes; 0 on one rank
    double message_rate() const { return message_rate_; }          ///< bytes per second of an all-reduce of 4 MB

private:
    double seconds_of_call(const Operation& operation) const;
    double seconds_of_number(Operation::Kind kind, bool in_tile) const;

    using Shape = std::tuple<bool, std::int64_t, std::int64_t, std::int64_t, bool, bool>;
    mutable std::map<Shape, double> products_;
    mutable std::map<std::pair<Operation::Kind, bool>, double> numbers_;
    std::int64_t num_ranks_ = 1;
    double copy_rate_ = 1, product_rate_ = 1, exponential_rate_ = 1, small_call_ = 0, message_latency_ = 0, message_rate_ = 1;
};

}  // namespace meshard
