// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/surface_facing.h"

#include "partition/error.h"
#include "partition/lists.h"
#include "partition/mesh/cell_geometry.h"
#include "partition/mesh/cell_rings.h"
#include "partition/mesh/joined_points.h"
#include "partition/mesh/surface_geometry.h"
#include "partition/mesh/vector_algebra.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <numeric>

namespace meshard {

namespace {

constexpr double negligible_share = 1e-3;  // as a share of the area
// Share of the largest possible bulge, below which an open group is too flat to have an inside.
constexpr double flat = 0.1;

// An edge of a polygon; `low` < `high`.
struct Side {
    std::int32_t low, high, cell;
    bool is_forward;  // the polygon runs from `low` to `high`

    auto operator<=>(const Side&) const = default;
};

// Puts items in the order of their keys, from 0 to `num_keys` - 1; those of one key stay in their order. Returns the
// place of the first of each key, and the number of items.
template <class T, class Key>
std::vector<std::int64_t> sort_by_key(std::vector<T>& items, std::int64_t num_keys, Key key)
{
    std::vector<std::int64_t> first(num_keys + 1, 0);
    for (const auto& item : items) ++first[std::invoke(key, item) + 1];
    std::partial_sum(first.begin(), first.end(), first.begin());
    auto next = first;
    std::vector<T> sorted(items.size());
    for (const auto& item : items) sorted[next[std::invoke(key, item)]++] = item;
    items = std::move(sorted);
    return first;
}

std::vector<Side> sides_of(const Mesh& mesh, const std::vector<std::int32_t>& same_as)
{
    std::vector<Side> sides;
    sides.reserve(mesh.cells.num_entries());
    std::vector<std::int32_t> ring;
    for (std::int32_t cell = 0; cell < mesh.num_cells(); ++cell)
        for_each_ring(mesh, cell, ring, [&](std::span<const std::int32_t> corners) {
            for (std::size_t k = 0; k < corners.size(); ++k) {
                auto a = corners[k], b = corners[(k + 1) % corners.size()];
                if (!same_as.empty()) a = same_as[a], b = same_as[b];
                if (a != b) sides.push_back({std::min(a, b), std::max(a, b), cell, a < b});
            }
        });
    const auto first = sort_by_key(sides, mesh.num_points(), &Side::low);
    for (std::size_t point = 0; point + 1 < first.size(); ++point)
        std::sort(sides.begin() + first[point], sides.begin() + first[point + 1]);
    return sides;
}

// Calls `f` with the sides of each edge.
template <class F>
void for_each_edge(std::span<const Side> sides, F&& f)
{
    for (std::size_t begin = 0, end = 0; begin < sides.size(); begin = end) {
        while (end < sides.size() && sides[end].low == sides[begin].low && sides[end].high == sides[begin].high) ++end;
        f(sides.subspan(begin, end - begin));
    }
}

// The points on edges with one polygon only.
std::vector<std::int32_t> open_points(std::span<const Side> sides)
{
    std::vector<std::int32_t> points;
    for_each_edge(sides, [&](std::span<const Side> edge) {
        if (edge.size() == 1) points.insert(points.end(), {edge[0].low, edge[0].high});
    });
    sort_unique(points);
    return points;
}

// A group of polygons that are connected by edges.
struct Group {
    std::vector<std::int32_t> cells;
    bool is_closed = true;
};

struct Box {
    Vector3 low{}, high{};

    bool holds(const Box& other) const
    {
        for (int d = 0; d < 3; ++d)
            if (!(low[d] <= other.low[d] && high[d] >= other.high[d])) return false;
        return true;
    }
};

class Sorter {
public:
    explicit Sorter(const Mesh& mesh)
        : mesh_(mesh), places_(point_positions(mesh)), areas_(area_vectors(mesh)), centroids_(surface_centroids(mesh)),
          sides_(mesh.num_cells(), 0)
    {
    }

    PolygonSides run()
    {
        auto sides = sides_of(mesh_, {});
        if (const auto open = open_points(sides); !open.empty()) {
            const auto joined = points_joined_with(mesh_.points.gather(open), 0);
            std::vector<std::int32_t> same_as(mesh_.num_points());
            for (std::size_t point = 0; point < same_as.size(); ++point)
                same_as[point] = static_cast<std::int32_t>(point);
            for (std::size_t i = 0; i < open.size(); ++i) same_as[open[i]] = open[joined[i]];
            sides = sides_of(mesh_, same_as);
        }
        find_links(sides);
        find_groups();
        for (const auto& group : groups_) settle(group);
        find_cavities();
        return {std::move(sides_), !sides.empty() && open_points(sides).empty()};
    }

private:
    struct Link {
        std::int32_t cell, other;
        // Whether both run along the edge in opposite directions, as neighbours on an oriented surface do.
        bool is_alike;
    };

