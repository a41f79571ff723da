// SPDX-License-Identifier: Apache-2.0
// meshard partition: a mesh file -> a shards folder, with a report.
#include "apps/command_line.h"
#include "apps/cut_options.h"
#include "apps/verbs.h"
#include "io/interruption.h"
#include "io/mesh_faults.h"
#include "io/mesh_io.h"

#include <CLI/CLI.hpp>

namespace meshard {

int partition_command(std::span<const std::string> words)
{
    std::string file;
    CutArguments arguments;
    CLI::App app(
        "Cuts a mesh into shards of nearly the same number of cells (a point cloud: of points) with few faces between\n"
        "them and few ghosts, and writes them as a folder of VTK files that ParaView opens.",
        "partition");
    app.add_option("file", file, "mesh or OpenFOAM case to cut (meshard convert --help lists the formats)")
        ->required()
        ->type_name("FILE");
    add_cut_options(app, arguments);
    if (!parse_arguments(app, words)) return exit_code::ok;
    check_cut_arguments(arguments);
    end_well_on_interruption();
    StageTimer timer;
    timer.begin("read");
    const Mesh mesh = read_mesh(file);
    for (const std::string& text : describe(find_faults(mesh))) warn("partition", file + ": " + text);
    print_report(cut_and_save(mesh, {.name = file, .path = file}, arguments, timer), arguments);
    return exit_code::ok;
}

} // namespace meshard
