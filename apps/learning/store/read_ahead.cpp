// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/store/read_ahead.h"

#include "partition/error.h"

#include <chrono>
#include <utility>

namespace meshard {

ReadAhead::ReadAhead(Read read, std::size_t most) : read_(std::move(read)), most_(most), thread_([this] { run(); }) {}

ReadAhead::~ReadAhead()
{
    {
        const std::lock_guard lock(mutex_);
        is_stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void ReadAhead::run()
{
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return is_stopped_ || ready_.size() < most_; });
        if (is_stopped_) return;
        lock.unlock();
        std::optional<CaseRows> rows;
        std::exception_ptr error;
        try {
            rows = read_();
        } catch (...) {
            error = std::current_exception();
        }
        lock.lock();
        if (rows) {
            ready_.push_back(std::move(*rows));
        } else {
            error_ = error;
            has_ended_ = true;
        }
        changed_.notify_all();
        if (has_ended_) return;
    }
}

CaseRows ReadAhead::take()
{
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return has_ended_ || !ready_.empty(); });
    seconds_waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (ready_.empty()) {
        if (error_) std::rethrow_exception(error_);
        throw Error("ReadAhead: all cases were taken.");
    }
    auto rows = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return rows;
}

}  // namespace meshard
