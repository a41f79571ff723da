// SPDX-License-Identifier: Apache-2.0
#include "ops/fused_block.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "ops/block_call.h"
#include "ops/device_block.h"
#include "ops/slice_layout.h"
#include "ops/tile_schedule.h"
#include "ops/tile_tensors.h"
#include "sharding/exact_mode.h"
#include "sharding/redistribute.h"
#include "sharding/shard_tensor.h"

namespace meshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Of one thread.
template <class T>
struct BlockWorker {
    BlockWorker(const BlockShape& shape, std::int64_t num_sums, std::int64_t max_points, std::int64_t memory_per_point, bool with_gradients)
        : tile(shape, max_points), sums(num_sums), memory(std::make_unique_for_overwrite<T[]>(memory_per_point * max_points)),
          gradients(with_gradients ? shape : BlockShape{})
    {
    }

    BlockTile<T> tile;
    std::vector<double> sums;
    std::unique_ptr<T[]> memory;   // of activations that are not kept
    BlockGradients<T> gradients;
};

/// Both directions for one type of number, on the CPU.
template <class T>
class BlockPasses {
public:
    /// @param kept   what forward has kept, for backward; may be undefined
    BlockPasses(BlockCall& call, const at::Tensor& x, const variable_list& weights, const at::Tensor& kept = {})
        : call_(call), shape_(call.block.shape), x_(x.contiguous()), batch_(x.size(0)), kept_(kept), held_(all_contiguous(weights)),
          weights_(pointers_to<T>(held_))
    {
    }

    at::Tensor forward(const std::vector<at::Tensor>& attend_weights)
    {
        const auto& shape = shape_;
        if (call_.options.keep_activations) kept_ = at::empty({batch_ * x_.size(1) * kept_per_point()}, x_.options());
        TileThreads<BlockWorker<T>> threads(worker_maker(shape.num_sums(), /*with_gradients=*/false));

        threads.run(call_.tiles, [&](const Tile& tile, BlockWorker<T>& worker) {
            auto* sums = worker.sums.data() + tile.sample * shape.num_sums();
            worker.tile.add_slice_sums(weights_, rows_of<T>(x_, tile), tile.count, activations(tile, worker), sums);
        });
        call_.slices = std::make_unique<SliceStates>(total_of(threads, shape.head_dim + 1), x_.scalar_type(), call_.block.epsilon, call_.block.attend,
                                                     attend_weights, call_.rows, call_.recorded);

        auto result = at::empty({batch_, x_.size(1), shape.out_channels()}, x_.options());
        const auto& states = call_.slices->states();
        threads.run(call_.tiles, [&](const Tile& tile, BlockWorker<T>& worker) {
            const auto activations_here = activations(tile, worker);
            const auto* x = rows_of<T>(x_, tile);
            if (!kept_.defined()) worker.tile.project(weights_, x, tile.count, activations_here);
            worker.tile.bring_back(weights_, x, sample_of<T>(states, tile), tile.count, activations_here, rows_to<T>(result, tile));
        });
        return result;
    }

    /// Of all tiles, one after the other; undefined where backward is to compute them again.
    at::Tensor kept() const { return call_.recorded ? kept_ : at::Tensor(); }

