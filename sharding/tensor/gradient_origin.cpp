// SPDX-License-Identifier: Apache-2.0
#include "sharding/tensor/gradient_origin.h"

#include "partition/error.h"
#include "sharding/tensor/with_backward.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>

namespace meshard {
namespace {

constexpr const char* kRemedy = "Pass the sharded tensor itself to the module, or make its outputs for this rank's "
                                "rows sharded again with from_local before the loss is computed";

/// Gradients that differ by more than this, relative to their norm, are not results of the same computation.
double tolerance_of(at::ScalarType type)
{
    return type == at::kDouble ? 1e-10 : type == at::kFloat ? 1e-4 : 1e-2;
}

}  // namespace

GradientOrigins::GradientOrigins() : graph_task_(torch::autograd::get_current_graph_task_id())
{
    const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
    if (!has_part_sources() || !nodes) return;
    std::unordered_map<torch::autograd::Node*, std::size_t> waits_for;  // number of gradients that have not arrived yet
    for (auto* node : *nodes) {
        for (const auto& edge : node->next_edges()) {
            if (edge.is_valid()) ++waits_for[edge.function.get()];
        }
    }
    struct Arrival {
        std::vector<GradientOrigin> inputs;
        std::vector<bool> known;
    };
    std::unordered_map<const torch::autograd::Node*, Arrival> arrived;
    std::vector<torch::autograd::Node*> ready;
    for (auto* node : *nodes) {
        if (!waits_for.contains(node)) ready.push_back(node);
    }
    while (!ready.empty()) {
        auto* node = ready.back();
        ready.pop_back();
        GradientOrigin origin;  // gradients at the roots are whole
        bool known = false;
        const auto add = [](GradientOrigin& to, bool is_first, const GradientOrigin& more) {
            if (is_first)
                to = more;
            else if (!(to == more))
                to.mixed = true;
        };
        if (const auto found = arrived.find(node); found != arrived.end()) {
            for (std::size_t i = 0; i < found->second.inputs.size(); ++i) {
                if (!found->second.known[i]) continue;
                add(origin, !known, found->second.inputs[i]);
                known = true;
            }
        }
        if (const auto axes = share_axes_given_by(*node)) origin = {*axes, false};
        for (const auto& edge : node->next_edges()) {
            if (!edge.is_valid()) continue;
            auto& arrival = arrived[edge.function.get()];
            if (arrival.inputs.size() <= edge.input_nr) {
                arrival.inputs.resize(edge.input_nr + 1);
                arrival.known.resize(edge.input_nr + 1, false);
            }
            add(arrival.inputs[edge.input_nr], !arrival.known[edge.input_nr], origin);
            arrival.known[edge.input_nr] = true;
            if (--waits_for[edge.function.get()] == 0) ready.push_back(edge.function.get());
        }
    }
    for (auto& [node, arrival] : arrived) origins_[node] = std::move(arrival.inputs);
}

GradientOrigin GradientOrigins::at(const torch::autograd::Node* node, std::uint32_t input) const
{
    const auto found = origins_.find(node);
    return found == origins_.end() || input >= found->second.size() ? GradientOrigin{} : found->second[input];
}

GradientOrigin GradientOrigins::of_leaf(const at::Tensor& leaf) const
{
    return origins_.empty() ? GradientOrigin{} : at(torch::autograd::impl::grad_accumulator(leaf).get(), 0);
}

void PlainGradientSum::add(const at::Tensor& gradient)
{
    auto numbers = gradient.detach();
    if (numbers.is_complex()) numbers = at::view_as_real(numbers.resolve_conj());
    const auto flat = numbers.reshape({-1}).to(at::kDouble);
    projection += flat.dot(at::arange(flat.numel(), flat.options()).cos_()).item<double>();
    norm += flat.norm().item<double>();
    exists = true;
}

void check_plain_gradients(const std::vector<PlainGradientSum>& own, const std::vector<std::string>& names,
                           const std::vector<at::ScalarType>& types, const DeviceMesh& device_mesh)
{
    const auto num_parameters = std::ssize(own);
    auto numbers = at::empty({1, num_parameters, 2}, at::kDouble);
    auto entries = numbers.accessor<double, 3>();
    for (std::int64_t k = 0; k < num_parameters; ++k) {
        entries[0][k][0] = own[k].projection;
        entries[0][k][1] = own[k].norm;
    }
    for (std::int64_t axis = 0; axis < device_mesh.num_axes(); ++axis) {
        const auto num_ranks = device_mesh.size(axis);
        if (num_ranks == 1 || device_mesh.axis_names()[axis] == "data") continue;
        const auto all = device_mesh.group(axis).all_gather_rows(numbers, std::vector<std::int64_t>(num_ranks, 1));
        const auto of = all.accessor<double, 3>();
        for (std::int64_t k = 0; k < num_parameters; ++k) {
            for (std::int64_t r = 1; r < num_ranks; ++r) {
                const bool differs =
                    std::abs(of[r][k][0] - of[0][k][0]) > tolerance_of(types[k]) * std::max(of[r][k][1], of[0][k][1]);
                if (!differs) continue;
                throw InvalidInput(
                    "replicate: the gradient of '{}' is a plain tensor and not the same on ranks 0 and {} of axis "
                    "'{}': each rank has used it with its own rows only, as to_local returns them. {}.",
                    names[k], r, device_mesh.axis_names()[axis], kRemedy);
            }
        }
    }
}

void check_origin(const GradientOrigin& origin, const std::string& name)
{
    if (!origin.mixed) return;
    throw InvalidInput(
        "replicate: '{}' is used with rows of this rank alone (a plain tensor that later goes through from_local) and "
        "with whole tensors; the former gradient "
        "must be summed over ranks, the latter not, and they cannot be separated. {}, and use each parameter in one of "
        "the two ways only.",
        name, kRemedy);
}

}  // namespace meshard
