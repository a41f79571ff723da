// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/force_settings.h"
#include "apps/learning/settings/settings.h"
#include "models/layers/coordinate_encoding_options.h"
#include "models/layers/field_loss_options.h"
#include "models/layers/memory_mode.h"
#include "models/layers/precision.h"
#include "models/registry/registry.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// A field to be predicted.
struct FieldConfig {
    std::string name;  ///< in the metrics and in predictions
    std::string from;  ///< array of the training cases
    std::string kind;  ///< what its numbers mean; may be empty
};

/// Whether its kind says that its components are those of a vector.
bool is_vector(const FieldConfig& field);

/// How points become numbers between about -1 and 1: (x - center) / length.
struct FrameConfig {
    std::string center;  ///< `bounds`, `none`, or a place `x,y,z`
    std::string length;  ///< `bounds`, `none`, a number, three of them `a,b,c`, or a column of the case table
    std::array<double, 3> up{0, 0, 1};
    std::string ground = "bounds";  ///< along `up`: `bounds`, the lowest corner of the case's box, or a number in the files' unit
};

/// Which cases train, and which only measure. Either a column of the case table, or a share or a list of cases a part, or lists of a file.
struct SplitConfig {
    std::string column = {};
    std::map<std::string, double> shares = {};                   ///< by part: train, val, test
    std::map<std::string, std::vector<std::string>> lists = {};  ///< of ids; where there is a manifest, of names of its lists
    std::string manifest = {};                                   ///< file below the root (apps/learning/cases/split_manifest.h); empty for none
    std::string name = {};                                       ///< which split of the manifest; may be empty
};

/// One of several sets of cases that a run trains on together.
struct DataSetConfig {
    std::string name;                      ///< begins the ids of its cases, NAME:ID
    std::filesystem::path root;            ///< below `DataConfig::root`, unless it is absolute
    std::string files;                     ///< pattern below that; empty: that of the data
    std::vector<std::string> case_tables;  ///< below that; empty: those of the data
    std::optional<SplitConfig> split;      ///< of its own, where the data have none
    double share = 0;                      ///< of the cases that steps take; 0: as many as it has
};

/// Which points of a case a step takes.
enum class SamplingKind : std::uint8_t {
    Uniform,  ///< all have the same chance
    Areas,    ///< larger areas have a larger one
    Blocks    ///< the same chance, by stretches of what is stored, so that no more is read than is drawn
};

struct DataConfig {
    std::filesystem::path root;
    std::string files;                     ///< pattern below the root; `*` stands for any text
    bool in_volume = false;                ///< they are volumes
    std::vector<std::string> case_tables;  ///< .json or .csv below the root, with a * one a case; their columns are joined
    SplitConfig split;
    bool splits_all = true;           ///< whether `split` was given, and counts for every set
    std::vector<DataSetConfig> sets;  ///< in place of one set of cases; empty: there is one
    bool on_cells = true;
    bool is_grid = false;             ///< cases are image data, whose points or cells make up a regular grid
    std::vector<std::string> arrays;  ///< of grids: what the model is told of each of them, in place of `inputs`
    std::vector<FieldConfig> fields;
    std::vector<std::string> inputs{"points", "normals"};  ///< what the model is told of each point: points first
    std::string normals;                                   ///< array; computed from the polygons where a case has none
    bool turns_outward = false;                            ///< polygons of surfaces and walls that point inward are turned
    std::string wall;                                      ///< pattern below the root: the surfaces whose distance `sdf` is; empty where it is of patches
    std::vector<std::string> wall_patches;                 ///< blocks of the case's own file that are that surface
    std::string distances;                                 ///< array that is `sdf` in place of the distance to a surface; empty for none

