// SPDX-License-Identifier: Apache-2.0
#include "models/transolver/transolver_options.h"

#include "models/layers/option_table.h"

namespace meshard {

const OptionTable<TransolverOptions>& transolver_option_table()
{
    using O = TransolverOptions;
    static const OptionTable<O> table(
        "Transolver",
        inherited_options<O>(slice_transformer_option_list(1),
                             {
                                 {"authors_constants",
                                  &O::authors_constants,
                                  "constants of the paper's code instead of PhysicsNeMo's",
                                  {},
                                  {.is_extension = true}},
                                 {"functional_dim",
                                  &O::functional_dim,
                                  "channels of fx; 0 with only an embedding",
                                  {.least = 0},
                                  {.none = "-1"}},
                                 {"embedding_dim",
                                  &O::embedding_dim,
                                  "channels of the embedding (coordinates, normals, ...); 0 with only fx",
                                  {.least = 0},
                                  {.none = "-1"}},
                                 {"out_dim", &O::out_dim, "channels of the result", {.least = 1}},
                                 {"time_input", &O::time_input, "takes the time of a case"},
                                 {"unified_pos",
                                  &O::unified_pos,
                                  "2-D grids only: distances to a reference grid instead of the embedding",
                                  {},
                                  {.is_for_programs = true}},
                                 {"ref",
                                  &O::ref,
                                  "points of that grid along each side",
                                  {.least = 1},
                                  {.only_with = &O::unified_pos, .is_for_programs = true}},
                             }));
    return table;
}

void TransolverOptions::validate() const
{
    transolver_option_table().check(*this);
    const OptionChecks checks("Transolver");
    check_together(*this, checks);
    if (unified_pos && structured_shape.size() != 2)
        checks.refuse("unified_pos needs a structured_shape of 2 extents; give coordinates as `embedding`.");
    if (!unified_pos && embedding_dim == kNotGiven)
        checks.refuse("embedding_dim must be set unless unified_pos; 0 for a model without embedding.");
    if (functional_dim == kNotGiven) checks.refuse("functional_dim must be set.");
    checks.at_least(unified_pos || embedding_dim > 0 ? 0 : 1, {{"functional_dim", functional_dim}});
    if (time_input && n_hidden % 2 != 0) checks.refuse("time_input needs an even n_hidden, and it is {}.", n_hidden);
}

TransolverOptions transolver_options(const nlohmann::json& arguments)
{
    return transolver_option_table().read(arguments);
}

nlohmann::json to_json(const TransolverOptions& options)
{
    return transolver_option_table().write(options);
}

}  // namespace meshard
