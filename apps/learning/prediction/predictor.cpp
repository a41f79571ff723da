// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/predictor.h"

#include "apps/learning/cases/categories.h"
#include "apps/learning/checkpoints/kept_features.h"
#include "apps/learning/checkpoints/run_checkpoint.h"
#include "apps/learning/settings/run_record.h"
#include "io/checkpoints/model_checkpoint.h"
#include "models/layers/random_draws.h"
#include "models/registry/encoded_model.h"
#include "models/registry/grid_forward.h"
#include "models/registry/last_features.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"
#include "sharding/parameters/move_module.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>

namespace meshard {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNumNeighbors = "num_neighbors";  // argument of models on graphs

std::filesystem::path choose_checkpoint(const std::filesystem::path& run_dir)
{
    for (const char* name : {"best", "last"}) {
        auto path = run_dir / "checkpoints" / (std::string(name) + ".safetensors");
        if (std::filesystem::exists(path) || std::filesystem::is_symlink(path))
            return path;  // a link that leads nowhere is no reason to take the other
    }
    if (std::filesystem::is_regular_file(run_dir)) {
        throw IoError(
            "{} is no checkpoint; the folder of a run, or a file of weights (.safetensors, .mdlus, .pt), is expected.",
            run_dir.string());
    }
    throw IoError("{} has no checkpoints/best.safetensors or last.safetensors. Is it the folder of a run, "
                  "and has it trained for an epoch?",
                  run_dir.string());
}

/// Reads a JSON object; null if there is no such file.
Json read_json(const std::filesystem::path& path)
{
    std::ifstream stream(path);
    if (!stream) return {};
    auto json = Json::parse(stream, nullptr, false);
    if (!json.is_object()) throw IoError("{} is no JSON object.", path.string());
    return json;
}

/// Returns class and arguments of the model.
std::pair<std::string, nlohmann::json> architecture_of(const ModelCheckpoint& checkpoint,
                                                       const std::filesystem::path& file)
{
    if (!checkpoint.architecture.empty()) {
        return {checkpoint.architecture,
                checkpoint.arguments.empty() ? nlohmann::json::object() : nlohmann::json::parse(checkpoint.arguments)};
    }
    auto beside = file;
    beside.replace_extension(".json");
    throw InvalidInput(
        R"({} does not say which model its weights belong to. Write {} with {{"model_class": "Transolver", "model": )"
        R"({{"functional_dim": 2, ...}}}}, or take a .mdlus file.)",
        file.string(), beside.string());
}

/// Returns the arguments that the model knows, and notes the others.
nlohmann::json known_arguments(const ModelEntry& entry, const nlohmann::json& arguments,
                               std::vector<std::string>& notes)
{
    auto known = nlohmann::json::object();
    for (const auto& [name, value] : arguments.items()) {
        if (entry.defaults.contains(name))
            known[name] = value;
        else
            notes.push_back(fmt::format("the argument {} = {} is not known to {} here, and passed over.", name,
                                        value.dump(), entry.class_name));
    }
    return known;
}

/// Refuses counts that no model of these weights can have, before one is made for them that takes all memory and time.
void require_plausible(const nlohmann::json& value, const std::string& name, const NamedArrays& weights,
                       const std::filesystem::path& file)
{
    if (value.is_structured()) {
        for (const auto& [key, entry] : value.items())
            require_plausible(entry, value.is_object() ? key : name, weights, file);
    }
    if (!value.is_number()) return;
    constexpr double always_plausible = 4096;  // neighbours, sizes of grids: without arrays of their own
    double most = 0;
    const bool counts_layers = name.find("layers") != std::string::npos;
    for (const auto& array : weights.arrays) most += counts_layers ? 1.0 : static_cast<double>(array.num_values());
    if (value.get<double>() <= (counts_layers ? most : std::max(most, always_plausible))) return;
    throw IoError("{}: its {} is {}, which its {} arrays{} do not fit. The file is damaged or made up.", file.string(),
                  name, value.dump(), weights.arrays.size(),
                  counts_layers ? "" : fmt::format(" of {:.0f} values", most));
}

/// One field of the statistics beside a model.
struct FieldStatistics {
    std::string name;
    std::vector<float> mean, std;
};

std::vector<float> numbers_of(const Json& value, const std::string& where)
{
    if (value.is_number()) return {value.get<float>()};
    std::vector<float> numbers;
    for (const auto& number : value) {
        if (!number.is_number())
            throw InvalidInput("{} is {}; expected a number or a list of numbers.", where, value.dump());
        numbers.push_back(number.get<float>());
    }
    return numbers;
}

/// Reads statistics in the order of the models' channels: the reference's recipes put velocity and pressure before the
/// rest.
std::vector<FieldStatistics> read_statistics(const std::filesystem::path& path)
{
    const auto json = read_json(path);
    if (json.is_null()) return {};
    const auto* deviation = json.contains("std_dev") ? "std_dev" : "std";
    if (!json.contains("mean") || !json.contains(deviation))
        throw InvalidInput("{} must hold \"mean\" and \"std_dev\" (or \"std\").", path.string());
    std::vector<FieldStatistics> fields;
    for (const auto& [name, mean] : json["mean"].items()) {
        if (!json[deviation].contains(name))
            throw InvalidInput("{} has a mean of '{}' and no {}.", path.string(), name, deviation);
        fields.push_back(
            {name, numbers_of(mean, fmt::format("{}: mean of {}", path.string(), name)),
             numbers_of(json[deviation][name], fmt::format("{}: {} of {}", path.string(), deviation, name))});
        if (fields.back().mean.size() != fields.back().std.size())
            throw InvalidInput("{}: mean and {} of '{}' differ in length.", path.string(), deviation, name);
    }
    const std::vector<std::string> order{"velocity", "pressure_volume", "pressure", "shear_stress",
                                         "turbulent_viscosity"};
    std::ranges::stable_sort(fields, [&](const auto& a, const auto& b) {
        return std::ranges::find(order, a.name) - order.begin() < std::ranges::find(order, b.name) - order.begin();
    });
    return fields;
}

/// Reads fields as a user lists them: `pressure,shear_stress:3`.
std::vector<std::pair<std::string, std::int64_t>> parse_fields(const std::string& text)
{
    std::vector<std::pair<std::string, std::int64_t>> fields;
    std::istringstream list(text);
    for (std::string word; std::getline(list, word, ',');) {
        const auto colon = word.find(':');
        const auto count = colon == std::string::npos ? "1" : word.substr(colon + 1);
        if (word.empty() || colon == 0 || count.empty() || count.size() > 4 ||
            count.find_first_not_of("0123456789") != std::string::npos || count == "0") {
            throw InvalidInput("--fields {}: expected names with their channels, e.g. pressure,shear_stress:3.", text);
        }
        fields.emplace_back(word.substr(0, colon), std::stoll(count));
    }
    return fields;
}

}  // namespace

