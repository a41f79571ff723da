// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/foam/foam_file.h"
#include "partition/mesh/data_array.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace meshard {

/// The type of values that the `class` of an OpenFOAM field specifies, e.g. `volSymmTensorField`.
struct FoamFieldClass {
    int num_components = 0;  ///< 0: not a field on cells or points
    bool on_points = false;
};

FoamFieldClass foam_field_class(std::string_view name);

/// The entry `dimensions` as text: `[0 2 -2 0 0 0 0]` -> `m^2 s^-2`; empty if there is none, or no dimension.
std::string foam_unit(const FoamEntry& field);

/// The values of an entry such as `internalField` or `value`; none if its words are not numbers (directives, unknown
/// macros).
/// @throws IoError, naming `file`, if there are not `num_rows` values.
std::optional<DataArray> foam_field_values(const FoamFile& file, const FoamEntry& entry, std::int64_t num_rows,
                                           int num_components);

/// Reorders rows of six from OpenFOAM's XX XY XZ YY YZ ZZ to VTK's XX YY ZZ XY YZ XZ and names the components
/// accordingly; other arrays are not changed. @pre floating
void reorder_symmetric_tensors(DataArray& array);

}  // namespace meshard
