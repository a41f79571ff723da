// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/foam/foam_file.h"
#include "io/foam/patch_geometry.h"
#include "partition/mesh/data_array.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace meshard {

/// A boundary condition of one field on one patch.
struct PatchCondition {
    std::string type;        ///< e.g. `fixedValue`; empty if the field has none for this patch
    const FoamEntry* entry;  ///< null if the field has none for this patch
    DataArray behind;        ///< values in the cell behind each face
    std::string note;        ///< after `patch_values`: why they are those of the cells behind, if OpenFOAM has others
};

/// The values on the faces of a patch: those that are given, or what OpenFOAM computes from the cells behind and from the geometry. That
/// is: no slip, zero and fixed gradients, slip, symmetry, wedges, mixtures of value and gradient, and values that depend on the
/// direction of the flux, of which `flux(name)` has that through the faces, positive outwards, or nothing. For all else the values are
/// those of the cells behind, and `condition.note` says why.
/// @throws IoError, naming `file`, if lists have another length than the patch.
DataArray patch_values(const FoamFile& file, PatchCondition& condition, PatchGeometry& geometry,
                       const std::function<std::optional<DataArray>(const std::string& name)>& flux);

}  // namespace meshard
