// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/bench/training_benchmark.h"
#include "models/layers/memory_mode.h"
#include "models/layers/precision.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <nlohmann/json_fwd.hpp>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace meshard {

/// A model with inputs to run it on.
struct TimedModel {
    std::string name;
    std::shared_ptr<torch::nn::Module> module;
    std::function<at::Tensor()> forward;
    std::vector<std::int64_t> result_shape;
    std::int64_t num_points = 0;  ///< of a cloud, or cells of a grid
    double forward_flops = 0;     ///< of the products of the forward pass; 0 if they are not counted
};

/// A Transolver with a cloud of random points.
TimedModel timed_transolver(const StepShape& shape, c10::Device device);

/// A registered model with random inputs: a cloud with 7 numbers a point, 4 channels of results, of `num_points`; or a grid with these extents and numbers of
/// channels, unless `arguments` say others.
/// @param arguments   of its constructor, over the defaults  @param extents   of a grid; empty: as many cells a direction as make up about `num_points`
/// @throws InvalidInput as `make_model`, and for extents with a model of points
TimedModel timed_model(const std::string& name, const nlohmann::json& arguments, std::int64_t num_points, const std::vector<std::int64_t>& extents,
                       c10::Device device);

/// What one process does with a model, on plain tensors.
struct ModelTimes {
    int num_threads = 1;
    double training_seconds = 0;  ///< a step: forward, backward, AdamW; 0 if it was not run
    double training_cpu_seconds = 0;
    double graph_seconds = 0;  ///< the same with forward and backward as one recorded launch; 0 if it was not run
    double inference_seconds = 0;
    double inference_cpu_seconds = 0;
    double sgemm_gflops = 0;        ///< of 1024 x 1024 matrices, all threads; on a GPU of 8192 x 8192
    double training_gflop = 0;      ///< useful work of a step: products of the forward pass three times
    std::int64_t bytes_before = 0;  ///< resident memory before the first step, inputs included; of a GPU what LibTorch has allocated there
    std::int64_t peak_bytes = 0;
    /// Of another precision than float32: difference over norm, after the steps that were timed. Not a number where float32 does not fit into the device.
    double output_error = 0, gradient_error = 0;
};

/// How a model is run.
struct ModelRun {
    MemoryMode memory = MemoryMode::Stored;
    Precision precision = Precision::Float32;
    bool inference_only = false;
    bool from_graph = false;  ///< a training step is timed from a recording (DeviceGraph), too
    int num_repeats = 1;
};

/// Medians over the repeats, after one of each that is not counted if there are several. From then on products in single precision are what the precision says
/// (`allow_tf32`).
/// @param device   where the model and its inputs lie: the CPU, or a device, whose cached memory is given back first
/// @throws c10::OutOfMemoryError if the steps do not fit
/// @throws Error for a recording on a device whose work cannot be recorded
ModelTimes time_model(const TimedModel& timed, const ModelRun& run, c10::Device device = c10::kCPU);

}  // namespace meshard
