// SPDX-License-Identifier: Apache-2.0
#include "io/foam/face_cells.h"

#include "partition/lists.h"

#include <algorithm>
#include <array>

namespace meshard {

namespace {

constexpr std::uint8_t tetra = 10, hexahedron = 12, wedge = 13, pyramid = 14, polyhedron = 42;

// A face with the orientation that it has in one of its cells.
struct Side {
    std::int32_t face = 0;
    bool outward = true;
};

class CellBuilder {
public:
    CellBuilder(const Csr& faces, std::span<const Side> sides) : faces_(faces), sides_(sides) {}

    /// The cell's points in VTK's order; none if it has none of the four simple shapes.
    std::uint8_t simple_shape(std::vector<std::int32_t>& points)
    {
        points.clear();
        int triangles = 0, quads = 0;
        for (const Side& side : sides_) {
            const auto corners = faces_.row(side.face).size();
            if (corners == 3)
                ++triangles;
            else if (corners == 4)
                ++quads;
            else
                return polyhedron;
        }
        if (triangles == 4 && quads == 0 && raise(base(3), false, 1, points)) return tetra;
        if (triangles == 4 && quads == 1 && raise(base(4), false, 1, points)) return pyramid;
        // The base of VTK's wedge points outwards, those of the other shapes inwards.
        if (triangles == 2 && quads == 3 && raise(base(3), true, 3, points)) return wedge;
        if (triangles == 0 && quads == 6 && raise(base(4), false, 4, points)) return hexahedron;
        points.clear();
        return polyhedron;
    }

    void append_polyhedron(FaceCells& result, std::vector<std::int32_t>& last_use, std::int32_t cell) const
    {
        auto& stream = result.face_streams.indices;
        stream.push_back(static_cast<std::int32_t>(sides_.size()));
        for (const Side& side : sides_) {
            const auto row = faces_.row(side.face);
            stream.push_back(static_cast<std::int32_t>(row.size()));
            if (side.outward)
                append(stream, row);
            else
                stream.insert(stream.end(), row.rbegin(), row.rend());
            for (const std::int32_t point : row)
                if (last_use[point] != cell) {
                    last_use[point] = cell;
                    result.cells.indices.push_back(point);
                }
        }
    }

private:
    const Side& base(std::size_t corners) const
    {
        return *std::ranges::find_if(sides_, [&](const Side& side) { return faces_.row(side.face).size() == corners; });
    }

    /// Finds the base and the points above it: one (an apex) or as many as the base has. Returns false if the faces do
    /// not fit.
    bool raise(const Side& base, bool looks_outward, std::size_t num_tops, std::vector<std::int32_t>& points) const
    {
        const auto row = faces_.row(base.face);
        points.assign(row.begin(), row.end());
        if (base.outward != looks_outward) std::ranges::reverse(points);
        const std::size_t corners = points.size();
        std::array<std::int32_t, 4> tops{-1, -1, -1, -1};
        const auto place = [&](std::int32_t point) {
            return static_cast<std::size_t>(
                std::find(points.begin(), points.begin() + static_cast<std::ptrdiff_t>(corners), point) -
                points.begin());
        };
        for (const Side& side : sides_) {
            if (&side == &base) continue;
            const auto ring = faces_.row(side.face);
            std::size_t on_base = 0;
            for (std::size_t i = 0; i < ring.size(); ++i) {
                const std::size_t at = place(ring[i]);
                if (at == corners) continue;
                ++on_base;
                for (const std::int32_t next :
                     {ring[(i + 1) % ring.size()], ring[(i + ring.size() - 1) % ring.size()]}) {
                    if (place(next) != corners) continue;
                    if (tops[at] >= 0 && tops[at] != next) return false;
                    tops[at] = next;
                }
            }
            if (on_base != 2 && on_base != 0) return false;
        }
        if (num_tops == 1) {
            if (std::any_of(tops.begin(), tops.begin() + static_cast<std::ptrdiff_t>(corners),
                            [&](std::int32_t top) { return top < 0 || top != tops[0]; }))
                return false;
            points.push_back(tops[0]);
        } else {
            for (std::size_t i = 0; i < corners; ++i) {
                if (tops[i] < 0) return false;
                points.push_back(tops[i]);
            }
        }
        for (std::size_t i = 1; i < points.size(); ++i)
            if (std::find(points.begin(), points.begin() + static_cast<std::ptrdiff_t>(i), points[i]) !=
                points.begin() + static_cast<std::ptrdiff_t>(i))
                return false;
        // Every face, the one opposite the base included, uses no other points.
        for (const Side& side : sides_)
            for (const std::int32_t point : faces_.row(side.face))
                if (!contains(points, point)) return false;
        return true;
    }

    const Csr& faces_;
    std::span<const Side> sides_;
};

}  // namespace

FaceCells cells_from_faces(const Csr& faces, std::span<const std::int32_t> owner,
                           std::span<const std::int32_t> neighbour, std::int64_t num_cells)
{
    std::vector<std::int64_t> begin(static_cast<std::size_t>(num_cells) + 1, 0);
    for (const std::int32_t cell : owner) ++begin[cell + 1];
    for (const std::int32_t cell : neighbour) ++begin[cell + 1];
    for (std::size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
    std::vector<Side> sides(owner.size() + neighbour.size());
    std::vector<std::int64_t> next(begin.begin(), begin.end() - 1);
    for (std::size_t face = 0; face < owner.size(); ++face) {
        sides[next[owner[face]]++] = {static_cast<std::int32_t>(face), true};
        if (face < neighbour.size()) sides[next[neighbour[face]]++] = {static_cast<std::int32_t>(face), false};
    }

    FaceCells result;
    result.types.reserve(num_cells);
    result.cells.offsets.reserve(static_cast<std::size_t>(num_cells) + 1);
    result.cells.indices.reserve(static_cast<std::size_t>(num_cells) * 8);
    std::int32_t largest = -1;
    for (const std::int32_t point : faces.indices) largest = std::max(largest, point);
    std::vector<std::int32_t> last_use(static_cast<std::size_t>(largest) + 1, -1), points;
    bool has_polyhedra = false;
    for (std::int64_t cell = 0; cell < num_cells; ++cell) {
        CellBuilder builder(faces, std::span(sides).subspan(begin[cell], begin[cell + 1] - begin[cell]));
        const std::uint8_t type = builder.simple_shape(points);
        if (type == polyhedron) {
            if (!has_polyhedra) result.face_streams.offsets.assign(static_cast<std::size_t>(cell) + 1, 0);
            has_polyhedra = true;
            builder.append_polyhedron(result, last_use, static_cast<std::int32_t>(cell));
        } else {
            append(result.cells.indices, points);
        }
        result.types.push_back(type);
        result.cells.offsets.push_back(std::ssize(result.cells.indices));
        if (has_polyhedra) result.face_streams.offsets.push_back(std::ssize(result.face_streams.indices));
    }
    return result;
}

}  // namespace meshard
