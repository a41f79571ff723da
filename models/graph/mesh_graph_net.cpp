// SPDX-License-Identifier: Apache-2.0
#include "models/graph/mesh_graph_net.h"

#include "models/layers/activation.h"
#include "models/layers/option_table.h"
#include "sharding/tensor/shard_tensor.h"

#include <nlohmann/json.hpp>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>

namespace meshard {
namespace {

/// Multiplications and additions for one row of an MLP, forward and backward.
double mlp_flops(double in, double hidden, double out, std::int64_t num_hidden_layers)
{
    constexpr double kForwardAndBackward = 3;
    return 2 * kForwardAndBackward *
           (in * hidden + static_cast<double>(num_hidden_layers - 1) * hidden * hidden + hidden * out);
}

}  // namespace

const OptionTable<MeshGraphNetOptions>& mesh_graph_net_option_table()
{
    using O = MeshGraphNetOptions;
    static const OptionTable<O> table(
        "MeshGraphNet",
        {
            {"processor_size", &O::processor_size, "steps in which messages pass", {.least = 1}},
            {"hidden_dim_processor", &O::hidden_dim_processor, "channels of nodes and edges", {.least = 1}},
            {"hidden_dim_node_encoder",
             &O::hidden_dim_node_encoder,
             "hidden channels of the nodes' encoder",
             {.least = 1}},
            {"hidden_dim_edge_encoder",
             &O::hidden_dim_edge_encoder,
             "hidden channels of the edges' encoder",
             {.least = 1}},
            {"hidden_dim_node_decoder", &O::hidden_dim_node_decoder, "hidden channels of the decoder", {.least = 1}},
            {"num_layers_node_processor",
             &O::num_layers_node_processor,
             "hidden layers of a step's MLP of nodes",
             {.least = 1}},
            {"num_layers_edge_processor",
             &O::num_layers_edge_processor,
             "hidden layers of a step's MLP of edges",
             {.least = 1}},
            {"num_layers_node_encoder",
             &O::num_layers_node_encoder,
             "hidden layers of the nodes' encoder",
             {.least = 1}},
            {"num_layers_edge_encoder",
             &O::num_layers_edge_encoder,
             "hidden layers of the edges' encoder",
             {.least = 1}},
            {"num_layers_node_decoder", &O::num_layers_node_decoder, "hidden layers of the decoder", {.least = 1}},
            {"mlp_activation_fn", &O::mlp_activation_fn, "activation of the MLPs"},
            {"aggregation", &O::aggregation, "how a node's messages become one", {.words = {"sum", "mean"}}},
            {"do_concat_trick", &O::do_concat_trick,
             "nodes meet an edge's MLP before they are gathered: less work, other parameters"},
            {"input_dim_nodes", &O::input_dim_nodes, "numbers at each node", {.least = 1}},
            {"input_dim_edges", &O::input_dim_edges, "numbers at each edge", {.least = 1}},
            {"output_dim", &O::output_dim, "channels of the result", {.least = 1}},
        });
    return table;
}

void MeshGraphNetOptions::validate() const
{
    mesh_graph_net_option_table().check(*this);
}

MeshGraphNetOptions mesh_graph_net_options(const nlohmann::json& arguments)
{
    auto of_model = arguments;
    for (const auto* how_to_keep :
         {"num_processor_checkpoint_segments", "checkpoint_offloading", "recompute_activation"})
        of_model.erase(how_to_keep);
    if (const auto norm = of_model.find("norm_type"); norm != of_model.end()) {
        if (*norm != "LayerNorm")
            OptionChecks("MeshGraphNet")
                .refuse("norm_type is " + norm->dump() +
                        "; only LayerNorm can be read, not layers of TransformerEngine.");
        of_model.erase(norm);
    }
    return mesh_graph_net_option_table().read(of_model);
}

GraphMlpImpl::GraphMlpImpl(Widths widths, std::int64_t num_hidden_layers, const std::string& act, bool normalized)
{
    auto in = widths.in;
    for (std::int64_t i = 0; i < num_hidden_layers; ++i) {
        model_->push_back(torch::nn::Linear(in, widths.hidden));
        model_->push_back(Activation(act));
        in = widths.hidden;
    }
    model_->push_back(torch::nn::Linear(in, widths.out));
    if (normalized) model_->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({widths.out})));
    register_module("model", model_);
}