    /// Whether `inputs` has it.
    bool has_input(std::string_view input) const;
    /// Whether an input is computed from the surface of a wall.
    bool needs_wall() const;
    std::vector<std::string> constants;  ///< columns of the case table that the model is told besides its points
    std::string time;                    ///< column of the case table with its time; empty for none
    FrameConfig frame;
    CoordinateEncodingOptions encoding;       ///< of the places, besides `inputs`
    bool nondimensional = false;              ///< fields are divided by what their kind is measured by in the case (apps/learning/cases/field_scaling.h)
    std::map<std::string, double> reference;  ///< of `data.reference`, single numbers; U_inf is a speed
    /// Of `data.reference`, those that columns of the case table say: one entry, or the three components of U_inf, each a column or a number.
    std::map<std::string, std::vector<std::string>> reference_columns;
    bool shares_deviation = false;  ///< components of a vector are divided by one deviation, and keep their mean
    std::int64_t num_sampled = 0;   ///< points of a case in a training step; 0: all
    SamplingKind sampling = SamplingKind::Uniform;
    bool has_measures = false;            ///< steps take areas or volumes of the points, too, which models are not told
    bool needs_all_points = false;        ///< the model finds the neighbours of a surface's points among all of them (`ModelEntry::needs_surface_neighbors`)
    std::int64_t num_parts = 0;           ///< shards a case; 0: one a domain rank
    std::filesystem::path shards;         ///< folder that keeps them
    std::filesystem::path store;          ///< folder that keeps what training reads of them; empty: in that of the shards, or where that is read-only the run's
    std::optional<double> memory_budget;  ///< bytes a rank, for cases that stay in memory; none: a share of the machine's
};

/// A quantity of `data.reference` from its entries, numbers and names of columns; U_inf is the length of its vector.
/// @param column_value   of the case
double quantity_of(const std::string& name, const std::vector<std::string>& entries, const std::function<double(const std::string& column)>& column_value);

/// What a program that only predicts must know of the data, as checkpoints keep it: inputs, frame, constants, time and fields; and back.
nlohmann::json to_json(const DataConfig& data);
DataConfig data_config(const nlohmann::json& description);

/// Numbers that a model is told of each point: three of places and of normals, one of everything else.
std::int64_t num_point_channels(const DataConfig& data);

struct ModelConfig {
    std::string name;
    nlohmann::json arguments = nlohmann::json::object();  ///< that the configuration states; the others follow from the data or keep their defaults
};

/// Whether points are told an input (`data.inputs`) by three numbers, along x, y and z.
bool is_vector_input(std::string_view input);

/// First of the channels by which points are told an input (`data.inputs`), which must be among them.
std::int64_t first_channel(const DataConfig& data, std::string_view input);

/// All arguments of the model for cases with so many channels to predict, if that is known yet.
/// @param volume_out_dim   channels in the volume, of cases with two parts; 0: they have one
/// @throws InvalidInput where the configuration says otherwise.
nlohmann::json model_arguments(const ModelConfig& model, const DataConfig& data, std::optional<std::int64_t> out_dim, std::int64_t volume_out_dim = 0);

/// How training cases are varied: each epoch shows another reflection, rotation or shift of a case, of which nothing else changes.
struct AugmentationConfig {
    int mirror_axis = -1;  ///< 0 to 2: x, y or z change their sign, -1: none does
    double mirror_share = 0.5;
    bool mirrors_half_bodies = false;
    double rotation = 0;                            ///< largest angle about `data.forces.up`, in radians
    std::array<double, 3> translation{};            ///< largest shift along x, y, z, in units of `data.length`
    std::vector<std::string> free_stream = {};      ///< three of `data.constants` that turn with the scene; or none
    std::vector<std::string> sided_constants = {};  ///< those of them that change their sign with a reflection

    bool turns() const { return mirror_axis >= 0 || rotation > 0; }
    bool is_any() const { return turns() || translation != std::array<double, 3>{}; }
};

/// Parameters that are trained in another way than the rest.
struct ParameterGroupConfig {
    std::string name;
    std::vector<std::string> match;  ///< patterns of their names, of which one fits; `*` stands for any text
    std::optional<double> learning_rate;
    std::optional<double> weight_decay;
    std::string optimizer;  ///< as `TrainingConfig::optimizer`; empty: the same
};

