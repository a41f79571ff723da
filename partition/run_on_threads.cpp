// SPDX-License-Identifier: Apache-2.0
#include "partition/run_on_threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <sched.h>
#include <system_error>
#include <thread>
#include <vector>

namespace meshard {

int num_cores()
{
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) == 0) return std::max(1, CPU_COUNT(&cores));
    return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

void run_on_threads(std::int32_t num_threads,
                    const std::function<void(const std::function<std::int64_t()>& next)>& work)
{
    std::atomic<std::int64_t> number = 0;
    std::atomic<bool> has_failed = false;
    std::exception_ptr failure;
    std::mutex mutex;
    const auto next = [&]() -> std::int64_t {
        return has_failed ? std::numeric_limits<std::int64_t>::max() : number++;
    };
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
        try {
            for (std::int32_t t = 1; t < num_threads; ++t) others.emplace_back(run);
        } catch (const std::system_error&) {
            // The system has no more threads: the existing ones do all the work.
        }
        run();
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace meshard
