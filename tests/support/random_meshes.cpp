// SPDX-License-Identifier: Apache-2.0
#include "tests/support/random_meshes.h"

#include "partition/mesh/cell_type.h"
#include "tests/support/sample_meshes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace meshard {

namespace {

using Points = std::vector<std::int32_t>;
using Box = std::array<std::int32_t, 8>;  // corners in a hexahedron's order

class RandomMesh {
public:
    explicit RandomMesh(std::uint32_t seed) : random_(seed) {}

    Mesh make()
    {
        switch (below(10)) {
        case 0:
            make_soup();
            break;
        case 1:
            make_surface();
            break;
        case 2:
            make_many_faces();
            break;
        case 3:
            make_higher_order();
            break;
        case 4:
            make_little();
            break;
        default:
            make_boxes();
        }
        if (mesh_.kind == MeshKind::Unstructured && one_in(2)) shuffle_cells();
        if (one_in(3)) double_points();
        if (one_in(3)) add_unused_points();
        if (one_in(4)) shuffle_points();
        return finished();
    }

private:
    std::int32_t below(std::int32_t n) { return static_cast<std::int32_t>(random_() % static_cast<std::uint32_t>(n)); }
    bool one_in(std::int32_t n) { return below(n) == 0; }
    double share() { return (random_() >> 8) / static_cast<double>(1 << 24); }

    std::int32_t add_point(double x, double y, double z)
    {
        coordinates_.insert(coordinates_.end(), {x, y, z});
        return num_points() - 1;
    }
    std::int32_t num_points() const { return static_cast<std::int32_t>(coordinates_.size() / 3); }

    void add_cell(std::uint8_t type, const Points& points, const Points& stream = {})
    {
        mesh_.cells.push_row(points);
        mesh_.cell_types.push_back(type);
        streams_.push_back(stream);
    }

    /// A polyhedron of these faces.
    void add_polyhedron(const std::vector<Points>& faces)
    {
        Points points, stream{static_cast<std::int32_t>(faces.size())};
        for (const Points& face : faces) {
            stream.push_back(static_cast<std::int32_t>(face.size()));
            stream.insert(stream.end(), face.begin(), face.end());
            for (const std::int32_t point : face)
                if (std::ranges::find(points, point) == points.end()) points.push_back(point);
        }
        add_cell(42, points, stream);
    }

    void add_box(const Box& p)
    {
        switch (below(6)) {
        case 0:
            add_cell(11, {p[0], p[1], p[3], p[2], p[4], p[5], p[7], p[6]});
            break;
        case 1:
            add_polyhedron({{p[0], p[3], p[2], p[1]},
                            {p[4], p[5], p[6], p[7]},
                            {p[0], p[1], p[5], p[4]},
                            {p[1], p[2], p[6], p[5]},
                            {p[2], p[3], p[7], p[6]},
                            {p[3], p[0], p[4], p[7]}});
            break;
        case 2:
            for (const auto& [a, b] : {std::pair{1, 2}, {2, 3}, {3, 7}, {7, 4}, {4, 5}, {5, 1}})
                add_cell(10, {p[0], p[a], p[b], p[6]});
            break;
        case 3:
            add_cell(13, {p[0], p[1], p[2], p[4], p[5], p[6]});
            add_cell(13, {p[0], p[2], p[3], p[4], p[6], p[7]});
            break;
        case 4: {
            double middle[3] = {};
            for (const std::int32_t corner : p)
                for (int c = 0; c < 3; ++c) middle[c] += coordinates_[3 * static_cast<std::size_t>(corner) + c] / 8;
            const std::int32_t top = add_point(middle[0], middle[1], middle[2]);
            for (const auto& face :
                 {std::array{0, 1, 2, 3}, {4, 7, 6, 5}, {0, 4, 5, 1}, {1, 5, 6, 2}, {2, 6, 7, 3}, {3, 7, 4, 0}})
                add_cell(14, {p[face[0]], p[face[1]], p[face[2]], p[face[3]], top});
            break;
        }
        default:
            add_cell(12, Points(p.begin(), p.end()));
        }
    }

