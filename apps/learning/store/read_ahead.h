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

/// Reads cases in a thread of its own, in the order in which they will be needed, and holds at most `most` of them
/// ready.
class ReadAhead {
public:
    /// Reads the next case; called by the thread alone. Returns nothing when there are no more.
    using Read = std::function<std::optional<CaseRows>()>;

    /// @param most   cases that may be ready and not taken yet
    ReadAhead(Read read, std::size_t most);
    ~ReadAhead();
    ReadAhead(const ReadAhead&) = delete;
    ReadAhead& operator=(const ReadAhead&) = delete;

    /// Returns the next case; waits until it is read. @throws what reading it threw, once all earlier cases were taken.
    CaseRows take();

    double seconds_waited() const { return seconds_waited_; }  ///< by `take`, since the start

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
    std::thread thread_;  // last, since it uses all other members
};

}  // namespace meshard
