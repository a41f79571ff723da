// SPDX-License-Identifier: Apache-2.0
#include "io/mesh_io.h"

#include <algorithm>
#include <cctype>
#include <string>

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

}  // namespace

Mesh read_mesh(const std::filesystem::path& path)
{
    const std::string extension = lower_extension(path);
    if (std::filesystem::is_directory(path))
        throw IoError("read_mesh: " + path.string() + " is a folder, a file is expected." +
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
                  "'; known are .vtu, .vtp, .pvtu, .pvtp, .vtk, .stl and .ply.");
}

void write_mesh(const std::filesystem::path& path, const Mesh& mesh, const WriteOptions& options)
{
    const std::string extension = lower_extension(path);
    if (extension == ".vtu") write_vtk_xml(path, mesh, MeshKind::Unstructured, options);
    else if (extension == ".vtp") write_vtk_xml(path, mesh, MeshKind::Surface, options);
    else
        throw IoError("write_mesh: " + path.string() + " has the extension '" + extension +
                      "'; .vtu and .vtp can be written.");
}

const char* extension_of(MeshKind kind)
{
    return kind == MeshKind::Surface ? ".vtp" : ".vtu";
}

}  // namespace meshard
