// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/step_work.h"

#include "apps/plan/block_work.h"
#include "models/geotransolver/geotransolver_options.h"
#include "models/graph/mesh_graph_net.h"
#include "models/registry/registry.h"
#include "models/transolver/transolver_options.h"
#include "ops/fused/device_block.h"
#include "ops/fused/device_stream.h"
#include "partition/error.h"
#include "sharding/parameters/replicate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace meshard {

using namespace step_part;

namespace {

constexpr double kSingle = 4;              // bytes of what is never in half precision: weights, sums over points, the loss
constexpr double kSliceCalls = 60;         // operators on slices' tokens and states, of a layer both ways
constexpr double kOptimizerCalls = 12;     // LibTorch's operators of AdamW, of a parameter
constexpr double kOptimizerAccesses = 26;  // numbers that they read and write, of each number of a parameter
constexpr double kFusedAccesses = 7;       // of one kernel: reads weight, gradient, two moments; writes all but the gradient
constexpr std::int64_t kReport = 16;       // bytes: the loss and a wish to stop, for all ranks

double real(std::int64_t value)
{
    return static_cast<double>(value);
}

/// Sizes of a model of blocks.
struct BlockModel {
    BlockShape inner, last;  ///< of all blocks but the last, and of that one
    std::int64_t layers = 1, inputs = 0;
    std::int64_t outputs = 0;  ///< of a head behind the blocks; 0: it is the last block's
    bool noise = false;
};

BlockModel transolver_shape(const TransolverOptions& options)
{
    BlockModel model;
    auto& shape = model.inner;
    shape.channels = options.n_hidden;
    shape.heads = options.n_head;
    shape.head_dim = options.n_hidden / options.n_head;
    shape.slices = options.slice_num;
    shape.hidden = options.mlp_ratio * options.n_hidden;
    shape.point_temperature = options.plus;
    model.last = shape;
    model.last.outputs = options.out_dim;
    model.layers = options.n_layers;
    model.inputs = options.functional_dim + std::max<std::int64_t>(0, options.embedding_dim);
    model.noise = options.plus;
    return model;
}

BlockModel geotransolver_shape(const GeoTransolverOptions& options)
{
    BlockModel model;
    auto& shape = model.inner;
    shape.channels = options.num_channels();
    shape.heads = options.n_head;
    shape.head_dim = options.head_dim();
    shape.slices = options.slice_num;
    shape.hidden = options.mlp_ratio * options.num_channels();
    shape.point_temperature = options.plus;
    model.last = shape;
    model.layers = options.n_layers;
    model.inputs = options.functional_dim.at(0);
    model.outputs = options.out_dim.at(0);
    model.noise = options.plus;
    return model;
}

/// Products of one block's points as its authors write them, forward.
double useful_block_flop(const BlockShape& shape)
{
    const auto C = real(shape.channels), I = real(shape.inner()), S = real(shape.slices), R = real(shape.hidden), H = real(shape.heads);
    const auto logits = shape.point_temperature ? 2 * I * S + 2 * H * S : 0.0;  // of the points' temperatures
    return 2 * C * real(shape.projected()) + 6 * I * S + logits + 2 * I * C + 4 * C * R + 2 * C * real(shape.outputs);
}

/// And of its slices: queries, keys, values, and attention among them.
double useful_slice_flop(const BlockShape& shape)
{
    const auto H = real(shape.heads), S = real(shape.slices), D = real(shape.head_dim);
    return H * (6 * S * D * D + 4 * S * S * D);
}

class StepCounter {
public:
    StepCounter(const PlannedModel& model, const StepShare& share) : model_(model), share_(share)
    {
        if (model_.name == "transolver")
            transolver(transolver_shape(transolver_options(model_.arguments)));
        else if (model_.name == "flare")
            flare(transolver_shape(transolver_options(model_.arguments)));
        else if (model_.name == "geotransolver")
            geotransolver(geotransolver_options(model_.arguments));
        else
            mesh_graph_net();
        optimizer();
        gradients();
    }

    StepWork work;

private:
    bool on_cpu() const { return share_.form == WorkForm::Cpu; }
    RowWork rows(const char* part, double count) { return {work.operations, part, count, share_.form, share_.bytes_per_number}; }

    void message(const char* operation, const char* what, std::int64_t times, std::int64_t bytes)
    {
        if (share_.num_ranks > 1) work.messages.push_back({operation, what, times, bytes});
    }