    void find_links(std::span<const Side> sides)
    {
        is_at_border_.assign(mesh_.num_cells(), false);
        for_each_edge(sides, [&](std::span<const Side> edge) {
            if (edge.size() == 1) is_at_border_[edge[0].cell] = true;
            if (edge.size() != 2 || edge[0].cell == edge[1].cell) return;
            const bool is_alike = edge[0].is_forward != edge[1].is_forward;
            links_.push_back({edge[0].cell, edge[1].cell, is_alike});
            links_.push_back({edge[1].cell, edge[0].cell, is_alike});
        });
        first_link_ = sort_by_key(links_, mesh_.num_cells(), &Link::cell);
    }

    // Finds the groups; in each the first polygon is preliminarily taken as pointing outward.
    void find_groups()
    {
        for (std::int32_t start = 0; start < mesh_.num_cells(); ++start) {
            if (sides_[start] != 0 || cell_dimension(mesh_.cell_types[start]) != 2) continue;
            Group group{{start}, true};
            sides_[start] = 1;
            for (std::size_t next = 0; next < group.cells.size(); ++next) {
                const auto cell = group.cells[next];
                group.is_closed = group.is_closed && !is_at_border_[cell];
                for (auto k = first_link_[cell]; k < first_link_[cell + 1]; ++k) {
                    if (sides_[links_[k].other] != 0) continue;
                    sides_[links_[k].other] =
                        static_cast<std::int8_t>(links_[k].is_alike ? sides_[cell] : -sides_[cell]);
                    group.cells.push_back(links_[k].other);
                }
            }
            groups_.push_back(std::move(group));
        }
    }

    void settle(const Group& group)
    {
        Vector3 middle{};
        double total = 0;
        for (const auto cell : group.cells) {
            add_scaled(middle, centroids_[cell], norm(areas_[cell]));
            total += norm(areas_[cell]);
        }
        middle = total > 0 ? (1 / total) * middle : middle;
        double bulge = 0, most = 0;
        for (const auto cell : group.cells) {
            const auto way = centroids_[cell] - middle;
            bulge += sides_[cell] * dot(way, areas_[cell]);
            most += norm(way) * norm(areas_[cell]);
        }
        const auto least = group.is_closed ? 1e-9 * most : flat * most;
        const int sign = std::abs(bulge) <= least ? 0 : bulge > 0 ? 1 : -1;
        for (const auto cell : group.cells) sides_[cell] = static_cast<std::int8_t>(sign * sides_[cell]);
    }

    /// A closed group; `side` is that of all its polygons as they stand in the file, 0 if they differ.
    struct Shell {
        const Group* group;
        int side;
        Box box;
    };

    std::vector<Shell> shells() const
    {
        std::vector<Shell> found;
        for (const auto& group : groups_) {
            const int side = sides_[group.cells[0]];
            if (!group.is_closed || side == 0) continue;
            const bool is_uniform =
                std::ranges::all_of(group.cells, [&](std::int32_t cell) { return sides_[cell] == side; });
            found.push_back({&group, is_uniform ? side : 0, box_of(group)});
        }
        return found;
    }

    // Finds the walls of cavities: closed groups within an odd number of others. Their outward is into the cavity. A
    // group that points as the one around it does is another body, which may be within a hull.
    void find_cavities()
    {
        const auto all = shells();
        const auto may_hold = [](const Shell& one, const Shell& other) {
            const bool differs = other.side == 0 || (other.side < 0 ? one.side >= 0 : one.side < 0);
            return &one != &other && differs && one.box.holds(other.box);
        };
        std::vector<const Group*> cavities;
        for (const auto& inner : all) {
            if (std::ranges::none_of(all, [&](const Shell& one) { return may_hold(one, inner); })) continue;
            const auto place = places_[mesh_.cells.row(inner.group->cells[0])[0]];
            const Shell* nearest = nullptr;
            int depth = 0;
            for (const auto& one : all) {
                if (&one == &inner || !one.box.holds(inner.box) || !is_inside(*one.group, place)) continue;
                ++depth;
                if (nearest == nullptr || nearest->box.holds(one.box)) nearest = &one;
            }
            if (depth % 2 == 1 && may_hold(*nearest, inner)) cavities.push_back(inner.group);
        }
        for (const auto* group : cavities)
            for (const auto cell : group->cells) sides_[cell] = static_cast<std::int8_t>(-sides_[cell]);
    }

