// SPDX-License-Identifier: Apache-2.0
#include "models/layers/random_draws.h"

#include <ATen/Context.h>
#include <torch/nn/module.h>

namespace meshard {

void seed_draws(torch::nn::Module& module, std::uint64_t seed)
{
    at::manual_seed(seed);
    for (const auto& part : module.modules()) {
        if (auto* model = dynamic_cast<DrawsNoise*>(part.get())) model->seed_noise(seed);
    }
}

}  // namespace meshard
