// SPDX-License-Identifier: Apache-2.0
#include "io/mesh_io.h"

#include "io/bytes/read_warnings.h"
#include "io/bytes/text_encoding.h"
#include "io/collection_reader.h"
#include "io/foam/foam_reader.h"
#include "io/surface_files/obj_reader.h"
#include "io/surface_files/ply_reader.h"
#include "io/surface_files/stl_reader.h"
#include "io/vtk/grid_file.h"
#include "io/vtk/image_file.h"
#include "io/vtk/reading_conventions.h"
#include "io/vtk/vtk_bridge.h"
#include "io/vtk/vtk_parallel_reader.h"
#include "io/vtk/vtk_xml_writer.h"
#include "io/vtk/vtkhdf.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

namespace meshard {

namespace {

/// A kind of file. Files of several blocks have no `read` here: `read_by_format` knows their readers.
struct Format {
    std::string_view extension;
    Mesh (*read)(const std::filesystem::path& path, const ReadOptions& options) = nullptr;
    void (*write)(const std::filesystem::path& path, const Mesh& mesh, const WriteOptions& options) = nullptr;
};

using Path = std::filesystem::path;

/// The points and cells of a grid, with its arrays.
Mesh mesh_of(ImageGrid grid)
{
    auto mesh = image_mesh(grid);
    mesh.point_data = std::move(grid.point_data);
    mesh.cell_data = std::move(grid.cell_data);
    mesh.field_data = std::move(grid.field_data);
    return mesh;
}

Mesh read_grid(const Path& path, const ReadOptions& options)
{
    auto grid = read_whole_grid(path, options.time);
    for (const auto& [name, why] : grid.left_out)
        options.warnings->push_back(fmt::format("{}: the array '{}' is left out: it {}", path.string(), name,
                                                why.substr(0, why.find_last_not_of('.') + 1)));
    return mesh_of(std::move(grid));
}

constexpr Format kFormats[] = {
    {".vtu", read_vtk_piece,
     [](const Path& path, const Mesh& mesh, const WriteOptions& o) {
         write_vtk_xml(path, mesh, MeshKind::Unstructured, o);
     }},
    {".vtp", read_vtk_piece,
     [](const Path& path, const Mesh& mesh, const WriteOptions& o) {
         write_vtk_xml(path, mesh, MeshKind::Surface, o);
     }},
    {".pvtu", read_vtk_parallel,
     [](const Path& path, const Mesh& mesh, const WriteOptions& o) {
         write_vtk_parallel(path, std::span(&mesh, 1), 0, o);
     }},
    {".pvtp", read_vtk_parallel,
     [](const Path& path, const Mesh& mesh, const WriteOptions& o) {
         write_vtk_parallel(path, std::span(&mesh, 1), 0, o);
     }},
    {".vtkhdf", nullptr,
     [](const Path& path, const Mesh& mesh, const WriteOptions& o) { write_vtkhdf(path, std::span(&mesh, 1), o); }},
    {".hdf", nullptr,
     [](const Path& path, const Mesh& mesh, const WriteOptions& o) { write_vtkhdf(path, std::span(&mesh, 1), o); }},
    {".vti",
     [](const Path& path, const ReadOptions& options) {
         const auto image = read_image_of_one_piece(path);
         return image ? mesh_of(*image) : read_grid(path, options);
     }},
    {".pvti", read_grid},
    {".zarr", read_grid},
    {".h5", read_grid},
    {".hdf5", read_grid},
    {".nc", read_grid},
    {".vtm"},
    {".vtpc"},
    {".pvd"},
    {".series"},
    {".vtk", [](const Path& path, const ReadOptions&) { return read_with_vtk(path); }},
    {".foam"},
    {".cgns"},
    {".case"},
    {".exo"},
    {".stl", read_stl},
    {".ply", read_ply},
    {".obj", [](const Path& path, const ReadOptions&) { return read_obj(path); }},
};

const Format* find_format(const std::filesystem::path& path)
{
    const auto* const found = std::ranges::find(kFormats, lower_extension(path), &Format::extension);
    return found == std::end(kFormats) ? nullptr : found;
}

std::string extensions(bool writable)
{
    std::string text;
    for (const Format& format : kFormats)
        if (!writable || format.write) text += (text.empty() ? "" : " ") + std::string(format.extension);
    return text;
}

bool has_time(const Mesh& mesh, double wanted)
{
    const DataArray* time = find_array(mesh.field_data, "TimeValue");
    return time != nullptr && time->type() != ScalarType::String && time->num_values() == 1 &&
           std::abs(time->value(0) - wanted) <= 1e-9 * std::max(1.0, std::abs(wanted));
}

Mesh read_single(const std::filesystem::path& path, const ReadOptions& options)
{
    if (std::filesystem::is_directory(path) && !is_array_file(path))
        throw IoError("read_mesh: {} is a folder, a file or an OpenFOAM case is expected.{}", path.string(),
                      std::filesystem::exists(path / "manifest.json")
                          ? " It is a shards folder: merge it, or read the mesh.pvtu or mesh.pvtp in it."
                          : "");
    if (const Format* format = find_format(path); format && format->read) return format->read(path, options);
    if (lower_extension(path).empty() && !std::filesystem::exists(path))
        throw IoError("read_mesh: {} does not exist. Check the path.", path.string());
    throw IoError("read_mesh: {} has the extension '{}'; known are {}.", path.string(), lower_extension(path),
                  readable_formats());
}

std::vector<MeshBlock> read_any(const std::filesystem::path& path, const ReadOptions& options,
                                std::vector<std::filesystem::path> parents);

/// @param parents   the collections that contain this file, the outermost first
std::vector<MeshBlock> read_by_format(const std::filesystem::path& path, const ReadOptions& options,
                                      std::vector<std::filesystem::path> parents)
{
    const std::string where = "read_mesh: " + path.string();
    if (is_foam_case(path)) return read_foam_case(path, options);
    if (is_vtk_composite(path)) return read_blocks_with_vtk(path, options);
    const std::string extension = lower_extension(path);
    if (extension == ".vtkhdf" || extension == ".hdf") return read_vtkhdf(path, options);
    if (is_collection(path)) {
        std::error_code ignored;
        const auto self = std::filesystem::weakly_canonical(path, ignored);
        if (contains(parents, self))
            throw IoError("{} names itself, directly or through the files that it names. Remove the cycle.", where);
        constexpr std::size_t max_depth = 16;
        if (parents.size() >= max_depth) throw IoError("{} is nested deeper than 16 collections.", where);
        parents.push_back(self);
        ReadOptions inner;
        inner.time = extension == ".pvd" || extension == ".series" ? std::nullopt : options.time;
        inner.warnings = options.warnings;
        return read_collection(path, options,
                               [&](const std::filesystem::path& member) { return read_any(member, inner, parents); });
    }
    std::vector<MeshBlock> blocks;
    blocks.push_back({"", read_single(path, options)});
    if (!options.blocks.empty())
        throw InvalidInput("{} holds one mesh and no blocks to choose from. Leave out the choice of blocks.", where);
    if (options.time && parents.empty() && !has_time(blocks.front().mesh, *options.time))
        throw InvalidInput("{} has no times to choose from, or not this one. Leave out the choice of a time.", where);
    return blocks;
}

std::vector<MeshBlock> read_any(const std::filesystem::path& path, const ReadOptions& options,
                                std::vector<std::filesystem::path> parents)
{
    std::vector<MeshBlock> blocks = read_by_format(path, options, std::move(parents));
    for (MeshBlock& block : blocks) {
        block.name = utf8_or_latin1(block.name);
        apply_reading_conventions(block.mesh, path.string(), *options.warnings);
    }
    return blocks;
}

/// Calls `read` with options that have a list of warnings.
template <class F>
auto with_warnings(const ReadOptions& options, F&& read)
{
    std::vector<std::string> warnings;
    ReadOptions inner = options;
    inner.warnings = &warnings;
    auto result = read(inner);
    deliver_read_warnings(warnings, options);
    return result;
}

}  // namespace

Mesh read_mesh(const std::filesystem::path& path, const ReadOptions& options)
{
    return with_warnings(options, [&](const ReadOptions& inner) {
        if (!is_foam_case(path)) return join_blocks(read_any(path, inner, {}), true, "read_mesh: " + path.string());
        Mesh mesh = read_foam_mesh(path, inner);
        apply_reading_conventions(mesh, path.string(), *inner.warnings);
        return mesh;
    });
}

std::vector<MeshBlock> read_blocks(const std::filesystem::path& path, const ReadOptions& options)
{
    return with_warnings(options, [&](const ReadOptions& inner) { return read_any(path, inner, {}); });
}

std::string readable_formats()
{
    return extensions(false);
}

std::string writable_formats()
{
    return extensions(true);
}

void require_writable_format(const std::filesystem::path& path)
{
    if (const Format* format = find_format(path); !format || !format->write)
        throw IoError("write_mesh: {} has the extension '{}'; writable are {}.", path.string(), lower_extension(path),
                      writable_formats());
}

void require_writable_format(const std::filesystem::path& path, const Mesh& mesh)
{
    require_writable_format(path);
    if (const auto extension = lower_extension(path); extension == ".vtp" || extension == ".pvtp")
        polydata_counts(mesh);
}

void write_mesh(const std::filesystem::path& path, const Mesh& mesh, const WriteOptions& options)
{
    require_writable_format(path);
    mesh.validate();
    find_format(path)->write(path, mesh, options);
}

}  // namespace meshard
