// SPDX-License-Identifier: Apache-2.0
#include "apps/fields/wall_surface.h"

#include "apps/fields/mesh_fields.h"
#include "io/foam/foam_reader.h"
#include "io/mesh_io.h"
#include "partition/error.h"
#include "partition/mesh/cell_type.h"
#include "partition/mesh/surface_triangles.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace meshard {
namespace {

Mesh read_wall(const std::string& word, const std::string& mesh)
{
    if (std::filesystem::exists(word) && !(is_foam_case(mesh) && std::filesystem::is_directory(word)))
        return read_mesh(word);
    const bool is_level = word.find('/') != std::string::npos || !is_foam_case(mesh);
    try {
        ReadOptions options;
        options.blocks = {is_level ? word : "boundary/" + word};
        return read_mesh(mesh, options);
    } catch (const Error& error) {
        throw IoError("--wall-distance {}: there is no such file and no such patch: {}", word, error.what());
    }
}

}  // namespace

WallSurface read_walls(std::span<const std::string> words, const std::string& mesh, Orient orient)
{
    std::vector<double> vertices;
    std::vector<std::int64_t> faces;
    SurfaceFacing facing{.is_closed = true};
    for (const auto& word : words) {
        Mesh wall = read_wall(word, mesh);
        require_positions(wall, word);
        for (const auto type : wall.cell_types) {
            if (cell_dimension(type) == 3)
                throw InvalidInput(
                    "--wall-distance {} has solid cells, but distances are measured to a surface. Give the file of the "
                    "surface, or the name of a patch.",
                    word);
        }
        const auto found = orient_surface(wall, orient);
        facing.outward += found.outward;
        facing.inward += found.inward;
        facing.unknown += found.unknown;
        facing.is_closed = facing.is_closed && found.is_closed;
        const auto surface = surface_triangles(wall);
        if (surface.triangles.empty())
            throw InvalidInput("--wall-distance {} has no polygons, but distances are measured to a surface.", word);
        const auto first = std::ssize(vertices) / 3;
        vertices.insert(vertices.end(), surface.points.begin(), surface.points.end());
        for (const auto point : surface.triangles) faces.push_back(first + point);
    }
    return {at::tensor(vertices, at::kDouble).view({-1, 3}), at::tensor(faces, at::kLong).view({-1, 3}), facing};
}

}  // namespace meshard