    BlockWork block(const BlockShape& shape, bool noise) { return {work.operations, shape, share_.points, share_.form, share_.bytes_per_number, noise}; }

    /// An MLP of two layers on the model's inputs, `forward` times forward and once backward; on a CPU tile by tile, where backward computes the hidden layer
    /// again.
    void inputs_mlp(const BlockModel& model, double forward)
    {
        const auto C = model.inner.channels, R = 2 * C;
        const auto r = real(R), c = real(C);
        const auto n = std::min<std::int64_t>(on_cpu() ? 256 : kDeviceTilePoints, std::max<std::int64_t>(1, std::llround(share_.points)));
        const auto tiles = share_.points / real(n);
        const auto add = [&](Operation::Kind kind, double times) -> Operation& {
            auto& operation = work.operations.emplace_back();
            operation.kind = kind;
            operation.part = kInputs;
            operation.calls = operation.launches = times * tiles;
            operation.in_tile = on_cpu();
            return operation;
        };
        const auto product = [&](double times, std::int64_t rows, std::int64_t columns, std::int64_t inner, bool a, bool b) {
            auto& operation = add(Operation::Kind::Product, times);
            operation.rows = rows;
            operation.columns = columns;
            operation.inner = inner;
            operation.transposed_a = a;
            operation.transposed_b = b;
            if (!on_cpu()) operation.bytes = share_.bytes_per_number * operation.calls * real(rows * inner + inner * columns + rows * columns);
        };
        const auto numbers = [&](Operation::Kind kind, double times, double per_point, double accesses) {
            auto& operation = add(kind, times);
            operation.numbers = times * per_point * share_.points;
            if (!on_cpu()) operation.bytes = times * share_.bytes_per_number * accesses * share_.points;
        };
        product(forward + (on_cpu() ? 1 : 0), n, R, model.inputs, false, true);
        numbers(Operation::Kind::Activation, forward, r, 2 * r);
        product(forward, n, C, R, false, true);
        product(1, n, R, C, false, false);
        numbers(Operation::Kind::ActivationGradient, 1, r, 3 * r);
        product(1, C, R, n, true, false);
        product(1, R, model.inputs, n, true, false);
        if (on_cpu()) rows(kInputs, share_.points * (forward + 1)).pass(1.5 * c);
    }

    void transolver(const BlockModel& model)
    {
        blocks(model);
        const auto of_points = useful_block_flop(model.inner) * real(model.layers - 1) + useful_block_flop(model.last);
        const auto R = 2 * real(model.inner.channels);
        const auto mlp = 2 * R * real(model.inputs + model.inner.channels);
        work.useful_flop = share_.points * (3 * (of_points + mlp) - 2 * R * real(model.inputs)) + 3 * real(model.layers) * useful_slice_flop(model.inner);
        memory_of_blocks(model);
        work.memory.inputs_per_point = kSingle * real(model.inputs * 2 + 2 * model.last.outputs);  // side by side, too; the target normalised, too
        slice_messages(model);
    }

    void blocks(const BlockModel& model)
    {
        if (share_.memory == MemoryMode::Streamed) {
            on_cpu() ? streamed_blocks(model) : streamed_on_device(model);
        } else {
            inputs_mlp(model, 1);
            for (std::int64_t l = 0; l < model.layers; ++l) block_step(l + 1 == model.layers ? model.last : model.inner, model.noise);
        }
        work.small_calls += kSliceCalls * real(model.layers);
    }

    void block_step(const BlockShape& shape, bool noise)
    {
        const auto C = real(shape.channels), I = real(shape.inner()), R = real(shape.hidden), P = real(shape.projected());
        const auto last = shape.outputs > 0 ? C : 0.0;
        auto of_block = block(shape, noise);
        if (share_.memory == MemoryMode::Stored) {
            of_block.add_slice_sums();
            of_block.stream(C, P);
            of_block.bring_back();
            of_block.stream(C + I, I + C + R + last + real(shape.out_channels()));
            of_block.bring_back_backward(true, true);
            of_block.stream(2 * C + 2 * I + R + last, C + I);
            of_block.add_slice_sums_backward(true);
            of_block.stream(C + P + I, C);
            return;
        }
        const bool is_whole = !on_cpu() && share_.points <= real(kDeviceTilePoints);  // what one half computes is there for the other
        of_block.add_slice_sums();
        of_block.stream(C, 0);
        if (!is_whole) of_block.project();
        of_block.bring_back();
        of_block.stream(C, real(shape.out_channels()));
        of_block.project();
        of_block.bring_back(/*with_result=*/false);
        of_block.bring_back_backward(true, true);
        of_block.stream(2 * C, C);
        if (!is_whole) of_block.project_both();
        if (on_cpu()) of_block.mix_backward();  // its result was not kept; a GPU keeps it
        of_block.add_slice_sums_backward(true);
        of_block.stream(2 * C, C);
    }

