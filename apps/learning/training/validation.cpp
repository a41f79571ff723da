// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/validation.h"

#include "io/shards/manifest.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <utility>

namespace meshard {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostBytesKept = std::int64_t{1} << 29;  // of areas and places, a rank

}  // namespace

Validation::Validation(const DataConfig& data, std::vector<std::int64_t> channels, const ForceSettings& forces,
                       const CaseLists& cases, std::vector<std::string> of_head)
    : layout_(data.fields, channels), on_cells_(data.on_cells), forces_(forces),
      guess_{table_mean(cases.train, forces.drag), table_mean(cases.train, forces.lift)}, of_head_(std::move(of_head))
{
}

at::Tensor Validation::geometry(const CaseTensors& example, const std::filesystem::path& shards,
                                const DeviceMesh& domain)
{
    if (const auto kept = geometries_.find(shards.string()); kept != geometries_.end()) return kept->second;
    const auto axis = domain.axis("domain");
    const auto runs = part_runs(read_manifest(shards), on_cells_, domain.size(axis));
    const auto spec = spec_of(example.target);
    auto found = shard_geometry(shards, on_cells_, spec->index_map->global_ids, runs[domain.coordinate(axis)]);
    const auto bytes = static_cast<std::int64_t>(found.nbytes());
    if (bytes_kept_ + bytes <= kMostBytesKept) {
        bytes_kept_ += bytes;
        geometries_.emplace(shards.string(), found);
    }
    return found;
}

void Validation::add(std::size_t index, const CaseTensors& example, const std::filesystem::path& shards,
                     const at::Tensor& volumes, const at::Tensor& physical, const at::Tensor& guess,
                     const DeviceMesh& domain)
{
    const auto predicted = to_local(physical).squeeze(0), truth = to_local(example.target).squeeze(0);
    at::Tensor shape;
    if (volumes.defined())
        shape = volume_geometry(volumes);
    else if (!shards.empty())
        shape = geometry(example, shards, domain);
    found_[index] = case_sums(predicted, truth, shape, layout_, guess, domain.group(domain.axis("domain"))).numbers();
}

Evaluation Validation::finish(const std::vector<CaseSource>& sources, const std::string& split,
                              const RankGroup& data_groups)
{
    const auto num_sums = CaseSums::num_numbers(layout_), num_numbers = num_sums + std::ssize(of_head_);
    auto all = torch::zeros({std::ssize(sources), num_numbers}, torch::kDouble);
    for (const auto& [index, numbers] : found_)
        std::ranges::copy(numbers, all.data_ptr<double>() + static_cast<std::int64_t>(index) * num_numbers);
    for (const auto& [index, numbers] : found_of_head_)
        std::ranges::copy(numbers, all.data_ptr<double>() + static_cast<std::int64_t>(index) * num_numbers + num_sums);
    found_.clear();
    found_of_head_.clear();
    data_groups.all_reduce(all);

    Evaluation evaluation{.guess = guess_};
    for (std::size_t i = 0; i < sources.size(); ++i) {
        const auto row = std::span(all.data_ptr<double>() + static_cast<std::int64_t>(i) * num_numbers,
                                   static_cast<std::size_t>(num_numbers));
        const auto sums = CaseSums::from_numbers(layout_, row.first(num_sums));
        EvaluatedCase one{
            .source = sources[i], .split = split, .num_points = static_cast<std::int64_t>(sums.channels.front().count)};
        one.metrics = sums.metrics(layout_);
        std::string why;
        add_forces(one, sums, layout_, forces_, why);
        if (const auto found = by_shape_.find(one.source.id); one.forces && found != by_shape_.end())
            one.of_shape = {found->second.drag, found->second.lift};
        meshard::add_of_head(one, of_head_, row.subspan(num_sums), forces_);
        evaluation.cases.push_back(std::move(one));
    }
    return evaluation;
}

Json validation_json(const Evaluation& evaluation)
{
    const auto numbers = to_json(evaluation)["splits"].begin().value();
    const auto means = [](const auto& self, const Json& from) -> Json {
        if (from.contains("mean") && !from["mean"].is_object()) return from["mean"];  // a field may be called mean
        Json to;
        for (const auto& [name, value] : from.items()) to[name] = self(self, value);
        return to;
    };
    const auto all_of = [&](const Json& from) {
        Json json{{"errors", means(means, from["fields"])}};
        for (const char* name : {"cd", "cl", "cd_table", "cl_table", "cd_head", "cl_head", "cd_shape", "cl_shape", "cs",
                                 "cmx", "cmy", "cmz"}) {
            if (from.contains(name)) json["forces"][name] = from[name];
        }
        return json;
    };
    auto json = all_of(numbers);
    if (numbers.contains("worst")) json["worst"] = {{"id", numbers["worst"]["id"]}, {"why", numbers["worst"]["why"]}};
    if (numbers.contains("sets")) {
        for (const auto& [name, of_set] : numbers["sets"].items()) json["sets"][name] = all_of(of_set);
    }
    return json;
}

std::string worst_text(const Evaluation& evaluation)
{
    const auto& split = evaluation.cases.front().split;
    const auto worst = worst_case(evaluation, split);
    if (!worst) return "";
    const auto& source = worst->one->source;
    return fmt::format("worst of {}, case {}: {}{}", split, source.id, worst->text(),
                       source.step ? "" : "; `meshard report` shows where");
}

std::string drag_text(const Evaluation& evaluation)
{
    const auto series = coefficients_of(evaluation, evaluation.cases.front().split);
    auto shown = std::ranges::find(series, "cd_table", &CoefficientSeries::name);
    if (shown == series.end()) shown = std::ranges::find(series, "cd", &CoefficientSeries::name);
    if (shown == series.end()) return {};
    const auto metrics = coefficient_metrics(shown->predicted, shown->truth, shown->guess);
    return fmt::format(", Cd mae {:.4f}", std::ranges::find(metrics, "mae", &Metrics::value_type::first)->second);
}

}  // namespace meshard
