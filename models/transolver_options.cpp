// SPDX-License-Identifier: Apache-2.0
#include "models/transolver_options.h"

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
    if (!structured_shape.empty() && structured_shape.size() != 2 && structured_shape.size() != 3)
        refuse("structured_shape must have 2 or 3 extents, and has " + std::to_string(structured_shape.size()) + ".");
    for (const auto extent : structured_shape) require_positive("an extent of structured_shape", extent);
    if (unified_pos && structured_shape.size() != 2) refuse("unified_pos needs a structured_shape of 2 extents; give coordinates as `embedding`.");
    if (unified_pos) require_positive("ref", ref);
    if (use_te) refuse("use_te (TransformerEngine's layers) is not implemented, and their parameters cannot be converted; set use_te to false.");
    require_positive("functional_dim", functional_dim);
    require_positive("out_dim", out_dim);
    if (!unified_pos) require_positive("embedding_dim", embedding_dim);
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
    return read_options<TransolverOptions>("Transolver", arguments, [](auto& options, auto&& visit) { for_each_option(options, visit); });
}

nlohmann::json to_json(const TransolverOptions& options)
{
    nlohmann::json arguments;
    for_each_option(options, [&](const char* name, const auto& member) { arguments[name] = member; });
    if (options.structured_shape.empty()) arguments["structured_shape"] = nullptr;
    return arguments;
}

}  // namespace meshard
