// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

namespace meshard {

/// In what a model computes on CPUs. Weights, their gradients, sums over points and losses are in single precision in both.
enum class Precision : std::uint8_t {
    Float32,
    BFloat16  ///< LibTorch's autocast: products take bfloat16, and what is kept of each point is bfloat16
};

/// From `float32`, `bfloat16` or `bf16`. @throws InvalidInput for another name
Precision precision_named(const std::string& name);

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
