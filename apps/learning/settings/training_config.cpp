// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/settings/training_config.h"

#include "apps/console/console.h"
#include "apps/devices/rank_device.h"
#include "apps/learning/settings/grid_settings.h"
#include "apps/learning/settings/model_rules.h"
#include "partition/error.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <sstream>

namespace meshard {
namespace {

constexpr const char* kParts[] = {"train", "val", "test"};
constexpr const char* kSamplingNames[] = {"uniform", "areas", "blocks"};  // as SamplingKind has them

SamplingKind sampling_kind(std::string_view name)
{
    return static_cast<SamplingKind>(std::find(std::begin(kSamplingNames), std::end(kSamplingNames), name) - std::begin(kSamplingNames));
}

// clang-format off
constexpr SettingRule kFixedRules[] = {
    {.path = "run_id", .fallback = "run", .meaning = "name of the run's folder"},
    {.path = "output_dir", .fallback = "runs", .meaning = "folder in which the runs' folders are made"},
    {.path = "seed", .type = SettingType::Integer, .fallback = "0", .min = 0, .max = kLargeCount, .meaning = "seed of the initial weights, the order of cases, the split and the cut"},
    {.path = "device", .fallback = "auto", .meaning = kDeviceMeaning},

    {.path = "data.root", .fallback = "???", .meaning = "folder of the cases"},
    {.path = "data.surface", .meaning = "surface files below the root, e.g. boundary_*.vtp; the last * is the case's id"},
    {.path = "data.volume", .meaning = "volume files below the root, in place of data.surface"},
    {.path = "data.volume.files", .meaning = "volume files of cases with both parts, whose surface is data.surface; data.fields and data.inputs are then its own"},
    {.path = "data.volume.fields.*", .meaning = "array of the volume to learn, as in data.fields, under another name than any of those"},
    {.path = "data.volume.fields.*.from", .meaning = "the same, where a kind is said beside it"},
    {.path = "data.volume.fields.*.kind", .words = "kinematic|static|cp|stress|velocity|temperature|density|viscosity|scalar|vector|axial|tensor", .meaning = "what the field's numbers mean, as in data.fields"},
    {.path = "data.volume.association", .words = "cell|point", .meaning = "where the volume's fields live; as data.association unless said"},
    {.path = "data.volume.inputs", .type = SettingType::TextList, .words = "points|sdf|wall_direction|height", .meaning = "what each point of the volume is told; [points] unless said"},
    {.path = "data.volume.sampling_resolution", .type = SettingType::Integer, .min = 0, .max = kLargeCount, .meaning = "points of a volume in a training step, as data.sampling_resolution; 0, all, unless said"},
    {.path = "data.grid", .meaning = "image data on regular grids below the root, .vti, for models of grids, in place of data.surface"},
    {.path = "data.arrays", .type = SettingType::TextList, .meaning = "arrays that a model of grids is told, at points or cells as data.association says"},
    {.path = "data.cases", .type = SettingType::TextList, .meaning = "tables of the cases below the root, .json or .csv with a column `id`; with a * a file a case, e.g. run_*/force_mom_*.csv"},
    {.path = "data.sets.*.root", .meaning = "of one of several sets of cases: its folder, below data.root unless absolute; its cases are called NAME:ID"},
    {.path = "data.sets.*.files", .meaning = "its files below that, in place of data.surface or data.volume"},
    {.path = "data.sets.*.cases", .type = SettingType::TextList, .meaning = "its tables below that, in place of data.cases"},
    {.path = "data.sets.*.share", .type = SettingType::Number, .min = 1e-9, .max = 1e9, .meaning = "share of the training cases that steps take from it, against the other sets' shares; as many as it has unless said"},
    {.path = "data.sets.*.split.column", .meaning = "the set's own split, where data.split is not given; its keys are those of data.split"},
    {.path = "data.sets.*.split.manifest", .meaning = "as data.split.manifest"},
    {.path = "data.sets.*.split.name", .meaning = "as data.split.name"},
    {.path = "data.sets.*.split.train", .type = SettingType::NumberOrTextList, .min = 0, .max = 1, .meaning = "as data.split.train, ids without the set's name"},
    {.path = "data.sets.*.split.val", .type = SettingType::NumberOrTextList, .min = 0, .max = 1, .meaning = "as data.split.val"},
    {.path = "data.sets.*.split.test", .type = SettingType::NumberOrTextList, .min = 0, .max = 1, .meaning = "as data.split.test"},
    {.path = "data.split.column", .meaning = "column of the table that says train, val or test"},
    {.path = "data.split.manifest", .meaning = "file below the root with lists of cases, `.json`, or a text file a part with a * where train, val or test stands"},
    {.path = "data.split.name", .meaning = "which split of the manifest: its lists NAME_train, NAME_val and NAME_test, or those of the family NAME"},
    {.path = "data.split.train", .type = SettingType::NumberOrTextList, .min = 0, .max = 1, .meaning = "cases that the model learns from: their share, their ids, or lists of the manifest"},
    {.path = "data.split.val", .type = SettingType::NumberOrTextList, .min = 0, .max = 1, .meaning = "cases that measure the errors during training"},
    {.path = "data.split.test", .type = SettingType::NumberOrTextList, .min = 0, .max = 1, .meaning = "cases that measure the errors at the end"},
    {.path = "data.association", .fallback = "cell", .words = "cell|point", .meaning = "where the fields live"},
    {.path = "data.fields.*", .meaning = "array to learn, under a name of your own, which stands in place of the *"},
    {.path = "data.fields.*.from", .meaning = "the same, where a kind is said beside it"},
    {.path = "data.fields.*.kind", .words = "kinematic|static|cp|stress|velocity|temperature|density|viscosity|scalar|vector|axial|tensor", .meaning = "what the field's numbers mean, e.g. kinematic: a pressure over density, static: in Pa; by it fields are divided and turned"},
    {.path = "data.targets", .fallback = "physical", .words = "physical|nondimensional", .meaning = "what is learnt: the fields as they are, or divided by what their kind is measured by in the case, e.g. rho U_inf^2 / 2"},
    {.path = "data.vector_deviation", .fallback = "channels", .words = "channels|shared", .meaning = "vectors are scaled by mean and deviation of each component, or by one root mean square of all of them (shared)"},
    {.path = "data.inputs", .type = SettingType::TextList, .fallback = "[points, normals]", .words = "points|normals|sdf|wall_direction|areas|height|box", .not_yet = "sdf_normals", .meaning = "what each point is told: place, normal, signed distance to a wall and direction to it, area, height, place in the box of its case"},
    {.path = "data.distances", .meaning = "array with signed distances, that sdf is read from in place of data.wall, e.g. implicit_distance"},
    {.path = "data.ground", .fallback = "bounds", .meaning = "from where height is measured along data.forces.up: bounds (the lowest point of the case's box) or a number"},
    {.path = "data.encoding", .fallback = "none", .words = "none|fourier|learnable", .meaning = "also told of each place: sines and cosines of random waves (fourier), or along x, y, z with trained frequencies (learnable)"},
    {.path = "data.encoding_frequencies", .type = SettingType::Integer, .fallback = "8", .min = 1, .max = 4096, .meaning = "frequencies for each of data.encoding_scales (fourier), or for each of x, y and z (learnable)"},
    {.path = "data.encoding_scales", .type = SettingType::NumberList, .fallback = "[0.25, 1, 4]", .min = 1e-6, .max = 1e6, .meaning = "waves per data.length: deviations of the random frequencies (fourier), or range of the first ones (learnable)"},
    {.path = "data.wall", .meaning = "surfaces for sdf, wall_direction and domino below the root, e.g. body_*.stl, the last * is the id; without * one for all"},
    {.path = "data.wall_patches", .type = SettingType::TextList, .meaning = "in place of data.wall: blocks of the case's own file, e.g. boundary/car of an OpenFOAM case"},
    {.path = "data.normals", .fallback = "Normals", .meaning = "array of outward unit normals; computed from the polygons where a case has none"},
    {.path = "data.orient", .fallback = "as-is", .words = "outward|as-is", .meaning = "what is done with polygons of surfaces and walls whose normals point inwards: turned outward, or kept as-is with a warning"},
    {.path = "data.center", .fallback = "bounds", .words = "bounds|none", .meaning = "what is subtracted from the points: bounds (the centre of their bounding box) or none"},
    {.path = "data.length", .fallback = "bounds", .meaning = "what the points are divided by: bounds (the longest edge of their box), none, a number, three, or a column of the table"},
    {.path = "data.reference.*", .type = SettingType::TextList, .meaning = "U_inf (a speed or a vector), rho, p_inf, T_inf, L: numbers or columns of the table; for drag and for targets without units"},
    {.path = "data.forces.area", .meaning = "reference area of the coefficients in metrics: a number, or a column of the table; half the area for half bodies"},
    {.path = "data.forces.cd", .fallback = "Cd", .meaning = "column with the solver's drag coefficient, for metrics; passed over where the table lacks it"},
    {.path = "data.forces.cl", .fallback = "Cl", .meaning = "column with the solver's lift coefficient"},
    {.path = "data.forces.up", .type = SettingType::NumberList, .fallback = "[0, 0, 1]", .meaning = "direction of lift, less its part along the free stream"},
    {.path = "data.constants", .type = SettingType::TextList, .meaning = "columns of the table that the model is told of a case besides its points"},
    {.path = "data.time", .meaning = "column of the table with the time of a case, for transolver and flare"},
    {.path = "data.sampling_resolution", .type = SettingType::Integer, .fallback = "0", .min = 0, .max = kLargeCount, .meaning = "points of a case in a training step, others in each epoch; 0: all. Validation and predictions take all"},
    {.path = "data.sampling", .fallback = "uniform", .words = "uniform|areas|blocks", .meaning = "which points: all with the same chance, by area, or in blocks, so that no others are read"},
    {.path = "data.parts", .type = SettingType::Integer, .fallback = "auto", .words = "auto", .min = 1, .max = 1e6, .meaning = "shards a case is cut into; auto: one a domain rank"},
    {.path = "data.shards", .meaning = "folder that keeps the shards; shards/ in the run's folder unless said"},
    {.path = "data.store", .meaning = "folder of what training reads of the cases; store/ in data.shards, or in the run's folder where that is read-only"},
    {.path = "data.memory", .type = SettingType::Number, .fallback = "auto", .words = "auto", .min = 0, .max = 1e6, .meaning = "GB a rank for cases that stay in memory; if they need more, each is read in its turn; auto: a quarter of the machine's"},

    {.path = "training.num_epochs", .type = SettingType::Integer, .fallback = "100", .min = 1, .max = kLargeCount, .meaning = "times through all training cases"},
    {.path = "training.max_steps", .type = SettingType::Integer, .fallback = "0", .min = 0, .max = kLargeCount, .meaning = "ends training early; 0: no limit"},
    {.path = "training.precision", .fallback = "float32", .words = "float32|tf32|bfloat16|bf16|float16|fp16", .not_yet = "float64", .meaning = "numbers of the model's arithmetic; weights, sums and the loss stay float32; tf32: float32 whose products GPUs round"},
    {.path = "training.loss", .type = SettingType::TextList, .fallback = "mse", .words = "mse|l1|huber|relative_mse|relative_l2", .meaning = "loss over all points and channels, or several whose sum it is; normalised units but for relative_l2"},
    {.path = "training.loss_weights", .type = SettingType::NumberList, .min = 0, .max = 1e6, .meaning = "factor of each loss in the sum, e.g. [1, 0.05] of loss: [mse, relative_l2]; 1 unless said"},
    {.path = "training.huber_delta", .type = SettingType::Number, .fallback = "1", .min = 1e-6, .max = 1e6, .meaning = "error from which huber grows in a line, in normalised units"},
    {.path = "training.field_weights.*", .type = SettingType::NumberList, .min = 0, .max = 1e6, .meaning = "how often a field counts in the loss: a number, or one for each of its channels; 1 unless said"},
    {.path = "training.part_weights", .type = SettingType::NumberList, .fallback = "[1, 1]", .min = 0, .max = 1e6, .meaning = "factors of the losses of surface and volume, of cases with both"},
    {.path = "training.point_weights", .type = SettingType::TextList, .fallback = "none", .words = "none|areas|volumes", .meaning = "how often a point counts in the loss: once, by its area, or in solid cells by its volume; of both parts [areas, volumes]"},
    {.path = "training.augment.mirror", .fallback = "none", .words = "none|x|y|z", .meaning = "the axis that changes its sign where training cases are mirrored, y for cars; whole bodies only"},
    {.path = "training.augment.mirror_share", .type = SettingType::Number, .fallback = "0.5", .min = 0, .max = 1, .meaning = "share of the epochs in which a case is mirrored"},
    {.path = "training.augment.half_bodies", .fallback = "refused", .words = "refused|mirrored", .meaning = "whether cases on one side of the mirror's plane through the origin, half bodies by their look, may be mirrored"},
    {.path = "training.augment.rotation", .type = SettingType::Number, .fallback = "0", .min = 0, .max = 180, .meaning = "largest angle in degrees by which training cases are turned about data.forces.up; needs augment.free_stream"},
    {.path = "training.augment.translation", .type = SettingType::NumberList, .fallback = "[0, 0, 0]", .min = 0, .max = 1e6, .meaning = "largest shifts of training cases along x, y and z, in units of data.length"},
    {.path = "training.augment.free_stream", .type = SettingType::TextList, .meaning = "the three of data.constants that are the free stream's x, y and z and turn with the case"},
    {.path = "training.augment.sided_constants", .type = SettingType::TextList, .meaning = "those of data.constants that change their sign in a mirror, e.g. a yaw angle"},
    {.path = "training.coefficient_weights", .type = SettingType::NumberList, .min = 0, .max = 1e6, .meaning = "factors in the loss of drag and lift that a head beside the fields predicts, in units of their spread; no head unless said"},
    {.path = "training.coefficient_features", .type = SettingType::Integer, .fallback = "32", .min = 1, .max = 4096, .meaning = "numbers of a point whose means over the case that head is told"},
    {.path = "training.accumulate", .type = SettingType::Integer, .fallback = "1", .min = 1, .max = 1e6, .meaning = "cases of a data group whose gradients are averaged before the weights change"},
    {.path = "training.clip_norm", .type = SettingType::Number, .fallback = "0", .min = 0, .max = 1e9, .meaning = "largest norm of all gradients together; larger ones are scaled down to it; 0: any"},
    {.path = "training.max_skipped_steps", .type = SettingType::Integer, .fallback = "0", .min = 0, .max = kLargeCount, .meaning = "steps in a row that may be left out because loss or gradients are not finite; 0: the first ends the run"},
    {.path = "training.ema", .type = SettingType::Number, .fallback = "0", .min = 0, .max = 0.9999999, .meaning = "decay of the weights' running mean, which validation and prediction then use; 0: none"},
    {.path = "training.optimizer.name", .fallback = "adamw", .words = "adamw|lion|muon", .not_yet = "adam|sgd|soap", .meaning = "optimiser; muon: matrices by Muon, all else by AdamW"},
    {.path = "training.optimizer.lr", .type = SettingType::Number, .fallback = "1e-3", .min = 0, .max = 100, .meaning = "highest learning rate"},
    {.path = "training.optimizer.weight_decay", .type = SettingType::Number, .fallback = "1e-4", .min = 0, .max = 100, .meaning = "decoupled weight decay"},
    {.path = "training.optimizer.betas", .type = SettingType::NumberList, .fallback = "auto", .words = "auto", .min = 0, .max = 0.999999999, .meaning = "decay rates of the two running means; auto: [0.9, 0.999], of lion [0.9, 0.99]"},
    {.path = "training.optimizer.momentum", .type = SettingType::Number, .fallback = "0.95", .min = 0, .max = 0.999999999, .meaning = "decay rate of muon's running mean"},
    {.path = "training.optimizer.muon_size", .fallback = "match_adamw", .words = "match_adamw|original", .meaning = "size of muon's steps: that of AdamW's, 0.2 sqrt(max(rows, columns)), or sqrt(max(1, rows / columns))"},
    {.path = "training.optimizer.decay_vectors", .fallback = "true", .words = "true|false", .meaning = "weight decay of parameters with one dimension, too: biases and norms"},
    {.path = "training.optimizer.groups.*.match", .type = SettingType::TextList, .meaning = "patterns of parameters' names, e.g. [blocks.0.*, '*.bias'], that the group trains in its own way"},
    {.path = "training.optimizer.groups.*.lr", .type = SettingType::Number, .min = 0, .max = 100, .meaning = "highest learning rate of the group; 0 keeps its parameters as they are"},
    {.path = "training.optimizer.groups.*.weight_decay", .type = SettingType::Number, .min = 0, .max = 100, .meaning = "weight decay of the group"},
    {.path = "training.optimizer.groups.*.name", .words = "adamw|lion|muon", .meaning = "optimiser of the group"},
    {.path = "training.scheduler.name", .fallback = "cosine", .words = "cosine|constant|linear|polynomial|step|exponential|one_cycle|plateau", .meaning = "how the learning rate goes on after the warm-up"},
    {.path = "training.scheduler.warmup_steps", .type = SettingType::Integer, .fallback = "0", .min = 0, .max = kLargeCount, .meaning = "steps in which the learning rate rises in a line"},
    {.path = "training.scheduler.min_lr", .type = SettingType::Number, .fallback = "0", .min = 0, .max = 100, .meaning = "learning rate at the end of cosine, linear and polynomial; lowest one of step and exponential"},
    {.path = "training.scheduler.power", .type = SettingType::Number, .fallback = "2", .min = 0, .max = 100, .meaning = "of polynomial: (1 - t) to this power"},
    {.path = "training.scheduler.step_epochs", .type = SettingType::Integer, .fallback = "100", .min = 1, .max = kLargeCount, .meaning = "of step: epochs after which the rate is multiplied by gamma"},
    {.path = "training.scheduler.gamma", .type = SettingType::Number, .fallback = "0.1", .min = 0, .max = 1, .meaning = "factor of step (each step_epochs), exponential (each epoch) and plateau"},
    {.path = "training.scheduler.patience", .type = SettingType::Integer, .fallback = "10", .min = 0, .max = kLargeCount, .meaning = "of plateau: validations without a better one before the rate falls"},
    {.path = "training.scheduler.threshold", .type = SettingType::Number, .fallback = "1e-4", .min = 0, .max = 1, .meaning = "of plateau: share by which a validation must be better to count"},
    {.path = "training.early_stop.patience", .type = SettingType::Integer, .fallback = "0", .min = 0, .max = kLargeCount, .meaning = "validations without a better one that end the run; 0: none do"},
    {.path = "training.early_stop.min_delta", .type = SettingType::Number, .fallback = "0", .min = 0, .max = 1e6, .meaning = "by how much the mean rel_l2 must fall below the best to count as better"},
    {.path = "training.max_minutes", .type = SettingType::Number, .fallback = "0", .min = 0, .max = 1e7, .meaning = "time after which a run saves and ends, to be gone on with by --resume; 0: no limit"},
    {.path = "training.keep_last", .type = SettingType::Integer, .fallback = "0", .min = 0, .max = 1e6, .meaning = "newest checkpoints that stay besides last and best, as epoch_N"},
    {.path = "training.snapshot_interval", .type = SettingType::Integer, .fallback = "0", .min = 0, .max = kLargeCount, .meaning = "epochs between checkpoints that stay for good, as epoch_N; 0: none"},
    {.path = "training.memory", .fallback = "stored", .words = "stored|recomputed|streamed", .meaning = "what a step keeps of each point: all that backward needs, the layers' inputs, or nothing; slower in this order"},
    {.path = "training.offload", .fallback = "false", .words = "true|false", .meaning = "on devices: large tensors that backward needs wait for it in the host's memory; slower"},
    {.path = "training.graph_capture", .fallback = "false", .words = "true|false", .meaning = "on devices: steps whose shapes repeat are recorded and run again as one launch"},
    {.path = "training.exact", .fallback = "false", .words = "true|false", .meaning = "losses and weights are the same bits on any number of ranks; for comparing runs, several times slower"},
    {.path = "training.save_interval", .type = SettingType::Integer, .fallback = "1", .min = 1, .max = kLargeCount, .meaning = "epochs between checkpoints"},
    {.path = "training.val_interval", .type = SettingType::Integer, .fallback = "1", .min = 1, .max = kLargeCount, .meaning = "epochs between validations"},
    {.path = "training.order", .fallback = "shuffled", .words = "shuffled|fixed", .meaning = "order of the cases in an epoch"},
    {.path = "training.order_file", .meaning = "JSON lines with `epoch` and `order` (ids of the cases), in place of training.order"},
    {.path = "training.init", .meaning = "file with initial weights: .safetensors, .mdlus or .pt"},

    {.path = "parallel.data", .type = SettingType::Integer, .fallback = "auto", .words = "auto", .min = 1, .max = 1e6, .meaning = "groups of ranks that take different cases"},
    {.path = "parallel.domain", .type = SettingType::Integer, .fallback = "auto", .words = "auto", .min = 1, .max = 1e6, .meaning = "ranks that share a case; auto: all that parallel.data leaves"},
    {.path = "parallel.parameters", .fallback = "replicated", .words = "replicated|sharded", .meaning = "parameters, gradients and optimiser state whole on every rank, or cut among all ranks: less memory, more messages"},
    {.path = "parallel.backend", .fallback = "auto", .words = "auto|shm|gloo|mpi|nccl", .meaning = "transport between ranks; tensors of GPUs go over NCCL where each rank has a GPU, unless this says mpi"},

    {.path = "logging.every_n_steps", .type = SettingType::Integer, .fallback = "1", .min = 1, .max = kLargeCount, .meaning = "steps between lines of metrics.jsonl"},
    {.path = "logging.tensorboard", .fallback = "false", .words = "true|false", .meaning = "the numbers of metrics.jsonl also as events, in tensorboard/ of the run's folder"},
    {.path = "logging.report", .fallback = "false", .words = "true|false", .meaning = "at the end the page of meshard report, in report/ of the run's folder"},
};
// clang-format on

/// @param base   `data.split`, or that of a set
SplitConfig split_config(const Settings& settings, const std::string& base)
{
    SplitConfig split;
    if (settings.has(base + ".column")) split.column = settings.text(base + ".column");
    if (settings.has(base + ".manifest")) split.manifest = settings.text(base + ".manifest");
    if (settings.has(base + ".name")) split.name = settings.text(base + ".name");
    if (!split.manifest.empty() && !split.column.empty()) throw UsageError(settings.where(base + ".manifest") + " and " + base + ".column exclude each other.");
    if (!split.name.empty() && split.manifest.empty())
        throw UsageError(settings.where(base + ".name") + " names a split of a manifest, and there is none: give data.split.manifest.");
    double sum = 0;
    for (const char* part : kParts) {
        const auto path = base + "." + part;
        const auto* setting = settings.find(path);
        if (!setting) continue;
        if (!split.column.empty()) throw UsageError(settings.where(path) + " and " + base + ".column exclude each other.");
        if (!split.name.empty()) throw UsageError(settings.where(path) + " and " + base + ".name exclude each other.");
        if (!split.manifest.empty() && (!setting->is_list || split.manifest.find('*') != std::string::npos)) {
            throw UsageError(settings.where(path) + (setting->is_list ? " names lists of data.split.manifest, which is a file a part: leave one of them out."
                                                                      : " must name lists of data.split.manifest, e.g. [full_train]."));
        }
        if (setting->is_list) {
            split.lists[part] = setting->values;
        } else {
            split.shares[part] = settings.number(path);
            sum += split.shares[part];
        }
    }
    if (!split.lists.empty() && !split.shares.empty()) throw UsageError(base + ": give shares or lists of ids, not both.");
    if (sum > 1 + 1e-9) throw UsageError(base + ": the shares add up to " + std::to_string(sum) + "; at most 1 is possible.");
    if (!split.name.empty() && split.manifest.find('*') != std::string::npos)
        throw UsageError(settings.where(base + ".name") + " names a split of data.split.manifest, which is a file a part: leave one of them out.");
    if (split.column.empty() && split.manifest.empty() && split.lists.empty() && split.shares.empty()) split.shares["train"] = 1.0;
    return split;
}

/// Several sets of cases in place of one.
void read_sets(const Settings& settings, DataConfig& data)
{
    for (const auto& name : settings.names_below("data.sets")) {
        const auto base = "data.sets." + name;
        if (name.find_first_of(":/ ") != std::string::npos)
            throw UsageError(base + ": the name of a set begins the ids of its cases; it must have no blank, / or :.");
        DataSetConfig set{.name = name, .root = data.root, .files = data.files, .case_tables = data.case_tables, .split = {}, .share = 0};
        if (settings.has(base + ".root")) set.root = data.root / settings.text(base + ".root");
        if (settings.has(base + ".files")) set.files = settings.text(base + ".files");
        if (set.files.find('*') == std::string::npos)
            throw UsageError(settings.where(base + ".files") + " is '" + set.files + "'; it needs a * where the case's id stands.");
        if (settings.has(base + ".cases")) set.case_tables = settings.find(base + ".cases")->values;
        if (settings.has(base + ".share")) set.share = settings.number(base + ".share");
        if (data.splits_all && settings.names_below(base + ".split").empty())
            set.split = data.split;
        else if (!data.splits_all)
            set.split = split_config(settings, base + ".split");
        else
            throw UsageError(base + ".split and data.split exclude each other: data.split is of the cases of all sets.");
        if (!set.split->column.empty() && set.case_tables.empty())
            throw UsageError(base + " is split by a column, and has no data.cases, the table that has it.");
        data.sets.push_back(std::move(set));
    }
    const auto without = std::ranges::find(data.sets, 0.0, &DataSetConfig::share);
    if (without != data.sets.end() && std::ranges::any_of(data.sets, [](const auto& one) { return one.share > 0; }))
        throw UsageError("data.sets." + without->name + " has no share, and other sets have one. Give each a share, or none.");
    if (!data.sets.empty() && data.splits_all && !data.split.manifest.empty())
        throw UsageError(settings.where("data.split.manifest") + " lies below one folder, and there are several data.sets: give each its own split.");
}

/// The surface whose distance `sdf` is.
/// @param is_body   the model encodes it, whatever the points are told
void read_wall_config(const Settings& settings, DataConfig& data, bool is_body)
{
    const bool has_files = settings.has("data.wall"), has_patches = settings.has("data.wall_patches");
    if (has_files && has_patches) throw UsageError("data.wall and data.wall_patches exclude each other.");
    if (settings.has("data.distances")) data.distances = settings.text("data.distances");
    if (!data.distances.empty() && !data.has_input("sdf")) {
        throw UsageError(settings.where("data.distances") + " names an array of distances that nobody asks for: put sdf among data.inputs, or leave it out.");
    }
    if (!data.needs_wall() && !is_body && (has_files || has_patches)) {
        throw UsageError(
            settings.where(has_files ? "data.wall" : "data.wall_patches") + " names a surface whose distance " +
            (data.distances.empty() ? "nobody asks for: put sdf among data.inputs, or leave it out." : "data.distances gives already: leave one of them out."));
    }
    if (is_body && !has_files && !has_patches) {
        throw UsageError("the model " + settings.text("model.name") +
                         " encodes the surface of the body, and there is none: name its files (data.wall=body_*.stl) or the blocks of the cases' own files "
                         "that are it (data.wall_patches=[boundary/car]).");
    }
    if (data.needs_wall() && !has_files && !has_patches) {
        throw UsageError(settings.where("data.inputs") + (data.has_input("wall_direction") ? " has wall_direction, which way" : " has sdf, the distance") +
                         " to a surface, and there is none: name its files (data.wall=body_*.stl) or the blocks of the cases' own "
                         "files that are it (data.wall_patches=[boundary/car]).");
    }
    if (has_files) data.wall = settings.text("data.wall");
    if (has_patches) data.wall_patches = settings.find("data.wall_patches")->values;
}

}  // namespace

double quantity_of(const std::string& name, const std::vector<std::string>& entries, const std::function<double(const std::string&)>& column_value)
{
    std::vector<double> values;
    for (const auto& entry : entries) {
        const auto number = number_in(entry);
        values.push_back(number ? *number : column_value(entry));
    }
    if (values.size() == 3) return std::hypot(values[0], values[1], values[2]);
    return name == "U_inf" ? std::abs(values.at(0)) : values.at(0);
}

namespace {

/// By what targets are divided.
void read_scaling(const Settings& settings, DataConfig& data)
{
    data.nondimensional = settings.text("data.targets") == "nondimensional";
    data.shares_deviation = settings.text("data.vector_deviation") == "shared";
    if (data.shares_deviation && std::none_of(data.fields.begin(), data.fields.end(), is_vector)) {
        throw UsageError(settings.where("data.vector_deviation") +
                         " is shared, and no field is a vector: say which are by their kind, e.g. data.fields.wss.kind=stress, or leave it out.");
    }
    const bool has_kinds = std::any_of(data.fields.begin(), data.fields.end(), [](const auto& field) { return !field.kind.empty(); });
    if (data.nondimensional && !has_kinds) {
        throw UsageError(settings.where("data.targets") +
                         " is nondimensional, and no field says its kind, by which it would be divided, e.g. data.fields.pressure.kind=kinematic.");
    }
    for (const auto& name : settings.names_below("data.reference")) {
        const auto path = "data.reference." + name;
        const auto& entries = settings.find(path)->values;
        if (entries.size() != 1 && !(name == "U_inf" && entries.size() == 3)) {
            throw UsageError(settings.where(path) + " has " + std::to_string(entries.size()) + " values; expected one" +
                             (name == "U_inf" ? ", or the three components of a vector." : "."));
        }
        if (std::ranges::all_of(entries, [](const auto& entry) { return number_in(entry).has_value(); }))
            data.reference[name] = quantity_of(name, entries, [](const std::string&) { return 0.0; });
        else
            data.reference_columns[name] = entries;
    }
}

/// Height over ground, and what the model is told of places besides themselves.
void read_places(const Settings& settings, DataConfig& data)
{
    data.frame = {settings.text("data.center"), settings.text("data.length"), {0, 0, 1}, settings.text("data.ground")};
    data.frame.up = force_settings(settings).up;
    if (data.frame.ground != "bounds") settings.number("data.ground");
    if (data.has_input("height") && !(std::hypot(data.frame.up[0], data.frame.up[1], data.frame.up[2]) > 0)) {
        throw UsageError(settings.where("data.forces.up") + " has no length, and height is measured along it. Give a direction, e.g. [0, 0, 1].");
    }
    data.encoding = {settings.text("data.encoding"), settings.integer("data.encoding_frequencies"), settings.numbers("data.encoding_scales")};
    if (data.encoding.scales.empty()) throw UsageError(settings.where("data.encoding_scales") + " is empty; expected numbers, e.g. [0.25, 1, 4].");
}

std::vector<FieldConfig> fields_below(const Settings& settings, const std::string& place)
{
    std::vector<FieldConfig> fields;
    for (const auto& name : settings.names_below(place)) {
        const auto path = place + "." + name;
        const auto* from = settings.find(path + ".from");
        if (!from) from = settings.find(path);
        if (!from) throw UsageError(path + " must say which array it is: {from: NAME}.");
        fields.push_back({name, from->values.at(0), settings.has(path + ".kind") ? settings.text(path + ".kind") : ""});
    }
    if (fields.empty()) throw UsageError(place + " must name at least one field, e.g. {pressure: {from: pMean, kind: kinematic}}.");
    return fields;
}

DataConfig data_config(const Settings& settings, const std::filesystem::path& run_dir)
{
    DataConfig data;
    data.root = settings.text("data.root");
    data.is_grid = settings.has("data.grid");
    if (data.is_grid) {
        refuse_keys_of_points(settings);
        data.arrays = grid_arrays(settings);
    }
    const bool is_surface = settings.has("data.surface");
    data.in_volume = !data.is_grid && !is_surface;
    if (!data.is_grid && is_surface == settings.has("data.volume")) {
        throw UsageError(
            is_surface ? "data.surface and data.volume exclude each other. Of cases with both the volume is a block: data.volume.files, data.volume.fields."
                       : "data.surface must be set, e.g. data.surface='boundary_*.vtp'.");
    }
    const auto* const key = data.is_grid ? "data.grid" : is_surface ? "data.surface" : "data.volume";
    data.files = settings.text(key);
    if (data.files.find('*') == std::string::npos) {
        throw UsageError(settings.where(key) + " is '" + data.files + "'; it needs a * where the case's id stands.");
    }
    if (settings.has("data.cases")) data.case_tables = settings.find("data.cases")->values;
    data.splits_all = !settings.names_below("data.split").empty();
    data.split = split_config(settings, "data.split");
    read_sets(settings, data);
    if (data.sets.empty() && !data.split.column.empty() && data.case_tables.empty())
        throw UsageError("data.split.column needs data.cases, the table that has the column.");
    data.on_cells = settings.text("data.association") == "cell";

    data.fields = fields_below(settings, "data.fields");

    data.inputs = data.is_grid ? std::vector<std::string>{} : settings.find("data.inputs")->values;
    const std::set<std::string> different(data.inputs.begin(), data.inputs.end());
    if (!data.is_grid && (data.inputs.empty() || data.inputs.front() != "points" || different.size() != data.inputs.size())) {
        throw UsageError(settings.where("data.inputs") + " must begin with points and name each input once, e.g. [points, normals] or [points, sdf].");
    }
    data.normals = settings.text("data.normals");
    data.turns_outward = settings.text("data.orient") == "outward";
    read_wall_config(settings, data, find_model(settings.text("model.name")).needs_body());
    if (const auto* constants = settings.find("data.constants")) data.constants = constants->values;
    if (!data.constants.empty() && data.case_tables.empty()) throw UsageError("data.constants needs data.cases, the table that has the columns.");
    if (settings.has("data.time")) data.time = settings.text("data.time");
    if (!data.time.empty() && data.case_tables.empty()) throw UsageError("data.time needs data.cases, the table that has the column.");
    read_places(settings, data);
    read_scaling(settings, data);
    data.num_sampled = settings.integer("data.sampling_resolution");
    data.sampling = sampling_kind(settings.text("data.sampling"));
    data.num_parts = settings.text("data.parts") == "auto" ? 0 : settings.integer("data.parts");
    data.shards = settings.has("data.shards") ? std::filesystem::path(settings.text("data.shards")) : run_dir / "shards";
    if (settings.has("data.store")) data.store = settings.text("data.store");
    if (settings.text("data.memory") != "auto") data.memory_budget = 1e9 * settings.number("data.memory");
    return data;
}

/// The volume of cases whose surface is `surface`, or nothing where cases have one part.
std::optional<DataConfig> volume_config(const Settings& settings, const DataConfig& surface)
{
    if (settings.names_below("data.volume").empty()) return {};
    if (!settings.has("data.volume.files")) throw UsageError("data.volume.files must be set, e.g. data.volume.files='volume_*.vtu'.");
    if (surface.in_volume)
        throw UsageError("data.volume.files needs data.surface, the other part of the cases. With volumes alone set data.volume='volume_*.vtu'.");
    auto volume = surface;
    volume.in_volume = true;
    volume.files = settings.text("data.volume.files");
    if (volume.files.find('*') == std::string::npos)
        throw UsageError(settings.where("data.volume.files") + " is '" + volume.files + "'; it needs a * where the case's id stands.");
    volume.fields = fields_below(settings, "data.volume.fields");
    for (const auto& field : volume.fields) {
        if (std::ranges::any_of(surface.fields, [&](const auto& other) { return other.name == field.name; }))
            throw UsageError("data.volume.fields." + field.name +
                             " has the name of a field of the surface. Give it another, by which metrics and predictions call it.");
    }
    if (settings.has("data.volume.association")) volume.on_cells = settings.text("data.volume.association") == "cell";
    const auto* inputs = settings.find("data.volume.inputs");
    volume.inputs = inputs ? inputs->values : std::vector<std::string>{"points"};
    const std::set<std::string> different(volume.inputs.begin(), volume.inputs.end());
    if (volume.inputs.empty() || volume.inputs.front() != "points" || different.size() != volume.inputs.size())
        throw UsageError(settings.where("data.volume.inputs") + " must begin with points and name each input once, e.g. [points, sdf].");
    volume.num_sampled = settings.has("data.volume.sampling_resolution") ? settings.integer("data.volume.sampling_resolution") : 0;
    if (volume.sampling == SamplingKind::Areas) volume.sampling = SamplingKind::Uniform;  // volumes have no areas
    for (const char* key : {"data.center", "data.length"}) {
        if (settings.text(key) == "bounds")
            throw UsageError(settings.where(key) + " is bounds, which differ between surface and volume, whose points the model compares. Set " +
                             (std::string_view(key) == "data.center" ? "none or a place x,y,z." : "none, a number, or a column of the table."));
    }
    return volume;
}

/// What a model that takes a body cannot do, and what it must be told.
void check_body_model(const TrainingRunConfig& config, const Settings& settings)
{
    const auto& entry = find_model(config.model.name);
    if (!entry.needs_body()) return;
    const auto refuse = [&](const std::string& key, const std::string& why) { throw UsageError(settings.where(key) + ": " + entry.name + " " + why); };
    const auto require_inputs = [&](const DataConfig& data, const char* key) {
        const auto expected = data.in_volume ? std::vector<std::string>{"points"} : entry.inputs_on_surface;
        if (data.inputs == expected) return;
        std::string names;
        for (const auto& name : expected) names += (names.empty() ? "" : ", ") + name;
        refuse(key, std::string("is told of each point of a ") + (data.in_volume ? "volume its place, and finds out the rest itself" : "surface a given list") +
                        ". Set [" + names + "].");
    };
    require_inputs(config.data, "data.inputs");
    if (config.volume) require_inputs(*config.volume, "data.volume.inputs");
    if (config.data.encoding.kind != "none") refuse("data.encoding", "encodes places itself. Set none.");
    if (config.training.augmentation.is_any())
        refuse("training.augment", "is told the body, which does not turn with the points yet. Leave training.augment out.");
}

/// Of a text `points, normals`.
std::vector<std::string> names_in(const std::string& text)
{
    std::vector<std::string> names;
    std::istringstream list(text);
    for (std::string name; std::getline(list >> std::ws, name, ',');) names.push_back(name);
    return names;
}

/// A number, true or false, a text, or a list of them.
nlohmann::json json_value(const Setting& setting)
{
    const auto single = [](const std::string& text) {
        const auto value = nlohmann::json::parse(text, nullptr, false);
        return value.is_number() || value.is_boolean() ? value : nlohmann::json(text);
    };
    if (!setting.is_list) return single(setting.values.at(0));
    auto list = nlohmann::json::array();
    for (const auto& value : setting.values) list.push_back(single(value));
    return list;
}

/// Refuses what adds in an order that depends on the number of ranks, in exact mode too.
void require_exact(const TrainingRunConfig& config, const Settings& settings)
{
    const auto refuse = [&](std::string_view path, const std::string& why) {
        throw UsageError(settings.where(path) + " is " + settings.text(path) + ", which training.exact does not go with: " + why + ".");
    };
    if (config.training.memory == MemoryMode::Streamed) refuse("training.memory", "its fused blocks add tile by tile. Set stored or recomputed");
    if (config.training.precision != Precision::Float32) refuse("training.precision", "exact sums and products are those of single precision. Set float32");
    if (config.num_data_groups > 2)
        refuse("parallel.data", "gradients of three groups and more are averaged in an order that depends on the ranks. Set 1 or 2");
    if (find_model(config.model.name).needs_body())
        refuse("model.name", "its neighbours and grids are added in an order that depends on the cut. Take a model without neighbours");
    if (config.shard_parameters) refuse("parallel.parameters", "a part's length decides how its last values are rounded. Set replicated");
    const auto& entry = find_point_model(config.model.name);
    const bool has_neighbors = entry.class_name == "MeshGraphNet" || config.model.arguments.value("include_local_features", false);
    if (has_neighbors) {
        refuse(entry.class_name == "MeshGraphNet" ? "model.name" : "model.include_local_features",
               "what neighbours tell each other is added in an order that depends on the cut. Take a model without neighbours");
    }
}

void read_loss(const Settings& settings, const TrainingRunConfig& config, TrainingConfig& training)
{
    const auto& data = config.data;
    auto fields = data.fields;
    if (config.volume) fields.insert(fields.end(), config.volume->fields.begin(), config.volume->fields.end());
    const auto& kinds = settings.find("training.loss")->values;
    const auto weights = settings.has("training.loss_weights") ? settings.numbers("training.loss_weights") : std::vector<double>(kinds.size(), 1.0);
    if (kinds.empty() || weights.size() != kinds.size()) {
        throw UsageError((kinds.empty() ? settings.where("training.loss") + " is empty"
                                        : settings.where("training.loss_weights") + " has " + std::to_string(weights.size()) + " numbers") +
                         "; expected one for each of training.loss, of which there are " + std::to_string(kinds.size()) + ".");
    }
    training.loss.terms.clear();
    double sum = 0;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
        training.loss.terms.push_back({loss_kind(kinds[i]), weights[i]});
        sum += weights[i];
    }
    if (!(sum > 0)) throw UsageError(settings.where("training.loss_weights") + " are all 0. Give one of them a positive number.");
    training.loss.huber_delta = settings.number("training.huber_delta");