SplitEdgeMlpImpl::SplitEdgeMlpImpl(std::int64_t width, std::int64_t num_hidden_layers, const std::string& act)
{
    const torch::nn::Linear first(3 * width, width);  // initialised as one layer, as in the reference
    const auto weights = first->weight.detach().split(width, 1);
    edge_weight_ = register_parameter("lin_efeat", weights[0].clone());
    source_weight_ = register_parameter("lin_src", weights[1].clone());
    target_weight_ = register_parameter("lin_dst", weights[2].clone());
    bias_ = register_parameter("bias", first->bias.detach());
    for (std::int64_t i = 0; i < num_hidden_layers; ++i) {
        model_->push_back(Activation(act));
        model_->push_back(torch::nn::Linear(width, width));
    }
    model_->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    register_module("model", model_);
}

EdgeParts SplitEdgeMlpImpl::forward(const EdgeParts& edges, const torch::Tensor& nodes, const MessageGraph& graph)
{
    return graph.updated_edges(
        torch::linear(nodes, source_weight_), torch::linear(nodes, target_weight_), edges,
        [&](const torch::Tensor& own, const torch::Tensor& sources, const torch::Tensor& targets) {
            return model_->forward(torch::linear(own, edge_weight_, bias_) + (sources + targets)) + own;
        });
}

GhostCosts ghost_costs(const MessageGraph& graph, const DeepGraph& deep, const MeshGraphNetOptions& options)
{
    // Assumed rates of a rank. Only their ratios matter: a message costs as much as 400,000 floating-point operations.
    constexpr double flops_per_second = 2e10, bytes_per_second = 4e9, seconds_per_message = 2e-5;
    const auto width = static_cast<double>(options.hidden_dim_processor);
    const auto steps = static_cast<double>(options.processor_size);
    const auto edge_flops = mlp_flops(3 * width, width, width, options.num_layers_edge_processor);
    const auto node_flops = mlp_flops(2 * width, width, width, options.num_layers_node_processor);
    const auto exchange = [&](std::int64_t rows, double channels) {  // forward and backward
        return 2 * (seconds_per_message + 4 * channels * static_cast<double>(rows) / bytes_per_second);
    };
    const auto more_nodes = deep.num_nodes() - (graph.neighbors().offsets.size(0) - 1),
               more_edges = deep.graph().num_edges() - graph.num_edges();
    const auto seconds = [&](double flops) { return flops / flops_per_second; };

    auto costs = torch::tensor({steps * exchange(graph.num_ghosts(), width),
                                exchange(more_nodes, static_cast<double>(options.input_dim_nodes)) +
                                    exchange(more_edges, static_cast<double>(options.input_dim_edges)) +
                                    steps * seconds(static_cast<double>(more_nodes) * node_flops +
                                                    static_cast<double>(more_edges) * edge_flops)},
                               torch::kDouble);
    graph.neighbors().queries_group.all_reduce(costs, Reduction::Max);
    return {costs[0].item<double>(), costs[1].item<double>()};
}

MeshGraph::MeshGraph(MessageGraph graph, const MeshGraphNetOptions& options, GhostMode mode)
    : graph_(std::make_shared<const MessageGraph>(std::move(graph)))
{
    const bool is_cut = graph_->edge_layout() && graph_->neighbors().queries_group.size() > 1;
    if (!is_cut || mode == GhostMode::Refresh) return;
    deep_ = std::make_shared<const DeepGraph>(*graph_, options.processor_size);
    if (mode == GhostMode::Deep) return;
    const auto costs = ghost_costs(*graph_, *deep_, options);
    if (costs.refresh < costs.deep) deep_.reset();
}

