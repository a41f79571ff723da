// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/diffusion/dit.h"

#include <nlohmann/json_fwd.hpp>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <vector>

namespace meshard {

/// The inputs of a denoiser besides the noisy image.
struct DenoiserCondition {
    /// (B, channels, rows, columns), concatenated to the noisy image along the channels; may be undefined.
    torch::Tensor image;
    torch::Tensor vector;  ///< (B, condition_dim); may be undefined
};

/// A DiT as a denoiser for images with any level of noise (Karras et al. 2022, Elucidating the design space of
/// diffusion-based generative models, section 5), with the parameters of PhysicsNeMo's EDMPreconditioner around
/// ConcatConditionWrapper around DiT (`model.model.*`, buffer `sigma_data`):
///
///     D(x, s) = c_skip x + c_out F(join(c_in x, condition image), ln(s) / 4, condition vector)
///
/// The condition image is not scaled. Sharded like the DiT: images along rows and columns; levels and condition vectors
/// must be equal on every rank.
class EdmPreconditionerImpl : public torch::nn::Module {
public:
    /// @param sigma_data   standard deviation of the data: one number, or one for each channel of the noisy image
    /// @throws InvalidInput as `DitOptions::validate`, and if `sigma_data` has a number that is not positive
    EdmPreconditionerImpl(DitOptions options, const std::vector<double>& sigma_data);

    /// @param noisy   (B, channels, rows, columns)
    /// @param sigma   (B), the standard deviation of each sample's noise, positive
    /// @return        the denoised images, of the same shape
    /// @throws InvalidInput for shapes that do not fit
    torch::Tensor forward(const torch::Tensor& noisy, const torch::Tensor& sigma,
                          const DenoiserCondition& condition = {});

    Dit& dit() { return dit_; }
    const DitOptions& options() const { return dit_->options(); }

private:
    torch::Tensor sigma_data(const torch::Tensor& like) const;

    torch::Tensor sigma_data_;  // () or (channels)
    Dit dit_{nullptr};
};
TORCH_MODULE(EdmPreconditioner);

/// From the arguments in a checkpoint of EDMPreconditioner: `sigma_data` and below `model` those of the wrapper with
/// those of the DiT below its `model`, each as
/// {"__name__": class, "__args__": arguments}.
/// @throws InvalidInput for another class inside, or an argument that it does not have
EdmPreconditioner make_edm_preconditioner(const nlohmann::json& arguments);

}  // namespace meshard