    BlockPassGradients backward(const at::Tensor& result_gradient)
    {
        const auto& shape = shape_;
        const auto& states = call_.slices->states();
        const auto g = result_gradient.contiguous();
        auto x_gradient = at::empty_like(x_), mixed_gradient = at::empty({batch_, x_.size(1), shape.inner()}, x_.options());
        const auto num_states = shape.heads * shape.slices * shape.head_dim;
        TileThreads<BlockWorker<T>> threads(worker_maker(num_states, /*with_gradients=*/true));

        threads.run(call_.tiles, [&](const Tile& tile, BlockWorker<T>& worker) {
            const auto activations_here = activations(tile, worker);
            const auto *x = rows_of<T>(x_, tile), *states_here = sample_of<T>(states, tile);
            if (!kept_.defined()) {
                worker.tile.project(weights_, x, tile.count, activations_here);
                worker.tile.bring_back(weights_, x, states_here, tile.count, activations_here, nullptr);
            }
            worker.tile.bring_back_backward(weights_, tile.count, activations_here, rows_of<T>(g, tile), rows_to<T>(x_gradient, tile),
                                            rows_to<T>(mixed_gradient, tile), worker.sums.data() + tile.sample * num_states, &worker.gradients);
        });
        auto of_slices = call_.slices->backward(total_of(threads, shape.head_dim));

        threads.run(call_.tiles, [&](const Tile& tile, BlockWorker<T>& worker) {
            const auto activations_here = activations(tile, worker);
            const auto* x = rows_of<T>(x_, tile);
            if (!kept_.defined()) worker.tile.project_both(weights_, x, tile.count, activations_here);
            worker.tile.add_slice_sums_backward(weights_, x, sample_of<T>(states, tile), sample_of<T>(of_slices.sums, tile), tile.count, activations_here,
                                                rows_of<T>(mixed_gradient, tile), rows_to<T>(x_gradient, tile), &worker.gradients);
        });

        BlockGradients<T> total(shape);
        threads.for_each_worker([&](const BlockWorker<T>& worker) { total.add(worker.gradients); });
        BlockPassGradients gradients{x_gradient, {}, std::move(of_slices.weights)};
        gradients.weights = tensors_of(total, held_);
        return gradients;
    }

private:
    /// Inference keeps x_mid between its two passes, training all.
    std::int64_t kept_per_point() const { return call_.recorded ? BlockActivations<T>::floats_per_point(shape_) : shape_.inner(); }

    /// Where a tile's activations lie: in what is kept, or in the worker's memory.
    BlockActivations<T> activations(const Tile& tile, BlockWorker<T>& worker) const
    {
        auto* kept = kept_.defined() ? kept_.template data_ptr<T>() + tile.first * kept_per_point() : nullptr;
        if (kept && call_.recorded) return BlockActivations<T>::in(kept, shape_, tile.count);
        auto activations = BlockActivations<T>::in(worker.memory.get(), shape_, tile.count);
        if (kept) activations.x_mid = kept;
        return activations;
    }

    auto worker_maker(std::int64_t sums_per_sample, bool with_gradients) const
    {
        const auto memory_per_point = kept_.defined() && call_.recorded ? 0 : BlockActivations<T>::floats_per_point(shape_);
        return [=, this] {
            return std::make_unique<BlockWorker<T>>(shape_, batch_ * sums_per_sample, largest_count(call_.tiles), memory_per_point, with_gradients);
        };
    }

    /// What the threads have summed, (B, H, S, width).
    at::Tensor total_of(TileThreads<BlockWorker<T>>& threads, std::int64_t width) const
    {
        auto total = at::zeros({batch_, shape_.heads, shape_.slices, width}, at::kDouble);
        auto* sums = total.template data_ptr<double>();
        threads.for_each_worker([&](const BlockWorker<T>& worker) {
            for (std::size_t i = 0; i < worker.sums.size(); ++i) sums[i] += worker.sums[i];
        });
        return total;
    }

    BlockCall& call_;
    const BlockShape& shape_;
    at::Tensor x_;
    std::int64_t batch_;
    at::Tensor kept_;
    std::vector<at::Tensor> held_;
    typename BlockTile<T>::Weights weights_;
};

