// SPDX-License-Identifier: Apache-2.0
// meshard bench: what sharding costs, measured against plain LibTorch in the same run.
#include <iomanip>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "apps/command_line.h"
#include "apps/operator_benchmark.h"
#include "apps/rank_program.h"
#include "apps/training_benchmark.h"
#include "apps/verbs.h"

namespace meshard {
namespace {

struct BenchArguments {
    StepShape shape;
    int num_repeats = 15;
    int num_ranks = 0;
    bool operators = false;
    bool json = false;
};

bool parse(std::span<const std::string> arguments, BenchArguments& options)
{
    CLI::App app("Times one training step of a Transolver (forward, backward, AdamW). On one rank: sharded tensors against plain LibTorch.\n"
                 "On several: one cloud spread over the ranks against the machine's own ceiling, which is an independent plain step of the\n"
                 "same share of the points on every rank at once. The two alternate; medians are shown.",
                 "bench");
    auto& shape = options.shape;
    app.add_option("--points", shape.num_points, "points of the whole cloud")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--hidden", shape.n_hidden, "channels")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--layers", shape.n_layers, "blocks")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--heads", shape.n_head, "attention heads")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--slices", shape.slice_num, "slices a head")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--repeats", options.num_repeats, "pairs of steps that are timed")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--nproc", options.num_ranks, "start this many ranks on this machine")->check(CLI::PositiveNumber)->type_name("N");
    app.add_flag("--operators", options.operators, "time single operators on small tensors instead: what a call costs more on a sharded tensor");
    app.add_flag("--json", options.json, "one JSON object on stdout");
    return parse_arguments(app, arguments);
}

void report(const BenchArguments& arguments, const StepTimes& times)
{
    const auto& shape = arguments.shape;
    const double rate = static_cast<double>(shape.num_points) / times.sharded_seconds;
    if (arguments.json) {
        const nlohmann::ordered_json json{{"points", shape.num_points},
                                          {"ranks", times.num_ranks},
                                          {"threads_per_rank", times.threads_per_rank},
                                          {"plain_seconds", times.plain_seconds},
                                          {"sharded_seconds", times.sharded_seconds},
                                          {"sharded_over_plain", times.sharded_over_plain},
                                          {"points_per_second", rate},
                                          {"messages_per_step", times.num_messages},
                                          {"message_bytes_per_step", times.message_bytes}};
        std::cout << json.dump(2) << '\n';
        return;
    }
    std::cout << "Training step: " << shape.num_points << " points, " << shape.n_layers << " layers, " << shape.n_hidden << " channels, "
              << shape.n_head << " heads, " << shape.slice_num << " slices; " << times.num_ranks << " rank(s) of " << times.threads_per_rank
              << " thread(s)\n"
              << (times.num_ranks == 1 ? "  plain LibTorch             " : "  independent plain steps    ") << times.plain_seconds << " s\n"
              << "  sharded                    " << times.sharded_seconds << " s, " << rate << " points/s\n"
              << "  sharded / plain            " << times.sharded_over_plain << " (median of " << arguments.num_repeats << " pairs)\n"
              << "  messages a step and rank   " << times.num_messages << ", " << times.message_bytes << " bytes\n";
}

void report_operators(const BenchArguments& arguments)
{
    const auto costs = time_operators(arguments.num_repeats);
    if (arguments.json) {
        auto json = nlohmann::ordered_json::array();
        for (const auto& cost : costs) {
            json.push_back({{"operator", cost.name}, {"plain_ns", cost.plain_nanoseconds}, {"sharded_ns", cost.sharded_nanoseconds}, {"added_ns", cost.added_nanoseconds}});
        }
        std::cout << json.dump(2) << '\n';
        return;
    }
    std::cout << "Nanoseconds a call on small tensors (median of " << arguments.num_repeats << " rounds)\n"
              << std::left << std::setw(20) << "operator" << std::right << std::setw(10) << "plain" << std::setw(10) << "sharded" << std::setw(10) << "added" << '\n';
    for (const auto& cost : costs) {
        std::cout << std::left << std::setw(20) << cost.name << std::right << std::fixed << std::setprecision(0) << std::setw(10) << cost.plain_nanoseconds
                  << std::setw(10) << cost.sharded_nanoseconds << std::setw(10) << cost.added_nanoseconds << '\n';
    }
}

}  // namespace

int bench_command(std::span<const std::string> arguments)
{
    BenchArguments options;
    if (!parse(arguments, options)) return exit_code::ok;
    if (options.shape.n_hidden % options.shape.n_head != 0) throw UsageError("--hidden must be a multiple of --heads.");
    keep_freed_memory();
    if (options.operators) {
        report_operators(options);
        return exit_code::ok;
    }
    return run_on_ranks(options.num_ranks, "bench", arguments, [](int) {}, [&](World& world) {
        const auto times = time_training_step(options.shape, options.num_repeats, world);
        if (world.rank() == 0) report(options, times);
        return exit_code::ok;
    });
}

}  // namespace meshard
