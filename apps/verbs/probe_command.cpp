// meshard probe: runs a model serially and sharded, and compares.
#include "apps/bench/probe.h"
#include "apps/console/json_report.h"
#include "apps/console/text_table.h"
#include "apps/learning/checkpoints/tensor_file.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/output_file.h"
#include "apps/program/rank_program.h"
#include "apps/program/verbs.h"
#include "io/bytes/made_folders.h"
#include "partition/lists.h"

#include <cmath>
#include <iostream>

namespace meshard {
namespace {

struct ProbeArguments {
    ProbeRequest request;
    std::string dims, shares;
    std::filesystem::path output;
    LocalRanks ranks{.number = 2};
    bool json = false;
    std::string device = "auto";
};

bool parse(std::span<const std::string> arguments, ProbeArguments& options)
{
    CLI::App app("Answers \"does my model shard?\": runs a TorchScript model on one rank and with its input cut over "
                 "several, and compares outputs,\n"
                 "gradients and buffers. Exit code 0: equal; 1: different; 2: usage; 6: an operator was refused.",
                 "probe");
    auto& request = options.request;
    add_named(app, "MODEL", request.model, "MODEL.pt", "TorchScript file, from torch.jit.script(model).save(path)")
        ->required();
    add_named(
        app, "--input", request.input, "FILE",
        "safetensors file: input, or one tensor for each argument of forward by its name; and grad_output if wanted")
        ->required();
    add_named(app, "--shard", options.dims, "DIM[,DIM]",
              "dimension of the input to cut, e.g. 2; two for a grid of ranks, e.g. 2,3")
        ->required();
    add_device_option(app, options.device);
    add_rank_options(app, options.ranks, "ranks that are started on this machine");
    add_named(app, "--uneven", options.shares, "SHARE,...", "shares of the ranks, e.g. 1,1; zero is allowed")
        ->default_str("7,3,3,...");
    app.add_flag("--train", request.train, "training mode (batch norm, dropout); without it evaluation mode");
    app.add_flag(
        "--backward", request.backward,
        "gradients too; the loss is the sum of output times grad_output, else of all outputs times fixed numbers");
    add_named(app, "--output", options.output, "FILE",
              "safetensors file to write: output, grad_input, grad.PARAMETER, in training mode buffer.NAME");
    add_json_option(app, options.json);
    if (!parse_arguments(app, arguments)) return false;

    for (const auto value : parse_numbers(options.dims, "--shard")) {
        const auto dim = static_cast<std::int64_t>(value);
        if (value < 0 || value > 64 || static_cast<double>(dim) != value)
            throw UsageError("--shard {}: expected whole numbers from 0 on, one or two.", options.dims);
        request.dims.push_back(dim);
    }
    if (request.dims.empty() || request.dims.size() > 2 ||
        (request.dims.size() == 2 && request.dims[0] == request.dims[1])) {
        throw UsageError("--shard {}: expected one dimension, or two different ones.", options.dims);
    }
    if (!options.shares.empty()) {
        request.shares = parse_numbers(options.shares, "--uneven");
        double sum = 0;
        for (const auto share : request.shares) {
            if (share < 0) throw UsageError("--uneven {}: a share is negative.", options.shares);
            sum += share;
        }
        if (sum <= 0) throw UsageError("--uneven {}: the shares add up to nothing.", options.shares);
    }
    return true;
}

/// Throws unless there is one share for each rank of an axis of the mesh.
void check_shares(const ProbeArguments& options, const std::vector<std::int64_t>& mesh_shape)
{
    const auto count = std::ssize(options.request.shares);
    if (count > 0 && !contains(mesh_shape, count)) {
        throw UsageError("--uneven {} has {} shares for {} ranks{}. Give one a rank.", options.shares, count,
                         mesh_shape[0], mesh_shape.size() > 1 ? " x " + std::to_string(mesh_shape[1]) : "");
    }
}

Json to_json(const ProbeReport& report)
{
    const auto finite = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
    Json json{{"equal", report.equal},        {"ranks", report.num_ranks},    {"device", report.device},
              {"mesh", report.mesh_shape},    {"input", report.input_layout}, {"refused", nullptr},
              {"differences", Json::array()}, {"operators", Json::array()}};
    if (!report.refusal.empty()) json["refused"] = {{"operator", report.refused_operator}, {"message", report.refusal}};
    for (const auto& item : report.differences)
        json["differences"].push_back({{"name", item.name},
                                       {"equal", item.equal},
                                       {"largest_difference", finite(item.largest_difference)},
                                       {"scale", item.scale},
                                       {"rounding", finite(item.rounding)}});
    for (const auto& op : report.operators) {
        json["operators"].push_back({{"name", op.name},
                                     {"rule", op.family},
                                     {"inputs", op.inputs},
                                     {"outputs", op.outputs},
                                     {"calls", op.num_calls},
                                     {"messages", op.num_messages},
                                     {"bytes", op.num_bytes},
                                     {"gathered", op.gathered}});
    }
    return json;
}

void print(const ProbeReport& report)
{
    std::cout << "Input " << report.input_layout << ", " << report.num_ranks << " rank(s)"
              << (report.device == "cpu" ? "" : ", device " + report.device)
              << "\n\nOperators (calls, messages and bytes of rank 0)\n";
    TextTable operators("llllrrr");
    operators.add_row({"operator", "rule", "inputs", "outputs", "calls", "messages", "bytes"});
    std::int64_t num_gathered = 0;
    for (const auto& op : report.operators) {
        operators.add_row({op.name, op.gathered ? "gathered" : op.family, op.inputs, op.outputs,
                           std::to_string(op.num_calls), std::to_string(op.num_messages),
                           std::to_string(op.num_bytes)});
        num_gathered += op.gathered ? op.num_calls : 0;
    }
    std::cout << operators << '\n';
    if (!report.refusal.empty()) {
        std::cout << "Refused: " << report.refusal << '\n';
        return;
    }
    TextTable differences("lrrrl");
    differences.add_row({"tensor", "largest difference", "of", "rounding", "equal"});
    for (const auto& item : report.differences) {
        differences.add_row({item.name, number_text(item.largest_difference), number_text(item.scale),
                             item.rounding > 0 ? number_text(item.rounding) : "", item.equal ? "yes" : "NO"});
    }
    std::cout << "Sharded against serial\n"
              << differences << '\n'
              << (report.equal ? "Equal: this model shards." : "Different: see the rows marked NO.") << '\n';
    if (num_gathered > 0)
        std::cout
            << num_gathered
            << " call(s) gathered the whole on every rank (exact, at the cost of memory): the rows marked gathered.\n";
}

}  // namespace

int probe_command(std::span<const std::string> arguments)
{
    ProbeArguments options;
    if (!parse(arguments, options)) return exit_code::ok;
    const auto& request = options.request;
    if (!options.output.empty()) require_output(options.output, {request.model, request.input}, InputAsOutput::Refused);
    return run_on_ranks(
        options.ranks, "probe", arguments, [](int) {},
        [&](World& world) {
            check_shares(options, probe_mesh_shape(world.size(), options.request.dims.size()));
            const auto report = probe(options.request, world);
            if (world.rank() == 0) {
                if (!options.output.empty() && report.refusal.empty()) {
                    const MadeFolders folders(options.output);
                    NamedArrays content;
                    for (const auto& [name, tensor] : report.tensors)
                        content.arrays.push_back(to_named_array(name, tensor));
                    write_safetensors(options.output, content);
                }
                options.json ? print_json(to_json(report)) : print(report);
            }
            return !report.refusal.empty() ? exit_code::refused
                   : report.equal          ? exit_code::ok
                                           : exit_code::check_failed;
        },
        options.device);
}

}  // namespace meshard
