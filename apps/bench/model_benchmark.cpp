// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/model_benchmark.h"

#include "apps/bench/rank_timing.h"
#include "apps/console/repeated_times.h"
#include "apps/devices/device_load.h"
#include "models/layers/metrics.h"
#include "models/registry/registry.h"
#include "partition/error.h"
#include "sharding/memory/device_graph.h"
#include "sharding/parameters/fused_adamw.h"
#include "sharding/parameters/move_module.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <functional>
#include <limits>
#include <tuple>
#include <vector>

namespace meshard {
namespace {

constexpr std::int64_t kInputs = 7, kOutputs = 4, kMlpRatio = 2;
constexpr double kLossScale = 1024;  // keeps gradients of a mean over a million points, and their sums, within float16

Seconds median_of(int num_repeats, const std::function<void()>& work)
{
    if (num_repeats > 1) work();
    std::vector<double> wall, cpu;
    for (int i = 0; i < num_repeats; ++i) {
        const auto seconds = seconds_of(work);
        wall.push_back(seconds.wall);
        cpu.push_back(seconds.cpu);
    }
    return {median(wall), median(cpu)};
}

/// Counts the multiplications and additions of the forward pass's products over points.
double forward_flops(const StepShape& shape)
{
    const double C = static_cast<double>(shape.n_hidden), S = static_cast<double>(shape.slice_num);
    const double block = 6 * C * C + 6 * C * S + 4 * kMlpRatio * C * C;
    return static_cast<double>(shape.num_points) *
           (static_cast<double>(shape.n_layers) * block + 2 * C * (2 * kInputs + 2 * C + kOutputs));
}

/// Returns ||found - expected|| / ||expected|| over all tensors of two lists.
double relative_error(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected)
{
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
        difference += (found[i] - expected[i]).square().sum(torch::kDouble).item<double>();
        norm += expected[i].square().sum(torch::kDouble).item<double>();
    }
    return std::sqrt(difference / norm);
}

/// Computes output and gradients of one step in a precision.
std::pair<at::Tensor, std::vector<at::Tensor>> step_in(Precision precision, const TimedModel& timed,
                                                       const at::Tensor& target, c10::Device device)
{
    allow_tf32(precision == Precision::TF32);
    at::Tensor output;
    {
        const PrecisionGuard guard(precision, device.type());
        output = timed.forward().to(torch::kFloat);
    }
    auto trained = timed.module->parameters();
    std::erase_if(trained, [](const auto& parameter) { return !parameter.requires_grad(); });
    const double scale = precision == Precision::Float16 ? kLossScale : 1;
    auto gradients = torch::autograd::grad({mean_squared_error(output, target) * scale}, trained);
    for (auto& gradient : gradients) gradient.div_(scale);
    return {output.detach(), gradients};
}

/// Returns the relative errors of output and gradients in a precision against float32; NaN where they do not fit into
/// memory.
std::pair<double, double> errors_of(const TimedModel& timed, Precision precision, const at::Tensor& target,
                                    c10::Device device)
{
    try {
        const auto found = step_in(precision, timed, target, device),
                   expected = step_in(Precision::Float32, timed, target, device);
        return {relative_error({found.first}, {expected.first}), relative_error(found.second, expected.second)};
    } catch (const c10::OutOfMemoryError&) {
        return {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
    }
}

/// Returns the seconds of a training step whose forward and backward pass run as one launch of a recording. Steps on
/// the same stream warm up before it is made.
double seconds_from_graph(c10::Device device, int num_repeats, torch::optim::AdamW& optimizer,
                          const std::function<void()>& forward_and_backward)
{
    if (!can_record(device.type()))
        throw InvalidInput("--graph: work of the device '{}' cannot be recorded. Leave it out, or name a GPU.",
                           device.str());
    constexpr int kWarmUp = 2;
    const OwnStream stream(device);
    for (int i = 0; i < kWarmUp; ++i) {
        optimizer.zero_grad();
        forward_and_backward();
    }
    optimizer.zero_grad();  // the recording makes gradients of its own, which each run writes anew
    DeviceGraph graph(device.type());
    graph.record(forward_and_backward);
    const auto step = median_of(num_repeats, [&] {
        graph.run();
        optimizer.step();
        wait_for_device(device);
    });
    optimizer.zero_grad();
    return step.wall;
}

constexpr std::int64_t kBodyInputs = 7;  // place, normal, area

/// Makes a body whose surface is that of the cube in which the points lie.
std::shared_ptr<const CaseBody> unit_cube()
{
    auto body = std::make_shared<CaseBody>();
    body->vertices =
        torch::tensor({0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1}, torch::kFloat)
            .view({8, 3});
    body->triangles = torch::tensor({0, 2, 1, 1, 2, 3, 4, 5, 6, 5, 7, 6, 0, 1, 4, 1, 5, 4,
                                     2, 6, 3, 3, 6, 7, 0, 4, 2, 2, 4, 6, 1, 3, 5, 3, 7, 5},
                                    torch::kLong)
                          .view({12, 3});
    return body;
}

}  // namespace

Transolver make_transolver(const StepShape& shape, c10::Device device)
{
    TransolverOptions options;
    options.functional_dim = 1;
    options.embedding_dim = kInputs - 1;
    options.out_dim = kOutputs;
    options.n_layers = shape.n_layers;
    options.n_hidden = shape.n_hidden;
    options.n_head = shape.n_head;
    options.slice_num = shape.slice_num;
    options.mlp_ratio = kMlpRatio;
    Transolver model(options);
    move_module(*model, device);
    return model;
}

TimedModel timed_transolver(const StepShape& shape, c10::Device device)
{
    torch::manual_seed(0);
    auto model = make_transolver(shape, device);
    const auto fx = torch::ones({1, shape.num_points, 1}, device),
               embedding = torch::rand({1, shape.num_points, kInputs - 1}, device);
    return {.name = "transolver",
            .module = model.ptr(),
            .forward = [model, fx, embedding]() mutable { return model->forward(fx, embedding); },
            .result_shape = {1, shape.num_points, kOutputs},
            .num_points = shape.num_points,
            .forward_flops = forward_flops(shape)};
}

TimedModel timed_model(const std::string& name, const nlohmann::json& arguments, std::int64_t num_points,
                       const std::vector<std::int64_t>& extents, c10::Device device)
{
    const auto& entry = find_model(name);
    auto shape = extents;
    const auto* of_grids = entry.of_grids();
    const auto* of_bodies = entry.of_bodies();
    if (of_grids) {
        const auto& directions = of_grids->directions;
        constexpr std::int64_t kMultiple = 16;  // U-Nets of five grids halve each extent four times
        const auto dimension = arguments.value("dimension", directions.front());
        const auto side = std::pow(static_cast<double>(num_points), 1 / static_cast<double>(dimension));
        if (shape.empty())
            shape.assign(dimension, std::max<std::int64_t>(1, std::llround(side / kMultiple)) * kMultiple);
        if (std::ranges::find(directions, std::ssize(shape)) == directions.end())
            throw InvalidInput("--grid has {} directions, and {} takes {}{}.", shape.size(), entry.class_name,
                               directions.front(),
                               directions.size() > 1 ? fmt::format(" or {}", directions.back()) : "");
    }
    const bool has_both_parts = of_bodies && of_bodies->needs_both_parts;
    auto all = of_grids ? of_grids->widths({.in_channels = kInputs, .out_channels = kOutputs, .extents = shape})
                        : entry.arguments_for({.embedding_dim = kInputs - 1,
                                               .num_constants = 0,
                                               .out_dim = kOutputs,
                                               .volume_out_dim = has_both_parts ? kOutputs : 0});
    all.update(arguments);
    torch::manual_seed(0);
    const auto model = make_model(entry.name, all);
    move_module(*model.module, device);
    if (!of_grids) {
        if (!extents.empty())
            throw InvalidInput("--grid is for models of grids; {} is one of points. Say their number with --points.",
                               entry.class_name);
        const auto num_point_inputs = of_bodies ? kBodyInputs : kInputs - 1;
        const auto embedding = torch::rand({1, num_points, num_point_inputs}, device),
                   places = embedding.narrow(2, 0, 3).contiguous();
        PointInputs inputs{.embedding = embedding,
                           .positions = places,
                           .constants = {},
                           .time = {},
                           .body = of_bodies ? unit_cube() : nullptr};
        if (has_both_parts) {  // half of the points are those of the surface
            auto volume = inputs;
            inputs.positions = places.narrow(1, 0, num_points / 2);
            volume.positions = places.narrow(1, num_points / 2, num_points - num_points / 2);
            return {.name = entry.name,
                    .module = model.module,
                    .forward =
                        [model, inputs, volume] {
                            const auto fields = model.forward_parts(&inputs, &volume);
                            return torch::cat({fields.surface, fields.volume}, 1);
                        },
                    .result_shape = {1, num_points, kOutputs},
                    .num_points = num_points};
        }
        return {.name = entry.name,
                .module = model.module,
                .forward = [model, inputs] { return model.forward(inputs); },
                .result_shape = {1, num_points, kOutputs},
                .num_points = num_points};
    }
    std::int64_t num_cells = 1;
    for (const auto extent : shape) num_cells *= extent;
    shape.insert(shape.begin(), {1, model.arguments.value("in_channels", kInputs)});
    auto result_shape = shape;
    const auto out = model.arguments.find("out_channels");  // null: as many as in_channels
    if (out == model.arguments.end() || !out->is_null())
        result_shape[1] = model.arguments.value("out_channels", kOutputs);
    return {.name = entry.name,
            .module = model.module,
            .forward = [model, grid = torch::rand(shape, device)] { return model.forward_grid(grid); },
            .result_shape = std::move(result_shape),
            .num_points = num_cells};
}

ModelTimes time_model(const TimedModel& timed, const ModelRun& run, c10::Device device)
{
    const auto precision = run.precision;
    const auto done = [&] { wait_for_device(device); };
    if (!device.is_cpu()) {
        auto* const allocator = c10::getDeviceAllocator(device.type());
        allocator->emptyCache();
        allocator->resetPeakStats(device.index());
    }
    set_memory(*timed.module, run.memory);
    const auto optimizer = make_adamw(timed.module->parameters(), torch::optim::AdamWOptions(1e-3));
    const auto target = run.inference_only ? torch::Tensor() : torch::rand(timed.result_shape, device);

    const auto predict = [&] {
        const PrecisionGuard guard(precision, device.type());
        return timed.forward().to(torch::kFloat);
    };
    const double scale = precision == Precision::Float16 ? kLossScale : 1;
    allow_tf32(precision == Precision::TF32);
    ModelTimes times;
    times.num_threads = at::get_num_threads();
    times.training_gflop = 3 * timed.forward_flops * 1e-9;
    times.bytes_before = memory_in_use(device).now;
    const auto forward_and_backward = [&] {
        const auto loss = mean_squared_error(predict(), target);
        (scale == 1 ? loss : loss * scale).backward();
    };
    if (!run.inference_only) {
        const auto step = median_of(run.num_repeats, [&] {
            optimizer->zero_grad();
            forward_and_backward();
            optimizer->step();
            done();
        });
        times.training_seconds = step.wall;
        times.training_cpu_seconds = step.cpu;
    }
    if (run.from_graph)
        times.graph_seconds = seconds_from_graph(device, run.num_repeats, *optimizer, forward_and_backward);
    {
        const torch::NoGradGuard no_grad;
        timed.module->eval();
        const auto inference = median_of(run.num_repeats, [&] {
            predict();
            done();
        });
        times.inference_seconds = inference.wall;
        times.inference_cpu_seconds = inference.cpu;
    }
    times.peak_bytes = memory_in_use(device).peak;
    if (precision != Precision::Float32 && !run.inference_only)
        std::tie(times.output_error, times.gradient_error) = errors_of(timed, precision, target, device);

    allow_tf32(false);
    const std::int64_t n = device.is_cuda() ? 8192 : 1024;
    const auto a = torch::rand({n, n}, device), b = torch::rand({n, n}, device);
    const auto product = median_of(9, [&] {
        torch::mm(a, b);
        done();
    });
    times.sgemm_gflops = 2.0 * std::pow(static_cast<double>(n), 3) / product.wall * 1e-9;
    allow_tf32(precision == Precision::TF32);
    return times;
}

}  // namespace meshard