    Box box_of(const Group& group) const
    {
        constexpr auto far = std::numeric_limits<double>::infinity();
        Box box{{far, far, far}, {-far, -far, -far}};
        for (const auto cell : group.cells)
            for (const auto point : mesh_.cells.row(cell)) {
                const auto& place = places_[point];
                for (int d = 0; d < 3; ++d) {
                    box.low[d] = std::min(box.low[d], place[d]);
                    box.high[d] = std::max(box.high[d], place[d]);
                }
            }
        return box;
    }

    // Decided by the solid angle under which the surface is seen (Van Oosterom and Strackee 1983).
    bool is_inside(const Group& body, const Vector3& place) const
    {
        double angle = 0;
        std::vector<std::int32_t> ring;
        for (const auto cell : body.cells)
            for_each_ring(mesh_, cell, ring, [&](std::span<const std::int32_t> corners) {
                for (std::size_t k = 1; k + 1 < corners.size(); ++k) {
                    const auto a = places_[corners[0]] - place, b = places_[corners[k]] - place,
                               c = places_[corners[k + 1]] - place;
                    const auto la = norm(a), lb = norm(b), lc = norm(c);
                    angle += 2 * sides_[cell] *
                             std::atan2(dot(a, cross(b, c)),
                                        la * lb * lc + dot(a, b) * lc + dot(b, c) * la + dot(c, a) * lb);
                }
            });
        return std::abs(angle) > 2 * std::numbers::pi;
    }

    const Mesh& mesh_;
    std::vector<Vector3> places_, areas_, centroids_;
    std::vector<std::int8_t> sides_;
    std::vector<bool> is_at_border_;
    std::vector<Link> links_;
    std::vector<std::int64_t> first_link_;
    std::vector<Group> groups_;
};

bool is_finite(const DataArray& points)
{
    return with_scalar_type(points.type(), [&]<class T>() {
        return std::ranges::all_of(points.values<T>(), [](T x) { return std::isfinite(static_cast<double>(x)); });
    });
}

Vector3 vector_at(const DataArray& array, std::int64_t row)
{
    return {array.value(row, 0), array.value(row, 1), array.value(row, 2)};
}

bool holds_vectors(const DataArray& array)
{
    return array.type() != ScalarType::String && array.num_components() == 3;
}

// For each point the sum of the outward area vectors of the polygons around it.
std::vector<Vector3> outward_at_points(const Mesh& mesh, const PolygonSides& sides, std::span<const Vector3> areas)
{
    std::vector<Vector3> sums(mesh.num_points(), Vector3{});
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell)
        for (const auto point : mesh.cells.row(cell)) add_scaled(sums[point], areas[cell], sides.sides[cell]);
    return sums;
}

void reverse_points(std::span<std::int32_t> points, std::int64_t cell, std::uint8_t type)
{
    const auto shape = cell_type_of(type).shape;
    const auto corners = num_corners(shape, points.size());
    const bool is_quadratic = points.size() == 2 * corners || points.size() == 2 * corners + 1;
    if (shape == CellShape::Strip || (points.size() != corners && !is_quadratic))
        throw InvalidInput(
            "cell {} ({}) points inward, and its points cannot be put in the opposite order. Triangulate the surface.",
            cell, cell_type_name(type));
    if (shape == CellShape::Pixel) return std::swap(points[1], points[2]);
    std::reverse(points.begin() + 1, points.begin() + static_cast<std::ptrdiff_t>(corners));
    if (points.size() > corners)
        std::reverse(points.begin() + static_cast<std::ptrdiff_t>(corners),
                     points.begin() + static_cast<std::ptrdiff_t>(2 * corners));
}

// Reverses the rows of the array that point against `outward`.
std::int64_t turn_vectors(DataArray& array, std::span<const Vector3> outward)
{
    return with_scalar_type(array.type(), [&]<class T>() -> std::int64_t {
        if constexpr (std::is_floating_point_v<T>) {
            std::int64_t num_turned = 0;
            auto values = array.mutable_values<T>();
            for (std::size_t row = 0; row < outward.size(); ++row) {
                if (!(dot(vector_at(array, static_cast<std::int64_t>(row)), outward[row]) < 0)) continue;
                ++num_turned;
                for (std::size_t d = 0; d < 3; ++d) values[3 * row + d] = -values[3 * row + d];
            }
            return num_turned;
        } else {
            return 0;
        }
    });
}

}  // namespace

const char* to_string(Facing facing)
{
    constexpr std::array names{"unknown", "outward", "inward", "mixed"};
    return names[static_cast<std::size_t>(facing)];
}

Facing SurfaceFacing::facing() const
{
    const auto known = outward + inward;
    if (!(known > 0)) return Facing::Unknown;
    if (inward <= negligible_share * known) return Facing::Outward;
    return outward <= negligible_share * known ? Facing::Inward : Facing::Mixed;
}

