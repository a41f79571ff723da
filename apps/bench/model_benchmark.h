// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/bench/training_benchmark.h"
#include "models/layers/memory_mode.h"
#include "models/layers/precision.h"

#include <c10/core/Device.h>

#include <cstdint>

namespace meshard {

/// What one process does with a Transolver and a cloud, on plain tensors.
struct ModelTimes {
    int num_threads = 1;
    double training_seconds = 0;  ///< a step: forward, backward, AdamW; 0 if it was not run
    double training_cpu_seconds = 0;
    double inference_seconds = 0;
    double inference_cpu_seconds = 0;
    double sgemm_gflops = 0;        ///< of 1024 x 1024 matrices, all threads; on a GPU of 8192 x 8192
    double training_gflop = 0;      ///< useful work of a step: products of the forward pass three times
    std::int64_t bytes_before = 0;  ///< resident memory before the first step, inputs included; of a GPU what LibTorch has allocated there
    std::int64_t peak_bytes = 0;
    double output_error = 0, gradient_error = 0;  ///< of another precision than float32: difference over norm, after the steps that were timed
};

/// Medians over `num_repeats`, after one of each that is not counted if there are several.
/// @param device   the CPU or a GPU  @throws InvalidInput if this process sees no GPU and is to use one
ModelTimes time_model(const StepShape& shape, MemoryMode memory, Precision precision, bool inference_only, int num_repeats, c10::Device device = c10::kCPU);

}  // namespace meshard
