// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/device_rows.h"
#include "ops/fused/fused_block.h"
#include "ops/fused/tile_tensors.h"
#include "ops/rows/tile_schedule.h"
#include "ops/slices/slice_kernels.h"
#include "ops/slices/slice_layout.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace meshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::size_t kOffset = kNumMlpWeights;  // index in a call's list of weights

template <class T>
struct MlpWorker {
    MlpWorker(std::int64_t in, std::int64_t hidden, std::int64_t out, const ActivationFunction* activation,
              std::int64_t batch, std::int64_t max_points)
        : tile(in, hidden, out, activation, max_points), gradients(in * hidden + hidden + hidden * out + out + 1),
          offset_gradient(batch * out), room(make_lines<T>(out * max_points))
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

/// Forward and backward of `fused_mlp`. `weights` are those of FusedMlp, then the offset if there is one.
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
        auto result = at::empty({x_.size(0), x_.size(1), held_[2].size(0)},
                                x_.options().dtype(type_between_blocks(x_.scalar_type())));
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
        return std::make_unique<MlpWorker<T>>(held_[0].size(1), held_[0].size(0), held_[2].size(0), activation_,
                                              x_.size(0), largest_count(tiles_));
    }

    at::Tensor x_;
    std::vector<at::Tensor> held_;
    const ActivationFunction* activation_;
    typename MlpTile<T>::Weights weights_;
    std::vector<Tile> tiles_;
};

/// Forward and backward on devices, by LibTorch's products and the kernels of rows; gelu only. Backward computes the
/// hidden row again, and no bias but `out_bias` costs a pass over the points.
class DeviceMlpPasses {
public:
    DeviceMlpPasses(const at::Tensor& x, const variable_list& weights)
        : batch_(x.size(0)), num_points_(x.size(1)), in_(x.size(2)), held_(weights)
    {
        const auto type = x.scalar_type();
        // Products need rows of whole words.
        const std::int64_t missing = (kRowNumbers - in_ % kRowNumbers) % kRowNumbers;
        x_ = at::constant_pad_nd(x.flatten(0, 1), {0, missing});
        hidden_ = at::constant_pad_nd(weights[0], {0, missing}).to(type);
        hidden_bias_ = weights[1].to(type);
        out_ = weights[2].to(type);
    }

    at::Tensor forward() const
    {
        const auto result = at::addmm(held_[3].to(x_.scalar_type()), gelu_of(hidden(), /*in_place=*/true), out_.t())
                                .view({batch_, num_points_, out_.size(0)});
        return has_offset() ? result + held_[kOffset].unsqueeze(1).to(result.scalar_type()) : result;
    }

    variable_list backward(const at::Tensor& result_gradient, bool wants_x) const
    {
        const auto g = for_kernels(result_gradient.flatten(0, 1));
        auto of_hidden = at::mm(g, out_);
        at::Tensor active;
        const auto hidden_sums = gelu_backward_in_place(hidden(), of_hidden, &active);
        variable_list found;
        found.push_back(
            wants_x ? at::mm(of_hidden, hidden_).narrow(1, 0, in_).unflatten(0, {batch_, num_points_}).contiguous()
                    : at::Tensor());
        found.push_back(sums_of_products(of_hidden, x_).narrow(1, 0, in_).contiguous());
        found.push_back(hidden_sums);
        found.push_back(sums_of_products(g, active));
        found.push_back(sums_of_rows(g));
        found.push_back(at::zeros_like(held_[4]));
        if (has_offset())
            found.push_back(result_gradient.sum(at::IntArrayRef({1}), /*keepdim=*/false, held_[kOffset].scalar_type()));
        return found;
    }

private:
    static constexpr std::int64_t kRowNumbers = 8;

    bool has_offset() const { return held_.size() > kOffset; }
    at::Tensor hidden() const { return at::addmm(hidden_bias_, x_, hidden_.t()); }

    std::int64_t batch_, num_points_, in_;
    variable_list held_;
    at::Tensor x_, hidden_, hidden_bias_, out_;
};

/// Calls `run` with the passes for the points' device and type.
template <class Run>
auto with_mlp_passes(const at::Tensor& x, const variable_list& weights, const ActivationFunction* activation,
                     const Run& run)
{
    if (!x.is_cpu()) {
        const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
        return run(DeviceMlpPasses(x, weights));
    }
    return x.scalar_type() == at::kDouble ? run(MlpPasses<double>(x, weights, activation))
                                          : run(MlpPasses<float>(x, weights, activation));
}

struct MlpFunction : torch::autograd::Function<MlpFunction> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& x, at::TensorList weights,
                              const ActivationFunction* activation)
    {
        const auto rows = is_sharded(x) ? spec_of(x) : nullptr;
        auto local_weights = weights.vec();
        if (weights.size() > kOffset && rows) local_weights[kOffset] = local_in(weights[kOffset], token_spec(*rows));
        const auto local = local_in(x, rows);
        const auto result =
            with_mlp_passes(local, local_weights, activation, [](auto passes) { return passes.forward(); });
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
        const auto* activation =
            name == context->saved_data.end() ? nullptr : find_activation(name->second.toStringRef());
        reduce_partials(gradients);
        const auto gradient = local_in(gradients[0], rows), x = local_in(saved[0], rows);
        const bool wants_x = context->needs_input_grad(0);
        auto found =
            with_mlp_passes(x, weights, activation, [&](auto passes) { return passes.backward(gradient, wants_x); });
        if (rows) {
            if (wants_x) found[0] = wrap(found[0], rows);
            for (std::size_t i = 1; i < found.size(); ++i)
                found[i] = wrap(found[i], i <= kOffset ? weight_gradient_spec(*rows) : offset_gradient_spec(*rows));
        }
        found.emplace_back();  // no gradient for the argument `activation`
        return found;
    }
};

}  // namespace

at::Tensor fused_mlp(const at::Tensor& x, const FusedMlp& mlp, const at::Tensor& offset)
{
    const auto type = mlp.hidden.scalar_type();
    const auto half = x.is_cpu() ? std::nullopt : half_type_on(x.device());
    auto weights = weights_of(mlp);
    if (offset.defined()) weights.push_back(offset.to(type));
    return MlpFunction::apply(x.to(half.value_or(type)), at::TensorList(weights), mlp.activation);
}

}  // namespace meshard
