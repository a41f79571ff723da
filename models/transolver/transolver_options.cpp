// SPDX-License-Identifier: Apache-2.0
#include "models/transolver/transolver_options.h"

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
    visit("embedding_dim", options.embedding_dim);
    visit("unified_pos", options.unified_pos);
    visit("ref", options.ref);
    visit("authors_constants", options.authors_constants);
}

}  // namespace

void TransolverOptions::validate() const
{
    const OptionChecks checks("Transolver");
    checks.grid(structured_shape);
    if (unified_pos && structured_shape.size() != 2) checks.refuse("unified_pos needs a structured_shape of 2 extents; give coordinates as `embedding`.");
    if (unified_pos) checks.at_least(1, {{"ref", ref}});
    else if (embedding_dim == kNotGiven) checks.refuse("embedding_dim must be set unless unified_pos; 0 for a model without embedding.");
    else checks.at_least(0, {{"embedding_dim", embedding_dim}});
    if (functional_dim == kNotGiven) checks.refuse("functional_dim must be set.");
    checks.at_least(unified_pos || embedding_dim > 0 ? 0 : 1, {{"functional_dim", functional_dim}});
    checks.no_transformer_engine(use_te);
    checks.at_least(1, {{"out_dim", out_dim}, {"n_layers", n_layers}, {"n_hidden", n_hidden},
                        {"n_head", n_head}, {"mlp_ratio", mlp_ratio}, {"slice_num", slice_num}});
    checks.multiple("n_hidden", n_hidden, "n_head", n_head);
    if (time_input && n_hidden % 2 != 0) checks.refuse("time_input needs an even n_hidden, and it is " + std::to_string(n_hidden) + ".");
    checks.rate("dropout", dropout);
}

TransolverOptions transolver_options(const nlohmann::json& arguments)
{
    return read_options<TransolverOptions>("Transolver", arguments, [](auto& options, auto&& visit) { for_each_option(options, visit); });
}

nlohmann::json to_json(const TransolverOptions& options)
{
    nlohmann::json arguments;
    for_each_option(options, [&](const char* name, const auto& member) { arguments[name] = member; });
    if (options.structured_shape.empty()) arguments["structured_shape"] = nullptr;
    for (const char* name : {"functional_dim", "embedding_dim"}) {
        if (arguments[name] == TransolverOptions::kNotGiven) arguments[name] = nullptr;
    }
    if (!options.authors_constants) arguments.erase("authors_constants");
    return arguments;
}

}  // namespace meshard
