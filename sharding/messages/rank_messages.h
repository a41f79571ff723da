// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/error.h"
#include "partition/lists.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace meshard {

/// Thrown when another rank has failed and reports its error; this rank ends without a message.
class FailedElsewhere : public CommunicationError {
public:
    FailedElsewhere() : CommunicationError("another rank has failed and reports its error.") {}
};

/// Messages between the ranks of a run, without LibTorch.
///
/// The one operation, `exchange`, is collective; with one rank, the ordinary case, it costs nothing. A rank that has an
/// error calls `fail` instead of its next `exchange`; the `exchange` of all other ranks then throws `FailedElsewhere`,
/// so that no rank waits for ever.
class RankMessages {
public:
    using Bytes = std::vector<std::byte>;

    virtual ~RankMessages() = default;
    virtual int rank() const { return 0; }
    virtual int size() const { return 1; }

    /// Collective. Sends `to[r]` to rank r; returns what this rank receives, by sender.
    /// @throws FailedElsewhere, CommunicationError
    virtual std::vector<Bytes> exchange(std::vector<Bytes> to) { return to; }

    /// Called instead of `exchange`: makes the next `exchange` of the other ranks throw.
    /// @return whether this rank has to report its error: true on the lowest of the ranks that failed.
    virtual bool fail() noexcept { return true; }
};

/// Connects the ranks that `mpirun` or `srun` started, or those of MPI if it is initialised already; otherwise this
/// process is the only rank.
/// @throws CommunicationError
std::unique_ptr<RankMessages> ranks_of_this_run();

/// `RankMessages::exchange` of values; `to[r]` is the list for rank r. Collective.
template <class T>
std::vector<std::vector<T>> exchange(RankMessages& messages, std::vector<std::vector<T>> to)
{
    static_assert(std::is_trivially_copyable_v<T>);
    if (messages.size() == 1) {
        messages.exchange(std::vector<RankMessages::Bytes>(1));
        return to;
    }
    std::vector<RankMessages::Bytes> bytes(to.size());
    for (std::size_t r = 0; r < to.size(); ++r) {
        bytes[r].resize(to[r].size() * sizeof(T));
        if (!to[r].empty()) std::memcpy(bytes[r].data(), to[r].data(), bytes[r].size());
        std::vector<T>().swap(to[r]);
    }
    const auto received = messages.exchange(std::move(bytes));
    for (std::size_t r = 0; r < to.size(); ++r) {
        to[r].resize(received[r].size() / sizeof(T));
        if (!to[r].empty()) std::memcpy(to[r].data(), received[r].data(), received[r].size());
    }
    return to;
}

/// All ranks' values, concatenated in rank order, on every rank. Collective.
template <class T>
std::vector<T> gather_everywhere(RankMessages& messages, const std::vector<T>& values)
{
    std::vector<T> all;
    for (const auto& part : exchange(messages, std::vector<std::vector<T>>(messages.size(), values))) append(all, part);
    return all;
}

/// All ranks' values, concatenated in rank order, on rank 0; an empty list on the others. Collective.
template <class T>
std::vector<T> gather_on_first(RankMessages& messages, std::vector<T> values)
{
    std::vector<std::vector<T>> to(messages.size());
    to[0] = std::move(values);
    std::vector<T> all;
    for (const auto& part : exchange(messages, std::move(to))) append(all, part);
    return all;
}

/// The element-wise sum over all ranks, on every rank. Collective.
template <class T>
std::vector<T> sum_everywhere(RankMessages& messages, const std::vector<T>& values)
{
    const auto all = gather_everywhere(messages, values);
    std::vector<T> sums(values.size(), T{});
    for (std::size_t i = 0; i < all.size(); ++i) sums[i % sums.size()] += all[i];
    return sums;
}

/// Consecutive rows for each rank: rank r has rows `begins[r]` to `begins[r + 1] - 1`.
struct RankRanges {
    std::vector<std::int64_t> begins;

    /// Rows 0 ... count - 1 in ranges whose lengths differ by one at most.
    static RankRanges even(std::int64_t count, int num_ranks)
    {
        RankRanges ranges;
        for (int r = 0; r <= num_ranks; ++r) ranges.begins.push_back(count * r / num_ranks);
        return ranges;
    }

    std::int64_t begin(int rank) const { return begins[rank]; }
    std::int64_t size(int rank) const { return begins[rank + 1] - begins[rank]; }
    int rank_of(std::int64_t row) const
    {
        return static_cast<int>(std::ranges::upper_bound(begins, row) - begins.begin()) - 1;
    }
};

/// The values of the global rows `rows`, each sent by the rank whose range holds it. `mine` has the values of this
/// rank's range. Collective.
template <class T>
std::vector<T> fetch(RankMessages& messages, const RankRanges& ranges, std::span<const T> mine,
                     std::span<const std::int32_t> rows)
{
    const auto begin = ranges.begin(messages.rank());
    std::vector<T> values(rows.size());
    if (messages.size() == 1) {
        for (std::size_t i = 0; i < rows.size(); ++i) values[i] = mine[rows[i]];
        return values;
    }
    std::vector<std::vector<std::int32_t>> asked(messages.size());
    for (const auto row : rows) asked[ranges.rank_of(row)].push_back(row);
    const auto wanted = exchange(messages, std::move(asked));
    std::vector<std::vector<T>> answers(messages.size());
    for (std::size_t r = 0; r < wanted.size(); ++r)
        for (const auto row : wanted[r]) answers[r].push_back(mine[row - begin]);
    const auto received = exchange(messages, std::move(answers));
    std::vector<std::size_t> next(messages.size(), 0);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto r = ranges.rank_of(rows[i]);
        values[i] = received[r][next[r]++];
    }
    return values;
}

}  // namespace meshard
