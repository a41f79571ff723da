// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/mesh_graph.h"

#include "partition/error.h"
#include "partition/lists.h"
#include "partition/mesh/cell_type.h"
#include "partition/mesh/neighbor_graph.h"
#include "partition/mesh/vector_algebra.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

namespace {

constexpr std::int32_t none = -1;

// Finds the cells that share a facet in one pass over the cells. A facet is identified by its sorted points: up to four
// of them are the key itself; for larger facets the key is a hash, and the points are stored separately for the final
// comparison.
//
// The facets are stored in one array in order of appearance, chained from a hash table whose slot is a linear function
// of the points: facets with near numbers are near in memory. Remaining cache misses are hidden by prefetching a batch
// of facets at a time. Together this is several times faster than separate lookups in an ordinary hash table.
class FacetMatcher {
public:
    FacetMatcher(std::int64_t num_cells, std::int64_t num_facets)
    {
        const auto num_slots = std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(num_facets / 2, 16)));
        first_in_slot_.assign(num_slots, none);
        slot_mask_ = static_cast<std::uint32_t>(num_slots - 1);
        facets_.reserve(num_facets / 2 + num_facets / 16);
        lower_.reserve(num_facets / 2);
        lower_ends_.reserve(num_cells);
        degrees_.assign(num_cells, 0);
        batch_.reserve(batch_size);
    }

    // Adds a facet of `cell`; cells come in ascending order. A facet with fewer than `min_points` different points is
    // degenerate and ignored.
    void add(std::int32_t cell, std::span<const std::int32_t> points, std::size_t min_points)
    {
        if (points.size() == 4) {
            auto [a, b, c, d] = std::array{points[0], points[1], points[2], points[3]};
            order(a, b);
            order(c, d);
            order(a, c);
            order(b, d);
            order(b, c);
            if (a != b && b != c && c != d) return push(cell, {a, b, c, d}, 1u * a + 3u * b + 5u * c + 7u * d);
        } else if (points.size() == 3) {
            auto [a, b, c] = std::array{points[0], points[1], points[2]};
            order(a, b);
            order(b, c);
            order(a, b);
            if (a != b && b != c) return push(cell, {a, b, c, none}, 1u * a + 3u * b + 5u * c);
        } else if (points.size() == 2) {
            auto [a, b] = std::array{points[0], points[1]};
            order(a, b);
            if (a != b) return push(cell, {a, b, none, none}, 1u * a + 3u * b);
        }
        add_any(cell, points, min_points);
    }

    /// A facet of more than two cells.
    struct Crowd {
        std::vector<std::int32_t> first_cells;  // at most `most_mutual_cells` of them, ascending
        std::int32_t last_cell;
        std::int32_t num_cells;
    };

    std::span<const Crowd> crowds() const { return crowds_; }

    // Each cell's lower neighbours are known and sorted. Since both directions are written in the order of the cells,
    // every row is ascending: first a cell's lower neighbours, when it is the current cell itself, then the higher ones
    // when these are current.
    Csr finish()
    {
        match_batch();
        finish_cells_below(static_cast<std::int32_t>(degrees_.size()));
        // Frees memory that is no longer needed, for the graph.
        std::vector<Facet>().swap(facets_);
        std::vector<std::int32_t>().swap(first_in_slot_);
        std::vector<std::int32_t>().swap(large_points_);
        Csr graph;
        const auto num_cells = degrees_.size();
        graph.offsets.assign(num_cells + 1, 0);
        for (std::size_t i = 0; i < num_cells; ++i) graph.offsets[i + 1] = graph.offsets[i] + degrees_[i];
        graph.indices.resize(graph.offsets.back());
        std::vector<std::int64_t> next(graph.offsets.begin(), graph.offsets.end() - 1);
        std::int64_t k = 0;
        for (std::size_t i = 0; i < num_cells; ++i)
            for (; k < lower_ends_[i]; ++k) {
                graph.indices[next[i]++] = lower_[k];
                graph.indices[next[lower_[k]]++] = static_cast<std::int32_t>(i);
            }
        return graph;
    }

