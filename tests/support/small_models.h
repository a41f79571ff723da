// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/geotransolver/geotransolver_options.h"
#include "models/transolver/transolver_options.h"

namespace meshard::test {

/// A Transolver that a test runs in milliseconds: widths that divide nothing else, inputs of 2 and 3 channels, 4
/// results.
inline TransolverOptions small_transolver()
{
    TransolverOptions options;
    options.functional_dim = 2;
    options.embedding_dim = 3;
    options.out_dim = 4;
    options.n_layers = 2;
    options.n_hidden = 24;
    options.n_head = 3;
    options.mlp_ratio = 2;
    options.slice_num = 7;
    return options;
}

/// A GeoTransolver of the same widths, with a geometry and 2 global values.
inline GeoTransolverOptions small_geotransolver()
{
    GeoTransolverOptions options;
    options.functional_dim = {2};
    options.out_dim = {4};
    options.geometry_dim = 3;
    options.global_dim = 2;
    options.n_layers = 2;
    options.n_hidden = 24;
    options.n_head = 3;
    options.mlp_ratio = 2;
    options.slice_num = 7;
    return options;
}

/// The same with local features at two radii.
inline GeoTransolverOptions small_geotransolver_with_neighbors()
{
    auto options = small_geotransolver();
    options.include_local_features = true;
    options.radii = {0.3, 0.6};
    options.neighbors_in_radius = {3, 6};
    options.n_hidden_local = 6;
    return options;
}

}  // namespace meshard::test
