// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/devices/rank_device.h"
#include "apps/learning/settings/force_settings.h"
#include "apps/learning/settings/series_settings.h"
#include "apps/learning/settings/setting_table.h"
#include "models/layers/coordinate_encoding_options.h"
#include "models/layers/field_loss_options.h"
#include "models/layers/memory_mode.h"
#include "models/layers/precision.h"
#include "models/registry/registry.h"
#include "partition/lists.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshard {

/// A field to be predicted.
struct FieldConfig {
    std::string name;  ///< its name in metrics and predictions
    std::string from;
    std::string kind;
    /// The array of the states, if cases are steps of simulations; `from` is then what is learnt of the next one.
    std::string state = {};

    void add_keys(SettingTable& keys, const std::string& base)
    {
        keys.add(base, from, {}, "array to learn, under a name of your own, which stands in place of the *");
        keys.add(base + ".from", from, {}, "the same, where a kind is said beside it");
        keys.add(base + ".kind", kind,
                 {.words = {"kinematic", "static", "cp", "stress", "velocity", "temperature", "density", "viscosity",
                            "scalar", "vector", "axial", "tensor"}},
                 "what the field's numbers mean, e.g. kinematic: a pressure over density, static: in Pa; by it fields "
                 "are divided and turned");
    }
};

/// Whether the field's kind makes its components those of a vector.
bool is_vector(const FieldConfig& field);

/// The frame that maps points to numbers between about -1 and 1: (x - center) / length.
struct FrameConfig {
    std::string center = "bounds";
    std::string length = "bounds";
    std::array<double, 3> up{0, 0, 1};
    std::string ground = "bounds";
};

/// Which cases train, and which only measure: by a column of the case table, by a share or a list of ids for each part,
/// or by lists of a file.
struct SplitConfig {
    std::string column = {};
    std::map<std::string, double> shares = {};                   ///< by part: train, val, test
    std::map<std::string, std::vector<std::string>> lists = {};  ///< case ids, or with a manifest names of its lists
    std::string manifest = {};                                   ///< its path (apps/learning/cases/split_manifest.h)
    std::string name = {};

    void add_keys(SettingTable& keys, const std::string& base)
    {
        const auto meaning = [&](const char* key, const char* text) {
            return base == "data.split"
                       ? text
                       : std::string("as data.split.") + key + ", of this set where data.split is not given";
        };
        keys.add(base + ".column", column, {}, meaning("column", "column of the table that says train, val or test"));
        keys.add(base + ".manifest", manifest, {},
                 meaning("manifest", "file below the root with lists of cases, `.json`, or a text file a part with a * "
                                     "where train, val or test stands"));
        keys.add(base + ".name", name, {},
                 meaning("name", "which split of the manifest: its lists NAME_train, NAME_val and NAME_test, or those "
                                 "of the family NAME"));
        const auto add_part = [&](const std::string& part, const char* text) {
            keys.add({.path = base + "." + part,
                      .type = SettingType::NumberOrTextList,
                      .bounds = {0, 1},
                      .meaning = meaning(part.c_str(), text)},
                     [this, part](const Setting& setting) {
                         setting.is_list ? detail::store(setting, lists[part]) : detail::store(setting, shares[part]);
                     });
        };
        add_part("train", "cases that the model learns from: their share, their ids, or lists of the manifest");
        add_part("val", "cases that measure the errors during training");
        add_part("test", "cases that measure the errors at the end");
    }
};

/// One of several sets of cases that a run trains on together.
struct DataSetConfig {
    std::string name;            ///< begins the ids of its cases, NAME:ID
    std::filesystem::path root;  ///< joined with `DataConfig::root`
    std::string files;
    std::vector<std::string> case_tables;
    SplitConfig split;  ///< the common split if `data.split` is given
    double share = 0;   ///< 0: by the number of its cases

    void add_keys(SettingTable& keys, const std::string& base)
    {
        keys.add(base + ".root", root, {},
                 "of one of several sets of cases: its folder, below data.root unless absolute; its cases are called "
                 "NAME:ID");
        keys.add(base + ".files", files, {}, "its files below that, in place of data.surface or data.volume");
        keys.add(base + ".cases", case_tables, {}, "its tables below that, in place of data.cases");
        keys.add(base + ".share", share, {1e-9, 1e9},
                 "share of the training cases that steps take from it, against the other sets' shares; as many as it "
                 "has unless said");
        split.add_keys(keys, base + ".split");
    }
};

