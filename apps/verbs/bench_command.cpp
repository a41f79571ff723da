// meshard bench step, model, scaling, operators, ghosts: times sharded runs and plain LibTorch side by side.
#include "apps/bench/ghost_benchmark.h"
#include "apps/bench/model_benchmark.h"
#include "apps/bench/operator_benchmark.h"
#include "apps/bench/scaling_benchmark.h"
#include "apps/console/json_report.h"
#include "apps/console/text_table.h"
#include "apps/devices/device_load.h"
#include "apps/devices/rank_device.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/rank_program.h"
#include "apps/program/verbs.h"
#include "apps/verbs/data_bench_command.h"
#include "partition/lists.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/core.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <sstream>

namespace meshard {
namespace {

struct BenchArguments {
    StepShape shape;
    std::string what = "step";
    std::string model = "transolver", arguments;
    std::vector<std::int64_t> grid;
    std::string memory = "stored", precision = "float32", device = "auto";
    bool inference_only = false, from_graph = false;
    std::int64_t num_rows = 1'000'000;
    int num_repeats = 0;
    std::vector<std::string> workloads = kScalingWorkloads;
    LocalRanks ranks;
    std::vector<BenchArguments> also;  // further runs of `model` in this process
    bool json = false;
};

const std::vector<std::string> kMemoryNames{"stored", "recomputed", "streamed", "auto"},
    kPrecisionNames{"float32", "tf32", "bfloat16", "float16"};

/// Returns `run` with the changes of a word of --also, e.g. `points=100000,precision=tf32`. @throws UsageError
BenchArguments changed(BenchArguments run, const std::string& word)
{
    std::istringstream parts(word);
    for (std::string part; std::getline(parts, part, ',');) {
        const auto equals = part.find('=');
        const auto name = part.substr(0, equals),
                   value = equals == std::string::npos ? std::string() : part.substr(equals + 1);
        std::map<std::string, std::int64_t*> numbers{{"points", &run.shape.num_points},
                                                     {"hidden", &run.shape.n_hidden},
                                                     {"layers", &run.shape.n_layers},
                                                     {"heads", &run.shape.n_head},
                                                     {"slices", &run.shape.slice_num}};
        if (const auto found = numbers.find(name); found != numbers.end()) {
            *found->second = static_cast<std::int64_t>(parse_numbers(value, "--also " + name, 1)[0]);
            if (*found->second < 1) throw UsageError("--also {}: expected a number of at least 1.", part);
        } else if (name == "memory" && contains(kMemoryNames, value)) {
            run.memory = value;
        } else if (name == "precision" && contains(kPrecisionNames, value)) {
            run.precision = value;
        } else if (name == "graph" && (value == "true" || value == "false")) {
            run.from_graph = value == "true";
        } else {
            throw UsageError("--also {}: expected NAME=VALUE of points, slices, hidden, layers or heads, "
                             "memory (stored, recomputed, streamed, "
                             "auto), precision (float32, tf32, bfloat16, float16) or graph (true, false), "
                             "e.g. points=100000,precision=tf32.",
                             part);
        }
    }
    return run;
}

std::vector<const BenchArguments*> all_runs(const BenchArguments& options)
{
    std::vector<const BenchArguments*> runs{&options};
    for (const auto& run : options.also) runs.push_back(&run);
    return runs;
}

bool parse(std::span<const std::string> arguments, BenchArguments& options)
{
    CLI::App app("step: times one training step of a Transolver (forward, backward, AdamW). On one rank: sharded "
                 "tensors against plain LibTorch.\n"
                 "On several: one cloud distributed over the ranks against a plain step with the same number of points "
                 "on every rank at once,\n"
                 "without communication (the machine's ceiling). The two alternate; medians are shown.\n"
                 "model: microseconds per point of a training step and of inference, and their memory, for one process "
                 "in one memory mode.\n"
                 "With --also further runs follow in the same process, and one that does not fit into a device ends "
                 "none of the others.\n"
                 "scaling: attention, a vision transformer and Transolvers over the ranks against that ceiling, and "
                 "the speed of the machine.\n"
                 "operators: single operators on small tensors, extra time of a call on a sharded tensor.\n"
                 "ghosts: bytes of neighbour searches among cut points, time of a ghost exchange, and how much of it "
                 "overlaps with message passing.\n"
                 "partition: methods of cutting meshes against METIS; see meshard bench partition --help.\n"
                 "data: how fast the cases of a training run come from the disk; see meshard bench data --help.",
                 "bench");
    add_shown(app, "WHAT", options.what, "WHAT",
              "what to time: step, model, scaling, operators or ghosts; or partition or data, which have other options")
        ->check(CLI::IsMember({"step", "model", "scaling", "operators", "ghosts"}));
    auto& shape = options.shape;
    add_count_option(app, "--points", shape.num_points, "points of the whole cloud; for ghosts 1000000 by default");
    add_count_option(app, "--hidden", shape.n_hidden, "channels of the model");
    add_count_option(app, "--layers", shape.n_layers, "blocks of the model");
    add_count_option(app, "--heads", shape.n_head, "attention heads of the model");
    add_count_option(app, "--slices", shape.slice_num, "slices of each head");
    add_count_option(app, "--rows", options.num_rows, "for ghosts: rows of 64 channels that each rank sends");
    add_shown(app, "--model", options.model, "NAME",
              "for model: a model by name, as in docs/models.md; --hidden to --slices are transolver's");
    add_named(app, "--arguments", options.arguments, "JSON",
              "for model: arguments of its constructor as JSON, over the defaults");
    add_named(app, "--grid", options.grid, "N,...",
              "for model, models of grids: cells along each direction; by default a cube of about --points cells")
        ->delimiter(',')
        ->check(CLI::PositiveNumber);
    add_shown(
        app, "--memory", options.memory, "MODE",
        "for model: memory mode, stored, recomputed, streamed, or auto: the first of them that fits into the device")
        ->check(CLI::IsMember(kMemoryNames));
    add_shown(app, "--device", options.device, "NAME", "for step and model: " + std::string(kDeviceMeaning));
    add_shown(app, "--precision", options.precision, "NAME",
              "for model: float32, tf32, bfloat16 or float16, as training.precision")
        ->check(CLI::IsMember(kPrecisionNames));
    std::vector<std::string> also;
    add_named(app, "--also", also, "NAME=VALUE,...",
              "for model: another run with these changes, e.g. "
              "points=100000,slices=512,memory=auto,precision=tf32; may be repeated")
        ->allow_extra_args(false);
    app.add_flag("--graph", options.from_graph,
                 "for model: the training step as one recorded launch, too; it takes its memory twice");
    app.add_flag("--inference", options.inference_only, "for model: no training step");
    add_named(app, "--workload", options.workloads, "NAME...",
              "for scaling: only these, transolver, attention, vit, unet (both on grids) or spectral (of FNO)")
        ->check(CLI::IsMember(kScalingWorkloads))
        ->default_str("all");
    add_named(app, "--repeats", options.num_repeats, "N", "pairs of runs that are timed")
        ->check(CLI::PositiveNumber)
        ->default_str("15, for scaling 5");
    add_rank_options(app, options.ranks, "start this many ranks on this machine");
    app.add_flag("--json", options.json,
                 "one JSON object on stdout instead of the report; with --also one on a line for each run");
    if (!parse_arguments(app, arguments)) return false;
    if (app.count("--workload") > 0 && options.what != "scaling")
        throw UsageError("--workload is for meshard bench scaling.");
    if (!also.empty() && options.what != "model") throw UsageError("--also is for meshard bench model.");
    if (options.what == "ghosts" && app.count("--points") == 0) shape.num_points = 1'000'000;
    if (options.what != "model" &&
        (app.count("--model") > 0 || app.count("--arguments") > 0 || app.count("--grid") > 0))
        throw UsageError("--model, --arguments and --grid are for meshard bench model.");
    const bool has_device = options.what == "step" || options.what == "model";
    if (!has_device && options.device == "auto") options.device = "cpu";
    if (!has_device && options.device != "cpu")
        throw UsageError("--device {}: {} is timed on CPUs. Leave it out.", options.device, options.what);
    if (options.num_repeats == 0) options.num_repeats = options.what == "scaling" ? 5 : 15;
    for (const auto& word : also) options.also.push_back(changed(options, word));
    for (const auto* run : all_runs(options)) {
        if (run->from_graph && (run->what != "model" || run->inference_only))
            throw UsageError("--graph is for training steps of meshard bench model.");
        if (run->shape.n_hidden % run->shape.n_head != 0) throw UsageError("--hidden must be a multiple of --heads.");
    }
    return true;
}

void report_step(const BenchArguments& arguments, const ScalingResult& step, int num_ranks)
{
    const auto& shape = arguments.shape;
    const auto num_threads = at::get_num_threads();
    const double rate = static_cast<double>(shape.num_points) / step.sharded_seconds;
    if (arguments.json) {
        print_json({{"points", shape.num_points},
                    {"ranks", num_ranks},
                    {"threads_per_rank", num_threads},
                    {"plain_seconds", step.ceiling_seconds},
                    {"sharded_seconds", step.sharded_seconds},
                    {"sharded_over_plain", 1 / step.efficiency},
                    {"points_per_second", rate},
                    {"messages_per_step", step.num_messages},
                    {"message_bytes_per_step", step.message_bytes}});
        return;
    }
    std::cout << fmt::format("Training step: {} points, {} layers, {} channels, {} heads, {} slices; {} rank(s) of {} "
                             "thread(s)\n"
                             "  {:26} {:g} s\n"
                             "  sharded                    {:g} s, {:g} points/s\n"
                             "  sharded / plain            {:g} (median of {} pairs)\n"
                             "  messages per step and rank {}, {} bytes\n",
                             shape.num_points, shape.n_layers, shape.n_hidden, shape.n_head, shape.slice_num, num_ranks,
                             num_threads, num_ranks == 1 ? "plain LibTorch" : "independent plain steps",
                             step.ceiling_seconds, step.sharded_seconds, rate, 1 / step.efficiency,
                             arguments.num_repeats, step.num_messages, step.message_bytes);
}

/// Makes a Transolver of the options' shape, or any model by name and arguments.
TimedModel model_to_time(const BenchArguments& arguments, c10::Device device)
{
    if (arguments.model == "transolver" && arguments.arguments.empty() && arguments.grid.empty())
        return timed_transolver(arguments.shape, device);
    auto constructor = nlohmann::json::object();
    if (!arguments.arguments.empty())
        constructor = nlohmann::json::parse(arguments.arguments, nullptr, /*allow_exceptions=*/false);
    if (!constructor.is_object())
        throw UsageError("--arguments '{}' is no JSON object, as '{{\"latent_channels\": 16}}'.", arguments.arguments);
    return timed_model(arguments.model, constructor, arguments.shape.num_points, arguments.grid, device);
}

/// Times one run. `memory` becomes the mode that fitted into the device; `name` and `num_points` become the model's.
ModelTimes time_run(const BenchArguments& arguments, std::string& memory, std::string& name, std::int64_t& num_points)
{
    const auto device = device_of_rank(arguments.device, {});
    const c10::DeviceGuard current(device);
    const auto modes = arguments.memory == "auto" ? std::vector<std::string>{"stored", "recomputed", "streamed"}
                                                  : std::vector<std::string>{arguments.memory};
    const auto run = [&] {
        const auto model = model_to_time(arguments, device);
        name = model.name;
        num_points = model.num_points;
        return time_model(model,
                          {.memory = memory_mode(memory),
                           .precision = precision_named(arguments.precision),
                           .inference_only = arguments.inference_only,
                           .from_graph = arguments.from_graph,
                           .num_repeats = arguments.num_repeats},
                          device);
    };
    const auto load = [&] {
        return DeviceLoad{.device = device,
                          .what = (arguments.inference_only ? "inference of " : "a training step of ") + name,
                          .num_points = std::max(num_points, arguments.shape.num_points),
                          .memory = memory,
                          .mode_option = "--memory ",
                          .modes = arguments.model == "transolver"
                                       ? std::vector<std::string>{"stored", "recomputed", "streamed"}
                                       : modes,
                          .fewer_points = "--points"};
    };
    for (std::size_t i = 0; i + 1 < modes.size(); ++i) {
        memory = modes[i];
        try {
            return run();
        } catch (const c10::OutOfMemoryError&) {  // the next mode takes less
        }
    }
    memory = modes.back();
    return within_memory(load, run);
}

/// A measured number, or null.
Json measured(double value)
{
    return value > 0 ? Json(value) : Json();
}

void report_model(const BenchArguments& arguments, bool is_alone)
{
    std::string memory = arguments.memory, name = arguments.model;
    std::int64_t num_points = 0;
    ModelTimes times;
    try {
        times = time_run(arguments, memory, name, num_points);
    } catch (const DeviceMemoryError& error) {
        if (is_alone) throw;
        const Json json{
            {"model", name},    {"points", arguments.shape.num_points}, {"slices", arguments.shape.slice_num},
            {"memory", memory}, {"precision", arguments.precision},     {"error", error.what()}};
        std::cout << (arguments.json ? json.dump() : error.what()) << std::endl;
        return;
    }
    const auto device = device_of_rank(arguments.device, {});
    const auto points = static_cast<double>(num_points);
    const auto microseconds = [&](double seconds) { return seconds / points * 1e6; };
    const auto bytes_a_point = static_cast<double>(times.peak_bytes - times.bytes_before) / points;
    const auto share =
        times.training_seconds > 0 ? times.training_gflop / times.training_seconds / times.sgemm_gflops : 0.0;
    if (arguments.json) {
        const Json json{{"model", name},
                        {"points", num_points},
                        {"slices", arguments.shape.slice_num},
                        {"device", c10::DeviceTypeName(device.type(), /*lower_case=*/true)},
                        {"memory", memory},
                        {"precision", arguments.precision},
                        {"threads", times.num_threads},
                        {"training_us_per_point", measured(microseconds(times.training_seconds))},
                        {"training_cpu_us_per_point", measured(microseconds(times.training_cpu_seconds))},
                        {"graph_us_per_point", measured(microseconds(times.graph_seconds))},
                        {"inference_us_per_point", microseconds(times.inference_seconds)},
                        {"inference_cpu_us_per_point", microseconds(times.inference_cpu_seconds)},
                        {"sgemm_gflops", times.sgemm_gflops},
                        {"share_of_sgemm", measured(share)},
                        {"bytes_per_point", bytes_a_point},
                        {"peak_bytes", times.peak_bytes},
                        {"output_error", times.output_error},
                        {"gradient_error", measured(times.gradient_error)}};
        std::cout << json.dump(is_alone ? 2 : -1) << std::endl;
        return;
    }
    auto text = fmt::format("{}, {} points, memory {}, {}, {} thread(s); sgemm {:.0f} GFLOP/s\n", name, num_points,
                            memory, arguments.precision, times.num_threads, times.sgemm_gflops);
    if (times.training_seconds > 0)
        text += fmt::format("  training step   {:.1f} us per point ({:.1f} of CPU){}\n",
                            microseconds(times.training_seconds), microseconds(times.training_cpu_seconds),
                            times.training_gflop > 0 ? fmt::format(", {:.0f} % of the sgemm rate", 100 * share) : "");
    if (times.graph_seconds > 0)
        text += fmt::format("  from a graph    {:.1f} us per point\n", microseconds(times.graph_seconds));
    text += fmt::format("  inference       {:.1f} us per point ({:.1f} of CPU)\n"
                        "  memory          {:.0f} bytes per point besides the inputs, peak {:.2f} GiB\n",
                        microseconds(times.inference_seconds), microseconds(times.inference_cpu_seconds), bytes_a_point,
                        static_cast<double>(times.peak_bytes) / (1 << 30));
    if (times.output_error > 0)
        text += fmt::format("  against float32 error {:.2f} % of the output, {:.2f} % of the gradients\n",
                            100 * times.output_error, 100 * times.gradient_error);
    std::cout << text;
}

void report_operators(const BenchArguments& arguments)
{
    const auto costs = time_operators(arguments.num_repeats);
    if (arguments.json) {
        auto json = Json::array();
        for (const auto& cost : costs) {
            json.push_back({{"operator", cost.name},
                            {"plain_ns", cost.plain_nanoseconds},
                            {"sharded_ns", cost.sharded_nanoseconds},
                            {"added_ns", cost.added_nanoseconds}});
        }
        print_json(json);
        return;
    }
    std::cout << fmt::format("Nanoseconds per call on small tensors (median of {} rounds)\n", arguments.num_repeats)
              << fmt::format("{:20}{:>10}{:>10}{:>10}\n", "operator", "plain", "sharded", "added");
    for (const auto& cost : costs)
        std::cout << fmt::format("{:20}{:10.0f}{:10.0f}{:10.0f}\n", cost.name, cost.plain_nanoseconds,
                                 cost.sharded_nanoseconds, cost.added_nanoseconds);
}

void report_scaling(const BenchArguments& arguments, const ScalingReport& report)
{
    const auto& machine = report.ceilings;
    if (arguments.json) {
        Json json{{"ranks", report.num_ranks},
                  {"threads_per_rank", report.threads_per_rank},
                  {"backend", report.backend},
                  {"sgemm_gflops", machine.sgemm_gflops},
                  {"copy_gigabytes_per_second", machine.copy_gigabytes},
                  {"message_microseconds", machine.message_microseconds},
                  {"all_reduce_gigabytes_per_second", machine.reduce_gigabytes}};
        for (const auto& result : report.results) {
            json["results"].push_back({{"workload", result.workload},
                                       {"kind", result.kind},
                                       {"ceiling_seconds", measured(result.ceiling_seconds)},
                                       {"sharded_seconds", measured(result.sharded_seconds)},
                                       {"efficiency", measured(result.efficiency)},
                                       {"messages", result.num_messages},
                                       {"bytes", result.message_bytes}});
        }
        print_json(json);
        return;
    }
    std::cout << fmt::format("{} rank(s) of {} thread(s), transport {}. Of each rank, all at once: sgemm {:.0f} "
                             "GFLOP/s, copy {:.1f} GB/s; all-reduce {:.1f} us, {:.2f} GB/s\n",
                             report.num_ranks, report.threads_per_rank, report.backend, machine.sgemm_gflops,
                             machine.copy_gigabytes, machine.message_microseconds, machine.reduce_gigabytes);
    TextTable table("llrrrrr");
    table.add_row({"workload", "scaling", "ceiling, s", "sharded, s", "ceiling / sharded", "messages", "bytes"});
    const auto text = [](double value) { return value > 0 ? fixed_text(value, 3) : "-"; };
    for (const auto& result : report.results) {
        table.add_row({result.workload, result.kind, text(result.ceiling_seconds), text(result.sharded_seconds),
                       text(result.efficiency), std::to_string(result.num_messages),
                       std::to_string(result.message_bytes)});
    }
    std::cout << table;
    if (std::ranges::any_of(report.results, [](const ScalingResult& result) { return result.sharded_seconds == 0; }))
        std::cout << "-: not measured, since ranks share cores.\n";
}

void report_ghosts(const BenchArguments& arguments, const GhostReport& report)
{
    const auto& overlap = report.overlap;
    if (arguments.json) {
        Json json{{"ranks", report.num_ranks},
                  {"threads_per_rank", report.threads_per_rank},
                  {"backend", report.backend},
                  {"points", report.num_points}};
        for (const auto& traffic : report.traffic) {
            json["searches"].push_back({{"method", traffic.method},
                                        {"within_reach", traffic.within_reach},
                                        {"ghosts", traffic.ghosts},
                                        {"ghosts_over_reach", traffic.ghosts_over_reach},
                                        {"search_bytes", traffic.search_bytes},
                                        {"ring_over_search", traffic.ring_over_search},
                                        {"repeated_bytes", traffic.repeated_bytes},
                                        {"feature_bytes", traffic.feature_bytes},
                                        {"gathered_rows", traffic.gathered_rows}});
        }
        for (const auto& exchange : report.exchanges) {
            json["exchanges"].push_back({{"rows", exchange.num_rows},
                                         {"stride", exchange.stride},
                                         {"channels", exchange.num_channels},
                                         {"bare_seconds", exchange.bare_seconds},
                                         {"exchange_seconds", exchange.exchange_seconds},
                                         {"exchange_over_bare", exchange.exchange_over_bare}});
        }
        json["overlap"] = {{"ghosts", overlap.num_ghosts},
                           {"edges", overlap.num_edges},
                           {"exchange_seconds", overlap.exchange_seconds},
                           {"step_seconds", overlap.step_seconds},
                           {"silent_seconds", overlap.silent_seconds},
                           {"visible_share", overlap.visible_share}};
        print_json(json);
        return;
    }
    std::cout << fmt::format("{} rank(s) of {} thread(s), transport {}. Radius search of {} points among themselves, "
                             "about 16 neighbours; what the rank with most receives:\n",
                             report.num_ranks, report.threads_per_rank, report.backend, report.num_points);
    TextTable table("lrrrrrrrr");
    table.add_row({"parts", "within reach", "ghosts", "worst ratio", "bytes", "ring / bytes", "again, bytes",
                   "features, bytes", "gathered rows"});
    for (const auto& traffic : report.traffic) {
        table.add_row({traffic.method, std::to_string(traffic.within_reach), std::to_string(traffic.ghosts),
                       fixed_text(traffic.ghosts_over_reach, 3), std::to_string(traffic.search_bytes),
                       fixed_text(traffic.ring_over_search, 1), std::to_string(traffic.repeated_bytes),
                       std::to_string(traffic.feature_bytes), std::to_string(traffic.gathered_rows)});
    }
    std::cout << table;
    for (const auto& exchange : report.exchanges)
        std::cout << fmt::format("Exchange of {} rows of {} channels, {}: {:.4f} s; bare send and receive {:.4f} s; "
                                 "ratio {:.3f}\n",
                                 exchange.num_rows, exchange.num_channels,
                                 exchange.stride == 1 ? "consecutive" : "every other row of a table",
                                 exchange.exchange_seconds, exchange.bare_seconds, exchange.exchange_over_bare);
    std::cout << fmt::format("Message passing, {} edges, {} ghosts: {:.4f} s; without messages {:.4f} s; exchange "
                             "alone {:.4f} s, of which {:.0f} % is not hidden by computation\n",
                             overlap.num_edges, overlap.num_ghosts, overlap.step_seconds, overlap.silent_seconds,
                             overlap.exchange_seconds, 100 * overlap.visible_share);
}

}  // namespace

int model_bench_command(std::span<const std::string> arguments)
{
    if (!arguments.empty() && arguments.front() == "data") return data_bench_command(arguments.subspan(1));
    BenchArguments options;
    if (!parse(arguments, options)) return exit_code::ok;
    cache_freed_memory();
    if (options.what == "model") {
        for (const auto* run : all_runs(options)) report_model(*run, options.also.empty());
        return exit_code::ok;
    }
    if (options.what == "operators") {
        report_operators(options);
        return exit_code::ok;
    }
    const auto body = [&](World& world) {
        const bool is_first = world.rank() == 0;
        if (options.what == "ghosts") {
            const auto found = measure_ghosts(options.shape.num_points, options.num_rows, options.num_repeats, world);
            if (is_first) report_ghosts(options, found);
        } else if (options.what == "scaling") {
            const auto found = measure_scaling(options.workloads, options.num_repeats, world);
            if (is_first) report_scaling(options, found);
        } else {
            const auto step = time_training_step(options.shape, "strong", options.num_repeats, world);
            if (is_first) report_step(options, step, world.size());
        }
        return exit_code::ok;
    };
    return run_on_ranks(options.ranks, "bench", arguments, [](int) {}, body, options.device);
}

}  // namespace meshard