    /// As `streamed_blocks`: a sweep for every layer each way, each from the inputs on.
    void streamed_blocks(const BlockModel& model)
    {
        const auto L = model.layers;
        const auto shape_of = [&](std::int64_t l) -> const BlockShape& { return l + 1 == L ? model.last : model.inner; };
        auto inner = block(model.inner, model.noise), last = block(model.last, model.noise);
        const auto way_to = [&](std::int64_t layer) {
            for (std::int64_t k = 0; k < layer; ++k) {
                inner.project();
                inner.bring_back();
            }
        };
        inputs_mlp(model, real(2 * L + 2));
        for (std::int64_t l = 0; l < L; ++l) {
            way_to(l);
            block(shape_of(l), model.noise).add_slice_sums();
        }
        way_to(L - 1);
        last.project();
        last.bring_back();
        for (auto l = L - 1; l >= -1; --l) {
            way_to(L - 1);
            last.project();
            last.bring_back(/*with_result=*/false);
            for (auto k = L - 1; k > l; --k) {
                auto of_block = block(shape_of(k), model.noise);
                of_block.bring_back_backward(false, false);
                of_block.project_both();
                of_block.add_slice_sums_backward(k == l + 1);
            }
            if (l >= 0) block(shape_of(l), model.noise).bring_back_backward(true, true);
        }
        // What backward holds of a tile, all layers at once, is more than its cache.
        const auto held = real(L * (BlockActivations<float>::floats_per_point(model.inner) + model.inner.channels));
        inner.stream(real(L + 1) * 1.5 * held, 0);
        inner.stream(real(model.inputs * (2 * L + 2) + (L + 1) * model.last.outputs), real(model.last.outputs));
    }

    /// As DeviceStreamPasses: layer by layer, in backward from the nearest input that is kept.
    void streamed_on_device(const BlockModel& model)
    {
        const auto L = model.layers, last_kept = (L - 1) / kStreamLayersApart * kStreamLayersApart;
        const bool is_whole = share_.points <= real(kDeviceTilePoints);
        const auto run = [&](std::int64_t l) {
            auto of_block = block(l + 1 == L ? model.last : model.inner, model.noise);
            of_block.project();
            of_block.bring_back();
        };
        inputs_mlp(model, real(2 + std::min(L, kStreamLayersApart) + 1));
        for (std::int64_t l = 0; l < L; ++l) {
            block(l + 1 == L ? model.last : model.inner, model.noise).add_slice_sums();
            run(l);
        }
        for (std::int64_t l = 0; l < last_kept; ++l) run(l);
        for (std::int64_t l = 0; l < L; ++l) {
            for (auto k = l / kStreamLayersApart * kStreamLayersApart; k < l; ++k) run(k);
            auto of_block = block(l + 1 == L ? model.last : model.inner, model.noise);
            of_block.project();
            of_block.bring_back(/*with_result=*/false);
            of_block.bring_back_backward(true, true);
            if (!is_whole) of_block.project();
            of_block.mix_backward();
            of_block.add_slice_sums_backward(true);
            of_block.stream(4 * real(model.inner.channels), 2 * real(model.inner.channels));
        }
    }