/// Which points of a case a step takes.
enum class SamplingKind : std::uint8_t {
    Uniform,  ///< all points have the same chance
    Areas,    ///< larger areas have a larger chance
    Blocks    ///< the same chance, in ranges of the stored rows, so that no other rows are read
};

inline const std::vector<std::pair<std::string, SamplingKind>> kSamplingKinds{
    {"uniform", SamplingKind::Uniform}, {"areas", SamplingKind::Areas}, {"blocks", SamplingKind::Blocks}};

/// In place of an array's name: rows of a grid do not count where an array or a field is NaN.
inline constexpr const char* kMaskOfNan = "nan";

struct DataConfig {
    std::filesystem::path root;
    std::string files;
    bool in_volume = false;  ///< the cases are volumes
    std::vector<std::string> case_tables;
    SplitConfig split;
    bool splits_all = true;           ///< whether `split` was given and holds for every set
    std::vector<DataSetConfig> sets;  ///< empty: there is one set
    bool on_cells = true;
    bool is_grid = false;  ///< cases are image data, whose points or cells make up a regular grid
    SeriesSettings series;
    std::vector<std::string> arrays;
    CategorySettings categories;
    std::string mask;  ///< of a grid; empty: all of it counts
    std::vector<FieldConfig> fields;
    std::vector<std::string> inputs{"points", "normals"};
    std::string normals = "Normals";
    bool turns_outward = false;
    std::string wall;
    std::vector<std::string> wall_patches;
    std::string distances;

    /// The arrays that points are told, the categories first.
    std::vector<std::string> told_arrays() const;
    /// Whether `inputs` contains this input.
    bool has_input(std::string_view input) const;
    /// Whether an input is computed from the surface of a wall.
    bool needs_wall() const;
    std::vector<std::string> constants;
    std::string time;
    FrameConfig frame;
    CoordinateEncodingOptions encoding;       ///< encodes the places, in addition to `inputs`
    bool nondimensional = false;              ///< fields are divided by a scale of their kind (field_scaling.h)
    std::map<std::string, double> reference;  ///< numbers of `data.reference`; U_inf is a speed
    /// Entries of `data.reference` that name columns: one entry, or the three components of U_inf, each a column or a
    /// number.
    std::map<std::string, std::vector<std::string>> reference_columns;
    bool shares_deviation = false;  ///< components of a vector are divided by one deviation, and keep their mean
    std::int64_t num_sampled = 0;
    SamplingKind sampling = SamplingKind::Uniform;
    bool has_measures = false;  ///< steps need areas or volumes of the points, which are not inputs
    /// The model searches neighbours among all points (`ModelEntry::needs_surface_neighbors`).
    bool needs_all_points = false;
    std::int64_t num_parts = 0;  ///< 0: one for each domain rank
    std::filesystem::path shards;
    std::filesystem::path store;          ///< empty: below `shards`, or, if that is read-only, below the run's folder
    std::optional<double> memory_budget;  ///< in GB; none: a share of the machine's memory

