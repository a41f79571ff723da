// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/activation.h"
#include "models/layers/memory_mode.h"
#include "sharding/tensor/shard_spec.h"

#include <nlohmann/json_fwd.hpp>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace meshard {

template <class Options>
class OptionTable;

/// Constructor arguments of a Fourier neural operator, with the names and defaults of checkpoints of the class `FNO`.
/// Meanings and bounds: `fno_option_table`.
struct FnoOptions {
    std::int64_t in_channels = 0;   ///< must be set
    std::int64_t out_channels = 0;  ///< must be set
    std::int64_t decoder_layers = 1;
    std::int64_t decoder_layer_size = 32;
    std::string decoder_activation_fn = "silu";
    std::int64_t dimension = 2;
    std::int64_t latent_channels = 32;
    std::int64_t num_fno_layers = 4;
    std::vector<std::int64_t> num_fno_modes = {16, 16};  ///< one for each direction
    std::vector<std::int64_t> padding = {8, 8};          ///< one for each direction
    std::string padding_type = "constant";
    std::string activation_fn = "gelu";
    bool coord_features = true;

    /// @throws InvalidInput naming the option, its value and what is allowed.
    void validate() const;
};

/// Declares all options.
const OptionTable<FnoOptions>& fno_option_table();

/// Expands `num_fno_modes` and `padding`, which may be one number for all directions, or be absent, to one number for
/// each direction. Missing entries of a list of paddings become 0, as in the reference.
nlohmann::json with_modes_of_each_direction(nlohmann::json arguments);

/// Reads the arguments of a checkpoint; absent ones keep their defaults.
/// @throws InvalidInput for a name that is not an argument of FNO, or a value of the wrong type.
FnoOptions fno_options(const nlohmann::json& arguments);

/// A linear map of the channels of each cell, (B, in, extents) to (B, out, extents): a convolution of kernel 1.
/// Parameters `weight` (out, in, 1, ...) and `bias`.
class CellLinearImpl : public torch::nn::Module {
public:
    /// Initial values are those of LibTorch's convolutions.
    CellLinearImpl(std::int64_t in, std::int64_t out, std::int64_t num_directions);

    torch::Tensor forward(const torch::Tensor& grid) const;

    torch::Tensor weight, bias;
};
TORCH_MODULE(CellLinear);

/// Multiplies each kept mode of a grid by a matrix of its own on the channels (Li et al. 2021, "Fourier neural operator
/// for parametric partial differential equations", section 4). Parameters `weights1` to `weights{2^(d-1)}` of shape (C,
/// C, m_1, ..., m_d, 2): input channel, output channel, modes, real and imaginary part; bit a of the number, counted
/// from 0, chooses the low or the high modes of direction a. Where low and high modes overlap both products are added,
/// as in PhysicsNeMo. One all-reduce forward and one backward if the grid is cut (`grid_modes`).
///
/// After `share_modes` a rank has the weights of its own modes only and multiplies only these: the products are
/// gathered, and backward sends the same amount.
class SpectralConvolutionImpl : public torch::nn::Module {
public:
    /// Initial values are uniform in [0, 1 / C^2), all positive, as in the reference.
    SpectralConvolutionImpl(std::int64_t channels, std::vector<std::int64_t> num_modes);

    /// With shared modes the grid must be cut among the same ranks. @throws InvalidInput if it is not
    torch::Tensor forward(const torch::Tensor& grid);

    /// Shares the modes along the last direction among ranks, even if there are fewer of them than ranks, and returns
    /// the layout: the caller must shard every weight accordingly (`FullyShardOptions::kept_parts`).
    AxisLayout share_modes(std::int64_t num_ranks);

private:
    torch::Tensor multiplied(const torch::Tensor& modes) const;

    std::vector<std::int64_t> num_modes_;
    // Number of modes of the last direction that each rank multiplies; empty: every rank multiplies all.
    Extents shares_;
    std::vector<torch::Tensor> weights_;
};
TORCH_MODULE(SpectralConvolution);

/// Shares the modes of all spectral convolutions of a model among ranks. Returns the layouts of the parameters to
/// shard, by name; empty for a model without such layers, or for one rank.
std::map<std::string, AxisLayout> share_modes(torch::nn::Module& model, std::int64_t num_ranks);

/// A Fourier neural operator on grids of two or three dimensions, with the parameters of PhysicsNeMo's `FNO`: the
/// channels and, with `coord_features`, each cell's position between 0 and 1 are lifted, padded at the end of every
/// direction, go through `num_fno_layers` layers act(W x + S x) of a linear map and a spectral convolution, lose their
/// padding, and are decoded cell by cell.
///
/// Grids may be cut along any direction, in uneven parts. A layer sends the sums of the kept modes, for any size of the
/// grid: B C 2 m_1 ... m_d complex numbers in one all-reduce, and as many in backward. Gradients of spectral weights
/// are complete on every rank and are not summed; with `share_modes` they are complete on the rank that has the weight.
class FnoImpl : public torch::nn::Module, public HasMemoryModes {
public:
    /// Initial values are drawn as in the reference, from LibTorch's default generator. As there, biases of the lifting
    /// are not trained in two dimensions.
    /// @throws InvalidInput as `FnoOptions::validate`.
    explicit FnoImpl(FnoOptions options);

    /// (B, in_channels, n_1, ..., n_d) to (B, out_channels, n_1, ..., n_d)
    /// @throws InvalidInput for another shape, or a padded grid with fewer modes than are kept.
    torch::Tensor forward(const torch::Tensor& grid);

    const FnoOptions& options() const { return options_; }

    /// `recomputed` keeps the input of each layer; backward then sends the layer's modes again. @throws InvalidInput
    /// for `streamed`
    void set_memory(MemoryMode mode) override;

private:
    void require_shape(const torch::Tensor& grid) const;
    torch::Tensor with_coordinates(const torch::Tensor& grid) const;
    torch::Tensor padded(const torch::Tensor& grid) const;
    torch::Tensor decoded(torch::Tensor grid);

    FnoOptions options_;
    MemoryMode memory_ = MemoryMode::Stored;
    Activation activation_{nullptr}, decoder_activation_{nullptr};
    std::vector<CellLinear> lift_, linear_;
    std::vector<SpectralConvolution> spectral_;
    std::vector<torch::nn::Linear> decoder_;  // the last one computes the result
};
TORCH_MODULE(Fno);

}  // namespace meshard
