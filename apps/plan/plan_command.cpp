// SPDX-License-Identifier: Apache-2.0
// meshard bench plan: what a training step would take on GPUs that are not here, from counted work and published rates.
#include "apps/plan/plan_command.h"

#include "apps/console/json_report.h"
#include "apps/console/text_table.h"
#include "apps/plan/gpu_rates.h"
#include "apps/plan/machine_rates.h"
#include "apps/plan/plan_check.h"
#include "apps/plan/step_plan.h"
#include "apps/program/command_line.h"
#include "apps/program/rank_program.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iostream>
#include <memory>

namespace meshard {
namespace {

struct PlanArguments {
    std::string points, model = "transolver", gpus = "auto", device = "h200", memory = "auto", precision = "bfloat16";
    std::string links = "nvlink,ib";
    std::vector<std::string> model_arguments;
    std::int64_t gpus_per_host = 8;
    PlannedWidths widths;
    double imbalance = 1.03, tolerance = 0.2;
    bool on_surface = false, check = false, json = false;
    LocalRanks ranks;
    int num_repeats = 5;
    std::string output_precision() const { return device == "here" ? "float32" : precision; }
};

constexpr std::int64_t kMostGpus = 1 << 16;
constexpr const char* kDisclaimer = "A model, not a measurement: counted work over published rates, which docs/benchmarks.md lists.";
constexpr const char* kAssumed =
    "Assumed: blocks are fused in this precision, kernels of slices are as fast as products. Without these a step takes several times as long.";
constexpr const char* kHereDisclaimer = "A model, not a measurement of the step: counted work over rates that were measured on this machine just now.";

/// A number with k, M or G behind it, or none of them.
double points_of(const std::string& text)
{
    std::size_t end = 0;
    double value = 0;
    try {
        value = std::stod(text, &end);
    } catch (const std::exception&) {
        end = 0;
    }
    const auto unit = text.substr(end);
    const double factor = unit.empty() ? 1 : unit == "k" ? 1e3 : unit == "M" ? 1e6 : unit == "G" ? 1e9 : 0;
    const auto points = value * factor;
    if (end == 0 || !(points >= 1) || points > 1e15 || points != std::floor(points))
        throw UsageError("--points " + text + ": expected a whole number of points from 1 on, e.g. 8800000, 8.8M or 140M.");
    return points;
}

nlohmann::json model_arguments_of(const std::vector<std::string>& words)
{
    nlohmann::json arguments = nlohmann::json::object();
    for (const auto& word : words) {
        const auto equals = word.find('=');
        if (equals == std::string::npos || equals == 0)
            throw UsageError("'" + word + "' is no argument of a model. Write KEY=VALUE, e.g. n_hidden=256; train --list-keys lists the keys.");
        auto key = word.substr(0, equals);
        if (key.starts_with("model.")) key.erase(0, 6);
        const auto text = word.substr(equals + 1);
        const auto value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
        arguments[key] = value.is_discarded() ? nlohmann::json(text) : value;
    }
    return arguments;
}

/// What was asked for, with names resolved.
class Planner {
public:
    Planner(const PlanArguments& options, const PlannedModel& model, const StepRates& rates) : options_(options), model_(model), rates_(rates)
    {
        request_.points = points_of(options.points);
        request_.imbalance = options.imbalance;
        request_.on_surface = options.on_surface;
        request_.bytes_per_number = options.output_precision() == "bfloat16" ? 2 : 4;
        const auto known = memory_modes(model);
        if (options.memory == "auto") {
            modes_ = known;
        } else {
            modes_ = {memory_mode(options.memory)};
            if (std::find(known.begin(), known.end(), modes_.front()) == known.end())
                throw UsageError("--memory " + options.memory + ": " + model.name + " cannot train in it. It can in " + names_of(known) + ".");
        }
    }

    /// In the fastest mode that fits; in the one that takes least if none does.
    StepPlan on(std::int64_t num_ranks) const
    {
        StepPlan plan;
        for (const auto mode : modes_) {
            plan = on(num_ranks, mode);
            if (plan.fits) break;
        }
        return plan;
    }