private:
    using Key = std::array<std::int32_t, 4>;

    static constexpr std::size_t batch_size = 256;

    struct Facet {
        Key key;  // sorted points, padded with -1; or (-number of points, hash, two halves of the position in
                  // large_points_)
        std::int32_t first_cell;
        std::int32_t second_cell;  // or none, or -2 minus its index in crowds_
        std::int32_t next;         // next facet in the same slot
    };

    struct Pending {
        Key key;
        std::uint32_t slot;
        std::int32_t cell;
    };

    static void order(std::int32_t& a, std::int32_t& b)
    {
        const auto smaller = std::min(a, b);
        b = std::max(a, b);
        a = smaller;
    }

    void push(std::int32_t cell, const Key& key, std::uint32_t slot)
    {
        slot &= slot_mask_;
        __builtin_prefetch(&first_in_slot_[slot], 1);
        batch_.push_back({key, slot, cell});
        if (batch_.size() == batch_size) match_batch();
    }

    void add_any(std::int32_t cell, std::span<const std::int32_t> points, std::size_t min_points)
    {
        sorted_.assign(points.begin(), points.end());
        sort_unique(sorted_);
        if (sorted_.size() < min_points) return;
        Key key{none, none, none, none};
        std::uint32_t slot = 0;
        for (std::size_t i = 0; i < sorted_.size() && i < key.size(); ++i) {
            key[i] = sorted_[i];
            slot += static_cast<std::uint32_t>(2 * i + 1) * static_cast<std::uint32_t>(sorted_[i]);
        }
        if (sorted_.size() > key.size()) {
            std::uint64_t hash = 0;
            for (const auto point : sorted_)
                hash = (std::rotl(hash, 23) ^ static_cast<std::uint64_t>(point)) * 0x9e3779b97f4a7c15u;
            const auto [low, high] = std::bit_cast<std::array<std::int32_t, 2>>(std::ssize(large_points_));
            key = {-static_cast<std::int32_t>(sorted_.size()), static_cast<std::int32_t>(hash >> 32), low, high};
            append(large_points_, sorted_);
        }
        push(cell, key, slot);
    }

    bool same(const Key& a, const Key& b) const
    {
        // Not operator==, which compilers turn into a call of memcmp.
        if (((a[0] ^ b[0]) | (a[1] ^ b[1])) != 0) return false;
        if (a[0] >= 0) return ((a[2] ^ b[2]) | (a[3] ^ b[3])) == 0;
        const auto points_of_a = large_points_.begin() + place(a);
        return std::equal(points_of_a, points_of_a - a[0], large_points_.begin() + place(b));
    }

    static std::int64_t place(const Key& large) { return std::bit_cast<std::int64_t>(std::array{large[2], large[3]}); }

    void match_batch()
    {
        for (const auto& pending : batch_)
            if (const auto at = first_in_slot_[pending.slot]; at != none) __builtin_prefetch(&facets_[at], 1);
        for (const auto& pending : batch_) match(pending);
        batch_.clear();
    }

    void match(const Pending& pending)
    {
        const auto cell = pending.cell;
        finish_cells_below(cell);
        auto& start = first_in_slot_[pending.slot];
        std::int32_t last = none;
        for (auto at = start; at != none; last = at, at = facets_[at].next) {
            auto& facet = facets_[at];
            if (!same(facet.key, pending.key)) continue;
            if (facet.second_cell < none) return add_to_crowd(crowds_[-2 - facet.second_cell], cell);
            if (facet.first_cell == cell || facet.second_cell == cell) return;  // the cell has the facet twice
            lower_.push_back(facet.first_cell);
            if (facet.second_cell == none) {
                facet.second_cell = cell;
                return;
            }
            lower_.push_back(facet.second_cell);
            crowds_.push_back({{facet.first_cell, facet.second_cell, cell}, cell, 3});
            facet.second_cell = -1 - static_cast<std::int32_t>(crowds_.size());
            return;
        }
        (last == none ? start : facets_[last].next) = static_cast<std::int32_t>(facets_.size());
        facets_.push_back({pending.key, cell, none, none});
    }

    void add_to_crowd(Crowd& crowd, std::int32_t cell)
    {
        if (crowd.last_cell == cell) return;  // the cell has the facet twice
        if (crowd.num_cells < most_mutual_cells) {
            append(lower_, crowd.first_cells);
            crowd.first_cells.push_back(cell);
        } else {
            lower_.push_back(crowd.last_cell);
        }
        crowd.last_cell = cell;
        ++crowd.num_cells;
    }

    void finish_cells_below(std::int32_t end)
    {
        while (static_cast<std::int32_t>(lower_ends_.size()) < end) {
            const auto begin = lower_.begin() + (lower_ends_.empty() ? 0 : lower_ends_.back());
            if (lower_.end() - begin > 1) {
                std::sort(begin, lower_.end());
                lower_.erase(std::unique(begin, lower_.end()), lower_.end());
            }
            for (auto neighbor = begin; neighbor != lower_.end(); ++neighbor) ++degrees_[*neighbor];
            degrees_[lower_ends_.size()] += static_cast<std::int32_t>(lower_.end() - begin);
            lower_ends_.push_back(std::ssize(lower_));
        }
    }

    std::vector<std::int32_t> first_in_slot_;
    std::uint32_t slot_mask_ = 0;
    std::vector<Facet> facets_;
    std::vector<std::int32_t> large_points_;
    std::vector<Crowd> crowds_;
    std::vector<Pending> batch_;
    std::vector<std::int32_t> sorted_;      // points of the current facet
    std::vector<std::int32_t> lower_;       // neighbours with a lower number, concatenated cell by cell
    std::vector<std::int64_t> lower_ends_;  // end of each finished cell's entries
    std::vector<std::int32_t> degrees_;
};