    for (const auto& name : settings.names_below("training.field_weights")) {
        const auto path = "training.field_weights." + name;
        std::string names;
        for (const auto& field : fields) names += (names.empty() ? "" : ", ") + field.name;
        const bool is_field = std::any_of(fields.begin(), fields.end(), [&](const auto& field) { return field.name == name; });
        if (!is_field) throw UsageError(settings.where(path) + " weighs a field that data.fields has not; it has " + names + ".");
        training.field_weights[name] = settings.numbers(path);
    }
    const auto parts = settings.numbers("training.part_weights");
    if (parts.size() != 2 || !(parts[0] + parts[1] > 0))
        throw UsageError(settings.where("training.part_weights") + " must be two numbers, of surface and of volume, not both 0, e.g. [5, 1].");
    training.part_weights = {parts[0], parts[1]};
    if (settings.has("training.coefficient_weights")) {
        const auto weights = settings.numbers("training.coefficient_weights");
        if (weights.size() != 2)
            throw UsageError(settings.where("training.coefficient_weights") + " must be two numbers, of drag and of lift, e.g. [0.1, 0.1].");
        training.coefficient_weights = {weights[0], weights[1]};
    }
    training.coefficient_features = settings.integer("training.coefficient_features");
    const auto& weighing = settings.find("training.point_weights")->values;
    const auto weighs_by = [&](const char* word) { return std::ranges::find(weighing, word) != weighing.end(); };
    training.weighs_areas = weighs_by("areas");
    training.weighs_volumes = weighs_by("volumes");
    if (weighing.empty() || (weighs_by("none") && weighing.size() > 1))
        throw UsageError(settings.where("training.point_weights") + " must be none, areas, volumes, or [areas, volumes] of cases with both parts.");
}

void read_augmentation(const Settings& settings, const TrainingRunConfig& config, AugmentationConfig& augmentation)
{
    const std::string path = "training.augment.";
    const auto names = [&](const char* key) {
        const auto* setting = settings.find(path + key);
        return setting ? setting->values : std::vector<std::string>();
    };
    const auto mirror = settings.text(path + "mirror");
    augmentation.mirror_axis = mirror == "none" ? -1 : mirror[0] - 'x';
    augmentation.mirror_share = settings.number(path + "mirror_share");
    augmentation.mirrors_half_bodies = settings.text(path + "half_bodies") == "mirrored";
    augmentation.rotation = settings.number(path + "rotation") * std::numbers::pi / 180;
    const auto shifts = settings.numbers(path + "translation");
    if (shifts.size() != 3) throw UsageError(settings.where(path + "translation") + " must be three numbers, e.g. [0.1, 0.1, 0].");
    std::copy(shifts.begin(), shifts.end(), augmentation.translation.begin());
    augmentation.free_stream = names("free_stream");
    augmentation.sided_constants = names("sided_constants");

    const auto& constants = config.data.constants;
    for (const char* key : {"free_stream", "sided_constants"}) {
        for (const auto& name : names(key)) {
            if (std::find(constants.begin(), constants.end(), name) != constants.end()) continue;
            throw UsageError(settings.where(path + key) + " names '" + name + "', which is none of data.constants, the columns that the model is told.");
        }
    }
    const auto& stream = augmentation.free_stream;
    if (!stream.empty() && std::set<std::string>(stream.begin(), stream.end()).size() != 3) {
        throw UsageError(settings.where(path + "free_stream") + " must be three columns: the free stream's x, y and z.");
    }
    // A scene that turns takes its free stream along: a model that is not told of it would see the same inputs with different answers.
    const auto& velocity = config.forces.velocity;
    const auto axis = augmentation.mirror_axis;
    const auto is_along = [&](const std::string& component) { return number_in(component) != 0.0; };  // of a column in some case, to be assumed
    const bool mirrors_stream = velocity.size() == 3 ? axis >= 0 && is_along(velocity[axis]) : axis == 0;
    if (stream.empty() && (augmentation.rotation > 0 || mirrors_stream)) {
        throw UsageError(settings.where(path + (augmentation.rotation > 0 ? "rotation" : "mirror")) +
                         " turns the free stream with the case, and the model is not told which way it flows: put its three components among data.constants "
                         "and name them with training.augment.free_stream.");
    }
    if (augmentation.rotation > 0 && config.data.frame.length.find(',') != std::string::npos) {
        throw UsageError(settings.where(path + "rotation") + " needs one data.length for x, y and z, since places that were divided by three do not turn.");
    }
    if (augmentation.rotation > 0 && config.data.has_input("box")) {
        throw UsageError(settings.where(path + "rotation") + " turns cases, whose boxes do not turn along, and data.inputs has box. Leave one of the two out.");
    }
}

void read_optimizer(const Settings& settings, TrainingConfig& training)
{
    training.optimizer = settings.text("training.optimizer.name");
    training.learning_rate = settings.number("training.optimizer.lr");
    training.weight_decay = settings.number("training.optimizer.weight_decay");
    if (settings.find("training.optimizer.betas")->values != std::vector<std::string>{"auto"}) {
        const auto betas = settings.numbers("training.optimizer.betas");
        if (betas.size() != 2) throw UsageError(settings.where("training.optimizer.betas") + " must be two numbers.");
        training.betas = {betas[0], betas[1]};
    }
    training.momentum = settings.number("training.optimizer.momentum");
    training.muon_matches_adamw = settings.text("training.optimizer.muon_size") == "match_adamw";
    training.decay_vectors = settings.text("training.optimizer.decay_vectors") == "true";
    for (const auto& name : settings.names_below("training.optimizer.groups")) {
        const auto path = "training.optimizer.groups." + name;
        const auto* match = settings.find(path + ".match");
        if (!match || match->values.empty()) throw UsageError(path + ".match must say which parameters the group has, e.g. [blocks.0.*, '*.bias'].");
        ParameterGroupConfig group{name, match->values, {}, {}, {}};
        if (settings.has(path + ".lr")) group.learning_rate = settings.number(path + ".lr");
        if (settings.has(path + ".weight_decay")) group.weight_decay = settings.number(path + ".weight_decay");
        if (settings.has(path + ".name")) group.optimizer = settings.text(path + ".name");
        if (group.learning_rate && training.learning_rate == 0) {
            throw UsageError(settings.where(path + ".lr") + " needs a training.optimizer.lr above 0, whose schedule it follows.");
        }
        training.parameter_groups.push_back(std::move(group));
    }
}

void read_schedule(const Settings& settings, TrainingConfig& training)
{
    training.scheduler = settings.text("training.scheduler.name");
    training.warmup_steps = settings.integer("training.scheduler.warmup_steps");
    training.min_learning_rate = settings.number("training.scheduler.min_lr");
    training.power = settings.number("training.scheduler.power");
    training.step_epochs = settings.integer("training.scheduler.step_epochs");
    training.gamma = settings.number("training.scheduler.gamma");
    training.plateau_patience = settings.integer("training.scheduler.patience");
    training.threshold = settings.number("training.scheduler.threshold");
    if (training.scheduler == "one_cycle" && training.warmup_steps > 0) {
        throw UsageError(settings.where("training.scheduler.warmup_steps") + " is set, and one_cycle has a warm-up of its own. Leave it out.");
    }
    training.stop_patience = settings.integer("training.early_stop.patience");
    training.stop_min_delta = settings.number("training.early_stop.min_delta");
    training.max_minutes = settings.number("training.max_minutes");
    training.num_kept = settings.integer("training.keep_last");
    training.snapshot_interval = settings.integer("training.snapshot_interval");
}

std::int64_t count_or_auto(const Settings& settings, std::string_view path)
{
    return settings.text(path) == "auto" ? 0 : settings.integer(path);
}

}  // namespace

