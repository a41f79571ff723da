// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/training_plan.h"

#include "apps/console/text_table.h"
#include "apps/devices/device_load.h"
#include "apps/devices/rank_device.h"
#include "models/layers/block_form.h"
#include "partition/error.h"
#include "sharding/memory/saved_tensors.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>
#include <vector>

namespace meshard {
namespace {

constexpr double kNumbersOfWeight = 4;  // itself, its gradient, and AdamW's two means

bool are_same(const BlockChoice& a, const BlockChoice& b)
{
    return a.form == b.form &&
           std::string_view(a.why_not_fused ? a.why_not_fused : "") == (b.why_not_fused ? b.why_not_fused : "");
}

/// One line of the table for each run of blocks that run alike.
void add_forms(TextTable& table, std::string phase, const Model& model, const at::Tensor& points)
{
    auto* blocks = dynamic_cast<HasBlockForms*>(model.module.get());
    const auto choices = blocks ? blocks->block_forms(points) : std::vector<BlockChoice>();
    if (choices.empty())
        table.add_row({phase, "eager: " + model.class_name + " has no blocks of slice attention that could be fused"});
    for (auto first = choices.begin(); first != choices.end();) {
        const auto end =
            std::find_if(first, choices.end(), [&](const auto& choice) { return !are_same(choice, *first); });
        auto text = fmt::format("block{} {}", end - first == 1 ? "" : "s", first - choices.begin() + 1);
        if (end - first > 1) text += fmt::format(" to {}", end - choices.begin());
        text += fmt::format(": {}", name_of(first->form));
        if (first->why_not_fused) text += fmt::format(", not fused: {}", first->why_not_fused);
        table.add_row({std::exchange(phase, ""), text});
        first = end;
    }
}

std::string points_text(const CaseTensors& example, const DeviceMesh& device_mesh)
{
    const auto own = to_local(example.inputs.embedding).size(1);
    auto extremes = torch::tensor({own, -own});
    device_mesh.all().all_reduce(extremes, Reduction::Max);
    const auto most = extremes[0].item<std::int64_t>(), fewest = -extremes[1].item<std::int64_t>();
    return fmt::format("{} in case {}, {}{} a rank", example.num_points, example.id,
                       fewest == most ? "" : fmt::format("{} to ", fewest), most);
}

/// Bytes of the tensors that a forward pass saves for backward, each once, without the parameters. None is really kept:
/// the pass takes the memory of inference.
std::int64_t bytes_saved(const torch::nn::Module& module, const std::function<void()>& forward)
{
    std::int64_t bytes = 0;
    std::set<c10::weak_intrusive_ptr<c10::StorageImpl>> seen;
    for (const auto& parameter : module.parameters()) seen.insert(parameter.storage().getWeakStorageImpl());
    const SavedTensorHooks hooks([&](const at::Tensor& tensor) -> UnpackSaved {
        const auto& storage = local_of(tensor).storage();
        if (seen.insert(storage.getWeakStorageImpl()).second) bytes += static_cast<std::int64_t>(storage.nbytes());
        return [] { return at::Tensor(); };
    });
    forward();
    return bytes;
}

/// A line of the table for each memory mode that this case can have.
/// @param holders   ranks among which each parameter is cut
void add_needs(TextTable& table, torch::nn::Module& module, MemoryMode own, double points, std::int64_t holders,
               const DeviceMesh& device_mesh, const at::Device& device, const std::function<void()>& forward)
{
    const auto num_ranks = static_cast<double>(device_mesh.group(device_mesh.axis("domain")).size());
    const auto total = static_cast<double>(memory_in_use(device).total);
    double weights = 0;
    for (const auto& parameter : module.parameters())
        weights += kNumbersOfWeight * static_cast<double>(parameter.nbytes()) / static_cast<double>(holders);
    const auto text = [](double bytes) { return bytes_text(static_cast<std::uint64_t>(bytes)); };
    std::string word = "needs";
    for (const auto mode : memory_modes(module, own)) {
        auto bytes = torch::zeros({1}, torch::kLong);
        try {
            set_memory(module, mode);
            bytes += bytes_saved(module, forward);
        } catch (const InvalidInput&) {  // not with these settings
            continue;
        }
        device_mesh.all().all_reduce(bytes, Reduction::Max);
        const auto kept = static_cast<double>(bytes.item<std::int64_t>());
        auto line = fmt::format("{}: {} a point, {} a rank with weights", name_of(mode),
                                text(kept * num_ranks / points), text(kept + weights));
        if (total > 0 && kept + weights > total) {
            line += ", does not fit into " + text(total);
            if (weights < total)
                line += fmt::format("; on {:.0f} ranks it does", std::ceil(kept * num_ranks / (total - weights)));
        }
        table.add_row({std::exchange(word, ""), line});
    }
    set_memory(module, own);
}

}  // namespace

std::string training_plan(const Model& model, const TrainingRunConfig& config, std::span<const CaseTensors> example,
                          const DeviceMesh& device_mesh, World& world, const std::function<void()>& forward)
{
    std::int64_t num_parameters = 0;
    for (const auto& parameter : model.module->parameters()) num_parameters += parameter.numel();
    const auto size = [&](const char* axis) { return device_mesh.group(device_mesh.axis(axis)).size(); };
    TextTable table("ll");
    table.add_row({"model", fmt::format("{}, {} parameters", config.model.name, num_parameters)});
    table.add_row({"ranks", fmt::format("{}: {} data x {} domain, transport {}", world.size(), size("data"),
                                        size("domain"), world.carrier(world.device()).text())});
    table.add_row({"device", device_name(world.device())});
    table.add_row({"points", points_text(example.front(), device_mesh)});
    table.add_row({"precision", name_of(config.training.precision)});
    table.add_row({"memory", std::string(name_of(config.training.memory)) +
                                 (config.training.offload ? ", large tensors in the host's memory" : "")});

    const PrecisionGuard guard(config.training.precision, world.device().type());
    model.module->train();
    double points = 0;
    for (const auto& part : example) points += static_cast<double>(part.num_points);
    add_needs(table, *model.module, config.training.memory, points, config.shard_parameters ? world.size() : 1,
              device_mesh, world.device(), forward);
    add_forms(table, "training", model, example.front().inputs.embedding);
    {
        const torch::NoGradGuard no_grad;
        model.module->eval();
        add_forms(table, "validation", model, example.front().inputs.embedding);
        model.module->train();
    }
    std::ostringstream text;
    text << table;
    return text.str();
}

}  // namespace meshard
