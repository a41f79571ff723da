// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/predictor.h"

#include "apps/learning/checkpoints/run_checkpoint.h"
#include "apps/learning/checkpoints/tensor_file.h"
#include "apps/learning/settings/run_record.h"
#include "io/checkpoints/model_checkpoint.h"
#include "models/layers/random_draws.h"
#include "models/registry/encoded_model.h"
#include "models/registry/grid_forward.h"
#include "partition/error.h"
#include "sharding/parameters/move_module.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/torch.h>

#include <algorithm>
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
            run_dir.string() +
            " is no checkpoint; the folder of a run, or a file of weights (.safetensors, .mdlus, .pt), is expected.");
    }
    throw IoError(run_dir.string() + " has no checkpoints/best.safetensors or last.safetensors. Is it the folder of a "
                                     "run, and has it trained for an epoch?");
}

/// Null if there is no such file.
Json read_json(const std::filesystem::path& path)
{
    std::ifstream stream(path);
    if (!stream) return {};
    auto json = Json::parse(stream, nullptr, false);
    if (!json.is_object()) throw IoError(path.string() + " is no JSON object.");
    return json;
}

/// Class and arguments of the model.
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
        file.string() + " does not say which model its weights belong to. Write " + beside.string() +
        R"( with {"model_class": "Transolver", "model": {"functional_dim": 2, ...}}, or take a .mdlus file.)");
}

/// Those that the model knows; of the others a note.
nlohmann::json known_arguments(const ModelEntry& entry, const nlohmann::json& arguments,
                               std::vector<std::string>& notes)
{
    auto known = nlohmann::json::object();
    for (const auto& [name, value] : arguments.items()) {
        if (entry.defaults.contains(name))
            known[name] = value;
        else
            notes.push_back("the argument " + name + " = " + value.dump() + " is not known to " + entry.class_name +
                            " here, and passed over.");
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
    throw IoError(file.string() + ": its " + name + " is " + value.dump() + ", which its " +
                  std::to_string(weights.arrays.size()) + " arrays" +
                  (counts_layers ? "" : " of " + std::to_string(static_cast<std::int64_t>(most)) + " values") +
                  " do not fit. The file is damaged or made up.");
}

void put_weights(const NamedArrays& weights, const std::filesystem::path& file, torch::nn::Module& module)
{
    torch::NoGradGuard no_grad;
    std::size_t num_found = 0;
    const auto copy = [&](const std::string& name, at::Tensor place) {
        const auto* array = weights.find(name);
        if (!array) throw IoError(file.string() + " has no '" + name + "'; its architecture is another.");
        const auto value = to_tensor(*array);
        if (value.sizes() != place.sizes()) {
            std::ostringstream message;
            message << file.string() << ": '" << name << "' is " << value.sizes() << ", the model's is "
                    << place.sizes() << ".";
            throw IoError(message.str());
        }
        place.copy_(value);
        ++num_found;
    };
    for (const auto& item : module.named_parameters()) copy(item.key(), item.value());
    for (const auto& item : module.named_buffers()) copy(item.key(), item.value());
    if (num_found == weights.arrays.size()) return;
    const auto parameters = module.named_parameters();
    const auto buffers = module.named_buffers();
    for (const auto& array : weights.arrays) {
        if (!parameters.contains(array.name) && !buffers.contains(array.name)) {
            throw IoError(file.string() + " has '" + array.name +
                          "', which the model has not; its architecture is another.");
        }
    }
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
            throw InvalidInput(where + " is " + value.dump() + "; expected a number or a list of numbers.");
        numbers.push_back(number.get<float>());
    }
    return numbers;
}

