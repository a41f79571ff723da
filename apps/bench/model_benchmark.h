// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/memory_mode.h"
#include "models/layers/precision.h"
#include "models/transolver/transolver.h"

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

/// A Transolver and its cloud of points.
struct StepShape {
    std::int64_t num_points = 20000;  ///< points of the whole cloud
    std::int64_t n_hidden = 64;
    std::int64_t n_layers = 4;
    std::int64_t n_head = 4;
    std::int64_t slice_num = 32;
};

/// Makes a Transolver that is told a one and 6 further numbers of each point, and gives 4.
Transolver make_transolver(const StepShape& shape, c10::Device device);

/// A model with inputs to run it on.
struct TimedModel {
    std::string name;
    std::shared_ptr<torch::nn::Module> module;
    std::function<at::Tensor()> forward;
    std::vector<std::int64_t> result_shape;
    std::int64_t num_points = 0;  ///< points of a cloud, or cells of a grid
    double forward_flops = 0;     ///< products of the forward pass; 0 if they are not counted
};

/// Makes a Transolver with a cloud of random points.
TimedModel timed_transolver(const StepShape& shape, c10::Device device);

/// Makes a registered model with random inputs: a cloud of `num_points`, or a grid of `extents`, with 7 numbers and 4
/// results a row unless `arguments` say others.
/// @param arguments   arguments of its constructor that replace the defaults
/// @param extents     cells of a grid along each direction; empty: equal numbers that make up about `num_points`
/// @throws InvalidInput as `make_model`, and for extents with a model of points
TimedModel timed_model(const std::string& name, const nlohmann::json& arguments, std::int64_t num_points,
                       const std::vector<std::int64_t>& extents, c10::Device device);

/// Times of a model on plain tensors in one process.
struct ModelTimes {
    int num_threads = 1;
    double training_seconds = 0;  ///< a step: forward, backward, AdamW; 0 if it was not run
    double training_cpu_seconds = 0;
    double graph_seconds = 0;  ///< a step with forward and backward as one recorded launch; 0 if it was not run
    double inference_seconds = 0;
    double inference_cpu_seconds = 0;
    double sgemm_gflops = 0;        ///< product of 1024 x 1024 matrices on all threads; 8192 x 8192 on a GPU
    double training_gflop = 0;      ///< useful work of a step: products of the forward pass three times
    std::int64_t bytes_before = 0;  ///< resident memory before the first step; on a GPU what LibTorch has allocated
    std::int64_t peak_bytes = 0;
    /// Relative errors of another precision against float32, after the timed steps. NaN where float32 does not fit into
    /// the device.
    double output_error = 0, gradient_error = 0;
};

/// How a model is run.
struct ModelRun {
    MemoryMode memory = MemoryMode::Stored;
    Precision precision = Precision::Float32;
    bool inference_only = false;
    bool from_graph = false;  ///< whether a training step is timed from a recording (DeviceGraph), too
    int num_repeats = 1;
};

/// Measures medians over the repeats, after one of each that is not counted if there are several. Products in single
/// precision stay afterwards as the precision sets them (`allow_tf32`).
/// @param device   where the model and its inputs lie: the CPU, or a device, whose cached memory is given back first
/// @throws c10::OutOfMemoryError if the steps do not fit
/// @throws Error for a recording on a device whose work cannot be recorded
ModelTimes time_model(const TimedModel& timed, const ModelRun& run, c10::Device device = c10::kCPU);

}  // namespace meshard
