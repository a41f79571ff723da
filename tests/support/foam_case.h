// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <filesystem>
#include <span>

namespace meshard {

struct FoamCaseStyle {
    bool binary = false;
    bool compressed = false;
    int label_bits = 32;
    int scalar_bits = 64;
};

/// Writes the solid cells of `mesh` as an OpenFOAM case with the patches `left` (faces at x = 0) and `rest`, every
/// second cell in the zone `even`, and the times 0 and 0.5. The latest has the cell fields `p` (10 + cell), `U` (cell,
/// 2 cell, -1), `S` (six values: cell + place) and `T` (uniform 300), and the point field `D` (point, 0, 1). On `left`,
/// p is 1000 + face of the patch; on `rest` it is given by the cells behind.
void write_foam_case(const std::filesystem::path& folder, const Mesh& mesh, const FoamCaseStyle& style = {});

/// The same case as a run on several processors leaves it: the i-th solid cell belongs to `processor<owners[i]>`. With
/// or without the numbers in the whole that decomposePar notes.
void write_decomposed_foam_case(const std::filesystem::path& folder, const Mesh& mesh,
                                std::span<const std::int32_t> owners, bool with_addressing,
                                const FoamCaseStyle& style = {});

}  // namespace meshard
