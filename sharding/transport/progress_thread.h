// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace meshard {

/// Lets messages go on while the program computes: transports that only move bytes when they are called are called from here.
class ProgressThread {
public:
    /// `step` does what can be done without waiting and says whether anything is left to do. After one that throws the thread sleeps until the next `wake`.
    explicit ProgressThread(std::function<bool()> step) : step_(std::move(step)) {}
    ~ProgressThread() { stop(); }
    ProgressThread(const ProgressThread&) = delete;
    ProgressThread& operator=(const ProgressThread&) = delete;

    /// There is something to do. The first call starts the thread.
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
