// SPDX-License-Identifier: Apache-2.0
#include "models/layers/precision.h"

#include "partition/error.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <optional>

namespace meshard {
namespace {

/// The type of autocast; none for single precision.
std::optional<at::ScalarType> autocast_type(Precision precision)
{
    if (precision == Precision::BFloat16) return at::kBFloat16;
    return precision == Precision::Float16 ? std::optional(at::kHalf) : std::nullopt;
}

}  // namespace

Precision precision_named(const std::string& name)
{
    if (name == "float32") return Precision::Float32;
    if (name == "bfloat16" || name == "bf16") return Precision::BFloat16;
    if (name == "float16" || name == "fp16") return Precision::Float16;
    if (name == "tf32") return Precision::TF32;
    throw InvalidInput("precision '{}' is not one of float32, tf32, bfloat16, float16.", name);
}

std::string name_of(Precision precision)
{
    switch (precision) {
    case Precision::Float32:
        return "float32";
    case Precision::BFloat16:
        return "bfloat16";
    case Precision::Float16:
        return "float16";
    case Precision::TF32:
        break;
    }
    return "tf32";
}

void allow_tf32(bool allowed)
{
    at::globalContext().setAllowTF32CuBLAS(allowed);
    at::globalContext().setAllowTF32CuDNN(allowed);
}

PrecisionGuard::PrecisionGuard(Precision precision, c10::DeviceType device)
    : device_(device), was_enabled_(at::autocast::is_autocast_enabled(device_)),
      was_caching_(at::autocast::is_autocast_cache_enabled()), type_before_(at::autocast::get_autocast_dtype(device_))
{
    const auto type = autocast_type(precision);
    at::autocast::set_autocast_enabled(device_, type.has_value());
    if (type) at::autocast::set_autocast_dtype(device_, *type);
    // The cache is off: a cached copy of a weight that is used twice adds its gradients in half precision; and all
    // threads share one cache, which any of them may clear.
    at::autocast::set_autocast_cache_enabled(false);
}

PrecisionGuard::~PrecisionGuard()
{
    at::autocast::set_autocast_cache_enabled(was_caching_);
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, type_before_);
}

}  // namespace meshard
