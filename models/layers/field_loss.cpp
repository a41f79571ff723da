// SPDX-License-Identifier: Apache-2.0
#include "models/layers/field_loss.h"

#include "models/layers/metrics.h"
#include "partition/error.h"

#include <torch/types.h>

#include <cmath>
#include <numeric>
#include <string>
#include <utility>

namespace meshard {
namespace {

constexpr std::pair<std::string_view, LossKind> kLossNames[] = {{"mse", LossKind::MeanSquare},
                                                                {"l1", LossKind::Absolute},
                                                                {"huber", LossKind::Huber},
                                                                {"relative_mse", LossKind::RelativeMeanSquare},
                                                                {"relative_l2", LossKind::RelativeL2}};

constexpr double kLeastMeanTruth = 1e-8;  // added to the mean squares by which a channel's errors are divided
// Smallest sum of squares by which a field's errors are divided, in units of about its deviation.
constexpr double kLeastFieldTruth = 1e-8;
constexpr double kLeastWeight = 1e-12;  // of all points of a step, where none of them has an area
constexpr double kLeastError = 1e-12;   // added under the root, whose slope at 0 is infinite

}  // namespace

LossKind loss_kind(std::string_view name)
{
    std::string names;
    for (const auto& [known, kind] : kLossNames) {
        if (known == name) return kind;
        names += (names.empty() ? "" : ", ") + std::string(known);
    }
    throw InvalidInput("loss: '{}' is none of {}.", name, names);
}

FieldLoss::FieldLoss(const FieldLossOptions& options, const std::vector<std::int64_t>& channels,
                     const Normalizer& normalizer)
    : terms_(options.terms), huber_delta_(options.huber_delta)
{
    const auto num_fields = channels.size();
    if (!options.field_weights.empty() && options.field_weights.size() != num_fields) {
        throw InvalidInput("loss: {} weights for {} fields.", options.field_weights.size(), num_fields);
    }
    std::vector<double> weights, of_fields;
    std::vector<float> belongs;
    for (std::size_t f = 0; f < num_fields; ++f) {
        const auto count = static_cast<std::size_t>(channels[f]);
        auto own = options.field_weights.empty() ? std::vector<double>(1, 1.0) : options.field_weights[f];
        if (own.size() == 1) own.resize(count, own[0]);
        if (own.size() != count) {
            throw InvalidInput(
                "loss: field {} has {} channels, and {} weights. Give one number, or one for each channel.", f + 1,
                count, own.size());
        }
        weights.insert(weights.end(), own.begin(), own.end());
        of_fields.push_back(std::accumulate(own.begin(), own.end(), 0.0) / static_cast<double>(count));
        for (std::size_t c = 0; c < count; ++c) {
            for (std::size_t other = 0; other < num_fields; ++other) belongs.push_back(other == f ? 1.0F : 0.0F);
        }
    }
    const auto sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    const auto sum_of_fields = std::accumulate(of_fields.begin(), of_fields.end(), 0.0);
    if (!(sum > 0)) throw InvalidInput("loss: the weights of all fields are 0. Give one of them a positive number.");
    has_weights_ = !options.field_weights.empty();
    channel_weights_ = torch::tensor(weights, torch::kDouble).div(sum).to(torch::kFloat).to(normalizer.mean.device());
    field_weights_ =
        torch::tensor(of_fields, torch::kDouble).div(sum_of_fields).to(torch::kFloat).to(normalizer.mean.device());
    // Units in which each field deviates by about 1, so that sums of squares of small units keep their digits. They are
    // powers of two: ratios stay the same to the last bit.
    std::vector<float> units;
    const auto deviations = normalizer.std.cpu();
    for (const auto count : channels) {
        const auto first = std::ssize(units);
        const auto largest = deviations.narrow(0, first, count).max().item<float>();
        units.insert(units.end(), static_cast<std::size_t>(count),
                     largest > 0 ? std::exp2(-std::round(std::log2(largest))) : 1.0F);
    }
    const auto by = torch::tensor(units).to(normalizer.mean.device());
    normalizer_ = {normalizer.mean * by, normalizer.std * by};
    field_of_channel_ = torch::tensor(belongs)
                            .view({std::ssize(weights), static_cast<std::int64_t>(num_fields)})
                            .to(normalizer.mean.device());
}

at::Tensor FieldLoss::term(LossKind kind, const at::Tensor& prediction, const at::Tensor& target,
                           const at::Tensor& point_weights) const
{
    if (kind == LossKind::MeanSquare && !point_weights.defined() && !has_weights_)
        return mean_squared_error(prediction, target);
    const auto num_points = static_cast<double>(prediction.size(0) * prediction.size(1));
    // Weights have the mean 1 over all points of a case, but not over those that a step draws.
    const auto total = point_weights.defined() ? point_weights.sum().clamp_min(kLeastWeight) : at::Tensor();
    const auto sums = [&](const at::Tensor& values) {
        return (point_weights.defined() ? values * point_weights : values).sum(at::IntArrayRef{0, 1});
    };  // (C)
    const auto mean = [&](const at::Tensor& values) {
        const auto sum = (sums(values) * channel_weights_).sum();
        return total.defined() ? sum / total : sum / num_points;
    };  // ()
    switch (kind) {
    case LossKind::MeanSquare:
        return mean((prediction - target).square());
    case LossKind::Absolute:
        return mean((prediction - target).abs());
    case LossKind::Huber:
        return mean(torch::huber_loss(prediction, target, at::Reduction::None, huber_delta_));
    case LossKind::RelativeMeanSquare: {
        const auto errors = sums((prediction - target).square()), truths = sums(target.square());
        const auto least = total.defined() ? truths + total * kLeastMeanTruth : truths + num_points * kLeastMeanTruth;
        return (errors / least * channel_weights_).sum();
    }
    case LossKind::RelativeL2: {
        const auto errors = sums(((prediction - target) * normalizer_.std).square()),
                   truths = sums(normalizer_.denormalize(target).square());
        const auto of_fields = [&](const at::Tensor& of_channels) {
            return (of_channels.unsqueeze(-1) * field_of_channel_).sum(0);
        };  // (F)
        const auto ratios = of_fields(errors) / of_fields(truths).clamp_min(kLeastFieldTruth);
        return ((ratios + kLeastError).sqrt() * field_weights_).sum();
    }
    }
    throw InvalidInput("loss: this kind has no formula.");
}

at::Tensor FieldLoss::operator()(const at::Tensor& prediction, const at::Tensor& target,
                                 const at::Tensor& point_weights) const
{
    at::Tensor sum;
    for (const auto& [kind, weight] : terms_) {
        const auto value = term(kind, prediction, target, point_weights);
        const auto weighted = weight == 1 ? value : value * weight;
        sum = sum.defined() ? sum + weighted : weighted;
    }
    return sum;
}

}  // namespace meshard
