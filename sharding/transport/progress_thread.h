// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace meshard {

/// A thread that advances messages while the program computes, for transports that move bytes only when they are
/// called.
class ProgressThread {
public:
    /// `step` does what is possible without waiting and returns whether anything is left to do. After a `step` that
    /// throws, the thread sleeps until the next `wake`.
    explicit ProgressThread(std::function<bool()> step) : step_(std::move(step)) {}
    ~ProgressThread() { stop(); }
    ProgressThread(const ProgressThread&) = delete;
    ProgressThread& operator=(const ProgressThread&) = delete;

    /// Wakes the thread to do new work. The first call starts it.
    void wake();

    void stop();

private:
    void run();

    std::function<bool()> step_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool is_awake_ = false, is_over_ = false;
    std::thread thread_;
};

}  // namespace meshard
