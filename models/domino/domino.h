// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/domino/geometry_encoding.h"
#include "models/domino/point_networks.h"
#include "models/layers/memory_mode.h"
#include "models/layers/random_draws.h"
#include "ops/slices/row_noise.h"

#include <torch/nn/modules/container/modulelist.h>

#include <cstdint>
#include <functional>
#include <utility>

namespace meshard {

/// Points of the volume: (B, N, ...), plain or cut along N.
struct DominoVolume {
    torch::Tensor centers;       ///< (B, N, 3), in the frame of the volume's box
    torch::Tensor sdf;           ///< (B, N, 1): signed distance to the geometry
    torch::Tensor from_closest;  ///< (B, N, 3): vector from the closest point of the geometry
    torch::Tensor from_center;   ///< (B, N, 3): vector from the geometry's centre of mass
};

/// Points of the surface: (B, N, ...), plain or cut along N.
struct DominoSurface {
    torch::Tensor centers;           ///< (B, N, 3), in the frame of the surface's box
    torch::Tensor normals;           ///< (B, N, 3)
    torch::Tensor areas;             ///< (B, N)
    torch::Tensor neighbors;         ///< (B, N, K, 3): the K nearest cells; those beyond the stencil are ignored
    torch::Tensor neighbor_normals;  ///< (B, N, K, 3)
    torch::Tensor neighbor_areas;    ///< (B, N, K)
    torch::Tensor from_center;       ///< (B, N, 3)
};

struct DominoInputs {
    torch::Tensor geometry;  ///< (B, Ng, 3): points of the geometry; equal on every rank
    /// (B, 2, 3): the boxes by which the geometry is normalised to [-1, 1]; undefined if it is normalised already.
    torch::Tensor volume_min_max;
    torch::Tensor surface_min_max;
    /// (B, X, Y, Z, 3): cells of the volume's box and of the surface's, normalised; may be cut along X.
    torch::Tensor grid, surf_grid;
    torch::Tensor sdf_grid, sdf_surf_grid;          ///< (B, X, Y, Z)
    torch::Tensor global_values, global_reference;  ///< (B, G, 1): parameters of the case, and their divisors
    DominoVolume volume;                            ///< without centers if no volume result is wanted
    DominoSurface surface;                          ///< without centers if no surface result is wanted
};

/// Results; undefined if not wanted.
struct DominoOutputs {
    torch::Tensor volume;   ///< (B, N, output_features_vol)
    torch::Tensor surface;  ///< (B, N, output_features_surf)
};

/// DoMINO (Ranade et al. 2025, DoMINO: a decomposable multi-scale iterative neural operator for modeling large scale
/// engineering simulations), with the parameters of PhysicsNeMo's class: the geometry is encoded on grids; points get
/// encodings of the grid cells around them, and each channel of the solution at a point is averaged over a stencil
/// around it.
///
/// Sharding: grids may be cut along X, points anywhere; geometry and parameters must be equal on every rank.
/// Convolutions on the grids exchange rows at the cuts; the finished encoding of each grid is gathered once, and its
/// gradient reduced once; the networks of points send nothing.
class DominoImpl : public torch::nn::Module, public HasMemoryModes, public DrawsNoise {
public:
    /// Returns the normal and the uniform numbers, (B, N, num_neighbors_volume, 3) each, from which the stencils of the
    /// volume are computed.
    using StencilDraws = std::function<std::pair<torch::Tensor, torch::Tensor>()>;

    /// Initial values are drawn as in the reference, from LibTorch's default generator.
    /// @throws InvalidInput as `DominoOptions::validate`.
    explicit DominoImpl(DominoOptions options);

    /// Stencils of the volume are drawn anew in each call, also in evaluation, as in the reference; here from seed,
    /// call and global row of a point, so that they do not depend on the sharding.
    /// @throws InvalidInput for inputs that are missing or do not fit each other
    DominoOutputs forward(const DominoInputs& inputs);

    const DominoOptions& options() const { return options_; }

    /// `recomputed` keeps the inputs of the encodings and of each channel's networks. @throws InvalidInput for
    /// `streamed`
    void set_memory(MemoryMode mode) override;
    void seed_noise(std::uint64_t seed) override;
    /// Replaces the drawn numbers, for tests.
    void set_stencil_draws(StencilDraws draws) { draws_ = std::move(draws); }

private:
    void check_inputs(const DominoInputs& inputs) const;
    torch::Tensor normalised(const torch::Tensor& geometry, const torch::Tensor& min_max) const;
    torch::Tensor parameters_at(const DominoInputs& inputs, const torch::Tensor& points);
    torch::Tensor volume_stencil(const torch::Tensor& centers);
    torch::Tensor solution(torch::nn::ModuleList& basis, torch::nn::ModuleList& aggregation,
                           const torch::Tensor& centers, const torch::Tensor& stencil, bool averages,
                           const torch::Tensor& known);
    std::vector<torch::Tensor>
    run(const std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)>& work,
        const std::vector<torch::Tensor>& inputs) const;

    DominoOptions options_;
    MemoryMode memory_ = MemoryMode::Stored;
    RowNoise noise_;
    StencilDraws draws_;
    UNet3d combined_surface_{nullptr}, combined_volume_{nullptr};
    FourierMlp parameter_model_{nullptr}, position_volume_{nullptr}, position_surface_{nullptr};
    GeometryEncoding geometry_volume_{nullptr}, geometry_surface_{nullptr};
    torch::nn::ModuleList basis_surface_, basis_volume_, aggregation_surface_, aggregation_volume_;
    LocalEncoding local_surface_{nullptr}, local_volume_{nullptr};
};
TORCH_MODULE(Domino);

}  // namespace meshard