std::size_t num_trained_parts(const std::filesystem::path& run_or_checkpoint)
{
    const auto path =
        std::filesystem::is_regular_file(run_or_checkpoint) ? run_or_checkpoint : choose_checkpoint(run_or_checkpoint);
    if (format_of_content(path) != CheckpointFormat::Safetensors || !read_checkpoint(path).weights.find("norm.mean"))
        return 1;
    return Checkpoint(path).description().parts.size();
}

std::size_t part_of_file(const std::filesystem::path& mesh)
{
    return lower_extension(mesh) == ".vtu" || lower_extension(mesh) == ".pvtu" ? 1 : 0;
}

std::filesystem::path run_of(const std::filesystem::path& checkpoint)
{
    const auto folder = std::filesystem::absolute(checkpoint).lexically_normal().parent_path();
    const auto run = folder.parent_path();
    return folder.filename() == "checkpoints" && std::filesystem::exists(run / "resolved_config.yaml")
               ? run
               : std::filesystem::path();
}

Predictor Predictor::from_run(const std::filesystem::path& run_dir, std::size_t part)
{
    Predictor predictor;
    predictor.load_of_run(choose_checkpoint(run_dir), run_dir, part);
    return predictor;
}

void Predictor::load_of_run(const std::filesystem::path& checkpoint, const std::filesystem::path& run_dir,
                            std::size_t part)
{
    const auto seed = load_own(checkpoint, part);
    const auto both = training_config(read_run_settings(run_dir));
    auto config = both.of_part(part);
    config.data.series.told = data_.series.told;  // these follow from the cases
    config.data.series.mean_step = data_.series.mean_step;
    config.data.categories.values = data_.categories.values;
    const bool says_data = !data_.fields.empty();  // early versions did not
    if ((says_data && to_json(data_) != to_json(config.data)) || seed.value_or(both.seed) != both.seed) {
        throw IoError("{} is of another run than {}: data or seed differ. Put the run's own files back.",
                      checkpoint_.string(), (run_dir / "resolved_config.yaml").string());
    }
    data_ = config.data;
    domain_ = both.domain;
    if (other_part_) other_part_ = both.of_part(1 - part).data;
    forces_ = config.forces;
    if (channels_.size() != data_.fields.size())
        throw IoError("{} and resolved_config.yaml disagree in the number of fields.", checkpoint_.string());
}

