// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/partitioner.h"

#include "partition/cut/cut_measures.h"
#include "partition/cut/geometric_partitioner.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/cut/row_clusters.h"
#include "partition/cut/scotch_partitioner.h"
#include "partition/cut/weight_balance.h"
#include "partition/error.h"
#include "partition/nearest_name.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace meshard {

namespace {

Partition by_metis(const PartitionProblem& problem, bool recursive)
{
    const auto& balance = problem.balance;
    return partition_with_metis(*problem.graph, {.num_parts = problem.num_parts,
                                                 .imbalance = balance.imbalance,
                                                 .seed = static_cast<std::int32_t>(problem.seed & 0x7fffffff),
                                                 .recursive = recursive,
                                                 .num_weights = balance.num_weights,
                                                 .row_weights = balance.row_weights,
                                                 .capacities = balance.capacities,
                                                 .edge_weights = problem.edge_weights});
}

// Returns whether METIS may start with rows merged in fours: its first rounds of merging take two thirds of its time.
// Only if refinement compensates the loss: parts are large, so that their shapes do not depend on single rows; there
// are enough of them that no single shape decides the cut; cells are simple (with polyhedra, and with hanging nodes,
// cuts become larger), and not triangles, for which METIS is fast.
bool may_join_before_metis(const PartitionProblem& problem)
{
    constexpr std::int32_t fewest_parts = 8;
    constexpr std::int64_t fewest_rows_per_part = 65536, most_neighbours = 6;
    const auto& graph = *problem.graph;
    if (problem.num_parts < fewest_parts || graph.num_rows() < fewest_rows_per_part * problem.num_parts) return false;
    const auto mean_neighbours = static_cast<double>(graph.num_entries()) / static_cast<double>(graph.num_rows());
    if (mean_neighbours < 3.5 || mean_neighbours > 5.2) return false;
    for (std::int64_t i = 0; i < graph.num_rows(); ++i)
        if (graph.offsets[i + 1] - graph.offsets[i] > most_neighbours) return false;
    return true;
}

// METIS's k-way on merged rows: a start for refinement, which then moves single rows.
Partition by_metis_on_joined_rows(const PartitionProblem& problem)
{
    const auto& balance = problem.balance;
    const auto joined = join_rows(*problem.graph, 2, problem.seed);
    auto weights = joined.sizes;
    if (!balance.row_weights.empty()) {
        const auto count = balance.num_weights;
        weights.assign(static_cast<std::size_t>(joined.clusters.num_clusters) * count, 0);
        for (std::size_t row = 0; row < joined.clusters.cluster_of.size(); ++row)
            for (std::int32_t w = 0; w < count; ++w) {
                auto& weight = weights[static_cast<std::size_t>(joined.clusters.cluster_of[row]) * count + w];
                weight = static_cast<std::int32_t>(
                    std::min<std::int64_t>(std::int64_t{weight} + balance.row_weights[row * count + w],
                                           std::numeric_limits<std::int32_t>::max()));
            }
    }
    const auto coarse = by_metis({.graph = &joined.graph,
                                  .num_parts = problem.num_parts,
                                  .balance = {balance.imbalance, balance.num_weights, weights, balance.capacities},
                                  .seed = problem.seed,
                                  .edge_weights = joined.edge_weights},
                                 false);
    Partition partition{problem.num_parts, joined.clusters.cluster_of};
    for (auto& owner : partition.owners) owner = coarse.owners[owner];
    return partition;
}

Partition by_scotch(const PartitionProblem& problem)
{
    return partition_with_scotch(*problem.graph, {.num_parts = problem.num_parts,
                                                  .seed = static_cast<std::int32_t>(problem.seed & 0x7fffffff),
                                                  .balance = problem.balance,
                                                  .edge_weights = problem.edge_weights});
}

Partition by_metis_or_scotch(const PartitionProblem& problem)
{
    return fits_metis(*problem.graph) || !has_scotch() ? by_metis(problem, false) : by_scotch(problem);
}

RefinementOptions refinement_options(const PartitionProblem& problem, const CutOptions& options)
{
    return {.balance = problem.balance,
            .effort = options.effort,
            .ghost_share = options.ghost_share,
            .contiguous = options.contiguous,
            .seed = problem.seed};
}

void require_problem(const PartitionProblem& problem, const PartitionMethod& method)
{
    if (problem.graph == nullptr) throw InvalidInput("cut_rows: the problem has no graph.");
    require_parts("cut_rows", problem.num_parts);
    if (method.needs_centroids && std::ssize(problem.centroids) != 3 * problem.graph->num_rows())
        throw InvalidInput("cut_rows: method '{}' needs the rows' centroids, {} times 3 numbers; there are {}.",
                           method.name, problem.graph->num_rows(), problem.centroids.size());
    if (!problem.edge_weights.empty() && std::ssize(problem.edge_weights) != problem.graph->num_entries())
        throw InvalidInput("cut_rows: the graph has {} entries; there are {} weights of edges.",
                           problem.graph->num_entries(), problem.edge_weights.size());
}

struct Start {
    std::string method;
    Partition partition;
};

// Starts that may be better than the method's own: bisection for `auto`, and for a thorough cut METIS with other seeds.
// Each costs METIS's time and a quick refinement, which takes longest and gains least if boundaries are long. If the
// user has chosen bisection or a curve, no other start is tried.
std::vector<Start> further_starts(const PartitionProblem& problem, const CutOptions& options, const CutMeasures& own)
{
    const bool is_auto = options.method == "auto";
    const bool is_thorough = options.effort == RefinementEffort::Thorough &&
                             (is_auto || options.method == "metis" || options.method == "recursive");
    std::vector<Start> starts;
    if (is_auto)
        starts.push_back({"rcb", partition_by_bisection(problem.centroids, problem.num_parts, problem.balance)});
    const auto boundary = 2 * static_cast<double>(own.cut) / static_cast<double>(problem.graph->num_entries());
    const int num_seeds = !is_thorough ? 1 : boundary < 0.02 ? 3 : boundary < 0.05 ? 2 : 1;
    for (int i = 1; i < num_seeds; ++i) {
        auto other = problem;
        other.seed = problem.seed + 1000003 * static_cast<std::uint64_t>(i);
        starts.push_back({is_auto ? "metis" : options.method, by_metis(other, options.method == "recursive")});
    }
    return starts;
}

// Refines each start a little and the most promising one further. In neither measure is the result worse than the
// method's own start.
CutResult improve_best(Partition start, const PartitionProblem& problem, const CutOptions& options)
{
    const auto& graph = *problem.graph;
    auto most = measure_cut(start, graph);
    const auto starts = further_starts(problem, options, most);
    auto thorough = refinement_options(problem, options);
    const auto own_method = options.method == "auto" ? "metis" : options.method;
    const auto refined = [&](Start from, const RefinementOptions& how) {
        CutResult result{std::move(from.partition), from.method, {}};
        result.in_pieces = refine_partition(result.partition, graph, how);
        return result;
    };
    if (starts.empty()) return refined({own_method, std::move(start)}, thorough);

    auto little = thorough;
    little.effort = RefinementEffort::Fast;
    const auto rank = [&](const CutResult& result) {
        return std::pair(result.in_pieces.size(), measure_cut(result.partition, graph).score());
    };
    const auto own = refined({own_method, std::move(start)}, little);
    if (options.contiguous) {  // connected parts have priority over the measures
        const auto found = measure_cut(own.partition, graph);
        most = {std::max(most.cut, found.cut), std::max(most.largest_ghosts, found.largest_ghosts)};
    }
    auto best = own;
    for (const auto& other : starts) {
        auto found = refined(other, little);
        if (rank(found) < rank(best)) best = std::move(found);
    }
    if (thorough.effort == RefinementEffort::Thorough) {
        thorough.most = most;
        best = refined({best.method, std::move(best.partition)}, thorough);
    }
    const bool keeps_promise =
        best.in_pieces.size() <= own.in_pieces.size() && measure_cut(best.partition, graph).is_no_worse_than(most);
    return keeps_promise ? best : own;
}

// The problem restricted to the rows of one part of the first level.
struct SubProblem {
    std::vector<std::int32_t> rows;
    Csr graph;
    std::vector<float> centroids;
    std::vector<std::int32_t> row_weights;
    std::vector<double> capacities;
    std::vector<std::int32_t> edge_weights;
};

SubProblem sub_problem(const PartitionProblem& problem, std::span<const std::int32_t> rows,
                       std::vector<std::int32_t>& local_row, std::int32_t first_part, std::int32_t num_parts)
{
    SubProblem sub;
    sub.rows.assign(rows.begin(), rows.end());
    for (std::size_t i = 0; i < rows.size(); ++i) local_row[rows[i]] = static_cast<std::int32_t>(i);
    for (const auto row : rows) {
        for (auto at = problem.graph->offsets[row]; at < problem.graph->offsets[row + 1]; ++at) {
            const auto j = problem.graph->indices[at];
            if (local_row[j] < 0) continue;
            sub.graph.indices.push_back(local_row[j]);
            if (!problem.edge_weights.empty()) sub.edge_weights.push_back(problem.edge_weights[at]);
        }
        sub.graph.offsets.push_back(sub.graph.num_entries());
        if (!problem.centroids.empty())
            sub.centroids.insert(sub.centroids.end(), &problem.centroids[3 * std::int64_t{row}],
                                 &problem.centroids[3 * std::int64_t{row}] + 3);
        for (std::int32_t w = 0; w < problem.balance.num_weights && !problem.balance.row_weights.empty(); ++w)
            sub.row_weights.push_back(problem.balance.row_weights[std::int64_t{row} * problem.balance.num_weights + w]);
    }
    for (const auto row : rows) local_row[row] = -1;
    if (!problem.balance.capacities.empty())
        sub.capacities.assign(problem.balance.capacities.begin() + first_part,
                              problem.balance.capacities.begin() + first_part + num_parts);
    return sub;
}

CutResult cut_in_levels(const PartitionProblem& problem, CutOptions options)
{
    const auto levels = std::move(options.levels);
    options.levels.clear();
    if (levels.size() == 1) return cut_rows(problem, options);
    const auto num_nodes = levels.front();
    const auto parts_per_node = problem.num_parts / num_nodes;

    // Imbalances of the levels multiply.
    const auto imbalance_here = std::pow(problem.balance.imbalance, 1.0 / static_cast<double>(levels.size()));
    auto nodes_problem = problem;
    nodes_problem.num_parts = num_nodes;
    nodes_problem.balance.imbalance = imbalance_here;
    std::vector<double> node_capacities;
    if (!problem.balance.capacities.empty())
        for (std::int32_t node = 0; node < num_nodes; ++node)
            node_capacities.push_back(std::accumulate(problem.balance.capacities.begin() + node * parts_per_node,
                                                      problem.balance.capacities.begin() + (node + 1) * parts_per_node,
                                                      0.0));
    nodes_problem.balance.capacities = node_capacities;
    auto nodes = cut_rows(nodes_problem, options);

    CutResult result{{problem.num_parts, std::vector<std::int32_t>(problem.graph->num_rows())}, nodes.method, {}};
    const auto rows_of_node = rows_by_part(nodes.partition);
    std::vector<std::int32_t> local_row(problem.graph->num_rows(), -1);
    for (std::int32_t node = 0; node < num_nodes; ++node) {
        const auto first_part = node * parts_per_node;
        const auto sub = sub_problem(problem, rows_of_node.row(node), local_row, first_part, parts_per_node);
        PartitionProblem node_problem{
            &sub.graph,
            sub.centroids,
            parts_per_node,
            {problem.balance.imbalance / imbalance_here, problem.balance.num_weights, sub.row_weights, sub.capacities},
            problem.seed,
            sub.edge_weights};
        options.levels.assign(levels.begin() + 1, levels.end());
        const auto parts = cut_rows(node_problem, options);
        for (std::size_t i = 0; i < sub.rows.size(); ++i)
            result.partition.owners[sub.rows[i]] = first_part + parts.partition.owners[i];
    }
    // Rounding may leave a row too many in a part.
    if (options.contiguous) balance_weights_of_whole_parts(result.partition, *problem.graph, problem.balance);
    balance_weights(result.partition, *problem.graph, problem.balance);
    if (options.contiguous) result.in_pieces = parts_in_pieces(result.partition, *problem.graph);
    return result;
}

}  // namespace

