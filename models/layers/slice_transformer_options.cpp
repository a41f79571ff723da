// SPDX-License-Identifier: Apache-2.0
#include "models/layers/slice_transformer_options.h"

#include "models/layers/option_table.h"

namespace meshard {

std::vector<Option<SliceTransformerOptions>> slice_transformer_option_list(std::int64_t least_layers)
{
    using O = SliceTransformerOptions;
    return {
        {"n_layers", &O::n_layers, "blocks", {.least = static_cast<double>(least_layers)}},
        {"n_hidden", &O::n_hidden, "channels", {.least = 1}},
        {"n_head", &O::n_head, "attention heads; divides n_hidden", {.least = 1}},
        {"mlp_ratio", &O::mlp_ratio, "width of the blocks' MLPs divided by n_hidden", {.least = 1}},
        {"act", &O::act, "activation of the MLPs"},
        {"dropout",
         &O::dropout,
         "fraction of the attention's outputs that training sets to zero",
         {.least = 0, .most = 1}},
        {"slice_num",
         &O::slice_num,
         "slices of physics attention; for flare the learned queries of each layer",
         {.least = 1}},
        {"plus", &O::plus, "Transolver++: a temperature for each point, and noise in training"},
        {"structured_shape",
         &O::structured_shape,
         "extents of a grid of points, 2 or 3",
         {},
         {.none = "[]", .is_for_programs = true}},
        {"use_te", &O::use_te, "TransformerEngine's layers; not implemented", {}, {.is_for_programs = true}},
    };
}

void check_together(const SliceTransformerOptions& options, const OptionChecks& checks)
{
    if (options.use_te)
        checks.refuse("use_te (TransformerEngine's layers) is not implemented, and their parameters cannot be "
                      "converted; set use_te to false.");
    checks.multiple("n_hidden", options.n_hidden, "n_head", options.n_head);
    const auto& extents = options.structured_shape;
    if (!extents.empty() && extents.size() != 2 && extents.size() != 3) {
        checks.refuse("structured_shape must have 2 or 3 extents, and has {}.", extents.size());
    }
    for (const auto extent : extents) checks.at_least(1, {{"an extent of structured_shape", extent}});
}

}  // namespace meshard
