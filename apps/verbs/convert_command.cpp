// SPDX-License-Identifier: Apache-2.0
// meshard convert: reads a mesh in any format that meshard reads, and writes it in any that it writes.
#include "apps/console/json_report.h"
#include "apps/console/stage_timer.h"
#include "apps/console/text_table.h"
#include "apps/learning/checkpoints/checkpoint_conversion.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/output_file.h"
#include "apps/program/verbs.h"
#include "io/bytes/made_folders.h"
#include "io/checkpoints/model_checkpoint.h"
#include "io/foam/foam_reader.h"
#include "io/mesh_io.h"
#include "io/shards/manifest.h"
#include "io/shards/subdomain_io.h"
#include "io/trajectory_records.h"
#include "io/vtk/vtk_xml_reader.h"
#include "io/vtk/vtk_xml_writer.h"
#include "io/vtk/vtkhdf.h"
#include "partition/lists.h"
#include "partition/mesh/joined_points.h"
#include "partition/mesh/mesh_faults.h"
#include "partition/nearest_name.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <optional>
#include <type_traits>

namespace meshard {

namespace {

struct ConvertOptions {
    std::string input;
    std::string output;
    std::vector<std::string> blocks;
    std::string time;
    std::string compress = "none";
    std::optional<double> join_points, scale;
    std::string to;          // format of a checkpoint; empty: the extension's
    bool no_verify = false;  // reads pieces of shards without checking their hashes
    InputAsOutput input_as_output{};
    bool json = false;
};

bool parse(std::span<const std::string> arguments, ConvertOptions& options)
{
    CLI::App app(
        "Writes a mesh or a model's checkpoint in another format, given by the extension of OUT. Meshes that "
        "are read: OpenFOAM cases (folders) and\n" +
            readable_formats() +
            ".\n\n"
            "Names, units, types and roles of arrays,\n"
            "field data, time values and polyhedra are kept. From a shards folder a .vtkhdf gets each piece "
            "with its ghosts as a partition,\n"
            "a .pvtu or .pvtp gets the pieces as files beside it, other formats get the merged mesh.\n\n"
            "Runs of a .tfrecord as of MeshGraphNets' data sets, with their meta.json, become series: a .vtkhdf a "
            "run in the folder OUT.\n\n"
            "Checkpoints: .mdlus (PhysicsNeMo), .pt (PyTorch) and .safetensors are read and written; nothing "
            "in them is executed.",
        "convert");
    add_named(app, "input", options.input, "IN", "mesh, OpenFOAM case, shards folder or checkpoint to read")
        ->required();
    add_named(app, "output,-o,--output", options.output, "OUT", fmt::format("file to write ({})", writable_formats()))
        ->required();
    add_named(app, "--block", options.blocks, "NAME",
              "read only this block, patch or zone (of CGNS; OpenFOAM's are CellZoneId), or a level (boundary); "
              "may be repeated")
        ->allow_extra_args(false);
    add_named(app, "--time", options.time, "T",
              "time to read from a case, a series or a file with several times (default there: the first), as "
              "written there")
        ->default_str("the latest");
    add_named(app, "--join-points", options.join_points, "TOL",
              "join points at most TOL apart (the mesh's unit; 0: at one place), so that cells there become "
              "neighbours; the first one stays");
    add_named(app, "--scale", options.scale, "FACTOR",
              "multiply the points by FACTOR, e.g. 0.001 where they are in mm; arrays stay as they are");
    add_compress_option(app, options.compress);
    add_verify_option(app, options.no_verify);
    add_named(app, "--to", options.to, "FORMAT",
              "format of a checkpoint if OUT's extension does not give it: mdlus, pt or safetensors");
    add_overwrite_option(app, options.input_as_output);
    add_json_option(app, options.json);
    return parse_arguments(app, arguments);
}

/// Sorts a surface's cells into the order of polygonal data: vertices, lines, polygons, strips.
void sort_as_polygonal(Mesh& mesh)
{
    const auto group = [&](std::int32_t cell) { return polydata_group(mesh.cell_types[cell]); };
    auto cells = numbers_from<std::int32_t>(0, mesh.num_cells());
    const auto is_other = [&](std::int32_t cell) { return group(cell) < 0; };  // which the writer names
    if (std::ranges::is_sorted(cells, {}, group) || std::ranges::any_of(cells, is_other)) return;
    std::ranges::stable_sort(cells, {}, group);
    auto points = numbers_from<std::int32_t>(0, mesh.num_points());
    mesh = extract_mesh(mesh, cells, points);
}

/// Reads the pieces of a shards folder, with their ghosts.
std::vector<Mesh> pieces_of(const std::filesystem::path& folder, bool to_polygons)
{
    std::vector<Mesh> pieces;
    for (const ManifestPart& part : read_manifest(folder).parts) {
        pieces.push_back(read_mesh(folder / part.file));
        if (to_polygons) sort_as_polygonal(pieces.back());
    }
    return pieces;
}

std::uintmax_t total_size(const std::vector<std::filesystem::path>& files)
{
    std::uintmax_t size = 0;
    for (const auto& file : files) size += std::filesystem::file_size(file);
    return size;
}

/// Joins points as --join-points says, and adds its findings to `warnings`.
Mesh with_joined_points(const Mesh& mesh, const ConvertOptions& options, std::vector<std::string>& warnings)
{
    if (!(*options.join_points >= 0) || std::isinf(*options.join_points))
        throw UsageError("--join-points is {}, expected 0 or a length above 0.", number_text(*options.join_points));
    if (mesh.is_point_cloud())
        throw UsageError("--join-points is for meshes with cells; {} is a point cloud.", options.input);
    const auto earlier = find_cell_faults(mesh).degenerate_cells;
    auto joined = join_points(mesh, *options.join_points);
    const auto say = [&](const std::string& text) {
        warnings.push_back(options.input + ": " + text);
        warn("convert", warnings.back() + ".");
    };
    if (joined.num_joined == 0)
        say(fmt::format("no two points are at most {} apart; none were joined", number_text(*options.join_points)));
    if (const auto& names = joined.differing_fields; !names.empty())
        say(fmt::format("points that were joined had different values of '{}'; those of the first one are kept",
                        fmt::join(names, "', '")));
    const auto faults = find_cell_faults(joined.mesh);
    if (faults.degenerate_cells > earlier)
        say(fmt::format(
            "{} (the first is number {}) shrank: points of one cell were joined. Use a smaller --join-points",
            count_text(faults.degenerate_cells - earlier, "cell"), faults.first_degenerate));
    return std::move(joined.mesh);
}

/// Multiplies the points as --scale says.
void scale_points(Mesh& mesh, double factor)
{
    if (!(factor > 0 && std::isfinite(factor)))
        throw UsageError("--scale is {}, expected a number above 0.", number_text(factor));
    const auto scale = [&](auto values) {
        for (auto& value : values) value = static_cast<std::remove_reference_t<decltype(value)>>(factor * value);
    };
    if (mesh.points.type() == ScalarType::Float32)
        scale(mesh.points.mutable_values<float>());
    else
        scale(mesh.points.mutable_values<double>());
}

/// Throws if options of meshes are given for an input of another kind. @param what   it is, or has
void require_no_mesh_options(const ConvertOptions& options, const std::string& what)
{
    if (!options.blocks.empty() || !options.time.empty() || options.compress != "none" || options.join_points ||
        options.scale)
        throw UsageError("--block, --time, --join-points, --scale and --compress are for meshes; {} {}.", options.input,
                         what);
}

/// Writes each run in a file of TensorFlow's records as a series in the folder OUT.
void convert_records(const ConvertOptions& options)
{
    require_no_mesh_options(options, "has runs of a simulation");
    const std::filesystem::path input = options.input, folder = options.output;
    if (folder.has_extension() && !std::filesystem::is_directory(folder))
        throw UsageError("{} has runs of a simulation, which are written into a folder. Say -o FOLDER.", options.input);
    TrajectoryRecords records(input);
    const auto file_of = [&](std::int64_t run) {
        return folder / fmt::format("{}_{:04}.vtkhdf", input.stem().string(), run);
    };
    const MadeFolders folders(file_of(0));
    std::int64_t num_runs = 0, num_states = 0;
    while (const auto run = records.next()) {
        show_progress(fmt::format("writing run {} ...", num_runs));
        write_vtkhdf_series(file_of(num_runs), run->times(), [&](std::size_t i) { return run->state(i); });
        num_states += std::ssize(run->times());
        ++num_runs;
    }
    show_progress("");
    if (options.json) {
        print_json({{"input", options.input}, {"output", options.output}, {"runs", num_runs}, {"states", num_states}});
        return;
    }
    std::cout << fmt::format("{}: {} with {} in all\nwritten to {}\n", options.input, count_text(num_runs, "run"),
                             count_text(num_states, "state"),
                             (folder / (input.stem().string() + "_*.vtkhdf")).string());
}

}  // namespace

int convert_command(std::span<const std::string> arguments)
{
    ConvertOptions options;
    if (!parse(arguments, options)) return exit_code::ok;
    if (lower_extension(options.input) == ".tfrecord") {
        convert_records(options);
        return exit_code::ok;
    }
    require_output(options.output, {options.input}, options.input_as_output);
    if (is_checkpoint_file(options.input)) {
        require_no_mesh_options(options, "is a checkpoint");
        convert_checkpoint({options.input, options.output, options.to, options.json});
        return exit_code::ok;
    }
    if (!options.to.empty())
        throw UsageError("--to is for checkpoints; {} is not one. A mesh's format is given by OUT's extension.",
                         options.input);
    const std::filesystem::path output = options.output;
    require_writable_format(output);
    WriteOptions write_options{.compression = parse_compression(options.compress)};
    ReadOptions read_options;
    read_options.blocks = options.blocks;
    if (!options.time.empty()) read_options.time = parse_numbers(options.time, "--time", 1)[0];
    const std::string extension = lower_extension(output);
    const bool to_polygons = extension == ".vtp" || extension == ".pvtp";
    // A .vtp cannot hold the volume cells of a case, so the case's patches are read.
    if (to_polygons && options.blocks.empty() && is_foam_case(options.input)) read_options.blocks = {"boundary"};
    std::vector<std::string> warnings;
    read_options.warnings = &warnings;

    StageTimer timer;
    timer.begin("read");
    show_progress("reading ...");
    // Other points change the pieces, so the merged mesh is written in their place.
    const bool is_folder = is_shards_folder(options.input);
    const bool from_shards = is_folder && !options.join_points && !options.scale;
    if (is_folder && (!options.blocks.empty() || !options.time.empty()))
        throw UsageError("--block and --time cannot be used with a shards folder, which has neither.");
    Mesh mesh = is_folder ? merge_subdomains(load_subdomains(options.input, check_of(!options.no_verify)))
                          : read_mesh(options.input, read_options);
    show_progress("");
    for (const std::string& text : warnings) warn("convert", text + ".");
    if (options.join_points) mesh = with_joined_points(mesh, options, warnings);
    if (options.scale) scale_points(mesh, *options.scale);
    if (to_polygons) sort_as_polygonal(mesh);
    timer.begin("write");
    show_progress("writing ...");
    const MadeFolders folders(output);
    std::vector<std::filesystem::path> written{output};
    if (from_shards && (extension == ".vtkhdf" || extension == ".hdf"))
        write_vtkhdf(output, pieces_of(options.input, false), write_options);
    else if (extension == ".pvtu" || extension == ".pvtp")
        written = from_shards ? write_vtk_parallel(output, pieces_of(options.input, to_polygons),
                                                   read_manifest(options.input).num_ghost_layers, write_options)
                              : write_vtk_parallel(output, std::span(&mesh, 1), 0, write_options);
    else
        write_mesh(output, mesh, write_options);
    show_progress("");
    const auto seconds = timer.finish();

    const auto bytes = total_size(written);
    if (options.json) {
        Json stages;
        for (const auto& [stage, duration] : seconds) stages[stage] = duration;
        print_json({{"input", options.input},
                    {"output", options.output},
                    {"num_cells", mesh.num_cells()},
                    {"num_points", mesh.num_points()},
                    {"point_arrays", mesh.point_data.size()},
                    {"cell_arrays", mesh.cell_data.size()},
                    {"field_arrays", mesh.field_data.size()},
                    {"bytes", bytes},
                    {"warnings", warnings},
                    {"seconds", std::move(stages)}});
        return exit_code::ok;
    }
    std::cout << options.input << ": " << count_text(mesh.num_cells(), "cell") << ", "
              << count_text(mesh.num_points(), "point") << ", " << count_text(std::ssize(mesh.cell_data), "cell array")
              << ", " << count_text(std::ssize(mesh.point_data), "point array") << "\nwritten to " << options.output
              << " (" << bytes_text(bytes) << ") in " << fixed_text(seconds[0].second + seconds[1].second, 2) << " s\n";
    return exit_code::ok;
}

}  // namespace meshard
