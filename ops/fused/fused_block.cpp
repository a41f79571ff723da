// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/fused_block.h"

#include "ops/fused/block_call.h"
#include "ops/fused/device_block.h"
#include "ops/fused/device_layer.h"
#include "ops/fused/tile_tensors.h"
#include "ops/rows/on_gpu.h"
#include "ops/rows/tile_schedule.h"
#include "ops/slices/slice_layout.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "sharding/parameters/stored_parameter.h"
#include "sharding/tensor/exact_mode.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

namespace meshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Memory of one thread: for a tile, for activations that are computed again, and for numbers that are not stored as T.
template <class T>
struct BlockWorker {
    BlockWorker(const BlockShape& shape, std::int64_t num_sums, std::int64_t n, bool has_activations, bool has_rows,
                bool with_gradients)
        : tile(shape, n), sums(num_sums), gradients(with_gradients ? shape : BlockShape{})
    {
        if (has_activations) activations = make_lines<T>(BlockActivations<T>::floats_per_point(shape) * n);
        if (with_gradients) mixed_gradient = make_lines<T>(shape.inner() * n);
        if (!has_rows) return;
        x = make_lines<T>(shape.channels * n);
        x_gradient = make_lines<T>(shape.channels * n);
        result = make_lines<T>(shape.out_channels() * n);
    }

    BlockTile<T> tile;
    std::vector<double> sums;
    BlockGradients<T> gradients;
    LineArray<T> activations, mixed_gradient, x, x_gradient, result;
};

/// Forward and backward on the CPU, computed in type T.
template <class T>
class BlockPasses {
public:
    /// @param x      of T, or bfloat16 if T is float; the result and the gradient of x have this type, too, but a
    /// head's result is of T
    /// @param kept   activations that forward has kept, for backward; may be undefined
    BlockPasses(BlockCall& call, const at::Tensor& x, const BlockWeights<at::Tensor>& weights,
                const at::Tensor& kept = {})
        : call_(call), shape_(call.block.shape), x_(x.contiguous()), batch_(x.size(0)), kept_(kept),
          held_(contiguous(weights)), weights_(pointers_to<T>(held_))
    {
    }

    at::Tensor forward(const std::vector<at::Tensor>& attend_weights)
    {
        const auto& shape = shape_;
        const auto inner = shape.inner(), all = BlockActivations<T>::floats_per_point(shape);
        if (call_.recorded && call_.options.keep_activations)
            kept_ = at::empty({batch_ * x_.size(1) * all}, x_.options());
        auto threads = make_threads(shape.num_sums(), /*with_gradients=*/false);

        threads.run(call_.tiles, [&](const Tile& tile, Worker& worker) {
            auto* sums = worker.sums.data() + tile.sample * shape.num_sums();
            worker.tile.add_slice_sums(weights_, read_rows(x_, tile, worker.x.get()), tile.count,
                                       activations(tile, worker), sums);
            keep(tile, worker, 0, shape.projected());
        });
        call_.slices = std::make_unique<SliceStates>(total_of(threads, shape.head_dim + 1),
                                                     c10::CppTypeToScalarType<T>::value, call_.block.epsilon,
                                                     call_.block.attend, attend_weights, call_.rows, call_.recorded);

        auto result = at::empty({batch_, x_.size(1), shape.out_channels()},
                                shape.outputs > 0 ? held_.norm1.weight.options() : x_.options());
        const auto& states = call_.slices->states();
        threads.run(call_.tiles, [&](const Tile& tile, Worker& worker) {
            const auto activations_here = activations(tile, worker);
            const auto* x = read_rows(x_, tile, worker.x.get());
            auto* result_here = rows_or_room(result, tile, worker.result.get());
            if (!kept_.defined()) worker.tile.project(weights_, x, tile.count, activations_here);
            recall(tile, worker, 0, inner);
            worker.tile.second_half(weights_, x, sample_of<T>(states, tile), tile.count, activations_here, result_here);
            keep(tile, worker, shape.projected(), all);
            write_rows(result_here, tile, result);
        });
        return result;
    }

    /// Activations of all tiles, concatenated; undefined if backward computes them again.
    at::Tensor kept() const { return kept_; }

