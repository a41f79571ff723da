// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "partition/error.h"
#include "partition/nearest_name.h"

namespace meshard {

/// A model's options from the constructor arguments of a checkpoint; absent and null ones keep their defaults.
///
/// @param model             begins the message of an error
/// @param for_each_option   called as (options, visit); calls visit(name, member) for every option
/// @throws InvalidInput for a name that is no option, with the nearest one, or a value of the wrong type.
template <class Options, class ForEachOption>
Options read_options(const std::string& model, const nlohmann::json& arguments, ForEachOption&& for_each_option)
{
    Options options;
    std::vector<std::string> names;
    for_each_option(options, [&](const char* name, auto& member) {
        names.emplace_back(name);
        const auto found = arguments.find(name);
        if (found == arguments.end() || found->is_null()) return;
        try {
            found->get_to(member);
        } catch (const nlohmann::json::exception&) {
            throw InvalidInput(model + ": " + name + " cannot be " + found->dump() + ".");
        }
    });
    for (const auto& [name, value] : arguments.items()) {
        bool known = false;
        for (const auto& candidate : names) known = known || candidate == name;
        if (known) continue;
        const auto nearest = nearest_name(name, names);
        throw InvalidInput(model + ": there is no argument '" + name + "'." + (nearest.empty() ? "" : " Did you mean '" + nearest + "'?"));
    }
    return options;
}

/// Calls `visit(name, member)` for the options that Transolver and GeoTransolver share.
template <class Options, class Visit>
void visit_shared_options(Options& options, Visit&& visit)
{
    visit("n_layers", options.n_layers);
    visit("n_hidden", options.n_hidden);
    visit("dropout", options.dropout);
    visit("n_head", options.n_head);
    visit("act", options.act);
    visit("mlp_ratio", options.mlp_ratio);
    visit("slice_num", options.slice_num);
    visit("structured_shape", options.structured_shape);
    visit("use_te", options.use_te);
    visit("time_input", options.time_input);
    visit("plus", options.plus);
}

}  // namespace meshard