std::vector<SettingRule> training_rules(std::string_view model)
{
    std::vector<SettingRule> rules(std::begin(kFixedRules), std::end(kFixedRules));
    const auto more = model_rules(model);
    const auto training = std::find_if(rules.begin(), rules.end(), [](const auto& rule) { return rule.path.starts_with("training."); });
    rules.insert(training, more.begin(), more.end());
    return rules;
}

Settings read_training_settings(const std::filesystem::path& file, std::span<const std::string> overrides, std::vector<std::string>* dropped)
{
    const auto named = Settings::read(file, overrides, training_rules());
    const auto rules = training_rules(named.text("model.name"));
    std::vector<std::string> words(overrides.begin(), overrides.end());
    if (named.find("model.name")->source == "command line") {
        for (const auto& setting : named.all()) {
            const bool is_known = std::any_of(rules.begin(), rules.end(), [&](const auto& rule) { return rule.path == setting.path; });
            if (is_known || !setting.path.starts_with("model.") || setting.source == "command line" || setting.source == "default") continue;
            words.insert(words.begin(), "~" + setting.path);
            if (dropped) dropped->push_back(setting.path);
        }
    }
    return Settings::read(file, words, rules);
}

bool DataConfig::has_input(std::string_view input) const
{
    return std::find(inputs.begin(), inputs.end(), input) != inputs.end();
}

