// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/shards/manifest.h"

#include <cstdint>
#include <filesystem>
#include <vector>

namespace meshard {

/// What the rows of a case are measured by: areas of polygons, volumes of solids, or nothing for clouds and lines.
enum class MeasureKind : std::uint8_t { None, Areas, Volumes };

const char* name_of(MeasureKind kind);  ///< `none`, `areas`, `volumes`, as in case.json

/// The measures of all rows of a case.
struct RowMeasures {
    MeasureKind kind = MeasureKind::None;
    double mean = 0;            ///< over all rows, in the unit of the case's file
    std::vector<float> values;  ///< by row id, over the mean; empty if there are none or all are 0
};

/// Computes the measures from the parts of a shards folder. Each cell hands equal shares to its points, and a point has
/// the sum of its shares. In a mesh with solids, polygons count nothing. The result has the same bits however the case
/// was cut, and its areas equal the input `areas` (`add_areas`).
/// @throws IoError for a folder that cannot be read; InvalidInput as `cell_measures`
RowMeasures row_measures(const std::filesystem::path& shards, const Manifest& manifest, bool on_cells);

}  // namespace meshard
