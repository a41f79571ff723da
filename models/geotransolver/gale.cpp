// SPDX-License-Identifier: Apache-2.0
#include "models/geotransolver/gale.h"

#include "models/transolver/physics_attention.h"
#include "ops/slices/slice_ops.h"
#include "ops/slices/token_attention.h"
#include "partition/lists.h"

#include <torch/nn/modules/activation.h>

#include <cmath>

namespace meshard {
namespace {

/// Indices in the list of weights. Each weight is followed by its bias, except the single number state_mixing; in the
/// mode concat_project the weight and bias of that layer take its place.
/// and bias are in its place.
enum MixingWeight : std::uint8_t {
    kCrossQ = 0,
    kCrossK = 2,
    kCrossV = 4,
    kStateMixing = 6,
    kConcatProject = 6,
    kConcatProjectBias = 7
};

/// In models without context the reference has this layer with 0 inputs, which LibTorch cannot initialise. It gets an
/// empty weight and a zero bias, and draws as many random numbers as the bias has values.
torch::nn::Linear context_linear(std::int64_t context_dim, std::int64_t head_dim)
{
    if (context_dim > 0) return torch::nn::Linear(context_dim, head_dim);
    auto generator = at::globalContext().defaultGenerator(at::kCPU);
    const auto state = generator.get_state();
    torch::nn::Linear linear(1, head_dim);
    generator.set_state(state);
    torch::rand({head_dim});
    linear->weight.set_data(torch::empty({head_dim, 0}));
    linear->bias.set_data(torch::zeros({head_dim}));
    return linear;
}

}  // namespace

void ContextMixing::add_to(torch::nn::Module& owner, std::int64_t head_dim, std::int64_t context_dim,
                           const std::string& mode)
{
    const bool is_weighted = mode == "weighted";
    if (is_weighted) state_mixing_ = owner.register_parameter("state_mixing", torch::tensor(0.0F));
    cross_q_ = owner.register_module("cross_q", torch::nn::Linear(head_dim, head_dim));
    cross_k_ = owner.register_module("cross_k", context_linear(context_dim, head_dim));
    cross_v_ = owner.register_module("cross_v", context_linear(context_dim, head_dim));
    if (!is_weighted) {
        concat_project_ = owner.register_module("concat_project", torch::nn::Sequential());
        concat_project_->push_back(torch::nn::Linear(2 * head_dim, head_dim));
        concat_project_->push_back(torch::nn::GELU());
    }
}

std::pair<torch::Tensor, torch::Tensor> ContextMixing::keys_and_values(const torch::Tensor& context)
{
    return {cross_k_(context), cross_v_(context)};
}

std::vector<torch::Tensor> ContextMixing::weights() const
{
    std::vector<torch::Tensor> weights{cross_q_->weight, cross_q_->bias,   cross_k_->weight,
                                       cross_k_->bias,   cross_v_->weight, cross_v_->bias};
    if (concat_project_) {
        const auto& project = concat_project_->at<torch::nn::LinearImpl>(0);
        weights.insert(weights.end(), {project.weight, project.bias});
    } else {
        weights.push_back(state_mixing_);
    }
    return weights;
}

torch::Tensor ContextMixing::mix(const std::vector<torch::Tensor>& weights, const torch::Tensor& self,
                                 const torch::Tensor& cross)
{
    if (weights.size() > kStateMixing + 1)
        return torch::gelu(
            torch::linear(torch::cat({self, cross}, -1), weights[kConcatProject], weights[kConcatProjectBias]));
    const auto share = torch::sigmoid(weights[kStateMixing]);
    return share * self + (1 - share) * cross;
}

torch::Tensor ContextMixing::attend(const std::vector<torch::Tensor>& weights, const torch::Tensor& tokens,
                                    const torch::Tensor& self, const torch::Tensor& context)
{
    const auto linear = [&](const torch::Tensor& x, MixingWeight weight) {
        return torch::linear(x, weights[weight], weights[weight + 1]);
    };
    const auto keys = linear(context, kCrossK), values = linear(context, kCrossV);
    const auto logits = torch::matmul(linear(tokens, kCrossQ), keys.transpose(-2, -1)) /
                        std::sqrt(static_cast<double>(tokens.size(-1)));
    return mix(weights, self, torch::matmul(torch::softmax(logits, -1), values));
}

void OutputDropout::add_to(torch::nn::Module& owner, double rate, bool is_learned, const SharedNoise& noise)
{
    if (is_learned)
        learned_ = owner.register_module("out_dropout", ConcreteDropout(rate, rows_of(noise)));
    else if (rate > 0)
        fixed_ = owner.register_module("out_dropout", RowDropout(rate, rows_of(noise)));
}

torch::Tensor OutputDropout::apply(const torch::Tensor& x)
{
    if (learned_) return learned_(x);
    return fixed_ ? fixed_(x) : x;
}

GaleImpl::GaleImpl(GaleOptions options) : slices_(options.slices)
{
    // Layers are made in the reference's order, since each draws random numbers.
    const auto head_dim = options.slices.head_dim, inner = options.slices.num_heads * head_dim;
    slices_.add_temperature(*this);
    slices_.add_point_temperature(*this);
    slices_.add_slices(*this);
    slices_.make_slices_orthogonal();
    qkv_project_ =
        register_module("qkv_project", torch::nn::Linear(torch::nn::LinearOptions(head_dim, 3 * head_dim).bias(false)));
    out_linear_ = register_module("out_linear", torch::nn::Linear(inner, options.slices.dim));
    // As in the reference, there is no learned dropout on grids.
    out_dropout_.add_to(*this, options.dropout, options.concrete_dropout && options.slices.grid.empty(),
                        options.slices.noise);
    slices_.add_projections(*this);
    mixing_.add_to(*this, head_dim, options.context_dim, options.state_mixing_mode);
}

torch::Tensor GaleImpl::forward(const torch::Tensor& x, const torch::Tensor& context)
{
    const auto [weights, tokens] = slices_.slice(x, is_training());  // (B, N, H, S), (B, H, S, D)
    auto states = token_attention_by_operators(tokens, qkv_project_->weight);
    if (context.defined()) states = ContextMixing::attend(mixing_.weights(), tokens, states, context);
    return out_dropout_.apply(out_linear_(deslice_tokens(weights, states).flatten(2)));
}

const char* GaleImpl::fuse_into(FusedBlock& block, const torch::Tensor& context) const
{
    if (out_dropout_.is_active(is_training())) return "it has dropout in training";
    if (const auto* obstacle = slices_.fuse_into(block, is_training())) return obstacle;
    block.weights.out = {out_linear_->weight, out_linear_->bias};
    block.attend_weights = {qkv_project_->weight};
    block.context = context;
    if (!context.defined()) {
        block.attend = [](const torch::Tensor& tokens, const std::vector<torch::Tensor>& weights) {
            return token_attention(tokens, weights[0]);
        };
        return nullptr;
    }
    const auto mixing = mixing_.weights();
    append(block.attend_weights, mixing);
    block.attend = [](const torch::Tensor& tokens, const std::vector<torch::Tensor>& weights) {
        const std::vector<torch::Tensor> mixing(weights.begin() + 1, weights.end() - 1);
        return ContextMixing::attend(mixing, tokens, token_attention(tokens, weights[0]), weights.back());
    };
    return nullptr;
}

GaleFaImpl::GaleFaImpl(const GaleOptions& options) : num_heads_(options.slices.num_heads)
{
    const auto head_dim = options.slices.head_dim, inner = num_heads_ * head_dim;
    flare_.add_queries(*this, num_heads_, options.slices.num_slices, head_dim);
    in_project_x_ = register_module("in_project_x", torch::nn::Linear(options.slices.dim, inner));
    flare_.add_keys_and_values(*this, head_dim);
    if (options.context_dim > 0) mixing_.add_to(*this, head_dim, options.context_dim, options.state_mixing_mode);
    out_linear_ = register_module("out_linear", torch::nn::Linear(inner, options.slices.dim));
    out_dropout_.add_to(*this, options.dropout, options.concrete_dropout, options.slices.noise);
}

torch::Tensor GaleFaImpl::forward(const torch::Tensor& x, const torch::Tensor& context)
{
    const auto projected = in_project_x_(x);
    const auto x_mid =
        projected.view({x.size(0), x.size(1), num_heads_, projected.size(2) / num_heads_});  // (B, N, H, D)
    auto states = flare_.mix(x_mid);                                                         // (B, N, H, D)
    if (context.defined()) {
        const auto [keys, values] = mixing_.keys_and_values(context);                        // (B, H, S, D)
        const auto queries = mixing_.queries(x_mid).transpose(1, 2);                         // (B, H, N, D)
        const auto logits = torch::matmul(queries, keys.transpose(-2, -1)).transpose(1, 2);  // (B, N, H, S)
        states = mixing_.mix(states, deslice_tokens(torch::softmax(logits, -1), values));
    }
    return out_dropout_.apply(out_linear_(states.flatten(2)));
}

}  // namespace meshard
