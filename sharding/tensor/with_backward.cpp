// SPDX-License-Identifier: Apache-2.0
#include "sharding/tensor/with_backward.h"

#include "partition/error.h"
#include "sharding/tensor/graph_node.h"
#include "sharding/tensor/operator_errors.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>

namespace meshard {
namespace {

/// Called above autograd, where tangents of forward mode would be lost.
void refuse_tangent(const at::Tensor& input, const char* label)
{
    if (!input.defined() || !input._fw_grad(/*level=*/0).defined() ||
        c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView))
        return;
    throw InvalidInput("{}: forward mode (torch.autograd.forward_ad) does not go through changes of layout. Take "
                       "backward, twice for second derivatives.",
                       label);
}

std::atomic<bool> part_sources = false;

struct CrossingNode : torch::autograd::Node {
    std::optional<std::vector<MeshAxis>> share_axes;

    void note_crossing(bool from_sharded, bool from_plain, const at::Tensor& output)
    {
        if (is_sharded(output)) {
            if (from_sharded || !from_plain) return;
            share_axes.emplace();
            const auto& axes = spec_of(output)->axes;
            const auto& mesh = *spec_of(output)->device_mesh;
            for (std::int64_t a = 0; a < mesh.num_axes(); ++a) {
                if (!axes[a].is_replicate()) share_axes->push_back(mesh.own_axis(a));
            }
            // Where all ranks of a folded axis have shares, they are those of the axis itself.
            if (mesh.is_folded() && share_axes->size() == axes.size()) share_axes = {mesh.known_axis(0)};
            if (!share_axes->empty()) part_sources = true;
        } else if (from_sharded) {
            share_axes.emplace();
        }
    }
};

/// Calls a node's backward; errors of meshard leave it as those of operators do.
template <class Backward>
auto translated(Backward&& backward)
{
    try {
        return backward();
    } catch (const Error& error) {
        translate_error(error);
        throw;
    }
}

struct FunctionBackward : CrossingNode {
    std::function<at::Tensor(const at::Tensor&)> backward;
    std::string label;

    torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override
    {
        auto result = translated([&] { return gradients[0].defined() ? backward(gradients[0]) : at::Tensor(); });
        if (num_outputs() == 0) return {};
        return {std::move(result)};
    }
    std::string name() const override { return label; }
};

/// Makes a node the history of its output number `i`. LibTorch does not count the node of a backward's only root among
/// those of the backward, so that GradientOrigins would not see where shares come from: before such a node goes one
/// that passes the gradient on.
void make_history(at::Tensor& output, const std::shared_ptr<CrossingNode>& node)
{
    if (!node->share_axes || node->share_axes->empty()) {
        torch::autograd::set_history(output, node);
        return;
    }
    const auto place = node->add_input_metadata(output);
    const auto root = make_graph_node<FunctionBackward>();
    root->backward = [](const at::Tensor& gradient) { return gradient; };
    root->label = node->name();
    root->set_next_edges({torch::autograd::Edge(node, place)});
    torch::autograd::set_history(output, root);
}

/// Shape and type of an output, for zeros if it gets no gradient.
struct Like {
    std::vector<std::int64_t> shape;
    at::TensorOptions options;
};

struct SeveralBackward : CrossingNode {
    std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> backward;
    std::vector<Like> likes;
    std::string label;

    torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override
    {
        for (std::size_t i = 0; i < gradients.size(); ++i) {
            if (!gradients[i].defined()) gradients[i] = at::zeros(likes[i].shape, likes[i].options);
        }
        return translated([&] { return backward(std::move(gradients)); });
    }
    std::string name() const override { return label; }
};

}  // namespace

at::Tensor with_backward(at::Tensor output, const at::Tensor& input, const char* label,
                         std::function<at::Tensor(const at::Tensor&)> backward, bool record)
{
    refuse_tangent(input, label);
    const bool takes_gradient = input.defined() ? input.requires_grad() : record;
    if (!at::GradMode::is_enabled() || !takes_gradient) return output;
    const auto node = make_graph_node<FunctionBackward>();
    node->backward = std::move(backward);
    node->label = label;
    if (input.defined()) node->note_crossing(is_sharded(input), !is_sharded(input), output);
    if (input.defined()) node->set_next_edges(torch::autograd::collect_next_edges(input));
    make_history(output, node);
    return output;
}

void set_backward(std::vector<at::Tensor>& outputs, at::TensorList inputs, const char* label,
                  std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> backward)
{
    for (const auto& input : inputs) refuse_tangent(input, label);
    if (!at::GradMode::is_enabled() ||
        std::ranges::none_of(inputs, [](const at::Tensor& input) { return input.requires_grad(); }))
        return;
    const auto node = make_graph_node<SeveralBackward>();
    torch::autograd::edge_list edges;
    for (const auto& input : inputs) edges.push_back(torch::autograd::impl::gradient_edge(input));
    node->set_next_edges(std::move(edges));
    const bool from_sharded = std::ranges::any_of(inputs, [](const at::Tensor& input) { return is_sharded(input); });
    if (!outputs.empty()) node->note_crossing(from_sharded, !from_sharded, outputs[0]);
    node->backward = std::move(backward);
    node->label = label;
    for (auto& output : outputs) {
        node->likes.push_back({output.sizes().vec(), output.options().requires_grad(false)});
        make_history(output, node);
    }
}

std::optional<std::vector<MeshAxis>> share_axes_given_by(const torch::autograd::Node& node)
{
    const auto* crossing = dynamic_cast<const CrossingNode*>(&node);
    return crossing ? crossing->share_axes : std::nullopt;
}

bool has_part_sources()
{
    return part_sources;
}

}  // namespace meshard
