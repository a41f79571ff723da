// SPDX-License-Identifier: Apache-2.0
#include "sharding/transport/progress_thread.h"

#include <chrono>

namespace meshard {

void ProgressThread::wake()
{
    const std::lock_guard lock(mutex_);
    if (is_over_) return;
    is_awake_ = true;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    changed_.notify_one();
}

void ProgressThread::stop()
{
    {
        const std::lock_guard lock(mutex_);
        is_over_ = true;
        changed_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
}

void ProgressThread::run()
{
    // While it waits for other ranks, it leaves the core to threads that compute.
    constexpr auto kNap = std::chrono::microseconds(20);
    for (std::unique_lock lock(mutex_); !is_over_;) {
        if (!is_awake_) {
            changed_.wait(lock);
            continue;
        }
        is_awake_ = false;
        lock.unlock();
        bool is_more = false;
        try {
            is_more = step_();
        } catch (...) {
            // The error is not passed on here, where it would end the process: the thread that waits for the work gets
            // the same error when it continues, and can report it.
        }
        if (is_more) std::this_thread::sleep_for(kNap);
        lock.lock();
        is_awake_ |= is_more;
    }
}

}  // namespace meshard