std::optional<std::int64_t> Predictor::load_own(const std::filesystem::path& path, std::size_t part)
{
    checkpoint_ = path;
    const Checkpoint checkpoint(path);
    const auto& run = checkpoint.description();
    feature_distance_ = kept_features(path, run.progress.num_steps);
    const auto& own = run.parts.at(part);
    model_ = make_model(run.model_class, run.model_arguments);
    data_ = own.data;
    ranges_ = own.ranges;
    facing_ = own.facing;
    encode_coordinates(model_, data_.encoding, 0);  // the checkpoint has its values
    for (const auto& field : run.fields) channels_.push_back(field.num_channels);
    const auto categories = category_channels(data_, channels_);
    if (!data_.is_grid) encode_categories(model_, categories);
    head_ = run.head;
    if (head_) forward_with_head_ = add_coefficient_head(model_, head_->num_features, std::ssize(head_->names));
    if (part == 0) shape_coefficients_ = run.shape_coefficients;
    if (part == 0) held_out_errors_ = run.held_out_errors;
    checkpoint.load_weights(*model_.module);
    if (data_.is_grid) take_rows_of_grids(model_, checkpoint.input_normalizer(), !data_.mask.empty(), categories);
    if (data_.series.is_on) told_mean_ = checkpoint.input_normalizer().mean;
    if (data_.series.is_on && !data_.is_grid) of_inputs_ = checkpoint.input_normalizer();
    model_.module->eval();
    normalizer_ = checkpoint.normalizer();
    training_mean_ = checkpoint.training_mean();
    if (!run.validation_errors.is_null() && std::isfinite(run.progress.best_error))
        validation_error_ = run.progress.best_error;
    if (run.parts.size() == 1) return run.seed;
    if (const auto* of_bodies = find_model(model_.class_name).of_bodies(); of_bodies && of_bodies->needs_both_parts)
        other_part_ = run.parts[1 - part].data;
    // Fields and channels of the surface come first.
    const auto num_on_surface = static_cast<std::ptrdiff_t>(run.parts[0].data.fields.size());
    const auto of_surface = std::accumulate(channels_.begin(), channels_.begin() + num_on_surface, std::int64_t{0});
    const auto of_part = [&](const at::Tensor& of_all) {
        return part == 1 ? of_all.slice(0, of_surface) : of_all.slice(0, 0, of_surface);
    };
    normalizer_ = {of_part(normalizer_.mean), of_part(normalizer_.std)};
    training_mean_ = of_part(training_mean_);
    if (part == 1)
        channels_.erase(channels_.begin(), channels_.begin() + num_on_surface);
    else
        channels_.resize(num_on_surface);
    model_.forward = [of_parts = model_.forward_parts, part](const PointInputs& inputs) {
        return part == 1 ? of_parts(nullptr, &inputs).volume : of_parts(&inputs, nullptr).surface;
    };
    return run.seed;
}

