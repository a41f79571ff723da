// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/streamed_blocks.h"

#include "ops/fused/device_stream.h"
#include "ops/fused/tile_tensors.h"
#include "ops/rows/tile_schedule.h"
#include "ops/slices/slice_layout.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace meshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Converts a model's weights to a list, and back: those of the MLP, the offset, then for each block its own and those
/// of `attend`.
variable_list list_of(const StreamedModel& model)
{
    auto list = weights_of(model.mlp);
    if (model.offset.defined()) list.push_back(model.offset.to(model.mlp.hidden.scalar_type()));
    for (const auto& block : model.blocks) {
        const auto own = list_of(block.weights);
        append(list, own);
        append(list, block.attend_weights);
    }
    return list;
}

void take_from(const variable_list& list, StreamedModel& model)
{
    const auto* next = list.data();
    for (auto* weight :
         {&model.mlp.hidden, &model.mlp.hidden_bias, &model.mlp.out, &model.mlp.out_bias, &model.mlp.parameter})
        *weight = (next++)->contiguous();
    if (model.offset.defined()) model.offset = (next++)->contiguous();
    for (auto& block : model.blocks) {
        block.weights = contiguous(weights_from(next, block.weights));
        for (auto& weight : block.attend_weights) weight = *next++;
    }
}

/// Memory of one thread: for one tile in all layers, and for the sums over the thread's tiles.
template <class T>
struct StreamWorker {
    StreamWorker(const StreamedModel& model, std::int64_t num_sums, std::int64_t n, bool for_backward)
        : inner(model.blocks.front().shape, n), last(model.blocks.back().shape, n),
          mlp(model.mlp.hidden.size(1), model.mlp.hidden.size(0), model.mlp.out.size(0), model.mlp.activation, n),
          sums(num_sums)
    {
        const auto& shape = model.blocks.back().shape;
        const auto num_layers = std::ssize(model.blocks);
        num_slots = for_backward ? num_layers : 1;
        x_stride = shape.channels * n;
        kept_stride = BlockActivations<T>::floats_per_point(shape) * n;
        const auto of_backward = for_backward ? (2 * shape.channels + shape.inner()) * n : 0;
        memory = make_lines<T>((num_slots + 1) * x_stride + num_slots * kept_stride + of_backward);
        if (!for_backward) return;
        for (const auto& block : model.blocks) gradients.emplace_back(block.shape);
        for (const auto& weight : weights_of(model.mlp)) mlp_gradients.emplace_back(weight.numel());
        offset_gradient.resize(model.offset.defined() ? model.offset.numel() : 0);
    }

    T* x(std::int64_t layer) { return memory.get() + (num_slots > 1 ? layer : layer % 2) * x_stride; }
    T* kept(std::int64_t layer)
    {
        return memory.get() + (num_slots + 1) * x_stride + (num_slots > 1 ? layer : 0) * kept_stride;
    }
    T* x_gradient(std::int64_t layer) { return gradient_memory() + layer % 2 * x_stride; }
    T* mixed_gradient() { return gradient_memory() + 2 * x_stride; }
    T* gradient_memory() { return memory.get() + (num_slots + 1) * x_stride + num_slots * kept_stride; }

    BlockTile<T> inner, last;
    MlpTile<T> mlp;
    std::vector<double> sums;
    std::int64_t num_slots, x_stride, kept_stride;
    LineArray<T> memory;
    std::vector<BlockGradients<T>> gradients;
    std::vector<std::vector<T>> mlp_gradients;
    std::vector<T> offset_gradient;
};

/// One call of `streamed_blocks`.
struct StreamCall : torch::CustomClassHolder {
    StreamedModel model;
    SpecPtr rows;
    bool by_kernels = false;  // whether DeviceStreamPasses computes the model, as on GPUs
    at::ScalarType type{};    // on devices: type of the points between layers
    std::vector<SliceStates> slices;
    std::vector<RowDraw> noise;  // for each block
};

/// The next draw of each block that has noise.
std::vector<RowDraw> draws_of(const StreamedModel& model, const at::Tensor& points)
{
    std::vector<RowDraw> draws;
    for (const auto& block : model.blocks) draws.push_back(block.noise ? block.noise->next_draw(points) : RowDraw());
    return draws;
}

template <class T>
class StreamPasses {
public:
    using Worker = StreamWorker<T>;

