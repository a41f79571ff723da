// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/slice_transformer_options.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>

namespace meshard {

template <class Options>
class OptionTable;

/// Constructor arguments of a Transolver, with the names and defaults of checkpoints. Meanings and bounds:
/// `transolver_option_table`.
struct TransolverOptions : SliceTransformerOptions {
    static constexpr std::int64_t kNotGiven = -1;

    std::int64_t functional_dim = kNotGiven;  ///< must be set
    std::int64_t out_dim = 0;                 ///< must be set
    std::int64_t embedding_dim = kNotGiven;   ///< must be set unless unified_pos
    bool unified_pos = false;
    std::int64_t ref = 8;
    bool time_input = false;
    bool authors_constants = false;  ///< see SliceOptions

    /// @throws InvalidInput naming the option, its value and what is allowed.
    void validate() const;
};

/// Declares all options.
const OptionTable<TransolverOptions>& transolver_option_table();

/// Reads options from the arguments of a checkpoint or a fixture; absent and null ones keep their defaults (for
/// `use_te` this is false).
/// @throws InvalidInput for a name that is not an argument of Transolver, or a value of the wrong type.
TransolverOptions transolver_options(const nlohmann::json& arguments);

/// All arguments, as `transolver_options` reads them; `authors_constants` only if it is set.
nlohmann::json to_json(const TransolverOptions& options);

}  // namespace meshard
