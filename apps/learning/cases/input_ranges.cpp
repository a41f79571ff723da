// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/input_ranges.h"

#include "apps/learning/cases/case_tensors.h"
#include "partition/lists.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshard {
namespace {

// A value may leave a range by this share of the range's width.
constexpr double kRangeMargin = 0.02;

at::Tensor plain_rows(const at::Tensor& tensor)
{
    return (is_sharded(tensor) ? to_local(tensor) : tensor).detach().to(torch::kCPU);
}

double longest_edge(const std::array<double, 6>& bounds)
{
    return std::max({bounds[1] - bounds[0], bounds[3] - bounds[2], bounds[5] - bounds[4]});
}

/// Returns this rank's rows of the points' inputs that count, (rows, channels), and the case's constants and time,
/// (numbers).
std::pair<at::Tensor, at::Tensor> input_rows(const PointInputs& inputs)
{
    auto rows = plain_rows(inputs.embedding);
    rows = rows.reshape({-1, rows.size(-1)});
    if (const auto counts = counted_rows(rows); !counts.all().item<bool>()) rows = rows.index({counts});
    std::vector<at::Tensor> numbers{torch::empty({0})};
    for (const auto& of_case : {inputs.constants, inputs.time}) {
        if (of_case.defined()) numbers.push_back(plain_rows(of_case).reshape({-1}).to(torch::kFloat));
    }
    return {rows, torch::cat(numbers)};
}

/// Names each input: `points.x`, ..., `sdf`, then columns of the table.
std::vector<std::string> input_names(const DataConfig& data, std::int64_t num_channels, std::size_t num_numbers)
{
    std::vector<std::string> names;
    for (const auto& input : data.inputs) {
        const bool is_vector = is_vector_input(input);
        for (const char* component : {".x", ".y", ".z"}) {
            names.push_back(input + (is_vector ? component : ""));
            if (!is_vector) break;
        }
    }
    append(names, data.series.told);
    if (!data.series.is_on && !data.is_grid) append(names, data.categories.names);
    // The arrays name the channels only if each has one component.
    if (data.is_grid && std::ssize(data.told_arrays()) == num_channels) names = data.told_arrays();
    while (std::ssize(names) < num_channels) names.push_back(fmt::format("input {}", names.size() + 1));
    names.resize(num_channels);
    append(names, data.constants);
    if (!data.time.empty()) names.push_back(data.time);
    while (names.size() < num_numbers)
        names.push_back(fmt::format("constant {}", names.size() + 1 - static_cast<std::size_t>(num_channels)));
    return names;
}

std::string range_text(const std::string& name, double low, double high, double least, double most, double share)
{
    if (share < 0) return fmt::format("{} is {:.4g}; in training it was {:.4g} to {:.4g}", name, least, low, high);
    return fmt::format(
        "{} goes from {:.4g} to {:.4g}; in training from {:.4g} to {:.4g} ({:.3g} % of the points are beyond)", name,
        least, most, low, high, 100 * share);
}

}  // namespace

void InputRanges::add(const PointInputs& inputs)
{
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const auto [rows, numbers] = input_rows(inputs);
    const auto num_channels = static_cast<std::size_t>(rows.size(1));
    const auto size = num_channels + static_cast<std::size_t>(numbers.size(0));
    low_.resize(size, infinity);
    high_.resize(size, -infinity);
    const auto widen = [&](std::size_t i, double low, double high) {
        low_[i] = std::min(low_[i], low);
        high_[i] = std::max(high_[i], high);
    };
    if (rows.size(0) > 0) {
        const auto low = rows.amin(0), high = rows.amax(0);
        for (std::size_t c = 0; c < num_channels; ++c)
            widen(c, low[static_cast<std::int64_t>(c)].item<double>(),
                  high[static_cast<std::int64_t>(c)].item<double>());
    }
    for (std::size_t k = num_channels; k < size; ++k) {
        const auto value = numbers[static_cast<std::int64_t>(k - num_channels)].item<double>();
        widen(k, value, value);
    }
}

void InputRanges::add_size(const std::array<double, 6>& bounds)
{
    const auto size = longest_edge(bounds);
    size_ = size_ ? std::pair{std::min(size_->first, size), std::max(size_->second, size)} : std::pair{size, size};
}

std::string InputRanges::other_size(const std::array<double, 6>& bounds) const
{
    const auto size = longest_edge(bounds);
    if (!size_ || !(size > 0) || (size <= kOtherSize * size_->second && kOtherSize * size >= size_->first)) return {};
    return fmt::format("it is {:.4g} long, and the training cases were {:.4g} to {:.4g}; if it is in other units, its "
                       "forces are wrong. `meshard convert IN OUT --scale FACTOR` multiplies its points",
                       size, size_->first, size_->second);
}

