// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/rank_group.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshard {

/// Dynamic scaling of a loss for models in float16, whose gradients would vanish below 6e-8 (Micikevicius et al.,
/// "Mixed Precision Training", 2018): the loss times a scale is differentiated, the gradients are divided by it. A step
/// whose gradients are not finite on any rank is left out on all, and halves the scale; after `growth_interval` steps
/// without one it doubles. The numbers are those of torch.amp.GradScaler.
class LossScaling {
public:
    double scale = 65536;
    std::int64_t num_good_steps = 0;  ///< since the scale has changed
    std::int64_t growth_interval = 2000;
    at::Tensor on_device = {};  ///< the scale (), float, from which recorded steps take it; undefined without a device

    /// A loss whose gradients are those of the given one, times the scale.
    at::Tensor scaled(const at::Tensor& loss) const;

    /// Keeps the scale in memory of a device, too.
    void put_on(const at::Device& device);

    /// Sets the scale, also on the device.
    void set_scale(double value);

    /// Divides gradients by the scale, in place; says whether those of all ranks are finite, and sets the scale for the
    /// next step. Collective.
    /// @param gradients   complete ones in float or wider; undefined ones are passed over
    /// @throws Error on every rank if gradients are not finite however small the scale is
    bool unscale(const std::vector<at::Tensor>& gradients, const RankGroup& ranks);
};

}  // namespace meshard