std::string describe(const SurfaceFacing& found)
{
    const std::string kind = std::string("the surface is ") + (found.is_closed ? "closed" : "open") + " and ";
    switch (found.facing()) {
    case Facing::Outward:
        return kind + "its normals point outwards";
    case Facing::Inward:
        return kind + "its normals point inwards";
    case Facing::Mixed:
        return fmt::format("{}its normals are mixed: those of {:.3g} % of its area point inwards", kind,
                           100 * found.inward / (found.outward + found.inward));
    default:
        return kind + "does not tell where its inside is";
    }
}

PolygonSides polygon_sides(const Mesh& mesh)
{
    if (!is_finite(mesh.points)) return {std::vector<std::int8_t>(mesh.num_cells(), 0), false};
    return Sorter(mesh).run();
}

SurfaceFacing surface_facing(const Mesh& mesh, const PolygonSides& sides, const DataArray* normals)
{
    SurfaceFacing found{.is_closed = sides.is_closed};
    const auto areas = area_vectors(mesh);
    const auto count = [&](int side, double area) {
        (side > 0 ? found.outward : side < 0 ? found.inward : found.unknown) += area;
    };
    if (normals == nullptr || !holds_vectors(*normals)) {
        for (std::size_t cell = 0; cell < areas.size(); ++cell) count(sides.sides[cell], norm(areas[cell]));
        return found;
    }
    const bool on_cells =
        std::ranges::any_of(mesh.cell_data, [&](const DataArray& array) { return &array == normals; });
    const auto at_points = on_cells ? std::vector<Vector3>{} : outward_at_points(mesh, sides, areas);
    for (std::int64_t row = 0; row < normals->num_rows(); ++row) {
        const auto outward = on_cells ? static_cast<double>(sides.sides[row]) * areas[row] : at_points[row];
        const auto product = dot(vector_at(*normals, row), outward);
        count(product > 0 ? 1 : product < 0 ? -1 : 0, on_cells ? norm(areas[row]) : norm(outward));
    }
    return found;
}

SurfaceFacing surface_facing(const Mesh& mesh)
{
    return surface_facing(mesh, polygon_sides(mesh));
}

std::int64_t turn_outward(Mesh& mesh, const PolygonSides& sides, const std::string& normals)
{
    std::int64_t num_turned = 0;
    auto* cell_normals = normals.empty() ? nullptr : const_cast<DataArray*>(find_array(mesh.cell_data, normals));
    auto* point_normals = normals.empty() ? nullptr : const_cast<DataArray*>(find_array(mesh.point_data, normals));
    if (cell_normals != nullptr || point_normals != nullptr) {
        const auto areas = area_vectors(mesh);
        if (cell_normals != nullptr && holds_vectors(*cell_normals)) {
            std::vector<Vector3> outward(areas.size());
            for (std::size_t cell = 0; cell < areas.size(); ++cell)
                outward[cell] = static_cast<double>(sides.sides[cell]) * areas[cell];
            num_turned += turn_vectors(*cell_normals, outward);
        }
        if (point_normals != nullptr && holds_vectors(*point_normals))
            num_turned += turn_vectors(*point_normals, outward_at_points(mesh, sides, areas));
    }
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
        if (sides.sides[cell] >= 0) continue;
        ++num_turned;
        const auto begin = mesh.cells.offsets[cell];
        reverse_points(std::span(mesh.cells.indices).subspan(begin, mesh.cells.offsets[cell + 1] - begin), cell,
                       mesh.cell_types[cell]);
    }
    return num_turned;
}

Orient parse_orient(const std::string& word)
{
    if (word == "outward") return Orient::Outward;
    if (word == "as-is") return Orient::AsIs;
    throw InvalidInput("the orientation is '{}'; expected outward or as-is.", word);
}

SurfaceFacing orient_surface(Mesh& mesh, Orient orient, const std::string& normals)
{
    const auto has = [&](int dimension) {
        return std::ranges::any_of(mesh.cell_types, [&](auto type) { return cell_dimension(type) == dimension; });
    };
    if (!has(2) || has(3)) return {};
    auto sides = polygon_sides(mesh);
    if (orient == Orient::Outward) {
        turn_outward(mesh, sides, normals);
        for (auto& side : sides.sides) side = static_cast<std::int8_t>(side != 0);
    }
    const auto* array = normals.empty() ? nullptr : find_array(mesh.cell_data, normals);
    if (array == nullptr && !normals.empty()) array = find_array(mesh.point_data, normals);
    return surface_facing(mesh, sides, array);
}

}  // namespace meshard
