// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/settings/training_config.h"

#include "apps/console/console.h"
#include "apps/learning/settings/data_settings.h"
#include "apps/learning/settings/grid_settings.h"
#include "apps/learning/settings/model_rules.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

namespace meshard {
namespace {

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
                                            : fmt::format(" of the {0}. Give one of them a positive number; the {0} is "
                                                          "left out of the loss by a 0 in training.part_weights",
                                                          part == 0 ? "surface" : "volume"));
    for (const auto& [name, numbers] : training.field_weights) {
        if (numbers.empty())
            settings.refuse("training.field_weights." + name, "is empty; expected a number, or one for each channel.");
        std::vector<std::string> names;
        for (const auto& field : fields) names.push_back(field.name);
        if (!contains(names, name))
            throw UsageError("{} weighs a field that data.fields has not; it has {}.",
                             settings.where("training.field_weights." + name), fmt::join(names, ", "));
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
