// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/settings/training_config.h"

#include "apps/console/console.h"
#include "apps/learning/settings/described_keys.h"
#include "apps/learning/settings/grid_settings.h"
#include "apps/learning/settings/model_rules.h"
#include "apps/learning/settings/simulation_settings.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <sstream>

namespace meshard {
namespace {

/// Checks a split and completes its default.
/// @param base   `data.split`, or the key of a set's split
void complete_split(const Settings& settings, SplitConfig& split, const std::string& base)
{
    if (!split.manifest.empty() && !split.column.empty())
        throw UsageError("{} and {}.column exclude each other.", settings.where(base + ".manifest"), base);
    if (!split.name.empty() && split.manifest.empty())
        settings.refuse(base + ".name", "names a split of a manifest, and there is none: give data.split.manifest.");
    double sum = 0;
    for (const char* part : {"train", "val", "test"}) {
        const auto path = base + "." + part;
        const auto* setting = settings.find(path);
        if (!setting) continue;
        if (!split.column.empty()) throw UsageError("{} and {}.column exclude each other.", settings.where(path), base);
        if (!split.name.empty()) throw UsageError("{} and {}.name exclude each other.", settings.where(path), base);
        if (!split.manifest.empty() && (!setting->is_list || split.manifest.find('*') != std::string::npos)) {
            throw UsageError(
                settings.where(path) +
                (setting->is_list
                     ? " names lists of data.split.manifest, which is a file a part: leave one of them out."
                     : " must name lists of data.split.manifest, e.g. [full_train]."));
        }
        if (!setting->is_list) sum += split.shares.at(part);
    }
    if (!split.lists.empty() && !split.shares.empty())
        throw UsageError("{}: give shares or lists of ids, not both.", base);
    if (sum > 1 + 1e-9) throw UsageError("{}: the shares add up to {:g}; at most 1 is possible.", base, sum);
    if (!split.name.empty() && split.manifest.find('*') != std::string::npos)
        settings.refuse(base + ".name",
                        "names a split of data.split.manifest, which is a file a part: leave one of them out.");
    if (split.column.empty() && split.manifest.empty() && split.lists.empty() && split.shares.empty())
        split.shares["train"] = 1.0;
}

void check_files(const Settings& settings, const std::string& files, const std::string& key)
{
    if (files.find('*') == std::string::npos)
        throw UsageError("{} is '{}'; it needs a * where the case's id stands.", settings.where(key), files);
}

/// Checks several sets of cases and completes them from the common settings.
void complete_sets(const Settings& settings, DataConfig& data)
{
    for (auto& set : data.sets) {
        const auto base = "data.sets." + set.name;
        if (set.name.find_first_of(":/ ") != std::string::npos)
            throw UsageError("{}: the name of a set begins the ids of its cases; it must have no blank, / or :.", base);
        set.root = set.root.empty() ? data.root : data.root / set.root;
        if (set.files.empty()) set.files = data.files;
        check_files(settings, set.files, base + ".files");
        if (!settings.has(base + ".cases")) set.case_tables = data.case_tables;
        if (!data.splits_all)
            complete_split(settings, set.split, base + ".split");
        else if (settings.names_below(base + ".split").empty())
            set.split = data.split;
        else
            throw UsageError("{}.split and data.split exclude each other: data.split is of the cases of all sets.",
                             base);
        if (!set.split.column.empty() && set.case_tables.empty())
            throw UsageError("{} is split by a column, and has no data.cases, the table that has it.", base);
    }
    const auto without = std::ranges::find(data.sets, 0.0, &DataSetConfig::share);
    if (without != data.sets.end() && std::ranges::any_of(data.sets, [](const auto& one) { return one.share > 0; }))
        throw UsageError("data.sets.{} has no share, and other sets have one. Give each a share, or none.",
                         without->name);
    if (!data.sets.empty() && data.splits_all && !data.split.manifest.empty())
        settings.refuse("data.split.manifest",
                        "lies below one folder, and there are several data.sets: give each its own split.");
}

/// Refuses a key that names columns where cases have no table that could have them.
void require_tables(const DataConfig& data, const std::string& key)
{
    if (data.sets.empty() && data.case_tables.empty())
        throw UsageError("{} needs data.cases, the table that has the column.", key);
    for (const auto& set : data.sets)
        if (set.case_tables.empty())
            throw UsageError("{} needs data.sets.{}.cases, the table of this set that has the column, or "
                             "data.cases for all sets.",
                             key, set.name);
}

/// Checks the settings of the surface from which `sdf` is measured.
/// @param is_body   whether the model encodes this surface, whatever the inputs are
void check_wall(const Settings& settings, const DataConfig& data, bool is_body)
{
    const bool has_files = !data.wall.empty(), has_patches = settings.has("data.wall_patches");
    if (has_files && has_patches) throw UsageError("data.wall and data.wall_patches exclude each other.");
    if (!data.distances.empty() && !data.has_input("sdf")) {
        settings.refuse(
            "data.distances",
            "names an array of distances that nobody asks for: put sdf among data.inputs, or leave it out.");
    }
    if (!data.needs_wall() && !is_body && (has_files || has_patches)) {
        settings.refuse(has_files ? "data.wall" : "data.wall_patches",
                        std::string("names a surface whose distance ") +
                            (data.distances.empty() ? "nobody asks for: put sdf among data.inputs, or leave it out."
                                                    : "data.distances gives already: leave one of them out."));
    }
    if (is_body && !has_files && !has_patches) {
        throw UsageError(
            "the model {} encodes the surface of the body, and there is none: name its files (data.wall=body_*.stl) "
            "or the blocks of the cases' own files "
            "that are it (data.wall_patches=[boundary/car]).",
            settings.text("model.name"));
    }
    if (data.needs_wall() && !has_files && !has_patches) {
        throw UsageError("{} has {} to a surface, and there is none: name its files (data.wall=body_*.stl) or the "
                         "blocks of the cases' own "
                         "files that are it (data.wall_patches=[boundary/car]).",
                         settings.where("data.inputs"),
                         data.has_input("wall_direction") ? "wall_direction, which way" : "sdf, the distance");
    }
}

}  // namespace

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

namespace {

/// Checks the quantities by which targets are divided, and parses those that are numbers.
void complete_scaling(const Settings& settings, DataConfig& data)
{
    if (data.shares_deviation && std::ranges::none_of(data.fields, is_vector)) {
        settings.refuse("data.vector_deviation",
                        "is shared, and no field is a vector: say which are by their kind, e.g. "
                        "data.fields.wss.kind=stress, or leave it out.");
    }
    const bool has_kinds = std::ranges::any_of(data.fields, [](const auto& field) { return !field.kind.empty(); });
    if (data.nondimensional && !has_kinds) {
        settings.refuse("data.targets",
                        "is nondimensional, and no field says its kind, by which it would be divided, e.g. "
                        "data.fields.pressure.kind=kinematic.");
    }
    const std::vector<std::string> known{"U_inf", "rho", "p_inf", "T_inf", "L"};
    for (auto it = data.reference_columns.begin(); it != data.reference_columns.end();) {
        const auto& [name, entries] = *it;
        if (!contains(known, name)) {
            throw UsageError("{} is no quantity that is used; known are {}.{}",
                             settings.where("data.reference." + name), fmt::join(known, ", "), suggestion(name, known));
        }
        if (entries.size() != 1 && !(name == "U_inf" && entries.size() == 3)) {
            throw UsageError("{} has {} values; expected one{}", settings.where("data.reference." + name),
                             entries.size(), name == "U_inf" ? ", or the three components of a vector." : ".");
        }
        const bool is_said =
            std::ranges::all_of(entries, [](const auto& entry) { return number_in(entry).has_value(); });
        if (is_said) data.reference[name] = quantity_of(name, entries, [](const std::string&) { return 0.0; });
        it = is_said ? data.reference_columns.erase(it) : std::next(it);
    }
}

/// Takes the free stream from `data.reference`.
void complete_forces(const Settings& settings, ForceSettings& forces)
{
    if (const auto* velocity = settings.find("data.reference.U_inf")) forces.velocity = velocity->values;
    if (forces.velocity.size() != 1 && forces.velocity.size() != 3) {
        settings.refuse("data.reference.U_inf",
                        "must be a speed, e.g. 40, or a vector, e.g. [40, 0, 0]; columns of data.cases may stand for "
                        "numbers, e.g. [U_x, 0, U_z].");
    }
    if (const auto* density = settings.find("data.reference.rho")) {
        const auto& rho = density->values;
        if (rho.size() != 1 || (number_in(rho[0]) && !(*number_in(rho[0]) > 0)))
            settings.refuse("data.reference.rho", "must be one number above 0, or a column of data.cases.");
        forces.density = rho[0];
    }
    if (const auto* ambient = settings.find("data.reference.p_inf"); ambient && ambient->values.size() == 1)
        forces.ambient = ambient->values[0];
    if (const auto length = number_in(forces.length); length && !(*length > 0))
        settings.refuse("data.forces.length", "must be above 0, or a column of data.cases.");
    if (!forces.center.empty() && forces.center.size() != 3)
        settings.refuse("data.forces.center", "must be three numbers or columns of data.cases, e.g. [1.4, 0, 0].");
}

/// Checks the settings of heights over ground and of the encoding of places.
void check_places(const Settings& settings, const DataConfig& data)
{
    if (data.frame.ground != "bounds" && !number_in(data.frame.ground))
        throw UsageError("{} is '{}'; expected a number.", settings.where("data.ground"), data.frame.ground);
    if (data.has_input("height") && !(std::hypot(data.frame.up[0], data.frame.up[1], data.frame.up[2]) > 0)) {
        settings.refuse("data.forces.up",
                        "has no length, and height is measured along it. Give a direction, e.g. [0, 0, 1].");
    }
    for (std::istringstream lengths(data.frame.length); !lengths.eof();) {
        std::string length;
        std::getline(lengths, length, ',');
        length.erase(0, length.find_first_not_of(' '));
        if (const auto number = number_in(length); number && !(*number > 0))
            throw UsageError("{} is '{}'; places are divided by it, so it must be above 0.",
                             settings.where("data.length"), data.frame.length);
    }
    if (data.encoding.scales.empty())
        settings.refuse("data.encoding_scales", "is empty; expected numbers, e.g. [0.25, 1, 4].");
}

void check_fields(const DataConfig& data, const std::string& base)
{
    for (const auto& field : data.fields) {
        if (field.from.empty()) throw UsageError("{}.{} must say which array it is: {{from: NAME}}.", base, field.name);
        if (std::ranges::any_of(data.fields,
                                [&](const auto& other) { return field.name == other.name + "_predicted"; }))
            throw UsageError("{}.{} has the name that predictions of another field have. Give it another.", base,
                             field.name);
    }
    if (data.fields.empty())
        throw UsageError("{} must name at least one field, e.g. {{pressure: {{from: pMean, kind: kinematic}}}}.", base);
}

/// @param key   the key of the inputs
void check_inputs(const Settings& settings, const DataConfig& data, const std::string& key, const std::string& examples)
{
    const std::set<std::string> different(data.inputs.begin(), data.inputs.end());
    if (data.inputs.empty() || data.inputs.front() != "points" || different.size() != data.inputs.size())
        throw UsageError("{} must begin with points and name each input once, e.g. {}.", settings.where(key), examples);
}

void check_categories(const Settings& settings, const TrainingRunConfig& config)
{
    const auto& data = config.data;
    const auto refuse = [&](const std::string& why) { settings.refuse("data.categories", why); };
    for (auto i = data.categories.names.begin(); i != data.categories.names.end(); ++i) {
        if (i->find('*') != std::string::npos) refuse("has a pattern, " + *i + ". Name each array.");
        if (std::find(data.categories.names.begin(), i, *i) != i) refuse("names '" + *i + "' twice.");
        for (const auto* others : {&data.arrays, &data.series.given})
            if (std::ranges::find(*others, *i) != others->end())
                refuse("names '" + *i +
                       "', which is told as a number, too. Leave it out of data.arrays and "
                       "data.given.");
    }
    if (data.categories.names.empty()) return;
    if (!settings.names_below("data.volume").empty() || find_model(config.model.name).of_bodies())
        refuse("is for models that are told one part of a case, and no body. Leave it out.");
}

void complete_data(const Settings& settings, TrainingRunConfig& config)
{
    auto& data = config.data;
    const bool is_series = settings.has("data.series");
    data.is_grid = settings.has("data.grid") || (is_series && find_model(config.model.name).of_grids());
    if (is_series)
        complete_series(settings, config);
    else
        refuse_keys_of_series(settings);
    if (data.is_grid) {
        refuse_keys_of_points(settings);
        if (!is_series) check_grid_arrays(settings, data.told_arrays());
        if (is_series && settings.has("data.store"))
            settings.refuse("data.store",
                            "does not go with data.series of grids: states are read from their files. Leave it out.");
        data.inputs.clear();
    } else if (config.domain.size() > 1) {
        settings.refuse("parallel.domain",
                        "has a number for each of several directions, and the cases are no grids. Give one: the "
                        "ranks that share a case.");
    }
    const bool is_surface = settings.has("data.surface");
    data.in_volume = !data.is_grid && !is_series && !is_surface;
    if (!data.is_grid && !is_series && is_surface == settings.has("data.volume")) {
        throw UsageError(is_surface ? "data.surface and data.volume exclude each other. Of cases with both the volume "
                                      "is a block: data.volume.files, data.volume.fields."
                                    : "data.surface must be set, e.g. data.surface='boundary_*.vtp'.");
    }
    if (!is_series)
        check_files(settings, data.files, data.is_grid ? "data.grid" : is_surface ? "data.surface" : "data.volume");
    data.splits_all = !settings.names_below("data.split").empty();
    complete_split(settings, data.split, "data.split");
    complete_sets(settings, data);
    if (data.sets.empty() && !data.split.column.empty()) require_tables(data, "data.split.column");
    check_fields(data, "data.fields");
    check_categories(settings, config);
    if (!data.is_grid) check_inputs(settings, data, "data.inputs", "[points, normals] or [points, sdf]");
    check_wall(settings, data, find_model(config.model.name).of_bodies() != nullptr);
    if (!data.constants.empty()) require_tables(data, "data.constants");
    if (!data.time.empty()) require_tables(data, "data.time");
    complete_forces(settings, config.forces);
    data.frame.up = config.forces.up;
    check_places(settings, data);
    complete_scaling(settings, data);
    if (data.shards.empty()) data.shards = config.run_dir() / "shards";
}

/// Returns the volume's settings of cases whose surface is `surface`, or nothing if cases have one part.
std::optional<DataConfig> volume_config(const Settings& settings, const DataConfig& surface)
{
    if (settings.names_below("data.volume").empty()) return {};
    if (!settings.has("data.volume.files"))
        throw UsageError("data.volume.files must be set, e.g. data.volume.files='volume_*.vtu'.");
    if (surface.in_volume)
        throw UsageError("data.volume.files needs data.surface, the other part of the cases. With volumes alone set "
                         "data.volume='volume_*.vtu'.");
    auto volume = surface;
    volume.in_volume = true;
    volume.inputs = {"points"};
    volume.num_sampled = 0;
    volume.fields.clear();
    SettingTable keys;
    volume.add_volume_keys(keys);
    keys.store(settings);
    check_files(settings, volume.files, "data.volume.files");
    check_fields(volume, "data.volume.fields");
    for (const auto& field : volume.fields) {
        if (std::ranges::any_of(surface.fields, [&](const auto& other) { return other.name == field.name; }))
            throw UsageError("data.volume.fields.{} has the name of a field of the surface. Give it another, by which "
                             "metrics and predictions call it.",
                             field.name);
    }
    check_inputs(settings, volume, "data.volume.inputs", "[points, sdf]");
    if (volume.sampling == SamplingKind::Areas) volume.sampling = SamplingKind::Uniform;  // volumes have no areas
    for (const char* key : {"data.center", "data.length"}) {
        if (settings.text(key) == "bounds")
            settings.refuse(
                key,
                std::string(
                    "is bounds, which differ between surface and volume, whose points the model compares. Set ") +
                    (std::string_view(key) == "data.center" ? "none." : "none, a number, or a column of the table."));
    }
    return volume;
}

/// Refuses settings that a model with a body does not support, and checks its inputs.
void check_body_model(const TrainingRunConfig& config, const Settings& settings)
{
    const auto& entry = find_model(config.model.name);
    const auto* model = entry.of_bodies();
    if (!model) return;
    const auto refuse = [&](const std::string& key, const std::string& why) {
        throw UsageError("{}: {} {}", settings.where(key), entry.name, why);
    };
    const auto require_inputs = [&](const DataConfig& data, const char* key) {
        const auto expected = data.in_volume ? std::vector<std::string>{"points"} : model->inputs_on_surface;
        if (data.inputs == expected) return;
        refuse(key,
               fmt::format("is told {0} of each point of a {1}. Set [{0}].", fmt::join(expected, ", "),
                           data.in_volume ? "volume, and finds out the rest itself" : "surface, no more and no less"));
    };
    require_inputs(config.data, "data.inputs");
    if (config.volume) require_inputs(*config.volume, "data.volume.inputs");
    if (config.data.encoding.kind != "none") refuse("data.encoding", "encodes places itself. Set none.");
    if (config.training.augmentation.is_any())
        refuse("training.augment",
               "is told the body, which does not turn with the points yet. Leave training.augment out.");
}

/// Parses a setting as a number, true or false, a text, or a list of these.
nlohmann::json json_value(const Setting& setting)
{
    const auto single = [](const std::string& text) {
        const auto value = nlohmann::json::parse(text, nullptr, false);
        if (value.is_number() || value.is_boolean()) return value;
        const auto number = number_in(text);  // YAML's further spellings: .5, +2, 02
        if (!number) return nlohmann::json(text);
        const bool is_whole = text.find_first_of(".eE") == std::string::npos && std::abs(*number) < 0x1p53;
        return is_whole ? nlohmann::json(static_cast<std::int64_t>(*number)) : nlohmann::json(*number);
    };
    if (!setting.is_list) return single(setting.values.at(0));
    auto list = nlohmann::json::array();
    for (const auto& value : setting.values) list.push_back(single(value));
    return list;
}

/// Refuses settings whose sums depend on the number of ranks even in exact mode.
void require_exact(const TrainingRunConfig& config, const Settings& settings)
{
    const auto refuse = [&](std::string_view path, const std::string& why) {
        throw UsageError("{} is {}, which training.exact does not go with: {}.", settings.where(path),
                         settings.text(path), why);
    };
    if (config.training.memory == MemoryMode::Streamed)
        refuse("training.memory", "its fused blocks add tile by tile. Set stored or recomputed");
    if (config.training.precision != Precision::Float32)
        refuse("training.precision", "exact sums and products are those of single precision. Set float32");
    if (config.num_data_groups > 2)
        refuse("parallel.data",
               "gradients of three groups and more are averaged in an order that depends on the ranks. Set 1 or 2");
    if (find_model(config.model.name).of_bodies())
        refuse(
            "model.name",
            "its neighbours and grids are added in an order that depends on the cut. Take a model without neighbours");
    if (config.model.name == "figconvunet")
        refuse("model.name", "points are added on its grids in an order that depends on the cut. Take a model without "
                             "grids");
    if (config.balances_ranks) refuse("parallel.balance", "each rank has the same number of points there. Set off");
    if (config.shard_parameters)
        refuse("parallel.parameters", "a part's length decides how its last values are rounded. Set replicated");
    const auto* model = find_model(config.model.name).of_points();
    const bool has_edges = model && model->has_edges;
    if (has_edges || config.model.arguments.value("include_local_features", false)) {
        refuse(has_edges ? "model.name" : "model.include_local_features",
               "what neighbours tell each other is added in an order that depends on the cut. Take a model without "
               "neighbours");
    }
}

void complete_loss(const Settings& settings, TrainingRunConfig& config)
{
    auto& training = config.training;
    const auto& data = config.data;
    auto fields = data.fields;
    if (config.volume) append(fields, config.volume->fields);
    const auto& kinds = training.losses;
    auto& weights = training.loss_weights;
    if (!settings.has("training.loss_weights")) weights.assign(kinds.size(), 1.0);
    if (kinds.empty() || weights.size() != kinds.size()) {
        throw UsageError(
            "{}; expected one for each of training.loss, of which there are {}.",
            kinds.empty() ? settings.where("training.loss") + " is empty"
                          : fmt::format("{} has {} numbers", settings.where("training.loss_weights"), weights.size()),
            kinds.size());
    }
    training.loss.terms.clear();
    double sum = 0;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
        training.loss.terms.push_back({loss_kind(kinds[i]), weights[i]});
        sum += weights[i];
    }
    if (!(sum > 0)) settings.refuse("training.loss_weights", "are all 0. Give one of them a positive number.");

