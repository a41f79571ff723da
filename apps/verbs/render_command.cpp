// SPDX-License-Identifier: Apache-2.0
// meshard render: draws a mesh file or a shards folder to a PNG file.
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/output_file.h"
#include "apps/program/verbs.h"
#include "io/bytes/made_folders.h"
#include "io/foam/foam_reader.h"
#include "io/mesh_io.h"
#include "io/picture/render.h"
#include "io/shards/subdomain_io.h"
#include "io/vtk/grid_file.h"
#include "partition/nearest_name.h"

#include <charconv>
#include <filesystem>
#include <iostream>

namespace meshard {

namespace {

/// Merges the shards of a folder into one mesh, with the part of each cell (or point of a cloud) as `PartitionId`.
Mesh merged_with_parts(const std::filesystem::path& folder, PieceCheck check)
{
    const std::vector<Subdomain> subdomains = load_subdomains(folder, check);
    Mesh mesh = merge_subdomains(subdomains);
    std::vector<DataArray>& arrays = mesh.is_point_cloud() ? mesh.point_data : mesh.cell_data;
    if (find_array(arrays, "PartitionId")) return mesh;
    std::vector<std::int32_t> parts(mesh.num_rows());
    for (const Subdomain& subdomain : subdomains) {
        for (const std::int64_t row : subdomain.rows().owned()) parts[row] = subdomain.part;
    }
    arrays.push_back(DataArray::from("PartitionId", std::move(parts)));
    return mesh;
}

void parse_size(const std::string& text, RenderOptions& options)
{
    const char* const end = text.data() + text.size();
    const auto [x, width_error] = std::from_chars(text.data(), end, options.width);
    const bool has_x = width_error == std::errc() && x != end && *x == 'x';
    const auto [last, height_error] = std::from_chars(has_x ? x + 1 : end, end, options.height);
    if (!has_x || height_error != std::errc() || last != end || std::min(options.width, options.height) < 64 ||
        std::max(options.width, options.height) > 16384) {
        throw UsageError("--size is '{}'; expected WIDTHxHEIGHT with 64 to 16384 pixels each, e.g. 1280x800.", text);
    }
}

}  // namespace

int render_command(std::span<const std::string> arguments)
{
    std::string file;
    std::string output;
    std::string range;
    std::string view = "iso";
    std::string size = "1280x800";
    RenderOptions options;
    CLI::App app("Draws a surface, the outside of a volume, or a point cloud to a PNG file. Needs no display.",
                 "render");
    add_named(app, "file", file, "FILE", "mesh or shards folder to draw; `meshard convert --help` lists the formats")
        ->required();
    add_named(app, "-o,--output", output, "PNG", "picture to write (.png)")->required();
    add_named(app, "--color-by", options.color_by, "FIELD",
              "array, of cells where points have one of that name, too; for a shards folder also PartitionId")
        ->default_str("plain grey");
    add_named(app, "--component", options.component, "K", "component of a vector: x, y, z or a number")
        ->default_str("its magnitude");
    add_named(app, "--range", range, "A,B", "lowest and highest value of the colours, e.g. -1,1")
        ->default_str("those of the field");
    add_shown(app, "--view", view, "NAME", "direction of view, with x downstream and z up: iso, side, front or top");
    add_shown(app, "--size", size, "WxH", "width and height in pixels");
    bool no_verify = false;
    add_verify_option(app, no_verify);
    InputAsOutput input_as_output{};
    add_overwrite_option(app, input_as_output);
    if (!parse_arguments(app, arguments)) return exit_code::ok;

    if (lower_extension(output) != ".png") {
        throw UsageError("-o is '{}'; expected a name that ends in .png.", output);
    }
    parse_size(size, options);
    if (!range.empty()) {
        const std::vector<double> ends = parse_numbers(range, "--range", 2);
        if (ends[0] >= ends[1]) throw UsageError("--range is '{}'; the first value must be below the second.", range);
        options.range = {ends[0], ends[1]};
    }
    try {
        options.view = view_from_name(view);
    } catch (const InvalidInput& error) {
        throw UsageError(error.what());
    }

    require_output(output, {file}, input_as_output);

    show_progress("drawing ...");
    const bool is_of_shards = std::filesystem::is_directory(file) && !is_array_file(file) && !is_foam_case(file);
    const Mesh mesh = is_of_shards ? merged_with_parts(file, check_of(!no_verify)) : read_mesh(file);
    const MadeFolders folders(output);
    render_mesh(mesh, output, options);
    show_progress("");
    std::cout << "written to " << output << '\n';
    return exit_code::ok;
}

}  // namespace meshard