    /// Boxes of a grid, each of its own shape, some missing; and quads, lines and vertices on some.
    void make_boxes()
    {
        const std::int32_t nx = 1 + below(5), ny = 1 + below(4), nz = 1 + below(4);
        for (std::int32_t k = 0; k <= nz; ++k)
            for (std::int32_t j = 0; j <= ny; ++j)
                for (std::int32_t i = 0; i <= nx; ++i) add_point(i, j, 0.5 * k);
        const std::int32_t y = nx + 1, z = y * (ny + 1), missing = 2 + below(20);
        for (std::int32_t k = 0; k < nz; ++k)
            for (std::int32_t j = 0; j < ny; ++j)
                for (std::int32_t i = 0; i < nx; ++i) {
                    const std::int32_t p = i + j * y + k * z;
                    if (one_in(missing)) continue;
                    add_box({p, p + 1, p + 1 + y, p + y, p + z, p + 1 + z, p + 1 + y + z, p + y + z});
                    if (one_in(6)) add_cell(9, {p, p + 1, p + 1 + y, p + y});
                    if (one_in(15)) add_cell(3, {p, p + z});
                    if (one_in(15)) add_cell(1, {p});
                }
        if (mesh_.cells.num_rows() == 0) add_cell(1, {0});
    }

    /// Tetrahedra between any points.
    void make_soup()
    {
        const std::int32_t n = 5 + below(8);
        for (std::int32_t i = 0; i < n; ++i) add_point(share(), share(), share());
        for (std::int32_t i = 10 + below(60); i > 0; --i) {
            Points points(static_cast<std::size_t>(n));
            std::iota(points.begin(), points.end(), 0);
            shuffle(points);
            points.resize(4);
            add_cell(10, points);
            if (one_in(8)) add_cell(10, points);
        }
    }

    /// Vertices, lines, polygons and strips over a bumpy net of points.
    void make_surface()
    {
        mesh_.kind = MeshKind::Surface;
        const std::int32_t nx = 2 + below(9), ny = 2 + below(9);
        for (std::int32_t j = 0; j <= ny; ++j)
            for (std::int32_t i = 0; i <= nx; ++i) add_point(i, j, share());
        const auto at = [&](std::int32_t i, std::int32_t j) { return i + j * (nx + 1); };
        for (std::int32_t i = below(4); i > 0; --i) add_cell(1, {below(num_points())});
        for (std::int32_t i = below(3); i > 0; --i) add_cell(2, {below(num_points()), below(num_points())});
        for (std::int32_t i = below(4); i > 0; --i) add_cell(4, {at(0, 0), at(1, 1), at(2, 1)});
        for (std::int32_t j = 0; j < ny; ++j)
            for (std::int32_t i = 0; i < nx; ++i) {
                if (one_in(12)) continue;
                if (one_in(2))
                    add_cell(9, {at(i, j), at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)});
                else
                    for (const int half : {0, 1}) add_cell(5, {at(i, j), at(i + 1, j + half), at(i + 1 - half, j + 1)});
                if (one_in(10) && i + 2 <= nx)
                    add_cell(7, {at(i, j), at(i + 1, j), at(i + 2, j), at(i + 2, j + 1), at(i, j + 1)});
            }
        for (std::int32_t i = below(3); i > 0; --i) add_cell(6, {at(0, 0), at(0, 1), at(1, 0), at(1, 1), at(2, 0)});
    }

    /// A prism of 20 to 100 sides as one polyhedron, a wedge at each of its sides, and a lid of triangles.
    void make_many_faces()
    {
        const std::int32_t n = 20 + below(81);
        for (const double z : {0.0, 1.0})
            for (const double radius : {1.0, 1.5})
                for (std::int32_t i = 0; i < n; ++i) {
                    const double angle = 2 * std::numbers::pi * i / n;
                    add_point(radius * std::cos(angle), radius * std::sin(angle), z);
                }
        Points bottom(static_cast<std::size_t>(n)), top(static_cast<std::size_t>(n));
        std::iota(bottom.rbegin(), bottom.rend(), 0);
        std::iota(top.begin(), top.end(), 2 * n);
        std::vector<Points> faces{bottom, top};
        for (std::int32_t i = 0; i < n; ++i) faces.push_back({i, (i + 1) % n, 2 * n + (i + 1) % n, 2 * n + i});
        add_polyhedron(faces);
        for (std::int32_t i = 0; i < n; ++i) {
            const std::int32_t next = (i + 1) % n;
            add_cell(12, {i, n + i, n + next, next, 2 * n + i, 3 * n + i, 3 * n + next, 2 * n + next});
        }
        const std::int32_t above = add_point(0, 0, 2);
        for (std::int32_t i = 0; i < n; ++i) add_cell(10, {2 * n, 2 * n + i, 2 * n + (i + 1) % n, above});
    }