Predictor Predictor::from_file(const std::filesystem::path& file, const DataOptions& options, std::size_t part)
{
    Predictor predictor;
    const auto checkpoint = read_checkpoint(file);
    if (checkpoint.weights.find("norm.mean")) {
        if (const auto run = run_of(file); !run.empty()) {
            predictor.load_of_run(file, run, part);
            return predictor;
        }
        predictor.load_own(file, part);
        if (predictor.data_.fields.empty())
            throw InvalidInput(
                "{} is of an earlier version and does not say what its data are. Predict with the run's folder.",
                file.string());
        return predictor;
    }
    predictor.checkpoint_ = file;
    predictor.notes_ = checkpoint.notes;
    const auto [name, arguments] = architecture_of(checkpoint, file);
    const auto& entry = find_point_model(name);
    if (entry.of_bodies())
        throw InvalidInput("{} does not say all that {} is told of a case: the boxes around it, the unit "
                           "of areas, and how fields were scaled. "
                           "Train one here and predict with the run's folder, or load the weights in C++.",
                           file.string(), entry.class_name);
    auto known = known_arguments(entry, arguments, predictor.notes_);
    if (options.num_neighbors > 0) {
        if (!entry.defaults.contains(kNumNeighbors))
            throw InvalidInput("--neighbors is for models on graphs; {} of {} is none.", entry.class_name,
                               file.string());
        known[kNumNeighbors] = options.num_neighbors;
    } else if (entry.defaults.contains(kNumNeighbors) && !known.contains(kNumNeighbors)) {
        predictor.notes_.push_back(fmt::format("{} does not say its graph: each point hears its {} nearest; "
                                               "--neighbors says another number. An edge carries "
                                               "the way from its target to its source, and its length.",
                                               file.string(), entry.defaults[kNumNeighbors].dump()));
    }
    require_plausible(known, "arguments", checkpoint.weights, file);
    predictor.model_ = make_model(name, known);
    load_weights(checkpoint.weights, file, *predictor.model_.module);
    predictor.model_.module->eval();

    const auto& widths_of = entry.of_points()->widths_of;
    if (!widths_of)
        throw InvalidInput("{}: {} does not say what it takes of points; predict with a run's folder.", file.string(),
                           entry.class_name);
    const auto num_constants = std::ssize(options.constants);
    const auto widths = widths_of(predictor.model_.arguments, num_constants);
    auto& data = predictor.data_;
    data.on_cells = options.on_cells;
    if (widths.embedding_dim != 6) data.inputs = {"points"};
    data.frame = {options.center, options.length};
    if (widths.embedding_dim != num_point_channels(data)) {
        throw InvalidInput("{}: the model is told {} numbers of each point besides constants; here there "
                           "are places (3), or places and normals "
                           "(6). Constants are given with --constants.",
                           file.string(), widths.embedding_dim);
    }
    predictor.constants_ = options.constants;
    predictor.time_ = options.time;
    if (widths.has_time && !options.time)
        throw InvalidInput("{}: the model is told the time of a case. Give it with --time.", file.string());
    if (options.time && !widths.has_time)
        throw InvalidInput("{}: the model is told no time; leave --time out.", file.string());
    if (entry.arguments_for(widths) !=
        entry.arguments_for({widths.embedding_dim, num_constants, widths.out_dim, widths.has_time})) {
        throw InvalidInput("{}: the model is told {} constants of a case, e.g. density and speed, and {} "
                           "were given. Give them with --constants, in "
                           "the order of its training.",
                           file.string(), widths.num_constants, num_constants);
    }
    predictor.name_fields(options, widths.out_dim);
    return predictor;
}

void Predictor::name_fields(const DataOptions& options, std::int64_t num_channels)
{
    const auto path = checkpoint_.parent_path() / "global_stats.json";
    const auto statistics = read_statistics(path);
    std::vector<float> mean, std;
    std::vector<std::pair<std::string, std::int64_t>> fields = parse_fields(options.fields);
    for (const auto& field : statistics) {
        append(mean, field.mean);
        append(std, field.std);
        if (options.fields.empty()) fields.emplace_back(field.name, std::ssize(field.mean));
    }
    if (statistics.empty()) {
        notes_.push_back(
            fmt::format("there is no {} with means and deviations: the fields stay in the units that the model gives.",
                        path.string()));
        mean.assign(num_channels, 0.0F);
        std.assign(num_channels, 1.0F);
        if (fields.empty()) fields.emplace_back("prediction", num_channels);
    }
    const auto total = std::accumulate(fields.begin(), fields.end(), std::int64_t{0},
                                       [](auto sum, const auto& field) { return sum + field.second; });
    if (total != num_channels || std::ssize(mean) != num_channels) {
        throw InvalidInput("{}: the model gives {} channels, the fields have {} and the statistics {}. "
                           "Name the fields with --fields, e.g. "
                           "pressure,shear_stress:3, and repair {}.",
                           checkpoint_.string(), num_channels, total, mean.size(), path.string());
    }
    for (const auto& [name, count] : fields) {
        data_.fields.push_back({name, name, ""});
        channels_.push_back(count);
    }
    normalizer_ = {torch::tensor(mean), torch::tensor(std)};
    training_mean_ = normalizer_.mean;
}

