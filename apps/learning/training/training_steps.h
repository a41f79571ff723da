// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/training/rank_balance.h"
#include "apps/learning/training/run_state.h"
#include "sharding/ranks/rank_group.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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

enum class LoopEnd : std::uint8_t { Done, OutOfTime, Interrupted };

/// The steps of a run, with the validations and checkpoints at the ends of its epochs.
class TrainingSteps {
public:
    explicit TrainingSteps(Run& run);

    /// Trains from the run's progress on until all steps are done, time is over, or a rank is asked to stop.
    /// Collective.
    /// @param profile_steps   as of `TrainingStart`
    LoopEnd train(const volatile std::sig_atomic_t& stop_requested, std::int64_t profile_steps);

    std::int64_t first_step() const { return first_step_; }  ///< that was done before

private:
    using Clock = Run::Clock;

    /// A step whose loss may not have come from the device yet.
    struct PendingStep {
        std::int64_t number = 0;       // from 1
        std::int64_t index = 0;        // of its first case, among those that train
        std::int64_t num_counted = 0;  // cases that the data groups took together
        double rate = 0;
        Clock::time_point start;
        std::shared_ptr<const c10::Event> start_on_device;
        StepSummary news;
        bool is_taken = true;                   // the weights were changed
        double seconds_waited = 0;              // for cases that were not read yet
        std::optional<double> next_loss_scale;  // in float16
    };

    void read_from(std::int64_t first_step);
    void begin_epoch();
    std::string balance_ranks();
    void end_epoch(std::int64_t epoch, bool stops);
    PendingStep begin_step(double wish);
    void step(const std::vector<StepCase>& cases, PendingStep& under_way, double wish);
    at::Tensor local_summary(const std::vector<StepCase>& cases, const std::vector<at::Tensor>& losses, double wish,
                             const at::Tensor& gradient_norm) const;
    LoopEnd finish_steps(std::size_t num_left);
    void finish_step(const PendingStep& step);
    void leave_out(const PendingStep& step, double loss);
    void record_step(const PendingStep& step, double loss, double seconds, bool is_left_out);
    void check_error(double error);
    double share_waited() const;
    std::int64_t epoch_of(std::int64_t step) const { return (step - 1) / run_.data.steps_per_epoch() + 1; }

    Run& run_;
    const TrainingConfig& training_;
    const std::int64_t first_step_;
    const Clock::time_point start_ = Clock::now();
    std::optional<RankBalance> balance_;  // where ranks share cases and `parallel.balance` is on
    std::optional<ExampleSequence> examples_;
    std::deque<PendingStep> under_way_;
    Clock::time_point last_news_;  // when a step's loss was known last
    Clock::time_point epoch_start_ = start_;
    double seconds_in_epoch_ = 0,
           seconds_waited_ = 0;    // of the epoch's steps, and in these for cases that were not read yet
    double seconds_in_steps_ = 0;  // of all steps
    std::int64_t points_done_ = 0;
};

}  // namespace meshard