bool is_vector(const FieldConfig& field)
{
    return field.kind == "velocity" || field.kind == "stress" || field.kind == "vector" || field.kind == "axial";
}

bool is_vector_input(std::string_view input)
{
    return input == "points" || input == "normals" || input == "wall_direction" || input == "box";
}

bool DataConfig::needs_wall() const
{
    return has_input("wall_direction") || (has_input("sdf") && distances.empty());
}

std::int64_t num_point_channels(const DataConfig& data)
{
    return first_channel(data, {});
}

std::int64_t first_channel(const DataConfig& data, std::string_view input)
{
    std::int64_t count = 0;
    for (const auto& known : data.inputs) {
        if (known == input) break;
        count += is_vector_input(known) ? 3 : 1;
    }
    return count;
}

nlohmann::json to_json(const DataConfig& data)
{
    auto fields = nlohmann::json::array();
    for (const auto& field : data.fields) fields.push_back({{"name", field.name}, {"from", field.from}, {"kind", field.kind}});
    std::string inputs;
    for (const auto& name : data.inputs) inputs += (inputs.empty() ? "" : ", ") + name;
    const bool has_height = data.has_input("height"), is_encoded = data.encoding.kind != "none";
    const DataConfig none;
    nlohmann::json description{{"association", data.on_cells ? "cell" : "point"},
                               {"is_grid", data.is_grid},
                               {"arrays", data.arrays},
                               {"fields", std::move(fields)},
                               {"inputs", inputs},
                               {"wall_patches", data.wall_patches},
                               {"normals", data.normals},
                               {"constants", data.constants},
                               {"time", data.time},
                               {"center", data.frame.center},
                               {"length", data.frame.length},
                               {"up", has_height ? data.frame.up : none.frame.up},
                               {"ground", has_height ? data.frame.ground : none.frame.ground},
                               {"distances", data.distances},
                               {"encoding", data.encoding.kind},
                               {"encoding_frequencies", is_encoded ? data.encoding.num_frequencies : none.encoding.num_frequencies},
                               {"encoding_scales", is_encoded ? data.encoding.scales : none.encoding.scales},
                               {"targets", data.nondimensional ? "nondimensional" : "physical"},
                               {"reference", data.nondimensional ? data.reference : none.reference},
                               {"reference_columns", data.nondimensional ? data.reference_columns : none.reference_columns},
                               {"vector_deviation", data.shares_deviation ? "shared" : "channels"},
                               {"sampling_resolution", data.num_sampled},
                               {"sampling", kSamplingNames[static_cast<std::size_t>(data.sampling)]}};
    if (data.turns_outward) description["orient"] = "outward";  // where it is not said, surfaces are as they are
    return description;
}

