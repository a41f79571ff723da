// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/evaluation/case_sums.h"
#include "apps/learning/evaluation/evaluation.h"
#include "apps/learning/evaluation/shape_coefficients.h"
#include "sharding/ranks/device_mesh.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// Judges predictions of validation and test cases as `evaluate` does: all metrics of the fields, drag and lift, over
/// all points and ranks.
class Validation {
public:
    /// @param cases   give the tables' coefficients, whose mean over the training cases is the guess to compare with
    /// @param of_head   coefficients that a head of the model predicts (`CoefficientTargets`), besides those of the
    /// fields
    Validation(const DataConfig& data, std::vector<std::int64_t> channels, const ForceSettings& forces,
               const CaseLists& cases, std::vector<std::string> of_head = {});

    /// Judges one case of a list. Collective over `domain`, whose ranks hold the rows.
    /// @param shards   of the case: where areas are read from, kept for the next time while little memory is taken;
    /// empty: no areas, and no forces
    /// @param volumes   (rows), double, of this rank's rows in a case of solids; undefined: areas are read from the
    /// shards
    /// @param physical (1, N, channels), the prediction, as the example's target
    void add(std::size_t index, const CaseTensors& example, const std::filesystem::path& shards,
             const at::Tensor& volumes, const at::Tensor& physical, const at::Tensor& guess, const DeviceMesh& domain);

    /// Adds the head's coefficients of a case, in their order.
    void add_of_head(std::size_t index, const std::vector<double>& coefficients)
    {
        found_of_head_[index] = coefficients;
    }

    /// Forgets what is kept of the shards, after the ranks have other rows.
    void forget_geometries()
    {
        geometries_.clear();
        bytes_kept_ = 0;
    }

    /// Gives drag and lift by the shape alone, by case id, to be judged beside those of the fields.
    void compare_with(std::map<std::string, ShapeCoefficients::Values> by_shape) { by_shape_ = std::move(by_shape); }

    /// Evaluates the cases `sources`, whose numbers the data groups bring together, and forgets them. Collective over
    /// `data_groups`.
    Evaluation finish(const std::vector<CaseSource>& sources, const std::string& split, const RankGroup& data_groups);

private:
    at::Tensor geometry(const CaseTensors& example, const std::filesystem::path& shards, const DeviceMesh& domain);

    JudgedFields layout_;
    bool on_cells_;
    ForceSettings forces_;
    DragAndLift guess_;
    std::vector<std::string> of_head_;
    std::map<std::string, ShapeCoefficients::Values> by_shape_;
    std::map<std::size_t, std::vector<double>> found_of_head_;
    std::map<std::size_t, std::vector<double>> found_;  // by index, what this group's ranks have summed
    std::map<std::string, at::Tensor> geometries_;      // by the shards' folder
    std::int64_t bytes_kept_ = 0;
};

/// Writes an evaluation for metrics.jsonl: {"errors": {field: {metric: mean over cases}}, "forces": {"cd": {"mae",
/// ...}, ...}}; no forces where there are none; the same of each of several data sets below "sets".
nlohmann::ordered_json validation_json(const Evaluation& evaluation);

/// Says which case of a split of several is the worst, and why; else empty.
std::string worst_text(const Evaluation& evaluation);

/// Says `, Cd mae 0.0123`, against the solver's where the table has it, or nothing.
std::string drag_text(const Evaluation& evaluation);

}  // namespace meshard
