// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/cell_geometry.h"

#include "partition/error.h"
#include "partition/lists.h"
#include "partition/mesh/cell_type.h"
#include "partition/mesh/mesh_graph.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace meshard {

namespace {

void push_edges(std::span<const std::int32_t> points, std::size_t num_corners, Csr& facets)
{
    for (std::size_t k = 0; k < num_corners; ++k) facets.push_row(std::array{points[k], points[(k + 1) % num_corners]});
}

/// Contribution of a face to the area vector, and to the volume relative to `inside`.
struct FaceShare {
    Vector3 area{};
    double volume = 0;
};

FaceShare share_of(std::span<const Vector3> x, std::span<const std::int32_t> face, const Vector3& inside)
{
    FaceShare share;
    for_each_face_triangle(x, face, [&](std::int32_t, std::int32_t, const Vector3& area, const Vector3& mean) {
        add_scaled(share.area, area, 1);
        share.volume += dot(area, mean - inside) / 3;
    });
    return share;
}

/// Returns which faces to reverse so that two faces run along their common edge in opposite directions and each
/// connected group of faces encloses a positive volume.
std::vector<bool> turns_along_edges(const Csr& faces, std::span<const FaceShare> shares)
{
    struct Side {
        std::int32_t low, high;
        std::int64_t face;
        bool forward;
    };
    std::vector<Side> sides;
    for (std::int64_t k = 0; k < faces.num_rows(); ++k) {
        const auto ring = faces.row(k);
        for (std::size_t i = 0; i < ring.size(); ++i) {
            const auto [low, high] = std::minmax(ring[i], ring[(i + 1) % ring.size()]);
            if (low != high) sides.push_back({low, high, k, ring[i] == low});  // a collapsed edge has no direction
        }
    }
    std::ranges::sort(sides, [](const Side& a, const Side& b) {
        return std::tuple(a.low, a.high, a.face) < std::tuple(b.low, b.high, b.face);
    });
    struct Link {
        std::int64_t face, other;
        bool turns;  // whether the other face must be reversed if this one is not
    };
    std::vector<Link> links;
    for (std::size_t i = 0; i + 1 < sides.size(); ++i) {
        const Side &a = sides[i], &b = sides[i + 1];
        if (a.low != b.low || a.high != b.high || a.face == b.face) continue;
        links.push_back({a.face, b.face, a.forward == b.forward});
        links.push_back({b.face, a.face, a.forward == b.forward});
    }
    std::ranges::stable_sort(links, {}, &Link::face);
    std::vector<bool> turned(shares.size(), false), reached(shares.size(), false);
    for (std::size_t start = 0; start < shares.size(); ++start) {
        if (reached[start]) continue;
        reached[start] = true;
        std::vector<std::int64_t> group{static_cast<std::int64_t>(start)};
        for (std::size_t next = 0; next < group.size(); ++next) {
            for (const auto& link : std::ranges::equal_range(links, group[next], {}, &Link::face)) {
                if (reached[link.other]) continue;
                reached[link.other] = true;
                turned[link.other] = turned[link.face] != link.turns;
                group.push_back(link.other);
            }
        }
        double volume = 0;
        for (const auto face : group) volume += turned[face] ? -shares[face].volume : shares[face].volume;
        for (const auto face : group) turned[face] = turned[face] != (volume < 0);
    }
    return turned;
}

/// Volume and centroid of a solid from the tetrahedra between `inside` and its faces' triangles. A volume that rounding
/// alone can give is 0, and the centroid `inside`.
void measure_solid(std::span<const Vector3> x, const Csr& faces, const Vector3& inside, double& volume,
                   Vector3& centroid)
{
    Vector3 moment{};
    volume = 0;
    double largest = 0;  // what the tetrahedra would have if their apex were straight above their faces
    for (std::int64_t k = 0; k < faces.num_rows(); ++k) {
        for_each_face_triangle(x, faces.row(k),
                               [&](std::int32_t a, std::int32_t b, const Vector3& area, const Vector3& mean) {
                                   const double sixth = dot(area, mean - inside) / 3;
                                   volume += sixth;
                                   largest += norm(area) * norm(mean - inside) / 3;
                                   const Vector3 corners = (x[a] - inside) + (x[b] - inside) + (mean - inside);
                                   add_scaled(moment, corners, sixth / 4);
                               });
    }
    const bool is_flat = !(volume > 1e-12 * largest);
    centroid = is_flat ? inside : inside + (1 / volume) * moment;
    if (is_flat) volume = 0;
}

void measure_line(std::span<const Vector3> x, std::span<const std::int32_t> points, double& length, Vector3& centroid)
{
    Vector3 moment{};
    length = 0;
    for (std::size_t k = 0; k + 1 < points.size(); ++k) {
        const double piece = norm(x[points[k + 1]] - x[points[k]]);
        length += piece;
        add_scaled(moment, x[points[k]] + x[points[k + 1]], piece / 2);
    }
    centroid = length > 0 ? (1 / length) * moment : mean_of(x, points);
}

double facet_size(std::span<const Vector3> x, std::span<const std::int32_t> facet)
{
    if (facet.size() == 2) return norm(x[facet[1]] - x[facet[0]]);
    Vector3 area{};
    for (std::size_t k = 1; k + 1 < facet.size(); ++k)
        add_scaled(area, cross(x[facet[k]] - x[facet[0]], x[facet[k + 1]] - x[facet[0]]), 0.5);
    return norm(area);
}

/// Facets of a cell, and the same facets with their different points in ascending order.
struct Facets {
    Csr rings, points;
    std::vector<std::int32_t> order;  ///< the facets by their points