    /// @param points   this rank's points, plain
    /// @param model    the model with this rank's weights
    /// @param noise    for each block
    StreamPasses(const at::Tensor& points, const StreamedModel& model, const std::vector<RowDraw>& noise)
        : points_(points.contiguous()), model_(model), noise_(noise), batch_(points.size(0))
    {
        const auto& shape = model.blocks.back().shape;
        const auto limit = model.tile_points > 0 ? model.tile_points : points_per_tile(shape, sizeof(T));
        tiles_ = cut_tiles(batch_, points.size(1), limit);
        mlp_ = mlp_pointers<T>(weights_of(model.mlp));
        for (const auto& block : model.blocks) weights_.push_back(pointers_to<T>(block.weights));
    }

    std::vector<SliceStates> find_states(const SpecPtr& rows, bool record)
    {
        std::vector<SliceStates> slices;
        const auto& shape = model_.blocks.front().shape;
        auto threads = make_threads(shape.num_sums(), false);
        for (std::int64_t l = 0; l < num_layers(); ++l) {
            threads.run(tiles_, [&](const Tile& tile, Worker& worker) {
                const auto* x = run_to(l, tile, worker);
                block_tile(worker, l).add_slice_sums(weights_[l], x, tile.count, kept(worker, l, tile),
                                                     worker.sums.data() + tile.sample * shape.num_sums());
            });
            slices.push_back(slices_of(l, threads, rows, record));
            states_.push_back(slices.back().states());
        }
        return slices;
    }

    /// Layer by layer: one pass over the tiles ends a layer and begins the next, while a tile is in the cache.
    at::Tensor result_by_layers(const SpecPtr& rows, bool keep_projections)
    {
        const auto& shape = model_.blocks.front().shape;
        const auto options = points_.options().dtype(type_between_blocks(points_.scalar_type()));
        auto x = at::empty({batch_, points_.size(1), shape.channels}, options),
             x_mid = keep_projections ? at::empty({batch_, points_.size(1), shape.inner()}, options) : at::Tensor();
        auto result = empty_result();
        auto threads = make_threads(shape.num_sums(), false);
        for (std::int64_t l = 0; l <= num_layers(); ++l) {
            threads.run(tiles_, [&](const Tile& tile, Worker& worker) {
                auto* x_here = rows_or_room(x, tile, worker.x(0));
                auto here = kept(worker, num_layers() - 1, tile);  // with memory for the head
                here.noise = noise(l - 1, tile);
                auto* x_mid_here = keep_projections ? rows_or_room(x_mid, tile, here.x_mid) : here.x_mid;
                here.x_mid = x_mid_here;
                if (l == 0) {
                    begin(tile, worker, x_here);
                } else {
                    read_rows(x, tile, x_here);
                    if (keep_projections)
                        read_rows(x_mid, tile, x_mid_here);
                    else
                        block_tile(worker, l - 1).project(weights_[l - 1], x_here, tile.count, here);
                    block_tile(worker, l - 1)
                        .second_half(weights_[l - 1], x_here, state(l - 1, tile), tile.count, here,
                                     l < num_layers() ? x_here : rows_to<T>(result, tile));
                }
                if (l == num_layers()) return;
                here.noise = noise(l, tile);
                block_tile(worker, l).add_slice_sums(weights_[l], x_here, tile.count, here,
                                                     worker.sums.data() + tile.sample * shape.num_sums());
                write_rows(x_here, tile, x);
                if (keep_projections) write_rows(x_mid_here, tile, x_mid);
            });
            if (l == num_layers()) break;
            states_.push_back(slices_of(l, threads, rows, false).states());
        }
        return result;
    }

    at::Tensor result()
    {
        auto result = empty_result();
        auto threads = make_threads(0, false);
        threads.run(tiles_, [&](const Tile& tile, Worker& worker) {
            const auto l = num_layers() - 1;
            const auto* x = run_to(l, tile, worker);
            const auto here = kept(worker, l, tile);
            worker.last.project(weights_[l], x, tile.count, here);
            worker.last.second_half(weights_[l], x, state(l, tile), tile.count, here, rows_to<T>(result, tile));
        });
        return result;
    }