DataConfig data_config(const nlohmann::json& description)
{
    DataConfig data;
    data.on_cells = description.at("association") == "cell";
    data.is_grid = description.value("is_grid", false);  // not said by earlier versions, as `arrays`
    data.arrays = description.value("arrays", std::vector<std::string>());
    for (const auto& field : description.at("fields")) data.fields.push_back({field.at("name"), field.at("from"), field.at("kind")});
    data.inputs = names_in(description.at("inputs"));
    data.wall_patches = description.value("wall_patches", std::vector<std::string>());  // not said by earlier versions, which had none
    data.normals = description.at("normals");
    data.turns_outward = description.value("orient", "as-is") == "outward";
    data.constants = description.at("constants").get<std::vector<std::string>>();
    data.time = description.value("time", "");  // not said by earlier versions, which had none
    data.frame = {description.at("center"), description.at("length"), description.value("up", data.frame.up), description.value("ground", data.frame.ground)};
    data.distances = description.value("distances", "");
    data.encoding = {description.value("encoding", data.encoding.kind), description.value("encoding_frequencies", data.encoding.num_frequencies),
                     description.value("encoding_scales", data.encoding.scales)};
    data.nondimensional = description.value("targets", "") == "nondimensional";
    data.reference = description.value("reference", data.reference);
    data.reference_columns = description.value("reference_columns", data.reference_columns);  // not said by earlier versions, which had none
    data.shares_deviation = description.value("vector_deviation", "") == "shared";
    data.num_sampled = description.value("sampling_resolution", std::int64_t{0});  // not said by earlier versions, which took all points
    data.sampling = sampling_kind(description.value("sampling", "uniform"));
    return data;
}

