// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/comm_counter.h"
#include "sharding/ranks/placement.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Returns whether `name`, "host:pid", is a process of this host that has ended (a zombie counts as ended).
bool has_ended(const std::string& name);

/// Handle on a collective that has been started. Its tensors must not be read or written before `wait` returns.
class PendingCollective {
public:
    PendingCollective() = default;
    /// Keeps `buffers` alive until `wait` returns. The backend may hold its tensors longer.
    PendingCollective(c10::intrusive_ptr<c10d::Work> work, std::string what, const class RankGroup* group,
                      std::vector<at::Tensor> buffers = {});

    /// Returns at once if there is nothing to wait for. @throws CommunicationError if a rank has ended or is late.
    void wait();

    /// Returns whether `wait` would return at once. @throws CommunicationError as `wait`
    bool is_done() const;

private:
    c10::intrusive_ptr<c10d::Work> work_;
    std::string what_;
    const class RankGroup* group_ = nullptr;
    std::shared_ptr<std::vector<at::Tensor>> buffers_;
};

/// Ranks that exchange messages: those along one axis of a device mesh, or all. A group of one never communicates.
///
/// Every function is collective over the group. Tensors are dense and plain, on a device that the backend supports. All
/// throw CommunicationError if a rank has ended or is later than the group's time limit; the message names the ranks
/// that are known to have ended. Counts that do not fit a tensor, and ranks that do not exist, are InvalidInput on the
/// rank that passes them.
class RankGroup {
public:
    /// The group of one.
    RankGroup();

    /// A group over `backend`, in which this is rank `rank` of `size`. `names` ("host:pid" of each rank) appear in
    /// messages ("rank 1 (pid 77 on node3)").
    RankGroup(c10::intrusive_ptr<c10d::Backend> backend, std::string axis, std::shared_ptr<CommCounter> counter,
              std::vector<std::string> names = {});

    int rank() const { return rank_; }
    int size() const { return size_; }
    const std::string& axis() const { return axis_; }
    /// What carries the messages; null in a group of one.
    const c10::intrusive_ptr<c10d::Backend>& backend() const { return backend_; }

    /// Reduces in place.
    void all_reduce(at::Tensor& tensor, Reduction reduction = Reduction::Sum) const;
    PendingCollective start_all_reduce(at::Tensor& tensor, Reduction reduction = Reduction::Sum) const;

    /// Concatenates the rows (dimension 0) of all ranks in rank order. Rank r contributes `rows[r]` rows; messages are
    /// not padded.
    at::Tensor all_gather_rows(const at::Tensor& local, std::span<const std::int64_t> rows) const;
    /// Starts `all_gather_rows`: `local` is copied before this returns; `whole` becomes new memory, or `local` itself
    /// in a group of one.
    PendingCollective start_all_gather_rows(const at::Tensor& local, std::span<const std::int64_t> rows,
                                            at::Tensor& whole) const;

    /// Sends `send_rows[r]` rows to rank r, in rank order, and returns the rows received, in rank order.
    at::Tensor all_to_all_rows(const at::Tensor& rows, std::span<const std::int64_t> send_rows,
                               std::span<const std::int64_t> receive_rows) const;

    /// Starts to send `sent` to the next rank (the last rank sends to the first) and to receive `received` from the
    /// previous one. Both are contiguous and one-dimensional, possibly empty; `received` has the length that the
    /// previous rank sends.
    PendingCollective start_ring_shift(const at::Tensor& sent, at::Tensor& received) const;

    /// Starts an all-to-all: `sent` holds `send_counts[r]` values for rank r, in rank order; `received` has room for
    /// `receive_counts[r]` values from rank r, in rank order. `what` is the operation's name in errors.
    PendingCollective start_exchange(const at::Tensor& sent, std::span<const std::int64_t> send_counts,
                                     at::Tensor& received, std::span<const std::int64_t> receive_counts,
                                     const char* what = "exchange") const;

    /// Starts an all-to-all of rows: `sent` holds `send_rows[r]` rows for rank r, in rank order. A backend that is a
    /// RowExchange gathers them while it sends. `received` is contiguous, with room for `receive_rows[r]` rows from
    /// each rank r.
    PendingCollective start_row_exchange(const class RowStream& sent, std::span<const std::int64_t> send_rows,
                                         at::Tensor& received, std::span<const std::int64_t> receive_rows) const;

    /// A receive buffer for `start_row_exchange`, allocated where the transport can write to it with the fewest copies.
    at::Tensor empty_received(at::IntArrayRef sizes, const at::TensorOptions& options) const;

    void broadcast(at::Tensor& tensor, int source_rank) const;

    /// The numbers of all ranks, one vector for each rank (all of the same length).
    std::vector<std::vector<std::int64_t>> all_gather_integers(std::span<const std::int64_t> own) const;
    std::vector<std::int64_t> all_gather_integers(std::int64_t own) const;  ///< one number of each rank

    /// Returns true on every rank if `mine` is true on every rank. With it all ranks learn whether one has found an
    /// error before they continue.
    bool all_agree(bool mine) const;

    void barrier() const;

    /// Closes the group's connections, so that waiting ranks get an error.
    void abort() const;

    std::string describe_failure(const std::string& what, const std::string& error) const;

private:
    friend class PendingCollective;
    void record(const char* operation, std::int64_t bytes) const;
    /// @throws InvalidInput if there is not one count a rank, or this rank holds another number than expected
    void require_counts(const char* what, std::span<const std::int64_t> counts, std::int64_t held,
                        std::int64_t expected) const;

    c10::intrusive_ptr<c10d::Backend> backend_;
    std::string axis_ = "all";
    int rank_ = 0;
    int size_ = 1;
    std::shared_ptr<CommCounter> counter_;
    std::vector<std::string> names_;
};

}  // namespace meshard
