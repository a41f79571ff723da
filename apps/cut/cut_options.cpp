// SPDX-License-Identifier: Apache-2.0
#include "apps/cut/cut_options.h"

#include "apps/console/text_table.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/output_file.h"
#include "io/shards/partition_dump.h"
#include "partition/cut/partitioner.h"
#include "partition/error.h"
#include "partition/ghosts/ghost_graph.h"
#include "partition/nearest_name.h"
#include "partition/run_on_threads.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>

namespace meshard {

namespace {

std::vector<std::string> split(const std::string& text)
{
    std::vector<std::string> words;
    for (std::size_t begin = 0; begin <= text.size();) {
        const auto end = std::min(text.find(',', begin), text.size());
        words.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return words;
}

}  // namespace

bool is_given_partition(const std::string& method)
{
    return method.starts_with("file:") || method.starts_with("array:");
}

std::vector<std::int32_t> parse_levels(const std::string& text)
{
    std::vector<std::int32_t> levels;
    std::int64_t product = 1;
    for (const auto level : parse_numbers(text, "--levels")) {
        if (!(level >= 1) || level != std::floor(level) || level > 1e6)
            throw UsageError("--levels is '{}'; expected whole numbers from 1, e.g. 4,2.", text);
        levels.push_back(static_cast<std::int32_t>(level));
        product = std::min<std::int64_t>(product * levels.back(), std::int64_t{1} << 40);
    }
    if (product > std::numeric_limits<std::int32_t>::max())
        throw UsageError("--levels is '{}', which makes too many parts.", text);
    return levels;
}

double ghost_share(const std::string& objective)
{
    if (objective == "cut") return 0.1;
    if (objective == "ghosts") return 0.6;
    if (objective == "both") return 0.35;
    throw UsageError("--objective is '{}'; expected cut, ghosts or both.", objective);
}

std::vector<std::string> dump_kinds(const CutArguments& arguments)
{
    try {
        return parse_dump_kinds(arguments.dump);
    } catch (const InvalidInput& error) {
        throw UsageError(std::string("--") + error.what());
    }
}

std::vector<std::string> weight_names(const CutArguments& arguments)
{
    return arguments.weights.empty() || arguments.weights == "cells" ? std::vector<std::string>{}
                                                                     : split(arguments.weights);
}

void add_cut_options(CLI::App& app, CutArguments& arguments)
{
    add_named(app, "-n,--num-parts", arguments.num_parts, "N",
              "number of parts; may be left out with --levels, file: and array:")
        ->each([&arguments](const std::string&) { arguments.has_num_parts = true; });
    add_named(app, "-o,--output", arguments.output, "DIR", "shards folder to make; must not exist");
    add_shown(app, "--method", arguments.method, "NAME",
              "how to cut: metis, recursive, scotch, rcb, hilbert, auto, file:PATH or array:NAME");
    add_named(app, "--levels", arguments.levels, "N,...",
              "number of parts in levels, e.g. 4,2: 4 parts (nodes), each of them in 2 (devices)");
    add_shown(app, "--objective", arguments.objective, "NAME",
              "what to minimise: cut (faces between parts), ghosts (of the part with most) or both");
    app.add_flag("--quality", arguments.quality, "search longer (four to five times) for fewer cut faces and ghosts");
    app.add_flag("--refine", arguments.refine,
                 "also refine the result of methods that are not refined by default (hilbert, file:, array:)");
    app.add_flag("--no-refine", arguments.no_refine,
                 "do not refine; parts above the allowed imbalance and empty parts are still repaired");
    app.add_flag("--contiguous", arguments.contiguous,
                 "make every part connected, where the mesh and the imbalance allow it");
    add_named(app, "--weights", arguments.weights, "NAME,...",
              "what to balance, one or several: cells, points, faces, array:NAME")
        ->default_str("cells");
    add_named(app, "--capacities", arguments.capacities, "C,...",
              "relative sizes of the parts, one for each, e.g. 1,1,2")
        ->default_str("equal shares");
    add_shown(app, "--ghosts", arguments.ghosts, "RULE",
              "which neighbours are ghosts: by face, edge or vertex, radius:R or nearest:K");
    add_shown(app, "--ghost-layers", arguments.ghost_layers, "K", "layers of such neighbours around each part");
    add_shown(app, "--imbalance", arguments.imbalance, "RATIO",
              "largest allowed size of a part divided by its equal share; refinement uses all of it");
    add_shown(app, "--seed", arguments.seed, "S",
              "seed of the random choices; the same file, options and seed give the same shards");
    add_shown(app, "--threads", arguments.threads, "T",
              "threads for the graph, the ghosts and writing; the result does not depend on it");
    app.add_flag("--allow-empty", arguments.allow_empty,
                 "allow more parts than cells, up to a million more; the other parts stay empty");
    app.add_flag("--dry-run", arguments.dry_run, "cut and report, write no shards; -o may be left out");
    add_named(app, "--preview", arguments.preview, "PNG", "picture to write, with the parts in colours (.png)");
    add_named(app, "--csv", arguments.csv, "FILE", "table to write, with one row for each part (.csv)");
    add_named(app, "--dump", arguments.dump, "NAME,...",
              "also write the cut for other programs into DIR: metis, foam or both (metis,foam)");
    add_compress_option(app, arguments.compress);
    add_json_option(app, arguments.json);
}

void check_cut_arguments(CutArguments& arguments, const std::string& input)
{
    dump_kinds(arguments);
    parse_compression(arguments.compress);
    if (!arguments.levels.empty()) {
        const auto levels = parse_levels(arguments.levels);
        std::int32_t product = 1;
        for (const auto level : levels) product *= level;
        if (arguments.num_parts != 0 && arguments.num_parts != product)
            throw UsageError("-n is {}, but --levels {} make {} parts. Leave -n out.", arguments.num_parts,
                             arguments.levels, product);
        if (is_given_partition(arguments.method))
            throw UsageError("--levels needs a method that cuts, not a given partition.");
        arguments.num_parts = product;
    }
    if (!arguments.has_num_parts && arguments.levels.empty() && !is_given_partition(arguments.method))
        throw UsageError("--num-parts is missing: give the number of parts with -n.");
    if (arguments.num_parts < 1 && !(is_given_partition(arguments.method) && arguments.num_parts == 0))
        throw UsageError("-n is {}; the number of parts must be at least 1.", arguments.num_parts);
    if (!is_given_partition(arguments.method)) {
        try {
            partition_method(arguments.method);
        } catch (const InvalidInput& error) {
            throw UsageError(error.what());
        }
    }
    if (arguments.refine && arguments.no_refine) throw UsageError("--refine and --no-refine exclude each other.");
    if (arguments.quality && arguments.no_refine) throw UsageError("--quality and --no-refine exclude each other.");
    ghost_share(arguments.objective);
    if (const auto most = std::max(64, 4 * num_cores()); arguments.threads < 1 || arguments.threads > most)
        throw UsageError("--threads is {}; expected 1 to {}.", arguments.threads, most);
    if (arguments.ghost_layers < 0 || arguments.ghost_layers > 255)
        throw UsageError("--ghost-layers is {}; expected 0 to 255.", arguments.ghost_layers);
    if (!(arguments.imbalance >= 1) || !std::isfinite(arguments.imbalance))
        throw UsageError(
            "--imbalance is {}; it is the size of the largest part divided by the mean, at least 1, e.g. 1.03.",
            number_text(arguments.imbalance));
    try {
        arguments.ghosts = to_string(parse_ghost_rule(arguments.ghosts));
    } catch (const InvalidInput& error) {
        throw UsageError(std::string("--ghosts: ") + error.what());
    }
    part_capacities(arguments);
    for (const auto& weight : arguments.weights.empty() ? std::vector<std::string>{} : split(arguments.weights))
        if (weight != "cells" && weight != "points" && weight != "faces" && !weight.starts_with("array:"))
            throw UsageError("--weights has '{}'; known are cells, points, faces and array:NAME.", weight);
    if (!arguments.preview.empty() && lower_extension(arguments.preview) != ".png")
        throw UsageError("--preview is '{}'; expected a name that ends in .png.", arguments.preview);
    std::vector<std::filesystem::path> outputs, inputs{input};
    for (const auto& file : {arguments.preview, arguments.csv}) {
        if (file.empty()) continue;
        outputs.emplace_back(file);
        if (arguments.output.empty() || arguments.dry_run) continue;
        std::error_code unclear;  // a pipe, or a link in a circle, of which `require_outputs` says what it is
        const auto folder = std::filesystem::weakly_canonical(std::filesystem::absolute(arguments.output), unclear);
        if (unclear) continue;
        const auto place = std::filesystem::weakly_canonical(std::filesystem::absolute(file), unclear);
        if (unclear) continue;
        if (place == folder)
            throw UsageError("-o and {} are both {}. Name two.", file == arguments.csv ? "--csv" : "--preview", file);
        const auto inside = place.lexically_relative(folder).string();
        if (file == arguments.csv && !inside.starts_with("..") && lower_extension(file) != ".csv")
            throw UsageError("--csv is '{}', in the folder of the shards, whose files have such names; "
                             "expected a name that ends in .csv.",
                             file);
    }
    if (arguments.method.starts_with("file:")) inputs.emplace_back(arguments.method.substr(5));
    require_outputs(outputs, inputs, InputAsOutput::Refused);
    if (arguments.output.empty() && !arguments.dry_run)
        throw UsageError("-o is missing: name the shards folder to make, or use --dry-run.");
    if (!arguments.dry_run) check_output_folder(arguments.output);
}

std::vector<double> part_capacities(const CutArguments& arguments)
{
    if (arguments.capacities.empty()) return {};
    auto capacities = parse_numbers(arguments.capacities, "--capacities");
    if (arguments.num_parts > 0 && static_cast<std::int32_t>(capacities.size()) != arguments.num_parts)
        throw UsageError("--capacities has {} for {}.", count_text(std::ssize(capacities), "number"),
                         count_text(arguments.num_parts, "part"));
    const double sum = std::accumulate(capacities.begin(), capacities.end(), 0.0);
    if (std::ranges::any_of(capacities, [&](double c) { return !(c / sum >= 1e-12); }))
        throw UsageError("--capacities is '{}'; all must be above 0, at least 1e-12 of their sum, and that "
                         "below 1e308.",
                         arguments.capacities);
    return capacities;
}

void check_output_folder(const std::string& output_name)
{
    const std::filesystem::path output = output_name;
    if (std::filesystem::exists(std::filesystem::symlink_status(output))) {
        throw IoError("the output '{}' exists. Remove it, or name another folder with -o.", output.string());
    }
    require_writable_folder(output, fmt::format("the output '{}'", output.string()));
}

}  // namespace meshard
