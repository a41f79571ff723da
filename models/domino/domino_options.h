// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// Width, activation and Fourier features of one of DoMINO's networks of points.
struct PointNetworkOptions {
    std::int64_t width = 512;  ///< `base_layer` or `base_neurons`
    bool fourier_features = true;
    std::int64_t num_modes = 5;
    std::string activation = "gelu";
};

/// Radii of ball queries, and the largest number of neighbours for each.
struct BallQueries {
    std::vector<double> radii;
    std::vector<std::int64_t> neighbors;
};

/// `geometry_rep`: how the geometry is encoded on a grid. Of pairs of members the first is for the volume, the second
/// for the surface.
struct GeometryOptions {
    std::int64_t base_neurons = 32;
    std::int64_t base_neurons_in = 1;   ///< channels for a radius before its processor
    std::int64_t base_neurons_out = 1;  ///< channels for a radius after its processor
    std::int64_t volume_hops = 1, surface_hops = 1;
    BallQueries volume{{0.1, 0.5, 1, 2.5}, {32, 64, 128, 256}}, surface{{0.01, 0.05, 1}, {8, 16, 128}};
    std::string activation = "gelu";
    bool fourier_features = false;
    std::int64_t num_modes = 5;

    std::int64_t base_filters = 8;
    std::string processor_activation = "gelu";
    std::string processor_type = "unet";  ///< `unet` or `conv`
    bool self_attention = false;
    bool cross_attention = false;
    std::vector<double> volume_sdf_scales{0.04}, surface_sdf_scales{0.01, 0.02, 0.04};
};

/// Constructor arguments of DoMINO. The members from `grid` on are its `model_parameters`; `domino_options` has their
/// names and defaults.
struct DominoOptions {
    std::int64_t input_features = 3;
    std::int64_t output_features_vol = 0;   ///< 0: none
    std::int64_t output_features_surf = 0;  ///< 0: none
    std::int64_t global_features = 2;

    std::array<std::int64_t, 3> grid{128, 64, 64};  ///< `interp_res`: of the volume's box and of the surface's
    bool use_sdf_in_basis_func = true;
    std::int64_t num_neighbors_surface = 7;  ///< size of a stencil, its centre included
    std::int64_t num_neighbors_volume = 10;  ///< number of points drawn around the centre
    bool use_surface_normals = true;
    bool use_surface_area = true;
    bool encode_parameters = false;
    bool combine_volume_surface = false;
    std::string geometry_encoding_type = "both";  ///< `both`, `stl` or `sdf`
    GeometryOptions geometry;
    /// Ball queries around points, which select the grid cells whose encodings a point gets.
    BallQueries volume_local{{0.1, 0.25}, {64, 128}}, surface_local{{0.05, 0.25}, {32, 128}};
    PointNetworkOptions basis, position;
    PointNetworkOptions parameters{512, false, 5, "gelu"};
    std::int64_t aggregation_width = 512;
    std::string aggregation_activation = "gelu";
    std::string local_activation = "gelu";

    /// Number of channels in the encoding of a grid with `num_radii` radii.
    std::int64_t encoding_channels(std::size_t num_radii) const;
    std::int64_t surface_inputs() const;  ///< number of inputs of the basis networks for a point of the surface

    /// @throws InvalidInput naming the option, its value and what is allowed.
    void validate() const;
};

/// Reads the arguments of a checkpoint. Absent `model_parameters` are the defaults; given ones must be complete, as in
/// the reference. Keys that have no effect in the reference are ignored.
/// @throws InvalidInput for a name that is no argument, a key that is missing, and a value of the wrong type
DominoOptions domino_options(const nlohmann::json& arguments);

/// All arguments, as `domino_options` reads them.
nlohmann::json to_json(const DominoOptions& options);

}  // namespace meshard