[[noreturn]] void refuse_cell(const Mesh& mesh, std::int64_t cell, const std::string& why)
{
    throw BadCell("cell_graph: cell ", cell, " (" + cell_type_name(mesh.cell_types[cell]) + ") " + why);
}

// Passes to `matcher.add(cell, points, least number of different points)` the facets of the current cell, and the cell
// itself if cells with one more dimension may have it as a facet.
template <class Matcher>
class FacetWalk {
public:
    FacetWalk(const Mesh& mesh, const CellDimensions& dimensions, Matcher& matcher)
        : mesh_(mesh), matcher_(matcher), has_dimension_(dimensions)
    {
    }

    void visit(std::int64_t cell)
    {
        cell_ = static_cast<std::int32_t>(cell);
        const auto& type = cell_type_of(mesh_.cell_types[cell]);
        const auto points = mesh_.cells.row(cell);
        if (std::ssize(points) < type.min_points)
            refuse_cell(mesh_, cell,
                        fmt::format("has {} points, expected at least {}.", points.size(), type.min_points));
        switch (type.shape) {
        case CellShape::None:
            return;
        case CellShape::Points:
            for (const auto& point : points) matcher_.add(cell_, {&point, 1}, 1);
            return;
        case CellShape::Line:
            return add_curve(points.first(2), points.subspan(1, 1));
        case CellShape::Polyline:
            if (!points.empty()) add_curve(points, points.last(1));
            return;
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
        case CellShape::Strip:
            for (std::size_t i = 0; i + 2 < points.size(); ++i) add_ring(points.subspan(i, 3));
            return;
        case CellShape::Polyhedron:
            return add_stream(cell);
        case CellShape::Hull:
            return add_hull(points);
        case CellShape::Unknown:
            refuse_cell(mesh_, cell, "is of a type whose faces are not known; convert it first.");
        default:
            return add_solid(type.shape, points);
        }
    }

private:
    void add_curve(std::span<const std::int32_t> points, std::span<const std::int32_t> end)
    {
        matcher_.add(cell_, points.first(1), 1);
        matcher_.add(cell_, end, 1);
        if (has_dimension_[2])
            for (std::size_t i = 0; i + 1 < points.size(); ++i) matcher_.add(cell_, points.subspan(i, 2), 2);
    }

    void add_ring(std::span<const std::int32_t> points)
    {
        for (std::size_t i = 0; i < points.size(); ++i)
            matcher_.add(cell_, std::array{points[i], points[i + 1 < points.size() ? i + 1 : 0]}, 2);
        if (has_dimension_[3]) matcher_.add(cell_, points, 3);
    }

    void add_solid(CellShape shape, std::span<const std::int32_t> points)
    {
        std::array<std::int32_t, 6> face;
        for (const auto& corners : solid_faces(shape)) {
            for (std::size_t i = 0; i < corners.size(); ++i) face[i] = points[corners[i]];
            matcher_.add(cell_, {face.data(), corners.size()}, 3);
        }
    }

    void add_stream(std::int64_t cell)
    {
        if (cell >= mesh_.face_streams.num_rows()) refuse_cell(mesh_, cell, "has no face stream.");
        auto stream = mesh_.face_streams.row(cell);
        if (!stream.empty()) stream = stream.subspan(1);
        while (!stream.empty()) {
            const auto num_points = static_cast<std::uint32_t>(stream[0]);
            if (num_points >= stream.size()) refuse_cell(mesh_, cell, "has a face stream that ends within a face.");
            matcher_.add(cell_, stream.subspan(1, num_points), 3);
            stream = stream.subspan(1 + num_points);
        }
    }