std::span<const PartitionMethod> partition_methods()
{
    static const std::vector<PartitionMethod> methods{
        {"metis", "k-way, few faces between parts", false, true,
         [](const PartitionProblem& problem) { return by_metis(problem, false); }},
        {"recursive", "METIS's recursive bisection", false, true,
         [](const PartitionProblem& problem) { return by_metis(problem, true); }},
        {"scotch", "Scotch with 64-bit indices, for graphs beyond METIS", false, true, by_scotch},
        {"rcb", "recursive coordinate bisection", true, true,
         [](const PartitionProblem& problem) {
             return partition_by_bisection(problem.centroids, problem.num_parts, problem.balance);
         }},
        {"hilbert", "runs along the Hilbert curve, the fastest", true, false,
         [](const PartitionProblem& problem) {
             return partition_by_curve(problem.centroids, problem.num_parts, problem.balance);
         }},
        {"auto", "metis and rcb, the better of the two", true, true, by_metis_or_scotch},
    };
    return methods;
}

const PartitionMethod& partition_method(std::string_view name)
{
    const auto methods = partition_methods();
    const auto found = std::ranges::find(methods, name, &PartitionMethod::name);
    if (found != methods.end()) return *found;
    std::vector<std::string> names;
    for (const auto& method : methods) names.push_back(method.name);
    throw InvalidInput("unknown method '{}'; known are {}.{}", name, fmt::join(names, ", "), suggestion(name, names));
}

