// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/evaluation/case_sums.h"
#include "apps/learning/evaluation/error_region.h"
#include "apps/learning/evaluation/field_metrics.h"
#include "apps/learning/evaluation/force_metrics.h"
#include "apps/learning/evaluation/rolled_out_run.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Errors of a model's prediction of one case whose true fields are known.
struct EvaluatedCase {
    CaseSource source = {};
    std::string split = {};  ///< train, val or test of the run; `given` for files that the run does not know
    std::int64_t num_points = 0;
    Metrics metrics = {};                     ///< errors of all fields, e.g. `pressure.rel_l2`
    std::optional<Coefficients> forces = {};  ///< integrals of the true and the predicted fields
    DragAndLift of_table = {};
    DragAndLift of_head = {};                            ///< by a head of the model beside its fields
    DragAndLift of_shape = {};                           ///< by the shape alone (shape_coefficients.h)
    std::vector<std::vector<double>> drag_along_x = {};  ///< true and predicted, from `low_x` to `high_x`
    double low_x = 0, high_x = 0;
    /// Histograms by field (error_histogram.h).
    std::vector<std::pair<std::string, std::vector<double>>> error_histograms = {};
    /// Regions by field; none for grids.
    std::vector<std::pair<std::string, ErrorRegion>> error_regions = {};
    bool on_cells = true;                         ///< whether `error_regions` count cells, else points
    std::vector<std::string> beyond = {};         ///< a sentence for each input outside the training cases' ranges
    bool has_ranges = false;                      ///< whether the model has these ranges
    std::optional<double> isolation = {};         ///< as in `ShapeCoefficients::Values`
    std::optional<RolledOutRun> rolled_out = {};  ///< of a simulation in time, whose metrics are `roll_out_metrics`
    std::optional<double> seconds = {};           ///< time of the prediction, without reading; not measured in `train`
};

/// Sums up a roll-out for each field: `rel_l2` (mean over its states), `rel_l2_one_step`, `rel_l2_end` (of the last
/// state), the first and the last of persistence and of the training mean (guess), and the drifts at the end.
Metrics roll_out_metrics(const RolledOutRun& run);

/// The numbers of `evaluate` and of the report.
struct Evaluation {
    std::string model = {};  ///< path of its checkpoint
    std::vector<EvaluatedCase> cases = {};
    DragAndLift guess = {};  ///< means of the table over the training cases
    /// Half the widths of the intervals of the coefficients by the fields (held_out_errors.h).
    DragAndLift interval = {};
    std::vector<std::string> notes = {};  ///< sentences for the reader
};

/// Mean of the fields' rel_l2, by which cases are ordered; fields without a finite rel_l2 are left out.
double mean_rel_l2(const EvaluatedCase& one);

/// The worst case of a split, and the field that makes it so.
struct WorstCase {
    const EvaluatedCase* one = nullptr;
    std::string field;        ///< the one whose rel_l2 is the largest multiple of its median over the split
    double times_median = 0;  ///< that multiple
    std::string text() const;
};

/// The case of the largest `mean_rel_l2`; nothing for a split of fewer than two cases.
std::optional<WorstCase> worst_case(const Evaluation& evaluation, const std::string& split);

/// Sets the coefficients of a case from the sums of its fields, and those of the table. Returns the free stream; where
/// there are no coefficients, returns nothing and says why in `why`.
std::optional<FlowReference> add_forces(EvaluatedCase& one, const CaseSums& sums, const JudgedFields& layout,
                                        const ForceSettings& settings, std::string& why);

/// Sets the coefficients `names` (cd, cl) of a case as the model's head predicts them, and those of the table.
void add_of_head(EvaluatedCase& one, const std::vector<std::string>& names, std::span<const double> values,
                 const ForceSettings& settings);