MeshGraphNetImpl::MeshGraphNetImpl(MeshGraphNetOptions options) : options_(std::move(options))
{
    options_.validate();
    const auto& o = options_;
    const auto width = o.hidden_dim_processor;
    // Layers are made in the reference's order, since each draws random numbers.
    const auto mlp = [&](GraphMlpImpl::Widths widths, std::int64_t num_layers, bool normalized) {
        return GraphMlp(widths, num_layers, o.mlp_activation_fn, normalized);
    };
    edge_encoder_ = register_module(
        "edge_encoder", mlp({o.input_dim_edges, o.hidden_dim_edge_encoder, width}, o.num_layers_edge_encoder, true));
    node_encoder_ = register_module(
        "node_encoder", mlp({o.input_dim_nodes, o.hidden_dim_node_encoder, width}, o.num_layers_node_encoder, true));
    node_decoder_ = register_module(
        "node_decoder", mlp({width, o.hidden_dim_node_decoder, o.output_dim}, o.num_layers_node_decoder, false));
    for (std::int64_t i = 0; i < o.processor_size; ++i) {
        if (o.do_concat_trick)
            split_edge_mlps_.emplace_back(width, o.num_layers_edge_processor, o.mlp_activation_fn);
        else
            edge_mlps_.push_back(mlp({3 * width, width, width}, o.num_layers_edge_processor, true));
    }
    for (std::int64_t i = 0; i < o.processor_size; ++i)
        node_mlps_.push_back(mlp({2 * width, width, width}, o.num_layers_node_processor, true));

    torch::nn::ModuleList layers;  // edges and nodes alternate
    for (std::size_t i = 0; i < node_mlps_.size(); ++i) {
        auto edge_block = std::make_shared<torch::nn::Module>(), node_block = std::make_shared<torch::nn::Module>();
        if (o.do_concat_trick)
            edge_block->register_module("edge_mlp", split_edge_mlps_[i]);
        else
            edge_block->register_module("edge_mlp", edge_mlps_[i]);
        node_block->register_module("node_mlp", node_mlps_[i]);
        layers->push_back(std::move(edge_block));
        layers->push_back(std::move(node_block));
    }
    register_module("processor", std::make_shared<torch::nn::Module>())->register_module("processor_layers", layers);
}

torch::Tensor MeshGraphNetImpl::process(torch::Tensor nodes, const torch::Tensor& encoded_edges,
                                        const MessageGraph& graph)
{
    const auto reduction = options_.aggregation == "sum" ? SegmentReduction::Sum : SegmentReduction::Mean;
    auto edges = graph.parts_of(encoded_edges);
    for (std::size_t i = 0; i < node_mlps_.size(); ++i) {
        if (options_.do_concat_trick) {
            edges = split_edge_mlps_[i](edges, nodes, graph);  // (E, C)
        } else {
            edges = graph.updated_edges(
                nodes, nodes, edges,
                [&](const torch::Tensor& own, const torch::Tensor& sources, const torch::Tensor& targets) {
                    return edge_mlps_[i](torch::cat({own, sources, targets}, -1)) + own;  // (E, C)
                });
        }
        nodes = node_mlps_[i](torch::cat({graph.to_targets(edges, reduction), nodes}, -1)) + nodes;  // (N, C)
    }
    return nodes;
}

torch::Tensor MeshGraphNetImpl::forward(const torch::Tensor& nodes, const torch::Tensor& edges, const MeshGraph& graph)
{
    const auto* deep = graph.deep();
    if (!deep) return node_decoder_(process(node_encoder_(nodes), edge_encoder_(edges), graph.graph()));
    const auto processed = process(node_encoder_(deep->with_ghost_nodes(nodes)),
                                   edge_encoder_(deep->with_ghost_edges(edges)), deep->graph());
    return node_decoder_(deep->owned_nodes(processed));
}

}  // namespace meshard
