// SPDX-License-Identifier: Apache-2.0
#include "partition/ghosts/ghost_graph.h"

#include "partition/cut/geometric_partitioner.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/mesh/cell_type.h"
#include "partition/mesh/mesh_graph.h"
#include "partition/mesh/neighbor_graph.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace meshard {

namespace {

// For each item (point, edge) the rows that have it.
Csr transposed(const Csr& items_of_row, std::int64_t num_items)
{
    Csr rows_of_item;
    rows_of_item.offsets.assign(num_items + 1, 0);
    for (const auto item : items_of_row.indices) ++rows_of_item.offsets[item + 1];
    for (std::int64_t i = 0; i < num_items; ++i) rows_of_item.offsets[i + 1] += rows_of_item.offsets[i];
    rows_of_item.indices.resize(items_of_row.num_entries());
    std::vector<std::int64_t> next(rows_of_item.offsets.begin(), rows_of_item.offsets.end() - 1);
    for (std::int64_t row = 0; row < items_of_row.num_rows(); ++row)
        for (const auto item : items_of_row.row(row))
            rows_of_item.indices[next[item]++] = static_cast<std::int32_t>(row);
    return rows_of_item;
}

// The graph of rows with a common item.
Csr sharing_graph(const GhostRelation& relation)
{
    const auto& [unused, items_of_row, rows_of_item] = relation;
    const auto num_rows = items_of_row.num_rows();
    Csr graph;
    graph.offsets.reserve(num_rows + 1);
    std::vector<std::int32_t> seen_by(num_rows, -1), found;
    for (std::int32_t row = 0; row < num_rows; ++row) {
        found.clear();
        seen_by[row] = row;
        for (const auto item : items_of_row.row(row))
            for (const auto other : rows_of_item.row(item))
                if (seen_by[other] != row) {
                    seen_by[other] = row;
                    found.push_back(other);
                }
        std::ranges::sort(found);
        graph.push_row(found);
    }
    return graph;
}

// Numbers the edges of the cells in the order of their first cells.
class EdgeWalk {
public:
    explicit EdgeWalk(const Mesh& mesh) : mesh_(mesh) {}

    /// Numbers the edges. Rows of cells that are not requested are empty.
    CellEdges run(const std::vector<bool>& is_asked_for)
    {
        for (std::int64_t cell = 0; cell < mesh_.num_cells(); ++cell) {
            if (is_asked_for[cell]) visit(cell);
            sort_unique(found_);
            edges_.of_cells.push_row(found_);
            found_.clear();
        }
        return std::move(edges_);
    }

private:
    void add(std::int32_t a, std::int32_t b)
    {
        if (a == b) return;
        if (b < a) std::swap(a, b);
        const auto key = static_cast<std::uint64_t>(a) << 32 | static_cast<std::uint32_t>(b);
        const auto [at, is_new] = numbers_.try_emplace(key, static_cast<std::int32_t>(edges_.ends.size()));
        if (is_new) edges_.ends.push_back({a, b});
        found_.push_back(at->second);
    }

    template <class Ring>
    void add_ring(const Ring& ring)
    {
        for (std::size_t i = 0; i < ring.size(); ++i) add(ring[i], ring[i + 1 < ring.size() ? i + 1 : 0]);
    }

    void visit(std::int64_t cell)
    {
        const auto points = mesh_.cells.row(cell);
        const auto shape = cell_type_of(mesh_.cell_types[cell]).shape;
        switch (shape) {
        case CellShape::Triangle:
            return add_ring(points.first(3));
        case CellShape::Quad:
            return add_ring(points.first(4));
        case CellShape::Pixel:
            return add_ring(std::array{points[0], points[1], points[3], points[2]});
        case CellShape::Polygon:
            return add_ring(points);
        case CellShape::QuadraticPolygon:
            return add_ring(points.first(points.size() / 2));
        case CellShape::Line:
            return add(points[0], points[1]);
        case CellShape::Polyline:
            for (std::size_t i = 0; i + 1 < points.size(); ++i) add(points[i], points[i + 1]);
            return;
        case CellShape::Strip:
            for (std::size_t i = 0; i + 2 < points.size(); ++i) add_ring(points.subspan(i, 3));
            return;
        case CellShape::Hull:  // the edges are not known without geometry: all pairs of points are taken
            for (std::size_t i = 0; i < points.size(); ++i)
                for (std::size_t j = 0; j < i; ++j) add(points[i], points[j]);
            return;
        case CellShape::Polyhedron: {
            auto stream = mesh_.face_streams.row(cell);
            if (!stream.empty()) stream = stream.subspan(1);
            while (!stream.empty()) {
                const auto count = static_cast<std::size_t>(stream[0]);
                add_ring(stream.subspan(1, count));
                stream = stream.subspan(1 + count);
            }
            return;
        }
        default:
            for (const auto& corners : solid_faces(shape)) {
                std::array<std::int32_t, 6> face;
                for (std::size_t i = 0; i < corners.size(); ++i) face[i] = points[corners[i]];
                add_ring(std::span(face.data(), corners.size()));
            }
        }
    }