    void add_keys(SettingTable& keys, ForceSettings& forces)
    {
        keys.add("data.root", root, {}, "folder of the cases").fallback = "???";
        keys.add("data.surface", files, {},
                 "surface files below the root, e.g. boundary_*.vtp; the last * is the case's id");
        keys.add("data.volume", files, {}, "volume files below the root, in place of data.surface");
        keys.add("data.grid", files, {},
                 "grids below the root, .vti, .pvti, .vtr, .pvtr, .vtkhdf, .h5, .nc or .zarr, for models of grids, in "
                 "place of data.surface");
        keys.add(
            "data.series", files, {},
            "simulations in time below the root: a series a run, run_*.pvd, or files of one state, run_*/state_*.vtu");
        series.add_keys(keys);
        keys.add("data.arrays", arrays, {},
                 "arrays that a model of grids or of data.series is told, at points or cells as data.association says");
        categories.add_keys(keys);
        keys.add(
            "data.mask", mask, {},
            "array of grids that is 0 where they do not count (land, a body), vtkGhostType, or nan: where an array "
            "or a field is NaN");
        keys.add("data.cases", case_tables, {},
                 "tables of the cases below the root, .json or .csv with a column `id`; with a * a file a case, e.g. "
                 "run_*/force_mom_*.csv");
        keys.add_each("data.sets", sets);
        split.add_keys(keys, "data.split");
        keys.add_choice("data.association", on_cells, {{"cell", true}, {"point", false}}, "where the fields live");
        keys.add_each("data.fields", fields);
        keys.add_choice("data.targets", nondimensional, {{"physical", false}, {"nondimensional", true}},
                        "what is learnt: the fields as they are, or divided by what their kind is measured by in the "
                        "case, e.g. rho U_inf^2 / 2");
        keys.add_choice("data.vector_deviation", shares_deviation, {{"channels", false}, {"shared", true}},
                        "vectors are scaled by mean and deviation of each component, or by one root mean square of all "
                        "of them (shared)");
        keys.add("data.inputs", inputs,
                 {.words = {"points", "normals", "sdf", "wall_direction", "areas", "height", "box"}},
                 "what each point is told: place, normal, signed distance to a wall and direction to it, area, height, "
                 "place in the box of its case")
            .not_yet = {"sdf_normals"};
        keys.add("data.distances", distances, {},
                 "array with signed distances, that sdf is read from in place of data.wall, e.g. implicit_distance");
        keys.add("data.ground", frame.ground, {},
                 "from where height is measured along data.forces.up: bounds (the lowest point of the case's box) or a "
                 "number")
            .only_with = {"data.inputs=height", "data.volume.inputs=height"};
        keys.add("data.encoding", encoding.kind, {.words = {"none", "fourier", "learnable"}},
                 "also told of each place: sines and cosines of random waves (fourier), or along x, y, z with trained "
                 "frequencies (learnable)");
        keys.add("data.encoding_frequencies", encoding.num_frequencies, {1, 4096},
                 "frequencies for each of data.encoding_scales (fourier), or for each of x, y and z (learnable)")
            .only_with = {"data.encoding"};
        keys.add("data.encoding_scales", encoding.scales, {1e-6, 1e6},
                 "waves per data.length: deviations of the random frequencies (fourier), or range of the first ones "
                 "(learnable)")
            .only_with = {"data.encoding"};
        keys.add("data.wall", wall, {},
                 "surfaces for sdf, wall_direction and domino below the root, e.g. body_*.stl, the last * is the id; "
                 "without * one for all");
        keys.add("data.wall_patches", wall_patches, {},
                 "in place of data.wall: blocks of the case's own file, e.g. boundary/car of an OpenFOAM case");
        keys.add("data.normals", normals, {},
                 "array of outward unit normals; computed from the polygons where a case has none");
        keys.add_choice("data.orient", turns_outward, {{"outward", true}, {"as-is", false}},
                        "what is done with polygons of surfaces and walls whose normals point inwards: turned outward, "
                        "or kept as-is with a warning");
        keys.add("data.center", frame.center, {.words = {"bounds", "none"}},
                 "what is subtracted from the points: bounds (the centre of their bounding box) or none");
        keys.add("data.length", frame.length, {},
                 "what the points are divided by: bounds (their box's longest edge), none, a number, three as '2, "
                 "1, 1', or a column of the table");
        keys.add("data.reference.*", reference_columns, {},
                 "U_inf (a speed or a vector), rho, p_inf, T_inf, L: numbers or columns of the table; for drag and for "
                 "targets without units");
        forces.add_keys(keys);
        keys.add("data.constants", constants, {},
                 "columns of the table that the model is told of a case besides its points");
        keys.add("data.time", time, {}, "column of the table with the time of a case, for transolver and flare");
        keys.add(
            "data.sampling_resolution", num_sampled, {},
            "points of a case in a training step, others in each epoch; 0: all. Validation and predictions take all");
        keys.add_choice("data.sampling", sampling, kSamplingKinds,
                        "which points: all with the same chance, by area, or in blocks, so that no others are read")
            .only_with = {"data.sampling_resolution", "data.volume.sampling_resolution"};
        keys.add("data.parts", num_parts, {.least = 1, .most = 1e6, .words = {"auto"}},
                 "shards a case is cut into; auto: one a domain rank, 16 with parallel.balance");
        keys.add("data.shards", shards, {}, "folder that keeps the shards; shards/ in the run's folder unless said");
        keys.add("data.store", store, {},
                 "folder of what training reads of the cases; store/ in data.shards, or in the run's folder where that "
                 "is read-only");
        keys.add("data.memory", memory_budget, {.least = 0, .most = 1e6, .words = {"auto"}},
                 "GB a rank for cases that stay in memory; if they need more, each is read in its turn; auto: a "
                 "quarter of the machine's");
    }

