// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>

namespace meshard {

/// Counts the bytes of tensors that this thread makes and frees while it lives, and their peak: a rank's own where
/// ranks are threads.
class LiveBytes {
public:
    LiveBytes() : count_(std::make_shared<Count>()), guard_(c10::DebugInfoKind::PROFILER_STATE, count_) {}

    std::int64_t peak() const { return count_->peak; }

private:
    struct Count : c10::MemoryReportingInfoBase {
        void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override
        {
            live += bytes;
            peak = std::max(peak, live);
        }
        bool memoryProfilingEnabled() const override { return true; }

        std::int64_t live = 0, peak = 0;
    };

    std::shared_ptr<Count> count_;
    c10::DebugInfoGuard guard_;
};

}  // namespace meshard
