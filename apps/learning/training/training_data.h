// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_body.h"
#include "apps/learning/cases/categories.h"
#include "apps/learning/cases/field_scaling.h"
#include "apps/learning/cases/input_ranges.h"
#include "apps/learning/cases/state_channels.h"
#include "apps/learning/evaluation/data_check.h"
#include "apps/learning/settings/training_log.h"
#include "apps/learning/steps/run_cases.h"
#include "apps/learning/steps/step_order.h"
#include "apps/learning/training/coefficient_targets.h"
#include "apps/learning/training/training.h"
#include "apps/learning/training/validation.h"
#include "models/layers/field_loss.h"
#include "models/layers/normalizer.h"

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// The ranks of a run: data groups, which take different cases, of ranks that share a case.
struct RunRanks {
    RunRanks(const TrainingRunConfig& config, World& world);

    const RankGroup& all() const { return mesh->all(); }
    const RankGroup& across_groups() const { return mesh->group(mesh->axis("data")); }
    at::Device device() const { return world.device(); }
    bool is_first() const { return world.rank() == 0; }

    World& world;
    std::shared_ptr<const DeviceMesh> mesh, domain;
    std::shared_ptr<const DeviceMesh> blocks;  ///< the domain's ranks, by the directions in which they cut a grid
    std::int64_t num_groups, group;
};

/// One part of the cases, surface or volume, or the only one that they have.
struct CasePart {
    DataConfig data;
    CaseLists cases;
    std::optional<RunCases> stored;
    std::map<std::string, FieldScaling> scalings;  // by case id
    Normalizer normalizer;                         // of the fields without their units
    at::Tensor training_mean;  // of the same; the normaliser's, unless that leaves vectors their mean
    std::map<std::string, ChannelStatistics> of_sets;  // by data set, for messages alone: models know one scale
    InputRanges ranges;
    DataFindings findings;
    FieldLoss loss;
    std::optional<Validation> validation;
};

/// All parts of a case.
using Example = std::vector<CaseTensors>;

/// The cases of a run: read, checked and scaled. They are what a model learns from and is judged by.
class TrainingData {
public:
    /// Reads the cases and checks them. Collective. @throws as `prepare_cases`, and InvalidInput for cases that do not
    /// fit the settings
    TrainingData(const TrainingRunConfig& config, const CaseLists& cases, const TrainingStart& start,
                 const RunRanks& ranks, TrainingLog& log, const volatile std::sig_atomic_t& stop_requested);

    /// Keeps the cases in memory where there is room, which is known when the model has taken its own. Collective.
    void keep(TrainingLog& log);

    std::deque<CasePart>& parts() { return parts_; }
    const std::deque<CasePart>& parts() const { return parts_; }
    /// The first part; the others have as many cases, in the same order.
    const RunCases& stored() const { return *parts_.front().stored; }
    const CaseSet& training_cases() const { return stored().train; }
    const CaseLists& cases() const { return cases_; }
    const StepOrder& order() const { return order_; }
    std::int64_t num_in_epoch() const { return num_in_epoch_; }  ///< training cases
    std::int64_t steps_per_epoch() const { return order_.steps_per_epoch(); }
    const std::optional<CoefficientTargets>& coefficient_targets() const { return coefficient_targets_; }
    const std::optional<ShapeCoefficients>& shape_coefficients() const { return shape_coefficients_; }
    /// Where the states stand among the inputs, if cases are steps of runs.
    const std::optional<StateChannels>& states() const { return states_; }
    /// Where the categories stand among the inputs of the first part.
    CategoryChannels categories() const
    {
        return category_channels(parts_.front().data, parts_.front().stored->train.channels());
    }
    /// Returns the frame of a step of a run, which is that of the whole run; any frame if points stand still.
    CaseFrame frame_of(const CaseSource& source);
    /// Returns how many steps a training step goes through from this case on, in an epoch from 1: steps of its run.
    std::int64_t num_unrolled(std::int64_t index, std::int64_t epoch) const;

    std::vector<FieldConfig> fields() const;  ///< of all parts, in their order
    Normalizer normalizer() const;            ///< of the channels of all parts, one part after the other
    at::Tensor training_mean() const;
    /// Replaces the scales by those of a checkpoint.
    void set_scales(const Normalizer& normalizer, const at::Tensor& training_mean);
    void set_input_scales(const Normalizer& of_inputs) { parts_.front().stored->of_inputs = of_inputs; }

    /// Deals the rows of all cases anew to the ranks that share them. No sequence of cases may be under way.
    void share_out(const Shares& shares);

    bool is_kept() const;                                   ///< whether all cases stay in memory
    std::int64_t points_in_step(std::int64_t index) const;  ///< points that a step takes of a training case
    bool needs_body() const;                                ///< whether the model takes the body of a case
    /// The body of a case, for models that need one. @param id   of the case
    std::shared_ptr<const CaseBody> body_of(const std::string& id);

private:
    void prepare_part(std::size_t index, const TrainingStart& start, TrainingLog& log,
                      const volatile std::sig_atomic_t& stop_requested);
    void find_categories(CasePart& part) const;
    void check_measures(std::size_t index) const;
    void check_data(const TrainingStart& start, std::size_t index);
    void judge_by_shape(std::span<const CaseFigures> figures, const JudgedFields& layout);
    void check_augmentation() const;
    void make_losses();

    const TrainingRunConfig& config_;
    const RunRanks& ranks_;
    CaseLists cases_;
    std::int64_t num_in_epoch_;
    StepOrder order_;
    std::deque<CasePart> parts_;  // a deque, because cases that are read ahead must not move
    CaseBodies bodies_;
    std::optional<CoefficientTargets> coefficient_targets_;
    std::optional<ShapeCoefficients> shape_coefficients_;  // of the first part's training cases
    std::optional<StateChannels> states_;
    std::map<const Series*, CaseFrame> frames_;  // of runs whose points move
};

/// Cases of one split in the order of their turns, all parts of each.
class ExampleSequence {
public:
    /// @param turns   as of `CaseSequence`
    ExampleSequence(TrainingData& data, CaseSet RunCases::* split,
                    const std::function<std::optional<CaseTurn>()>& turns);

    /// The case whose turn it is, with its body where the model takes one. Collective as `CaseSequence::next`.
    Example next();

    double seconds_waited() const;  ///< for cases that were not read yet

private:
    TrainingData& data_;
    bool has_body_;
    std::deque<CaseSequence> parts_;
};

/// Turns of one case alone.
std::function<std::optional<CaseTurn>()> turn_of(std::int64_t index);

}  // namespace meshard