    BlockPassGradients backward(const at::Tensor& result_gradient)
    {
        const auto& shape = shape_;
        const auto inner = shape.inner();
        const auto& states = call_.slices->states();
        const auto g = result_gradient.contiguous();
        auto x_gradient = at::empty_like(x_),
             mixed_gradient =
                 kept_.defined() ? at::empty({batch_, x_.size(1), inner}, held_.norm1.weight.options()) : at::Tensor();
        const auto num_states = shape.heads * shape.slices * shape.head_dim;
        auto threads = make_threads(num_states, /*with_gradients=*/true);
        const auto mixed_here = [&](const Tile& tile, Worker& worker) {
            return mixed_gradient.defined() ? rows_to<T>(mixed_gradient, tile) : worker.mixed_gradient.get();
        };

        threads.run(call_.tiles, [&](const Tile& tile, Worker& worker) {
            const auto activations_here = activations(tile, worker);
            if (kept_.defined()) {
                recall(tile, worker, 0, BlockActivations<T>::floats_per_point(shape));
            } else {
                const auto *x = read_rows(x_, tile, worker.x.get()), *states_here = sample_of<T>(states, tile);
                worker.tile.project(weights_, x, tile.count, activations_here);
                worker.tile.second_half(weights_, x, states_here, tile.count, activations_here, nullptr);
            }
            auto* x_gradient_here = rows_or_room(x_gradient, tile, worker.x_gradient.get());
            worker.tile.second_half_backward(
                weights_, tile.count, activations_here, read_rows(g, tile, worker.result.get()), x_gradient_here,
                mixed_here(tile, worker), worker.sums.data() + tile.sample * num_states, &worker.gradients);
            write_rows(x_gradient_here, tile, x_gradient);
        });
        auto of_slices = call_.slices->backward(total_of(threads, shape.head_dim));

        threads.run(call_.tiles, [&](const Tile& tile, Worker& worker) {
            const auto activations_here = activations(tile, worker);
            const auto* x = read_rows(x_, tile, worker.x.get());
            auto* x_gradient_here = rows_or_room(x_gradient, tile, worker.x_gradient.get());
            read_rows(x_gradient, tile, x_gradient_here);
            if (kept_.defined()) {
                recall(tile, worker, 0, shape.projected());
            } else {
                worker.tile.project_both(weights_, x, tile.count, activations_here);
                worker.tile.mix_backward(weights_, x_gradient_here, tile.count, worker.mixed_gradient.get());
            }
            worker.tile.add_slice_sums_backward(weights_, x, sample_of<T>(states, tile),
                                                sample_of<T>(of_slices.sums, tile), tile.count, activations_here,
                                                mixed_here(tile, worker), x_gradient_here, &worker.gradients);
            write_rows(x_gradient_here, tile, x_gradient);
        });

        BlockGradients<T> total(shape);
        threads.for_each_worker([&](const Worker& worker) { total.add(worker.gradients); });
        BlockPassGradients gradients{x_gradient, {}, std::move(of_slices.weights)};
        gradients.weights = tensors_of(total, held_);
        return gradients;
    }

private:
    using Worker = BlockWorker<T>;

    bool keeps_in_place() const { return kept_.defined() && !needs_room<T>(kept_); }

    /// Pointers to a tile's activations, in the kept tensor or in the worker's memory.
    BlockActivations<T> activations(const Tile& tile, Worker& worker) const
    {
        const auto per_point = BlockActivations<T>::floats_per_point(shape_);
        auto found = BlockActivations<T>::in(keeps_in_place() ? kept_.template data_ptr<T>() + tile.first * per_point
                                                              : worker.activations.get(),
                                             shape_, tile.count);
        if (call_.block.noise) found.noise = noise_of(call_.noise, tile, x_.size(1));
        return found;
    }

    /// Copies activations `begin` ... `end - 1` of each point from the worker's memory to the kept tensor, if that has
    /// another type than T.
    void keep(const Tile& tile, Worker& worker, std::int64_t begin, std::int64_t end)
    {
        if (!kept_.defined() || keeps_in_place()) return;
        const auto first = tile.first * BlockActivations<T>::floats_per_point(shape_) + begin * tile.count;
        pack(worker.activations.get() + begin * tile.count, first, (end - begin) * tile.count, kept_);
    }

    /// The inverse of `keep`.
    void recall(const Tile& tile, Worker& worker, std::int64_t begin, std::int64_t end) const
    {
        if (!kept_.defined() || keeps_in_place()) return;
        const auto first = tile.first * BlockActivations<T>::floats_per_point(shape_) + begin * tile.count;
        unpack(kept_, first, (end - begin) * tile.count, worker.activations.get() + begin * tile.count);
    }

    TileThreads<Worker> make_threads(std::int64_t sums_per_sample, bool with_gradients) const
    {
        return TileThreads<Worker>([=, this] {
            return std::make_unique<Worker>(shape_, batch_ * sums_per_sample, largest_count(call_.tiles),
                                            !keeps_in_place(), needs_room<T>(x_), with_gradients);
        });
    }

