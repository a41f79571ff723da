// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/metis_partitioner.h"

#include "partition/cut/balance.h"
#include "partition/cut/weight_balance.h"
#include "partition/error.h"

#include <metis.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <limits>
#include <mutex>
#include <type_traits>
#include <unistd.h>
#include <vector>

namespace meshard {

namespace {

static_assert(std::is_same_v<idx_t, std::int32_t>, "written for METIS built with 32-bit indices, as Debian's is");

/// A guard: blocks SIGTERM in this thread. METIS's handler would jump out of any function, malloc included, whose lock
/// would then stay locked. The program itself must block the signal in other threads (io/bytes/interruption.h).
class TerminationWaits {
public:
    TerminationWaits()
    {
        sigset_t termination;
        sigemptyset(&termination);
        sigaddset(&termination, SIGTERM);
        pthread_sigmask(SIG_BLOCK, &termination, &before_);
    }
    ~TerminationWaits() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    TerminationWaits(const TerminationWaits&) = delete;
    TerminationWaits& operator=(const TerminationWaits&) = delete;

private:
    sigset_t before_;
};

/// A guard: redirects standard output, where programs expect results, to standard error. METIS prints advice there,
/// e.g. on weights that are zero.
class PrintsOnStderr {
public:
    PrintsOnStderr()
    {
        std::fflush(stdout);
        before_ = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
        if (before_ >= 0) ::dup2(STDERR_FILENO, STDOUT_FILENO);
    }
    ~PrintsOnStderr()
    {
        if (before_ < 0) return;
        std::fflush(stdout);
        ::dup2(before_, STDOUT_FILENO);
        ::close(before_);
    }
    PrintsOnStderr(const PrintsOnStderr&) = delete;
    PrintsOnStderr& operator=(const PrintsOnStderr&) = delete;

private:
    int before_ = -1;
};

void check_options(const Csr& graph, const MetisOptions& options)
{
    require_parts("partition_with_metis", options.num_parts);
    if (!(options.imbalance >= 1.0))
        throw InvalidInput("partition_with_metis: imbalance is {}, expected 1 or more (1.03 lets the "
                           "largest part be 3 % above the mean).",
                           options.imbalance);
    if (!options.edge_weights.empty() && std::ssize(options.edge_weights) != graph.num_entries())
        throw InvalidInput("partition_with_metis: there are {} edge weights for {} entries of the graph.",
                           options.edge_weights.size(), graph.num_entries());
    if (!fits_metis(graph))
        throw InvalidInput("partition_with_metis: the graph has {} rows and {} entries; this METIS counts "
                           "in 32 bits (at most {}). Use --method scotch.",
                           graph.num_rows(), graph.num_entries(), std::numeric_limits<idx_t>::max());
}

// METIS expects every edge in both directions and would write past its arrays if one were missing.
void check_symmetry(const Csr& graph)
{
    std::uint64_t balance = 0;  // each edge adds its hash in one direction and subtracts it in the other
    for (std::int64_t i = 0; i < graph.num_rows(); ++i)
        for (const auto j : graph.row(i)) {
            if (i == j) throw InvalidInput("partition_with_metis: row {} of the graph is its own neighbour.", i);
            const auto low = static_cast<std::uint64_t>(std::min<std::int64_t>(i, j));
            const auto high = static_cast<std::uint64_t>(std::max<std::int64_t>(i, j));
            auto hash = (low << 32 | high) * 0x9e3779b97f4a7c15u;
            hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9u;
            balance += i < j ? hash : -hash;
        }
    if (balance != 0)
        throw InvalidInput(
            "partition_with_metis: the graph is not symmetric; every edge must be listed from both ends.");
}

std::vector<idx_t> scaled_weights(const MetisOptions& options)
{
    std::vector<idx_t> weights(options.row_weights.begin(), options.row_weights.end());
    for (std::int32_t w = 0; w < options.num_weights; ++w) {
        double total = 0;
        for (auto at = static_cast<std::size_t>(w); at < weights.size(); at += options.num_weights)
            total += weights[at];
        const double scale = 0x1p30 / std::max(total, 0x1p30);
        if (scale == 1) continue;
        for (auto at = static_cast<std::size_t>(w); at < weights.size(); at += options.num_weights)
            if (weights[at] > 0) weights[at] = std::max<idx_t>(1, static_cast<idx_t>(weights[at] * scale));
    }
    return weights;
}

std::vector<std::int32_t> call_metis(const Csr& graph, const MetisOptions& options)
{
    std::vector<idx_t> offsets(graph.offsets.begin(), graph.offsets.end());
    std::vector<std::int32_t> owners(graph.num_rows(), 0);
    idx_t metis_options[METIS_NOPTIONS];
    METIS_SetDefaultOptions(metis_options);
    metis_options[METIS_OPTION_SEED] = options.seed;
    metis_options[METIS_OPTION_UFACTOR] =
        static_cast<idx_t>(std::clamp(std::round((options.imbalance - 1.0) * 1000.0), 1.0, 1e6));
    idx_t num_rows = static_cast<idx_t>(graph.num_rows());
    idx_t num_parts = options.num_parts;
    idx_t edge_cut = 0;
    // METIS uses the C library's random numbers and installs signal handlers: one caller at a time.
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    // The sums of weights must not overflow in METIS: a total above 2^30 is scaled down; each weight that is not 0
    // stays at least 1.
    idx_t num_weights = options.num_weights;
    auto weights = scaled_weights(options);
    std::vector<real_t> shares;
    if (!options.capacities.empty()) {
        double sum = 0;
        for (const auto capacity : options.capacities) sum += capacity;
        for (const auto capacity : options.capacities)
            shares.insert(shares.end(), num_weights, static_cast<real_t>(capacity / sum));
    }
    std::vector<real_t> allowed(num_weights, static_cast<real_t>(options.imbalance));
    const auto method = options.recursive ? METIS_PartGraphRecursive : METIS_PartGraphKway;
    const TerminationWaits guard;
    const PrintsOnStderr prints;
    const int status = method(&num_rows, &num_weights, offsets.data(), const_cast<idx_t*>(graph.indices.data()),
                              weights.empty() ? nullptr : weights.data(), nullptr,
                              options.edge_weights.empty() ? nullptr : const_cast<idx_t*>(options.edge_weights.data()),
                              &num_parts, shares.empty() ? nullptr : shares.data(),
                              weights.empty() ? nullptr : allowed.data(), metis_options, &edge_cut, owners.data());
    if (status == METIS_ERROR_MEMORY)
        throw Error(
            "partition_with_metis: METIS ran out of memory on a graph of {} rows. Use a machine with more memory.",
            graph.num_rows());
    if (status != METIS_OK) throw Error("partition_with_metis: METIS refused the graph (its code is {}).", status);
    return owners;
}

}  // namespace

bool fits_metis(std::int64_t num_rows, std::int64_t num_entries)
{
    constexpr std::int64_t most = std::numeric_limits<idx_t>::max();
    return num_rows <= most && num_entries <= most;
}

Partition partition_with_metis(const Csr& graph, const MetisOptions& options)
{
    check_options(graph, options);
    graph.validate(graph.num_rows());
    check_symmetry(graph);
    const auto num_rows = graph.num_rows();
    largest_weights_allowed(num_rows, options.num_parts, options.balance());  // throws if the balance does not fit
    Partition partition{options.num_parts, std::vector<std::int32_t>(num_rows, 0)};
    if (options.num_parts == 1 || num_rows == 0) return partition;
    // METIS leaves parts empty if there are few rows for each, and prints that to standard output; without edges it is
    // not needed.
    constexpr std::int64_t fewest_rows_per_part = 12;
    if (num_rows < fewest_rows_per_part * options.num_parts || graph.num_entries() == 0)
        partition.owners = breadth_first_blocks(graph, options.num_parts);
    else
        partition.owners = call_metis(graph, options);
    balance_weights(partition, graph, options.balance());
    return partition;
}

}  // namespace meshard