nlohmann::json model_arguments(const ModelConfig& model, const DataConfig& data, std::optional<std::int64_t> out_dim, std::int64_t volume_out_dim)
{
    const auto& entry = find_point_model(model.name);
    PointWidths widths{.embedding_dim = num_point_channels(data) + data.encoding.num_channels(),
                       .num_constants = static_cast<std::int64_t>(data.constants.size()),
                       .out_dim = out_dim.value_or(1),
                       .has_time = !data.time.empty(),
                       .in_volume = data.in_volume,
                       .volume_out_dim = volume_out_dim};
    auto arguments = entry.widths(widths);
    if (widths.has_time && !takes_time(entry)) {
        throw InvalidInput("data.time is '" + data.time + "', but " + entry.name + " is told no time: leave it out, or name the column among data.constants.");
    }
    ++widths.out_dim;
    if (widths.volume_out_dim > 0) ++widths.volume_out_dim;
    const auto for_more_fields = entry.widths(widths);
    for (const auto& [name, value] : model.arguments.items()) {
        const auto width = arguments.find(name);
        const bool is_known = width != arguments.end() && (out_dim || *width == for_more_fields[name]);
        if (is_known && *width != value) {
            const auto time = widths.has_time ? "'" + data.time + "'" : "not given";
            throw InvalidInput("model." + name + " is " + value.dump() + ", but data.inputs has " + std::to_string(widths.embedding_dim) + " channels" +
                               (data.encoding.num_channels() > 0 ? " with data.encoding" : "") + ", data.constants " + std::to_string(widths.num_constants) +
                               ", data.time is " + time + (out_dim ? ", and the fields have " + std::to_string(*out_dim) + " channels" : "") +
                               ". It follows from them: leave it out.");
        }
        arguments[name] = value;
    }
    if (entry.defaults.contains("aabb_min") && !(arguments.contains("aabb_min") && arguments.contains("aabb_max"))) {
        const bool has_box = data.frame.center == "bounds" && data.frame.length == "bounds";
        if (!has_box || arguments.contains("aabb_min") || arguments.contains("aabb_max"))
            throw InvalidInput(
                "model.aabb_min and model.aabb_max, the corners of the box in which the points of all cases lie, are not both given. Set them in the "
                "model's coordinates, (x - data.center) / data.length.");
        arguments["aabb_min"] = {-0.5, -0.5, -0.5};  // cases are centred, and their longest edge is 1
        arguments["aabb_max"] = {0.5, 0.5, 0.5};
    }
    return complete_arguments(entry, arguments);
}