    /// Cells of fixed size of every type there is, chained by their corners.
    void make_higher_order()
    {
        for (std::int32_t i = 10 + below(40); i > 0; --i) {
            std::uint8_t type = 0;
            do type = static_cast<std::uint8_t>(1 + below(37));
            while (!cell_type_of(type).fixed_size || cell_type_of(type).dimension < 2);
            Points points;
            for (int k = 0; k < cell_type_of(type).min_points; ++k)
                points.push_back(k < 4 && num_points() > 4 ? num_points() - 4 + k : -1);
            for (std::int32_t& point : points)
                if (point < 0) point = add_point(share(), share(), i + share());
            add_cell(type, points);
        }
    }

    /// One cell, a cloud, or nothing.
    void make_little()
    {
        const std::int32_t kind = below(3);
        if (kind == 0) {
            for (std::int32_t i = 0; i < 8; ++i) add_point(i & 1, i >> 1 & 1, i >> 2);
            add_cell(12, {0, 1, 3, 2, 4, 5, 7, 6});
        } else if (kind == 1) {
            for (std::int32_t i = 1 + below(60); i > 0; --i) add_point(share(), share(), share());
        }
    }

    void shuffle(auto& values)
    {
        for (std::size_t i = values.size(); i > 1; --i)
            std::swap(values[i - 1], values[random_() % i]);  // the same everywhere
    }

    void shuffle_cells()
    {
        std::vector<std::int64_t> order(static_cast<std::size_t>(mesh_.num_cells()));
        std::iota(order.begin(), order.end(), 0);
        shuffle(order);
        RandomMesh sorted(*this);
        mesh_.cells = {};
        mesh_.cell_types.clear();
        streams_.clear();
        for (const std::int64_t i : order) {
            const auto row = sorted.mesh_.cells.row(i);
            add_cell(sorted.mesh_.cell_types[static_cast<std::size_t>(i)], Points(row.begin(), row.end()),
                     sorted.streams_[static_cast<std::size_t>(i)]);
        }
    }

    /// Some uses of some points get a copy of the point.
    void double_points()
    {
        for (std::int64_t i = 0; i < mesh_.num_cells(); ++i) {
            if (!one_in(5) || !streams_[static_cast<std::size_t>(i)].empty()) continue;
            auto& use = mesh_.cells.indices[static_cast<std::size_t>(mesh_.cells.offsets[i])];
            const double* x = &coordinates_[3 * static_cast<std::size_t>(use)];
            use = add_point(x[0], x[1], x[2]);
        }
    }

    void add_unused_points()
    {
        for (std::int32_t i = 1 + below(5); i > 0; --i) add_point(9, share(), share());
    }

    void shuffle_points()
    {
        Points places(static_cast<std::size_t>(num_points()));
        std::iota(places.begin(), places.end(), 0);
        shuffle(places);
        std::vector<double> moved(coordinates_.size());
        for (std::size_t i = 0; i < places.size(); ++i)
            std::copy_n(&coordinates_[3 * i], 3, &moved[3 * static_cast<std::size_t>(places[i])]);
        coordinates_ = std::move(moved);
        for (std::int32_t& point : mesh_.cells.indices) point = places[static_cast<std::size_t>(point)];
        for (Points& stream : streams_)
            for (std::size_t at = 1; at < stream.size();)
                for (std::int32_t left = stream[at++]; left > 0; --left, ++at)
                    stream[at] = places[static_cast<std::size_t>(stream[at])];
    }

    Mesh finished()
    {
        if (std::ranges::any_of(streams_, [](const Points& stream) { return !stream.empty(); }))
            for (const Points& stream : streams_) mesh_.face_streams.push_row(stream);
        if (one_in(2))
            mesh_.points = DataArray::from("Points", coordinates_, 3);
        else
            mesh_.points = DataArray::from("Points", std::vector<float>(coordinates_.begin(), coordinates_.end()), 3);
        if (!one_in(5)) add_sample_arrays(mesh_);
        return std::move(mesh_);
    }

    std::mt19937 random_;
    Mesh mesh_;
    std::vector<double> coordinates_;
    std::vector<Points> streams_;  // of each cell
};

}  // namespace

Mesh random_mesh(std::uint32_t seed)
{
    return RandomMesh(seed).make();
}

}  // namespace meshard
