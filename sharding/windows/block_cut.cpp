// SPDX-License-Identifier: Apache-2.0
#include "sharding/windows/block_cut.h"

#include "partition/cut/partitioner.h"
#include "partition/cut/refinement.h"
#include "partition/cut/row_clusters.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <algorithm>

namespace meshard {

namespace {

// Some rows of the graph of blocks, concatenated.
struct BlockRows {
    std::vector<std::int32_t> row_weights;  // for each block, the sum of its cells' weights
    std::vector<float> centers;             // for each block, the mean of its cells' centroids; may be empty
    std::vector<std::int32_t> degrees;      // number of neighbours of each block
    std::vector<std::int32_t> neighbors;
    std::vector<std::int32_t> edge_weights;
};

// A window and the blocks of its cells. `blocks[i]` is the block of cell i; the window's blocks begin with number
// `first`. `outside` are the blocks of the other rows of the graph. `weights` (cells, num_weights) and `centroids`
// (cells, 3) may be empty.
struct WindowOfBlocks {
    const WindowGraph& graph;
    std::span<const std::int32_t> blocks, outside;
    std::int64_t first, num_blocks;
    std::span<const std::int32_t> weights;
    std::int32_t num_weights;
    std::span<const float> centroids;
};

void add_rows(const WindowOfBlocks& window, BlockRows& rows)
{
    Partition cells_of_blocks{static_cast<std::int32_t>(window.num_blocks), {}};
    for (const auto block : window.blocks)
        cells_of_blocks.owners.push_back(static_cast<std::int32_t>(block - window.first));
    if (window.num_blocks == 0) return;
    const auto cells = rows_by_part(cells_of_blocks);
    const auto num_cells = window.graph.num_cells;
    std::vector<std::int32_t> found;
    for (std::int64_t block = 0; block < window.num_blocks; ++block) {
        found.clear();
        for (const auto cell : cells.row(block))
            for (const auto neighbor : window.graph.graph.row(cell)) {
                const auto other =
                    neighbor < num_cells ? window.blocks[neighbor] : window.outside[neighbor - num_cells];
                if (other != window.first + block) found.push_back(other);
            }
        std::ranges::sort(found);
        const auto degree_before = rows.neighbors.size();
        for (std::size_t i = 0, next = 0; i < found.size(); i = next) {
            while (next < found.size() && found[next] == found[i]) ++next;
            rows.neighbors.push_back(found[i]);
            rows.edge_weights.push_back(static_cast<std::int32_t>(next - i));
        }
        rows.degrees.push_back(static_cast<std::int32_t>(rows.neighbors.size() - degree_before));
        for (std::int32_t w = 0; w < window.num_weights; ++w) {
            std::int32_t sum = 0;
            for (const auto cell : cells.row(block))
                sum += window.weights.empty() ? 1 : window.weights[std::int64_t{cell} * window.num_weights + w];
            rows.row_weights.push_back(sum);
        }
        for (int d = 0; d < 3 && !window.centroids.empty(); ++d) {
            double sum = 0;
            for (const auto cell : cells.row(block)) sum += window.centroids[3 * std::int64_t{cell} + d];
            rows.centers.push_back(static_cast<float>(sum / static_cast<double>(cells.row(block).size())));
        }
    }
}

std::int64_t faces_cut(const Partition& partition, const PartitionProblem& problem)
{
    std::int64_t sum = 0;
    for (std::int64_t row = 0; row < problem.graph->num_rows(); ++row)
        for (auto at = problem.graph->offsets[row]; at < problem.graph->offsets[row + 1]; ++at)
            if (partition.owners[row] != partition.owners[problem.graph->indices[at]]) sum += problem.edge_weights[at];
    return sum / 2;
}

Partition cut_graph(PartitionProblem problem, const WindowCutOptions& options, std::vector<std::int32_t> start)
{
    if (!start.empty()) {
        Partition given{options.num_parts, std::move(start)};
        repair_partition(given, *problem.graph, problem.balance, options.contiguous);
        return given;
    }
    // The cut may use half of the allowed imbalance; refinement needs the other half.
    const auto imbalance = problem.balance.imbalance;
    problem.balance.imbalance = 1 + 0.5 * (imbalance - 1);
    CutOptions how{.method = options.method, .levels = options.levels, .contiguous = options.contiguous};
    if (options.method == "auto") how.method = "metis";
    auto best = cut_rows(problem, how);
    if (options.method == "auto") {
        how.method = "rcb";
        auto other = cut_rows(problem, how);
        const auto rank = [&](const CutResult& result) {
            return std::pair(result.in_pieces.size(), faces_cut(result.partition, problem));
        };
        if (rank(other) < rank(best)) best = std::move(other);
    }
    if (!best.in_pieces.empty()) {  // connected parts may need all of it
        problem.balance.imbalance = imbalance;
        repair_partition(best.partition, *problem.graph, problem.balance, true);
    }
    return std::move(best.partition);
}

// Keeps the edges between rows of one owner.
Csr edges_within_parts(const Csr& graph, std::span<const std::int32_t> owners)
{
    Csr within;
    within.offsets.reserve(graph.offsets.size());
    for (std::int64_t row = 0; row < graph.num_rows(); ++row) {
        for (const auto other : graph.row(row))
            if (owners[other] == owners[row]) within.indices.push_back(other);
        within.offsets.push_back(within.num_entries());
    }
    return within;
}

// The block of each of this rank's cells, and the first block of every window.
struct Blocks {
    std::vector<std::int32_t> of_rows;
    std::vector<std::int64_t> begins{0};
};

Blocks find_blocks(const CurveWindows& windows, RankMessages& messages, std::int64_t most_rows,
                   std::span<const std::int32_t> start)
{
    Blocks blocks;
    const auto begin = windows.positions().begin(messages.rank());
    blocks.of_rows.reserve(windows.ids().size());
    std::vector<std::int64_t> counts;
    for (auto window = windows.first_window(); window < windows.end_window(); ++window) {
        auto graph = windows.inner_graph(window);
        if (!start.empty())
            graph = edges_within_parts(graph, start.subspan(windows.begin(window) - begin, windows.size(window)));
        const auto clusters = cluster_rows(graph, static_cast<std::int32_t>(most_rows));
        append(blocks.of_rows, clusters.cluster_of);
        counts.push_back(clusters.num_clusters);
    }
    for (const auto count : gather_everywhere(messages, counts)) blocks.begins.push_back(blocks.begins.back() + count);
    for (auto window = windows.first_window(); window < windows.end_window(); ++window)
        for (auto& block : std::span(blocks.of_rows).subspan(windows.begin(window) - begin, windows.size(window)))
            block += static_cast<std::int32_t>(blocks.begins[window]);
    return blocks;
}

}  // namespace

std::vector<std::int32_t> cut_blocks(const CurveWindows& windows, RankMessages& messages,
                                     const WindowCutOptions& options, std::span<const std::int32_t> weights,
                                     std::int32_t num_weights, std::span<const std::int32_t> start)
{
    // Blocks of eight cells make METIS much cheaper than single cells and hardly change the cut; small parts need
    // smaller blocks. On average clusters are smaller than the limit.
    constexpr std::int64_t fewest_blocks_a_part = 200;
    const std::int64_t most_cells = options.thorough ? 2 : 8;
    const auto num_cells = windows.positions().begins.back();
    const auto largest =
        std::max(std::clamp(num_cells / (options.num_parts * fewest_blocks_a_part), std::int64_t{1}, most_cells),
                 (3 * num_cells / 2 + options.most_blocks - 1) / options.most_blocks);
    auto found = find_blocks(windows, messages, largest, start);
    auto& blocks = found.of_rows;
    const auto& begins = found.begins;
    if (options.given != nullptr && begins.back() > 2 * options.most_blocks)
        throw InvalidInput(
            "the given partition is too scattered to be improved in the memory allowed: its parts lie in "
            "{} clusters of cells, {} are possible. Allow more memory, or leave the partition as it is.",
            begins.back(), 2 * options.most_blocks);

    // Start owner of each of this rank's blocks.
    std::vector<std::int32_t> starts(start.empty() ? 0 : begins[windows.end_window()] - begins[windows.first_window()]);
    for (std::size_t i = 0; i < start.size(); ++i) starts[blocks[i] - begins[windows.first_window()]] = start[i];

    const bool needs_centroids =
        options.given == nullptr && (options.method == "auto" || partition_method(options.method).needs_centroids);
    BlockRows rows;
    for (std::int32_t round = 0; round < windows.num_rounds(); ++round) {
        const auto window = windows.window_in_round(messages.rank(), round);
        const auto graph = window >= 0 ? windows.graph(window) : WindowGraph{};
        const auto outside = fetch<std::int32_t>(messages, windows.positions(), blocks, graph.outside);
        if (window < 0) continue;
        const auto first = windows.begin(window) - windows.positions().begin(messages.rank());
        const auto centroids = needs_centroids ? windows.centroids<float>(window) : std::vector<float>{};
        const auto known =
            weights.empty() ? weights : weights.subspan(first * num_weights, windows.size(window) * num_weights);
        add_rows({graph, std::span(blocks).subspan(first, windows.size(window)), outside, begins[window],
                  begins[window + 1] - begins[window], known, num_weights, centroids},
                 rows);
    }
    Csr graph;
    const auto degrees = gather_on_first(messages, std::move(rows.degrees));
    const auto row_weights = gather_on_first(messages, std::move(rows.row_weights));
    const auto centers = gather_on_first(messages, std::move(rows.centers));
    graph.indices = gather_on_first(messages, std::move(rows.neighbors));
    const auto edge_weights = gather_on_first(messages, std::move(rows.edge_weights));
    starts = gather_on_first(messages, std::move(starts));
    std::vector<std::int32_t> owners_of_blocks;
    if (messages.rank() == 0) {
        for (const auto degree : degrees) graph.offsets.push_back(graph.offsets.back() + degree);
        owners_of_blocks = cut_graph({.graph = &graph,
                                      .centroids = centers,
                                      .num_parts = options.num_parts,
                                      .balance = {options.imbalance, num_weights, row_weights, options.capacities},
                                      .seed = options.seed,
                                      .edge_weights = edge_weights},
                                     options, std::move(starts))
                               .owners;
    }
    graph = {};
    std::vector<std::vector<std::int32_t>> to(messages.size());
    // First block of each rank.
    auto first_of_rank = gather_everywhere(messages, std::vector{begins[windows.first_window()]});
    first_of_rank.push_back(begins.back());
    for (int r = 0; r < messages.size() && messages.rank() == 0; ++r)
        to[r].assign(owners_of_blocks.begin() + first_of_rank[r], owners_of_blocks.begin() + first_of_rank[r + 1]);
    const auto mine = exchange(messages, std::move(to))[0];
    // From here on `blocks` holds owners.
    for (auto& block : blocks) block = mine[block - first_of_rank[messages.rank()]];
    return std::move(blocks);
}

}  // namespace meshard