struct BlockFunction : torch::autograd::Function<BlockFunction> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& x, at::TensorList weights, const c10::intrusive_ptr<BlockCall>& call)
    {
        const auto local = local_in(x, call->rows);
        const auto num_own = static_cast<std::ptrdiff_t>(call->block.weights.size());
        const variable_list own(weights.begin(), weights.begin() + num_own), of_slices(weights.begin() + num_own, weights.end());
        const auto fitting = call->by_kernels ? kDeviceTilePoints : points_per_tile(call->block.shape, local.element_size());
        call->tiles = cut_tiles(local.size(0), local.size(1), call->options.tile_points > 0 ? call->options.tile_points : fitting);
        at::Tensor result, kept;
        const auto run = [&](auto passes) {
            result = passes.forward(of_slices);
            kept = passes.kept();
        };
        if (call->by_kernels) result = DeviceBlockPasses(*call, local, own).forward(of_slices);
        else if (local.scalar_type() == at::kDouble) run(BlockPasses<double>(*call, local, own));
        else run(BlockPasses<float>(*call, local, own));

        variable_list saved{x, kept};
        saved.insert(saved.end(), weights.begin(), weights.end());
        context->save_for_backward(std::move(saved));
        context->saved_data["call"] = c10::IValue::make_capsule(call);
        return wrapped(result, call->rows);
    }

    static variable_list backward(AutogradContext* context, variable_list gradients)
    {
        refuse_second_derivative("fused_block");
        const auto call = c10::static_intrusive_pointer_cast<BlockCall>(context->saved_data["call"].toCapsule());
        const auto saved = context->get_saved_variables();
        const variable_list weights(saved.begin() + 2, saved.begin() + 2 + static_cast<std::ptrdiff_t>(call->block.weights.size()));
        const auto& rows = call->rows;
        reduce_partials(gradients);
        const auto gradient = local_in(gradients[0], rows), x = local_in(saved[0], rows);
        variable_list found;
        const auto run = [&](auto passes) {
            const auto result = passes.backward(gradient);
            found.push_back(wrapped(result.x, rows));
            append_wrapped(found, result.weights, rows ? weight_gradient_spec(*rows) : nullptr);
            append_wrapped(found, result.attend_weights, rows ? weight_gradient_spec(*token_spec(*rows)) : nullptr);   // whole where rows are cut
        };
        if (call->by_kernels) run(DeviceBlockPasses(*call, x, weights));
        else if (x.scalar_type() == at::kDouble) run(BlockPasses<double>(*call, x, weights, saved[1]));
        else run(BlockPasses<float>(*call, x, weights, saved[1]));
        found.emplace_back();
        return found;
    }
};

at::Tensor called(const at::Tensor& x, const FusedBlock& block, const FusedOptions& options, bool by_kernels)
{
    auto call = c10::make_intrusive<BlockCall>();
    call->block = block;
    call->options = options;
    call->rows = is_sharded(x) ? spec_of(x) : nullptr;
    call->by_kernels = by_kernels;
    auto weights = block.weights;
    weights.insert(weights.end(), block.attend_weights.begin(), block.attend_weights.end());
    const auto wants = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
    call->recorded = at::GradMode::is_enabled() && (wants(x) || std::any_of(weights.begin(), weights.end(), wants));
    return BlockFunction::apply(x, at::TensorList(weights), call);
}

}  // namespace

bool can_fuse(const at::Tensor& points, const std::vector<at::Tensor>& weights)
{
    const auto type = points.scalar_type();
    const auto device = points.device();
    if ((!device.is_cpu() && !device.is_cuda()) || points.dim() != 3 || (type != at::kFloat && type != at::kDouble)) return false;
    if (at::autocast::is_autocast_enabled(device.type()) || (exact_mode() && type == at::kFloat)) return false;
    for (const auto& weight : weights) {
        if (!weight.defined() || is_sharded(weight) || weight.scalar_type() != type || weight.device() != device) return false;
    }
    if (device.is_cuda() && weights.size() > kSlice && !fits_slice_kernels(weights[kSlice].size(2))) return false;
    if (!is_sharded(points)) return true;
    reduce_partials({points});
    const auto& axes = spec_of(points)->axes;
    return std::all_of(axes.begin(), axes.end(), [](const auto& axis) { return !axis.is_shard() || (axis.placement.dim <= 1 && axis.blocks == 1); });
}

at::Tensor fused_block(const at::Tensor& x, const FusedBlock& block, const FusedOptions& options) { return called(x, block, options, x.is_cuda()); }

at::Tensor fused_block_by_kernels(const at::Tensor& x, const FusedBlock& block, const FusedOptions& options) { return called(x, block, options, true); }

}  // namespace meshard