    /// As `kept` of BlockPasses on a CPU, and as LayerPoints on a GPU: what both norms give, the projections, what the states brought, the hidden row twice.
    void memory_of_blocks(const BlockModel& model)
    {
        const auto C = real(model.inner.channels), I = real(model.inner.inner()), R = real(model.inner.hidden), L = real(model.layers);
        const auto size = share_.bytes_per_number;
        auto& memory = work.memory;
        const auto per_block = on_cpu() ? real(BlockActivations<float>::floats_per_point(model.inner)) + C : 2 * C + 3 * I + 2 * R;
        const auto in_backward = 2 * C + 3 * I + R;
        if (share_.memory == MemoryMode::Stored) {
            memory.kept_per_point = size * (L * per_block + (on_cpu() && model.last.outputs > 0 ? C : 0));
            memory.passing_per_point = size * (C + I) + kSingle * 2 * real(model.last.outputs);
        } else if (share_.memory == MemoryMode::Recomputed) {
            memory.kept_per_point = size * L * C;
            memory.passing_per_point = size * (on_cpu() ? C : 2 * C + I) + kSingle * 2 * real(model.last.outputs);
        } else {
            memory.passing_per_point = kSingle * 2 * real(model.last.outputs);
        }
        if (on_cpu()) return;
        if (share_.memory == MemoryMode::Stored)
            memory.passing_per_point += size * in_backward;
        else
            memory.workspace = size * (per_block + in_backward) * std::min(real(kDeviceTilePoints), share_.points);
        if (share_.memory == MemoryMode::Streamed) memory.passing_per_point += size * C * real(2 + (model.layers - 1) / kStreamLayersApart);
    }

    void slice_messages(const BlockModel& model)
    {
        const auto& shape = model.inner;
        message("all_reduce", "sums of slices, forward", model.layers, 4 * shape.num_sums());
        message("all_reduce", "gradients of slices' states", model.layers, 4 * shape.heads * shape.slices * shape.head_dim);
    }

    /// FLARE by LibTorch's operators: queries gather from the points, and points from the queries.
    void flare(const BlockModel& model)
    {
        const auto& shape = model.inner;
        const auto C = shape.channels, I = shape.inner(), R = shape.hidden, H = shape.heads, D = shape.head_dim, M = shape.slices, O = model.last.outputs;
        const auto n = static_cast<std::int64_t>(std::llround(share_.points));
        const auto c = real(C), hm = real(H * M);
        const bool recomputed = share_.memory == MemoryMode::Recomputed;
        inputs_mlp(model, 1);
        for (std::int64_t l = 0; l < model.layers; ++l) {
            const auto begin = work.operations.size();
            auto norms = rows(kNorms, share_.points), attention = rows(kAttention, share_.points), mlp = rows(kMlp, share_.points);
            norms.norm(C);
            attention.linear(C, I, true);
            attention.linear(D, D, true, H);  // keys
            attention.linear(D, D, true, H);  // values
            for (int k = 0; k < 3; ++k) {     // logits, the queries' sums, and the way back to the points
                attention.product(n, M, D, real(H));
                attention.product(n, D, M, real(H));
                attention.product(M, D, n, real(H));
            }
            attention.pass(3 * hm);  // the largest logit, and what is left of each
            attention.exponentials(hm, 2 * hm);
            attention.exponentials(hm, 4 * hm);  // softmax, of numbers that do not lie one after the other
            attention.pass(hm);                  // the sum of weights
            attention.pass(15 * hm);             // backward of softmax, exp, and the weights' sum, added up
            attention.pass(8 * real(I));         // gradients of x_mid added up; heads side by side
            attention.linear(I, C, true);
            norms.pass(3 * c);
            norms.norm(C);
            mlp.linear(C, R, true);
            mlp.activation(R);
            mlp.linear(R, C, true);
            norms.pass(3 * c);
            norms.pass(6 * c);  // gradients of the two sums
            if (recomputed) run_forward_again(begin);
            work.small_calls += kSliceCalls;
        }
        auto outputs = rows(kHead, share_.points);
        outputs.norm(C);
        outputs.linear(C, O, true);

        const auto block = 2 * c * real(I) + 4 * real(H) * real(D * D) + 6 * real(I * M) + 2 * real(I) * c + 4 * c * real(R);
        const auto mlp = 4 * c * real(model.inputs + C);
        work.useful_flop = share_.points * (3 * (real(model.layers) * block + mlp + 2 * c * real(O)) - 4 * c * real(model.inputs));

        auto& memory = work.memory;
        const auto of_block = 8 * c + 2 * real(R) + 2 * hm, size = share_.bytes_per_number;
        memory.inputs_per_point = kSingle * real(model.inputs * 2 + 2 * O);
        memory.kept_per_point = size * (recomputed ? real(model.layers) * c + of_block : real(model.layers) * of_block + 2 * c);
        memory.passing_per_point = size * (3 * c + 2 * real(R));
        message("all_gather", "largest logits", model.layers * (recomputed ? 2 : 1), (share_.num_ranks - 1) * 4 * H * M);  // of the other ranks
        message("all_reduce", "sums of queries, forward", model.layers * (recomputed ? 2 : 1), 4 * shape.num_sums());
        message("all_reduce", "gradients of queries' values", model.layers, 4 * H * M * D);
    }