/// A predicted coefficient of the cases of a split, and its truth. Names: `cd`, `cl` (integrals of the true fields),
/// `cd_table`, `cl_table` (the solver's), `cd_head`, `cl_head` (what the model's head predicts, against the solver's,
/// or where the table has none the integral of the true fields), `cd_shape`, `cl_shape` (predicted from the shape
/// alone, against the same truth), and `cs`, `cmx`, `cmy`, `cmz` as cd, where they are known.
struct CoefficientSeries {
    std::string name;
    std::vector<double> predicted = {}, truth = {};
    std::vector<std::string> ids = {};
    std::optional<double> guess = {};
    std::optional<double> interval = {};  ///< of `cd_table`, `cl_table`, or without those of `cd`, `cl`

    /// The share of cases whose truth lies within the interval around the prediction.
    double coverage() const;
};

/// Splits that have cases, in the order train, val, test, given.
std::vector<std::string> splits_of(const Evaluation& evaluation);
std::vector<CoefficientSeries> coefficients_of(const Evaluation& evaluation, const std::string& split);

/// All numbers: {format, version, model, notes, splits: {test: {num_cases, fields: {pressure: {rel_l2: {mean, median,
/// std, max, worst}, ...}}, cd: {...}, error_histograms: {pressure: {low: -1, high: 1, below, counts, above}}, worst:
/// {id, why, field, times_median, beyond}, sets: {NAME: {num_cases, fields, cd, ...}} where cases are of several data
/// sets}}, cases: [{id, split, num_points, fields, error_regions: {pressure: {bounds, error_share, row_share}}, cd, cl,
/// ...}]}. Numbers that are not defined are null. Of simulations in time a case is a run, which has `rollout`: {times,
/// rel_l2: {pressure: [of each state]}, ...} (`kErrorKinds`), and a split has `roll_out_json` as `rollout`.
nlohmann::ordered_json to_json(const Evaluation& evaluation);

/// All numbers of a run with one part, or with two (surface, then volume): those of the surface, all of the volume
/// under `volume`, and the fields of the volume also among those of the splits.
nlohmann::ordered_json joined_json(std::span<const Evaluation> parts);

/// Returns a table with a line for each case, the worst first (by the mean of its fields' rel_l2): id, split,
/// num_points, every metric, coefficients and their errors, seconds.
std::string to_csv(const Evaluation& evaluation);

/// Returns the tables of several runs in one, whose first column is the run's name; a number that a run has not is
/// empty.
std::string to_csv(std::span<const std::pair<std::string, const Evaluation*>> runs);

/// Returns the roll-outs of the cases of a split, or of all without one; none unless these are simulations in time.
std::vector<RolledOutRun> roll_outs_of(const Evaluation& evaluation, const std::string& split = {});

/// Returns short tables for a person.
std::string to_text(const Evaluation& evaluation);

/// Writes evaluation.json, cases.csv and, of simulations in time, rollout.csv (`roll_out_csv`), each in one step.
/// @throws IoError
void write_evaluation(const Evaluation& evaluation, const std::filesystem::path& folder);

/// A bound such as `test.cd.mae>0.01` or `val.pressure.rel_l2.max>=0.2`: it is broken if the comparison holds.
struct Threshold {
    std::string text;
    std::string path;
    std::string comparison;  ///< > >= < <=
    double bound = 0;

    /// @throws UsageError for another form.
    explicit Threshold(const std::string& text);

    /// @throws UsageError if there is no such number; the message lists what there is instead.
    double value_in(const nlohmann::ordered_json& evaluation) const;
    bool is_broken_by(double value) const;
};

/// Prints the broken bounds to stderr.
/// @param verb, run   command and run that messages name; `run` may be empty
/// @return whether any bound is broken
/// @throws UsageError as `Threshold::value_in`
bool break_thresholds(std::span<const Threshold> thresholds, const nlohmann::ordered_json& evaluation,
                      const std::string& verb, const std::string& run = "");

}  // namespace meshard
