// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/training_plan.h"

#include "apps/console/text_table.h"
#include "apps/devices/rank_device.h"
#include "models/layers/block_form.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/torch.h>

#include <algorithm>
#include <sstream>
#include <vector>

namespace meshard {
namespace {

bool are_same(const BlockChoice& a, const BlockChoice& b)
{
    return a.form == b.form && std::string_view(a.why_not_fused ? a.why_not_fused : "") == (b.why_not_fused ? b.why_not_fused : "");
}

/// One line of the table for each run of blocks that run alike.
void add_forms(TextTable& table, std::string phase, const Model& model, const at::Tensor& points)
{
    auto* blocks = dynamic_cast<HasBlockForms*>(model.module.get());
    const auto choices = blocks ? blocks->block_forms(points) : std::vector<BlockChoice>();
    if (choices.empty()) table.add_row({phase, "eager: " + model.class_name + " has no blocks of slice attention that could be fused"});
    for (auto first = choices.begin(); first != choices.end();) {
        const auto end = std::find_if(first, choices.end(), [&](const auto& choice) { return !are_same(choice, *first); });
        std::ostringstream text;
        text << (end - first == 1 ? "block " : "blocks ") << first - choices.begin() + 1;
        if (end - first > 1) text << " to " << end - choices.begin();
        text << ": " << name_of(first->form);
        if (first->why_not_fused) text << ", not fused: " << first->why_not_fused;
        table.add_row({std::exchange(phase, ""), text.str()});
        first = end;
    }
}

std::string points_text(const CaseTensors& example, const DeviceMesh& device_mesh)
{
    const auto own = to_local(example.inputs.embedding).size(1);
    auto extremes = torch::tensor({own, -own});
    device_mesh.all().all_reduce(extremes, Reduction::Max);
    const auto most = extremes[0].item<std::int64_t>(), fewest = -extremes[1].item<std::int64_t>();
    const auto range = fewest == most ? std::to_string(most) : std::to_string(fewest) + " to " + std::to_string(most);
    return std::to_string(example.num_points) + " in case " + example.id + ", " + range + " a rank";
}

}  // namespace

std::string training_plan(const Model& model, const TrainingRunConfig& config, const CaseTensors& example, const DeviceMesh& device_mesh, World& world)
{
    std::int64_t num_parameters = 0;
    for (const auto& parameter : model.module->parameters()) num_parameters += parameter.numel();
    const auto size = [&](const char* axis) { return std::to_string(device_mesh.group(device_mesh.axis(axis)).size()); };
    TextTable table("ll");
    table.add_row({"model", config.model.name + ", " + std::to_string(num_parameters) + " parameters"});
    table.add_row({"ranks", std::to_string(world.size()) + ": " + size("data") + " data x " + size("domain") + " domain, transport " +
                                world.carrier(world.device()).text()});
    table.add_row({"device", device_name(world.device())});
    table.add_row({"points", points_text(example, device_mesh)});
    table.add_row({"precision", name_of(config.training.precision)});
    table.add_row({"memory", std::string(name_of(config.training.memory)) + (config.training.offload ? ", large tensors in the host's memory" : "")});

    const PrecisionGuard guard(config.training.precision, world.device().type());
    model.module->train();
    add_forms(table, "training", model, example.inputs.embedding);
    {
        const torch::NoGradGuard no_grad;
        model.module->eval();
        add_forms(table, "validation", model, example.inputs.embedding);
        model.module->train();
    }
    std::ostringstream text;
    text << table;
    return text.str();
}

}  // namespace meshard