    /// The sums of all threads, (B, H, S, width).
    at::Tensor total_of(TileThreads<Worker>& threads, std::int64_t width) const
    {
        auto total = at::zeros({batch_, shape_.heads, shape_.slices, width}, at::kDouble);
        auto* sums = total.template data_ptr<double>();
        threads.for_each_worker([&](const Worker& worker) {
            for (std::size_t i = 0; i < worker.sums.size(); ++i) sums[i] += worker.sums[i];
        });
        return total;
    }

    BlockCall& call_;
    const BlockShape& shape_;
    at::Tensor x_;
    std::int64_t batch_;
    at::Tensor kept_;
    BlockWeights<at::Tensor> held_;
    typename BlockTile<T>::Weights weights_;
};

struct BlockFunction : torch::autograd::Function<BlockFunction> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& x, at::TensorList weights,
                              const c10::intrusive_ptr<BlockCall>& call)
    {
        const auto local = local_in(x, call->rows);
        const auto* next = weights.begin();
        const auto own = weights_from(next, call->block.weights);
        variable_list of_slices(next, weights.end());
        if (call->rows && call->block.context.defined()) {
            const bool wanted = of_slices.back().requires_grad();
            of_slices.back() = local_in(of_slices.back(), token_spec(*call->rows)).detach().set_requires_grad(wanted);
        }
        const auto most = call->options.tile_points;
        const auto num_points = local.size(0) * local.size(1);
        const bool keeps = call->by_kernels && call->recorded && call->options.keep_activations;
        if (call->by_kernels) {
            call->type = local.scalar_type();
            call->layer = std::make_shared<DeviceLayer>(call->block.shape, own, call->type);
            call->pieces = device_ranges(local.size(0), local.size(1),
                                         keeps      ? std::max<std::int64_t>(num_points, 1)
                                         : most > 0 ? most
                                                    : kDeviceTilePoints);
        } else {
            call->tiles =
                cut_tiles(local.size(0), local.size(1),
                          most > 0 ? most : points_per_tile(call->block.shape, own.norm1.weight.element_size()));
        }
        at::Tensor result, kept;
        const auto run = [&](auto passes) {
            result = passes.forward(of_slices);
            kept = passes.kept();
        };
        if (call->block.noise) call->noise = call->block.noise->next_draw(x);
        if (call->by_kernels)
            result = DeviceBlockPasses(*call, local).forward(of_slices);
        else if (local.scalar_type() == at::kDouble)
            run(BlockPasses<double>(*call, local, own));
        else
            run(BlockPasses<float>(*call, local, own));

        variable_list saved{keeps ? at::Tensor() : x, kept};
        append(saved, weights);
        for (auto* tensor : call->kept.tensors()) saved.push_back(std::exchange(*tensor, {}));
        context->save_for_backward(std::move(saved));
        context->saved_data["call"] = c10::IValue::make_capsule(call);
        return wrapped(result, call->rows);
    }

    static variable_list backward(AutogradContext* context, variable_list gradients)
    {
        refuse_second_derivative("fused_block");
        const auto call = c10::static_intrusive_pointer_cast<BlockCall>(context->saved_data["call"].toCapsule());
        const auto saved = context->get_saved_variables();
        const auto* next = saved.data() + 2;
        const auto weights = weights_from(next, call->block.weights);
        const auto& rows = call->rows;
        const auto kept = call->kept.tensors();
        for (std::size_t i = 0; i < kept.size(); ++i) *kept[i] = saved[saved.size() - kept.size() + i];
        reduce_partials(gradients);
        const auto gradient = local_in(gradients[0], rows),
                   x = saved[0].defined() ? local_in(saved[0], rows) : saved[0];
        variable_list found;
        const auto run = [&](auto passes) {
            auto result = passes.backward(gradient);
            at::Tensor context;
            if (call->block.context.defined()) {
                context = result.attend_weights.back();
                result.attend_weights.pop_back();
            }
            found.push_back(wrapped(result.x, rows));
            append_wrapped(found, result.weights, rows ? weight_gradient_spec(*rows) : nullptr);
            // Not sharded along the axis of the rows.
            append_wrapped(found, result.attend_weights, rows ? weight_gradient_spec(*token_spec(*rows)) : nullptr);
            if (call->block.context.defined()) append_wrapped(found, {context}, rows ? token_spec(*rows) : nullptr);
            for (auto* tensor : kept) tensor->reset();
        };
        if (call->by_kernels)
            run(DeviceBlockPasses(*call, x));
        else if (x.scalar_type() == at::kDouble)
            run(BlockPasses<double>(*call, x, weights, saved[1]));
        else
            run(BlockPasses<float>(*call, x, weights, saved[1]));
        found.emplace_back();
        return found;
    }
};