    /// Adds the keys of the volume of cases with two parts.
    void add_volume_keys(SettingTable& keys)
    {
        keys.add("data.volume.files", files, {},
                 "volume files of cases with both parts, whose surface is data.surface; data.fields and data.inputs "
                 "are then its own");
        keys.add_each("data.volume.fields", fields);
        keys.add_choice("data.volume.association", on_cells, {{"cell", true}, {"point", false}},
                        "where the volume's fields live; as data.association unless said");
        keys.add("data.volume.inputs", inputs, {.words = {"points", "sdf", "wall_direction", "height"}},
                 "what each point of the volume is told; [points] unless said");
        keys.add("data.volume.sampling_resolution", num_sampled, {},
                 "points of a volume in a training step, as data.sampling_resolution; 0, all, unless said");
    }
};

/// Returns a quantity of `data.reference` from its entries, numbers and names of columns; U_inf is the length of its
/// vector.
/// @param column_value   gives the case's number in a column
double quantity_of(const std::string& name, const std::vector<std::string>& entries,
                   const std::function<double(const std::string& column)>& column_value);

/// Writes the settings of the data that a checkpoint keeps for prediction: inputs, frame, constants, time and fields.
nlohmann::json to_json(const DataConfig& data);

/// Returns how many numbers a model of points is told of each: three for each vector, one for each other input and
/// each known category, and those of `SeriesSettings::told`.
std::int64_t num_point_channels(const DataConfig& data);

struct ModelConfig {
    std::string name;
    /// Those that the configuration states; others follow from the data or keep their defaults.
    nlohmann::json arguments = nlohmann::json::object();
};

/// Whether an input (`data.inputs`) has three channels, along x, y and z.
bool is_vector_input(std::string_view input);

/// Returns the first channel of an input, which must be among `data.inputs`.
std::int64_t first_channel(const DataConfig& data, std::string_view input);

/// Returns all arguments of the model for cases with `out_dim` channels to predict, if that is known yet.
/// @param volume_out_dim   channels in the volume, for cases with two parts; 0: they have one
/// @throws InvalidInput if the configuration contradicts them.
nlohmann::json model_arguments(const ModelConfig& model, const DataConfig& data, std::optional<std::int64_t> out_dim,
                               std::int64_t volume_out_dim = 0);

/// Random variations of training cases: each epoch shows another reflection, rotation or shift of a case.
struct AugmentationConfig {
    int mirror_axis = -1;  ///< 0 to 2: x, y or z change their sign, -1: none does
    double mirror_share = 0.5;
    bool mirrors_half_bodies = false;
    double rotation = 0;  ///< in radians
    std::array<double, 3> translation{};
    std::vector<std::string> free_stream = {};
    std::vector<std::string> sided_constants = {};

    bool turns() const { return mirror_axis >= 0 || rotation > 0; }
    bool is_any() const { return turns() || translation != std::array<double, 3>{}; }