void Predictor::move_to(const at::Device& device)
{
    move_module(*model_.module, device);
    normalizer_ = normalizer_.on(device);
    training_mean_ = training_mean_.to(device);
    if (of_inputs_) of_inputs_ = of_inputs_->on(device);
}

bool Predictor::has_weights_of(const Predictor& other) const
{
    const auto equal = [](const auto& a, const auto& b) { return a.sizes() == b.sizes() && torch::equal(a, b); };
    return model_.class_name == other.model_.class_name &&
           std::ranges::equal(model_.module->parameters(), other.model_.module->parameters(), equal);
}

bool Predictor::has_dropout() const
{
    return model_.arguments.value("dropout", 0.0) > 0;
}

void Predictor::draw_dropout(std::uint64_t seed)
{
    model_.module->train();
    seed_draws(*model_.module, seed);
}

at::Tensor Predictor::predict(const PointInputs& inputs, const FieldScaling& scaling, std::vector<double>* of_head)
{
    const torch::NoGradGuard no_grad;
    return within_memory([&] { return load_of(inputs); }, [&] { return predicted(inputs, scaling, of_head); });
}

at::Tensor Predictor::predict_differentiably(const PointInputs& inputs, const FieldScaling& scaling)
{
    for (auto& weights : model_.module->parameters()) weights.set_requires_grad(false);
    return within_memory([&] { return load_of(inputs); }, [&] { return predicted(inputs, scaling, nullptr); });
}

std::optional<FeatureDistance::Distance> Predictor::feature_distance(const PointInputs& inputs) const
{
    if (!feature_distance_) return std::nullopt;
    model_.module->eval();  // draws of the mesh before may have left dropout on; training measured without it
    const auto features =
        mean_last_features(model_, thinned_inputs(inputs, kPointsOfFeatures), normalizer_.mean.size(0));
    if (!features.defined() || features.size(0) != feature_distance_->num_features()) return std::nullopt;
    return feature_distance_->of(features);
}

void Predictor::set_type(at::ScalarType type)
{
    const torch::NoGradGuard no_grad;
    for (const auto& all : {model_.module->parameters(), model_.module->buffers()})
        for (auto tensor : all)
            if (tensor.is_floating_point()) tensor.set_data(tensor.to(type));
}

/// Describes a prediction to `within_memory`.
DeviceLoad Predictor::load_of(const PointInputs& inputs) const
{
    const auto local = to_local(inputs.embedding);
    const auto num_ranks = is_sharded(inputs.embedding) ? spec_of(inputs.embedding)->device_mesh->num_ranks() : 1;
    DeviceLoad load{.device = local.device(),
                    .what = "a prediction of " + checkpoint_.string(),
                    .num_points =
                        inputs.grid.empty() ? local.size(1) : local.numel() / std::max<std::int64_t>(1, local.size(-1)),
                    .num_ranks = num_ranks,
                    .rank_option = "--nproc "};
    constexpr auto kAll = std::numeric_limits<std::int64_t>::max();
    const auto has_modes = std::ranges::any_of(model_.module->modules(), [](const auto& part) {
        const auto* model = dynamic_cast<const HasMemoryModes*>(part.get());
        return model && model->inference_memory(1, kAll);
    });
    if (has_modes) {
        load.memory = name_of(memory_);
        load.mode_option = "--memory ";
        load.modes = {"stored", "recomputed", "streamed"};
    }
    return load;
}

at::Tensor Predictor::predicted(const PointInputs& told, const FieldScaling& scaling, std::vector<double>* of_head)
{
    auto inputs = told;
    if (of_inputs_) inputs.embedding = of_inputs_->normalize(told.embedding);
    at::Tensor fields;
    if (forward_with_head_) {
        const auto predicted = forward_with_head_(inputs);
        fields = predicted.fields;
        if (of_head) *of_head = physical_coefficients(predicted.coefficients, head_->means, head_->deviations);
    } else {
        fields = model_.forward(inputs);
    }
    return scaling.on(normalizer_.mean.device()).physical(normalizer_.denormalize(fields));
}

}  // namespace meshard
