// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/benchmark_meshes.h"

#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>
#include <vector>

namespace meshard {

namespace {

constexpr std::uint8_t triangle = 5, tetra = 10, hexahedron = 12, wedge = 13, pyramid = 14, polyhedron = 42;

using Index = std::int32_t;

// Returns a number in [0, 1) that depends on `key` only.
double noise(std::uint64_t key)
{
    key = (key + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    key = (key ^ key >> 27) * 0x94d049bb133111ebu;
    return static_cast<double>((key ^ key >> 31) >> 11) * 0x1p-53;
}

class MeshMaker {
public:
    explicit MeshMaker(MeshKind kind) { mesh_.kind = kind; }

    Index add_point(double x, double y, double z)
    {
        points_.insert(points_.end(), {static_cast<float>(x), static_cast<float>(y), static_cast<float>(z)});
        return static_cast<Index>(points_.size() / 3) - 1;
    }

    void add_cell(std::uint8_t type, std::initializer_list<Index> points)
    {
        mesh_.cells.push_row({points.begin(), points.size()});
        mesh_.cell_types.push_back(type);
    }

    void add_polyhedron(std::span<const Index> points, std::span<const Index> stream)
    {
        mesh_.cells.push_row(points);
        mesh_.cell_types.push_back(polyhedron);
        mesh_.face_streams.push_row(stream);
    }

    Mesh finish()
    {
        mesh_.points = DataArray::from("Points", std::move(points_), 3);
        return std::move(mesh_);
    }

private:
    Mesh mesh_;
    std::vector<float> points_;
};

// Points of a grid of n x m x l boxes in a box of 2 x 1.5 x 1; inner points are moved by a tenth of the spacing.
class Grid {
public:
    Grid(MeshMaker& maker, Index nx, Index ny, Index nz, double jitter) : nx_(nx), ny_(ny)
    {
        std::uint64_t key = 0;
        for (Index k = 0; k <= nz; ++k)
            for (Index j = 0; j <= ny; ++j)
                for (Index i = 0; i <= nx; ++i) {
                    const auto moved = [&](Index at, Index count) {
                        const double shift = at == 0 || at == count ? 0 : jitter * (noise(++key) - 0.5);
                        return (at + shift) / count;
                    };
                    const double x = moved(i, nx), y = moved(j, ny), z = moved(k, nz);
                    maker.add_point(2 * x, 1.5 * y, z);
                }
    }

    // Returns the corners of box (i, j, k) in the order of a hexahedron.
    std::array<Index, 8> box(Index i, Index j, Index k) const
    {
        const auto p = [&](Index a, Index b, Index c) { return (i + a) + (nx_ + 1) * ((j + b) + (ny_ + 1) * (k + c)); };
        return {p(0, 0, 0), p(1, 0, 0), p(1, 1, 0), p(0, 1, 0), p(0, 0, 1), p(1, 0, 1), p(1, 1, 1), p(0, 1, 1)};
    }

private:
    Index nx_, ny_;
};

// Adds six tetrahedra around the diagonal 0-6; the diagonals of opposite faces agree.
void add_tets(MeshMaker& maker, const std::array<Index, 8>& c)
{
    for (const auto& [a, b] : {std::pair{1, 2}, {2, 3}, {3, 7}, {7, 4}, {4, 5}, {5, 1}})
        maker.add_cell(tetra, {c[0], c[a], c[b], c[6]});
}

void sides_of(double num_boxes, Index& nx, Index& ny, Index& nz)
{
    const double unit = std::cbrt(num_boxes / 3);
    nx = std::max(1, static_cast<Index>(std::lround(2 * unit)));
    ny = std::max(1, static_cast<Index>(std::lround(1.5 * unit)));
    nz = std::max(1, static_cast<Index>(std::lround(unit)));
}

Mesh boxes(std::int64_t num_cells, bool in_tets)
{
    Index nx, ny, nz;
    sides_of(static_cast<double>(num_cells) / (in_tets ? 6 : 1), nx, ny, nz);
    MeshMaker maker(MeshKind::Unstructured);
    const Grid grid(maker, nx, ny, nz, 0.3);
    for (Index k = 0; k < nz; ++k)
        for (Index j = 0; j < ny; ++j)
            for (Index i = 0; i < nx; ++i) {
                const auto c = grid.box(i, j, k);
                if (in_tets)
                    add_tets(maker, c);
                else
                    maker.add_cell(hexahedron, {c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]});
            }
    return maker.finish();
}

Mesh hybrid(std::int64_t num_cells)
{
    Index nx, ny, nz;
    sides_of(static_cast<double>(num_cells) / 3.2, nx, ny, nz);  // average number of cells in a box
    MeshMaker maker(MeshKind::Unstructured);
    const Grid grid(maker, nx, ny, nz, 0.2);
    const Index end_prisms = nz / 5, end_tets = nz / 2, end_pyramids = end_tets + std::max(nz / 8, 1);
    for (Index k = 0; k < nz; ++k)
        for (Index j = 0; j < ny; ++j)
            for (Index i = 0; i < nx; ++i) {
                const auto c = grid.box(i, j, k);
                if (k < end_prisms) {
                    maker.add_cell(wedge, {c[0], c[1], c[2], c[4], c[5], c[6]});
                    maker.add_cell(wedge, {c[0], c[2], c[3], c[4], c[6], c[7]});
                } else if (k < end_tets) {
                    add_tets(maker, c);
                } else if (k < end_pyramids) {
                    const auto m =
                        maker.add_point((2 * i + 1.0) / nx, 1.5 * (j + 0.5) / ny, (k + 0.5) / nz);  // center of the box
                    if (k == end_tets) {
                        maker.add_cell(tetra, {c[0], c[1], c[2], m});
                        maker.add_cell(tetra, {c[0], c[2], c[3], m});
                    } else {
                        maker.add_cell(pyramid, {c[0], c[1], c[2], c[3], m});
                    }
                    maker.add_cell(pyramid, {c[4], c[7], c[6], c[5], m});
                    maker.add_cell(pyramid, {c[0], c[4], c[5], c[1], m});
                    maker.add_cell(pyramid, {c[1], c[5], c[6], c[2], m});
                    maker.add_cell(pyramid, {c[2], c[6], c[7], c[3], m});
                    maker.add_cell(pyramid, {c[3], c[7], c[4], c[0], m});
                } else {
                    maker.add_cell(hexahedron, {c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]});
                }
            }
    return maker.finish();
}

// An octree over a box of 2 x 1 x 1, refined near an ellipsoid; neighbours differ by one level at most.
class GradedOctree {
public:
    GradedOctree(Index roots) : roots_(roots)
    {
        for (Index k = 0; k < roots; ++k)
            for (Index j = 0; j < roots; ++j)
                for (Index i = 0; i < 2 * roots; ++i) grow(0, i, j, k);
    }