struct TrainingConfig {
    std::int64_t num_epochs = 0;
    std::int64_t max_steps = 0;                                ///< 0: no limit
    FieldLossOptions loss;                                     ///< but for the fields' weights
    std::map<std::string, std::vector<double>> field_weights;  ///< of those that have one, in the loss: one number, or one a channel
    std::array<double, 2> part_weights{1, 1};                  ///< of surface and volume in the loss, of cases with both
    std::array<double, 2> coefficient_weights{};               ///< of drag and lift of a head beside the fields; 0: it has none
    std::int64_t coefficient_features = 32;                    ///< channels of which that head is told the means
    bool weighs_areas = false, weighs_volumes = false;         ///< points count in the loss by their areas, by their volumes
    std::int64_t accumulate = 1;                               ///< cases of a data group in a step
    double clip_norm = 0;                                      ///< largest norm of all gradients; 0: any
    std::int64_t max_skipped_steps = 0;                        ///< in a row, that are left out because they are not finite
    double average_decay = 0;                                  ///< of the weights' running mean; 0: none
    std::string optimizer = "adamw";                           ///< adamw, lion, muon
    double learning_rate = 0;
    double weight_decay = 0;
    std::optional<std::array<double, 2>> betas;  ///< unless said those of the optimiser
    double momentum = 0.95;                      ///< of Muon
    bool muon_matches_adamw = true;              ///< its steps have the size of AdamW's
    bool decay_vectors = true;                   ///< weights of parameters with one dimension decay, too
    std::vector<ParameterGroupConfig> parameter_groups;
    std::string scheduler;  ///< constant, cosine, linear, polynomial, step, exponential, one_cycle, plateau
    std::int64_t warmup_steps = 0;
    double min_learning_rate = 0;
    double power = 1;                    ///< of polynomial
    std::int64_t step_epochs = 100;      ///< of step
    double gamma = 0.1;                  ///< of step, exponential and plateau
    std::int64_t plateau_patience = 10;  ///< in validations
    double threshold = 1e-4;             ///< of plateau, relative
    std::int64_t stop_patience = 0;      ///< in validations; 0: the run goes on to its end
    double stop_min_delta = 0;
    double max_minutes = 0;              ///< 0: no limit
    std::int64_t num_kept = 0;           ///< newest checkpoints besides `last` and `best`
    std::int64_t snapshot_interval = 0;  ///< in epochs; 0: none
    AugmentationConfig augmentation;
    Precision precision = Precision::Float32;
    MemoryMode memory = MemoryMode::Stored;
    bool offload = false;            ///< on devices, large tensors that backward needs are kept in host memory
    bool graph_capture = false;      ///< on devices, steps whose shapes repeat are recorded
    bool exact = false;              ///< the same bits on any number of ranks
    std::int64_t save_interval = 0;  ///< in epochs
    std::int64_t val_interval = 0;
    bool shuffle = true;
    std::filesystem::path order_file;  ///< may be empty
    std::filesystem::path init;        ///< may be empty

    bool has_coefficients() const { return coefficient_weights[0] > 0 || coefficient_weights[1] > 0; }
};

/// Everything `meshard train` wants to know. Paths are as the user gave them, relative to the working folder.
struct TrainingRunConfig {
    std::string run_id;
    std::filesystem::path output_dir;
    std::int64_t seed = 0;
    std::string device;  ///< as `device_of_rank` takes it
    DataConfig data;
    std::optional<DataConfig> volume;  ///< of cases with two parts, whose surface `data` is then
    ForceSettings forces;
    ModelConfig model;
    TrainingConfig training;
    std::string backend;                ///< of MESHARD_BACKEND, or `auto`
    std::int64_t num_data_groups = 0;   ///< 0: as many as fit
    std::int64_t num_domain_ranks = 0;  ///< 0: all that are left
    bool shard_parameters = false;      ///< parameters, gradients and the optimiser's state are cut among all ranks
    std::int64_t log_interval = 1;      ///< in steps
    bool writes_events = false;         ///< for TensorBoard
    bool writes_report = false;         ///< at the end of the run

    std::filesystem::path run_dir() const { return output_dir / run_id; }

    /// The same of one part of its cases: 0, the surface or the only one, or 1, the volume.
    TrainingRunConfig of_part(std::size_t part) const;
    std::size_t num_parts() const { return volume ? 2 : 1; }
    /// Whether its points count in the loss by their areas or volumes.
    bool weighs_points(std::size_t part) const;
};

/// The table of all keys: those of one model, with its defaults, or of every model.
std::vector<SettingRule> training_rules(std::string_view model = {});

/// Reads a configuration with the keys and defaults of the model that it names.
/// @throws as `Settings::read`
/// @param dropped   receives the file's keys that another model has than the one that the command line names: they do not count
Settings read_training_settings(const std::filesystem::path& file, std::span<const std::string> overrides, std::vector<std::string>* dropped = nullptr);

/// @throws UsageError for what the rules cannot say: no fields, shares above one, a model that cannot be built.
TrainingRunConfig training_config(const Settings& settings);

/// Ranks along `data` and `domain`. @throws UsageError if they do not multiply to `num_ranks`.
std::array<std::int64_t, 2> mesh_shape(const TrainingRunConfig& config, std::int64_t num_ranks);

}  // namespace meshard
