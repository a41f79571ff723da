// SPDX-License-Identifier: Apache-2.0
#include "apps/verbs/wall_surface.h"

#include "apps/verbs/mesh_fields.h"
#include "io/foam/foam_reader.h"
#include "io/mesh_io.h"
#include "partition/error.h"
#include "partition/mesh/cell_geometry.h"
#include "partition/mesh/cell_type.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace meshard {
namespace {

Mesh read_wall(const std::string& word, const std::string& mesh)
{
    if (std::filesystem::exists(word) && !(is_foam_case(mesh) && std::filesystem::is_directory(word))) return read_mesh(word);
    const bool is_level = word.find('/') != std::string::npos || !is_foam_case(mesh);
    try {
        ReadOptions options;
        options.blocks = {is_level ? word : "boundary/" + word};
        return read_mesh(mesh, options);
    } catch (const Error& error) {
        throw IoError("--wall-distance " + word + ": there is no such file and no such patch: " + error.what());
    }
}

class TriangleList {
public:
    void add(const Mesh& mesh)
    {
        const auto positions = point_positions(mesh);
        const auto first = static_cast<std::int64_t>(vertices_.size()) / 3;
        for (const auto& position : positions) push(position);
        Csr edges;
        for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
            if (cell_dimension(mesh.cell_types[i]) != 2) continue;
            if (cell_type_of(mesh.cell_types[i]).shape == CellShape::Strip) {
                add_strip(mesh.cells.row(i), first);
                continue;
            }
            cell_facets(mesh, i, edges);
            std::vector<std::int32_t> corners;
            for (std::int64_t k = 0; k < edges.num_rows(); ++k) corners.push_back(edges.row(k)[0]);
            add_polygon(positions, corners, first);
        }
    }

    std::size_t num_faces() const { return faces_.size() / 3; }
    at::Tensor vertices() const { return at::tensor(vertices_, at::kDouble).view({-1, 3}); }
    at::Tensor faces() const { return at::tensor(faces_, at::kLong).view({-1, 3}); }

private:
    void push(const Vector3& position) { vertices_.insert(vertices_.end(), position.begin(), position.end()); }
    void push_face(std::int64_t a, std::int64_t b, std::int64_t c) { faces_.insert(faces_.end(), {a, b, c}); }

    void add_polygon(std::span<const Vector3> positions, std::span<const std::int32_t> corners, std::int64_t first)
    {
        if (corners.size() == 3) return push_face(first + corners[0], first + corners[1], first + corners[2]);
        const auto middle = static_cast<std::int64_t>(vertices_.size()) / 3;
        for_each_face_triangle(positions, corners, [&](std::int32_t a, std::int32_t b, const Vector3&, const Vector3& mean) {
            if (static_cast<std::int64_t>(vertices_.size()) / 3 == middle) push(mean);
            push_face(first + a, first + b, middle);
        });
    }

    /// Every second triangle of a strip has the opposite orientation.
    void add_strip(std::span<const std::int32_t> points, std::int64_t first)
    {
        for (std::size_t k = 0; k + 2 < points.size(); ++k) push_face(first + points[k], first + points[k + 1 + k % 2], first + points[k + 2 - k % 2]);
    }

    std::vector<double> vertices_;
    std::vector<std::int64_t> faces_;
};

}  // namespace

WallSurface read_walls(std::span<const std::string> words, const std::string& mesh, Orient orient)
{
    TriangleList triangles;
    SurfaceFacing facing{.is_closed = true};
    for (const auto& word : words) {
        Mesh wall = read_wall(word, mesh);
        require_positions(wall, word);
        for (const auto type : wall.cell_types) {
            if (cell_dimension(type) == 3)
                throw InvalidInput("--wall-distance " + word +
                                   " has solid cells, but distances are measured to a surface. Give the file of the surface, or the name of a patch.");
        }
        const auto found = orient_surface(wall, orient);
        facing.outward += found.outward;
        facing.inward += found.inward;
        facing.unknown += found.unknown;
        facing.is_closed = facing.is_closed && found.is_closed;
        const auto before = triangles.num_faces();
        triangles.add(wall);
        if (triangles.num_faces() == before) throw InvalidInput("--wall-distance " + word + " has no polygons, but distances are measured to a surface.");
    }
    return {triangles.vertices(), triangles.faces(), facing};
}

}  // namespace meshard
