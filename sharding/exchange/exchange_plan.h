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

/// An exchange plan lists which owned rows each rank sends to which ranks, so that all ghost rows get their owners'
/// values. Local rows are numbered owned first, then ghosts sorted by owner. Rank a's list of rows for rank b has the
/// order in which b stores these ghosts. A plan holds no values; it is made once and used for many exchanges.
///
/// Example: seven rows with owners 0 0 1 1 1 0 2 and one ghost layer. Rank 1 owns the ids 2 3 4 and has ghosts 1 and 5.
/// It sends its local rows 0 and 2 (ids 2 and 4) to rank 0, and receives its local rows 3 and 4 from rank 0.
class ExchangePlan {
public:
    /// Makes the plan for the ghosts of an index map whose part number is the rank. Collective.
    /// @throws InvalidInput on every rank if a map is not valid, or wants a row from a rank that does not own it.
    static std::shared_ptr<const ExchangePlan> find(const IndexMap& index_map, const RankGroup& group);

    /// Makes a plan from lists that senders and receivers already have. `sent_rows` holds owned rows sorted by
    /// receiving rank, `send_counts[r]` of them for rank r; `receive_counts[r]` rows come from rank r. Not collective.
    /// @throws InvalidInput if counts do not fit the group or a row is not owned.
    ExchangePlan(RankGroup group, std::int64_t num_owned, std::vector<std::int64_t> sent_rows,
                 std::vector<std::int64_t> send_counts, std::vector<std::int64_t> receive_counts);

    const RankGroup& group() const { return group_; }
    std::int64_t num_owned() const { return num_owned_; }
    std::int64_t num_ghosts() const { return num_ghosts_; }
    std::int64_t num_local() const { return num_owned_ + num_ghosts_; }
    std::int64_t num_sent() const { return sent_.numel(); }

    /// Owned rows to send, sorted by receiving rank; (num_sent), int64.
    const at::Tensor& sent_rows() const { return sent_; }

    /// `sent_rows()` on `device`, copied there at the first call.
    at::Tensor sent_rows(const at::Device& device) const;

    const std::vector<std::int64_t>& send_counts() const { return send_counts_; }
    const std::vector<std::int64_t>& receive_counts() const { return receive_counts_; }

    /// True once the ranks have compared the counts that they send and receive, which the first exchange does
    /// otherwise, or if the plan was made from lists that both sides had.
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
