// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/scotch_partitioner.h"

#include "partition/cut/balance.h"
#include "partition/cut/weight_balance.h"
#include "partition/error.h"

// Declares FILE for scotch.h.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <scotch.h>
#include <type_traits>
#include <vector>

namespace meshard {

namespace {

static_assert(std::is_same_v<SCOTCH_Num, std::int64_t>, "written for Scotch with 64-bit indices");

void require_success(int status, const char* what)
{
    if (status != 0) throw Error("partition_with_scotch: Scotch failed to {}.", what);
}

std::vector<SCOTCH_Num> summed_weights(const Csr& graph, const BalanceTarget& balance)
{
    std::vector<SCOTCH_Num> weights;
    if (balance.row_weights.empty()) return weights;
    // Scaled to equal totals, weights of several kinds have equal influence on the sum.
    const auto num_weights = static_cast<std::size_t>(balance.num_weights);
    std::vector<double> totals(num_weights, 0);
    for (std::size_t at = 0; at < balance.row_weights.size(); ++at) totals[at % num_weights] += balance.row_weights[at];
    weights.resize(graph.num_rows());
    for (std::int64_t i = 0; i < graph.num_rows(); ++i) {
        double sum = 0;
        for (std::size_t w = 0; w < num_weights; ++w) {
            const auto weight = balance.row_weights[i * num_weights + w];
            sum += num_weights == 1 ? weight : totals[w] > 0 ? 1e9 * weight / totals[w] : 0;
        }
        weights[i] = std::max<SCOTCH_Num>(1, std::llround(sum));
    }
    return weights;
}

std::vector<SCOTCH_Num> integer_shares(const BalanceTarget& balance)
{
    const auto smallest = std::ranges::min(balance.capacities);
    std::vector<SCOTCH_Num> shares;
    for (const auto capacity : balance.capacities) shares.push_back(std::llround(1000 * capacity / smallest));
    return shares;
}

std::vector<std::int32_t> call_scotch(const Csr& graph, const ScotchOptions& options)
{
    std::vector<SCOTCH_Num> offsets(graph.offsets.begin(), graph.offsets.end());
    std::vector<SCOTCH_Num> neighbors(graph.indices.begin(), graph.indices.end());
    auto weights = summed_weights(graph, options.balance);
    std::vector<SCOTCH_Num> edge_weights(options.edge_weights.begin(), options.edge_weights.end());
    std::vector<SCOTCH_Num> owners(graph.num_rows(), 0);

    // Scotch's random numbers belong to the process: one caller at a time.
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    SCOTCH_Graph scotch_graph, bound_graph;
    SCOTCH_Context context;
    SCOTCH_Arch architecture;
    SCOTCH_Strat strategy;
    require_success(SCOTCH_graphInit(&scotch_graph), "begin a graph");
    require_success(SCOTCH_graphBuild(&scotch_graph, 0, graph.num_rows(), offsets.data(), nullptr,
                                      weights.empty() ? nullptr : weights.data(), nullptr, graph.num_entries(),
                                      neighbors.data(), edge_weights.empty() ? nullptr : edge_weights.data()),
                    "take the graph");
    SCOTCH_archInit(&architecture);
    if (options.balance.capacities.empty())
        require_success(SCOTCH_archCmplt(&architecture, options.num_parts), "take the number of parts");
    else
        require_success(SCOTCH_archCmpltw(&architecture, options.num_parts, integer_shares(options.balance).data()),
                        "take the capacities");
    SCOTCH_stratInit(&strategy);
    SCOTCH_stratGraphMapBuild(&strategy, SCOTCH_STRATDEFAULT, options.num_parts, options.balance.imbalance - 1);
    // One thread: with several the result depends on their timing.
    require_success(SCOTCH_contextInit(&context), "begin a context");
    require_success(SCOTCH_contextOptionSetNum(&context, SCOTCH_OPTIONNUMDETERMINISTIC, 1), "be deterministic");
    require_success(SCOTCH_contextThreadSpawn(&context, 1, nullptr), "run on one thread");
    require_success(SCOTCH_contextRandomClone(&context), "take random numbers of its own");
    SCOTCH_contextRandomSeed(&context, options.seed + 1);
    SCOTCH_contextRandomReset(&context);
    require_success(SCOTCH_graphInit(&bound_graph), "begin a graph");
    require_success(SCOTCH_contextBindGraph(&context, &scotch_graph, &bound_graph), "bind the graph");
    const int status = SCOTCH_graphMap(&bound_graph, &architecture, &strategy, owners.data());
    SCOTCH_graphExit(&bound_graph);
    SCOTCH_contextExit(&context);
    SCOTCH_stratExit(&strategy);
    SCOTCH_archExit(&architecture);
    SCOTCH_graphExit(&scotch_graph);
    require_success(status, "cut the graph");
    return {owners.begin(), owners.end()};
}

}  // namespace

bool has_scotch()
{
    return true;
}

Partition partition_with_scotch(const Csr& graph, const ScotchOptions& options)
{
    require_parts("partition_with_scotch", options.num_parts);
    graph.validate(graph.num_rows());
    const auto num_rows = graph.num_rows();
    largest_weights_allowed(num_rows, options.num_parts, options.balance);  // throws if the balance does not fit
    Partition partition{options.num_parts, std::vector<std::int32_t>(num_rows, 0)};
    if (options.num_parts == 1 || num_rows == 0) return partition;
    constexpr std::int64_t fewest_rows_per_part = 12;  // as for METIS
    if (num_rows < fewest_rows_per_part * options.num_parts || graph.num_entries() == 0)
        partition.owners = breadth_first_blocks(graph, options.num_parts);
    else
        partition.owners = call_scotch(graph, options);
    balance_weights(partition, graph, options.balance);
    return partition;
}

}  // namespace meshard
