// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/devices/device_load.h"
#include "apps/learning/cases/field_scaling.h"
#include "apps/learning/cases/input_ranges.h"
#include "apps/learning/cases/surface_orientation.h"
#include "apps/learning/checkpoints/run_description.h"
#include "apps/learning/evaluation/feature_distance.h"
#include "apps/learning/evaluation/shape_coefficients.h"
#include "apps/learning/grids/grid_case.h"
#include "apps/learning/settings/grid_settings.h"
#include "apps/learning/settings/training_config.h"
#include "models/diffusion/edm_sampling.h"
#include "models/layers/memory_mode.h"
#include "models/layers/normalizer.h"
#include "models/registry/coefficient_head.h"
#include "models/registry/registry.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// What a user says of a model's data where its file does not say it.
struct DataOptions {
    /// Inputs that are the same for all points: fx of Transolver and FLARE, global_embedding of GeoTransolver, the last
    /// features of MeshGraphNet's nodes.
    std::vector<double> constants;
    std::optional<double> time;  ///< of the case, for models that take it as an input
    std::int64_t num_neighbors =
        0;  ///< nearest points that send messages to each in a model on graphs; 0: by file or model
    std::string center = "none";  ///< as FrameConfig's
    std::string length = "none";
    /// `name` or `name:channels`, separated by commas. Empty: the fields of the statistics beside the file, or
    /// `prediction`.
    std::string fields;
    bool on_cells = true;
};

/// Counts the parts of the cases on which a run learnt: 2 where they have surface and volume, else 1, also for a file
/// that is no checkpoint of meshard.
/// @throws IoError if a folder holds no finished run
std::size_t num_trained_parts(const std::filesystem::path& run_or_checkpoint);

/// Tells by a file's type to which part of a two-part run its mesh belongs: 1, the volume, for .vtu and .pvtu, else 0.
std::size_t part_of_file(const std::filesystem::path& mesh);

/// Returns the run in whose `checkpoints` a file lies; empty for none.
std::filesystem::path run_of(const std::filesystem::path& checkpoint);

/// A trained model with all that a prediction needs to know of its data.
class Predictor {
public:
    /// Loads `run_dir/checkpoints/best`, or `last` where there is no better one.
    /// @param part   of a run with surface (0) and volume (1): which of them is predicted on
    /// @throws IoError if the folder holds no finished run.
    static Predictor from_run(const std::filesystem::path& run_dir, std::size_t part = 0);

    /// Loads a file of weights: .mdlus, .pt, .safetensors. One of meshard's own says what its data are, and in a run's
    /// folder is that of `from_run` by another checkpoint. For another, the options say it, and the statistics of the
    /// fields come from `global_stats.json` beside it ("mean" and "std_dev" or "std", by field); without statistics the
    /// fields stay as the model gives them. A file that does not say its architecture has it in a .json of its name:
    /// {"model_class": ..., "model": {arguments}}.
    /// @throws IoError as `read_checkpoint`; InvalidInput if architecture, statistics and options do not fit together.
    static Predictor from_file(const std::filesystem::path& file, const DataOptions& options, std::size_t part = 0);

    const DataConfig& data() const { return data_; }
    const std::vector<std::int64_t>& channels() const { return channels_; }  ///< of each field
    bool needs_body() const { return model_.forward_parts != nullptr; }      ///< `PointInputs::body` must be there
    /// Says how the other part of a case is read, whose points are `PointInputs::other_part`, for a model that needs
    /// both and predicts on one; else null.
    const DataConfig* other_part() const { return other_part_ ? &*other_part_ : nullptr; }
    const std::filesystem::path& checkpoint() const { return checkpoint_; }
    const Model& model() const { return model_; }
    const Normalizer& normalizer() const { return normalizer_; }  ///< of the channels that the model predicts
    const std::optional<DescribedHead>& head() const { return head_; }
    /// Returns the constants that hold for every case; empty where cases name their own.
    const std::vector<double>& constants() const { return constants_; }
    /// Returns the time that holds for every case; nothing where cases name their own.
    const std::optional<double>& time() const { return time_; }
    /// Returns the mean of each channel over the training cases, in physical units of a case with this scaling.
    at::Tensor training_mean(const FieldScaling& scaling) const
    {
        return scaling.on(training_mean_.device()).physical(training_mean_);
    }
    /// Returns the deviations of the same, (channels), in the same units.
    at::Tensor training_deviation(const FieldScaling& scaling) const
    {
        return scaling.scale.defined() ? normalizer_.std * scaling.scale.to(normalizer_.std.device()) : normalizer_.std;
    }
    /// Returns the mean over the training cases of each number that a point is told (`StateChannels`), on the host;
    /// undefined unless these are steps of simulations.
    const at::Tensor& told_mean() const { return told_mean_; }
    /// Returns the settings of the run's configuration; without area for a file of weights.
    const ForceSettings& forces() const { return forces_; }
    /// Returns how surfaces and walls of the training cases face.
    const TrainedFacing& facing() const { return facing_; }
    /// Replaces the run's own setting.
    void set_orient(Orient orient) { data_.turns_outward = orient == Orient::Outward; }
    /// Returns the ranges of the training cases; empty for files that lack them.
    const InputRanges& ranges() const { return ranges_; }
    /// Predicts drag and lift by the shape alone, from the training cases; nothing for a checkpoint that does not have
    /// them.
    const std::optional<ShapeCoefficients>& shape_coefficients() const { return shape_coefficients_; }
    /// Tells how far a case lies from the training cases as the model sees them; nothing for a checkpoint that does not
    /// have them. Collective.
    std::optional<FeatureDistance::Distance> feature_distance(const PointInputs& inputs) const;
    /// Returns the errors of drag and lift in the run's validation cases; nothing where it had none.
    const std::optional<HeldOutErrors>& held_out_errors() const { return held_out_errors_; }
    const std::vector<std::string>& notes() const { return notes_; }  ///< what a user should know, a sentence each
    /// Returns the least mean rel_l2 of the fields over the run's validation cases; nothing where it had none.
    const std::optional<double>& validation_error() const { return validation_error_; }

