// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace meshard {

/// Constructor arguments of a Transolver, with the names and defaults that checkpoints use.
struct TransolverOptions {
    static constexpr std::int64_t kNotGiven = -1;

    std::int64_t functional_dim = kNotGiven;   ///< channels of `fx`; must be set, may be 0 beside an embedding
    std::int64_t out_dim = 0;           ///< channels of the result; must be set
    std::int64_t embedding_dim = kNotGiven;    ///< channels of `embedding` (coordinates, normals, ...); must be set unless unified_pos, may be 0
    std::int64_t n_layers = 4;
    std::int64_t n_hidden = 256;
    double dropout = 0.0;
    std::int64_t n_head = 8;
    std::string act = "gelu";           ///< of the MLPs; see activation.h
    std::int64_t mlp_ratio = 4;
    std::int64_t slice_num = 32;
    bool unified_pos = false;           ///< 2-D grids only: distances to a reference grid in place of `embedding`
    std::int64_t ref = 8;               ///< points of that grid along each side
    std::vector<std::int64_t> structured_shape;   ///< extents of a 2-D or 3-D grid, points in row-major order; empty: no grid
    bool use_te = false;                ///< TransformerEngine's layers; not implemented
    bool time_input = false;
    bool plus = false;                  ///< Transolver++
    bool authors_constants = false;     ///< constants of the paper's code in place of PhysicsNeMo's; see SliceOptions. Not an argument there

    /// @throws InvalidInput naming the option, its value and what is allowed.
    void validate() const;
};

/// From the arguments of a checkpoint or a fixture; absent ones keep their defaults (`use_te` too: it is off here), null counts as absent.
/// @throws InvalidInput for a name that is not an argument of Transolver, or a value of the wrong type.
TransolverOptions transolver_options(const nlohmann::json& arguments);

/// All arguments, as `transolver_options` reads them; `authors_constants` where it is set.
nlohmann::json to_json(const TransolverOptions& options);

}  // namespace meshard
