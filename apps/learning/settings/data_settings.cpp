// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/settings/data_settings.h"

#include "apps/console/console.h"
#include "apps/learning/settings/grid_settings.h"
#include "apps/learning/settings/settings.h"
#include "apps/learning/settings/training_config.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {
namespace {

/// Refuses settings that cases which are steps of simulations do not support (`data.series`), and names the arrays that
/// are learnt.
/// @throws UsageError naming the key
void complete_series(const Settings& settings, TrainingRunConfig& config)
{
    auto& data = config.data;
    const auto refuse = [&](const std::string& key, const std::string& why) {
        throw UsageError("{} does not go with data.series: {}.", settings.where(key), why);
    };
    for (const char* key : {"data.surface", "data.volume", "data.grid"})
        if (settings.has(key)) refuse(key, "data.series stands in its place. Leave one of the two out");
    if (!settings.names_below("data.volume").empty()) refuse("data.volume.files", "its cases have one part");
    if (data.has_input("height") || data.needs_wall())
        refuse("data.inputs", "sdf, wall_direction and height are those of one shape. Name an array in data.arrays");
    if (!data.time.empty()) refuse("data.time", "the model is told the step to the next state. Leave it out");
    if (data.nondimensional) refuse("data.targets", "fields of states are told and learnt as they are. Set physical");
    if (data.num_sampled > 0) refuse("data.sampling_resolution", "a state is predicted at all points. Set 0");
    if (config.training.augmentation.is_any()) refuse("training.augment", "states are not turned. Leave it out");
    if (config.training.exact) refuse("training.exact", "statistics of states depend on the cut. Set false");
    if (find_model(config.model.name).of_bodies())
        refuse("model.name", "it encodes a body that stands still. Take another model, e.g. transolver");
    data.series.is_on = true;
    std::string motion;  // the key that says it
    for (const auto& field : data.fields)
        if (field.from == kCoordinates) motion = "data.fields." + field.name;
    std::ranges::stable_partition(data.series.given, [](const auto& name) { return name != kCoordinates; });
    if (data.series.moves_as_given()) {
        if (!motion.empty()) refuse(motion, "data.given has the points, too. Leave one of the two out");
        motion = "data.given";
    }
    if (!motion.empty()) {
        const auto* inputs = settings.find("data.inputs");
        if (inputs && is_default(*inputs, training_rules())) data.inputs = {kCoordinates};
        if (data.is_grid) refuse(motion, "the points of a grid do not move. Leave it out");
        if (data.on_cells) refuse(motion, "points move, and the fields lie on cells. Set data.association=point");
        if (data.inputs.size() > 1)
            refuse("data.inputs", "normals, areas and boxes of points that move are not found again. Set [points]");
    }
    for (auto& field : data.fields) {
        if (contains(data.series.given, field.from))
            refuse("data.given", "it has " + field.from +
                                     ", which is learnt: the model would be told the answer. "
                                     "Leave it out of one of the two");
        field.state = field.from;
        field.from = kNextPrefix + field.name;
    }
}

/// Refuses settings of simulations where there are none. @throws UsageError naming the key
void refuse_keys_of_series(const Settings& settings)
{
    SeriesSettings series;
    UnrollSettings unroll;
    SettingTable keys;
    series.add_keys(keys);
    unroll.add_keys(keys);
    for (const auto& rule : keys.rules()) {
        const auto* setting = settings.find(rule.path);
        if (setting && !is_default(*setting, keys.rules()))
            settings.refuse(rule.path,
                            "is for simulations in time, and there are none. Set data.series, or leave it out.");
    }
}

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
            if (contains(*others, *i))
                refuse("names '" + *i +
                       "', which is told as a number, too. Leave it out of data.arrays and "
                       "data.given.");
    }
    if (data.categories.names.empty()) return;
    if (!settings.names_below("data.volume").empty() || find_model(config.model.name).of_bodies())
        refuse("is for models that are told one part of a case, and no body. Leave it out.");
}

}  // namespace

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

}  // namespace meshard
