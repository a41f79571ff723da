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

// Verbs that work on one mesh with several ranks: the first rank reads the mesh, all work on their parts, the first writes the result.

/// What a rank holds of a mesh.
struct MeshPart {
    Subdomain subdomain;
    std::array<double, 6> bounds{};  ///< of the whole: x, y and z, each lowest then highest
};

/// Cuts the first rank's mesh into a part a rank, by METIS. `whole` is looked at on the first rank only. The parts are handed over by files beside
/// `output`, which are gone afterwards, so that no other rank needs the whole. Collective over all ranks.
/// @param num_ghost_layers   neighbours by vertex
/// @throws IoError if nothing can be written beside the output.
MeshPart hand_out_mesh(const Mesh& whole, std::int32_t num_ghost_layers, const std::filesystem::path& output, const DeviceMesh& device_mesh);

/// All rows on the first rank, in the order of their ids, 0 to n - 1; no rows on the others. Collective.
at::Tensor rows_on_first_rank(const at::Tensor& rows, std::span<const std::int64_t> ids, const RankGroup& group);

}  // namespace meshard
