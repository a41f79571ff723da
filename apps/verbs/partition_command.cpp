// SPDX-License-Identifier: Apache-2.0
// meshard partition: cuts a mesh file into a shards folder and prints a report.
#include "apps/console/freed_memory.h"
#include "apps/cut/cut_options.h"
#include "apps/cut/mesh_cut.h"
#include "apps/cut/whole_steps.h"
#include "apps/cut/window_steps.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/verbs.h"
#include "io/mesh_io.h"
#include "io/vtk/mapped_mesh.h"
#include "partition/mesh/mesh_faults.h"

#include <filesystem>
#include <functional>
#include <memory>

namespace meshard {

namespace {

void cut_whole(const std::string& file, const CutArguments& arguments)
{
    // For large meshes saving memory is more important than time.
    constexpr std::uintmax_t large_file = std::uintmax_t{1} << 28;
    std::error_code error;
    if (const auto size = std::filesystem::file_size(file, error); !error && size < large_file) keep_freed_blocks();
    StageTimer timer = cut_timer();
    timer.begin("read");
    Mesh mesh = read_mesh(file);
    auto faults = find_faults(mesh);
    faults.outward_wedges = 0;  // a cut does not depend on them
    for (const std::string& text : describe(faults)) warn("partition", file + ": " + text);
    MeshSource source{.name = file, .path = file};
    if (can_be_mapped(file)) source.read_again = [&file] { return read_mesh(file); };
    WholeSteps steps(mesh, source);
    RankMessages alone;
    print_report(cut_and_save(steps, source, arguments, alone, timer), arguments);
}

// Opens a mesh of which each rank reads what it needs. If the file cannot be mapped and there is no memory limit, every
// rank reads the whole mesh.
std::unique_ptr<StoredMesh> open_stored(const std::string& file, std::int64_t max_memory, const RankMessages& messages)
{
    if (max_memory > 0 || can_be_mapped(file)) return std::make_unique<MappedMesh>(file);
    auto mesh = std::make_unique<HeldMesh>(read_mesh(file));
    if (messages.rank() == 0)
        warn("partition", file + " cannot be read in parts, so every rank holds the whole mesh; `meshard convert FILE "
                                 "whole.vtu` makes a file of which "
                                 "each rank reads only what it needs.");
    return mesh;
}

void cut_in_windows(const std::string& file, const CutArguments& arguments, RankMessages& messages)
{
    StageTimer timer;
    timer.begin("read");
    const auto mesh = open_stored(file, arguments.max_memory, messages);
    const MeshSource source{.name = file, .path = file};
    WindowSteps steps(*mesh, source, messages);
    const auto report = cut_and_save(steps, source, arguments, messages, timer);
    if (messages.rank() == 0) print_report(report, arguments);
}

/// Runs `work` on all ranks; an error on one of them ends all, and is printed once. Only the rank that prints it
/// returns an error code: mpirun kills all ranks at the first code that is not 0, and another rank could end before the
/// message is printed.
int run_together(RankMessages& messages, const std::function<void()>& work)
{
    try {
        auto facts = facts_of_command();
        for (auto& variable : own_environment()) facts.push_back(std::move(variable));
        check_agreement(messages, facts);
        work();
    } catch (const RanksDisagree&) {
        if (messages.rank() == 0) throw;  // all ranks have this error
    } catch (const FailedElsewhere&) {
        return exit_code::ok;
    } catch (...) {
        if (messages.fail()) throw;
    }
    return exit_code::ok;
}

}  // namespace

int partition_command(std::span<const std::string> words)
{
    std::string file;
    CutArguments arguments;
    CLI::App app(
        "Cuts a mesh into shards of nearly the same number of cells (a point cloud: of points) with few faces between\n"
        "them and few ghosts, and writes them as a folder of VTK files that ParaView opens.",
        "partition");
    add_named(app, "file", file, "FILE", "mesh or OpenFOAM case to cut; `meshard convert --help` lists the formats")
        ->required();
    add_cut_options(app, arguments);
    std::string max_memory;
    add_named(app, "--max-memory", max_memory, "SIZE",
              "most memory that a process may use, e.g. 4G; the file is then read in parts: .vtu or .vtp, "
              "appended raw, or .vtkhdf")
        ->default_str("no limit");
    if (!parse_arguments(app, words)) return exit_code::ok;
    const auto messages = ranks_of_this_run();
    if (max_memory.empty() && messages->size() == 1) {
        check_cut_arguments(arguments, file);
        cut_whole(file, arguments);
        return exit_code::ok;
    }
    return run_together(*messages, [&] {
        if (!max_memory.empty()) arguments.max_memory = parse_memory_size(max_memory);
        check_cut_arguments(arguments, file);
        cut_in_windows(file, arguments, *messages);
    });
}

}  // namespace meshard
