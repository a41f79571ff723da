// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace meshard {

/// Calls `work(next)` on `num_threads` threads (one: on this). `next()` gives the numbers 0, 1, 2, ... , each to one caller only, so that threads that
/// are quick take more. The first exception is thrown again when all have ended; others then stop at their next number.
void run_on_threads(std::int32_t num_threads, const std::function<void(const std::function<std::int64_t()>& next)>& work);

} // namespace meshard