    StepPlan on(std::int64_t num_ranks, MemoryMode mode) const
    {
        auto request = request_;
        request.num_ranks = num_ranks;
        request.memory = mode;
        return step_plan(model_, request, rates_);
    }

    std::optional<std::int64_t> fewest(MemoryMode mode) const
    {
        auto request = request_;
        request.memory = mode;
        return fewest_ranks(model_, request, rates_, most_ranks());
    }

    std::int64_t most_ranks() const { return std::min<std::int64_t>(kMostGpus, static_cast<std::int64_t>(request_.points)); }
    const std::vector<MemoryMode>& modes() const { return modes_; }
    double points() const { return request_.points; }
    double efficiency_of(const StepPlan& plan) const { return efficiency(model_, plan, rates_); }

private:
    static std::string names_of(const std::vector<MemoryMode>& modes)
    {
        std::string text;
        for (const auto mode : modes) text += (text.empty() ? "" : ", ") + std::string(name_of(mode));
        return text;
    }

    const PlanArguments& options_;
    const PlannedModel& model_;
    const StepRates& rates_;
    PlanRequest request_;
    std::vector<MemoryMode> modes_;
};

std::string seconds_text(double seconds)
{
    return seconds < 1e-3 ? fixed_text(1e6 * seconds, 0) + " us" : seconds < 1 ? fixed_text(1e3 * seconds, 1) + " ms" : fixed_text(seconds, 2) + " s";
}

std::string rate_text(double per_second)
{
    return per_second < 1e6 ? fixed_text(per_second / 1e3, 1) + " k" : fixed_text(per_second / 1e6, 2) + " M";
}

std::string bytes_text_of(double bytes)
{
    return bytes_text(static_cast<std::uint64_t>(bytes));
}

Json json_of(const StepPlan& plan, double efficiency)
{
    const auto& memory = plan.work.memory;
    Json json{{"ranks", plan.request.num_ranks},
              {"points_of_largest_shard", plan.points},
              {"memory_mode", std::string(name_of(plan.request.memory))},
              {"fits", plan.fits},
              {"step_seconds", plan.seconds},
              {"points_per_second", plan.request.points / plan.seconds},
              {"efficiency", efficiency},
              {"message_seconds", plan.message_seconds},
              {"flop", plan.work.flop()},
              {"useful_flop", plan.work.useful_flop},
              {"memory_bytes", plan.memory_bytes},
              {"memory",
               {{"parameters", memory.parameters},
                {"workspace", memory.workspace},
                {"inputs_per_point", memory.inputs_per_point},
                {"kept_per_point", memory.kept_per_point},
                {"passing_per_point", memory.passing_per_point}}},
              {"messages", plan.work.num_messages()},
              {"message_bytes", plan.work.message_bytes()}};
    for (const auto& [part, seconds] : plan.seconds_of_parts) json["seconds"][part] = seconds;
    json["calls"] = Json::array();
    for (const auto& message : plan.work.messages)
        json["calls"].push_back({{"operation", message.operation}, {"what", message.what}, {"times", message.times}, {"bytes", message.bytes}});
    return json;
}

std::string title_of(const PlanArguments& options, const PlannedModel& model, double points)
{
    return model.name + ", " + std::to_string(model.num_parameters()) + " parameters, " + fixed_text(points, 0) + " points, " + options.output_precision();
}

void print_plan(const Planner& planner, const StepPlan& plan, const StepRates& rates, const char* of_rank)
{
    const auto& memory = plan.work.memory;
    std::cout << "Step              " << seconds_text(plan.seconds) << ", " << rate_text(planner.points() / plan.seconds) << " points/s, efficiency "
              << fixed_text(planner.efficiency_of(plan), 3) << ", memory mode " << name_of(plan.request.memory) << '\n';
    std::vector<std::pair<std::string, double>> parts(plan.seconds_of_parts.begin(), plan.seconds_of_parts.end());
    if (plan.request.num_ranks > 1) parts.emplace_back("messages", plan.message_seconds);
    std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    TextTable table("lrr");
    for (const auto& [part, seconds] : parts) table.add_row({"  " + part, seconds_text(seconds), fixed_text(100 * seconds / plan.seconds, 1) + " %"});
    std::cout << table << "Memory " << of_rank << "    " << bytes_text_of(plan.memory_bytes) << " of " << bytes_text_of(rates.memory_bytes())
              << (plan.fits ? "" : ": does not fit") << "; per point " << fixed_text(memory.inputs_per_point, 0) << " bytes of inputs, "
              << fixed_text(memory.kept_per_point, 0) << " kept for backward, " << fixed_text(memory.passing_per_point, 0) << " temporary; parameters "
              << bytes_text_of(memory.parameters) << ", workspace " << bytes_text_of(memory.workspace) << '\n'
              << "Work " << of_rank << "      " << number_text(plan.work.flop() * 1e-12) << " TFLOP in products, of which useful "
              << number_text(plan.work.useful_flop * 1e-12) << "; " << fixed_text(plan.points, 0) << " points\n"
              << "Messages per step " << plan.work.num_messages() << " of " << plan.work.message_bytes() << " bytes in all\n";
    TextTable messages("rlrl");
    for (const auto& message : plan.work.messages)
        messages.add_row({std::to_string(message.times), message.operation, std::to_string(message.bytes) + " bytes", message.what});
    std::cout << messages;
}

/// Powers of two, up to where the fastest mode fits, and to two hosts at least.
std::vector<std::int64_t> numbers_of_gpus(const Planner& planner, std::int64_t gpus_per_host)
{
    const auto enough = planner.fewest(planner.modes().front()).value_or(planner.most_ranks());
    const auto most =
        std::min<std::int64_t>(planner.most_ranks(), std::max<std::int64_t>(2 * gpus_per_host, std::bit_ceil(static_cast<std::uint64_t>(enough))));
    std::vector<std::int64_t> numbers;
    for (std::int64_t number = 1; number <= most; number *= 2) numbers.push_back(number);
    return numbers;
}

void plan_numbers(const PlanArguments& options, const PlannedModel& model, const Planner& planner, Json& json)
{
    const auto numbers = numbers_of_gpus(planner, options.gpus_per_host);
    TextTable fewest("lrrrr"), table("rrrlrrrrr");
    fewest.add_row({"memory mode", "bytes per point", "fewest GPUs", "step", "points/s"});
    for (const auto mode : options.memory == "auto" ? memory_modes(model) : planner.modes()) {
        const auto number = planner.fewest(mode);
        Json entry{{"memory_mode", std::string(name_of(mode))}, {"ranks", number ? Json(*number) : Json()}};
        std::vector<std::string> row{std::string(name_of(mode)), "", number ? std::to_string(*number) : "more than " + std::to_string(planner.most_ranks())};
        if (number) {
            const auto plan = planner.on(*number, mode);
            row[1] = fixed_text(plan.work.memory.bytes_per_point(), 0);
            row.push_back(seconds_text(plan.seconds));
            row.push_back(rate_text(planner.points() / plan.seconds));
            entry["step_seconds"] = plan.seconds;
        }
        fewest.add_row(row);
        json["fewest"].push_back(entry);
    }
    table.add_row({"GPUs", "hosts", "points per GPU", "memory mode", "memory per GPU", "step", "points/s", "efficiency", "messages, bytes"});
    for (const auto number : numbers) {
        const auto plan = planner.on(number);
        const auto efficiency = planner.efficiency_of(plan);
        json["plans"].push_back(json_of(plan, efficiency));
        const auto if_it_fits = [&](const std::string& text) { return plan.fits ? text : "-"; };
        table.add_row({std::to_string(number), std::to_string(num_hosts(number, options.gpus_per_host)), fixed_text(plan.points, 0),
                       plan.fits ? std::string(name_of(plan.request.memory)) : "none fits", bytes_text_of(plan.memory_bytes),
                       if_it_fits(seconds_text(plan.seconds)), if_it_fits(rate_text(planner.points() / plan.seconds)), if_it_fits(fixed_text(efficiency, 3)),
                       std::to_string(plan.work.num_messages()) + ", " + std::to_string(plan.work.message_bytes())});
    }
    if (!options.json) std::cout << "\nThe fewest GPUs that hold the mesh:\n" << fewest << "\nIn the fastest memory mode that fits:\n" << table;
}

/// Nothing for `auto`.
std::optional<std::int64_t> gpus_asked_for(const PlanArguments& options, double points)
{
    if (options.gpus == "auto") return std::nullopt;
    const auto number = nlohmann::json::parse(options.gpus, nullptr, /*allow_exceptions=*/false);
    if (!number.is_number_integer() || number < 1 || number > kMostGpus)
        throw UsageError("--gpus " + options.gpus + ": expected a number from 1 to " + std::to_string(kMostGpus) + ", or auto.");
    if (number.get<double>() > points)
        throw UsageError("--gpus " + options.gpus + " for " + fixed_text(points, 0) + " points: every GPU needs a point at least.");
    return number.get<std::int64_t>();
}

int plan_for_gpus(const PlanArguments& options, const PlannedModel& model)
{
    const auto& gpu = find_gpu(options.device);
    const auto comma = options.links.find(',');
    const auto &inside = find_link(options.links.substr(0, comma)), &beyond = find_link(options.links.substr(comma == std::string::npos ? 0 : comma + 1));
    const auto precision = options.precision == "float32" ? GpuPrecision::Float32 : options.precision == "tf32" ? GpuPrecision::Tf32 : GpuPrecision::BFloat16;
    const GpuRates rates(gpu, precision, inside, beyond, options.gpus_per_host);
    const Planner planner(options, model, rates);
    const auto gpus = gpus_asked_for(options, planner.points());
    Json json{{"is", "a model, not a measurement"},
              {"assumed", kAssumed},
              {"model", model.name},
              {"arguments", model.arguments},
              {"parameters", model.num_parameters()},
              {"points", planner.points()},
              {"device", options.device},
              {"precision", options.output_precision()},
              {"links", options.links}};
    if (!options.json) {
        std::cout << kDisclaimer << '\n'
                  << title_of(options, model, planner.points()) << "; " << gpu.title << ", " << inside.title << " within " << options.gpus_per_host
                  << " GPUs of a host, " << beyond.title << " beyond\n"
                  << kAssumed << '\n';
    }
    if (!gpus) {
        plan_numbers(options, model, planner, json);
    } else {
        const auto number = *gpus;
        const auto plan = planner.on(number);
        json["plans"].push_back(json_of(plan, planner.efficiency_of(plan)));
        if (!options.json) {
            std::cout << "GPUs              " << number << " in " << num_hosts(number, options.gpus_per_host) << " host(s)\n";
            print_plan(planner, plan, rates, "per GPU");
        }
    }
    if (options.json) print_json(json);
    return exit_code::ok;
}

int plan_for_this_machine(const PlanArguments& options, const PlannedModel& model, World& world)
{
    const auto mesh = DeviceMesh::create(world, {world.size()}, {"domain"});
    const MachineRates rates(*mesh);
    const Planner planner(options, model, rates);
    const auto plan = planner.on(world.size());
    const auto efficiency = planner.efficiency_of(plan);
    if (world.rank() != 0) return exit_code::ok;
    if (options.json) {
        print_json({{"is", "a model, not a measurement"},
                    {"model", model.name},
                    {"arguments", model.arguments},
                    {"points", planner.points()},
                    {"device", "here"},
                    {"rates",
                     {{"product_flops", rates.product_rate()},
                      {"copy_bytes_per_second", rates.copy_rate()},
                      {"exponentials_per_second", rates.exponential_rate()},
                      {"message_seconds", rates.message_latency()},
                      {"message_bytes_per_second", rates.message_rate()}}},
                    {"plans", Json::array({json_of(plan, efficiency)})}});
        return exit_code::ok;
    }
    std::cout << kHereDisclaimer << '\n'
              << title_of(options, model, planner.points()) << "; " << world.size() << " rank(s) of this machine: products "
              << fixed_text(rates.product_rate() * 1e-9, 0) << " GFLOP/s, memory " << fixed_text(rates.copy_rate() * 1e-9, 1) << " GB/s, "
              << fixed_text(rates.exponential_rate() * 1e-9, 2) << " G exponentials/s";
    if (world.size() > 1)
        std::cout << ", message " << fixed_text(1e6 * rates.message_latency(), 1) << " us and " << fixed_text(1e-9 * rates.message_rate(), 2) << " GB/s";
    std::cout << '\n';
    print_plan(planner, plan, rates, "per rank");
    return exit_code::ok;
}

/// Configurations of one rank on the first rank alone while the others wait.
int check_plans(const PlanArguments& options, World& world)
{
    const auto all = DeviceMesh::create(world, {world.size()}, {"domain"});
    auto steps = configurations_to_check();
    std::erase_if(steps, [&](const auto& step) { return step.num_ranks > 1 && step.num_ranks != world.size(); });
    const auto alone = DeviceMesh::single();
    const MachineRates rates(*all);
    std::unique_ptr<MachineRates> rates_alone;
    if (world.rank() == 0) rates_alone = std::make_unique<MachineRates>(*alone);
    all->all().barrier();
    for (auto& step : steps) {
        if (step.num_ranks > 1)
            check_step(step, all, rates, options.num_repeats);
        else if (world.rank() == 0)
            check_step(step, alone, *rates_alone, options.num_repeats);
        all->all().barrier();
    }
    if (world.rank() != 0) return exit_code::ok;
    TextTable table("llrlrrrrr");
    table.add_row({"model", "arguments", "points", "memory mode", "ranks", "measured", "on the wall", "predicted", "ratio"});
    Json json = Json::array();
    std::size_t within = 0;
    for (const auto& step : steps) {
        within += std::abs(step.ratio() - 1) <= options.tolerance;
        std::string arguments;
        for (const auto& [key, value] : step.arguments.items()) {
            if (!key.starts_with("hidden_dim_") || key.ends_with("processor")) arguments += (arguments.empty() ? "" : " ") + key + "=" + value.dump();
        }
        table.add_row({step.model, arguments, std::to_string(step.points), std::string(name_of(step.memory)), std::to_string(step.num_ranks),
                       seconds_text(step.measured_seconds), seconds_text(step.measured_wall_seconds), seconds_text(step.predicted_seconds),
                       fixed_text(step.ratio(), 2)});
        json.push_back({{"model", step.model},
                        {"arguments", step.arguments},
                        {"points", step.points},
                        {"memory_mode", std::string(name_of(step.memory))},
                        {"ranks", step.num_ranks},
                        {"measured_seconds", step.measured_seconds},
                        {"measured_wall_seconds", step.measured_wall_seconds},
                        {"predicted_seconds", step.predicted_seconds},
                        {"ratio", step.ratio()}});
    }
    if (options.json)
        print_json({{"within", within}, {"tolerance", options.tolerance}, {"steps", json}});
    else
        std::cout << table << within << " of " << steps.size() << " within " << fixed_text(100 * options.tolerance, 0) << " %\n";
    return within == steps.size() ? exit_code::ok : exit_code::check_failed;
}

void add_options(CLI::App& app, PlanArguments& options)
{
    app.add_option("ARGUMENT", options.model_arguments, "arguments of the model, as in train's configurations, e.g. n_hidden=256 n_layers=8 slice_num=64")
        ->type_name("KEY=VALUE");
    app.add_option("--points", options.points, "points or cells of the whole mesh, e.g. 20000, 8.8M or 140M")->type_name("N");
    app.add_option("--model", options.model, "transolver, flare, geotransolver or meshgraphnet")->type_name("NAME")->capture_default_str();
    app.add_option("--gpus", options.gpus, "number of GPUs; auto: a table, and the fewest that hold the mesh")->type_name("P")->capture_default_str();
    app.add_option("--device", options.device, "h200, h100, b200 or a100; here: this machine's ranks, whose rates are measured")
        ->type_name("NAME")
        ->capture_default_str();
    app.add_option("--links", options.links, "link between the GPUs of a host, then between hosts: nvlink, pcie, ib or ethernet")
        ->type_name("NAME,NAME")
        ->capture_default_str();
    app.add_option("--gpus-per-host", options.gpus_per_host, "GPUs of a host")->check(CLI::PositiveNumber)->type_name("N")->capture_default_str();
    app.add_option("--memory", options.memory, "memory mode: stored, recomputed or streamed; auto: the fastest that fits")
        ->check(CLI::IsMember({"auto", "stored", "recomputed", "streamed"}))
        ->type_name("MODE")
        ->capture_default_str();
    app.add_option("--precision", options.precision, "of products on GPUs, and of what is kept for backward: bfloat16, tf32 or float32")
        ->check(CLI::IsMember({"bfloat16", "tf32", "float32"}))
        ->type_name("NAME")
        ->capture_default_str();
    app.add_option("--inputs", options.widths.inputs, "input values of each point")->check(CLI::PositiveNumber)->type_name("N")->capture_default_str();
    app.add_option("--outputs", options.widths.outputs, "values that the model predicts for each point")
        ->check(CLI::PositiveNumber)
        ->type_name("N")
        ->capture_default_str();
    app.add_option("--constants", options.widths.constants, "input values that are the same for all points of a case")
        ->check(CLI::NonNegativeNumber)
        ->type_name("N")
        ->capture_default_str();
    app.add_option("--imbalance", options.imbalance, "points of the largest shard divided by an equal share")
        ->check(CLI::Range(1.0, 100.0))
        ->type_name("RATIO")
        ->capture_default_str();
    app.add_flag("--surface", options.on_surface, "the mesh is a surface, whose shards have fewer ghosts than a volume's");
    app.add_flag("--check", options.check, "measure twelve steps on this machine, on one rank and two, and compare them with what is predicted");
    app.add_option("--repeats", options.num_repeats, "for --check: number of timed steps, of which the fastest counts")
        ->check(CLI::PositiveNumber)
        ->type_name("N")
        ->capture_default_str();
    app.add_option("--tolerance", options.tolerance, "for --check: largest allowed relative error of a prediction")
        ->check(CLI::PositiveNumber)
        ->type_name("SHARE")
        ->capture_default_str();
    add_rank_options(app, options.ranks, "with --device here: ranks of this machine; with --check two by default");
    app.add_flag("--json", options.json, "one JSON object on stdout instead of the report");
}

}  // namespace

int plan_bench_command(std::span<const std::string> arguments)
{
    PlanArguments options;
    CLI::App app("Predicts a training step on GPUs that need not be here: seconds, memory, messages and the efficiency of several, and how many GPUs hold a\n"
                 "mesh. A model, not a measurement: the work of the model's blocks and the messages are counted, the rates are published ones.\n"
                 "--device here measures this machine's rates and predicts its steps; --check compares such predictions with steps that are measured.",
                 "bench plan");
    add_options(app, options);
    if (!parse_arguments(app, arguments)) return exit_code::ok;
    std::vector<std::string> words{"plan"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    if (options.check) {
        keep_freed_memory();
        if (options.ranks.number == 0) options.ranks.number = 2;
        return run_on_ranks(options.ranks, "bench", words, [](int) {}, [&](World& world) { return check_plans(options, world); });
    }
    try {
        if (options.points.empty()) throw UsageError("--points is missing: of how many points is the mesh? E.g. --points 140M.");
        points_of(options.points);
        const auto model = planned_model(options.model, model_arguments_of(options.model_arguments), options.widths);
        if (options.device != "here") {
            if (options.ranks.number > 0) throw UsageError("--nproc goes with --device here and --check; the number of GPUs is --gpus.");
            return plan_for_gpus(options, model);
        }
        if (options.gpus != "auto") throw UsageError("--gpus goes with a GPU's name; with --device here, --nproc is the number of ranks.");
        keep_freed_memory();
        return run_on_ranks(options.ranks, "bench", words, [](int) {}, [&](World& world) { return plan_for_this_machine(options, model, world); });
    } catch (const InvalidInput& error) {
        throw UsageError(error.what());
    }
}

}  // namespace meshard
