// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/settings/simulation_settings.h"

#include "apps/console/console.h"
#include "partition/lists.h"

#include <algorithm>

namespace meshard {

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

}  // namespace meshard
