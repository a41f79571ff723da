// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"
#include "partition/mesh/surface_geometry.h"

#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// A field chosen for the forces, as one row a cell.
struct CellField {
    std::string name;
    std::vector<double> values;           ///< row by row
    bool averaged = false;                ///< from the cell's points
    std::vector<std::string> also_there;  ///< other fields that could have been meant
};

/// The pressure field `name`, or if it is empty the first that the mesh has of the usual names.
/// @throws InvalidInput if there is none, it has not one component, or holds NaN.
CellField pressure_field(const Mesh& mesh, const std::string& name, std::string_view where);

/// The wall shear stress `name`, or if it is empty the one that belongs to `pressure` (`pMean` and
/// `wallShearStressMean`), or the first of the usual names. @throws InvalidInput if there is none, it has not three
/// components, or holds NaN.
CellField shear_field(const Mesh& mesh, const std::string& name, const std::string& pressure, std::string_view where);

/// Share of the area on which the cell array `Normals` points to the side of the cell's area vector; -1 if there is no
/// such array.
double normals_agreement(const Mesh& mesh, const std::vector<Vector3>& areas);

}  // namespace meshard
