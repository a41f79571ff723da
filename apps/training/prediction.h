// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/training/predictor.h"
#include "sharding/transport/launch.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// Whether a run's `data.length` is a column of its case table: what `values` of `predict_file` may then say.
bool is_column(const std::string& length);

/// Adds what the model is told of a case besides its points. @param value_of   gives the value of a column of the case table, or throws
void tell_of_case(PointInputs& inputs, const Predictor& predictor, const std::function<double(const std::string& column)>& value_of, const at::Device& device);

/// What a rank may take of its device for points between layers: of the machine's memory, or of what its device has free, a quarter, shared by the ranks there.
/// Collective over `all`.
std::int64_t memory_for_points(const World& world, const RankGroup& all);

/// Predicts on the mesh `input` and writes it with the fields as further arrays to `output`: .vtp, .vtu, or .pvtp, .pvtu with a piece
/// a rank in a folder beside it. Collective over all ranks.
///
/// A field is called as in the configuration, and `<name>_predicted` where the mesh has an array of that name already.
/// @param values   what the case table says in training, by column, e.g. `length`; where it is missing and the configuration asks for
///                 it, the longest edge of the bounding box is taken, with a warning.
/// @param wall     the surface whose distance the model is told; empty: of the run's patches of the input itself
/// @param memory   what the model keeps of each point from layer to layer; nothing: the fastest that takes a quarter of the machine's memory, or of what the
/// ranks' device has free, shared by the ranks
/// @throws InvalidInput if the mesh has not what the model is told about points.
void predict_file(Predictor& predictor, const std::filesystem::path& input, const std::filesystem::path& output, const std::map<std::string, double>& values,
                  const std::filesystem::path& wall, std::optional<MemoryMode> memory, World& world);

}  // namespace meshard
