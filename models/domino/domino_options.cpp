// SPDX-License-Identifier: Apache-2.0
#include "models/domino/domino_options.h"

#include "models/layers/option_checks.h"
#include "partition/error.h"
#include "partition/nearest_name.h"

#include <nlohmann/json.hpp>

#include <set>

namespace meshard {
namespace {

using Json = nlohmann::json;

constexpr const char* kDomino = "DoMINO";

/// Reads the entries of an object, all of which must exist, and refuses others.
class RequiredKeys {
public:
    RequiredKeys(const Json& object, std::string where) : object_(object), where_(std::move(where))
    {
        if (!object.is_object())
            throw InvalidInput("{}: {} cannot be {}; expected keys with values.", kDomino, where_, object.dump());
    }

    /// Sets `target` to the value of `key`, which must have its type.
    template <class Value>
    RequiredKeys& read(const char* key, Value& target)
    {
        const auto& value = find(key);
        try {
            if constexpr (std::is_same_v<Value, std::int64_t>) {
                if (!value.is_number_integer()) throw InvalidInput("");
            } else if constexpr (std::is_same_v<Value, bool>) {
                if (!value.is_boolean()) throw InvalidInput("");
            }
            target = value.template get<Value>();
        } catch (const std::exception&) {
            throw InvalidInput("{}: {}.{} cannot be {}; expected as in {}.", kDomino, where_, key, value.dump(),
                               Json(Value(target)).dump());
        }
        return *this;
    }

    RequiredKeys below(const char* key) { return {find(key), where_ + "." + key}; }

    /// Ignores a key that has no effect; it may be absent.
    RequiredKeys& pass_over(const char* key)
    {
        known_.insert(key);
        return *this;
    }

    void refuse_others() const
    {
        for (const auto& [name, unused] : object_.items()) {
            if (known_.contains(name)) continue;
            throw InvalidInput("{}: {} has no key '{}'.{}", kDomino, where_, name,
                               suggestion(name, std::vector<std::string>(known_.begin(), known_.end())));
        }
    }

private:
    const Json& find(const char* key)
    {
        known_.insert(key);
        const auto found = object_.find(key);
        if (found == object_.end())
            throw InvalidInput("{}: {} has no '{}'; where model_parameters are given, every key must be there.",
                               kDomino, where_, key);
        return *found;
    }

