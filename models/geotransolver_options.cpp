// SPDX-License-Identifier: Apache-2.0
#include "models/geotransolver_options.h"

#include <nlohmann/json.hpp>

#include "models/option_table.h"
#include "partition/error.h"

namespace meshard {
namespace {

/// Calls `visit(name, member)` for every option: the one list of names.
template <class Options, class Visit>
void for_each_option(Options& options, Visit&& visit)
{
    visit("functional_dim", options.functional_dim);
    visit("out_dim", options.out_dim);
    visit("geometry_dim", options.geometry_dim);
    visit("global_dim", options.global_dim);
    visit("n_layers", options.n_layers);
    visit("n_hidden", options.n_hidden);
    visit("dropout", options.dropout);
    visit("n_head", options.n_head);
    visit("act", options.act);
    visit("mlp_ratio", options.mlp_ratio);
    visit("slice_num", options.slice_num);
    visit("use_te", options.use_te);
    visit("time_input", options.time_input);
    visit("plus", options.plus);
    visit("include_local_features", options.include_local_features);
    visit("radii", options.radii);
    visit("neighbors_in_radius", options.neighbors_in_radius);
    visit("n_hidden_local", options.n_hidden_local);
    visit("structured_shape", options.structured_shape);
    visit("attention_type", options.attention_type);
    visit("concrete_dropout", options.concrete_dropout);
    visit("state_mixing_mode", options.state_mixing_mode);
}

[[noreturn]] void refuse(const std::string& what)
{
    throw InvalidInput("GeoTransolver: " + what);
}

void require_at_least(std::int64_t least, const char* name, std::int64_t value)
{
    if (value < least) refuse(std::string(name) + " must be at least " + std::to_string(least) + ", and is " + std::to_string(value) + ".");
}

}  // namespace

void GeoTransolverOptions::validate() const
{
    if (include_local_features) refuse("include_local_features (ball queries) is not implemented; set it to false.");
    if (use_te) refuse("use_te (TransformerEngine's layers) is not implemented, and their parameters cannot be converted; set use_te to false.");
    if (functional_dim.empty()) refuse("functional_dim must have a number for each stream of points, and is empty.");
    if (functional_dim.size() != out_dim.size()) {
        refuse("functional_dim and out_dim must be of one length, and have " + std::to_string(functional_dim.size()) + " and " + std::to_string(out_dim.size()) +
               " numbers.");
    }
    for (const auto dim : functional_dim) require_at_least(1, "functional_dim", dim);
    for (const auto dim : out_dim) require_at_least(1, "out_dim", dim);
    require_at_least(0, "geometry_dim", geometry_dim);
    require_at_least(0, "global_dim", global_dim);
    require_at_least(1, "n_layers", n_layers);
    require_at_least(1, "n_hidden", n_hidden);
    require_at_least(1, "n_head", n_head);
    require_at_least(1, "mlp_ratio", mlp_ratio);
    require_at_least(1, "slice_num", slice_num);
    if (n_hidden % n_head != 0) refuse("n_hidden must be a multiple of n_head; " + std::to_string(n_hidden) + " is not one of " + std::to_string(n_head) + ".");
    if (!structured_shape.empty() && structured_shape.size() != 2 && structured_shape.size() != 3)
        refuse("structured_shape must have 2 or 3 extents, and has " + std::to_string(structured_shape.size()) + ".");
    for (const auto extent : structured_shape) require_at_least(1, "an extent of structured_shape", extent);
    if (attention_type != "GALE" && attention_type != "GALE_FA") refuse("attention_type must be GALE or GALE_FA, and is '" + attention_type + "'.");
    if (state_mixing_mode != "weighted" && state_mixing_mode != "concat_project")
        refuse("state_mixing_mode must be weighted or concat_project, and is '" + state_mixing_mode + "'.");
    if (!(dropout >= 0.0 && dropout < 1.0)) refuse("dropout must lie in [0, 1), and is " + std::to_string(dropout) + ".");
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