    StreamGradients backward(const std::vector<SliceStates>& slices, const at::Tensor& result_gradient,
                             bool wants_points)
    {
        const auto g = result_gradient.contiguous();
        const auto& shape = model_.blocks.front().shape;
        StreamGradients found;
        found.attend_weights.resize(num_layers());
        for (const auto& layer : slices) states_.push_back(layer.states());
        sums_gradients_.resize(num_layers());
        if (wants_points) found.points = at::empty_like(points_);
        auto threads = make_threads(shape.heads * shape.slices * shape.head_dim, true);
        for (auto l = num_layers() - 1; l >= 0; --l) {
            threads.run(tiles_, [&](const Tile& tile, Worker& worker) { sweep(l, tile, worker, g, found.points); });
            auto of_slices = slices[l].backward(take_sums(threads, shape.head_dim));
            sums_gradients_[l] = of_slices.sums;
            found.attend_weights[l] = std::move(of_slices.weights);
        }
        threads.run(tiles_, [&](const Tile& tile, Worker& worker) { sweep(-1, tile, worker, g, found.points); });
        add_up(threads, found);
        return found;
    }

private:
    std::int64_t num_layers() const { return std::ssize(model_.blocks); }
    BlockTile<T>& block_tile(Worker& worker, std::int64_t layer) const
    {
        return layer + 1 == num_layers() ? worker.last : worker.inner;
    }
    const T* state(std::int64_t layer, const Tile& tile) const { return sample_of<T>(states_[layer], tile); }

    BlockActivations<T> kept(Worker& worker, std::int64_t layer, const Tile& tile) const
    {
        auto found = BlockActivations<T>::in(worker.kept(layer), model_.blocks[layer].shape, tile.count);
        found.noise = noise(layer, tile);
        return found;
    }

    TileNoise noise(std::int64_t layer, const Tile& tile) const
    {
        return layer >= 0 && model_.blocks[layer].noise ? noise_of(noise_[layer], tile, points_.size(1)) : TileNoise();
    }

    TileThreads<Worker> make_threads(std::int64_t sums_per_sample, bool for_backward) const
    {
        return TileThreads<Worker>([=, this] {
            return std::make_unique<Worker>(model_, batch_ * sums_per_sample, largest_count(tiles_), for_backward);
        });
    }

    at::Tensor empty_result() const
    {
        return at::empty({batch_, points_.size(1), model_.blocks.back().shape.out_channels()}, points_.options());
    }

    /// Computes the states of a layer's slices from the sums of all threads, and resets these sums.
    SliceStates slices_of(std::int64_t layer, TileThreads<Worker>& threads, const SpecPtr& rows, bool record) const
    {
        const auto& block = model_.blocks[layer];
        return {take_sums(threads, block.shape.head_dim + 1),
                points_.scalar_type(),
                block.epsilon,
                block.attend,
                block.attend_weights,
                rows,
                record};
    }

    /// Computes the first layer's input of a tile.
    void begin(const Tile& tile, Worker& worker, T* x) const
    {
        const T* offset = model_.offset.defined() ? sample_of<T>(model_.offset, tile) : nullptr;
        worker.mlp.forward(mlp_, rows_of<T>(points_, tile), offset, tile.count, x);
    }

    /// Computes a layer's input of a tile.
    const T* run_to(std::int64_t layer, const Tile& tile, Worker& worker) const
    {
        begin(tile, worker, worker.x(0));
        for (std::int64_t k = 0; k < layer; ++k) {
            const auto here = kept(worker, k, tile);
            worker.inner.project(weights_[k], worker.x(k), tile.count, here);
            worker.inner.second_half(weights_[k], worker.x(k), state(k, tile), tile.count, here, worker.x(k + 1));
        }
        return worker.x(layer);
    }

    /// Returns the sums of all threads, (B, H, S, width), and resets them.
    at::Tensor take_sums(TileThreads<Worker>& threads, std::int64_t width) const
    {
        const auto& shape = model_.blocks.front().shape;
        auto total = at::zeros({batch_, shape.heads, shape.slices, width}, at::kDouble);
        auto* sums = total.template data_ptr<double>();
        threads.for_each_worker([&](Worker& worker) {
            for (std::size_t i = 0; i < worker.sums.size(); ++i) sums[i] += worker.sums[i];
            std::ranges::fill(worker.sums, 0.0);
        });
        return total;
    }

