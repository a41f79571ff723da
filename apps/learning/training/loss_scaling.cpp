// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/loss_scaling.h"

#include "partition/error.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>

namespace meshard {
namespace {

constexpr double kLeastScale = 1.0 / 65536;

}  // namespace

at::Tensor LossScaling::scaled(const at::Tensor& loss) const
{
    if (!on_device.defined()) return loss * scale;
    loss.register_hook([factor = on_device](const at::Tensor& gradient) { return gradient * factor; });
    return loss;
}

void LossScaling::put_on(const at::Device& device)
{
    on_device = at::full({}, scale, at::TensorOptions(at::kFloat).device(device));
}

void LossScaling::set_scale(double value)
{
    scale = value;
    if (on_device.defined()) on_device.fill_(scale);
}

bool LossScaling::unscale(const std::vector<at::Tensor>& gradients, const RankGroup& ranks)
{
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> defined;
    std::copy_if(gradients.begin(), gradients.end(), std::back_inserter(defined),
                 [](const at::Tensor& gradient) { return gradient.defined(); });
    bool all_finite = true;
    if (!defined.empty()) {
        const auto options = defined[0].options().dtype(at::kFloat).requires_grad(false);
        auto found = at::zeros({1}, options);
        at::_amp_foreach_non_finite_check_and_unscale_(defined, found, at::full({1}, 1 / scale, options));
        all_finite = found.item<float>() == 0;
    }
    all_finite = ranks.all_agree(all_finite);
    if (!all_finite) {
        set_scale(scale / 2);
        num_good_steps = 0;
        if (scale >= kLeastScale) return false;
        throw Error("training: gradients in float16 are not finite however small the loss is scaled. Set "
                    "training.precision to bfloat16 or float32.");
    }
    if (++num_good_steps == growth_interval) {
        set_scale(scale * 2);
        num_good_steps = 0;
    }
    return true;
}

}  // namespace meshard
