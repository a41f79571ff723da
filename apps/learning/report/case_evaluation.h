// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/evaluation/evaluation.h"
#include "apps/learning/prediction/predictor.h"
#include "apps/learning/settings/force_settings.h"
#include "sharding/transport/launch.h"

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// A trained model with the data that its run knows.
struct JudgedModel {
    Predictor predictor;
    ForceSettings forces;
    CaseLists cases;                 ///< empty where the run's data are not found
    std::vector<std::string> notes;  ///< what is missing, a sentence each
    std::string why_no_cases = {};   ///< a sentence that says which data of the run are missing where; empty if they are found
    std::filesystem::path run;       ///< folder; empty for a checkpoint that lies in none
    std::vector<std::filesystem::path> case_tables = {};
};

/// From the folder of a run (its best checkpoint), or from a checkpoint; one in RUN/checkpoints knows the data of its run.
/// @param part       of a run with surface (0) and volume (1): which of them is judged
/// @param settings   where the run's data lie now (`take_data_path_overrides`)
/// @throws as `Predictor::from_run` and `Predictor::from_file`
JudgedModel judged_model(const std::filesystem::path& path, std::size_t part = 0, std::span<const std::string> settings = {});

/// Removes words such as `data.root=/new/place` or `data.sets.suv.root=suv` from a command line, and returns them.
/// @throws UsageError for a setting of data that does not say where they lie
std::vector<std::string> take_data_path_overrides(std::vector<std::string>& words);

/// A case and the split to which it belongs.
using JudgedCase = std::pair<CaseSource, std::string>;

/// What words name: `train`, `val`, `test`, `all`, ids of the run's cases, or mesh files. No words: test, or val where there is no test.
/// @throws UsageError for a word that is none of these; IoError if it may be one and the run's data are not found
std::vector<JudgedCase> judged_cases(const JudgedModel& model, std::span<const std::string> words);

/// Called on the first rank after each case, with the whole mesh (of a grid its points and cells alone) and fields of all its rows in order, (N, channels).
using SeeCase = std::function<void(std::size_t index, const Mesh& whole, const at::Tensor& predicted, const at::Tensor& truth)>;

/// Predicts each case and compares with its own fields: all points, over all ranks. The result is the same on every rank, to rounding the same on any number
/// of them. `folder` is where parts of meshes lie for a moment (see `hand_out_mesh`). Collective.
/// @throws InvalidInput naming the case, for a missing field or values that are not finite.
Evaluation evaluate(JudgedModel& model, std::span<const JudgedCase> cases, const std::filesystem::path& folder, World& world, const SeeCase& see = {});

}  // namespace meshard
