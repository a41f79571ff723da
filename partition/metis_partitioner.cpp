// SPDX-License-Identifier: Apache-2.0
#include "partition/metis_partitioner.h"

#include "partition/balance.h"
#include "partition/error.h"

#include <metis.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

namespace meshard {

namespace {

static_assert(std::is_same_v<idx_t, std::int32_t>, "written for METIS built with 32-bit indices, as Debian's is");

void check_options(const Csr& graph, const MetisOptions& options)
{
    const auto where = std::string("partition_with_metis: ");
    if (options.num_parts < 1)
        throw InvalidInput(where + "num_parts is " + std::to_string(options.num_parts) + ", expected 1 or more.");
    if (!(options.imbalance >= 1.0))
        throw InvalidInput(where + "imbalance is " + std::to_string(options.imbalance) +
                           ", expected 1 or more (1.03 lets the largest part be 3 % above the mean).");
    constexpr std::int64_t most = std::numeric_limits<idx_t>::max();
    if (graph.num_rows() > most || graph.num_entries() > most)
        throw InvalidInput(where + "the graph has " + std::to_string(graph.num_rows()) + " rows and " +
                           std::to_string(graph.num_entries()) + " entries; this METIS counts in 32 bits (at most " +
                           std::to_string(most) + "). Cut the mesh into pieces first.");
}

// METIS follows every edge back and would run past its arrays if one were missing.
void check_symmetry(const Csr& graph)
{
    std::uint64_t balance = 0; // each edge adds its hash in one direction and takes it away in the other
    for (std::int64_t i = 0; i < graph.num_rows(); ++i)
        for (const auto j : graph.row(i)) {
            if (i == j)
                throw InvalidInput("partition_with_metis: row " + std::to_string(i) +
                                   " of the graph is its own neighbour.");
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
    idx_t num_weights = 1;
    idx_t num_parts = options.num_parts;
    idx_t edge_cut = 0;
    // METIS draws from the C library's random numbers and catches signals: one caller at a time.
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    const int status =
        METIS_PartGraphKway(&num_rows, &num_weights, offsets.data(), const_cast<idx_t*>(graph.indices.data()), nullptr,
                            nullptr, nullptr, &num_parts, nullptr, nullptr, metis_options, &edge_cut, owners.data());
    if (status == METIS_ERROR_MEMORY)
        throw Error("partition_with_metis: METIS ran out of memory on a graph of " + std::to_string(graph.num_rows()) +
                    " rows. Use a machine with more memory.");
    if (status != METIS_OK)
        throw Error("partition_with_metis: METIS refused the graph (its code is " + std::to_string(status) + ").");
    return owners;
}

} // namespace

Partition partition_with_metis(const Csr& graph, const MetisOptions& options)
{
    check_options(graph, options);
    graph.validate(graph.num_rows());
    check_symmetry(graph);
    const auto num_rows = graph.num_rows();
    Partition partition{options.num_parts, std::vector<std::int32_t>(num_rows, 0)};
    if (options.num_parts == 1 || num_rows == 0) return partition;
    // With few rows a part METIS leaves parts empty, and says so on standard output; without edges it has nothing to
    // do.
    constexpr std::int64_t fewest_rows_per_part = 12;
    if (num_rows < fewest_rows_per_part * options.num_parts || graph.num_entries() == 0)
        partition.owners = breadth_first_blocks(graph, options.num_parts);
    else
        partition.owners = call_metis(graph, options);
    balance_parts(partition, graph, options.imbalance);
    return partition;
}

} // namespace meshard
