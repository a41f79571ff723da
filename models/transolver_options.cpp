// SPDX-License-Identifier: Apache-2.0
#include "models/transolver_options.h"

#include <nlohmann/json.hpp>

#include "partition/error.h"
#include "partition/nearest_name.h"

namespace meshard {
namespace {

/// Calls `visit(name, member)` for every option: the one list of names.
template <class Options, class Visit>
void for_each_option(Options& options, Visit&& visit)
{
    visit("functional_dim", options.functional_dim);
    visit("out_dim", options.out_dim);
    visit("embedding_dim", options.embedding_dim);
    visit("n_layers", options.n_layers);
    visit("n_hidden", options.n_hidden);
    visit("dropout", options.dropout);
    visit("n_head", options.n_head);
    visit("act", options.act);
    visit("mlp_ratio", options.mlp_ratio);
    visit("slice_num", options.slice_num);
    visit("unified_pos", options.unified_pos);
    visit("ref", options.ref);
    visit("structured_shape", options.structured_shape);
    visit("use_te", options.use_te);
    visit("time_input", options.time_input);
    visit("plus", options.plus);
}

[[noreturn]] void refuse(const std::string& what)
{
    throw InvalidInput("Transolver: " + what);
}

void require_positive(const char* name, std::int64_t value)
{
    if (value < 1) refuse(std::string(name) + " must be at least 1, and is " + std::to_string(value) + ".");
}

}  // namespace

void TransolverOptions::validate() const
{
    if (!structured_shape.empty()) refuse("structured_shape (grids) is not implemented; leave it out to treat the points as an irregular mesh.");
    if (unified_pos) refuse("unified_pos needs a structured grid, which is not implemented; give coordinates as `embedding`.");
    if (plus) refuse("plus (Transolver++) is not implemented; set plus to false.");
    if (use_te) refuse("use_te (TransformerEngine's layers) is not implemented, and their parameters cannot be converted; set use_te to false.");
    require_positive("functional_dim", functional_dim);
    require_positive("out_dim", out_dim);
    require_positive("embedding_dim", embedding_dim);
    require_positive("n_layers", n_layers);
    require_positive("n_hidden", n_hidden);
    require_positive("n_head", n_head);
    require_positive("mlp_ratio", mlp_ratio);
    require_positive("slice_num", slice_num);
    if (n_hidden % n_head != 0) {
        refuse("n_hidden must be a multiple of n_head; " + std::to_string(n_hidden) + " is not one of " + std::to_string(n_head) + ".");
    }
    if (time_input && n_hidden % 2 != 0) refuse("time_input needs an even n_hidden, and it is " + std::to_string(n_hidden) + ".");
    if (!(dropout >= 0.0 && dropout < 1.0)) refuse("dropout must lie in [0, 1), and is " + std::to_string(dropout) + ".");
}

TransolverOptions transolver_options(const nlohmann::json& arguments)
{
    TransolverOptions options;
    std::vector<std::string> names;
    for_each_option(options, [&](const char* name, auto& member) {
        names.emplace_back(name);
        const auto found = arguments.find(name);
        if (found == arguments.end() || found->is_null()) return;
        try {
            found->get_to(member);
        } catch (const nlohmann::json::exception&) {
            refuse(std::string(name) + " cannot be " + found->dump() + ".");
        }
    });
    for (const auto& [name, value] : arguments.items()) {
        bool known = false;
        for (const auto& candidate : names) known = known || candidate == name;
        if (known) continue;
        const auto nearest = nearest_name(name, names);
        refuse("there is no argument '" + name + "'." + (nearest.empty() ? "" : " Did you mean '" + nearest + "'?"));
    }
    return options;
}

nlohmann::json to_json(const TransolverOptions& options)
{
    nlohmann::json arguments;
    for_each_option(options, [&](const char* name, const auto& member) { arguments[name] = member; });
    if (options.structured_shape.empty()) arguments["structured_shape"] = nullptr;
    return arguments;
}

}  // namespace meshard
