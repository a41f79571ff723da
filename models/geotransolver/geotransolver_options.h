// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/slice_transformer_options.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

template <class Options>
class OptionTable;

/// Constructor arguments of a GeoTransolver, with the names and defaults of checkpoints. Zero means None. Meanings and
/// bounds: `geotransolver_option_table`.
struct GeoTransolverOptions : SliceTransformerOptions {
    std::vector<std::int64_t> functional_dim;  ///< for each stream of points; must be set
    std::vector<std::int64_t> out_dim;         ///< for each stream; must be set
    std::int64_t geometry_dim = 0;
    std::int64_t global_dim = 0;
    bool time_input = false;  ///< adds parameters that no part of the model uses, as in the reference
    bool include_local_features = false;
    std::vector<double> radii{0.05, 0.25};
    std::vector<std::int64_t> neighbors_in_radius{8, 32};
    std::int64_t n_hidden_local = 32;
    std::string attention_type = "GALE";
    bool concrete_dropout = false;
    std::string state_mixing_mode = "weighted";

    std::int64_t num_scales() const { return include_local_features ? std::ssize(radii) : 0; }
    std::int64_t num_channels() const { return n_hidden + n_hidden_local * num_scales(); }  ///< channels of the layers
    /// Channels of a head; a remainder of the division is not used.
    std::int64_t head_dim() const { return num_channels() / n_head; }
    std::int64_t context_head_dim() const { return n_hidden / n_head; }
    std::int64_t context_dim() const;  ///< for each head and slice; 0 without context

    /// @throws InvalidInput naming the option, its value and what is allowed.
    void validate() const;
};

/// Declares all options.
const OptionTable<GeoTransolverOptions>& geotransolver_option_table();

/// Reads options from the arguments of a checkpoint or a fixture; absent and null ones keep their defaults, and a
/// number is taken as a list of one.
/// @throws InvalidInput for a name that is not an argument of GeoTransolver, or a value of the wrong type.
GeoTransolverOptions geotransolver_options(const nlohmann::json& arguments);

/// All arguments, as `geotransolver_options` reads them.
nlohmann::json to_json(const GeoTransolverOptions& options);

}  // namespace meshard
