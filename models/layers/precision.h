// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

namespace meshard {

/// The precision in which a model computes. Weights, their gradients, sums over points and losses always have single
/// precision.
enum class Precision : std::uint8_t {
    Float32,
    BFloat16,  ///< LibTorch's autocast: products take bfloat16, and what is stored for each point is bfloat16
    Float16,   ///< the same with float16, whose range is small: the loss needs a scale
               ///< (apps/learning/training/weight_update.h)
    /// Products in single precision may round their factors to 10 bits, which is faster on GPUs; CPUs do not round
    /// them.
    TF32
};

/// Parses `float32`, `bfloat16` or `bf16`, `float16` or `fp16`, `tf32`. @throws InvalidInput for another name
Precision precision_named(const std::string& name);

std::string name_of(Precision precision);  ///< `float32`, `bfloat16`, ...

/// Sets whether products and convolutions in single precision on GPUs may round their factors to TF32, in all threads.
/// Off at the start.
void allow_tf32(bool allowed);

/// A guard: this thread's forward passes on a type of device run in a precision. Backward must run after its end.
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