    const auto weighs_nothing = [&](const auto& field) {
        const auto found = training.field_weights.find(field.name);
        return found != training.field_weights.end() &&
               std::ranges::all_of(found->second, [](double weight) { return weight == 0; });
    };
    for (std::size_t part = 0; part < config.num_parts(); ++part)
        if (std::ranges::all_of(config.of_part(part).data.fields, weighs_nothing))
            throw UsageError("training.field_weights are 0 for all fields{}.",
                             !config.volume ? ". Give one of them a positive number"
                                            : fmt::format(" of the {0}. Give one of them a positive number, or the {0} "
                                                          "the weight 0 in training.part_weights",
                                                          part == 0 ? "surface" : "volume"));
    for (const auto& [name, numbers] : training.field_weights) {
        if (numbers.empty())
            settings.refuse("training.field_weights." + name, "is empty; expected a number, or one for each channel.");
        std::string names;
        for (const auto& field : fields) names += (names.empty() ? "" : ", ") + field.name;
        const bool is_field = std::ranges::any_of(fields, [&](const auto& field) { return field.name == name; });
        if (!is_field)
            throw UsageError("{} weighs a field that data.fields has not; it has {}.",
                             settings.where("training.field_weights." + name), names);
    }
    if (!(training.part_weights[0] + training.part_weights[1] > 0))
        settings.refuse("training.part_weights",
                        "must be two numbers, of surface and of volume, not both 0, e.g. [5, 1].");
    if (training.point_weights.empty() || (training.weighs("none") && training.point_weights.size() > 1))
        settings.refuse("training.point_weights",
                        "must be none, areas, volumes, or [areas, volumes] of cases with both parts.");
}

void complete_augmentation(const Settings& settings, TrainingRunConfig& config)
{
    const std::string path = "training.augment.";
    auto& augmentation = config.training.augmentation;
    augmentation.rotation = augmentation.rotation * std::numbers::pi / 180;

    const auto& constants = config.data.constants;
    for (const bool sided : {false, true}) {
        for (const auto& name : sided ? augmentation.sided_constants : augmentation.free_stream) {
            if (contains(constants, name)) continue;
            throw UsageError("{} names '{}', which is none of data.constants, the columns that the model is told.",
                             settings.where(path + (sided ? "sided_constants" : "free_stream")), name);
        }
    }
    const auto& stream = augmentation.free_stream;
    for (const auto& name : augmentation.sided_constants) {
        const bool is_twice = std::ranges::count(augmentation.sided_constants, name) > 1;
        if (!is_twice && !contains(stream, name)) continue;
        throw UsageError("{} names '{}' {}, and it would be turned twice. Name it once.",
                         settings.where(path + "sided_constants"), name,
                         is_twice ? "twice" : "as training.augment.free_stream does");
    }
    const auto& up = config.data.frame.up;
    if (augmentation.rotation > 0 && !(std::hypot(up[0], up[1], up[2]) > 0))
        settings.refuse("data.forces.up",
                        "has no length, and cases are turned about it. Give a direction, e.g. [0, 0, 1].");
    if (!stream.empty() && std::set<std::string>(stream.begin(), stream.end()).size() != 3) {
        settings.refuse(path + "free_stream", "must be three columns: the free stream's x, y and z.");
    }
    // A scene that turns takes its free stream along; a model without the stream as an input would see equal inputs
    // with different answers.
    const auto& velocity = config.forces.velocity;
    const auto axis = augmentation.mirror_axis;
    // A column may be nonzero in some case.
    const auto is_along = [&](const std::string& component) { return number_in(component) != 0.0; };
    const bool mirrors_stream = velocity.size() == 3 ? axis >= 0 && is_along(velocity[axis]) : axis == 0;
    if (stream.empty() && (augmentation.rotation > 0 || mirrors_stream)) {
        settings.refuse(path + (augmentation.rotation > 0 ? "rotation" : "mirror"),
                        "turns the free stream with the case, and the model is not told which way it flows: put its "
                        "three components among data.constants "
                        "and name them with training.augment.free_stream.");
    }
    if (augmentation.rotation > 0 && config.data.frame.length.find(',') != std::string::npos) {
        settings.refuse(path + "rotation",
                        "needs one data.length for x, y and z, since places that were divided by three do not turn.");
    }
    if (augmentation.rotation > 0 && config.data.has_input("box")) {
        settings.refuse(
            path + "rotation",
            "turns cases, whose boxes do not turn along, and data.inputs has box. Leave one of the two out.");
    }
    if (axis >= 0 && config.data.frame.up[axis] != 0) {
        const bool has_height =
            config.data.has_input("height") || (config.volume && config.volume->has_input("height"));
        if (has_height || config.training.coefficient_weights[1] > 0)
            throw UsageError("{} turns cases upside down (data.forces.up), and {} would stay as it was. Mirror along "
                             "another axis, or leave one of the two out.",
                             settings.where(path + "mirror"),
                             has_height ? "the height of data.inputs" : "the lift of training.coefficient_weights");
    }
}

void check_update(const Settings& settings, const TrainingConfig& training)
{
    for (const auto& group : training.parameter_groups) {
        const auto path = "training.optimizer.groups." + group.name;
        if (group.match.empty())
            throw UsageError("{}.match must say which parameters the group has, e.g. [blocks.0.*, '*.bias'].", path);
        if (group.learning_rate && training.learning_rate == 0)
            settings.refuse(path + ".lr", "needs a training.optimizer.lr above 0, whose schedule it follows.");
    }
    if (training.scheduler == "one_cycle" && training.warmup_steps > 0) {
        settings.refuse("training.scheduler.warmup_steps",
                        "is set, and one_cycle has a warm-up of its own. Leave it out.");
    }
}

}  // namespace