    /// What was counted since `begin`, forward and backward, in mode recomputed: forward once more.
    void run_forward_again(std::size_t begin)
    {
        const auto end = work.operations.size();
        for (auto k = begin; k < end; ++k) {
            auto operation = work.operations[k];
            operation.calls /= 3;  // of a layer's three products one is of the forward pass
            operation.numbers /= 3;
            operation.bytes /= 3;
            operation.launches /= 3;
            work.operations.push_back(operation);
        }
    }

    void geotransolver(const GeoTransolverOptions& options)
    {
        const auto model = geotransolver_shape(options);
        const auto C = real(model.inner.channels), O = real(model.outputs), size = share_.bytes_per_number;
        const auto L = real(model.layers);
        blocks(model);
        auto outputs = rows(kHead, share_.points);
        outputs.norm(model.inner.channels);
        outputs.linear(model.inner.channels, model.outputs, true);

        const auto R = 2 * C, mlp = 2 * R * (real(model.inputs) + C);
        auto points_flop = 3 * (L * useful_block_flop(model.inner) + mlp + 2 * C * O) - 2 * R * real(model.inputs);
        memory_of_blocks(model);
        auto& memory = work.memory;
        memory.inputs_per_point = kSingle * (real(model.inputs) + 3 + 2 * O);
        memory.kept_per_point += size * 2 * C;
        memory.passing_per_point += kSingle * 2 * O + (share_.memory == MemoryMode::Stored ? 0 : size * C);
        slice_messages(model);
        auto slices_flop = 3 * L * useful_slice_flop(model.inner);
        const auto H = real(options.n_head), S = real(options.slice_num), D = real(options.head_dim()), K = real(options.context_dim());
        if (K > 0) slices_flop += 3 * L * H * (2 * S * D * D + 4 * S * K * D + 4 * S * S * D + (options.state_mixing_mode == "weighted" ? 0 : 4 * S * D * D));
        if (options.geometry_dim > 0) points_flop += geometry(options);
        work.small_calls += 40 * L;  // attention to the context, and the tokens of the global values
        work.useful_flop = share_.points * points_flop + slices_flop;
        if (options.global_dim > 0) work.useful_flop += global_values_flop(options);
    }

    /// The geometry's slices, by LibTorch's operators on a CPU and on a GPU. Gives the useful work of a point.
    double geometry(const GeoTransolverOptions& options)
    {
        const auto H = options.n_head, D = options.context_head_dim(), S = options.slice_num, I = H * D, G = options.geometry_dim;
        const auto hs = real(H * S), i = real(I);
        const auto n = static_cast<std::int64_t>(std::llround(share_.points));
        auto context = rows(kContext, share_.points);
        const int projections = options.plus ? 1 : 2;
        for (int k = 0; k < projections; ++k) context.linear(G, I, false);
        context.linear(D, S, true, H);
        context.pass(2 * hs);  // divided by the temperature
        context.exponentials(hs, 2 * hs);
        context.pass(hs);  // the sum of weights
        context.product(S, D, n, real(H));
        context.product(n, S, D, real(H));
        context.product(n, D, S, real(H));
        context.pass(14 * hs);  // backward of the sum, softmax, the temperature and the bias
        context.pass(4 * i);
        work.small_calls += 40;
        work.memory.kept_per_point += share_.bytes_per_number * (projections * i + 2 * hs);
        message("all_reduce", "sums of the geometry's slices", 1, 4 * H * S * (D + 1));
        auto flop = projections * 4 * real(G) * i + 3 * 4 * i * real(S);
        if (options.plus) flop += 3 * (2 * i * real(S) + 2 * hs);
        return flop;
    }

