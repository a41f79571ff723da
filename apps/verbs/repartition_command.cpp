// SPDX-License-Identifier: Apache-2.0
// meshard repartition: cuts the mesh of a shards folder again, without the source file.
#include "apps/cut/cut_options.h"
#include "apps/cut/mesh_cut.h"
#include "apps/cut/whole_steps.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/verbs.h"
#include "io/shards/subdomain_io.h"
#include "partition/ghosts/subdomain.h"

#include <algorithm>

namespace meshard {

namespace {

// Returns the earlier part of each row of the merged mesh.
std::vector<std::int32_t> owners_in(std::span<const Subdomain> subdomains, std::int64_t num_rows)
{
    std::vector<std::int32_t> owners(num_rows, 0);
    for (const Subdomain& subdomain : subdomains)
        for (const auto row : subdomain.rows().owned()) owners[row] = subdomain.part;
    return owners;
}

}  // namespace

int repartition_command(std::span<const std::string> words)
{
    std::string folder, costs;
    CutArguments arguments;
    CLI::App app("Cuts the mesh of a shards folder again, into another number of parts or with another method. The "
                 "original mesh file\n"
                 "is not needed; the new shards still name it as their source, and merge to the same mesh.",
                 "repartition");
    add_named(app, "dir", folder, "DIR", "shards folder to cut again")->required();
    add_named(
        app, "--cost", costs, "C,...",
        "cost of each part of the folder in a run, e.g. in seconds, one number for each; the new parts balance it");
    bool no_verify = false;
    add_verify_option(app, no_verify);
    add_cut_options(app, arguments);
    if (!parse_arguments(app, words)) return exit_code::ok;
    check_cut_arguments(arguments, folder);
    StageTimer timer = cut_timer();
    timer.begin("read");
    const Manifest manifest = read_manifest(folder);
    MeshSource source{.name = folder, .path = manifest.info.source, .hash = manifest.info.source_hash};
    if (!costs.empty()) {
        source.costs = parse_numbers(costs, "--cost", static_cast<std::size_t>(manifest.num_parts()));
        if (std::ranges::any_of(source.costs, [](double cost) { return !(cost > 0); }))
            throw UsageError("--cost is '{}'; all must be above 0.", costs);
        if (!arguments.weights.empty()) throw UsageError("--cost and --weights exclude each other.");
    }
    const std::vector<Subdomain> subdomains = load_subdomains(folder, check_of(!no_verify));
    Mesh mesh = merge_subdomains(subdomains);
    source.earlier_owners = owners_in(subdomains, mesh.num_rows());
    WholeSteps steps(mesh, source);
    RankMessages alone;
    print_report(cut_and_save(steps, source, arguments, alone, timer), arguments);
    return exit_code::ok;
}

}  // namespace meshard