/// In the order of the models' channels: the reference's recipes put velocity and pressure before the rest.
std::vector<FieldStatistics> read_statistics(const std::filesystem::path& path)
{
    const auto json = read_json(path);
    if (json.is_null()) return {};
    const auto* deviation = json.contains("std_dev") ? "std_dev" : "std";
    if (!json.contains("mean") || !json.contains(deviation))
        throw InvalidInput(path.string() + " must hold \"mean\" and \"std_dev\" (or \"std\").");
    std::vector<FieldStatistics> fields;
    for (const auto& [name, mean] : json["mean"].items()) {
        if (!json[deviation].contains(name))
            throw InvalidInput(path.string() + " has a mean of '" + name + "' and no " + deviation + ".");
        fields.push_back({name, numbers_of(mean, path.string() + ": mean of " + name),
                          numbers_of(json[deviation][name], path.string() + ": " + deviation + " of " + name)});
        if (fields.back().mean.size() != fields.back().std.size())
            throw InvalidInput(path.string() + ": mean and " + deviation + " of '" + name + "' differ in length.");
    }
    const std::vector<std::string> order{"velocity", "pressure_volume", "pressure", "shear_stress",
                                         "turbulent_viscosity"};
    std::stable_sort(fields.begin(), fields.end(), [&](const auto& a, const auto& b) {
        return std::find(order.begin(), order.end(), a.name) - order.begin() <
               std::find(order.begin(), order.end(), b.name) - order.begin();
    });
    return fields;
}

