// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

template <class Options>
struct Option;
class OptionChecks;

/// Constructor arguments that Transolver and GeoTransolver share, with the names and defaults of checkpoints. Meanings
/// and bounds: `slice_transformer_option_list`.
struct SliceTransformerOptions {
    std::int64_t n_layers = 4;
    std::int64_t n_hidden = 256;
    std::int64_t n_head = 8;
    std::int64_t mlp_ratio = 4;
    std::string act = "gelu";
    double dropout = 0.0;
    std::int64_t slice_num = 32;
    bool plus = false;  ///< Transolver++
    /// Extents of a 2-D or 3-D grid, whose points are in row-major order; empty: no grid.
    std::vector<std::int64_t> structured_shape;
    bool use_te = false;  ///< TransformerEngine's layers; not implemented
};

/// Declares the options, for models with at least `least_layers` layers.
std::vector<Option<SliceTransformerOptions>> slice_transformer_option_list(std::int64_t least_layers);

/// Checks that involve several options. @throws InvalidInput naming the option, its value and what is allowed.
void check_together(const SliceTransformerOptions& options, const OptionChecks& checks);

}  // namespace meshard
