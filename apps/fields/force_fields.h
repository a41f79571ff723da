// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"
#include "partition/mesh/surface_geometry.h"

#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// A field from which forces are computed, with one row for each cell.
struct CellField {
    std::string name;
    std::vector<double> values;           ///< row by row
    bool averaged = false;                ///< whether it is a mean over each cell's points
    std::vector<std::string> also_there;  ///< other fields that could be meant: of a usual name, or of the points
};

/// Returns the pressure field `name`, or if it is empty the first field of the mesh with one of the usual names.
/// @throws InvalidInput if there is none, or if it has several components or NaN.
CellField pressure_field(const Mesh& mesh, const std::string& name, std::string_view where);

/// Returns the wall shear stress `name`, or if it is empty the one whose name fits `pressure` (`pMean` and
/// `wallShearStressMean`), or the first of the usual names.
/// @throws InvalidInput if there is none, or if it does not have three components, or has NaN.
CellField shear_field(const Mesh& mesh, const std::string& name, const std::string& pressure, std::string_view where);

/// Returns the fraction of the area where the cell array `Normals` points to the same side as the cell's area vector;
/// -1 without such an array. Normals of zeros or NaN do not count.
double normals_agreement(const Mesh& mesh, const std::vector<Vector3>& areas);

}  // namespace meshard
