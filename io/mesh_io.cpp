// SPDX-License-Identifier: Apache-2.0
#include "io/mesh_io.h"

#include "io/collection_reader.h"
#include "io/foam/foam_reader.h"
#include "io/surface_files/obj_reader.h"
#include "io/surface_files/ply_reader.h"
#include "io/surface_files/stl_reader.h"
#include "io/vtk/vtk_bridge.h"
#include "io/vtk/vtk_parallel_reader.h"
#include "io/vtk/vtk_xml_file.h"
#include "io/vtk/vtk_xml_writer.h"
#include "io/vtk/vtkhdf.h"
#include "partition/error.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <string>

namespace meshard {

namespace {

std::string lower_extension(const std::filesystem::path& path)
{
    std::string extension = path.extension().string();
    std::ranges::transform(extension, extension.begin(), [](unsigned char c) { return std::tolower(c); });
    return extension;
}

Mesh read_single(const std::filesystem::path& path)
{
    const std::string extension = lower_extension(path);
    if (std::filesystem::is_directory(path))
        throw IoError("read_mesh: " + path.string() + " is a folder, a file or an OpenFOAM case is expected." +
                      (std::filesystem::exists(path / "manifest.json") ? " It is a shards folder: merge it, or read the mesh.pvtu or mesh.pvtp in it." : ""));
    if (extension == ".stl") return read_stl(path);
    if (extension == ".ply") return read_ply(path);
    if (extension == ".obj") return read_obj(path);
    if (extension == ".vtk") return read_with_vtk(path);
    if (extension == ".vtu" || extension == ".vtp") return read_vtk_piece(path);
    if (extension == ".pvtu" || extension == ".pvtp") return read_vtk_parallel(VtkXmlFile(path), path);
    throw IoError("read_mesh: " + path.string() + " has the extension '" + extension +
                  "'; known are .vtu, .vtp, .pvtu, .pvtp, .vtm, .vtpc, .pvd, .series, .vtkhdf, .vtk, .foam, .cgns, .case, .exo, .stl, .ply and .obj.");
}

/// `parents` are the collections that led here, the outermost first.
std::vector<MeshBlock> read_any(const std::filesystem::path& path, const ReadOptions& options, std::vector<std::filesystem::path> parents)
{
    const std::string where = "read_mesh: " + path.string();
    if (is_foam_case(path)) return read_foam_case(path, options);
    if (is_vtk_composite(path)) return read_blocks_with_vtk(path, options);
    const std::string extension = lower_extension(path);
    if (extension == ".vtkhdf" || extension == ".hdf") return read_vtkhdf(path, options);
    if (is_collection(path)) {
        std::error_code ignored;
        const auto self = std::filesystem::weakly_canonical(path, ignored);
        if (std::ranges::find(parents, self) != parents.end())
            throw IoError(where + " names itself, directly or through the files that it names. Remove the cycle.");
        constexpr std::size_t max_depth = 16;
        if (parents.size() >= max_depth) throw IoError(where + " is nested deeper than 16 collections.");
        parents.push_back(self);
        ReadOptions inner;
        inner.time = extension == ".pvd" || extension == ".series" ? std::nullopt : options.time;
        inner.warnings = options.warnings;
        return read_collection(path, options, [&](const std::filesystem::path& member) { return read_any(member, inner, parents); });
    }
    std::vector<MeshBlock> blocks;
    blocks.push_back({"", read_single(path)});
    if (!options.blocks.empty()) throw InvalidInput(where + " holds one mesh and no blocks to choose from. Leave out the choice of blocks.");
    return blocks;
}

}  // namespace

Mesh read_mesh(const std::filesystem::path& path, const ReadOptions& options)
{
    if (is_foam_case(path)) return read_foam_mesh(path, options);
    return join_blocks(read_blocks(path, options), true, "read_mesh: " + path.string());
}

std::vector<MeshBlock> read_blocks(const std::filesystem::path& path, const ReadOptions& options)
{
    return read_any(path, options, {});
}

std::string writable_formats()
{
    return ".vtu .vtp .pvtu .pvtp .vtkhdf";
}

void require_writable_format(const std::filesystem::path& path)
{
    const std::string extension = lower_extension(path);
    constexpr std::array known{".vtu", ".vtp", ".pvtu", ".pvtp", ".vtkhdf", ".hdf"};
    if (std::ranges::find(known, extension) == known.end())
        throw IoError("write_mesh: " + path.string() + " has the extension '" + extension + "'; .vtu and .vtp can be written, and .pvtu, .pvtp, .vtkhdf.");
}

void write_mesh(const std::filesystem::path& path, const Mesh& mesh, const WriteOptions& options)
{
    require_writable_format(path);
    const std::string extension = lower_extension(path);
    if (extension == ".vtu")
        write_vtk_xml(path, mesh, MeshKind::Unstructured, options);
    else if (extension == ".vtp")
        write_vtk_xml(path, mesh, MeshKind::Surface, options);
    else if (extension == ".pvtu" || extension == ".pvtp")
        write_vtk_parallel(path, std::span(&mesh, 1), 0, options);
    else
        write_vtkhdf(path, std::span(&mesh, 1), options);
}

}  // namespace meshard
