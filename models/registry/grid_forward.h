// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/normalizer.h"
#include "models/registry/encoded_model.h"
#include "models/registry/registry.h"

namespace meshard {

/// Gives a model of grids a forward for points, so that programs can treat it as any other model: rows (1, N, C) that
/// make up the grid `PointInputs::grid` are normalised, extended by the case's constants, and passed to the model as
/// (1, C, extents). A denoiser also gets its `denoise`, and the forward is a sample that it draws from noise by
/// `sampling`, told the grid. Rows that lie as `layout_of_rows` of `PointInputs::grid_layout` are not moved to other
/// ranks, and the result has the same layout.
/// @param of_inputs   normaliser of the embedding's channels, which leaves categories as they are
/// @param has_mask    whether rows may be NaN, which do not count: the model is told their mean
/// @param categories  channels in whose place the model is told kinds
void take_rows_of_grids(Model& model, const Normalizer& of_inputs, bool has_mask = false,
                        const CategoryChannels& categories = {});

}  // namespace meshard
