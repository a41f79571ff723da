// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

namespace meshard {

/// In what a model computes. Weights, their gradients, sums over points and losses are in single precision in all.
enum class Precision : std::uint8_t {
    Float32,
    BFloat16,  ///< LibTorch's autocast: products take bfloat16, and what is kept of each point is bfloat16
    Float16,   ///< the same with float16, whose range is small: the loss wants a scale (apps/learning/training/loss_scaling.h)
    TF32       ///< products in single precision may round their factors to 10 bits, as GPUs do fast; on CPUs they do not
};

/// From `float32`, `bfloat16` or `bf16`, `float16` or `fp16`, `tf32`. @throws InvalidInput for another name
Precision precision_named(const std::string& name);

std::string name_of(Precision precision);  ///< `float32`, `bfloat16`, ...

/// From now on products and convolutions in single precision on GPUs round their factors as TF32 does, or not, in all threads. At first they do not.
void allow_tf32(bool allowed);

/// For as long as it lives, this thread's forward passes on a type of device run in a precision. Backward belongs after it.
class PrecisionGuard {
public:
    explicit PrecisionGuard(Precision precision, c10::DeviceType device = c10::DeviceType::CPU);
    ~PrecisionGuard();
    PrecisionGuard(const PrecisionGuard&) = delete;
    PrecisionGuard& operator=(const PrecisionGuard&) = delete;

private:
    c10::DeviceType device_;
    bool was_enabled_, was_caching_;
    c10::ScalarType type_before_;
};

}  // namespace meshard