    /// The tokens of the values that a case has once: one row.
    double global_values_flop(const GeoTransolverOptions& options) const
    {
        const auto I = real(options.n_head * options.context_head_dim()), S = real(options.slice_num), G = real(options.global_dim);
        auto flop = (options.plus ? 1 : 2) * 4 * G * I + 3 * 4 * I * S;
        if (options.plus) flop += 3 * (2 * I * S + 2 * real(options.n_head) * S);
        return flop;
    }

    /// Its activation is taken for ReLU, which does nothing but read and write.
    void graph_mlp(RowWork row, std::int64_t in, std::int64_t hidden, std::int64_t out, std::int64_t layers, bool normalized, bool wants_input_gradient)
    {
        auto width = in;
        for (std::int64_t k = 0; k < layers; ++k) {
            row.linear(width, hidden, wants_input_gradient || k > 0);
            row.pass(2 * real(hidden));
            row.pass(3 * real(hidden));
            width = hidden;
        }
        row.linear(width, out, true);
        if (normalized) row.norm(out);
    }

    static double graph_mlp_flop(std::int64_t in, std::int64_t hidden, std::int64_t out, std::int64_t layers, bool wants_input_gradient)
    {
        return 6 * real(in * hidden + (layers - 1) * hidden * hidden + hidden * out) - (wants_input_gradient ? 0 : 2 * real(in * hidden));
    }

    void mesh_graph_net()
    {
        auto arguments = model_.arguments;
        const auto K = arguments.at("num_neighbors").get<std::int64_t>();
        arguments.erase("num_neighbors");
        const auto options = mesh_graph_net_options(arguments);
        const auto N = share_.points, E = N * real(K), c = real(options.hidden_dim_processor), size = share_.bytes_per_number;
        const auto C = options.hidden_dim_processor, steps = options.processor_size;
        graph_mlp(rows(kEdges, E), options.input_dim_edges, options.hidden_dim_edge_encoder, C, options.num_layers_edge_encoder, true, false);
        graph_mlp(rows(kNodes, N), options.input_dim_nodes, options.hidden_dim_node_encoder, C, options.num_layers_node_encoder, true, false);
        graph_mlp(rows(kHead, N), C, options.hidden_dim_node_decoder, options.output_dim, options.num_layers_node_decoder, false, true);
        for (std::int64_t s = 0; s < steps; ++s) {
            auto edges = rows(kEdges, E);
            graph_mlp(rows(kEdges, E), 3 * C, C, C, options.num_layers_edge_processor, true, true);
            edges.pass(4 * c);   // rows of sources and targets
            edges.pass(6 * c);   // side by side
            edges.pass(3 * c);   // the edge itself added
            edges.pass(c);       // what comes to each target
            edges.pass(12 * c);  // and back: gradients of sources, targets and the edge, apart and added up
            graph_mlp(rows(kNodes, N), 2 * C, C, C, options.num_layers_node_processor, true, true);
            rows(kNodes, N).pass(4 * c + 3 * c + 6 * c + 3 * c);
        }
        work.useful_flop = E * graph_mlp_flop(options.input_dim_edges, options.hidden_dim_edge_encoder, C, options.num_layers_edge_encoder, false) +
                           N * graph_mlp_flop(options.input_dim_nodes, options.hidden_dim_node_encoder, C, options.num_layers_node_encoder, false) +
                           N * graph_mlp_flop(C, options.hidden_dim_node_decoder, options.output_dim, options.num_layers_node_decoder, true) +
                           real(steps) * (E * graph_mlp_flop(3 * C, C, C, options.num_layers_edge_processor, true) +
                                          N * graph_mlp_flop(2 * C, C, C, options.num_layers_node_processor, true));
        auto& memory = work.memory;
        const auto edge_layers = real(options.num_layers_edge_processor), node_layers = real(options.num_layers_node_processor), k = real(K);
        memory.inputs_per_point = kSingle * (real(options.input_dim_nodes) + 3 + 2 * real(options.output_dim)) + 8 * k * 3;  // 64-bit numbers of rows
        memory.kept_per_point = size * real(steps) * (k * c * (4 + edge_layers) + c * (3 + node_layers)) +
                                size * k * (real(options.input_dim_edges) + real(options.hidden_dim_edge_encoder * options.num_layers_edge_encoder) + c);
        memory.passing_per_point = size * 5 * k * c;
        const auto ghosts = std::llround(share_.ghosts);
        message("exchange", "ghosts' channels, forward", steps, ghosts * C * 4);
        message("exchange", "gradients of ghosts' channels", steps, ghosts * C * 4);
    }

