// SPDX-License-Identifier: Apache-2.0
#include "models/graph/supernode_pooling.h"

#include "models/graph/anchor_attention.h"
#include "ops/neighbors/message_graph.h"
#include "ops/neighbors/point_clouds.h"

#include <torch/nn/modules/activation.h>

namespace meshard {

SupernodePoolingImpl::SupernodePoolingImpl(std::int64_t num_channels, double radius, std::int64_t max_degree)
    : num_channels_(num_channels), max_degree_(max_degree), radius_(radius)
{
    message_->push_back(torch::nn::Linear(2 * num_channels, num_channels));
    message_->push_back(torch::nn::GELU());
    message_->push_back(torch::nn::Linear(num_channels, num_channels));
    register_module("message", message_);
    proj_ = register_module("proj", torch::nn::Linear(2 * num_channels, num_channels));
}

torch::Tensor SupernodePoolingImpl::forward(const torch::Tensor& geometry, const torch::Tensor& supernodes)
{
    const auto clouds = unbind_clouds("AB-UPT", "geometry", geometry),
               supernode_clouds = unbind_clouds("AB-UPT", "supernodes", supernodes);
    std::vector<torch::Tensor> pooled;
    for (std::size_t b = 0; b < clouds.size(); ++b) {
        const MessageGraph graph(
            first_by_id(radius_search(clouds[b].detach(), supernode_clouds[b].detach(), radius_), max_degree_),
            supernode_clouds[b]);
        const auto sources = position_embedding(graph.from_sources(clouds[b]), num_channels_);            // (E, C)
        const auto targets = position_embedding(graph.from_targets(supernode_clouds[b]), num_channels_);  // (E, C)
        const auto messages = message_->forward(torch::cat({sources, targets}, -1));                      // (E, C)
        const auto means = graph.to_targets(messages, SegmentReduction::Mean);                            // (M, C)
        pooled.push_back(proj_(torch::cat({means, position_embedding(supernode_clouds[b], num_channels_)}, -1)));
    }
    return torch::stack(pooled);
}

}  // namespace meshard
