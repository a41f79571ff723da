// SPDX-License-Identifier: Apache-2.0
#include "io/picture/outer_surface.h"

#include "partition/mesh/cell_type.h"
#include "partition/mesh/surface_triangles.h"

#include <algorithm>
#include <array>
#include <span>

namespace meshard {

namespace {

struct Face {
    std::uint64_t key;   // hash of its set of points
    std::int64_t first;  // index in `points` of its first point
    std::int32_t num_points;
    std::int32_t cell;
};

class SurfaceBuilder {
public:
    explicit SurfaceBuilder(const Mesh& mesh) : mesh_(mesh) {}

    std::vector<SurfaceTriangle> build()
    {
        const DataArray* ghosts = find_array(mesh_.cell_data, "vtkGhostType");
        if (ghosts != nullptr && (ghosts->type() != ScalarType::UInt8 || ghosts->num_components() != 1))
            ghosts = nullptr;
        for (std::int32_t cell = 0; cell < mesh_.num_cells(); ++cell)
            if (ghosts == nullptr || ghosts->values<std::uint8_t>()[cell] == 0) add_cell(cell);

        std::ranges::sort(faces_, {}, [](const Face& face) { return std::pair(face.key, face.first); });
        for (std::size_t i = 0, end = 0; i < faces_.size(); i = end) {
            for (end = i + 1; end < faces_.size() && faces_[end].key == faces_[i].key;) ++end;
            if (end == i + 1)
                add_polygon(std::span(points_).subspan(faces_[i].first, faces_[i].num_points), faces_[i].cell);
        }
        return std::move(triangles_);
    }

private:
    void add_cell(std::int32_t cell)
    {
        const auto points = mesh_.cells.row(cell);
        const CellShape shape = cell_type_of(mesh_.cell_types[cell]).shape;
        switch (shape) {
        case CellShape::Triangle:
            add_polygon(points.first(3), cell);
            break;
        case CellShape::Quad:
            add_polygon(points.first(4), cell);
            break;
        case CellShape::Polygon:
            add_polygon(points, cell);
            break;
        case CellShape::QuadraticPolygon:
            add_polygon(points.first(points.size() / 2), cell);
            break;
        case CellShape::Pixel:
            add_polygon(std::array{points[0], points[1], points[3], points[2]}, cell);
            break;
        case CellShape::Strip:
            for (std::size_t i = 0; i + 2 < points.size(); ++i)  // every second triangle has the opposite orientation
                triangles_.push_back({{points[i], points[i + 1 + i % 2], points[i + 2 - i % 2]}, cell});
            break;
        case CellShape::Polyhedron:
            add_polyhedron(cell);
            break;
        default:
            for (const auto corners : solid_faces(shape)) {
                const auto first = std::ssize(points_);
                for (const std::uint8_t corner : corners) points_.push_back(points[corner]);
                add_face(first, cell);
            }
        }
    }

    void add_polyhedron(std::int32_t cell)
    {
        const auto stream = mesh_.face_streams.row(cell);
        for (std::size_t at = 1; at < stream.size(); at += 1 + static_cast<std::size_t>(stream[at])) {
            const auto first = std::ssize(points_);
            const auto face = stream.subspan(at + 1, stream[at]);
            points_.insert(points_.end(), face.begin(), face.end());
            add_face(first, cell);
        }
    }

    void add_face(std::int64_t first, std::int32_t cell)
    {
        // Equal for the same points in any order. Collisions of different sets in 64 bits are too rare to matter in a
        // picture.
        std::uint64_t key = 0;
        for (const std::int32_t point : std::span(points_).subspan(first)) {
            std::uint64_t bits = static_cast<std::uint64_t>(point) + 0x9E3779B97F4A7C15;
            bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9;
            bits = (bits ^ bits >> 27) * 0x94D049BB133111EB;
            key += bits ^ bits >> 31;
        }
        faces_.push_back({key, first, static_cast<std::int32_t>(points_.size() - first), cell});
    }

    void add_polygon(std::span<const std::int32_t> points, std::int32_t cell)
    {
        if (points.size() > 3) {
            corners_.clear();
            for (const auto point : points)
                corners_.push_back(
                    {mesh_.points.value(point, 0), mesh_.points.value(point, 1), mesh_.points.value(point, 2)});
            const auto ears =
                is_fan(corners_, corners_[0]) ? std::vector<std::array<std::int32_t, 3>>{} : cut_ears(corners_);
            for (const auto& [a, b, c] : ears) triangles_.push_back({{points[a], points[b], points[c]}, cell});
            if (!ears.empty()) return;
        }
        for (std::size_t i = 2; i < points.size(); ++i)
            triangles_.push_back({{points[0], points[i - 1], points[i]}, cell});
    }

    const Mesh& mesh_;
    std::vector<std::int32_t> points_;
    std::vector<Face> faces_;
    std::vector<SurfaceTriangle> triangles_;
    std::vector<Vector3> corners_;  // of the polygon that is divided
};

}  // namespace

std::vector<SurfaceTriangle> outer_surface(const Mesh& mesh)
{
    return SurfaceBuilder(mesh).build();
}

}  // namespace meshard