    void add_keys(SettingTable& keys)
    {
        keys.add_choice(
            "training.augment.mirror", mirror_axis, {{"none", -1}, {"x", 0}, {"y", 1}, {"z", 2}},
            "the axis that changes its sign where training cases are mirrored, y for cars; whole bodies only");
        keys.add("training.augment.mirror_share", mirror_share, {0, 1},
                 "share of the epochs in which a case is mirrored")
            .only_with = {"training.augment.mirror"};
        keys.add_choice("training.augment.half_bodies", mirrors_half_bodies, {{"refused", false}, {"mirrored", true}},
                        "whether cases on one side of the mirror's plane through the origin, half bodies by their "
                        "look, may be mirrored")
            .only_with = {"training.augment.mirror"};
        keys.add("training.augment.rotation", rotation, {0, 180},
                 "largest angle in degrees by which training cases are turned about data.forces.up; needs "
                 "augment.free_stream");
        keys.add("training.augment.translation", translation, {0, 1e6},
                 "largest shifts of training cases along x, y and z, in units of data.length");
        keys.add("training.augment.free_stream", free_stream, {},
                 "the three of data.constants that are the free stream's x, y and z and turn with the case")
            .only_with = {"training.augment.mirror", "training.augment.rotation"};
        keys.add("training.augment.sided_constants", sided_constants, {},
                 "those of data.constants that change their sign in a mirror, e.g. a yaw angle")
            .only_with = {"training.augment.mirror"};
    }
};

/// Parameters that are trained in another way than the rest.
struct ParameterGroupConfig {
    std::string name;
    std::vector<std::string> match;
    std::optional<double> learning_rate;
    std::optional<double> weight_decay;
    std::string optimizer;  ///< empty: the optimiser of the rest

    void add_keys(SettingTable& keys, const std::string& base)
    {
        keys.add(base + ".match", match, {},
                 "patterns of parameters' names, e.g. [blocks.0.*, '*.bias'], that the group trains in its own way");
        keys.add(base + ".lr", learning_rate, {0, 100},
                 "highest learning rate of the group; 0 keeps its parameters as they are");
        keys.add(base + ".weight_decay", weight_decay, {0, 100}, "weight decay of the group");
        keys.add(base + ".name", optimizer, {.words = {"adamw", "lion", "muon"}}, "optimiser of the group");
    }
};

struct TrainingConfig {
    std::int64_t num_epochs = 100;
    std::int64_t max_steps = 0;
    std::vector<std::string> losses{"mse"};
    std::vector<double> loss_weights;
    FieldLossOptions loss;  ///< `losses` with their weights, without the fields' weights
    std::map<std::string, std::vector<double>> field_weights;
    std::array<double, 2> part_weights{1, 1};
    std::vector<std::string> point_weights{"none"};
    std::array<double, 2> coefficient_weights{};  ///< 0: there is no head
    std::int64_t coefficient_features = 32;
    std::int64_t accumulate = 1;
    double clip_norm = 0;
    std::int64_t max_skipped_steps = 0;
    double average_decay = 0;
    std::string optimizer = "adamw";
    double learning_rate = 1e-3;
    double weight_decay = 1e-4;
    std::optional<std::array<double, 2>> betas;
    double momentum = 0.95;
    bool muon_matches_adamw = true;
    bool decay_vectors = true;
    std::vector<ParameterGroupConfig> parameter_groups;
    std::string scheduler = "cosine";
    std::int64_t warmup_steps = 0;
    double min_learning_rate = 0;
    double power = 2;
    std::int64_t step_epochs = 100;
    double gamma = 0.1;
    std::int64_t plateau_patience = 10;
    double threshold = 1e-4;
    std::int64_t stop_patience = 0;
    double stop_min_delta = 0;
    double max_minutes = 0;
    std::int64_t num_kept = 0;
    std::int64_t snapshot_interval = 0;
    AugmentationConfig augmentation;
    UnrollSettings unroll;
    Precision precision = Precision::Float32;
    MemoryMode memory = MemoryMode::Stored;
    bool offload = false;
    bool graph_capture = false;
    bool exact = false;
    std::int64_t save_interval = 1;
    std::int64_t val_interval = 1;
    bool shuffle = true;
    std::filesystem::path order_file;  ///< may be empty
    std::filesystem::path init;        ///< may be empty

    bool has_coefficients() const { return coefficient_weights[0] > 0 || coefficient_weights[1] > 0; }
    /// Whether points are weighted by a measure. @param measure   `areas` or `volumes`
    bool weighs(const char* measure) const { return contains(point_weights, measure); }