    void take(const Mesh& mesh, std::int64_t cell)
    {
        cell_facets(mesh, cell, rings);
        points.offsets.assign(1, 0);
        points.indices.clear();
        for (std::int64_t k = 0; k < rings.num_rows(); ++k) {
            append(points.indices, rings.row(k));
            const auto begin = points.indices.begin() + points.offsets.back();
            std::sort(begin, points.indices.end());
            points.indices.erase(std::unique(begin, points.indices.end()), points.indices.end());
            points.offsets.push_back(points.num_entries());
        }
        order.resize(rings.num_rows());
        std::iota(order.begin(), order.end(), 0);
        std::ranges::sort(order, [&](std::int32_t a, std::int32_t b) {
            return std::ranges::lexicographical_compare(points.row(a), points.row(b));
        });
    }

    /// Index of the facet with these points, which must ascend, or -1.
    std::int32_t find(std::span<const std::int32_t> wanted) const
    {
        const auto is_before = [&](std::int32_t facet, const auto& row) {
            return std::ranges::lexicographical_compare(points.row(facet), row);
        };
        const auto at = std::lower_bound(order.begin(), order.end(), wanted, is_before);
        return at != order.end() && std::ranges::equal(points.row(*at), wanted) ? *at : -1;
    }
};

/// Caches the facets of the last cell, and of all requested cells with many points, which many neighbours request.
class FacetsOfCells {
public:
    explicit FacetsOfCells(const Mesh& mesh) : mesh_(mesh) {}

    const Facets& of(std::int64_t cell)
    {
        constexpr std::size_t many = 64;
        const bool is_hub = mesh_.cells.row(cell).size() > many;
        Facets& facets = is_hub ? hubs_[cell] : last_;
        if (!is_hub || facets.rings.num_rows() == 0) facets.take(mesh_, cell);
        return facets;
    }

private:
    const Mesh& mesh_;
    Facets last_;
    std::unordered_map<std::int64_t, Facets> hubs_;
};

}  // namespace

std::vector<Vector3> point_positions(const Mesh& mesh)
{
    const auto values = mesh.points.to_doubles();
    std::vector<Vector3> positions(mesh.num_points());
    for (std::size_t i = 0; i < positions.size(); ++i)
        positions[i] = {values[3 * i], values[3 * i + 1], values[3 * i + 2]};
    return positions;
}

void cell_facets(const Mesh& mesh, std::int64_t cell, Csr& facets)
{
    facets.offsets.assign(1, 0);
    facets.indices.clear();
    const CellType& type = cell_type_of(mesh.cell_types[cell]);
    const auto points = mesh.cells.row(cell);
    switch (type.shape) {
    case CellShape::Triangle:
        return push_edges(points, 3, facets);
    case CellShape::Quad:
        return push_edges(points, 4, facets);
    case CellShape::Pixel:
        return push_edges(std::array{points[0], points[1], points[3], points[2]}, 4, facets);
    case CellShape::Polygon:
        return push_edges(points, points.size(), facets);
    case CellShape::QuadraticPolygon:
        return push_edges(points, points.size() / 2, facets);
    case CellShape::Polyhedron: {
        const auto stream = mesh.face_streams.row(cell);
        std::size_t at = 1;
        while (at < stream.size()) {
            const auto size = static_cast<std::size_t>(stream[at]);
            facets.push_row(stream.subspan(at + 1, size));
            at += 1 + size;
        }
        return;
    }
    default:
        break;
    }
    if (type.dimension != 3) return;
    const auto faces = solid_faces(type.shape);
    if (faces.empty()) {
        throw InvalidInput(
            "cell_facets: cell {} is a {}; its faces are not known. Convert it to a polyhedron or to tetrahedra.", cell,
            cell_type_name(mesh.cell_types[cell]));
    }
    std::vector<std::int32_t> ring;
    for (const auto& face : faces) {
        ring.clear();
        for (const std::uint8_t corner : face) ring.push_back(points[corner]);
        facets.push_row(ring);
    }
}

