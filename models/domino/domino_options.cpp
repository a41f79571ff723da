// SPDX-License-Identifier: Apache-2.0
#include "models/domino/domino_options.h"

#include "models/layers/option_checks.h"
#include "partition/error.h"
#include "partition/nearest_name.h"

#include <nlohmann/json.hpp>

#include <map>
#include <set>

namespace meshard {
namespace {

using Json = nlohmann::json;

constexpr const char* kDomino = "DoMINO";
constexpr const char* kParameters = "model_parameters";

/// Reads or writes the entries of an object. An object that is read has all of them and no others.
class ParameterKeys {
public:
    explicit ParameterKeys(Json& object) : to_(&object) {}

    ParameterKeys(const Json& object, std::string where) : from_(&object), where_(std::move(where))
    {
        if (!object.is_object())
            throw InvalidInput("{}: {} cannot be {}; expected keys with values.", kDomino, where_, object.dump());
    }

    /// An entry that must have the type of `value`.
    template <class Value>
    ParameterKeys& key(const char* name, Value& value)
    {
        if (to_) {
            (*to_)[name] = value;
            return *this;
        }
        const auto& given = find(name);
        try {
            if constexpr (std::is_same_v<Value, std::int64_t>) {
                if (!given.is_number_integer()) throw InvalidInput("");
            } else if constexpr (std::is_same_v<Value, bool>) {
                if (!given.is_boolean()) throw InvalidInput("");
            }
            given.get_to(value);
        } catch (const std::exception&) {
            throw InvalidInput("{}: {}.{} cannot be {}; expected as in {}.", kDomino, where_, name, given.dump(),
                               Json(value).dump());
        }
        return *this;
    }

    /// An entry without effect, which may be absent.
    ParameterKeys& neutral(const char* name, const Json& written)
    {
        if (to_) (*to_)[name] = written;
        known_.insert(name);
        return *this;
    }

    /// An entry that is an object, whose entries `describe` names.
    template <class Describe>
    void below(const char* name, const Describe& describe)
    {
        if (to_) {
            ParameterKeys keys((*to_)[name]);
            describe(keys);
            return;
        }
        ParameterKeys keys(find(name), where_ + "." + name);
        describe(keys);
        keys.refuse_others();
    }

    void refuse_others() const
    {
        for (const auto& [name, unused] : from_->items()) {
            if (known_.contains(name)) continue;
            throw InvalidInput("{}: {} has no key '{}'.{}", kDomino, where_, name,
                               suggestion(name, std::vector<std::string>(known_.begin(), known_.end())));
        }
    }

private:
    const Json& find(const char* key)
    {
        known_.insert(key);
        const auto found = from_->find(key);
        if (found == from_->end())
            throw InvalidInput("{}: {} has no '{}'; where model_parameters are given, every key must be there.",
                               kDomino, where_, key);
        return *found;
    }

