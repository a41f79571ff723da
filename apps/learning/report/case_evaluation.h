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

/// A trained model and the cases of its run.
struct JudgedModel {
    Predictor predictor;
    ForceSettings forces;
    CaseLists cases;                 ///< empty where the run's data are not found; of simulations a case is a run
    std::vector<std::string> notes;  ///< what is missing, a sentence each
    std::string why_no_cases = {};   ///< says which data of the run are missing where; empty if they are found
    std::filesystem::path run;       ///< folder of the run; empty for a checkpoint outside of one
    std::vector<std::filesystem::path> case_tables = {};
};

/// Loads a model from the folder of a run (its best checkpoint) or from a checkpoint; one in RUN/checkpoints comes with
/// the cases of that run.
/// @param part       the part to judge: of a run with surface and volume 0 or 1
/// @param settings   where the run's data lie now (`take_data_path_overrides`)
/// @throws as `Predictor::from_run` and `Predictor::from_file`
JudgedModel judged_model(const std::filesystem::path& path, std::size_t part = 0,
                         std::span<const std::string> settings = {});

/// Removes words such as `data.root=/new/place`, `data.sets.suv.root=suv` or `data.forces.length=2.8` from a command
/// line, and returns them.
/// @throws UsageError for another setting of `data`
std::vector<std::string> take_data_path_overrides(std::vector<std::string>& words);

/// A case and the split to which it belongs.
using JudgedCase = std::pair<CaseSource, std::string>;

/// Finds the cases that words name: `train`, `val`, `test`, `all`, ids of the run's cases, or mesh files (series of
/// simulations in time). Without words these are test, or val where there is no test.
/// @throws UsageError for a word that is none of these; IoError if it may be one and the run's data are not found
std::vector<JudgedCase> judged_cases(const JudgedModel& model, std::span<const std::string> words);

/// A predicted case on the first rank, or a state of a run.
struct SeenCase {
    std::size_t index = 0;        ///< of the case
    const Mesh& whole;            ///< for a grid only points and cells; of a run as the true state is
    at::Tensor predicted, truth;  ///< fields of all its rows in order, (N, channels)
    std::size_t state = 0;        ///< of a run, counted from its first predicted one
};

/// Function called on the first rank after each case, or each state of a run.
using SeeCase = std::function<void(const SeenCase&)>;

/// Predicts all points of each case over all ranks and compares them with the case's own fields. The result is the same
/// on every rank, and up to rounding on any number of ranks. Parts of meshes lie in `folder` for a moment (see
/// `hand_out_mesh`). Of simulations in time each run is predicted state by state from its first states to its end
/// (`RolledOutRun`). Collective.
/// @throws InvalidInput naming the case, for a missing field or values that are not finite.
Evaluation evaluate(JudgedModel& model, std::span<const JudgedCase> cases, const std::filesystem::path& folder,
                    World& world, const SeeCase& see = {});

}  // namespace meshard
