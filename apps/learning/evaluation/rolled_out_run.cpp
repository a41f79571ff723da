// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/rolled_out_run.h"

#include "apps/console/text_table.h"
#include "models/layers/metrics.h"
#include "models/layers/normalizer.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace meshard {

using Json = nlohmann::ordered_json;

std::vector<double> field_errors(const at::Tensor& state, const at::Tensor& truth,
                                 const std::vector<std::int64_t>& channels)
{
    std::vector<double> errors;
    std::int64_t channel = 0;
    const auto found = state.masked_fill(truth.isnan(), 0), expected = zero_for_nan(truth);
    for (const auto count : channels) {
        errors.push_back(relative_l2(found.narrow(-1, channel, count), expected.narrow(-1, channel, count)));
        channel += count;
    }
    return errors;
}

std::array<std::vector<double>, 2> field_drifts(const at::Tensor& state, const at::Tensor& truth,
                                                const at::Tensor& weights, const std::vector<std::int64_t>& channels)
{
    std::array<std::vector<double>, 2> drifts;
    const auto found = state.masked_fill(truth.isnan(), 0).to(at::kDouble),
               expected = zero_for_nan(truth).to(at::kDouble);
    const auto mean = [&](const at::Tensor& values) { return (weights * values).sum(-2); };
    const auto relative = [](double difference, double of) { return of > 0 ? difference / of : NAN; };
    std::int64_t channel = 0;
    for (const auto count : channels) {
        const auto one = found.narrow(-1, channel, count), other = expected.narrow(-1, channel, count);
        const auto integral = mean(other);
        drifts[0].push_back(relative((mean(one) - integral).norm().item<double>(), integral.norm().item<double>()));
        const auto energy = mean(other.square()).sum().item<double>();
        drifts[1].push_back(relative(mean(one.square()).sum().item<double>() - energy, energy));
        channel += count;
    }
    return drifts;
}

double mean_error(std::span<const RolledOutRun> runs, ErrorsOfStates RolledOutRun::* kind,
                  std::optional<std::size_t> field)
{
    double sum = 0, count = 0;
    for (const auto& one : runs) {
        for (const auto& of_state : one.*kind) {
            for (std::size_t f = 0; f < of_state.size(); ++f) {
                if (field.value_or(f) != f) continue;
                sum += of_state[f];
                ++count;
            }
        }
    }
    return sum / count;
}

Json roll_out_json(std::span<const RolledOutRun> runs)
{
    std::size_t longest = 0;
    for (const auto& one : runs) longest = std::max(longest, one.times.size());
    Json json{{"steps", longest}};
    for (const auto& [name, kind] : std::span(kErrorKinds).first<kNumTrainingKinds>()) {
        for (std::size_t f = 0; f < runs.front().fields.size(); ++f)
            json[name][runs.front().fields[f]] = mean_error(runs, kind, f);
    }
    return json;
}

double error_of_validation(const Json& line)
{
    const bool is_rolled_out = line.contains("rollout");
    const auto& fields = is_rolled_out ? line["rollout"]["rel_l2"] : line["metrics"];
    double sum = 0;
    for (const auto& [name, of_field] : fields.items()) {
        const auto& error = is_rolled_out ? of_field : of_field["rel_l2"];
        sum += error.is_number() ? error.get<double>() : std::nan("");
    }
    return sum / static_cast<double>(fields.size());
}

std::string roll_out_csv(std::span<const RolledOutRun> runs)
{
    std::string csv = "run,step,time,field";
    std::vector<ErrorsOfStates RolledOutRun::*> kinds;
    for (const auto& [name, kind] : kErrorKinds) {
        if (runs.empty() || (runs.front().*kind).empty()) continue;
        csv += std::string(",") + name;
        kinds.push_back(kind);
    }
    csv += "\n";
    for (const auto& one : runs) {
        for (std::size_t i = 0; i < one.times.size(); ++i) {
            for (std::size_t f = 0; f < one.fields.size(); ++f) {
                csv += fmt::format("{},{},{},{}", csv_text(one.run), i + 1, one.times[i], csv_text(one.fields[f]));
                for (const auto kind : kinds) csv += "," + exact_text((one.*kind)[i][f]);
                csv += "\n";
            }
        }
    }
    return csv;
}

}  // namespace meshard
