// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/input_ranges.h"
#include "apps/learning/cases/surface_orientation.h"
#include "apps/learning/evaluation/held_out_errors.h"
#include "apps/learning/evaluation/shape_coefficients.h"
#include "apps/learning/settings/training_config.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// A field that a model predicts, with the number of its channels.
struct DescribedField : FieldConfig {
    std::int64_t num_channels = 0;
};

/// The head of a model for drag and lift (models/registry/coefficient_head.h).
struct DescribedHead {
    std::vector<std::string> names;
    std::int64_t num_features = 0;
    std::vector<double> means, deviations;  ///< statistics of the coefficients over the training cases
};

/// One part of the cases that a model was trained on: their surfaces, their volumes, or all that they have.
struct DescribedPart {
    DataConfig data;  ///< what a prediction must know of it; without fields in files of early versions
    InputRanges ranges;
    TrainedFacing facing;
};

/// What a plateau of the validation error has made of the learning rate (`lowers_rate`).
struct PlateauState {
    double factor = 1;  ///< multiplies the learning rate
    double best = std::numeric_limits<double>::infinity();
    std::int64_t bad_checks = 0;  ///< since the last better one, or the last change
};

/// What decides whether validations without a better error end the run (`ends_run`).
struct EarlyStopState {
    double best = std::numeric_limits<double>::infinity();
    std::int64_t bad_checks = 0;
};

struct LossScaleState {
    double scale = 0;
    std::int64_t num_good_steps = 0;
};

/// Where a run stands between two steps.
struct RunProgress {
    std::int64_t num_steps = 0;     ///< that are done
    double epoch_loss_sum = 0;      ///< the current epoch's losses of steps, each times its cases
    std::int64_t num_left_out = 0;  ///< cases of the current epoch whose steps were left out
    std::int64_t num_skipped = 0;   ///< steps left out in a row up to now
    double best_error = std::numeric_limits<double>::infinity();
    PlateauState plateau;
    EarlyStopState early_stop;
    std::vector<double> rank_shares = {};  ///< of all ranks (`RankBalance`); empty if they are equal
};

/// What a checkpoint says besides its tensors: the model, the data that it was trained on, and what a run goes on from.
struct RunDescription {
    std::string model_class;
    nlohmann::json model_arguments;
    std::vector<DescribedPart> parts = std::vector<DescribedPart>(1);  ///< surface and volume, or the only one
    std::vector<DescribedField> fields;               ///< fields of all parts, one part after the other
    std::optional<std::vector<float>> training_mean;  ///< mean of each channel, where it is not the normaliser's
    std::optional<DescribedHead> head;
    std::optional<ShapeCoefficients> shape_coefficients;
    std::optional<HeldOutErrors> held_out_errors;  ///< errors in the epoch's validation
    nlohmann::json validation_errors;  ///< {field: {rel_l2: ...}} of the epoch; null where there was no validation

    std::optional<std::int64_t> seed;
    /// Whether what a step draws depends on seed, step and data group alone, not on earlier draws.
    bool has_step_draws = false;
    std::string optimizer = "adamw";
    std::optional<std::vector<std::string>> group_optimizers;  ///< `NAME: OPTIMISER` of each group that has its own
    std::optional<std::vector<std::string>> group_matches;     ///< `NAME: PATTERN, ...` of each of these groups
    std::optional<std::vector<std::string>> train_cases, val_cases;  ///< ids
    std::optional<std::string> loss;  ///< what the mean loss of an epoch depends on, besides the cases
    std::vector<double> shares_of_sets;
    std::optional<std::int64_t> steps_per_epoch, cases_per_step;
    std::optional<std::int64_t> num_steps;  ///< for which the learning rate is planned
    RunProgress progress;
    std::optional<std::int64_t> optimizer_step;
    std::optional<LossScaleState> loss_scale;
    std::optional<std::int64_t> average_updates;
};

/// The description as checkpoints keep it.
nlohmann::json to_json(const RunDescription& description);

/// Reads what this or an earlier version wrote.
/// @throws IoError naming `file` and the key for a value that is missing or wrong
RunDescription run_description(const nlohmann::json& json, const std::filesystem::path& file);

/// Refuses to let a run go on whose seed, data, cases or steps differ from those of its checkpoint.
/// @param before   the checkpoint's description  @param now   that of the settings
/// @throws InvalidInput saying what differs
void require_same_run(const RunDescription& before, const RunDescription& now);

}  // namespace meshard
