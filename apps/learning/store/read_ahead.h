// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/store/case_rows.h"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace meshard {

/// Reads cases in a thread of its own, in the order in which they will be asked for: some are ready before their turn, and never more than those.
class ReadAhead {
public:
    /// What is read next; called by the thread alone. Nothing: there is no more.
    using Read = std::function<std::optional<CaseRows>()>;

    /// @param most   cases that are ready and not taken yet
    ReadAhead(Read read, std::size_t most);
    ~ReadAhead();
    ReadAhead(const ReadAhead&) = delete;
    ReadAhead& operator=(const ReadAhead&) = delete;

    /// The next case; waits until it is read. @throws what went wrong in reading it, after all that was read before was taken.
    CaseRows take();

    double seconds_waited() const { return seconds_waited_; }  ///< by `take`, since it began

private:
    void run();

    Read read_;
    std::size_t most_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<CaseRows> ready_;
    std::exception_ptr error_;
    bool has_ended_ = false;  // the thread reads no more
    bool is_stopped_ = false;
    double seconds_waited_ = 0;
    std::thread thread_;  // last: it uses all others
};

}  // namespace meshard
