// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace meshard {

/// Constructor arguments of a GeoTransolver, with the names and defaults that checkpoints use. Zero stands for None.
struct GeoTransolverOptions {
    std::vector<std::int64_t> functional_dim;   ///< channels of each stream of points; must be set
    std::vector<std::int64_t> out_dim;          ///< channels of each stream's result; must be set
    std::int64_t geometry_dim = 0;              ///< channels of `geometry`; 0: the model takes none
    std::int64_t global_dim = 0;                ///< channels of `global_embedding`; 0: the model takes none
    std::int64_t n_layers = 4;
    std::int64_t n_hidden = 256;
    double dropout = 0.0;
    std::int64_t n_head = 8;
    std::string act = "gelu";                   ///< of the MLPs; see activation.h
    std::int64_t mlp_ratio = 4;
    std::int64_t slice_num = 32;
    bool use_te = false;                        ///< TransformerEngine's layers; not implemented
    bool time_input = false;                    ///< adds parameters that no part of the model uses, as in the reference
    bool plus = false;                          ///< slices as in Transolver++
    bool include_local_features = false;        ///< ball queries between points and geometry, which then has 3 channels
    std::vector<double> radii{0.05, 0.25};                        ///< of local features, one a scale
    std::vector<std::int64_t> neighbors_in_radius{8, 32};         ///< how many are kept of each scale's
    std::int64_t n_hidden_local = 32;                             ///< channels of a scale's local features
    std::vector<std::int64_t> structured_shape;   ///< extents of a 2-D or 3-D grid, points in row-major order; empty: no grid
    std::string attention_type = "GALE";          ///< or GALE_FA
    bool concrete_dropout = false;
    std::string state_mixing_mode = "weighted";   ///< or concat_project

    std::int64_t num_scales() const { return include_local_features ? static_cast<std::int64_t>(radii.size()) : 0; }
    std::int64_t num_channels() const { return n_hidden + n_hidden_local * num_scales(); }   ///< of the layers
    std::int64_t head_dim() const { return num_channels() / n_head; }                        ///< of the layers; what is left over goes unused
    std::int64_t context_head_dim() const { return n_hidden / n_head; }
    std::int64_t context_dim() const;                                                        ///< of each head and slice; 0 without context

    /// @throws InvalidInput naming the option, its value and what is allowed.
    void validate() const;
};

/// From the arguments of a checkpoint or a fixture; absent ones keep their defaults, null counts as absent, and a number stands for a list of one.
/// @throws InvalidInput for a name that is not an argument of GeoTransolver, or a value of the wrong type.
GeoTransolverOptions geotransolver_options(const nlohmann::json& arguments);

/// All arguments, as `geotransolver_options` reads them.
nlohmann::json to_json(const GeoTransolverOptions& options);

}  // namespace meshard