    // Facets of the convex hull: every plane through three points that has all others on one side, with all points in
    // it. Such cells are small and rare, so that brute force is fast enough.
    void add_hull(std::span<const std::int32_t> points)
    {
        std::vector<Vector3> at;
        for (const auto p : points)
            at.push_back({mesh_.points.value(p, 0), mesh_.points.value(p, 1), mesh_.points.value(p, 2)});
        double size = 0;
        for (const auto& x : at) size = std::max(size, norm(x - at[0]));
        constexpr double tolerance =
            1e-5;  // single-precision points of a plane lie within this share of the cell's size
        std::vector<std::int32_t> in_plane;
        for (std::size_t i = 0; i < at.size(); ++i)
            for (std::size_t j = i + 1; j < at.size(); ++j)
                for (std::size_t k = j + 1; k < at.size(); ++k) {
                    const auto normal = cross(at[j] - at[i], at[k] - at[i]);
                    const auto length = norm(normal);
                    if (length <= tolerance * size * size) continue;
                    bool above = false, below = false;
                    in_plane.clear();
                    for (std::size_t l = 0; l < at.size(); ++l) {
                        const auto height = dot(normal, at[l] - at[i]) / length;
                        if (std::abs(height) <= tolerance * size)
                            in_plane.push_back(points[l]);
                        else
                            (height > 0 ? above : below) = true;
                    }
                    if (!above || !below) matcher_.add(cell_, in_plane, 3);
                }
    }

    const Mesh& mesh_;
    Matcher& matcher_;
    std::int32_t cell_ = 0;
    CellDimensions has_dimension_;
};

// Passes on the facets that have an unmarked point.
class UnmarkedFacets {
public:
    UnmarkedFacets(FacetMatcher& matcher, const std::vector<bool>& marks) : matcher_(matcher), marks_(marks) {}

    void add(std::int32_t cell, std::span<const std::int32_t> points, std::size_t min_points)
    {
        if (!std::ranges::all_of(points, [&](std::int32_t point) { return marks_[point]; }))
            matcher_.add(cell, points, min_points);
    }

private:
    FacetMatcher& matcher_;
    const std::vector<bool>& marks_;
};

// A tight upper bound of the number of facets, for which the matcher allocates memory.
std::int64_t count_facets(const Mesh& mesh)
{
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        const auto shape = cell_type_of(mesh.cell_types[i]).shape;
        if (shape == CellShape::Polyhedron)
            count +=
                i < mesh.face_streams.num_rows() && !mesh.face_streams.row(i).empty() ? mesh.face_streams.row(i)[0] : 0;
        else if (const auto faces = solid_faces(shape); !faces.empty())
            count += std::ssize(faces);
        else
            count += std::ssize(mesh.cells.row(i));
    }
    return count;
}

// Keys of the facets whose points are all marked.
class MarkedFacets {
public:
    explicit MarkedFacets(const std::vector<bool>& marks) : marks_(marks) {}

    void add(std::int32_t cell, std::span<const std::int32_t> points, std::size_t min_points)
    {
        if (!std::ranges::all_of(points, [&](std::int32_t point) { return marks_[point]; })) return;
        sorted_.assign(points.begin(), points.end());
        sort_unique(sorted_);
        if (sorted_.size() < min_points) return;
        SharedFacet facet{{none, none, none, none}, cell};
        if (sorted_.size() <= facet.key.size()) {
            std::ranges::copy(sorted_, facet.key.begin());
        } else {
            std::array<std::uint64_t, 2> hashes{0x243f6a8885a308d3u, 0x13198a2e03707344u};
            for (const auto point : sorted_) {
                hashes[0] = (std::rotl(hashes[0], 23) ^ static_cast<std::uint64_t>(point)) * 0x9e3779b97f4a7c15u;
                hashes[1] = (std::rotl(hashes[1], 29) ^ static_cast<std::uint64_t>(point)) * 0xbf58476d1ce4e5b9u;
            }
            facet.key = {-static_cast<std::int32_t>(sorted_.size()), static_cast<std::int32_t>(hashes[0] >> 32),
                         static_cast<std::int32_t>(hashes[1] >> 32), static_cast<std::int32_t>(hashes[0] ^ hashes[1])};
        }
        found.push_back(facet);
    }

    std::vector<SharedFacet> found;

private:
    const std::vector<bool>& marks_;
    std::vector<std::int32_t> sorted_;
};

}  // namespace

CellDimensions dimensions_of(std::span<const std::uint8_t> cell_types)
{
    std::array<bool, 256> has_type{};
    for (const auto type : cell_types) has_type[type] = true;
    CellDimensions dimensions{};
    for (int type = 0; type < 256; ++type)
        if (has_type[type] && cell_type_of(type).dimension > 0) dimensions[cell_type_of(type).dimension] = true;
    return dimensions;
}