void orient_outwards(std::span<const Vector3> positions, const Vector3& inside, Csr& faces)
{
    std::vector<FaceShare> shares;
    Vector3 open{};
    double area = 0;
    bool all_face_outwards = true;
    for (std::int64_t k = 0; k < faces.num_rows(); ++k) {
        shares.push_back(share_of(positions, faces.row(k), inside));
        all_face_outwards &= shares.back().volume >= 0;
        open = open + shares.back().area;
        area += norm(shares.back().area);
    }
    if (all_face_outwards && norm(open) <= 1e-10 * area) return;
    // A face that the mean of the corners sees from behind is turned round, or the cell is concave there.
    const auto turned = turns_along_edges(faces, shares);
    for (std::int64_t k = 0; k < faces.num_rows(); ++k)
        if (turned[k])
            std::reverse(faces.indices.begin() + faces.offsets[k], faces.indices.begin() + faces.offsets[k + 1]);
}

CellMeasures cell_measures(const Mesh& mesh)
{
    const auto x = point_positions(mesh);
    const auto areas = area_vectors(mesh);
    CellMeasures measures{std::vector<double>(areas.size(), 0.0), surface_centroids(mesh)};
    Csr faces;
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        const CellType& type = cell_type_of(mesh.cell_types[i]);
        const auto points = mesh.cells.row(i);
        double& size = measures.sizes[i];
        if (type.dimension == 1 && !points.empty()) {
            const auto ends = type.shape == CellShape::Line ? points.first(2) : points;
            measure_line(x, ends, size, measures.centroids[i]);
        } else if (type.dimension == 2) {
            size = norm(areas[i]);
        } else if (type.dimension == 3) {
            const Vector3 inside = mean_of(x, points);
            cell_facets(mesh, i, faces);
            orient_outwards(x, inside, faces);
            measure_solid(x, faces, inside, size, measures.centroids[i]);
        }
    }
    return measures;
}

Csr facet_graph(const Mesh& mesh)
{
    const auto has_facets = [&](std::int64_t cell) {
        const auto& type = cell_type_of(mesh.cell_types[cell]);
        return type.dimension >= 2 && type.shape != CellShape::Strip;
    };
    Csr graph = cell_graph(mesh);
    std::int64_t kept = 0;
    for (std::int64_t i = 0, begin = 0; i < graph.num_rows(); ++i) {
        const auto end = graph.offsets[i + 1];
        for (auto k = begin; k < end; ++k) {
            const auto j = graph.indices[k];
            if (has_facets(i) && has_facets(j) &&
                cell_dimension(mesh.cell_types[i]) == cell_dimension(mesh.cell_types[j]))
                graph.indices[kept++] = j;
        }
        begin = end;
        graph.offsets[i + 1] = kept;
    }
    graph.indices.resize(kept);
    return graph;
}

FacetNeighbors facet_neighbors(const Mesh& mesh)
{
    const auto x = point_positions(mesh);
    FacetNeighbors neighbors{facet_graph(mesh), {}};
    const Csr& cells = neighbors.cells;
    neighbors.sizes.resize(cells.indices.size());
    // Rows are ascending: when a cell is processed, its entries for lower cells are filled already; it fills its entry
    // in the rows of higher cells.
    auto next = cells.offsets;
    FacetsOfCells own_facets(mesh), other_facets(mesh);
    for (std::int64_t i = 0; i < cells.num_rows(); ++i) {
        const Facets& own = own_facets.of(i);
        for (; next[i] < cells.offsets[i + 1]; ++next[i]) {
            const auto neighbor = cells.indices[next[i]];
            const Facets& others = other_facets.of(neighbor);
            const bool has_fewer = own.rings.num_rows() <= others.rings.num_rows();
            const Facets &few = has_fewer ? own : others, &many = has_fewer ? others : own;
            double size = 0;
            for (std::int64_t k = 0; k < few.rings.num_rows(); ++k)
                if (many.find(few.points.row(k)) >= 0) size += facet_size(x, few.rings.row(k));
            neighbors.sizes[next[i]] = neighbors.sizes[next[neighbor]++] = size;
        }
    }
    return neighbors;
}

}  // namespace meshard
