// SPDX-License-Identifier: Apache-2.0
#include "models/geotransolver/geotransolver_options.h"

#include "models/layers/option_table.h"

namespace meshard {

const OptionTable<GeoTransolverOptions>& geotransolver_option_table()
{
    using O = GeoTransolverOptions;
    static const OptionTable<O> table(
        "GeoTransolver",
        inherited_options<O>(
            slice_transformer_option_list(0),
            {
                {"attention_type",
                 &O::attention_type,
                 "attention of the layers; GALE_FA uses FLARE's mixing instead of slices",
                 {.words = {"GALE", "GALE_FA"}}},
                {"state_mixing_mode",
                 &O::state_mixing_mode,
                 "how a layer mixes its self-attention with attention to the context",
                 {.words = {"weighted", "concat_project"}}},
                {"include_local_features", &O::include_local_features,
                 "adds features of the neighbours of each point, found by ball queries"},
                {"radii",
                 &O::radii,
                 "radii of the ball queries, in the model's coordinates",
                 {.least = 0, .above = true},
                 {.only_with = &O::include_local_features}},
                {"neighbors_in_radius",
                 &O::neighbors_in_radius,
                 "most neighbours of a point within each radius",
                 {.least = 1},
                 {.only_with = &O::include_local_features}},
                {"n_hidden_local",
                 &O::n_hidden_local,
                 "channels of each radius",
                 {.least = 2},
                 {.only_with = &O::include_local_features}},
                {"concrete_dropout", &O::concrete_dropout, "dropout at learned rates"},
                {"functional_dim",
                 &O::functional_dim,
                 "channels of each stream of points",
                 {.least = 1},
                 {.none = "[]", .one_or_more = true}},
                {"out_dim", &O::out_dim, "channels of the result", {.least = 1}, {.none = "[]", .one_or_more = true}},
                {"geometry_dim",
                 &O::geometry_dim,
                 "channels of the geometry; none: the model takes no geometry",
                 {.least = 0},
                 {.none = "0"}},
                {"global_dim",
                 &O::global_dim,
                 "number of constants of a case; none: the model takes no constants",
                 {.least = 0},
                 {.none = "0"}},
                {"time_input",
                 &O::time_input,
                 "parameters that no part of the model uses, as in the reference",
                 {},
                 {.is_for_programs = true}},
            }));
    return table;
}

std::int64_t GeoTransolverOptions::context_dim() const
{
    const auto num_streams = std::ssize(functional_dim);
    return context_head_dim() * (num_scales() * num_streams + (geometry_dim > 0) + (global_dim > 0));
}

void GeoTransolverOptions::validate() const
{
    geotransolver_option_table().check(*this);
    const OptionChecks checks("GeoTransolver");
    check_together(*this, checks);
    if (functional_dim.empty())
        checks.refuse("functional_dim must have a number for each stream of points, and is empty.");
    if (functional_dim.size() != out_dim.size()) {
        checks.refuse("functional_dim and out_dim must be of one length, and have {} and {} numbers.",
                      functional_dim.size(), out_dim.size());
    }
    if (!include_local_features) return;
    if (!structured_shape.empty())
        checks.refuse("include_local_features cannot be used on a grid; leave out structured_shape.");
    if (geometry_dim != 3)
        checks.refuse("include_local_features needs a geometry of points: geometry_dim must be 3, and is {}.",
                      geometry_dim);
    if (radii.empty() || radii.size() != neighbors_in_radius.size()) {
        checks.refuse("radii and neighbors_in_radius must be of one length, at least 1, and have {} and {} numbers.",
                      radii.size(), neighbors_in_radius.size());
    }
}

GeoTransolverOptions geotransolver_options(const nlohmann::json& arguments)
{
    return geotransolver_option_table().read(arguments);
}

nlohmann::json to_json(const GeoTransolverOptions& options)
{
    return geotransolver_option_table().write(options);
}

}  // namespace meshard