    void add_keys(SettingTable& keys)
    {
        keys.add("training.num_epochs", num_epochs, {1}, "times through all training cases");
        keys.add("training.max_steps", max_steps, {}, "ends training early; 0: no limit");
        keys.add_choice("training.precision", precision,
                        {{"float32", Precision::Float32},
                         {"tf32", Precision::TF32},
                         {"bfloat16", Precision::BFloat16},
                         {"bf16", Precision::BFloat16},
                         {"float16", Precision::Float16},
                         {"fp16", Precision::Float16}},
                        "numbers of the model's arithmetic; weights, sums and the loss stay float32; tf32: float32 "
                        "whose products GPUs round")
            .not_yet = {"float64"};
        keys.add("training.loss", losses, {.words = {"mse", "l1", "huber", "relative_mse", "relative_l2"}},
                 "loss over all points and channels, or several whose sum it is; normalised units but for relative_l2");
        keys.add("training.loss_weights", loss_weights, {0, 1e6},
                 "factor of each loss in the sum, e.g. [1, 0.05] of loss: [mse, relative_l2]; 1 unless said");
        keys.add("training.huber_delta", loss.huber_delta, {1e-6, 1e6},
                 "error from which huber grows in a line, in normalised units")
            .only_with = {"training.loss=huber"};
        keys.add("training.field_weights.*", field_weights, {0, 1e6},
                 "how often a field counts in the loss: a number, or one for each of its channels; 1 unless said");
        keys.add("training.part_weights", part_weights, {0, 1e6},
                 "factors of the losses of surface and volume, of cases with both")
            .only_with = {"data.volume.files"};
        keys.add("training.point_weights", point_weights, {.words = {"none", "areas", "volumes"}},
                 "how often a point counts in the loss: once, by its area, or in solid cells by its volume; of both "
                 "parts [areas, volumes]");
        augmentation.add_keys(keys);
        unroll.add_keys(keys);
        keys.add("training.coefficient_weights", coefficient_weights, {0, 1e6},
                 "factors in the loss of drag and lift that a head beside the fields predicts, in units of their "
                 "spread; no head unless said")
            .fallback.clear();
        keys.add("training.coefficient_features", coefficient_features, {1, 4096},
                 "numbers of a point whose means over the case that head is told")
            .only_with = {"training.coefficient_weights"};
        keys.add("training.accumulate", accumulate, {1, 1e6},
                 "cases of a data group whose gradients are averaged before the weights change");
        keys.add("training.clip_norm", clip_norm, {0, 1e9},
                 "largest norm of all gradients together; larger ones are scaled down to it; 0: any");
        keys.add(
            "training.max_skipped_steps", max_skipped_steps, {},
            "steps in a row that may be left out because loss or gradients are not finite; 0: the first ends the run");
        keys.add("training.ema", average_decay, {0, 0.9999999},
                 "decay of the weights' running mean, which validation and prediction then use; 0: none");
        keys.add("training.optimizer.name", optimizer, {.words = {"adamw", "lion", "muon"}},
                 "optimiser; muon: matrices by Muon, all else by AdamW")
            .not_yet = {"adam", "sgd", "soap"};
        keys.add("training.optimizer.lr", learning_rate, {0, 100}, "highest learning rate");
        keys.add("training.optimizer.weight_decay", weight_decay, {0, 100}, "decoupled weight decay");
        keys.add("training.optimizer.betas", betas, {.least = 0, .most = 0.999999999, .words = {"auto"}},
                 "decay rates of the two running means; auto: [0.9, 0.999], of lion [0.9, 0.99]");
        keys.add("training.optimizer.momentum", momentum, {0, 0.999999999}, "decay rate of muon's running mean")
            .only_with = {"training.optimizer.name=muon", "training.optimizer.groups.*.name=muon"};
        keys.add_choice(
                "training.optimizer.muon_size", muon_matches_adamw, {{"match_adamw", true}, {"original", false}},
                "size of muon's steps: that of AdamW's, 0.2 sqrt(max(rows, columns)), or sqrt(max(1, rows / columns))")
            .only_with = {"training.optimizer.name=muon", "training.optimizer.groups.*.name=muon"};
        keys.add("training.optimizer.decay_vectors", decay_vectors, {},
                 "weight decay of parameters with one dimension, too: biases and norms");
        keys.add_each("training.optimizer.groups", parameter_groups);
        keys.add(
            "training.scheduler.name", scheduler,
            {.words = {"cosine", "constant", "linear", "polynomial", "step", "exponential", "one_cycle", "plateau"}},
            "how the learning rate goes on after the warm-up");
        keys.add("training.scheduler.warmup_steps", warmup_steps, {},
                 "steps in which the learning rate rises in a line");
        keys.add("training.scheduler.min_lr", min_learning_rate, {0, 100},
                 "learning rate at the end of cosine, linear and polynomial; lowest one of step and exponential")
            .only_with = {"training.scheduler.name=cosine|linear|polynomial|step|exponential"};
        keys.add("training.scheduler.power", power, {0, 100}, "of polynomial: (1 - t) to this power").only_with = {
            "training.scheduler.name=polynomial"};
        keys.add("training.scheduler.step_epochs", step_epochs, {1},
                 "of step: epochs after which the rate is multiplied by gamma")
            .only_with = {"training.scheduler.name=step"};
        keys.add("training.scheduler.gamma", gamma, {0, 1},
                 "factor of step (each step_epochs), exponential (each epoch) and plateau")
            .only_with = {"training.scheduler.name=step|exponential|plateau"};
        keys.add("training.scheduler.patience", plateau_patience, {},
                 "of plateau: validations without a better one before the rate falls")
            .only_with = {"training.scheduler.name=plateau"};
        keys.add("training.scheduler.threshold", threshold, {0, 1},
                 "of plateau: share by which a validation must be better to count")
            .only_with = {"training.scheduler.name=plateau"};
        keys.add("training.early_stop.patience", stop_patience, {},
                 "validations without a better one that end the run; 0: none do");
        keys.add("training.early_stop.min_delta", stop_min_delta, {0, 1e6},
                 "by how much the mean rel_l2 must fall below the best to count as better")
            .only_with = {"training.early_stop.patience"};
        keys.add("training.max_minutes", max_minutes, {0, 1e7},
                 "time after which a run saves and ends, to be gone on with by --resume; 0: no limit");
        keys.add("training.keep_last", num_kept, {0, 1e6},
                 "newest checkpoints that stay besides last and best, as epoch_N");
        keys.add("training.snapshot_interval", snapshot_interval, {},
                 "epochs between checkpoints that stay for good, as epoch_N; 0: none");
        keys.add_choice("training.memory", memory,
                        {{"stored", MemoryMode::Stored},
                         {"recomputed", MemoryMode::Recomputed},
                         {"streamed", MemoryMode::Streamed}},
                        "what a step keeps of each point: all that backward needs, the layers' inputs, or nothing; "
                        "slower in this order");
        keys.add("training.offload", offload, {},
                 "on devices: large tensors that backward needs wait for it in the host's memory; slower");
        keys.add("training.graph_capture", graph_capture, {},
                 "on devices: steps whose shapes repeat are recorded and run again as one launch");
        keys.add(
            "training.exact", exact, {},
            "losses and weights are the same bits on any number of ranks; for comparing runs, several times slower");
        keys.add("training.save_interval", save_interval, {1}, "epochs between checkpoints");
        keys.add("training.val_interval", val_interval, {1}, "epochs between validations");
        keys.add_choice("training.order", shuffle, {{"shuffled", true}, {"fixed", false}},
                        "order of the cases in an epoch");
        keys.add("training.order_file", order_file, {},
                 "JSON lines with `epoch` and `order` (ids of the cases), in place of training.order");
        keys.add("training.init", init, {}, "file with initial weights: .safetensors, .mdlus or .pt");
    }
};

