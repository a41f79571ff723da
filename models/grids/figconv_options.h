// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/grids/plane_pairs.h"

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

template <class Options>
class OptionTable;

/// Constructor arguments of a FIGConvUNet, with the names and defaults of checkpoints. Meanings and bounds:
/// `figconv_unet_option_table`.
struct FigConvUNetOptions {
    static constexpr std::int64_t kPoolingHeads = 2;  ///< heads of attention pooling

    std::int64_t in_channels = 0;   ///< must be set
    std::int64_t out_channels = 0;  ///< must be set
    std::int64_t kernel_size = 3;
    /// num_levels + 1 numbers, fine to coarse; the reference has no default.
    std::vector<std::int64_t> hidden_channels = {16, 16, 16, 16};
    std::int64_t num_levels = 3;
    std::vector<std::int64_t> num_down_blocks = {1, 1, 1};  ///< one for each level
    std::vector<std::int64_t> num_up_blocks = {1, 1, 1};    ///< one for each level
    std::vector<std::int64_t> mlp_channels = {512, 512};
    std::vector<double> aabb_max = {1, 1, 1};
    std::vector<double> aabb_min = {0, 0, 0};
    std::vector<std::string> memory_formats = {"b_xc_y_z", "b_yc_x_z", "b_zc_x_y"};  ///< the flat axis of each plane
    std::vector<std::array<std::int64_t, 3>> resolutions = {{2, 128, 128}, {128, 2, 128}, {128, 128, 2}};
    bool use_rel_pos = true;
    bool use_rel_pos_embed = true;
    std::int64_t pos_encode_dim = 32;
    std::vector<std::string> communication_types = {"sum"};
    std::string to_point_sample_method = "graphconv";
    std::string neighbor_search_type = "radius";
    std::int64_t knn_k = 16;
    std::vector<std::string> reductions = {"mean"};
    bool use_scalar_output = true;
    bool has_input_features = false;
    std::string pooling_type = "max";
    std::vector<std::int64_t> pooling_layers;  ///< levels that the scalar output reads; empty: the coarsest

    /// @throws InvalidInput naming the option, its value and what is allowed.
    void validate() const;

    std::vector<GridPlane> planes() const;
};

/// Declares all options but `resolution_memory_format_pairs`, which `figconv_unet_options` reads.
const OptionTable<FigConvUNetOptions>& figconv_unet_option_table();

/// Expands `num_down_blocks` and `num_up_blocks`, which may be one number for all levels, alone or in a list, or be
/// absent, to one number for each level.
nlohmann::json with_blocks_of_each_level(nlohmann::json arguments);

/// Converts `grid_resolution`, vertices along x, y and z, and `plane_resolution`, those of each of three planes along
/// the axis that it flattens, to `resolution_memory_format_pairs`. If one of the two is absent, it has its default.
/// @throws InvalidInput unless each has three numbers
nlohmann::json with_planes_of_resolutions(nlohmann::json arguments);

/// Reads the arguments of a checkpoint; absent ones keep their defaults. `voxel_size` is ignored, as in the reference.
/// @throws InvalidInput for a name that is not an argument of FIGConvUNet, or a value of the wrong type.
FigConvUNetOptions figconv_unet_options(const nlohmann::json& arguments);
nlohmann::json to_json(const FigConvUNetOptions& options);

}  // namespace meshard
