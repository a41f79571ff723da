// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// A number for each predicted state and field.
using ErrorsOfStates = std::vector<std::vector<double>>;

/// Errors of states that were predicted one from the other, from the first states of a run on.
struct RolledOutRun {
    std::string run;
    std::vector<std::string> fields = {};
    std::vector<double> times = {};  ///< of the predicted states
    /// Relative L2 errors of the prediction, of the first state, which a model must beat (persistence), and of the
    /// training cases' mean.
    ErrorsOfStates errors = {}, of_persistence = {}, of_mean = {};
    // Empty while a model trains:
    ErrorsOfStates of_one_step = {};  ///< relative L2 errors of the state predicted from the true one before it
    /// Relative differences of the predicted fields' means, and of the means of their squares, from the true ones.
    ErrorsOfStates integral_drift = {}, energy_drift = {};
};

/// A kind of errors, and its name in tables and JSON.
struct ErrorKind {
    const char* name;
    ErrorsOfStates RolledOutRun::* of;
};

inline constexpr std::array kErrorKinds{ErrorKind{"rel_l2", &RolledOutRun::errors},
                                        ErrorKind{"persistence", &RolledOutRun::of_persistence},
                                        ErrorKind{"mean", &RolledOutRun::of_mean},
                                        ErrorKind{"one_step", &RolledOutRun::of_one_step},
                                        ErrorKind{"integral", &RolledOutRun::integral_drift},
                                        ErrorKind{"energy", &RolledOutRun::energy_drift}};
inline constexpr std::size_t kNumTrainingKinds = 3;  ///< the first of them, which a model that trains is judged by

/// The relative L2 error of each field of a state; rows where the truth is NaN do not count (`data.mask`).
/// @param channels   of each field
std::vector<double> field_errors(const at::Tensor& state, const at::Tensor& truth,
                                 const std::vector<std::int64_t>& channels);

/// The drifts of each field of a state: of its integral, ||I - I'|| / ||I'|| for the mean I of its components and that
/// of the truth I'; and of its energy, (E - E') / E' for the mean of squares. Where the truth's is 0, they are NaN.
/// @param state, truth   (..., rows, channels)
/// @param weights   (..., rows, 1), double, of the means, which sum to 1, 0 where the truth is NaN
std::array<std::vector<double>, 2> field_drifts(const at::Tensor& state, const at::Tensor& truth,
                                                const at::Tensor& weights, const std::vector<std::int64_t>& channels);

/// The mean of a kind of errors over runs, states and fields, or one field. @param kind   e.g. `&RolledOutRun::errors`
double mean_error(std::span<const RolledOutRun> runs, ErrorsOfStates RolledOutRun::* kind,
                  std::optional<std::size_t> field = std::nullopt);

/// {"steps": of the longest run, "rel_l2": {field: mean over states and runs}, "persistence": {...}, "mean": {...}}
nlohmann::ordered_json roll_out_json(std::span<const RolledOutRun> runs);

/// The error by which a run of training chooses its best epoch, of a validation's line of metrics.jsonl: the mean over
/// the fields of the roll-outs' errors, or of rel_l2. NaN if one is not a number.
double error_of_validation(const nlohmann::ordered_json& line);

/// A table with a line a run, state and field: run, step, time, field, and the kinds of errors that the runs have.
std::string roll_out_csv(std::span<const RolledOutRun> runs);

}  // namespace meshard
