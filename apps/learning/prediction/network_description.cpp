// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/network_description.h"

#include "apps/console/console.h"
#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/cases/field_scaling.h"
#include "apps/learning/prediction/told_values.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <nlohmann/json.hpp>
#include <torch/types.h>

#include <set>

namespace meshard {
namespace {

/// Names what an exported network is told of a case. Numbers of the run are part of the network.
std::set<std::string> names_of_constants(const DataConfig& data)
{
    auto names = required_names(data);
    if (is_column(data.frame.length)) names.insert(data.frame.length);
    return names;
}

}  // namespace

nlohmann::json network_description(const Predictor& predictor)
{
    const auto& data = predictor.data();
    if (!data.categories.names.empty())
        throw InvalidInput("{} is told categories of points (data.categories), which "
                           "is not exported yet. Use `meshard predict`.",
                           predictor.checkpoint().string());
    auto fields = nlohmann::json::array();
    for (std::size_t f = 0; f < data.fields.size(); ++f) {
        const auto measure = measure_of(data, data.fields[f].kind);
        fields.push_back({{"name", data.fields[f].name},
                          {"channels", predictor.channels()[f]},
                          {"factor", measure.factor},
                          {"powers", measure.powers},
                          {"is_above_p_inf", measure.is_above_p_inf}});
    }
    nlohmann::json head;
    if (const auto& own = predictor.head())
        head = {{"names", own->names},
                {"num_features", own->num_features},
                {"means", own->means},
                {"deviations", own->deviations}};
    const auto& model = predictor.model();
    return {{"file", predictor.checkpoint().string()},
            {"model_class", model.class_name},
            {"model", model.arguments},
            {"data", to_json(data)},
            {"fields", fields},
            {"constants", names_of_constants(data)},
            {"head", head}};
}

std::vector<std::pair<std::string, at::Tensor>> network_tensors(const Predictor& predictor)
{
    std::vector<std::pair<std::string, at::Tensor>> tensors{{"norm.mean", predictor.normalizer().mean},
                                                            {"norm.std", predictor.normalizer().std}};
    const auto& module = *predictor.model().module;
    for (const auto& item : module.named_parameters()) tensors.emplace_back(item.key(), item.value().detach());
    for (const auto& item : module.named_buffers()) tensors.emplace_back(item.key(), item.value());
    for (auto& [name, tensor] : tensors) tensor = tensor.cpu();
    return tensors;
}

MeshInputs mesh_inputs(const Predictor& predictor, const MeshInput& input, const PredictionOptions& options)
{
    const auto device_mesh = DeviceMesh::single();
    const auto names = names_of_constants(predictor.data());
    for (const auto& [name, value] : options.values)
        if (!names.contains(name))
            throw UsageError("an exported network is not told {0}: it has the run's own number. Leave it "
                             "out, or predict with the run.",
                             name);
    auto source = said_case(predictor, options, input.name, false).source;
    source.file = input.file;
    auto mesh = read_case({&predictor, 1}, source, input, options, device_mesh);
    auto data = predictor.data();
    std::erase_if(data.inputs, [](const auto& name) { return name == "height" || name == "box"; });
    data.frame = {.center = "none", .length = "none"};
    const auto rows = to_local(mesh.inputs(predictor, data, at::kCPU).embedding).squeeze(0);

    MeshInputs told;
    told.bounds = mesh.bounds();
    const auto places = row_places(mesh.subdomain().mesh, mesh.rows(), data.on_cells, input.name);
    told.points = torch::tensor(places, torch::kDouble).view({-1, 3});
    for (const auto& name : data.inputs) {
        if (name == "points") continue;
        told.others.emplace_back(name, rows.narrow(1, first_channel(data, name), is_vector_input(name) ? 3 : 1));
    }
    return told;
}

}  // namespace meshard