/// Fields as a user lists them: `pressure,shear_stress:3`.
std::vector<std::pair<std::string, std::int64_t>> parse_fields(const std::string& text)
{
    std::vector<std::pair<std::string, std::int64_t>> fields;
    std::istringstream list(text);
    for (std::string word; std::getline(list, word, ',');) {
        const auto colon = word.find(':');
        const auto count = colon == std::string::npos ? "1" : word.substr(colon + 1);
        if (word.empty() || colon == 0 || count.empty() || count.size() > 4 ||
            count.find_first_not_of("0123456789") != std::string::npos || count == "0") {
            throw InvalidInput("--fields " + text +
                               ": expected names with their channels, e.g. pressure,shear_stress:3.");
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
    return Checkpoint(path).description().contains("volume") ? 2 : 1;
}

std::size_t part_of_file(const std::filesystem::path& mesh)
{
    return mesh.extension() == ".vtu" || mesh.extension() == ".pvtu" ? 1 : 0;
}

Predictor Predictor::from_run(const std::filesystem::path& run_dir, std::size_t part)
{
    Predictor predictor;
    const auto description = predictor.load_own(choose_checkpoint(run_dir), part);
    const auto both = training_config(read_run_settings(run_dir));
    const auto config = both.of_part(part);
    const bool says_data = !predictor.data_.fields.empty();  // earlier versions did not
    if ((says_data && to_json(predictor.data_) != to_json(config.data)) ||
        description.value("seed", both.seed) != both.seed) {
        throw IoError(predictor.checkpoint_.string() + " is of another run than " +
                      (run_dir / "resolved_config.yaml").string() +
                      ": data or seed differ. Put the run's own files back.");
    }
    predictor.data_ = config.data;
    if (predictor.other_part_) predictor.other_part_ = both.of_part(1 - part).data;
    predictor.forces_ = config.forces;
    if (predictor.channels_.size() != predictor.data_.fields.size()) {
        throw IoError(predictor.checkpoint_.string() + " and resolved_config.yaml disagree in the number of fields.");
    }
    return predictor;
}

nlohmann::json Predictor::load_own(const std::filesystem::path& path, std::size_t part)
{
    checkpoint_ = path;
    const Checkpoint checkpoint(path);
    const auto& description = checkpoint.description();
    model_ = make_model(description.value("model_class", ""), description.at("model"));
    const bool has_volume = description.contains("volume");
    if (description.contains("data")) data_ = data_config(description[part == 1 ? "volume" : "data"]);
    encode_coordinates(model_, data_.encoding, 0);  // whose values the checkpoint has
    if (description.contains("coefficients")) {
        const auto& head = description["coefficients"];
        names_of_head_ = head.at("names").get<std::vector<std::string>>();
        means_of_head_ = head.at("means").get<std::vector<double>>();
        deviations_of_head_ = head.at("deviations").get<std::vector<double>>();
        forward_with_head_ =
            add_coefficient_head(model_, head.at("features"), static_cast<std::int64_t>(names_of_head_.size()));
    }
    if (part == 0 && description.contains("shape_coefficients"))
        shape_coefficients_ = ShapeCoefficients::from_json(description["shape_coefficients"]);
    checkpoint.load_weights(*model_.module);
    if (data_.is_grid) take_rows_of_grids(model_, checkpoint.input_normalizer());
    model_.module->eval();
    normalizer_ = checkpoint.normalizer();
    training_mean_ = checkpoint.training_mean();
    for (const auto& field : description.at("fields")) channels_.push_back(field.at("channels").get<std::int64_t>());
    if (description.contains("val") && description.contains("best_error") && description["best_error"].is_number())
        validation_error_ = description["best_error"];
    ranges_ = InputRanges::from_json(description.value(part == 1 ? "volume_input_ranges" : "input_ranges",
                                                       nlohmann::json()));  // not said by earlier versions
    const auto facing = description.value(part == 1 ? "volume_facing" : "facing", nlohmann::json::object());
    facing_ = {FacingCounts::from_json(facing.value("surfaces", nlohmann::json())),
               FacingCounts::from_json(facing.value("walls", nlohmann::json()))};
    if (!has_volume) return description;
    if (const auto* of_bodies = find_model(model_.class_name).of_bodies();
        of_bodies && of_bodies->needs_both_parts && description.contains("data"))
        other_part_ = data_config(description[part == 1 ? "data" : "volume"]);
    // Fields and channels of the surface come first.
    const auto num_on_surface = static_cast<std::ptrdiff_t>(description.at("data").at("fields").size());
    const auto of_surface = std::accumulate(channels_.begin(), channels_.begin() + num_on_surface, std::int64_t{0});
    const auto own = [&](const at::Tensor& of_all) {
        return part == 1 ? of_all.slice(0, of_surface) : of_all.slice(0, 0, of_surface);
    };
    normalizer_ = {own(normalizer_.mean), own(normalizer_.std)};
    training_mean_ = own(training_mean_);
    if (part == 1)
        channels_.erase(channels_.begin(), channels_.begin() + num_on_surface);
    else
        channels_.resize(num_on_surface);
    model_.forward = [of_parts = model_.forward_parts, part](const PointInputs& inputs) {
        return part == 1 ? of_parts(nullptr, &inputs).volume : of_parts(&inputs, nullptr).surface;
    };
    return description;
}

Predictor Predictor::from_file(const std::filesystem::path& file, const DataOptions& options, std::size_t part)
{
    Predictor predictor;
    const auto checkpoint = read_checkpoint(file);
    if (checkpoint.weights.find("norm.mean")) {
        predictor.load_own(file, part);
        if (predictor.data_.fields.empty())
            throw InvalidInput(
                file.string() +
                " is of an earlier version and does not say what its data are. Predict with the run's folder.");
        return predictor;
    }
    predictor.checkpoint_ = file;
    predictor.notes_ = checkpoint.notes;
    const auto [name, arguments] = architecture_of(checkpoint, file);
    const auto& entry = find_point_model(name);
    if (entry.of_bodies())
        throw InvalidInput(file.string() + " does not say all that " + entry.class_name +
                           " is told of a case: the boxes around it, the unit of areas, and how fields were scaled. "
                           "Train one here and predict with the run's "
                           "folder, or load the weights in C++.");
    auto known = known_arguments(entry, arguments, predictor.notes_);
    if (options.num_neighbors > 0) {
        if (!entry.defaults.contains(kNumNeighbors))
            throw InvalidInput("--neighbors is for models on graphs; " + entry.class_name + " of " + file.string() +
                               " is none.");
        known[kNumNeighbors] = options.num_neighbors;
    } else if (entry.defaults.contains(kNumNeighbors) && !known.contains(kNumNeighbors)) {
        predictor.notes_.push_back(file.string() + " does not say its graph: each point hears its " +
                                   entry.defaults[kNumNeighbors].dump() +
                                   " nearest; --neighbors says another number. An edge carries the way from its target "
                                   "to its source, and its length.");
    }
    require_plausible(known, "arguments", checkpoint.weights, file);
    predictor.model_ = make_model(name, known);
    put_weights(checkpoint.weights, file, *predictor.model_.module);
    predictor.model_.module->eval();

    const auto& widths_of = entry.of_points()->widths_of;
    if (!widths_of)
        throw InvalidInput(file.string() + ": " + entry.class_name +
                           " does not say what it takes of points; predict with a run's folder.");
    const auto num_constants = static_cast<std::int64_t>(options.constants.size());
    const auto widths = widths_of(predictor.model_.arguments, num_constants);
    auto& data = predictor.data_;
    data.on_cells = options.on_cells;
    if (widths.embedding_dim != 6) data.inputs = {"points"};
    data.frame = {options.center, options.length};
    if (widths.embedding_dim != num_point_channels(data)) {
        throw InvalidInput(file.string() + ": the model is told " + std::to_string(widths.embedding_dim) +
                           " numbers of each point besides constants; here there are places (3), or places and normals "
                           "(6). Constants are given with --constants.");
    }
    predictor.constants_ = options.constants;
    predictor.time_ = options.time;
    if (widths.has_time && !options.time)
        throw InvalidInput(file.string() + ": the model is told the time of a case. Give it with --time.");
    if (options.time && !widths.has_time)
        throw InvalidInput(file.string() + ": the model is told no time; leave --time out.");
    if (entry.arguments_for(widths) !=
        entry.arguments_for({widths.embedding_dim, num_constants, widths.out_dim, widths.has_time})) {
        throw InvalidInput(file.string() + ": the model is told " + std::to_string(widths.num_constants) +
                           " constants of a case, e.g. density and speed, and " + std::to_string(num_constants) +
                           " were given. Give them with --constants, in the order of its training.");
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
        mean.insert(mean.end(), field.mean.begin(), field.mean.end());
        std.insert(std.end(), field.std.begin(), field.std.end());
        if (options.fields.empty()) fields.emplace_back(field.name, static_cast<std::int64_t>(field.mean.size()));
    }
    if (statistics.empty()) {
        notes_.push_back("there is no " + path.string() +
                         " with means and deviations: the fields stay in the units that the model gives.");
        mean.assign(num_channels, 0.0F);
        std.assign(num_channels, 1.0F);
        if (fields.empty()) fields.emplace_back("prediction", num_channels);
    }
    const auto total = std::accumulate(fields.begin(), fields.end(), std::int64_t{0},
                                       [](auto sum, const auto& field) { return sum + field.second; });
    if (total != num_channels || static_cast<std::int64_t>(mean.size()) != num_channels) {
        throw InvalidInput(
            checkpoint_.string() + ": the model gives " + std::to_string(num_channels) + " channels, the fields have " +
            std::to_string(total) + " and the statistics " + std::to_string(mean.size()) +
            ". Name the fields with --fields, e.g. pressure,shear_stress:3, and repair " + path.string() + ".");
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
    return within_memory([&] { return load_of(inputs); }, [&] { return predicted(inputs, scaling, of_head); });
}

/// A prediction, for the case that the device's memory ends.
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

at::Tensor Predictor::predicted(const PointInputs& inputs, const FieldScaling& scaling, std::vector<double>* of_head)
{
    torch::NoGradGuard no_grad;
    at::Tensor fields;
    if (forward_with_head_) {
        const auto predicted = forward_with_head_(inputs);
        fields = predicted.fields;
        if (of_head) *of_head = physical_coefficients(predicted.coefficients, means_of_head_, deviations_of_head_);
    } else {
        fields = model_.forward(inputs);
    }
    return scaling.on(normalizer_.mean.device()).physical(normalizer_.denormalize(fields));
}

}  // namespace meshard
