// SPDX-License-Identifier: Apache-2.0
#include "models/registry/random_draws.h"

#include <ATen/Context.h>

#include "models/geotransolver/geotransolver.h"
#include "models/transolver/transolver.h"

namespace meshard {

void seed_draws(torch::nn::Module& module, std::uint64_t seed)
{
    at::manual_seed(seed);
    for (const auto& part : module.modules()) {
        if (auto* transolver = dynamic_cast<TransolverImpl*>(part.get())) transolver->seed_noise(seed);
        else if (auto* geotransolver = dynamic_cast<GeoTransolverImpl*>(part.get())) geotransolver->seed_noise(seed);
    }
}

}  // namespace meshard