    Json* to_ = nullptr;
    const Json* from_ = nullptr;
    std::string where_;
    std::set<std::string> known_;
};

void describe(ParameterKeys& keys, GeometryOptions& geometry)
{
    keys.below("geo_conv", [&](ParameterKeys& conv) {
        conv.key("base_neurons", geometry.base_neurons)
            .key("base_neurons_in", geometry.base_neurons_in)
            .key("base_neurons_out", geometry.base_neurons_out)
            .key("volume_hops", geometry.volume_hops)
            .key("surface_hops", geometry.surface_hops)
            .key("volume_radii", geometry.volume.radii)
            .key("volume_neighbors_in_radius", geometry.volume.neighbors)
            .key("surface_radii", geometry.surface.radii)
            .key("surface_neighbors_in_radius", geometry.surface.neighbors)
            .key("activation", geometry.activation)
            .key("fourier_features", geometry.fourier_features)
            .key("num_modes", geometry.num_modes);
    });
    keys.below("geo_processor", [&](ParameterKeys& processor) {
        processor.key("base_filters", geometry.base_filters)
            .key("activation", geometry.processor_activation)
            .key("processor_type", geometry.processor_type)
            .key("self_attention", geometry.self_attention)
            .key("cross_attention", geometry.cross_attention)
            .key("volume_sdf_scaling_factor", geometry.volume_sdf_scales)
            .key("surface_sdf_scaling_factor", geometry.surface_sdf_scales);
    });
    keys.neutral("base_filters", geometry.base_filters);
}

/// Names all of `model_parameters`.
void describe(ParameterKeys& keys, DominoOptions& options)
{
    std::string mode = "two-loop";
    keys.key("interp_res", options.grid)
        .key("use_sdf_in_basis_func", options.use_sdf_in_basis_func)
        .key("num_neighbors_surface", options.num_neighbors_surface)
        .key("num_neighbors_volume", options.num_neighbors_volume)
        .key("use_surface_normals", options.use_surface_normals)
        .key("use_surface_area", options.use_surface_area)
        .key("encode_parameters", options.encode_parameters)
        .key("combine_volume_surface", options.combine_volume_surface)
        .key("geometry_encoding_type", options.geometry_encoding_type)
        .key("solution_calculation_mode", mode)
        .neutral("model_type", "combined")
        .neutral("activation", "gelu")
        .neutral("positional_encoding", false)
        .neutral("surface_neighbors", true);
    OptionChecks(kDomino).one_of("solution_calculation_mode", mode, {"one-loop", "two-loop"});
    keys.below("geometry_rep", [&](ParameterKeys& rep) { describe(rep, options.geometry); });
    keys.below("geometry_local", [&](ParameterKeys& local) {
        local.key("volume_neighbors_in_radius", options.volume_local.neighbors)
            .key("surface_neighbors_in_radius", options.surface_local.neighbors)
            .key("volume_radii", options.volume_local.radii)
            .key("surface_radii", options.surface_local.radii)
            .neutral("base_layer", 512);
    });
    const auto network = [&](const char* name, const char* width, PointNetworkOptions& of_points) {
        keys.below(name, [&](ParameterKeys& of_network) {
            of_network.key(width, of_points.width)
                .key("fourier_features", of_points.fourier_features)
                .key("num_modes", of_points.num_modes)
                .key("activation", of_points.activation);
        });
    };
    network("nn_basis_functions", "base_layer", options.basis);
    network("position_encoder", "base_neurons", options.position);
    network("parameter_model", "base_layer", options.parameters);
    keys.below("aggregation_model", [&](ParameterKeys& aggregation) {
        aggregation.key("base_layer", options.aggregation_width).key("activation", options.aggregation_activation);
    });
    keys.below("local_point_conv", [&](ParameterKeys& conv) { conv.key("activation", options.local_activation); });
}

}  // namespace

std::int64_t DominoOptions::encoding_channels(std::size_t num_radii) const
{
    return (geometry_encoding_type != "sdf" ? static_cast<std::int64_t>(num_radii) : 0) +
           (geometry_encoding_type != "stl" ? 1 : 0);
}

std::int64_t DominoOptions::surface_inputs() const
{
    return 3 + (use_surface_normals ? 3 : 0) + (use_surface_normals && use_surface_area ? 1 : 0);
}

void DominoOptions::validate() const
{
    const OptionChecks checks(kDomino);
    if (output_features_vol == 0 && output_features_surf == 0)
        checks.refuse("output_features_vol or output_features_surf must be set.");
    checks.at_least(0, {{"output_features_vol", output_features_vol}, {"output_features_surf", output_features_surf}});
    checks.at_least(1, {{"global_features", global_features},
                        {"num_neighbors_surface", num_neighbors_surface},
                        {"num_neighbors_volume", num_neighbors_volume},
                        {"base_neurons_in", geometry.base_neurons_in},
                        {"base_neurons_out", geometry.base_neurons_out},
                        {"volume_hops", geometry.volume_hops},
                        {"surface_hops", geometry.surface_hops},
                        {"base_filters", geometry.base_filters},
                        {"nn_basis_functions.base_layer", basis.width},
                        {"position_encoder.base_neurons", position.width},
                        {"parameter_model.base_layer", parameters.width},
                        {"aggregation_model.base_layer", aggregation_width}});
    checks.at_least(2, {{"base_neurons", geometry.base_neurons}});  // a layer has half as many
    if (input_features != 3) checks.refuse("input_features must be 3, the coordinates; it is {}.", input_features);
    checks.one_of("geometry_encoding_type", geometry_encoding_type, {"both", "stl", "sdf"});
    checks.one_of("processor_type", geometry.processor_type, {"unet", "conv"});
    const std::int64_t multiple = geometry.processor_type == "conv" ? 8 : 4;
    for (const auto size : grid) {
        if (size < multiple || size % multiple != 0)
            checks.refuse("interp_res must be multiples of {} for the processor '{}'; {} is not.", multiple,
                          geometry.processor_type, size);
    }
    if (use_surface_area && !use_surface_normals)
        checks.refuse("use_surface_area needs use_surface_normals: without them the reference's networks do not fit "
                      "their inputs.");
    const bool is_joined = geometry.cross_attention || combine_volume_surface;
    if (is_joined && geometry_encoding_type != "both")
        checks.refuse("cross_attention and combine_volume_surface need a geometry_encoding_type of both.");
    for (const auto& [name, queries] : {std::pair("volume_radii of geo_conv", &geometry.volume),
                                        std::pair("surface_radii of geo_conv", &geometry.surface),
                                        std::pair("volume_radii of geometry_local", &volume_local),
                                        std::pair("surface_radii of geometry_local", &surface_local)}) {
        if (queries->radii.empty() || queries->radii.size() != queries->neighbors.size())
            checks.refuse("{} has {} entries and their neighbours {}; expected the same number of both, at least one.",
                          name, queries->radii.size(), queries->neighbors.size());
        for (const auto radius : queries->radii)
            checks.within({.least = 0, .above = true}, "an entry of " + std::string(name), radius);
        for (const auto count : queries->neighbors)
            checks.within({.least = 1}, "an entry of the neighbours of " + std::string(name), count);
    }
    const auto hops = std::max(geometry.volume_hops, geometry.surface_hops);
    if (geometry.base_neurons_in != geometry.base_neurons_out && (geometry.base_neurons_in != 1 || hops > 1))
        checks.refuse("base_neurons_in must equal base_neurons_out, or be 1 with a single hop.");
}

DominoOptions domino_options(const nlohmann::json& arguments)
{
    DominoOptions options;
    static const std::map<std::string, std::int64_t DominoOptions::*> numbers{
        {"input_features", &DominoOptions::input_features},
        {"output_features_vol", &DominoOptions::output_features_vol},
        {"output_features_surf", &DominoOptions::output_features_surf},
        {"global_features", &DominoOptions::global_features}};
    for (const auto& [name, value] : arguments.items()) {
        const auto number = numbers.find(name);
        if (number == numbers.end() && name != kParameters) {
            std::vector<std::string> names{kParameters};
            for (const auto& known : numbers) names.push_back(known.first);
            throw InvalidInput("{}: there is no argument '{}'.{}", kDomino, name, suggestion(name, names));
        }
        if (value.is_null()) continue;
        if (number != numbers.end()) {
            if (!value.is_number_integer())
                throw InvalidInput("{}: {} cannot be {}; expected a whole number.", kDomino, name, value.dump());
            value.get_to(options.*number->second);
            continue;
        }
        auto parameters = value;
        if (const auto found = parameters.find("return_volume_neighbors"); found != parameters.end()) {
            if (*found != false)
                throw InvalidInput("{}: return_volume_neighbors is not supported; leave it out or set it to false.",
                                   kDomino);
            parameters.erase(found);
        }
        ParameterKeys keys(parameters, kParameters);
        describe(keys, options);
        keys.refuse_others();
    }
    return options;
}

nlohmann::json to_json(const DominoOptions& options)
{
    const auto or_null = [](std::int64_t count) { return count > 0 ? Json(count) : Json(); };
    Json parameters;
    ParameterKeys keys(parameters);
    auto written = options;
    describe(keys, written);
    return {{"input_features", options.input_features},
            {"output_features_vol", or_null(options.output_features_vol)},
            {"output_features_surf", or_null(options.output_features_surf)},
            {"global_features", options.global_features},
            {kParameters, parameters}};
}

}  // namespace meshard
