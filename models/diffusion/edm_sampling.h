// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/diffusion/edm_preconditioner.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshard {

/// A standard normal number, by the transform of Box and Muller (1958).
double normal_number(std::uint64_t seed);

/// Standard normal numbers for images (B, channels, rows, columns): each depends only on the seed, the index of the
/// draw, and its sample, channel, row and column in the whole. An image therefore gets the same noise for any sharding,
/// on any number of ranks and on any device; a rank draws that of its own part.
///
/// @param like   plain or sharded along any dimensions; gives shape, device and layout of the result, which is in
///               double precision
at::Tensor grid_noise(const at::Tensor& like, std::uint64_t seed, std::uint64_t draw);

/// Settings for the generation of images (Karras et al. 2022, algorithm 2).
struct EdmSampling {
    std::int64_t num_steps = 18;
    double sigma_min = 0.002;
    double sigma_max = 80;
    double rho = 7;  ///< larger values place more of the steps at low noise
    /// S_churn: noise that is added in all steps together; 0: none, the result is determined by its start.
    double churn = 0;
    std::uint64_t seed = 0;

    /// @throws InvalidInput naming the setting, its value and what is allowed
    void validate() const;
};

/// Mean and deviation of the logarithms of the levels of noise that denoisers train at: the paper's, whose data have
/// the deviation 0.5 and the mean -1.2.
inline constexpr double kMeanLevel = -0.5, kLevelDeviation = 1.2;

/// Draws a level of noise to train a denoiser at, of data with the deviation 1: its logarithm is normal (Karras et al.
/// 2022, table 1).
double drawn_level(std::uint64_t seed);

/// The weight of a level's squared error in the loss of a denoiser of such data (the paper's lambda): with it a network
/// that returns 0 has the loss 1 at every level.
double loss_weight(double level);

/// Levels of noise from sigma_max to sigma_min, followed by zero: num_steps + 1 numbers.
std::vector<double> noise_levels(const EdmSampling& sampling);

/// Denoises images from the level levels[0], `start`, through all levels, by Heun's method, the last step by Euler's;
/// without gradients. The images are in double precision, the model in its own.
///
/// @param start   (B, channels, rows, columns), plain or sharded: levels[0] times standard normal noise
/// @return        images with the layout of `start`, in double precision
at::Tensor follow_noise_levels(EdmPreconditioner& model, const at::Tensor& start, const std::vector<double>& levels,
                               const DenoiserCondition& condition, const EdmSampling& sampling);

/// Generates an image for each sample of the condition. Noise is drawn by position in the whole, so that the images are
/// equal, up to rounding, for any number of ranks.
/// @param like   (B, channels, rows, columns), plain or sharded: gives shape and layout
/// @throws InvalidInput as `EdmSampling::validate`, and as the model
at::Tensor generate_images(EdmPreconditioner& model, const at::Tensor& like, const DenoiserCondition& condition,
                           const EdmSampling& sampling);

}  // namespace meshard