/// The configuration of `meshard train`. Paths are as the user gave them, relative to the working folder.
struct TrainingRunConfig {
    std::string run_id = "run";
    std::filesystem::path output_dir = "runs";
    std::int64_t seed = 0;
    std::string device = "auto";
    DataConfig data;
    std::optional<DataConfig> volume;  ///< the volume of cases with two parts, whose surface is `data`
    ForceSettings forces;
    ModelConfig model;
    TrainingConfig training;
    std::string backend = "auto";
    std::int64_t num_data_groups = 0;  ///< 0: as many as fit
    /// Ranks that share a case, of a grid along each of its slowest directions; empty: all that are left, along one.
    std::vector<std::int64_t> domain;
    bool shard_parameters = false;
    bool balances_ranks = false;  ///< ranks get shares of the cases by their speed
    std::int64_t log_interval = 1;
    bool writes_events = false;
    bool writes_report = false;

    std::filesystem::path run_dir() const { return output_dir / run_id; }

    /// Returns the configuration of one part of the cases: 0, the surface or the only part, or 1, the volume.
    TrainingRunConfig of_part(std::size_t part) const;
    std::size_t num_parts() const { return volume ? 2 : 1; }
    std::int64_t num_domain_ranks() const;  ///< 0: all that are left
    /// Whether the part's points count in the loss by their areas or volumes.
    bool weighs_points(std::size_t part) const;

