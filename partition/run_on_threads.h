// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace meshard {

/// Number of cores that this process may use.
int num_cores();

/// Calls `work(next)` on `num_threads` threads (one: on the calling thread), fewer if the system has no more. `next()`
/// returns 0, 1, 2, ... , each number to one thread only, so that fast threads get more. After an exception the other
/// threads stop at their next number; the first exception is rethrown when all have ended.
void run_on_threads(std::int32_t num_threads,
                    const std::function<void(const std::function<std::int64_t()>& next)>& work);

}  // namespace meshard