    /// Backward of one tile down to the states of a layer, or to the points for -1. The gradients of the sums of all
    /// layers above are known from earlier passes. Each weight's gradient is computed once, in the first pass that can
    /// compute it.
    void sweep(std::int64_t layer, const Tile& tile, Worker& worker, const at::Tensor& result_gradient,
               at::Tensor& points_gradient) const
    {
        const auto n = tile.count, top = num_layers() - 1;
        run_to(top, tile, worker);
        worker.last.project(weights_[top], worker.x(top), n, kept(worker, top, tile));
        worker.last.second_half(weights_[top], worker.x(top), state(top, tile), n, kept(worker, top, tile), nullptr);

        const T* g = rows_of<T>(result_gradient, tile);
        for (auto k = top; k > layer; --k) {
            auto& block = block_tile(worker, k);
            const auto here = kept(worker, k, tile);
            block.second_half_backward(weights_[k], n, here, g, worker.x_gradient(k), worker.mixed_gradient(), nullptr,
                                       nullptr);
            block.project_both(weights_[k], worker.x(k), n, here);
            block.add_slice_sums_backward(weights_[k], worker.x(k), state(k, tile),
                                          sample_of<T>(sums_gradients_[k], tile), n, here, worker.mixed_gradient(),
                                          worker.x_gradient(k), k == layer + 1 ? &worker.gradients[k] : nullptr);
            g = worker.x_gradient(k);
        }
        if (layer >= 0) {
            const auto& shape = model_.blocks[layer].shape;
            block_tile(worker, layer)
                .second_half_backward(weights_[layer], n, kept(worker, layer, tile), g, worker.x_gradient(layer),
                                      worker.mixed_gradient(),
                                      worker.sums.data() + tile.sample * shape.heads * shape.slices * shape.head_dim,
                                      &worker.gradients[layer]);
            return;
        }
        auto& of_mlp = worker.mlp_gradients;
        worker.mlp.backward(mlp_, rows_of<T>(points_, tile), n, g,
                            points_gradient.defined() ? rows_to<T>(points_gradient, tile) : nullptr,
                            {of_mlp[0].data(), of_mlp[1].data(), of_mlp[2].data(), of_mlp[3].data(), of_mlp[4].data()},
                            worker.offset_gradient.empty()
                                ? nullptr
                                : worker.offset_gradient.data() + tile.sample * model_.offset.size(1));
    }

    void add_up(TileThreads<Worker>& threads, StreamGradients& found) const
    {
        const auto sum = [&](const at::Tensor& like, const auto& part_of) {
            auto total = at::zeros_like(like);
            auto* values = total.template data_ptr<T>();
            threads.for_each_worker([&](Worker& worker) {
                const std::vector<T>& part = part_of(worker);
                for (std::size_t i = 0; i < part.size(); ++i) values[i] += part[i];
            });
            return total;
        };
        std::size_t k = 0;
        for (const auto& weight : weights_of(model_.mlp)) {
            found.mlp.push_back(sum(weight, [&](Worker& worker) -> const auto& { return worker.mlp_gradients[k]; }));
            ++k;
        }
        if (model_.offset.defined())
            found.offset = sum(model_.offset, [](Worker& worker) -> const auto& { return worker.offset_gradient; });
        for (std::size_t l = 0; l < model_.blocks.size(); ++l) {
            BlockGradients<T> total(model_.blocks[l].shape);
            threads.for_each_worker([&](const Worker& worker) { total.add(worker.gradients[l]); });
            found.weights.push_back(tensors_of(total, model_.blocks[l].weights));
        }
    }

    at::Tensor points_;
    const StreamedModel& model_;
    const std::vector<RowDraw>& noise_;  // for each block
    std::int64_t batch_;
    std::vector<Tile> tiles_;
    typename MlpTile<T>::Weights mlp_{};
    std::vector<typename BlockTile<T>::Weights> weights_;  // for each block
    std::vector<at::Tensor> states_, sums_gradients_;      // for each block, of this rank's samples
};

/// Calls `run` with the passes of a call for its device and type.
template <class Run>
void with_passes(const at::Tensor& points, const StreamedModel& model, const StreamCall& call, const Run& run)
{
    if (call.by_kernels)
        run(DeviceStreamPasses(points, model, call.noise, call.type));
    else if (points.scalar_type() == at::kDouble)
        run(StreamPasses<double>(points, model, call.noise));
    else
        run(StreamPasses<float>(points, model, call.noise));
}

/// Converts a tensor to the type of the weights, since autocast may have changed it.
at::Tensor in_type_of(const StreamedModel& model, const at::Tensor& tensor)
{
    return tensor.to(model.mlp.hidden.scalar_type());
}

/// The model with this rank's weights, contiguous.
StreamedModel local_model(const StreamedModel& model, const variable_list& weights, const SpecPtr& rows)
{
    auto local = model;
    take_from(weights, local);
    if (local.offset.defined() && rows) local.offset = local_in(local.offset, token_spec(*rows)).contiguous();
    return local;
}

