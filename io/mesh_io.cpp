// SPDX-License-Identifier: Apache-2.0
#include "io/mesh_io.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "io/foam_reader.h"
#include "io/ply_reader.h"
#include "io/stl_reader.h"
#include "io/vtk_bridge.h"
#include "io/vtk_parallel_reader.h"
#include "io/vtk_xml_file.h"
#include "io/vtk_xml_reader.h"
#include "io/vtk_xml_writer.h"
#include "partition/error.h"

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
                      (std::filesystem::exists(path / "manifest.json")
                           ? " It is a shards folder: merge it, or read the mesh.pvtu or mesh.pvtp in it."
                           : ""));
    if (extension == ".stl") return read_stl(path);
    if (extension == ".ply") return read_ply(path);
    if (extension == ".vtk") return read_with_vtk(path);
    if (extension == ".vtu" || extension == ".vtp") {
        const VtkXmlFile file(path);
        return file.has_known_compressor() ? read_vtk_xml(file) : read_with_vtk(path);
    }
    if (extension == ".pvtu" || extension == ".pvtp") return read_vtk_parallel(VtkXmlFile(path), path);
    throw IoError("read_mesh: " + path.string() + " has the extension '" + extension +
                  "'; known are .vtu, .vtp, .pvtu, .pvtp, .vtk, .stl, .ply and .foam.");
}

}  // namespace

Mesh read_mesh(const std::filesystem::path& path, const ReadOptions& options)
{
    const bool numbered = !is_foam_case(path) || options.blocks.empty();    // patches have ids of their own
    return join_blocks(read_blocks(path, options), numbered, "read_mesh: " + path.string());
}

std::vector<MeshBlock> read_blocks(const std::filesystem::path& path, const ReadOptions& options)
{
    if (is_foam_case(path)) return read_foam_case(path, options);
    std::vector<MeshBlock> blocks;
    blocks.push_back({"", read_single(path)});
    if (!options.blocks.empty())
        throw InvalidInput("read_mesh: " + path.string() + " holds one mesh and no blocks to choose from; leave the choice out.");
    return blocks;
}

std::string writable_formats()
{
    return ".vtu .vtp";
}

void require_writable_format(const std::filesystem::path& path)
{
    const std::string extension = lower_extension(path);
    if (extension == ".vtu" || extension == ".vtp") return;
    throw IoError("write_mesh: " + path.string() + " has the extension '" + extension + "'; .vtu and .vtp can be written.");
}

void write_mesh(const std::filesystem::path& path, const Mesh& mesh, const WriteOptions& options)
{
    require_writable_format(path);
    write_vtk_xml(path, mesh, lower_extension(path) == ".vtp" ? MeshKind::Surface : MeshKind::Unstructured, options);
}

const char* extension_of(MeshKind kind)
{
    return kind == MeshKind::Surface ? ".vtp" : ".vtu";
}

}  // namespace meshard
