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
    // Where it must wait for other ranks it leaves the core to whoever computes.
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
            // Whoever waits for the work does it from then on, and meets the same error where it can be told; here it would end the process.
        }
        if (is_more) std::this_thread::sleep_for(kNap);
        lock.lock();
        is_awake_ |= is_more;
    }
}

}  // namespace meshard
