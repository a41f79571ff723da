// SPDX-License-Identifier: Apache-2.0
#include "models/precision.h"

#include <ATen/autocast_mode.h>

#include "partition/error.h"

namespace meshard {

Precision precision_named(const std::string& name)
{
    if (name == "float32") return Precision::Float32;
    if (name == "bfloat16" || name == "bf16") return Precision::BFloat16;
    throw InvalidInput("precision '" + name + "' is not one of float32, bfloat16.");
}

PrecisionGuard::PrecisionGuard(Precision precision)
    : was_enabled_(at::autocast::is_autocast_enabled(at::kCPU)), type_before_(at::autocast::get_autocast_dtype(at::kCPU))
{
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, precision == Precision::BFloat16);
    if (precision == Precision::BFloat16) at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
}

PrecisionGuard::~PrecisionGuard()
{
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();   // the weights' copies
    at::autocast::set_autocast_enabled(at::kCPU, was_enabled_);
    at::autocast::set_autocast_dtype(at::kCPU, type_before_);
}

}  // namespace meshard