    Mesh mesh()
    {
        MeshMaker maker(MeshKind::Unstructured);
        for (const auto& cell : leaves_) add(maker, cell);
        return maker.finish();
    }

    std::int64_t num_leaves() const { return std::ssize(leaves_); }

private:
    static constexpr int num_levels = 3;

    struct Cell {
        int level;
        Index i, j, k;
    };

    // The level follows from the distance to the body, in edges of the root boxes; the rings are so wide that
    // neighbours differ by one level.
    int wanted_level(int level, Index i, Index j, Index k) const
    {
        const double size = 1.0 / (1 << level);
        const double x = ((i + 0.5) * size / roots_ - 0.7) / 0.35;
        const double y = ((j + 0.5) * size / roots_ - 0.5) / 0.18;
        const double z = ((k + 0.5) * size / roots_ - 0.3) / 0.15;
        const double distance = std::abs(std::sqrt(x * x + y * y + z * z) - 1) * 0.2 * roots_;
        const double limit[] = {0.55, 1.2, 2.6};  // in edges of the root boxes
        const double scale = roots_ / 14.0;
        for (int finest = num_levels; finest > 0; --finest)
            if (distance < limit[num_levels - finest] * std::max(scale, 1.0)) return finest;
        return 0;
    }

    bool is_split(int level, Index i, Index j, Index k) const
    {
        if (level >= num_levels) return false;
        // Level 0 is decided at the center of the root, the next level at the center of the child, and so on.
        return wanted_level(level, i, j, k) > level;
    }

    void grow(int level, Index i, Index j, Index k)
    {
        if (!is_split(level, i, j, k)) {
            leaves_.push_back({level, i, j, k});
            return;
        }
        for (Index c = 0; c < 8; ++c) grow(level + 1, 2 * i + (c & 1), 2 * j + (c >> 1 & 1), 2 * k + (c >> 2));
    }

    // Whether the cell (level, i, j, k) is in the box and refined further, if its ancestors are.
    bool is_finer(int level, Index i, Index j, Index k) const
    {
        const Index n = roots_ << level;
        if (i < 0 || j < 0 || k < 0 || i >= 2 * n || j >= n || k >= n) return false;
        for (int up = 0; up <= level; ++up)
            if (!is_split(up, i >> (level - up), j >> (level - up), k >> (level - up))) return false;
        return true;
    }

    Index point(MeshMaker& maker, Index x, Index y, Index z)  // in steps of the finest level
    {
        const auto n = static_cast<std::uint64_t>(roots_ << num_levels) * 2 + 1;
        const auto [at, is_new] = points_.try_emplace(
            (static_cast<std::uint64_t>(z) * n + static_cast<std::uint64_t>(y)) * n + static_cast<std::uint64_t>(x), 0);
        const double step = 1.0 / (roots_ << num_levels);
        if (is_new) at->second = maker.add_point(x * step, y * step, z * step);
        return at->second;
    }

    // Adds a face of the cell, or its four parts where the neighbour is finer (by any number of levels).
    void add_face(MeshMaker& maker, const Cell& cell, int axis, int side)
    {
        std::array<Index, 3> at{cell.i, cell.j, cell.k};
        at[axis] += side == 0 ? -1 : 1;
        std::array<Index, 3> low{cell.i, cell.j, cell.k};
        const auto edge = Index{1} << (num_levels - cell.level);
        for (auto& x : low) x *= edge;
        if (side == 1) low[axis] += edge;
        split_face(maker, cell.level, at, low, edge, axis, side);
    }