    /// Adds all keys except those of `model` and of `volume`.
    void add_keys(SettingTable& keys)
    {
        keys.add("run_id", run_id, {}, "name of the run's folder");
        keys.add("output_dir", output_dir, {}, "folder in which the runs' folders are made");
        keys.add("seed", seed, {}, "seed of the initial weights, the order of cases, the split and the cut");
        keys.add("device", device, {}, kDeviceMeaning);
        data.add_keys(keys, forces);
        training.add_keys(keys);
        keys.add("parallel.data", num_data_groups, {.least = 1, .most = 1e6, .words = {"auto"}},
                 "groups of ranks that take different cases");
        keys.add("parallel.domain", domain, {.least = 1, .most = 1e6, .words = {"auto"}},
                 "ranks that share a case; auto: all that parallel.data leaves; of grids a list: ranks along each "
                 "direction, slowest first");
        keys.add_choice("parallel.parameters", shard_parameters, {{"replicated", false}, {"sharded", true}},
                        "parameters, gradients and optimiser state whole on every rank, or cut among all ranks: less "
                        "memory, more messages");
        keys.add_choice("parallel.balance", balances_ranks, {{"off", false}, {"auto", true}},
                        "equal shares of a case for its ranks, or by the time that each computes, so that all are done "
                        "together");
        keys.add(
            "parallel.backend", backend, {.words = {"auto", "shm", "gloo", "mpi", "nccl"}},
            "transport between ranks; tensors of GPUs go over NCCL where each rank has a GPU, unless this says mpi");
        keys.add("logging.every_n_steps", log_interval, {1}, "steps between lines of metrics.jsonl");
        keys.add("logging.tensorboard", writes_events, {},
                 "the numbers of metrics.jsonl also as events, in tensorboard/ of the run's folder");
        keys.add("logging.report", writes_report, {},
                 "at the end the page of meshard report, in report/ of the run's folder");
    }
};

/// Returns the table of all keys: those of one model, with its defaults, or of every model.
std::vector<SettingRule> training_rules(std::string_view model = {});

/// Reads a configuration with the keys and defaults of the model that it names.
/// @throws as `Settings::read`
/// @param dropped   receives the file's keys that the model named by the command line does not have; they are ignored
Settings read_training_settings(const std::filesystem::path& file, std::span<const std::string> overrides,
                                std::vector<std::string>* dropped = nullptr);

/// Checks settings and makes the configuration. @throws UsageError for what the rules cannot express: no fields, shares
/// above one, a model that cannot be built.
TrainingRunConfig training_config(const Settings& settings);

/// Returns how many parts a case is cut into for each rank that shares it, unless `data.parts` says how many there are:
/// one, or so many that shares of parts come near to those of the ranks' speeds.
std::int64_t parts_a_rank(const TrainingRunConfig& config);

/// Returns the numbers of ranks along `data` and `domain`. @throws UsageError if their product is not `num_ranks`.
std::array<std::int64_t, 2> mesh_shape(const TrainingRunConfig& config, std::int64_t num_ranks);

}  // namespace meshard
