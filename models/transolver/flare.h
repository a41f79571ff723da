// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/transolver/transolver.h"

namespace meshard {

/// FLARE (Puri et al. 2025, arXiv 2508.12594): a Transolver whose layers mix the points through `slice_num` learned
/// queries instead of slices. Parameters have PhysicsNeMo's names and shapes. A grid decides only the shapes of inputs
/// and outputs.
class FlareImpl : public TransolverImpl {
public:
    /// Draws initial values like Transolver, in the reference's order.
    /// @throws InvalidInput as `TransolverOptions::validate`, and if `plus` is set.
    explicit FlareImpl(const TransolverOptions& options);
};
TORCH_MODULE(Flare);

}  // namespace meshard