CutResult improve_cut(Partition start, const PartitionProblem& problem, const CutOptions& options)
{
    CutResult result{std::move(start), options.method, {}};
    if (!problem.edge_weights.empty() || (options.contiguous && !options.refine))
        result.in_pieces = repair_partition(result.partition, *problem.graph, problem.balance, options.contiguous);
    else if (options.refine)
        result.in_pieces = refine_partition(result.partition, *problem.graph, refinement_options(problem, options));
    else
        balance_weights(result.partition, *problem.graph, problem.balance);
    return result;
}

CutResult cut_rows(const PartitionProblem& problem, const CutOptions& options)
{
    const auto& method = partition_method(options.method);
    require_problem(problem, method);
    if (!options.levels.empty()) {
        std::int64_t product = 1;
        for (const auto count : options.levels) product *= std::max(count, 0);
        if (product != problem.num_parts)
            throw InvalidInput("cut_rows: the levels multiply to {}, the parts are {}.", product, problem.num_parts);
        return cut_in_levels(problem, options);
    }
    // A graph that is too large for METIS's 32-bit indices is cut by Scotch.
    const bool is_large = !fits_metis(*problem.graph);
    const bool goes_to_scotch = is_large && has_scotch() && (method.name == "metis" || method.name == "auto");
    const bool searches = options.refine && !is_large && problem.edge_weights.empty();
    const bool joins = searches && method.name == "metis" && options.effort == RefinementEffort::Fast &&
                       may_join_before_metis(problem);
    auto start = goes_to_scotch ? by_scotch(problem)
                 : joins        ? by_metis_on_joined_rows(problem)
                                : method.partition(problem);
    auto result =
        searches ? improve_best(std::move(start), problem, options) : improve_cut(std::move(start), problem, options);
    if (goes_to_scotch) result.method = "scotch";
    return result;
}

}  // namespace meshard