void InputRanges::join(const RankGroup& ranks)
{
    auto bounds = torch::empty({2, std::ssize(low_)}, torch::kDouble);
    auto* const numbers = bounds.data_ptr<double>();
    for (std::size_t i = 0; i < low_.size(); ++i) {
        numbers[i] = -low_[i];
        numbers[low_.size() + i] = high_[i];
    }
    ranks.all_reduce(bounds, Reduction::Max);
    for (std::size_t i = 0; i < low_.size(); ++i) {
        low_[i] = -numbers[i];
        high_[i] = numbers[low_.size() + i];
    }
}

nlohmann::json InputRanges::to_json() const
{
    nlohmann::json json{{"low", low_}, {"high", high_}};
    if (size_) json["size"] = {size_->first, size_->second};
    return json;
}

InputRanges InputRanges::from_json(const nlohmann::json& json)
{
    InputRanges ranges;
    if (json.is_null()) return ranges;
    ranges.low_ = json.at("low").get<std::vector<double>>();
    ranges.high_ = json.at("high").get<std::vector<double>>();
    if (json.contains("size")) ranges.size_ = json.at("size").get<std::pair<double, double>>();
    return ranges;
}

std::optional<std::pair<double, double>> InputRanges::of_number(const std::string& name, const DataConfig& data) const
{
    auto numbers = data.constants;
    if (!data.time.empty()) numbers.push_back(data.time);
    const auto found = std::ranges::find(numbers, name);
    if (found == numbers.end() || low_.size() < numbers.size()) return std::nullopt;
    const auto i = low_.size() - static_cast<std::size_t>(numbers.end() - found);
    return std::pair{low_[i], high_[i]};
}

std::vector<std::string> InputRanges::changes_since(const InputRanges& before, const DataConfig& data) const
{
    std::vector<std::string> changes;
    if (before.low_.size() != low_.size()) return changes;
    const auto num_numbers = std::ssize(data.constants) + (data.time.empty() ? 0 : 1);
    const auto names = input_names(data, std::ssize(low_) - num_numbers, low_.size());
    for (std::size_t i = 0; i < low_.size(); ++i) {
        const auto rounding = 1e-5 * std::max(std::abs(before.low_[i]), std::abs(before.high_[i]));
        const auto is_same = [&](double a, double b) { return !std::isfinite(a) || std::abs(a - b) <= rounding; };
        if (is_same(before.low_[i], low_[i]) && is_same(before.high_[i], high_[i])) continue;
        changes.push_back(fmt::format("{} went from {:.6g} to {:.6g}, and goes from {:.6g} to {:.6g} now", names[i],
                                      before.low_[i], before.high_[i], low_[i], high_[i]));
    }
    return changes;
}

std::vector<std::string> InputRanges::beyond(const PointInputs& inputs, const DataConfig& data,
                                             const RankGroup& ranks) const
{
    const auto [rows, numbers] = input_rows(inputs);
    const auto num_channels = rows.size(1);
    if (std::ssize(low_) != num_channels + numbers.size(0)) return {};  // the model has no ranges
    InputRanges own;
    own.add(inputs);
    own.join(ranks);
    const auto width = [&](std::size_t i) {
        return std::max(high_[i] - low_[i], 1e-4 * std::max(std::abs(low_[i]), std::abs(high_[i])));
    };
    auto counts = torch::zeros({num_channels + 1}, torch::kDouble);
    for (std::int64_t c = 0; c < num_channels; ++c) {
        const auto i = static_cast<std::size_t>(c);
        const auto column = rows.select(1, c);
        counts[c] = (column < low_[i] - kRangeMargin * width(i))
                        .logical_or(column > high_[i] + kRangeMargin * width(i))
                        .sum()
                        .to(torch::kDouble);
    }
    counts[num_channels] = static_cast<double>(rows.size(0));
    ranks.all_reduce(counts);

    const auto names = input_names(data, num_channels, low_.size());
    std::vector<std::string> sentences;
    for (std::size_t i = 0; i < low_.size(); ++i) {
        const bool is_inside =
            own.low_[i] >= low_[i] - kRangeMargin * width(i) && own.high_[i] <= high_[i] + kRangeMargin * width(i);
        if (is_inside || !(own.low_[i] <= own.high_[i])) continue;
        const bool is_of_points = static_cast<std::int64_t>(i) < num_channels;
        const auto share =
            is_of_points ? (counts[static_cast<std::int64_t>(i)] / counts[num_channels]).item<double>() : -1;
        sentences.push_back(range_text(names[i], low_[i], high_[i], own.low_[i], own.high_[i], share));
    }
    return sentences;
}

}  // namespace meshard