    void optimizer()
    {
        const auto count = real(model_.num_parameters());
        auto update = RowWork(work.operations, kOptimizer, count, share_.form, kSingle);
        update.pass(on_cpu() ? kOptimizerAccesses : kFusedAccesses);
        if (on_cpu()) work.small_calls += kOptimizerCalls * real(static_cast<std::int64_t>(model_.parameters.size()));
        if (share_.num_ranks > 1) update.pass(4);  // into buckets and out of them
        work.memory.parameters = kSingle * count * (share_.num_ranks > 1 ? 5 : 4);
    }

    /// Buckets as `replicate` makes them.
    void gradients()
    {
        const auto limit = ReplicateOptions().bucket_bytes;
        std::int64_t bytes = 0;
        for (auto parameter = model_.parameters.rbegin(); parameter != model_.parameters.rend(); ++parameter) {
            const auto size = 4 * *parameter;
            if (bytes > 0 && bytes + size > limit) {
                message("all_reduce", "gradients of weights", 1, bytes);
                bytes = 0;
            }
            bytes += size;
        }
        if (bytes > 0) message("all_reduce", "gradients of weights", 1, bytes);
        message("all_reduce", "the loss", 1, kReport);
    }

    const PlannedModel& model_;
    const StepShare& share_;
};

[[noreturn]] void refuse(const std::string& model, const std::string& what)
{
    throw InvalidInput("bench plan: the work of " + model + " " + what);
}

}  // namespace

PlannedModel planned_model(std::string_view name, const nlohmann::json& arguments, const PlannedWidths& widths)
{
    std::string plain(name);
    std::erase(plain, '_');
    const auto& entry = find_model(plain);
    static const std::vector<std::string> counted{"transolver", "flare", "geotransolver", "meshgraphnet"};
    if (std::find(counted.begin(), counted.end(), entry.name) == counted.end())
        refuse(entry.name, "is not counted; it is of transolver, flare, geotransolver and meshgraphnet.");
    auto all = entry.widths({.embedding_dim = widths.inputs, .num_constants = widths.constants, .out_dim = widths.outputs, .has_time = false});
    all.update(arguments);
    PlannedModel model{entry.name, complete_arguments(entry, all), {}};
    const auto& given = model.arguments;
    if (given.value("dropout", 0.0) > 0 || given.value("concrete_dropout", false)) refuse(model.name, "is counted without dropout. Set it to 0.");
    if (given.value("include_local_features", false)) refuse(model.name, "is counted without ball queries. Set include_local_features to false.");
    if (given.contains("levels")) refuse(model.name, "is counted of one graph of all points. Leave levels out.");
    if (given.value("attention_type", "GALE") != "GALE") refuse(model.name, "is counted with attention_type GALE.");
    if (given.value("do_concat_trick", false)) refuse(model.name, "is counted without do_concat_trick.");
    if (given.value("time_input", false)) refuse(model.name, "is counted without time_input.");
    for (const auto& parameter : make_model(model.name, model.arguments).module->parameters()) model.parameters.push_back(parameter.numel());
    return model;
}

std::vector<MemoryMode> memory_modes(const PlannedModel& model)
{
    if (has_ghosts(model)) return {MemoryMode::Stored};
    if (model.name == "transolver") return {MemoryMode::Stored, MemoryMode::Recomputed, MemoryMode::Streamed};
    return {MemoryMode::Stored, MemoryMode::Recomputed};
}

std::int64_t PlannedModel::num_parameters() const
{
    return std::accumulate(parameters.begin(), parameters.end(), std::int64_t(0));
}

double StepWork::flop() const
{
    double sum = 0;
    for (const auto& operation : operations) sum += operation.flop();
    return sum;
}

std::int64_t StepWork::num_messages() const
{
    std::int64_t count = 0;
    for (const auto& message : messages) count += message.times;
    return count;
}

std::int64_t StepWork::message_bytes() const
{
    std::int64_t bytes = 0;
    for (const auto& message : messages) bytes += message.times * message.bytes;
    return bytes;
}

StepWork step_work(const PlannedModel& model, const StepShare& share)
{
    return StepCounter(model, share).work;
}

bool has_ghosts(const PlannedModel& model)
{
    return model.name == "meshgraphnet";
}

}  // namespace meshard
