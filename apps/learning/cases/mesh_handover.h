// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/ghosts/subdomain.h"
#include "sharding/ranks/device_mesh.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>

namespace meshard {

// With several ranks, a verb that works on one mesh lets the first rank read the mesh and write the result, and all
// ranks work on their parts.

/// A rank's part of a mesh.
struct MeshPart {
    Subdomain subdomain;
    std::array<double, 6> bounds{};  ///< lowest and highest x, y and z of the whole mesh
};

/// Cuts the first rank's mesh into one part a rank by METIS; `whole` is ignored on the other ranks. The parts are
/// handed over in files beside `output`, which are removed afterwards, so no other rank holds the whole mesh.
/// Collective over all ranks.
/// @param num_ghost_layers   layers of neighbours by vertex
/// @throws IoError if nothing can be written beside the output.
MeshPart hand_out_mesh(const Mesh& whole, std::int32_t num_ghost_layers, const std::filesystem::path& output,
                       const DeviceMesh& device_mesh);

/// Gathers all rows on the first rank in the order of their ids, 0 to n - 1; the others get no rows. Collective.
at::Tensor rows_on_first_rank(const at::Tensor& rows, std::span<const std::int64_t> ids, const RankGroup& group);

}  // namespace meshard