    /// Returns how many rows of a grid are best left on one rank, for a model of grids.
    std::int64_t rows_together() const { return meshard::rows_together({model_.class_name, model_.arguments}); }

    /// Returns how many of these ranks cut each direction of a grid, as in the run's training if they are as many
    /// (`cut_of_grid`).
    std::vector<std::int64_t> cut_of_grid(const std::vector<std::int64_t>& extents, std::int64_t num_ranks) const
    {
        return meshard::cut_of_grid(domain_, {model_.class_name, model_.arguments}, extents, num_ranks);
    }

    /// Sets what is kept of each point from layer to layer. @throws InvalidInput for a mode that the model does not
    /// have
    void set_memory(MemoryMode mode)
    {
        meshard::set_memory(*model_.module, mode);
        memory_ = mode;
    }

    /// Returns the mode for so many points of this rank, if they may take that much memory.
    MemoryMode memory_for(std::int64_t num_points, std::int64_t bytes) const
    {
        return inference_memory(*model_.module, num_points, bytes);
    }

    /// Brings the model to a device, where the inputs of `predict` must lie.
    void move_to(const at::Device& device);

    /// Whether both are the same model with the same weights, as runs of one seed are.
    bool has_weights_of(const Predictor& other) const;

    /// Whether predictions are samples that the model draws from noise.
    bool draws_samples() const { return model_.sampling != nullptr; }

    /// Sets for such a model the levels of noise that a sample goes through, and from which noise the next one begins.
    void set_noise_levels(std::int64_t count) { model_.sampling->num_steps = count; }
    void seed_sample(std::uint64_t seed)
    {
        if (model_.sampling) model_.sampling->seed = seed;
    }

    /// Whether the model has dropout, so that its draws differ.
    bool has_dropout() const;

    /// Lets the model drop out as in training from now on. The next prediction is a function of its inputs, of `seed`
    /// and of how the rows are cut: numbers are drawn in the order in which the ranks hold the rows.
    void draw_dropout(std::uint64_t seed);

    /// Names the coefficients, cd and cl, that a head of the model predicts beside the fields; mostly none.
    std::vector<std::string> names_of_head() const { return head_ ? head_->names : std::vector<std::string>(); }

    /// Predicts the fields in physical units, (1, N, channels), sharded as the inputs are; of a simulation in time what
    /// was learnt of the next state (`StateChannels`).
    /// @param scaling   what they are measured by in this case (`field_scaling` of `data()` and `channels()`)
    /// @param of_head   if given, receives the head's coefficients. Collective then
    /// @throws DeviceMemoryError if it does not fit into the memory of the inputs' device
    at::Tensor predict(const PointInputs& inputs, const FieldScaling& scaling, std::vector<double>* of_head = nullptr);

    /// The same with derivatives by the inputs, not by the weights. The inputs have the model's type (`set_type`).
    at::Tensor predict_differentiably(const PointInputs& inputs, const FieldScaling& scaling);

    /// Converts the weights to single or double precision.
    void set_type(at::ScalarType type);

private:
    Predictor() = default;
    void load_of_run(const std::filesystem::path& checkpoint, const std::filesystem::path& run_dir, std::size_t part);
    /// @return the seed of the run, where the checkpoint says it
    std::optional<std::int64_t> load_own(const std::filesystem::path& checkpoint, std::size_t part);
    void name_fields(const DataOptions& options, std::int64_t num_channels);
    DeviceLoad load_of(const PointInputs& inputs) const;
    at::Tensor predicted(const PointInputs& told, const FieldScaling& scaling, std::vector<double>* of_head);

    std::filesystem::path checkpoint_;
    DataConfig data_;
    std::vector<std::int64_t> domain_;  // `parallel.domain` of the run; empty for a file of weights
    std::optional<DataConfig> other_part_;
    std::vector<std::int64_t> channels_;
    std::vector<double> constants_;
    std::optional<double> time_;
    std::vector<std::string> notes_;
    std::optional<double> validation_error_;
    ForceSettings forces_;
    InputRanges ranges_;
    TrainedFacing facing_;
    std::optional<ShapeCoefficients> shape_coefficients_;
    std::optional<HeldOutErrors> held_out_errors_;
    std::optional<FeatureDistance> feature_distance_;
    Normalizer normalizer_;
    at::Tensor training_mean_, told_mean_;
    std::optional<Normalizer> of_inputs_;  // of steps of runs
    Model model_;
    MemoryMode memory_ = MemoryMode::Stored;
    std::optional<DescribedHead> head_;
    std::function<FieldsAndCoefficients(const PointInputs&)> forward_with_head_;  // where there is one
};

}  // namespace meshard
