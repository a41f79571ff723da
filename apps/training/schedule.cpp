// SPDX-License-Identifier: Apache-2.0
#include "apps/training/schedule.h"

#include "partition/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numbers>

namespace meshard {

namespace {

constexpr double kRisingShare = 0.3, kFirstDivisor = 25, kLastDivisor = 1e4;  // of one_cycle
constexpr double kHighBeta = 0.95, kLowBeta = 0.85;

/// A number that goes from `low` up to `high` and down to `last` as one_cycle does: by half cosines.
double in_cycle(std::int64_t step, std::int64_t num_steps, double low, double high, double last)
{
    const auto half_cosine = [](double from, double to, double x) { return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * x)); };
    const auto top = kRisingShare * static_cast<double>(num_steps) - 1, end = static_cast<double>(num_steps) - 1, now = static_cast<double>(step);
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
        return std::max(config.min_learning_rate, config.learning_rate * std::pow(config.gamma, static_cast<double>(times)));
    }
    if (config.scheduler == "constant" || config.scheduler == "plateau" || num_steps <= config.warmup_steps) return config.learning_rate;
    const auto progress = static_cast<double>(step - config.warmup_steps) / static_cast<double>(num_steps - config.warmup_steps);
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

bool Plateau::check(double error, const TrainingConfig& config)
{
    if (error < best * (1 - config.threshold)) {
        best = error;
        bad_checks = 0;
        return false;
    }
    if (++bad_checks <= config.plateau_patience) return false;
    factor *= config.gamma;
    bad_checks = 0;
    return true;
}

bool EarlyStop::check(double error, const TrainingConfig& config)
{
    if (error < best - config.stop_min_delta) {
        best = error;
        bad_checks = 0;
    } else {
        ++bad_checks;
    }
    return is_over(config);
}

CaseOrder::CaseOrder(const TrainingConfig& config, std::int64_t seed, const std::vector<CaseSource>& cases)
    : num_cases_(static_cast<std::int64_t>(cases.size())), seed_(seed), shuffle_(config.shuffle), file_(config.order_file.string())
{
    if (file_.empty()) return;
    std::ifstream stream(file_);
    if (!stream) throw IoError("training.order_file " + file_ + " cannot be read.");
    std::int64_t number = 0;
    for (std::string text; std::getline(stream, text);) {
        ++number;
        const auto line = nlohmann::json::parse(text, nullptr, false);
        const auto where = "training.order_file " + file_ + ", line " + std::to_string(number);
        if (line.is_discarded()) throw IoError(where + " is no JSON.");
        if (!line.contains("order") || !line.contains("epoch")) continue;
        if (line["epoch"].get<std::int64_t>() != static_cast<std::int64_t>(epochs_.size()) + 1)
            throw InvalidInput(where + ": epoch " + line["epoch"].dump() + " is out of turn.");
        std::vector<std::int64_t> order;
        std::vector<bool> is_taken(cases.size(), false);
        for (const auto& id : line["order"]) {
            const auto found = std::find_if(cases.begin(), cases.end(), [&](const auto& source) { return id == source.id; });
            const auto i = found - cases.begin();
            if (found == cases.end() || is_taken[i]) throw InvalidInput(where + ": case " + id.dump() + " is no training case, or stands there twice.");
            is_taken[i] = true;
            order.push_back(i);
        }
        if (order.size() != cases.size()) {
            throw InvalidInput(where + " orders " + std::to_string(order.size()) + " cases, and " + std::to_string(cases.size()) + " train.");
        }
        epochs_.push_back(std::move(order));
    }
}

std::vector<std::int64_t> CaseOrder::of_epoch(std::int64_t epoch) const
{
    if (!file_.empty()) {
        if (epoch > static_cast<std::int64_t>(epochs_.size())) {
            throw InvalidInput("training.order_file " + file_ + " ends after epoch " + std::to_string(epochs_.size()) + "; epoch " + std::to_string(epoch) +
                               " has no order.");
        }
        return epochs_[epoch - 1];
    }
    constexpr std::uint64_t kEpochStride = 0x9E3779B97F4A7C15;  // seeds of neighbouring epochs must not be neighbours
    if (shuffle_) return shuffled_order(num_cases_, static_cast<std::uint64_t>(seed_) + kEpochStride * static_cast<std::uint64_t>(epoch));
    std::vector<std::int64_t> order(num_cases_);
    for (std::int64_t i = 0; i < num_cases_; ++i) order[i] = i;
    return order;
}

}  // namespace meshard
