// SPDX-License-Identifier: Apache-2.0
// `meshard bench partition` compares methods of cutting meshes with METIS alone; the other benchmarks are in
// bench_command.cpp.
#include "apps/bench/benchmark_meshes.h"
#include "apps/console/json_report.h"
#include "apps/console/repeated_times.h"
#include "apps/console/text_table.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/sibling_program.h"
#include "apps/program/verbs.h"
#include "io/mesh_io.h"
#include "partition/cut/geometric_partitioner.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/cut/partitioner.h"
#include "partition/lists.h"
#include "partition/mesh/mesh_graph.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <map>

namespace meshard {

namespace {

struct BenchOptions {
    std::vector<std::string> meshes;
    std::string parts = "8,64";
    std::vector<std::string> methods{"metis"};
    std::int32_t num_seeds = 5;
    double imbalance = 1.03;
    bool quality = false;
    bool plain = false;
    bool contiguous = false;
    bool json = false;
};

// Results of one method, one value for each seed.
struct Measured {
    std::vector<double> cut, ghosts, seconds, imbalance, pieces;
};

Mesh mesh_of(const std::string& name)
{
    const auto colon = name.find(':');
    const auto kind = name.substr(0, colon);
    if (!contains(benchmark_mesh_kinds(), kind)) return read_mesh(name);
    double count = 1e6;
    if (colon != std::string::npos) count = parse_numbers(name.substr(colon + 1), "the number of cells", 1)[0];
    if (!(count >= 1 && count <= 1e8)) throw UsageError("'{}' asks for a mesh of 1 to 1e8 cells.", name);
    return benchmark_mesh(kind, static_cast<std::int64_t>(count));
}

void add(Measured& measured, const Partition& partition, const Csr& graph, double seconds)
{
    const auto quality = measure_quality(partition, graph);
    std::int64_t largest = 0, in_pieces = 0;
    for (const auto& part : quality.parts) {
        largest = std::max(largest, part.num_ghosts);
        in_pieces += part.num_components > 1;
    }
    measured.cut.push_back(static_cast<double>(quality.edge_cut));
    measured.ghosts.push_back(static_cast<double>(largest));
    measured.seconds.push_back(seconds);
    measured.imbalance.push_back(quality.imbalance);
    measured.pieces.push_back(static_cast<double>(in_pieces));
}

int compare(const BenchOptions& options)
{
    const auto part_counts = parse_numbers(options.parts, "-n");
    for (const auto parts : part_counts) {
        if (!(parts >= 1 && parts <= std::numeric_limits<std::int32_t>::max()) || parts != std::floor(parts))
            throw UsageError("-n names {:.12g} parts; expected whole numbers from 1.", parts);
    }
    TextTable table("lrlrrrrrrrr");
    table.add_row({"mesh", "parts", "method", "cut", "of METIS", "ghosts", "of METIS", "imbalance", "in pieces",
                   "CPU s", "of METIS"});
    auto results = Json::array();
    std::map<std::string, std::array<double, 4>> logs;  // sums of logarithms of cut, ghosts, seconds; and their number
    std::map<std::string, std::int64_t> num_worse;      // runs with more cut edges or ghosts than METIS alone
    for (const auto& name : options.meshes) {
        show_progress(name + " ...");
        const Mesh mesh = mesh_of(name);
        auto start = cpu_seconds();
        const Csr graph = mesh_graph(mesh);
        const auto graph_seconds = cpu_seconds() - start;
        for (const auto parts : part_counts) {
            const auto num_parts = static_cast<std::int32_t>(parts);
            std::vector<std::pair<std::string, Measured>> rows{{"METIS alone", {}}};
            for (const auto& method : options.methods) rows.emplace_back(method, Measured{});
            for (std::int32_t seed = 0; seed < options.num_seeds; ++seed) {
                show_progress(fmt::format("{} in {} parts, seed {}", name, num_parts, seed));
                start = cpu_seconds();
                const auto plain =
                    partition_with_metis(graph, {.num_parts = num_parts, .imbalance = options.imbalance, .seed = seed});
                add(rows[0].second, plain, graph, cpu_seconds() - start);
                for (std::size_t m = 0; m < options.methods.size(); ++m) {
                    CutOptions cut;
                    cut.method = options.methods[m];
                    cut.refine = !options.plain && (options.quality || partition_method(cut.method).refine);
                    cut.effort = options.quality ? RefinementEffort::Thorough : RefinementEffort::Fast;
                    cut.contiguous = options.contiguous;
                    start = cpu_seconds();
                    std::vector<float> centroids;
                    if (partition_method(cut.method).needs_centroids)
                        centroids = row_centroids(mesh, first_point(mesh));
                    const auto result = cut_rows({.graph = &graph,
                                                  .centroids = centroids,
                                                  .num_parts = num_parts,
                                                  .balance = {.imbalance = options.imbalance},
                                                  .seed = static_cast<std::uint64_t>(seed)},
                                                 cut);
                    add(rows[m + 1].second, result.partition, graph, cpu_seconds() - start);
                }
            }
            for (const auto& [method, measured] : rows) {
                const auto ratio = [&](auto member) {
                    return median(measured.*member) / median(rows[0].second.*member);
                };
                const auto cut = ratio(&Measured::cut), ghosts = ratio(&Measured::ghosts),
                           seconds = ratio(&Measured::seconds);
                auto& log = logs[method];
                if (cut > 0 && ghosts > 0 && std::isfinite(cut) && std::isfinite(ghosts)) {  // one part has no cut
                    log[0] += std::log(cut);
                    log[1] += std::log(ghosts);
                    log[2] += std::log(seconds);
                    log[3] += 1;
                }
                for (std::size_t run = 0; run < measured.cut.size(); ++run)
                    num_worse[method] += measured.cut[run] > rows[0].second.cut[run] ||
                                         measured.ghosts[run] > rows[0].second.ghosts[run];
                table.add_row({name, std::to_string(num_parts), method, fixed_text(median(measured.cut), 0),
                               fixed_text(cut, 3), fixed_text(median(measured.ghosts), 0), fixed_text(ghosts, 3),
                               fixed_text(std::ranges::max(measured.imbalance), 3),
                               fixed_text(std::ranges::max(measured.pieces), 0),
                               fixed_text(median(measured.seconds), 3), fixed_text(seconds, 2)});
                results.push_back({{"mesh", name},
                                   {"num_cells", mesh.num_cells()},
                                   {"graph_seconds", graph_seconds},
                                   {"num_parts", num_parts},
                                   {"method", method},
                                   {"cuts", measured.cut},
                                   {"largest_ghosts", measured.ghosts},
                                   {"imbalances", measured.imbalance},
                                   {"parts_in_pieces", measured.pieces},
                                   {"cpu_seconds", measured.seconds}});
            }
        }
    }
    show_progress("");
    Json means;
    std::string worse;
    for (const auto& [method, log] : logs) {
        if (method == "METIS alone") continue;
        const auto mean = [&](int i) { return std::exp(log[i] / log[3]); };
        table.add_row({"geometric mean", "", method, "", fixed_text(mean(0), 3), "", fixed_text(mean(1), 3), "", "", "",
                       fixed_text(mean(2), 2)});
        means[method] = {{"cut", mean(0)},
                         {"largest_ghosts", mean(1)},
                         {"cpu_seconds", mean(2)},
                         {"runs_worse_than_metis", num_worse[method]}};
        worse += fmt::format("\n{}: worse than METIS in cut or ghosts in {} of {} runs", method, num_worse[method],
                             static_cast<std::int64_t>(log[3]) * options.num_seeds);
    }
    if (options.json)
        print_json(
            {{"seeds", options.num_seeds}, {"results", std::move(results)}, {"geometric_means", std::move(means)}});
    else
        std::cout << "Medians over " << options.num_seeds
                  << " seeds, largest imbalance; ghosts: largest count of a part, one layer\n\n"
                  << table << worse << '\n';
    return exit_code::ok;
}

int partition_bench_command(std::span<const std::string> arguments)
{
    BenchOptions options;
    CLI::App app("Cuts meshes by the given methods and by METIS's k-way alone, with several seeds, and compares\n"
                 "cut, largest ghost count, imbalance and CPU seconds. A mesh is a file, or a kind with a number of "
                 "cells to make:\n"
                 "tets, hybrid, graded, surface, hexes; e.g. tets:1000000.",
                 "bench partition");
    add_named(app, "meshes", options.meshes, "MESH",
              "files, or kinds of meshes to make with their number of cells, e.g. tets:1000000")
        ->default_str("tets, hybrid, graded and surface of a million cells");
    add_shown(app, "-n,--num-parts", options.parts, "N,...", "numbers of parts");
    add_shown(app, "--method", options.methods, "NAME,...", "methods to compare with METIS alone, e.g. metis,rcb")
        ->delimiter(',');
    add_count_option(app, "--seeds", options.num_seeds, "runs of each method, each with another seed");
    add_shown(app, "--imbalance", options.imbalance, "RATIO",
              "largest allowed size of a part divided by its equal share");
    app.add_flag("--quality", options.quality, "search longer (four to five times) for fewer cut faces and ghosts");
    app.add_flag("--no-refine", options.plain, "do not refine the methods' results");
    app.add_flag("--contiguous", options.contiguous,
                 "make every part connected, where the mesh and the imbalance allow it");
    app.add_flag("--json", options.json,
                 "one JSON object on stdout instead of the report, with the values of every seed");
    if (!parse_arguments(app, arguments)) return exit_code::ok;
    if (options.meshes.empty())
        options.meshes = {"tets:1000000", "hybrid:1000000", "graded:1000000", "surface:1000000"};
    for (const auto& method : options.methods) partition_method(method);
    return compare(options);
}

}  // namespace

int bench_command(std::span<const std::string> arguments)
{
    if (!arguments.empty() && arguments.front() == "partition") return partition_bench_command(arguments.subspan(1));
    if (has_models_program()) run_in_sibling_program("bench", arguments);
    const bool wants_help = !arguments.empty() && (arguments.front() == "--help" || arguments.front() == "-h");
    if (wants_help) return partition_bench_command(arguments);
    throw UsageError("this build, without LibTorch, has only 'bench partition'.");
}

}  // namespace meshard
