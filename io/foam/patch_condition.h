// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/foam/foam_file.h"
#include "io/foam/patch_geometry.h"
#include "partition/mesh/data_array.h"

#include <functional>
#include <optional>
#include <string>

namespace meshard {

/// A boundary condition of one field on one patch.
struct PatchCondition {
    std::string type;        ///< e.g. `fixedValue`; empty if the field has none for this patch
    const FoamEntry* entry;  ///< null if the field has none for this patch
    DataArray behind;        ///< values in the cell behind each face
    /// Set by `patch_values`: why the values are those of the cells behind, if OpenFOAM has others.
    std::string note;
};

/// The values on the faces of a patch: those in the file, or what OpenFOAM computes from the cells behind and from the
/// geometry, for no slip, zero and fixed gradients, slip, symmetry, wedges, mixtures of value and gradient, and values
/// that depend on the direction of the flux. `flux(name)` returns the flux through the faces, positive outwards, or
/// nothing. For all other conditions the values are those of the cells behind, and `condition.note` states the reason.
/// @throws IoError, naming `file`, if lists have another length than the patch.
DataArray patch_values(const FoamFile& file, PatchCondition& condition, PatchGeometry& geometry,
                       const std::function<std::optional<DataArray>(const std::string& name)>& flux);

}  // namespace meshard
