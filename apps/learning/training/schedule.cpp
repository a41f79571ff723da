// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace meshard {
namespace {

constexpr double kRisingShare = 0.3, kFirstDivisor = 25, kLastDivisor = 1e4;  // of one_cycle
constexpr double kHighBeta = 0.95, kLowBeta = 0.85;

/// A number that goes from `low` up to `high` and down to `last` as one_cycle does: by half cosines.
double in_cycle(std::int64_t step, std::int64_t num_steps, double low, double high, double last)
{
    const auto half_cosine = [](double from, double to, double x) {
        return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * x));
    };
    const auto top = kRisingShare * static_cast<double>(num_steps) - 1, end = static_cast<double>(num_steps) - 1,
               now = static_cast<double>(step);
    if (now <= top) return half_cosine(low, high, now / top);
    return half_cosine(high, last, std::min(1.0, (now - top) / (end - top)));
}

}  // namespace

double learning_rate(const TrainingConfig& config, std::int64_t step, std::int64_t num_steps)
{
    if (config.scheduler == "one_cycle") {
        const auto first = config.learning_rate / kFirstDivisor;
        return in_cycle(step, num_steps, first, config.learning_rate, first / kLastDivisor);
    }
    if (step < config.warmup_steps) {
        return config.learning_rate * static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
    }
    if (config.scheduler == "step" || config.scheduler == "exponential") {
        const auto epoch = step * config.num_epochs / num_steps;
        const auto times = config.scheduler == "step" ? epoch / config.step_epochs : epoch;
        return std::max(config.min_learning_rate,
                        config.learning_rate * std::pow(config.gamma, static_cast<double>(times)));
    }
    if (config.scheduler == "constant" || config.scheduler == "plateau" || num_steps <= config.warmup_steps)
        return config.learning_rate;
    const auto progress =
        static_cast<double>(step - config.warmup_steps) / static_cast<double>(num_steps - config.warmup_steps);
    if (config.scheduler == "linear" || config.scheduler == "polynomial") {
        const auto left = std::pow(1 - progress, config.scheduler == "linear" ? 1.0 : config.power);
        return config.min_learning_rate + (config.learning_rate - config.min_learning_rate) * left;
    }
    const auto cosine = 0.5 * (1 + std::cos(std::numbers::pi * progress));
    return config.min_learning_rate + (config.learning_rate - config.min_learning_rate) * cosine;
}

double first_beta_in_cycle(std::int64_t step, std::int64_t num_steps)
{
    return in_cycle(step, num_steps, kHighBeta, kLowBeta, kHighBeta);
}

bool lowers_rate(PlateauState& state, double error, const TrainingConfig& config)
{
    if (error < state.best * (1 - config.threshold)) {
        state.best = error;
        state.bad_checks = 0;
        return false;
    }
    if (++state.bad_checks <= config.plateau_patience) return false;
    state.factor *= config.gamma;
    state.bad_checks = 0;
    return true;
}

bool ends_run(EarlyStopState& state, double error, const TrainingConfig& config)
{
    const bool is_better = error < state.best - config.stop_min_delta;
    if (is_better) state.best = error;
    state.bad_checks = is_better ? 0 : state.bad_checks + 1;
    return is_over(state, config);
}

}  // namespace meshard
