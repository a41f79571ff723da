// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/settings/grid_settings.h"

#include "apps/console/console.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <exception>
#include <set>

namespace meshard {
namespace {

/// A key that, with all keys below it, has no meaning for grids.
struct RefusedKey {
    std::string_view path;
    std::string_view why;
};

constexpr RefusedKey kRefused[] = {
    {"data.surface", "data.grid stands in its place"},
    {"data.volume", "data.grid stands in its place"},
    {"data.inputs", "a model of grids is told the arrays of data.arrays"},
    {"data.normals", "a grid has no normals"},
    {"data.orient", "a grid has no surface"},
    {"data.wall", "distances of a grid are one of its arrays; name it in data.arrays"},
    {"data.wall_patches", "distances of a grid are one of its arrays; name it in data.arrays"},
    {"data.distances", "distances of a grid are one of its arrays; name it in data.arrays"},
    {"data.ground", "heights of a grid are one of its arrays; name it in data.arrays"},
    {"data.encoding", "a model of grids is not told the places of its cells"},
    {"data.center", "a model of grids is not told the places of its cells"},
    {"data.length", "a model of grids is not told the places of its cells"},
    {"data.time", "models of grids take no time; name the column among data.constants"},
    {"data.forces", "a regular grid has no surface on which forces act"},
    {"data.sampling", "a model of grids takes all of a grid"},
    {"data.sampling_resolution", "a model of grids takes all of a grid"},
    {"data.parts", "grids are cut into rows, one block a rank, while they are read"},
    {"training.augment", "it turns and shifts points"},
    {"training.point_weights", "all cells of a grid have the same size"},
    {"training.coefficient_weights", "a regular grid has no surface on which forces act"},
    {"data.sets", "there is one set of grids: put all of them below data.grid"},
    {"training.exact", "convolutions and Fourier transforms add in an order that depends on the cut"},
};

bool is_below(std::string_view path, std::string_view key)
{
    return path == key || (path.starts_with(key) && path.size() > key.size() && path[key.size()] == '.');
}

std::string names_of(bool of_grids)
{
    std::vector<std::string> names;
    for (const auto& entry : registered_models()) {
        const auto* model = entry.of_grids();
        if ((model != nullptr) == of_grids && !(model && model->is_denoiser)) names.push_back(entry.name);
    }
    return fmt::format("{}", fmt::join(names, ", "));
}

nlohmann::json with_defaults(const ModelEntry& entry, const nlohmann::json& given)
{
    auto arguments = entry.defaults;
    arguments.update(given);
    return arguments;
}

}  // namespace

void refuse_keys_of_points(const Settings& settings)
{
    const auto rules = training_rules();
    for (const auto& setting : settings.all()) {
        if (is_default(setting, rules)) continue;
        for (const auto& [path, why] : kRefused) {
            if (!is_below(setting.path, path)) continue;
            throw UsageError("{} does not go with data.grid: {}. Leave it out.", settings.where(setting.path), why);
        }
    }
}

void check_grid_arrays(const Settings& settings, const std::vector<std::string>& arrays)
{
    if (arrays.empty())
        throw UsageError("data.arrays must name the arrays that the model is told, e.g. data.arrays=[permeability].");
    if (std::set<std::string>(arrays.begin(), arrays.end()).size() != arrays.size())
        settings.refuse("data.arrays", "names an array twice.");
}

void require_matching_model(const Settings& settings, const ModelConfig& model, const DataConfig& data)
{
    const auto& entry = find_model(model.name);
    if ((entry.of_grids() != nullptr) != data.is_grid) {
        throw UsageError("{} is {}, a model of {}.", settings.where("model.name"), entry.name,
                         data.is_grid
                             ? "points, and the cases are grids (data.grid); models of grids are " + names_of(true)
                             : "grids, and the cases are none (data.grid); models of points are " + names_of(false));
    }
    if (!data.is_grid && settings.has("data.mask"))
        settings.refuse("data.mask", "belongs to grids: what does not count of a mesh is left out of its file.");
    if (!data.is_grid && !data.series.is_on && settings.has("data.arrays"))
        settings.refuse("data.arrays",
                        "belongs to data.grid and data.series; what points are told is said by data.inputs.");
}

void check_denoiser(const Settings& settings, const TrainingRunConfig& config)
{
    const auto* of_grids = find_model(config.model.name).of_grids();
    if (!of_grids || !of_grids->denoiser) return;
    const auto refuse = [&](const char* key, const char* why) {
        throw UsageError("{}: {} learns to remove noise. {}", settings.where(key), config.model.name, why);
    };
    const auto& terms = config.training.loss.terms;
    if (terms.size() != 1 || terms.front().kind != LossKind::MeanSquare)
        refuse("training.loss", "Its loss is the mean square: set mse, or leave it out.");
    if (config.training.unroll.num_steps > 1)
        refuse("training.unroll", "Its states are samples, through which no gradients go. Set 1, and add "
                                  "training.noise for long roll-outs.");
}

std::int64_t rows_together(const ModelConfig& model)
{
    const auto& entry = find_model(model.name);
    const auto* of_grids = entry.of_grids();
    return of_grids && of_grids->rows_together ? of_grids->rows_together(with_defaults(entry, model.arguments)) : 1;
}

bool reads_neighbors(const ModelConfig& model)
{
    const auto* of_grids = find_model(model.name).of_grids();
    return of_grids && of_grids->reads_neighbors;
}

void check_grid_model(const ModelConfig& model)
{
    // The grids are not known yet, so it is enough that the model takes some number of directions and rows.
    constexpr std::int64_t kMany = 1024;
    std::exception_ptr error;
    const auto& of_grids = *find_model(model.name).of_grids();
    for (const auto directions : of_grids.directions) {
        try {
            auto given = model;
            GridWidths widths{.in_channels = 1,
                              .out_channels = 1,
                              .extents = std::vector<std::int64_t>(directions, kMany * rows_together(model))};
            const auto arguments = of_grids.widths(widths);
            for (const auto& [name, value] : arguments.items()) given.arguments.erase(name);
            grid_model_arguments(given, widths);
            return;
        } catch (const InvalidInput&) {
            error = std::current_exception();
        }
    }
    std::rethrow_exception(error);
}

nlohmann::json grid_model_arguments(const ModelConfig& model, GridWidths widths)
{
    const auto& entry = find_model(model.name);
    if (entry.of_grids()->denoiser) widths.in_channels += widths.out_channels;
    const auto& directions = entry.of_grids()->directions;
    const auto num_directions = std::ssize(widths.extents);
    if (!contains(directions, num_directions)) {
        throw InvalidInput("the grids have {} directions with more than one row, and {} takes {}. Take another of {}.",
                           num_directions, entry.name, fmt::join(directions, " or "), names_of(true));
    }
    auto arguments = entry.of_grids()->widths(widths);
    for (const auto& [name, value] : model.arguments.items()) {
        if (const auto width = arguments.find(name); width != arguments.end() && *width != value) {
            throw InvalidInput("model.{} is {}, and by the cases it is {}. It follows from them: leave it out.", name,
                               value.dump(), width->dump());
        }
        arguments[name] = value;
    }
    return complete_arguments(entry, arguments);
}

}  // namespace meshard
