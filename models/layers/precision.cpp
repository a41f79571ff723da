// SPDX-License-Identifier: Apache-2.0
#include "models/layers/precision.h"

#include "partition/error.h"

#include <ATen/autocast_mode.h>

namespace meshard {

Precision precision_named(const std::string& name)
{
    if (name == "float32") return Precision::Float32;
    if (name == "bfloat16" || name == "bf16") return Precision::BFloat16;
    throw InvalidInput("precision '" + name + "' is not one of float32, bfloat16.");
}

PrecisionGuard::PrecisionGuard(Precision precision, c10::DeviceType device)
    : device_(device), was_enabled_(at::autocast::is_autocast_enabled(device_)), was_caching_(at::autocast::is_autocast_cache_enabled()),
      type_before_(at::autocast::get_autocast_dtype(device_))
{
    at::autocast::set_autocast_enabled(device_, precision == Precision::BFloat16);
    if (precision == Precision::BFloat16) at::autocast::set_autocast_dtype(device_, at::kBFloat16);
    // A cached copy of a weight used twice adds its gradients in bfloat16; and the cache is one for all threads, any of which may empty it.
    at::autocast::set_autocast_cache_enabled(false);
}

PrecisionGuard::~PrecisionGuard()
{
    at::autocast::set_autocast_cache_enabled(was_caching_);
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, type_before_);
}

}  // namespace meshard