TrainingRunConfig training_config(const Settings& settings)
{
    TrainingRunConfig config;
    config.run_id = settings.text("run_id");
    if (config.run_id.empty() || config.run_id == "." || config.run_id == ".." || config.run_id.find('/') != std::string::npos) {
        throw UsageError(settings.where("run_id") + " is '" + config.run_id + "'; expected a name for a folder of the run's own, without slashes.");
    }
    config.output_dir = settings.text("output_dir");
    config.seed = settings.integer("seed");
    config.device = settings.text("device");
    if (const auto name = settings.text("model.name"); !settings.names_below("data.volume").empty() && !find_model(name).needs_body()) {
        throw UsageError(settings.where("data.volume.files") + ": " + name +
                         " takes the points of a surface or of a volume, not both. Leave one out, or set model.name to one that takes both, e.g. domino.");
    }
    if (const auto name = settings.text("model.name"); settings.names_below("data.volume").empty() && find_model(name).needs_both_parts) {
        throw UsageError(settings.where("model.name") + ": " + name +
                         " takes cases with surface and volume. Set data.surface, and data.volume.files and data.volume.fields for the volume.");
    }
    config.data = data_config(settings, config.run_dir());
    config.volume = volume_config(settings, config.data);
    if (config.volume && !config.data.sets.empty())
        throw UsageError(settings.where("data.volume.files") + ": cases of several data.sets have one part, a surface or a volume. Leave one of the two out.");
    if (config.volume && settings.has("training.coefficient_weights"))
        throw UsageError(settings.where("training.coefficient_weights") +
                         " gives a model of one part a head, and data.volume.files is set. Leave one of the two out.");
    config.forces = force_settings(settings);

    config.model.name = settings.text("model.name");
    for (const auto& name : settings.names_below("model")) {
        const auto* setting = settings.find("model." + name);
        if (name != "name" && setting) config.model.arguments[name] = json_value(*setting);
    }
    require_matching_model(settings, config.model, config.data);
    if (config.data.num_sampled > 0 && find_point_model(config.model.name).class_name == "MeshGraphNet") {
        throw UsageError(
            settings.where("data.sampling_resolution") +
            ": MeshGraphNet's messages go along edges, which have another length between some of the points. Set 0, or take a model without edges.");
    }
    try {
        if (config.data.is_grid)
            check_grid_model(config.model);
        else
            model_arguments(config.model, config.data, {}, config.volume ? 1 : 0);
    } catch (const InvalidInput& error) {
        throw UsageError(std::string("model: ") + error.what());
    }

    auto& training = config.training;
    training.num_epochs = settings.integer("training.num_epochs");
    training.max_steps = settings.integer("training.max_steps");
    read_loss(settings, config, training);
    read_augmentation(settings, config, training.augmentation);
    check_body_model(config, settings);
    config.data.has_measures = config.weighs_points(0);
    if (config.volume) config.volume->has_measures = config.weighs_points(1);
    config.data.needs_all_points = find_model(config.model.name).needs_surface_neighbors && !config.data.in_volume;
    training.accumulate = settings.integer("training.accumulate");
    training.clip_norm = settings.number("training.clip_norm");
    training.max_skipped_steps = settings.integer("training.max_skipped_steps");
    training.average_decay = settings.number("training.ema");
    read_optimizer(settings, training);
    read_schedule(settings, training);
    training.precision = precision_named(settings.text("training.precision"));
    training.memory = memory_mode(settings.text("training.memory"));
    training.offload = settings.text("training.offload") == "true";
    training.graph_capture = settings.text("training.graph_capture") == "true";
    training.exact = settings.text("training.exact") == "true";
    training.save_interval = settings.integer("training.save_interval");
    training.val_interval = settings.integer("training.val_interval");
    training.shuffle = settings.text("training.order") == "shuffled";
    if (settings.has("training.order_file")) training.order_file = settings.text("training.order_file");
    if (settings.has("training.init")) training.init = settings.text("training.init");

    config.backend = settings.text("parallel.backend");
    config.num_data_groups = count_or_auto(settings, "parallel.data");
    config.num_domain_ranks = count_or_auto(settings, "parallel.domain");
    config.shard_parameters = settings.text("parallel.parameters") == "sharded";
    config.writes_events = settings.text("logging.tensorboard") == "true";
    config.writes_report = settings.text("logging.report") == "true";
    config.log_interval = settings.integer("logging.every_n_steps");
    if (training.exact) require_exact(config, settings);
    return config;
}

bool TrainingRunConfig::weighs_points(std::size_t part) const
{
    if (!volume) return training.weighs_areas || training.weighs_volumes;
    return part == 0 ? training.weighs_areas : training.weighs_volumes;
}

TrainingRunConfig TrainingRunConfig::of_part(std::size_t part) const
{
    auto config = *this;
    if (part == 1) config.data = volume.value();
    config.volume.reset();
    return config;
}

std::array<std::int64_t, 2> mesh_shape(const TrainingRunConfig& config, std::int64_t num_ranks)
{
    auto data = config.num_data_groups;
    auto domain = config.num_domain_ranks;
    if (domain == 0) domain = std::max<std::int64_t>(1, num_ranks / std::max<std::int64_t>(1, data));
    if (data == 0) data = std::max<std::int64_t>(1, num_ranks / domain);
    if (data * domain != num_ranks) {
        throw UsageError("parallel: " + std::to_string(data) + " data groups of " + std::to_string(domain) + " domain ranks make " +
                         std::to_string(data * domain) + " ranks, and there are " + std::to_string(num_ranks) +
                         ". Start as many, or change parallel.data and parallel.domain.");
    }
    return {data, domain};
}

}  // namespace meshard