at::Tensor called(const at::Tensor& x, const FusedBlock& block, const FusedOptions& options, bool by_kernels)
{
    if (by_kernels && block.shape.point_temperature && x.scalar_type() == at::kDouble)
        throw InvalidInput("fused_block: the kernels have no temperatures of points in double precision. Call "
                           "fusion_obstacle before.");
    auto call = c10::make_intrusive<BlockCall>();
    call->block = block;
    call->options = options;
    call->rows = is_sharded(x) ? spec_of(x) : nullptr;
    call->by_kernels = by_kernels;
    auto weights = list_of(block.weights);
    append(weights, block.attend_weights);
    if (block.context.defined()) weights.push_back(block.context.to(weights.front().scalar_type()));
    const auto wants = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
    call->recorded = at::GradMode::is_enabled() && (wants(x) || std::ranges::any_of(weights, wants));
    return BlockFunction::apply(x, at::TensorList(weights), call);
}

bool is_half(at::ScalarType type)
{
    return type == at::kBFloat16 || type == at::kHalf;
}

/// The reason why points cannot be computed: they are not float or double, or autocast's half precision (on CPUs
/// bfloat16 only), or settings of this process exclude them.
const char* obstacle_of_points(const at::Tensor& points)
{
    const auto device = points.device();
    if (!device.is_cpu() && !has_kernels(device)) return "its points are on a device without kernels";
    if (points.dim() != 3) return "its points have no batch dimension";
    const auto type = points.scalar_type();
    const auto half = half_type_on(points.device());
    const bool is_known =
        type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || (type == at::kHalf && !points.is_cpu());
    if (!is_known) return "its points are neither float32 nor float64";
    if (exact_mode() && type != at::kDouble) return "exact mode computes float32 operator by operator";
    const bool fits = !half             ? !is_half(type)
                      : points.is_cpu() ? half == at::kBFloat16
                                        : type == at::kFloat || type == half;
    if (fits) return nullptr;
    return points.is_cpu() ? "it computes in half precision other than autocast's to bfloat16 on CPUs"
                           : "it computes in half precision other than autocast's";
}

const char* obstacle_of_weight(const at::Tensor& points, const at::Tensor& weight)
{
    const auto type = is_half(points.scalar_type()) ? at::kFloat : points.scalar_type();
    if (is_sharded(weight)) return "its weights are sharded";
    if (is_stored(weight)) return "its parameters are cut among ranks (fully_shard)";
    return weight.scalar_type() == type && weight.device() == points.device()
               ? nullptr
               : "its weights have another type or device than its points";
}

const char* obstacle_of_layout(const at::Tensor& points)
{
    if (!is_sharded(points)) return nullptr;
    reduce_partials({points});
    const auto& axes = spec_of(points)->axes;
    const bool fits = std::ranges::all_of(
        axes, [](const auto& axis) { return !axis.is_shard() || (axis.placement.dim <= 1 && axis.blocks == 1); });
    return fits ? nullptr : "its points are cut along their channels, or in blocks";
}

}  // namespace

std::optional<at::ScalarType> half_type_on(const at::Device& device)
{
    if (!at::autocast::is_autocast_enabled(device.type())) return std::nullopt;
    return at::autocast::get_autocast_dtype(device.type());
}

at::ScalarType type_between_blocks(at::ScalarType type)
{
    return type == at::kFloat && half_type_on(at::kCPU) == at::kBFloat16 ? at::kBFloat16 : type;
}

const char* fusion_obstacle(const at::Tensor& points, const FusedBlock& block)
{
    if (const auto* obstacle = obstacle_of_points(points)) return obstacle;
    for (const auto* weight : block.weights.all()) {
        const auto* obstacle = weight->defined() ? obstacle_of_weight(points, *weight) : nullptr;
        if (obstacle) return obstacle;
    }
    if (!points.is_cpu() && block.shape.head_dim > (block.shape.point_temperature ? kMaxWarmTileHead : kMaxTileHead))
        return "its heads are too wide for the kernels of GPUs";
    if (!points.is_cpu() && block.shape.point_temperature && points.scalar_type() == at::kDouble)
        return "the kernels of GPUs have no temperatures of points in double precision";
    return obstacle_of_layout(points);
}

const char* fusion_obstacle(const at::Tensor& points, const FusedMlp& mlp)
{
    if (const auto* obstacle = obstacle_of_points(points)) return obstacle;
    if (const auto* obstacle = obstacle_of_weight(points, mlp.hidden)) return obstacle;
    return obstacle_of_layout(points);
}

at::Tensor fused_block(const at::Tensor& x, const FusedBlock& block, const FusedOptions& options)
{
    const auto half = half_type_on(x.device());
    return called(half && !x.is_cpu() ? x.to(*half) : x, block, options, !x.is_cpu());
}

at::Tensor fused_block_by_kernels(const at::Tensor& x, const FusedBlock& block, const FusedOptions& options)
{
    return called(x, block, options, true);
}

}  // namespace meshard
