// SPDX-License-Identifier: Apache-2.0
#include "models/geotransolver/geotransolver_options.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "models/layers/option_checks.h"
#include "models/layers/option_table.h"

namespace meshard {
namespace {

/// Calls `visit(name, member)` for every option: the one list of names.
template <class Options, class Visit>
void for_each_option(Options& options, Visit&& visit)
{
    visit_shared_options(options, visit);
    visit("functional_dim", options.functional_dim);
    visit("out_dim", options.out_dim);
    visit("geometry_dim", options.geometry_dim);
    visit("global_dim", options.global_dim);
    visit("include_local_features", options.include_local_features);
    visit("radii", options.radii);
    visit("neighbors_in_radius", options.neighbors_in_radius);
    visit("n_hidden_local", options.n_hidden_local);
    visit("attention_type", options.attention_type);
    visit("concrete_dropout", options.concrete_dropout);
    visit("state_mixing_mode", options.state_mixing_mode);
}

}  // namespace

std::int64_t GeoTransolverOptions::context_dim() const
{
    const auto num_streams = static_cast<std::int64_t>(functional_dim.size());
    return context_head_dim() * (num_scales() * num_streams + (geometry_dim > 0) + (global_dim > 0));
}

void GeoTransolverOptions::validate() const
{
    const OptionChecks checks("GeoTransolver");
    checks.no_transformer_engine(use_te);
    if (functional_dim.empty()) checks.refuse("functional_dim must have a number for each stream of points, and is empty.");
    if (functional_dim.size() != out_dim.size()) {
        checks.refuse("functional_dim and out_dim must be of one length, and have " + std::to_string(functional_dim.size()) + " and " +
                      std::to_string(out_dim.size()) + " numbers.");
    }
    for (const auto dim : functional_dim) checks.at_least(1, {{"functional_dim", dim}});
    for (const auto dim : out_dim) checks.at_least(1, {{"out_dim", dim}});
    checks.at_least(0, {{"geometry_dim", geometry_dim}, {"global_dim", global_dim}});
    checks.at_least(0, {{"n_layers", n_layers}});
    checks.at_least(1, {{"n_hidden", n_hidden}, {"n_head", n_head}, {"mlp_ratio", mlp_ratio}, {"slice_num", slice_num}});
    checks.multiple("n_hidden", n_hidden, "n_head", n_head);
    checks.grid(structured_shape);
    checks.one_of("attention_type", attention_type, {"GALE", "GALE_FA"});
    checks.one_of("state_mixing_mode", state_mixing_mode, {"weighted", "concat_project"});
    checks.rate("dropout", dropout);
    if (!include_local_features) return;
    if (!structured_shape.empty()) checks.refuse("include_local_features needs points in any order; structured_shape excludes it.");
    if (geometry_dim != 3) checks.refuse("include_local_features needs a geometry of points: geometry_dim must be 3, and is " + std::to_string(geometry_dim) + ".");
    checks.at_least(2, {{"n_hidden_local", n_hidden_local}});
    if (radii.empty() || radii.size() != neighbors_in_radius.size()) {
        checks.refuse("radii and neighbors_in_radius must be of one length, at least 1, and have " + std::to_string(radii.size()) + " and " +
                      std::to_string(neighbors_in_radius.size()) + " numbers.");
    }
    for (const auto count : neighbors_in_radius) checks.at_least(1, {{"neighbors_in_radius", count}});
    for (const auto radius : radii) {
        if (!(radius > 0) || !std::isfinite(radius)) checks.refuse("radii must be above 0 and finite; one is " + std::to_string(radius) + ".");
    }
}

GeoTransolverOptions geotransolver_options(const nlohmann::json& arguments)
{
    auto lists = arguments;
    for (const char* name : {"functional_dim", "out_dim"}) {
        if (lists.contains(name) && lists[name].is_number()) lists[name] = nlohmann::json::array({lists[name]});
    }
    return read_options<GeoTransolverOptions>("GeoTransolver", lists, [](auto& options, auto&& visit) { for_each_option(options, visit); });
}

nlohmann::json to_json(const GeoTransolverOptions& options)
{
    nlohmann::json arguments;
    for_each_option(options, [&](const char* name, const auto& member) { arguments[name] = member; });
    for (const char* name : {"functional_dim", "out_dim"}) {
        if (arguments[name].size() == 1) arguments[name] = nlohmann::json(arguments[name][0]);
    }
    for (const char* name : {"geometry_dim", "global_dim"}) {
        if (arguments[name] == 0) arguments[name] = nullptr;
    }
    if (options.structured_shape.empty()) arguments["structured_shape"] = nullptr;
    return arguments;
}

}  // namespace meshard
