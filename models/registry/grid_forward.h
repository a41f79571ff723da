// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/normalizer.h"
#include "models/registry/registry.h"

namespace meshard {

/// Gives a model of grids a forward of points, so that programs treat it as any other: rows (1, N, C) that make up the grid `PointInputs::grid` are normalised,
/// get the case's constants behind them, and go through the model as (1, C, extents). Rows that are cut along the slowest direction, in whole rows of it, are
/// neither moved nor copied to other ranks, and the result is cut alike.
/// @param of_inputs   of the embedding's channels
void take_rows_of_grids(Model& model, const Normalizer& of_inputs);

}  // namespace meshard
