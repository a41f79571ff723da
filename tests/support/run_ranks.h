// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>

#include "sharding/device_mesh.h"

namespace meshard {

/// Runs `body` as ranks 0..n-1 in threads of this process, over a transport in memory. All fail together: when one throws, the others'
/// collectives throw too, and the first error is rethrown here. A rank that waits for more than a minute throws.
void run_ranks(int n, const std::function<void(std::shared_ptr<const DeviceMesh>)>& body);

/// The same on a grid of ranks, e.g. {2, 3} with axes {"data", "domain"}.
void run_ranks(std::vector<std::int64_t> shape, std::vector<std::string> axis_names,
               const std::function<void(std::shared_ptr<const DeviceMesh>)>& body);

/// Generator of the rank that runs in this thread, a copy of the default one as it was when the ranks were started; the default one elsewhere.
at::Generator rank_generator();

}  // namespace meshard