std::vector<SharedFacet> facets_of_marked_points(const Mesh& mesh, const CellDimensions& dimensions,
                                                 const std::vector<bool>& marks)
{
    MarkedFacets facets(marks);
    FacetWalk walk(mesh, dimensions, facets);
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) walk.visit(cell);
    return std::move(facets.found);
}

std::vector<std::pair<std::int32_t, std::int32_t>> cells_joined_by(std::span<const SharedFacet> cells)
{
    std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
    for (std::size_t j = 1; j < cells.size(); ++j)
        for (auto i = j < most_mutual_cells ? 0 : j - 1; i < j; ++i) pairs.emplace_back(cells[i].cell, cells[j].cell);
    return pairs;
}

Csr with_edges(const Csr& graph, std::int32_t first, std::span<const std::pair<std::int32_t, std::int32_t>> edges)
{
    Csr result;
    result.offsets.reserve(graph.offsets.size());
    result.indices.reserve(graph.indices.size() + edges.size());
    auto edge = edges.begin();
    for (std::int64_t row = 0; row < graph.num_rows(); ++row) {
        for (const auto neighbor : graph.row(row)) result.indices.push_back(first + neighbor);
        const auto num_before = std::ssize(result.indices);
        for (; edge != edges.end() && edge->first - first == row; ++edge) result.indices.push_back(edge->second);
        if (std::ssize(result.indices) > num_before) {
            const auto begin = result.indices.begin() + result.offsets.back();
            std::inplace_merge(begin, result.indices.begin() + num_before, result.indices.end());
            result.indices.erase(std::unique(begin, result.indices.end()), result.indices.end());
        }
        result.offsets.push_back(result.num_entries());
    }
    return result;
}

void FacetCrowds::add(const std::array<std::int32_t, 3>& first_cells, const std::array<std::uint8_t, 3>& types,
                      std::int32_t num_cells)
{
    most_cells = std::max(most_cells, num_cells);
    // A wall polygon shares a face with its solids, and any number of lines may share a point.
    const int dimension = cell_dimension(types[0]);
    const bool is_alike = cell_dimension(types[1]) == dimension && cell_dimension(types[2]) == dimension;
    if (dimension >= 2 && is_alike && (first_cell < 0 || first_cells[0] < first_cell)) first_cell = first_cells[0];
}

Csr cell_graph(const Mesh& mesh, FacetCrowds* crowds)
{
    return cell_graph(mesh, dimensions_of(mesh.cell_types), nullptr, crowds);
}

Csr cell_graph(const Mesh& mesh, const CellDimensions& dimensions, const std::vector<bool>* without,
               FacetCrowds* crowds)
{
    const auto num_facets = count_facets(mesh);
    if (mesh.num_cells() > std::numeric_limits<std::int32_t>::max() ||
        num_facets > std::numeric_limits<std::int32_t>::max())
        throw InvalidInput("cell_graph: the mesh has {} cells with {} facets; at most 2147483647 can be "
                           "numbered. Cut it in pieces first.",
                           mesh.num_cells(), num_facets);
    FacetMatcher matcher(mesh.num_cells(), num_facets);
    const auto visit_all = [&](auto& facets) {
        FacetWalk walk(mesh, dimensions, facets);
        for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) walk.visit(cell);
    };
    if (without != nullptr) {
        UnmarkedFacets facets(matcher, *without);
        visit_all(facets);
    } else {
        visit_all(matcher);
    }
    Csr graph = matcher.finish();
    if (crowds == nullptr) return graph;
    *crowds = {};
    for (const auto& crowd : matcher.crowds()) {
        const std::array first{crowd.first_cells[0], crowd.first_cells[1], crowd.first_cells[2]};
        crowds->add(first, {mesh.cell_types[first[0]], mesh.cell_types[first[1]], mesh.cell_types[first[2]]},
                    crowd.num_cells);
    }
    return graph;
}

Csr mesh_graph(const Mesh& mesh, std::int32_t num_threads, FacetCrowds* crowds)
{
    constexpr std::int32_t num_neighbors = 8;
    if (crowds != nullptr) *crowds = {};
    if (mesh.is_point_cloud()) return nearest_neighbor_graph(mesh.points, num_neighbors);
    if (std::ranges::all_of(mesh.cell_types, [](auto type) { return type == 1; }))
        return nearest_neighbor_graph(mesh.points.gather(mesh.cells.indices), num_neighbors);
    return num_threads > 1 ? cell_graph_on_threads(mesh, num_threads, crowds) : cell_graph(mesh, crowds);
}

}  // namespace meshard