    const Json& object_;
    std::string where_;
    std::set<std::string> known_;
};

void read_parameters(const Json& parameters, DominoOptions& options)
{
    RequiredKeys all(parameters, "model_parameters");
    std::string mode = "two-loop";
    all.read("interp_res", options.grid)
        .read("use_sdf_in_basis_func", options.use_sdf_in_basis_func)
        .read("num_neighbors_surface", options.num_neighbors_surface)
        .read("num_neighbors_volume", options.num_neighbors_volume)
        .read("use_surface_normals", options.use_surface_normals)
        .read("use_surface_area", options.use_surface_area)
        .read("encode_parameters", options.encode_parameters)
        .read("combine_volume_surface", options.combine_volume_surface)
        .read("geometry_encoding_type", options.geometry_encoding_type)
        .read("solution_calculation_mode", mode);
    OptionChecks(kDomino).one_of("solution_calculation_mode", mode, {"one-loop", "two-loop"});
    for (const char* neutral : {"model_type", "activation", "positional_encoding", "surface_neighbors"})
        all.pass_over(neutral);
    if (const auto found = parameters.find("return_volume_neighbors"); found != parameters.end() && *found != false)
        throw InvalidInput("{}: return_volume_neighbors is not supported; leave it out or set it to false.", kDomino);
    all.pass_over("return_volume_neighbors");

    auto& geometry = options.geometry;
    auto rep = all.below("geometry_rep");
    auto conv = rep.below("geo_conv");
    conv.read("base_neurons", geometry.base_neurons)
        .read("base_neurons_in", geometry.base_neurons_in)
        .read("base_neurons_out", geometry.base_neurons_out)
        .read("volume_hops", geometry.volume_hops)
        .read("surface_hops", geometry.surface_hops)
        .read("volume_radii", geometry.volume.radii)
        .read("volume_neighbors_in_radius", geometry.volume.neighbors)
        .read("surface_radii", geometry.surface.radii)
        .read("surface_neighbors_in_radius", geometry.surface.neighbors)
        .read("activation", geometry.activation)
        .read("fourier_features", geometry.fourier_features)
        .read("num_modes", geometry.num_modes)
        .refuse_others();
    auto processor = rep.below("geo_processor");
    processor.read("base_filters", geometry.base_filters)
        .read("activation", geometry.processor_activation)
        .read("processor_type", geometry.processor_type)
        .read("self_attention", geometry.self_attention)
        .read("cross_attention", geometry.cross_attention)
        .read("volume_sdf_scaling_factor", geometry.volume_sdf_scales)
        .read("surface_sdf_scaling_factor", geometry.surface_sdf_scales)
        .refuse_others();
    rep.pass_over("base_filters").refuse_others();
    auto local = all.below("geometry_local");
    local.read("volume_neighbors_in_radius", options.volume_local.neighbors)
        .read("surface_neighbors_in_radius", options.surface_local.neighbors)
        .read("volume_radii", options.volume_local.radii)
        .read("surface_radii", options.surface_local.radii)
        .pass_over("base_layer")
        .refuse_others();
    const auto network = [&](const char* key, const char* width, PointNetworkOptions& target) {
        auto keys = all.below(key);
        keys.read(width, target.width)
            .read("fourier_features", target.fourier_features)
            .read("num_modes", target.num_modes)
            .read("activation", target.activation)
            .refuse_others();
    };
    network("nn_basis_functions", "base_layer", options.basis);
    network("position_encoder", "base_neurons", options.position);
    network("parameter_model", "base_layer", options.parameters);
    auto aggregation = all.below("aggregation_model");
    aggregation.read("base_layer", options.aggregation_width)
        .read("activation", options.aggregation_activation)
        .refuse_others();
    auto local_conv = all.below("local_point_conv");
    local_conv.read("activation", options.local_activation).refuse_others();
    all.refuse_others();
}

Json written(const PointNetworkOptions& network, const char* width)
{
    return {{width, network.width},
            {"fourier_features", network.fourier_features},
            {"num_modes", network.num_modes},
            {"activation", network.activation}};
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
    static const std::set<std::string> names{"input_features", "output_features_vol", "output_features_surf",
                                             "global_features", "model_parameters"};
    for (const auto& [name, value] : arguments.items()) {
        if (!names.contains(name)) {
            throw InvalidInput("{}: there is no argument '{}'.{}", kDomino, name,
                               suggestion(name, std::vector<std::string>(names.begin(), names.end())));
        }
        if (value.is_null()) continue;
        if (name == "model_parameters") {
            read_parameters(value, options);
            continue;
        }
        if (!value.is_number_integer())
            throw InvalidInput("{}: {} cannot be {}; expected a whole number.", kDomino, name, value.dump());
        const auto number = value.get<std::int64_t>();
        if (name == "input_features") options.input_features = number;
        if (name == "output_features_vol") options.output_features_vol = number;
        if (name == "output_features_surf") options.output_features_surf = number;
        if (name == "global_features") options.global_features = number;
    }
    return options;
}

nlohmann::json to_json(const DominoOptions& options)
{
    const auto& geometry = options.geometry;
    const auto or_null = [](std::int64_t count) { return count > 0 ? Json(count) : Json(); };
    const Json parameters{{"model_type", "combined"},
                          {"activation", "gelu"},
                          {"interp_res", options.grid},
                          {"use_sdf_in_basis_func", options.use_sdf_in_basis_func},
                          {"positional_encoding", false},
                          {"surface_neighbors", true},
                          {"num_neighbors_surface", options.num_neighbors_surface},
                          {"num_neighbors_volume", options.num_neighbors_volume},
                          {"use_surface_normals", options.use_surface_normals},
                          {"use_surface_area", options.use_surface_area},
                          {"encode_parameters", options.encode_parameters},
                          {"combine_volume_surface", options.combine_volume_surface},
                          {"geometry_encoding_type", options.geometry_encoding_type},
                          {"solution_calculation_mode", "two-loop"},
                          {"geometry_rep",
                           {{"geo_conv",
                             {{"base_neurons", geometry.base_neurons},
                              {"base_neurons_in", geometry.base_neurons_in},
                              {"base_neurons_out", geometry.base_neurons_out},
                              {"volume_hops", geometry.volume_hops},
                              {"surface_hops", geometry.surface_hops},
                              {"volume_radii", geometry.volume.radii},
                              {"volume_neighbors_in_radius", geometry.volume.neighbors},
                              {"surface_radii", geometry.surface.radii},
                              {"surface_neighbors_in_radius", geometry.surface.neighbors},
                              {"activation", geometry.activation},
                              {"fourier_features", geometry.fourier_features},
                              {"num_modes", geometry.num_modes}}},
                            {"geo_processor",
                             {{"base_filters", geometry.base_filters},
                              {"activation", geometry.processor_activation},
                              {"processor_type", geometry.processor_type},
                              {"self_attention", geometry.self_attention},
                              {"cross_attention", geometry.cross_attention},
                              {"volume_sdf_scaling_factor", geometry.volume_sdf_scales},
                              {"surface_sdf_scaling_factor", geometry.surface_sdf_scales}}},
                            {"base_filters", geometry.base_filters}}},
                          {"geometry_local",
                           {{"base_layer", 512},
                            {"volume_neighbors_in_radius", options.volume_local.neighbors},
                            {"surface_neighbors_in_radius", options.surface_local.neighbors},
                            {"volume_radii", options.volume_local.radii},
                            {"surface_radii", options.surface_local.radii}}},
                          {"nn_basis_functions", written(options.basis, "base_layer")},
                          {"position_encoder", written(options.position, "base_neurons")},
                          {"parameter_model", written(options.parameters, "base_layer")},
                          {"aggregation_model",
                           {{"base_layer", options.aggregation_width}, {"activation", options.aggregation_activation}}},
                          {"local_point_conv", {{"activation", options.local_activation}}}};
    return {{"input_features", options.input_features},
            {"output_features_vol", or_null(options.output_features_vol)},
            {"output_features_surf", or_null(options.output_features_surf)},
            {"global_features", options.global_features},
            {"model_parameters", parameters}};
}

}  // namespace meshard
