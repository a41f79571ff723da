// SPDX-License-Identifier: Apache-2.0
// What models are told of the data, and how checkpoints describe it.
#include "apps/learning/settings/described_keys.h"
#include "apps/learning/settings/training_config.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cmath>
#include <sstream>

namespace meshard {

double quantity_of(const std::string& name, const std::vector<std::string>& entries,
                   const std::function<double(const std::string&)>& column_value)
{
    std::vector<double> values;
    for (const auto& entry : entries) {
        const auto number = number_in(entry);
        values.push_back(number ? *number : column_value(entry));
    }
    if (values.size() == 3) return std::hypot(values[0], values[1], values[2]);
    return name == "U_inf" ? std::abs(values.at(0)) : values.at(0);
}

bool DataConfig::has_input(std::string_view input) const
{
    return contains(inputs, input);
}

std::vector<std::string> DataConfig::told_arrays() const
{
    auto names = categories.names;
    append(names, arrays);
    return names;
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
    auto count = first_channel(data, {}) + std::ssize(data.series.told);
    if (!data.series.is_on) count += std::ssize(data.categories.names);
    for (const auto& kinds : data.categories.values) count += std::ssize(kinds) - 1;
    return count;
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

void describe(DescribedKeys& keys, FieldConfig& field)
{
    keys.required("name", field.name);
    keys.added("from", field.from);
    keys.added("kind", field.kind);
    keys.optional("state", field.state);
}

static void describe(DescribedKeys& keys, SeriesSettings& series)
{
    keys.required("is_on", series.is_on);
    keys.choice("next", series.learnt, kLearntStates);
    keys.required("history", series.history);
    keys.required("given", series.given);
    keys.required("told", series.told);
    keys.required("mean_step", series.mean_step);
}

static void describe(DescribedKeys& keys, CategorySettings& categories)
{
    keys.required("names", categories.names);
    keys.required("values", categories.values);
}

void describe(DescribedKeys& keys, DataConfig& data)
{
    auto inputs = fmt::format("{}", fmt::join(data.inputs, ", "));
    keys.choice("association", data.on_cells, {{"cell", true}, {"point", false}});
    keys.added("is_grid", data.is_grid);
    keys.added("arrays", data.arrays);
    keys.optional("categories", data.categories);
    keys.optional("mask", data.mask);
    keys.optional("series", data.series);
    keys.required("fields", data.fields);
    keys.required("inputs", inputs);
    keys.added("wall_patches", data.wall_patches);
    keys.required("normals", data.normals);
    keys.required("constants", data.constants);
    keys.added("time", data.time);
    keys.required("center", data.frame.center);
    keys.required("length", data.frame.length);
    keys.added("up", data.frame.up);
    keys.added("ground", data.frame.ground);
    keys.added("distances", data.distances);
    keys.added("encoding", data.encoding.kind);
    keys.added("encoding_frequencies", data.encoding.num_frequencies);
    keys.added("encoding_scales", data.encoding.scales);
    keys.choice("targets", data.nondimensional, {{"physical", false}, {"nondimensional", true}});
    keys.added("reference", data.reference);
    keys.added("reference_columns", data.reference_columns);
    keys.choice("vector_deviation", data.shares_deviation, {{"channels", false}, {"shared", true}});
    keys.added("sampling_resolution", data.num_sampled);
    keys.choice("sampling", data.sampling, kSamplingKinds);
    if (data.turns_outward || !keys.writes())
        keys.choice("orient", data.turns_outward, {{"as-is", false}, {"outward", true}});
    if (keys.writes()) return;
    data.inputs.clear();
    std::istringstream list(inputs);
    for (std::string name; std::getline(list >> std::ws, name, ',');) data.inputs.push_back(name);
}

nlohmann::json to_json(const DataConfig& data)
{
    const DataConfig initial;
    auto used = data;  // what has no effect beside the other settings stays at its default
    if (!data.has_input("height")) {
        used.frame.up = initial.frame.up;
        used.frame.ground = initial.frame.ground;
    }
    if (data.encoding.kind == "none") used.encoding = initial.encoding;
    if (!data.nondimensional) {
        used.reference.clear();
        used.reference_columns.clear();
    }
    nlohmann::json json;
    DescribedKeys keys(json);
    describe(keys, used);
    return json;
}

nlohmann::json model_arguments(const ModelConfig& model, const DataConfig& data, std::optional<std::int64_t> out_dim,
                               std::int64_t volume_out_dim)
{
    const auto& entry = find_point_model(model.name);
    PointWidths widths{.embedding_dim = num_point_channels(data) + data.encoding.num_channels(),
                       .num_constants = std::ssize(data.constants),
                       .out_dim = out_dim.value_or(1),
                       .has_time = !data.time.empty(),
                       .in_volume = data.in_volume,
                       .volume_out_dim = volume_out_dim};
    auto arguments = entry.arguments_for(widths);
    if (widths.has_time && !takes_time(entry)) {
        throw InvalidInput(
            "data.time is '{}', but {} is told no time: leave it out, or name the column among data.constants.",
            data.time, entry.name);
    }
    ++widths.out_dim;
    if (widths.volume_out_dim > 0) ++widths.volume_out_dim;
    const auto for_more_fields = entry.arguments_for(widths);
    for (const auto& [name, value] : model.arguments.items()) {
        const auto width = arguments.find(name);
        const bool is_known = width != arguments.end() && (out_dim || *width == for_more_fields[name]);
        if (is_known && *width != value) {
            const auto time = widths.has_time ? "'" + data.time + "'" : "not given";
            throw InvalidInput(
                "model.{} is {}, but data.inputs has {} channels{}, data.constants {}, data.time is {}{}. It follows "
                "from them: leave it out.",
                name, value.dump(), widths.embedding_dim, data.encoding.num_channels() > 0 ? " with data.encoding" : "",
                widths.num_constants, time, out_dim ? fmt::format(", and the fields have {} channels", *out_dim) : "");
        }
        arguments[name] = value;
    }
    if (entry.defaults.contains("aabb_min") && !(arguments.contains("aabb_min") && arguments.contains("aabb_max"))) {
        const bool has_box = data.frame.center == "bounds" && data.frame.length == "bounds";
        if (!has_box || arguments.contains("aabb_min") || arguments.contains("aabb_max"))
            throw InvalidInput("model.aabb_min and model.aabb_max, the corners of the box in which the points of all "
                               "cases lie, are not both given. Set them in the "
                               "model's coordinates, (x - data.center) / data.length.");
        arguments["aabb_min"] = {-0.5, -0.5, -0.5};  // cases are centred, and their longest edge is 1
        arguments["aabb_max"] = {0.5, 0.5, 0.5};
    }
    return complete_arguments(entry, arguments);
}

}  // namespace meshard
