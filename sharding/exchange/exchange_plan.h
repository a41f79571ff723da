// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/ghosts/index_map.h"
#include "sharding/ranks/rank_group.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace meshard {

/// Who sends which owned rows to whom so that every rank's ghosts get their owners' values. Local rows are owned first, ghosts after, ghosts by
/// owner. Holds: what this rank sends to rank r is what r expects of it, in the same order. Made once, used often; says nothing of values.
///
/// Example: seven rows of parts 0 0 1 1 1 0 2, one ghost layer. Rank 1 owns 2 3 4 and sees 1 and 5. It sends its local rows 0 and 2 (ids 2 and
/// 4) to rank 0 and receives two rows from it, local rows 3 and 4.
class ExchangePlan {
public:
    /// From the ghosts of an index map whose parts are ranks. Collective.
    /// @throws InvalidInput on every rank if a map is not one of its part, or wants a row of a rank that does not own it.
    static std::shared_ptr<const ExchangePlan> find(const IndexMap& index_map, const RankGroup& group);

    /// From what both sides know already: `sent_rows` holds owned rows by receiving rank, `send_counts[r]` of them for rank r; `receive_counts[r]`
    /// come from rank r. Not collective.
    /// @throws InvalidInput if counts do not fit the group or a row is not owned.
    ExchangePlan(RankGroup group, std::int64_t num_owned, std::vector<std::int64_t> sent_rows, std::vector<std::int64_t> send_counts,
                 std::vector<std::int64_t> receive_counts);

    const RankGroup& group() const { return group_; }
    std::int64_t num_owned() const { return num_owned_; }
    std::int64_t num_ghosts() const { return num_ghosts_; }
    std::int64_t num_local() const { return num_owned_ + num_ghosts_; }
    std::int64_t num_sent() const { return sent_.numel(); }

    /// Owned rows to send, by receiving rank; (num_sent), int64.
    const at::Tensor& sent_rows() const { return sent_; }

    /// The same on a device: a copy that is made the first time.
    at::Tensor sent_rows(const at::Device& device) const;

    const std::vector<std::int64_t>& send_counts() const { return send_counts_; }
    const std::vector<std::int64_t>& receive_counts() const { return receive_counts_; }

    /// Whether the first exchange by this plan need not begin with ranks comparing what they send: they have, or the plan was made of what both sides
    /// know already.
    bool is_agreed() const { return is_agreed_; }
    void set_agreed() const { is_agreed_ = true; }

private:
    RankGroup group_;
    std::int64_t num_owned_ = 0, num_ghosts_ = 0;
    at::Tensor sent_;
    std::vector<std::int64_t> send_counts_, receive_counts_;
    mutable bool is_agreed_ = true;
    mutable std::mutex copies_mutex_;
    mutable std::vector<at::Tensor> sent_on_devices_;
};

/// One line, e.g. `ExchangePlan: 3 owned rows, 2 sent to ranks 0, 2 ghosts from ranks 0`.
std::string to_string(const ExchangePlan& plan);

}  // namespace meshard
