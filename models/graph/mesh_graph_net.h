// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/message_graph.h"

#include <nlohmann/json_fwd.hpp>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <memory>
#include <string>

namespace meshard {

template <class Options>
class OptionTable;

/// Constructor arguments of a MeshGraphNet, with the names and defaults of checkpoints. Meanings and bounds:
/// `mesh_graph_net_option_table`.
struct MeshGraphNetOptions {
    std::int64_t input_dim_nodes = 0;  ///< must be set
    std::int64_t input_dim_edges = 0;  ///< must be set
    std::int64_t output_dim = 0;       ///< must be set
    std::int64_t processor_size = 15;
    std::string mlp_activation_fn = "relu";  ///< a name as in activation.h
    std::int64_t num_layers_node_processor = 2;
    std::int64_t num_layers_edge_processor = 2;
    std::int64_t hidden_dim_processor = 128;
    std::int64_t hidden_dim_node_encoder = 128;
    std::int64_t num_layers_node_encoder = 2;
    std::int64_t hidden_dim_edge_encoder = 128;
    std::int64_t num_layers_edge_encoder = 2;
    std::int64_t hidden_dim_node_decoder = 128;
    std::int64_t num_layers_node_decoder = 2;
    std::string aggregation = "sum";
    bool do_concat_trick = false;

    /// @throws InvalidInput naming the option, its value and what is allowed.
    void validate() const;
};

/// Declares all options.
const OptionTable<MeshGraphNetOptions>& mesh_graph_net_option_table();

/// Reads the arguments of a checkpoint; absent ones keep their defaults. Arguments about PhysicsNeMo's gradient
/// checkpointing are ignored.
/// @throws InvalidInput for a name that is not an argument of MeshGraphNet, a value of the wrong type, or layers of
/// TransformerEngine.
MeshGraphNetOptions mesh_graph_net_options(const nlohmann::json& arguments);

/// Linear layers with an activation after all but the last, then a layer norm if `normalized`. Parameters: `model.0.*`,
/// `model.2.*`, ...
class GraphMlpImpl : public torch::nn::Module {
public:
    struct Widths {
        std::int64_t in = 0, hidden = 0, out = 0;
    };
    GraphMlpImpl(Widths widths, std::int64_t num_hidden_layers, const std::string& act, bool normalized);

    torch::Tensor forward(const torch::Tensor& x) { return model_->forward(x); }

private:
    torch::nn::Sequential model_;
};
TORCH_MODULE(GraphMlp);

/// An edge's MLP whose first layer is applied separately to edges, sources and targets: once for each node instead of
/// once for each edge. Parameters: `lin_efeat`, `lin_src`, `lin_dst` (hidden, width), `bias`, `model.1.*`, `model.3.*`,
/// ...
class SplitEdgeMlpImpl : public torch::nn::Module {
public:
    SplitEdgeMlpImpl(std::int64_t width, std::int64_t num_hidden_layers, const std::string& act);

    /// Returns the edges plus the MLP's output. Collective if nodes are cut.
    EdgeParts forward(const EdgeParts& edges, const torch::Tensor& nodes, const MessageGraph& graph);

private:
    torch::Tensor edge_weight_, source_weight_, target_weight_, bias_;
    torch::nn::Sequential model_;
};
TORCH_MODULE(SplitEdgeMlp);

/// How ghost nodes get their features in each step.
enum class GhostMode : std::uint8_t {
    Auto,     ///< the cheaper of the two according to `ghost_costs`
    Refresh,  ///< one exchange in each step, forward and backward
    Deep,     ///< as many ghost layers as steps, whose features several ranks compute; one exchange in total
};

/// Estimated cost of a training step in either mode, in seconds of the slowest rank: bytes, messages, and the
/// arithmetic for ghosts.
struct GhostCosts {
    double refresh = 0;
    double deep = 0;
};

/// Collective over the graph's ranks; equal on all of them.
GhostCosts ghost_costs(const MessageGraph& graph, const DeepGraph& deep, const MeshGraphNetOptions& options);

/// A message graph and, in mode Deep, its deep ghosts. Made once, used in every step.
class MeshGraph {
public:
    /// Collective if the nodes are cut. In the modes Auto and Deep it finds as many ghost layers as the model has
    /// steps.
    MeshGraph(MessageGraph graph, const MeshGraphNetOptions& options, GhostMode mode = GhostMode::Auto);

    const MessageGraph& graph() const { return *graph_; }
    const DeepGraph* deep() const { return deep_.get(); }  ///< null if ghosts are refreshed

private:
    std::shared_ptr<const MessageGraph> graph_;
    std::shared_ptr<const DeepGraph> deep_;
};

/// MeshGraphNet (Pfaff et al. 2021, arXiv 2010.03409): nodes and edges are encoded and exchange messages, then nodes
/// are decoded. Parameters have PhysicsNeMo's names and shapes.
class MeshGraphNetImpl : public torch::nn::Module {
public:
    /// Initial values are LibTorch's, drawn from its default generator in the reference's order.
    /// @throws InvalidInput as `MeshGraphNetOptions::validate`.
    explicit MeshGraphNetImpl(MeshGraphNetOptions options);

    /// @param nodes   (N, input_dim_nodes)
    /// @param edges   (E, input_dim_edges), in the order of the graph's edges
    /// @return        (N, output_dim)
    torch::Tensor forward(const torch::Tensor& nodes, const torch::Tensor& edges, const MeshGraph& graph);

    const MeshGraphNetOptions& options() const { return options_; }

private:
    torch::Tensor process(torch::Tensor nodes, const torch::Tensor& encoded_edges, const MessageGraph& graph);

    MeshGraphNetOptions options_;
    GraphMlp edge_encoder_{nullptr}, node_encoder_{nullptr}, node_decoder_{nullptr};
    std::vector<GraphMlp> edge_mlps_, node_mlps_;  // one for each step
    std::vector<SplitEdgeMlp> split_edge_mlps_;    // used instead of edge_mlps_ with do_concat_trick
};
TORCH_MODULE(MeshGraphNet);

}  // namespace meshard