struct StreamFunction : torch::autograd::Function<StreamFunction> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& points, at::TensorList weights,
                              const c10::intrusive_ptr<StreamCall>& call, bool record)
    {
        const auto local = local_in(points, call->rows);
        const auto model = local_model(call->model, weights.vec(), call->rows);
        at::Tensor result;
        call->noise = draws_of(call->model, points);
        with_passes(local, model, *call, [&](auto passes) {
            call->slices = passes.find_states(call->rows, record);
            result = passes.result();
        });
        variable_list saved{points};
        append(saved, weights);
        context->save_for_backward(std::move(saved));
        context->saved_data["call"] = c10::IValue::make_capsule(call);
        return wrapped(result, call->rows);
    }

    static variable_list backward(AutogradContext* context, variable_list gradients)
    {
        refuse_second_derivative("streamed_blocks");
        const auto call = c10::static_intrusive_pointer_cast<StreamCall>(context->saved_data["call"].toCapsule());
        const auto saved = context->get_saved_variables();
        const auto& rows = call->rows;
        const auto model = local_model(call->model, variable_list(saved.begin() + 1, saved.end()), rows);
        reduce_partials(gradients);
        const auto gradient = local_in(gradients[0], rows), points = local_in(saved[0], rows);
        const auto of_weights = rows ? weight_gradient_spec(*rows) : nullptr,
                   of_slices = rows ? weight_gradient_spec(*token_spec(*rows)) : nullptr;
        variable_list list;
        with_passes(points, model, *call, [&](auto passes) {
            const auto found = passes.backward(call->slices, gradient, context->needs_input_grad(0));
            append_wrapped(list, {found.points}, rows);
            append_wrapped(list, found.mlp, of_weights);
            if (found.offset.defined())
                append_wrapped(list, {found.offset}, rows ? offset_gradient_spec(*rows) : nullptr);
            for (std::size_t l = 0; l < found.weights.size(); ++l) {
                append_wrapped(list, found.weights[l], of_weights);
                append_wrapped(list, found.attend_weights[l], of_slices);
            }
        });
        list.resize(list.size() + 2);  // no gradients for the arguments `call` and `record`
        return list;
    }
};

/// A call on these points, which have the type of the weights, or another that autocast has given them.
c10::intrusive_ptr<StreamCall> call_on(const at::Tensor& points, const StreamedModel& model, bool by_kernels)
{
    auto call = c10::make_intrusive<StreamCall>();
    call->model = model;
    call->rows = is_sharded(points) ? spec_of(points) : nullptr;
    call->by_kernels = by_kernels;
    call->type = half_type_on(points.device()).value_or(model.mlp.hidden.scalar_type());
    const auto has_temperatures = [](const FusedBlock& block) { return block.shape.point_temperature; };
    if (by_kernels && points.scalar_type() == at::kDouble && std::ranges::any_of(model.blocks, has_temperatures))
        throw InvalidInput("streamed_blocks: the kernels have no temperatures of points in double precision. Call "
                           "fusion_obstacle before.");
    return call;
}

at::Tensor streamed(const at::Tensor& points, const StreamedModel& model, bool by_kernels)
{
    const auto weights = list_of(model);
    const auto wants = [](const at::Tensor& tensor) { return tensor.requires_grad(); };
    const bool record = at::GradMode::is_enabled() && (wants(points) || std::ranges::any_of(weights, wants));
    return StreamFunction::apply(in_type_of(model, points), at::TensorList(weights), call_on(points, model, by_kernels),
                                 record);
}

}  // namespace

at::Tensor streamed_blocks(const at::Tensor& points, const StreamedModel& model)
{
    return streamed(points, model, !points.is_cpu());
}

at::Tensor streamed_blocks_by_kernels(const at::Tensor& points, const StreamedModel& model)
{
    return streamed(points, model, true);
}

at::Tensor inferred_blocks(const at::Tensor& points, const StreamedModel& model, bool keep_projections)
{
    const at::NoGradGuard no_grad;
    const auto rows = is_sharded(points) ? spec_of(points) : nullptr;
    const auto local = local_model(model, list_of(model), rows);
    const auto plain = local_in(in_type_of(model, points), rows);
    const auto noise = draws_of(model, points);
    const auto result = [&](auto passes) { return wrapped(passes.result_by_layers(rows, keep_projections), rows); };
    return plain.scalar_type() == at::kDouble ? result(StreamPasses<double>(plain, local, noise))
                                              : result(StreamPasses<float>(plain, local, noise));
}

}  // namespace meshard