    void split_face(MeshMaker& maker, int level, std::array<Index, 3> behind, std::array<Index, 3> low, Index edge,
                    int axis, int side)
    {
        const int u = (axis + 1) % 3, v = (axis + 2) % 3;
        if (is_finer(level, behind[0], behind[1], behind[2])) {
            for (int quarter = 0; quarter < 4; ++quarter) {
                auto child = behind;
                for (auto& x : child) x *= 2;
                child[axis] += side == 0 ? 1 : 0;  // the half next to the face
                child[u] += quarter & 1;
                child[v] += quarter >> 1;
                auto corner = low;
                corner[u] += (quarter & 1) * edge / 2;
                corner[v] += (quarter >> 1) * edge / 2;
                split_face(maker, level + 1, child, corner, edge / 2, axis, side);
            }
            return;
        }
        stream_.push_back(4);
        ++stream_[0];
        for (const auto& [a, b] : {std::pair{0, 0}, {1, 0}, {1, 1}, {0, 1}}) {
            auto corner = low;
            corner[u] += a * edge;
            corner[v] += b * edge;
            stream_.push_back(point(maker, corner[0], corner[1], corner[2]));
            cell_points_.push_back(stream_.back());
        }
    }

    void add(MeshMaker& maker, const Cell& cell)
    {
        stream_.assign(1, 0);
        cell_points_.clear();
        for (int axis = 0; axis < 3; ++axis)
            for (int side = 0; side < 2; ++side) add_face(maker, cell, axis, side);
        sort_unique(cell_points_);
        maker.add_polyhedron(cell_points_, stream_);
    }

    Index roots_;
    std::vector<Cell> leaves_;
    std::unordered_map<std::uint64_t, Index> points_;
    std::vector<Index> stream_, cell_points_;
};

Mesh graded(std::int64_t num_cells)
{
    Index roots = 1;
    while (GradedOctree(roots + 1).num_leaves() <= num_cells) ++roots;
    return GradedOctree(roots).mesh();
}

// The faces of an octahedron, each cut in n x n triangles and projected to a sphere with bumps.
Mesh surface(std::int64_t num_cells)
{
    const auto n = std::max<Index>(1, static_cast<Index>(std::lround(std::sqrt(static_cast<double>(num_cells) / 8))));
    MeshMaker maker(MeshKind::Surface);
    std::unordered_map<std::uint64_t, Index> points;
    const auto point = [&](Index x, Index y, Index z) {
        const auto key = (static_cast<std::uint64_t>(x + n) << 42) + (static_cast<std::uint64_t>(y + n) << 21) +
                         static_cast<std::uint64_t>(z + n);
        const auto [at, is_new] = points.try_emplace(key, 0);
        if (is_new) {
            const double length = std::sqrt(1.0 * x * x + 1.0 * y * y + 1.0 * z * z);
            const double a = x / length, b = y / length, c = z / length;
            const double radius = 1 + 0.1 * std::sin(7 * a) * std::sin(6 * b + 1) * std::sin(5 * c + 2);
            at->second = maker.add_point(radius * a, radius * b, radius * c);
        }
        return at->second;
    };
    for (int octant = 0; octant < 8; ++octant) {
        const Index sx = octant & 1 ? -1 : 1, sy = octant & 2 ? -1 : 1, sz = octant & 4 ? -1 : 1;
        const auto add = [&](std::array<Index, 2> a, std::array<Index, 2> b, std::array<Index, 2> c) {
            if (sx * sy * sz < 0) std::swap(b, c);  // so that normals point outwards
            const auto at = [&](const auto& p) { return point(sx * p[0], sy * p[1], sz * (n - p[0] - p[1])); };
            const auto first = at(a), second = at(b), third = at(c);
            maker.add_cell(triangle, {first, second, third});
        };
        for (Index i = 0; i < n; ++i)
            for (Index j = 0; i + j < n; ++j) {
                add({i, j}, {i + 1, j}, {i, j + 1});
                if (i + j + 1 < n) add({i + 1, j}, {i + 1, j + 1}, {i, j + 1});
            }
    }
    return maker.finish();
}

}  // namespace

std::span<const std::string> benchmark_mesh_kinds()
{
    static const std::vector<std::string> kinds{"tets", "hybrid", "graded", "surface", "hexes"};
    return kinds;
}

Mesh benchmark_mesh(std::string_view kind, std::int64_t num_cells)
{
    if (num_cells < 1) throw InvalidInput("benchmark_mesh: num_cells is {}, expected 1 or more.", num_cells);
    if (kind == "tets") return boxes(num_cells, true);
    if (kind == "hexes") return boxes(num_cells, false);
    if (kind == "hybrid") return hybrid(num_cells);
    if (kind == "graded") return graded(num_cells);
    if (kind == "surface") return surface(num_cells);
    throw InvalidInput("benchmark_mesh: unknown kind '{}'; known are tets, hybrid, graded, surface and hexes.{}", kind,
                       suggestion(kind, benchmark_mesh_kinds()));
}

}  // namespace meshard