    const Mesh& mesh_;
    std::unordered_map<std::uint64_t, std::int32_t> numbers_;
    std::vector<std::int32_t> found_;
    CellEdges edges_;
};

GhostRelation sharing(Csr items_of_row, std::int64_t num_items)
{
    auto rows_of_item = transposed(items_of_row, num_items);
    return {{}, std::move(items_of_row), std::move(rows_of_item)};
}

GhostRelation sharing_edges(CellEdges edges)
{
    return sharing(std::move(edges.of_cells), std::ssize(edges.ends));
}

bool is_by_items(const Mesh& mesh, const GhostRule& rule)
{
    return !mesh.is_point_cloud() &&
           (rule.neighbors == GhostNeighbors::Edge || rule.neighbors == GhostNeighbors::Vertex);
}

// The cells within `num_rings` rings, by common points, of a point that cells of several parts share.
std::vector<bool> cells_near_other_parts(const Mesh& mesh, const Partition& partition, std::int32_t num_rings)
{
    std::vector<bool> is_near(mesh.num_cells(), false), is_point_near(mesh.num_points(), false);
    std::vector<std::int32_t> owner_of_point(mesh.num_points(), -1);
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell)
        for (const auto point : mesh.cells.row(cell)) {
            auto& owner = owner_of_point[point];
            if (owner < 0) owner = partition.owners[cell];
            if (owner != partition.owners[cell]) is_point_near[point] = true;
        }
    for (std::int32_t ring = 1; ring <= num_rings; ++ring) {
        for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell)
            if (!is_near[cell])
                is_near[cell] =
                    std::ranges::any_of(mesh.cells.row(cell), [&](std::int32_t point) { return is_point_near[point]; });
        for (std::int64_t cell = 0; cell < mesh.num_cells() && ring < num_rings; ++cell)
            if (is_near[cell])
                for (const auto point : mesh.cells.row(cell)) is_point_near[point] = true;
    }
    return is_near;
}

double number_after(std::string_view text, std::string_view prefix)
{
    double number = -1;
    const auto* begin = text.data() + prefix.size();
    const auto* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(begin, end, number);
    return error == std::errc{} && at == end ? number : -1;
}

}  // namespace

GhostRule parse_ghost_rule(std::string_view text)
{
    if (text == "face") return {};
    if (text == "edge") return {.neighbors = GhostNeighbors::Edge};
    if (text == "vertex") return {.neighbors = GhostNeighbors::Vertex};
    if (text.starts_with("radius:")) {
        const auto radius = number_after(text, "radius:");
        if (radius > 0 && std::isfinite(radius)) return {.neighbors = GhostNeighbors::Radius, .radius = radius};
    }
    if (text.starts_with("nearest:")) {
        const auto count = number_after(text, "nearest:");
        if (count >= 1 && count <= 1000 && count == std::floor(count))
            return {.neighbors = GhostNeighbors::Nearest, .num_nearest = static_cast<std::int32_t>(count)};
    }
    throw InvalidInput("ghost neighbours are '{}'; expected face, edge, vertex, radius:R with R above 0, or nearest:K "
                       "with K from 1 to 1000.",
                       text);
}

std::string to_string(const GhostRule& rule)
{
    switch (rule.neighbors) {
    case GhostNeighbors::Edge:
        return "edge";
    case GhostNeighbors::Vertex:
        return "vertex";
    case GhostNeighbors::Radius:
        return fmt::format("radius:{:.17g}", rule.radius);
    case GhostNeighbors::Nearest:
        return fmt::format("nearest:{}", rule.num_nearest);
    case GhostNeighbors::Face:
        break;
    }
    return "face";
}

Csr ghost_graph(const Mesh& mesh, const GhostRule& rule)
{
    const auto centroids = [&] { return DataArray::from("Centroids", row_centroids<double>(mesh), 3); };
    if (rule.neighbors == GhostNeighbors::Radius) return radius_graph(centroids(), rule.radius);
    if (rule.neighbors == GhostNeighbors::Nearest) return nearest_neighbor_graph(centroids(), rule.num_nearest);
    return is_by_items(mesh, rule) ? sharing_graph(ghost_relation(mesh, rule)) : mesh_graph(mesh);
}

CellEdges cell_edges(const Mesh& mesh)
{
    return EdgeWalk(mesh).run(std::vector<bool>(mesh.num_cells(), true));
}

GhostRelation ghost_relation(const Mesh& mesh, const GhostRule& rule)
{
    if (!is_by_items(mesh, rule)) return {ghost_graph(mesh, rule)};
    return rule.neighbors == GhostNeighbors::Edge ? sharing_edges(cell_edges(mesh))
                                                  : sharing(mesh.cells, mesh.num_points());
}

GhostRelation ghost_relation(const Mesh& mesh, const GhostRule& rule, const Partition& partition,
                             std::int32_t num_layers)
{
    if (!is_by_items(mesh, rule)) return {ghost_graph(mesh, rule)};
    if (partition.num_rows() != mesh.num_cells())
        throw InvalidInput("ghost_relation: the partition has {} rows, the mesh {} cells.", partition.num_rows(),
                           mesh.num_cells());
    const auto is_near = cells_near_other_parts(mesh, partition, num_layers);
    if (rule.neighbors == GhostNeighbors::Edge) return sharing_edges(EdgeWalk(mesh).run(is_near));
    Csr points;
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell)
        points.push_row(is_near[cell] ? mesh.cells.row(cell) : std::span<const std::int32_t>{});
    return sharing(std::move(points), mesh.num_points());
}

}  // namespace meshard
