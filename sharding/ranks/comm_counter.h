// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// Records the collectives that one rank has called, one entry for each call, in order. Belongs to a DeviceMesh; not
/// thread-safe.
///
/// `bytes` is the size of the tensor for all-reduce and broadcast, and the bytes received from other ranks for gather,
/// all-to-all and ring shift, so that the figures do not depend on a transport's algorithm.
class CommCounter {
public:
    struct Call {
        std::string operation;  ///< all_reduce, all_gather, all_to_all, ring_shift, exchange, broadcast, barrier
        std::string axis;       ///< name of the device mesh's axis, or `all`
        std::int64_t bytes = 0;
    };

    void record(const char* operation, const std::string& axis, std::int64_t bytes)
    {
        calls_.push_back({operation, axis, bytes});
    }
    void record_wait(double seconds) { seconds_waited_ += seconds; }
    void reset() { calls_.clear(); }

    const std::vector<Call>& calls() const { return calls_; }
    std::int64_t num_calls() const { return static_cast<std::int64_t>(calls_.size()); }
    /// Seconds that the host has waited for other ranks, since the start. Devices wait apart.
    double seconds_waited() const { return seconds_waited_; }
    std::int64_t total_bytes() const
    {
        std::int64_t bytes = 0;
        for (const auto& call : calls_) bytes += call.bytes;
        return bytes;
    }

private:
    std::vector<Call> calls_;
    double seconds_waited_ = 0;
};

}  // namespace meshard
