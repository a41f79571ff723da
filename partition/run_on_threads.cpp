// SPDX-License-Identifier: Apache-2.0
#include "partition/run_on_threads.h"

#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

namespace meshard {

void run_on_threads(std::int32_t num_threads, const std::function<void(const std::function<std::int64_t()>& next)>& work)
{
    std::atomic<std::int64_t> number = 0;
    std::atomic<bool> has_failed = false;
    std::exception_ptr failure;
    std::mutex mutex;
    const auto next = [&]() -> std::int64_t { return has_failed ? std::numeric_limits<std::int64_t>::max() : number++; };
    const auto run = [&] {
        try {
            work(next);
        } catch (...) {
            const std::lock_guard lock(mutex);
            if (!failure) failure = std::current_exception();
            has_failed = true;
        }
    };
    {
        std::vector<std::jthread> others;
        for (std::int32_t t = 1; t < num_threads; ++t) others.emplace_back(run);
        run();
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace meshard