std::vector<SettingRule> training_rules(std::string_view model)
{
    TrainingRunConfig config;
    DataConfig volume;
    SettingTable fixed, of_volume;
    config.add_keys(fixed);
    volume.add_volume_keys(of_volume);
    auto rules = fixed.rules(), rules_of_volume = of_volume.rules();
    for (auto& rule : rules_of_volume) rule.fallback.clear();  // the surface gives the default
    const auto insert_before_training = [&](const std::vector<SettingRule>& more) {
        const auto training =
            std::ranges::find_if(rules, [](const auto& rule) { return rule.path.starts_with("training."); });
        rules.insert(training, more.begin(), more.end());
    };
    insert_before_training(rules_of_volume);
    insert_before_training(model_rules(model));
    return rules;
}

Settings read_training_settings(const std::filesystem::path& file, std::span<const std::string> overrides,
                                std::vector<std::string>* dropped)
{
    const auto named = Settings::read(file, overrides, training_rules());
    const auto rules = training_rules(named.text("model.name"));
    std::vector<std::string> words(overrides.begin(), overrides.end());
    if (named.find("model.name")->source == "command line") {
        for (const auto& setting : named.all()) {
            const bool is_known =
                std::ranges::any_of(rules, [&](const auto& rule) { return rule.path == setting.path; });
            if (is_known || !setting.path.starts_with("model.") || setting.source == "command line" ||
                setting.source == "default")
                continue;
            words.insert(words.begin(), "~" + setting.path);
            if (dropped) dropped->push_back(setting.path);
        }
    }
    return Settings::read(file, words, rules);
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

DataConfig data_config(const nlohmann::json& description)
{
    DataConfig data;
    DescribedKeys keys(description, "data");
    describe(keys, data);
    return data;
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

TrainingRunConfig training_config(const Settings& settings)
{
    TrainingRunConfig config;
    SettingTable keys;
    config.add_keys(keys);
    keys.store(settings);
    config.model.name = settings.text("model.name");
    if (config.run_id.empty() || config.run_id == "." || config.run_id == ".." ||
        config.run_id.find('/') != std::string::npos) {
        throw UsageError("{} is '{}'; expected a name for a folder of the run's own, without slashes.",
                         settings.where("run_id"), config.run_id);
    }
    const auto& name = config.model.name;
    const bool has_both = !settings.names_below("data.volume").empty();
    const auto* body_model = find_model(name).of_bodies();
    if (has_both && !body_model) {
        throw UsageError("{}: {} takes the points of a surface or of a volume, not both. Leave one out, or "
                         "set model.name to one that takes both, e.g. domino.",
                         settings.where("data.volume.files"), name);
    }
    if (!has_both && body_model && body_model->needs_both_parts) {
        throw UsageError("{}: {} takes cases with surface and volume. Set data.surface, and "
                         "data.volume.files and data.volume.fields for the volume.",
                         settings.where("model.name"), name);
    }
    complete_data(settings, config);
    config.volume = volume_config(settings, config.data);
    if (config.volume && !config.data.sets.empty())
        throw UsageError(
            "{}: cases of several data.sets have one part, a surface or a volume. Leave one of the two out.",
            settings.where("data.volume.files"));
    if (config.volume && settings.has("training.coefficient_weights"))
        settings.refuse("training.coefficient_weights",
                        "gives a model of one part a head, and data.volume.files is set. Leave one of the two out.");

    for (const auto& argument : settings.names_below("model")) {
        const auto* setting = settings.find("model." + argument);
        if (argument != "name" && setting) config.model.arguments[argument] = json_value(*setting);
    }
    require_matching_model(settings, config.model, config.data);
    if (const auto* model = find_model(name).of_points(); config.data.num_sampled > 0 && model && model->has_edges) {
        throw UsageError(
            "{}: {}'s messages go along edges, which have another length between some of the points. Set 0, or "
            "take a model without edges.",
            settings.where("data.sampling_resolution"), find_model(name).class_name);
    }
    try {
        if (config.data.is_grid)
            check_grid_model(config.model);
        else
            model_arguments(config.model, config.data, {}, config.volume ? 1 : 0);
    } catch (const InvalidInput& error) {
        throw UsageError(std::string("model: ") + error.what());
    }

    complete_loss(settings, config);
    check_denoiser(settings, config);
    complete_augmentation(settings, config);
    check_body_model(config, settings);
    config.data.has_measures = config.weighs_points(0);
    if (config.volume) config.volume->has_measures = config.weighs_points(1);
    config.data.needs_all_points = body_model && body_model->needs_surface_neighbors && !config.data.in_volume;
    check_update(settings, config.training);
    if (config.training.exact) require_exact(config, settings);
    return config;
}

bool TrainingRunConfig::weighs_points(std::size_t part) const
{
    if (!volume) return training.weighs("areas") || training.weighs("volumes");
    return training.weighs(part == 0 ? "areas" : "volumes");
}

TrainingRunConfig TrainingRunConfig::of_part(std::size_t part) const
{
    auto config = *this;
    if (part == 1) config.data = volume.value();
    config.volume.reset();
    return config;
}

std::int64_t TrainingRunConfig::num_domain_ranks() const
{
    return domain.empty() ? 0 : c10::multiply_integers(domain);
}

std::int64_t parts_a_rank(const TrainingRunConfig& config)
{
    constexpr std::int64_t of_balanced_rank = 16;
    return config.balances_ranks ? of_balanced_rank : 1;
}

std::array<std::int64_t, 2> mesh_shape(const TrainingRunConfig& config, std::int64_t num_ranks)
{
    auto data = config.num_data_groups;
    auto domain = config.num_domain_ranks();
    if (domain == 0) domain = std::max<std::int64_t>(1, num_ranks / std::max<std::int64_t>(1, data));
    if (data == 0) data = std::max<std::int64_t>(1, num_ranks / domain);
    if (data * domain != num_ranks) {
        throw UsageError("parallel: {} data groups of {} domain ranks make {} ranks, and there are {}. "
                         "Start as many, or change parallel.data and parallel.domain.",
                         data, domain, data * domain, num_ranks);
    }
    if (config.training.exact && data > 2)
        throw UsageError("training.exact does not go with {} data groups, whose gradients are averaged in "
                         "an order that depends on the ranks. Set parallel.data to 1 or 2.",
                         data);
    if (config.shard_parameters && data > 1 && config.training.unroll.num_steps > 1) {
        throw UsageError(
            "parallel.parameters=sharded does not go with training.unroll={} in {} data groups: near the end of a run "
            "one group unrolls fewer steps than another, and all gather the parameters for each. Set "
            "parallel.parameters=replicated, parallel.data=1 or training.unroll=1.",
            config.training.unroll.num_steps, data);
    }
    if (config.shard_parameters && data > 1 && config.model.name == "abupt") {
        throw UsageError(
            "parallel.parameters=sharded does not go with abupt in {} data groups: all gather a block's parameters "
            "together, and a case with more points goes through the blocks more often. Set "
            "parallel.parameters=replicated or parallel.data=1.",
            data);
    }
    return {data, domain};
}

}  // namespace meshard
