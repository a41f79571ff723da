// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/shards/manifest.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace meshard {

/// What a case's rows measure: areas of polygons or volumes of solids, and nothing for clouds and lines.
enum class MeasureKind : std::uint8_t { None, Areas, Volumes };

const char* name_of(MeasureKind kind);  ///< `none`, `areas`, `volumes`, as case.json has it

/// Measures of all rows of a case.
struct RowMeasures {
    MeasureKind kind = MeasureKind::None;
    double mean = 0;            ///< over all rows, in the unit of the case's file
    std::vector<float> values;  ///< of each row by its id, over the mean; empty where there are none, or all are 0
};

/// From the parts of a shards folder. A point has its share of the cells around it, which hand equal parts to their points. In a mesh with solids polygons
/// count nothing. The same bits however the case was cut, and those of the input `areas` (`add_areas`).
/// @throws IoError for a folder that cannot be read; InvalidInput as `cell_measures`
RowMeasures row_measures(const std::filesystem::path& shards, const Manifest& manifest, bool on_cells);

}  // namespace meshard
