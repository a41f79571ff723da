// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/fused_block.h"
#include "ops/fused/tile_tensors.h"
#include "ops/rows/tile_schedule.h"
#include "ops/slices/slice_layout.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace meshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::size_t kOffset = kNumMlpWeights;  // in a call's list of weights

template <class T>
struct MlpWorker {
    MlpWorker(std::int64_t in, std::int64_t hidden, std::int64_t out, const ActivationFunction* activation, std::int64_t batch, std::int64_t max_points)
        : tile(in, hidden, out, activation, max_points), gradients(in * hidden + hidden + hidden * out + out + 1), offset_gradient(batch * out),
          room(make_lines<T>(out * max_points))
    {
        of.hidden = gradients.data();
        of.hidden_bias = of.hidden + in * hidden;
        of.out = of.hidden_bias + hidden;
        of.out_bias = of.out + hidden * out;
        of.activation = of.out_bias + out;
    }

    MlpTile<T> tile;
    std::vector<T> gradients, offset_gradient;
    LineArray<T> room;  // for results that are not stored as T
    typename MlpTile<T>::Gradients of{};
};

/// Forward and backward of `fused_mlp`. `weights`: those of FusedMlp, then the offset if there is one.
template <class T>
class MlpPasses {
public:
    MlpPasses(const at::Tensor& x, const variable_list& weights, const ActivationFunction* activation)
        : x_(x.contiguous()), held_(all_contiguous(weights)), activation_(activation), weights_(mlp_pointers<T>(held_))
    {
        constexpr std::int64_t kMaxPoints = 256;
        tiles_ = cut_tiles(x_.size(0), x_.size(1), kMaxPoints);
    }

    at::Tensor forward()
    {
        auto result = at::empty({x_.size(0), x_.size(1), held_[2].size(0)}, x_.options().dtype(type_between_blocks(x_.scalar_type())));
        TileThreads<MlpWorker<T>> threads([this] { return make(); });
        threads.run(tiles_, [&](const Tile& tile, MlpWorker<T>& worker) {
            const T* offset = has_offset() ? sample_of<T>(held_[kOffset], tile) : nullptr;
            auto* result_here = rows_or_room(result, tile, worker.room.get());
            worker.tile.forward(weights_, rows_of<T>(x_, tile), offset, tile.count, result_here);
            write_rows(result_here, tile, result);
        });
        return result;
    }

    variable_list backward(const at::Tensor& result_gradient, bool wants_x)
    {
        const auto g = result_gradient.contiguous();
        auto x_gradient = wants_x ? at::empty_like(x_) : at::Tensor();
        TileThreads<MlpWorker<T>> threads([this] { return make(); });
        threads.run(tiles_, [&](const Tile& tile, MlpWorker<T>& worker) {
            T* offset = has_offset() ? worker.offset_gradient.data() + tile.sample * held_[2].size(0) : nullptr;
            worker.tile.backward(weights_, rows_of<T>(x_, tile), tile.count, read_rows(g, tile, worker.room.get()),
                                 wants_x ? rows_to<T>(x_gradient, tile) : nullptr, worker.of, offset);
        });
        variable_list found{x_gradient};
        std::int64_t begin = 0;
        for (std::size_t i = 0; i < held_.size(); ++i) {
            auto gradient = at::zeros_like(held_[i]);
            auto* values = gradient.template data_ptr<T>();
            threads.for_each_worker([&](const MlpWorker<T>& worker) {
                const auto* part = i < kOffset ? worker.gradients.data() + begin : worker.offset_gradient.data();
                for (std::int64_t k = 0; k < gradient.numel(); ++k) values[k] += part[k];
            });
            begin += gradient.numel();
            found.push_back(std::move(gradient));
        }
        return found;
    }

private:
    bool has_offset() const { return held_.size() > kOffset; }

    std::unique_ptr<MlpWorker<T>> make() const
    {
        return std::make_unique<MlpWorker<T>>(held_[0].size(1), held_[0].size(0), held_[2].size(0), activation_, x_.size(0), largest_count(tiles_));
    }

    at::Tensor x_;
    std::vector<at::Tensor> held_;
    const ActivationFunction* activation_;
    typename MlpTile<T>::Weights weights_;
    std::vector<Tile> tiles_;
};

struct MlpFunction : torch::autograd::Function<MlpFunction> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& x, at::TensorList weights, const ActivationFunction* activation)
    {
        const auto rows = is_sharded(x) ? spec_of(x) : nullptr;
        auto local_weights = weights.vec();
        if (weights.size() > kOffset && rows) local_weights[kOffset] = local_in(weights[kOffset], token_spec(*rows));
        const auto local = local_in(x, rows);
        const auto result = local.scalar_type() == at::kDouble ? MlpPasses<double>(local, local_weights, activation).forward()
                                                               : MlpPasses<float>(local, local_weights, activation).forward();
        variable_list saved{x};
        saved.insert(saved.end(), weights.begin(), weights.end());
        context->save_for_backward(std::move(saved));
        if (activation) context->saved_data["activation"] = std::string(activation->name);
        return wrapped(result, rows);
    }

    static variable_list backward(AutogradContext* context, variable_list gradients)
    {
        refuse_second_derivative("fused_mlp");
        const auto saved = context->get_saved_variables();
        const auto rows = is_sharded(saved[0]) ? spec_of(saved[0]) : nullptr;
        variable_list weights(saved.begin() + 1, saved.end());
        if (weights.size() > kOffset && rows) weights[kOffset] = local_in(weights[kOffset], token_spec(*rows));
        const auto name = context->saved_data.find("activation");
        const auto* activation = name == context->saved_data.end() ? nullptr : find_activation(name->second.toStringRef());
        reduce_partials(gradients);
        const auto gradient = local_in(gradients[0], rows), x = local_in(saved[0], rows);
        const bool wants_x = context->needs_input_grad(0);
        auto found = x.scalar_type() == at::kDouble ? MlpPasses<double>(x, weights, activation).backward(gradient, wants_x)
                                                    : MlpPasses<float>(x, weights, activation).backward(gradient, wants_x);
        if (rows) {
            if (wants_x) found[0] = wrap(found[0], rows);
            for (std::size_t i = 1; i < found.size(); ++i) found[i] = wrap(found[i], i <= kOffset ? weight_gradient_spec(*rows) : offset_gradient_spec(*rows));
        }
        found.emplace_back();  // for the argument `activation`
        return found;
    }
};

}  // namespace

at::Tensor fused_mlp(const at::Tensor& x, const FusedMlp& mlp, const at::Tensor& offset)
{
    const auto type = mlp.hidden.scalar_type();
    auto weights = weights_of(mlp);
    if (offset.defined()) weights.push_back(offset.to(type));
    return MlpFunction::apply(x.to(type), at::TensorList(weights), mlp.activation);
}

}  // namespace meshard
