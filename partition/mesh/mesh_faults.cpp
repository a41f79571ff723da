// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/mesh_faults.h"

#include "partition/lists.h"
#include "partition/mesh/cell_type.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <vector>

namespace meshard {

namespace {

/// Mixes the bits of an integer.
std::uint64_t mixed(std::uint64_t x)
{
    x *= 0xFF51AFD7ED558CCD;
    x = (x ^ x >> 32) * 0xC4CEB9FE1A85EC53;
    return x ^ x >> 29;
}

/// A set of hashes with open addressing, never more than half full. A search starts at a slot that the caller chooses,
/// so that cells with near numbers are near in memory; if the slots there are full, it continues at slots that depend
/// on the hash.
class HashSet {
public:
    explicit HashSet(std::int64_t most)
        : slots_(std::bit_ceil(static_cast<std::uint64_t>(2 * most + 2)), 0), mask_(slots_.size() - 1)
    {
    }

    std::uint64_t num_slots() const { return slots_.size(); }

    /// Returns false if the hash was there already. The hash must not be 0, which marks a free slot.
    bool insert(std::uint64_t hash, std::uint64_t slot_index)
    {
        constexpr std::uint64_t run = 8;
        for (std::uint64_t step = 0;; ++step, ++slot_index) {
            // Not the next slots: a long run of them may be full.
            if (step > 0 && step % run == 0) slot_index = mixed(hash + step);
            auto& slot = slots_[slot_index & mask_];
            if (slot == hash) return false;
            if (slot != 0) continue;
            slot = hash;
            return true;
        }
    }

private:
    std::vector<std::uint64_t> slots_;
    std::uint64_t mask_;
};

bool uses_a_point_twice(std::span<const std::int32_t> points)
{
    for (std::size_t i = 1; i < points.size(); ++i)
        for (std::size_t k = 0; k < i; ++k)
            if (points[i] == points[k]) return true;
    return false;
}

/// Corners of tetrahedra that fill one of VTK's solids, with positive orientation; empty for shapes without fixed ones.
std::span<const std::array<std::uint8_t, 4>> tetrahedra_of(CellShape shape)
{
    using Tet = std::array<std::uint8_t, 4>;
    static constexpr Tet tetra[] = {{0, 1, 2, 3}};
    static constexpr Tet pyramid[] = {{0, 1, 2, 4}, {0, 2, 3, 4}};
    static constexpr Tet hexahedron[] = {{0, 1, 2, 6}, {0, 2, 3, 6}, {0, 3, 7, 6},
                                         {0, 7, 4, 6}, {0, 4, 5, 6}, {0, 5, 1, 6}};
    static constexpr Tet voxel[] = {{0, 1, 3, 7}, {0, 3, 2, 7}, {0, 2, 6, 7}, {0, 6, 4, 7}, {0, 4, 5, 7}, {0, 5, 1, 7}};
    static constexpr Tet wedge[] = {{0, 1, 2, 5}, {0, 1, 5, 4}, {0, 4, 5, 3}};
    static constexpr Tet pentagonal_prism[] = {{0, 1, 2, 7}, {0, 1, 7, 6}, {0, 6, 7, 5}, {0, 2, 3, 8}, {0, 2, 8, 7},
                                               {0, 7, 8, 5}, {0, 3, 4, 9}, {0, 3, 9, 8}, {0, 8, 9, 5}};
    static constexpr Tet hexagonal_prism[] = {{0, 1, 2, 8},  {0, 1, 8, 7},  {0, 7, 8, 6},   {0, 2, 3, 9},
                                              {0, 2, 9, 8},  {0, 8, 9, 6},  {0, 3, 4, 10},  {0, 3, 10, 9},
                                              {0, 9, 10, 6}, {0, 4, 5, 11}, {0, 4, 11, 10}, {0, 10, 11, 6}};
    switch (shape) {
    case CellShape::Tetra:
        return tetra;
    case CellShape::Wedge:
        return wedge;
    case CellShape::PentagonalPrism:
        return pentagonal_prism;
    case CellShape::HexagonalPrism:
        return hexagonal_prism;
    case CellShape::Pyramid:
        return pyramid;
    case CellShape::Hexahedron:
        return hexahedron;
    case CellShape::Voxel:
        return voxel;
    default:
        return {};
    }
}

template <class T>
bool is_inverted(std::span<const T> xyz, std::span<const std::int32_t> points, CellShape shape)
{
    double volume = 0;
    for (const auto& tet : tetrahedra_of(shape)) {
        std::array<std::array<double, 3>, 3> edges{};
        for (std::size_t e = 0; e < 3; ++e)
            for (std::size_t c = 0; c < 3; ++c)
                edges[e][c] = static_cast<double>(xyz[static_cast<std::size_t>(points[tet[e + 1]]) * 3 + c]) -
                              static_cast<double>(xyz[static_cast<std::size_t>(points[tet[0]]) * 3 + c]);
        const auto& [u, v, w] = edges;
        volume += u[0] * (v[1] * w[2] - v[2] * w[1]) - u[1] * (v[0] * w[2] - v[2] * w[0]) +
                  u[2] * (v[0] * w[1] - v[1] * w[0]);
    }
    return volume < 0;
}

void count(std::int64_t& number, std::int64_t& first, std::int64_t cell)
{
    if (number++ == 0 || cell < first) first = cell;
}

std::string cells_text(std::int64_t number, std::int64_t first)
{
    return number == 1 ? fmt::format("1 cell (number {})", first)
                       : fmt::format("{} cells (the first is number {})", number, first);
}

std::uint64_t hash_of(std::span<const std::int32_t> points, std::uint8_t type)
{
    std::uint64_t hash = 0;
    // Independent of the order.
    for (const std::int32_t point : points) hash += mixed(static_cast<std::uint64_t>(point) + 1);
    return mixed(hash + type) | 1;
}

/// @param is_used   set for the points that cells use; if null, cells are not compared either
/// @param numbers   by which the cells are called; if empty, their places
MeshFaults walk_cells(const Mesh& mesh, std::vector<bool>* is_used, std::span<const std::int32_t> numbers = {})
{
    const auto number_of = [&](std::int64_t cell) { return numbers.empty() ? cell : std::int64_t{numbers[cell]}; };
    MeshFaults faults;
    HashSet seen(is_used != nullptr ? mesh.num_cells() : 0);
    const auto slots_a_point =
        static_cast<double>(seen.num_slots()) / static_cast<double>(std::max<std::int64_t>(mesh.num_points(), 1));
    const auto walk = [&]<class T>(std::span<const T> xyz) {
        for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
            const auto points = mesh.cells.row(i);
            if (is_used != nullptr && !points.empty()) {
                std::uint64_t sum = 0;
                for (const std::int32_t point : points) {
                    (*is_used)[point] = true;
                    sum += static_cast<std::uint64_t>(point);
                }
                const auto near = static_cast<std::uint64_t>(slots_a_point * static_cast<double>(sum) /
                                                             static_cast<double>(points.size()));
                if (!seen.insert(hash_of(points, mesh.cell_types[i]), near))
                    count(faults.duplicate_cells, faults.first_duplicate, number_of(i));
            }
            const CellShape shape = cell_type_of(mesh.cell_types[i]).shape;
            const bool may_repeat =
                shape == CellShape::Polyline || shape == CellShape::Strip || shape == CellShape::Points;
            if (!may_repeat && points.size() <= 64 && uses_a_point_twice(points))
                count(faults.degenerate_cells, faults.first_degenerate, number_of(i));
            if (is_inverted(xyz, points, shape))
                shape == CellShape::Wedge ? count(faults.outward_wedges, faults.first_outward, number_of(i))
                                          : count(faults.inverted_cells, faults.first_inverted, number_of(i));
        }
    };
    if (mesh.points.type() == ScalarType::Float32)
        walk(mesh.points.values<float>());
    else
        walk(mesh.points.values<double>());
    return faults;
}

}  // namespace

std::string polyhedron_fault(std::int64_t cell, std::span<const std::int32_t> points,
                             std::span<const std::int32_t> stream)
{
    constexpr std::size_t few = 64;
    std::vector<std::int32_t> sorted;
    if (points.size() > few) sorted.assign(points.begin(), points.end());
    std::ranges::sort(sorted);
    const auto has = [&](std::int32_t point) {
        return sorted.empty() ? contains(points, point) : std::ranges::binary_search(sorted, point);
    };
    const auto name = fmt::format("cell {} (polyhedron)", cell);
    const auto of_stream = "the face stream of " + name;
    if (stream.empty()) return of_stream + " is empty; a polyhedron needs its faces";
    std::size_t at = 1;
    for (std::int32_t face = 0; face < stream[0]; ++face) {
        if (at >= stream.size()) return fmt::format("{} ends before face {} of {}", of_stream, face, stream[0]);
        if (stream[at] < 0 || static_cast<std::size_t>(stream[at]) > stream.size() - at - 1)
            return fmt::format("{} ends within face {}, which says it has {} points", of_stream, face, stream[at]);
        const auto of_face = stream.subspan(at + 1, static_cast<std::size_t>(stream[at]));
        for (const std::int32_t point : of_face)
            if (!has(point))
                return fmt::format("{} lists {} points, but its face {} uses point {}, which is not among them. The "
                                   "connectivity of a polyhedron must have every point of its faces",
                                   name, points.size(), face, point);
        at += 1 + of_face.size();
    }
    if (stream[0] < 0) return fmt::format("{} says it has {} faces", of_stream, stream[0]);
    return at == stream.size()
               ? ""
               : fmt::format("{} has {} entries after its {} faces", of_stream, stream.size() - at, stream[0]);
}

bool PolyhedronCheck::passes(std::int32_t cell, std::span<const std::int32_t> points,
                             std::span<const std::int32_t> stream)
{
    constexpr std::size_t few = 64;
    if (points.size() > few) return polyhedron_fault(cell, points, stream).empty();
    const auto name_of = [cell](std::int32_t point) {
        return (static_cast<std::uint64_t>(cell) + 1) << 32 | static_cast<std::uint32_t>(point);
    };
    const auto slot_of = [this](std::int32_t point) -> std::uint64_t& {
        return seen_[static_cast<std::uint32_t>(point) % seen_.size()];
    };
    for (const std::int32_t point : points) slot_of(point) = name_of(point);
    if (stream.empty() || stream[0] < 0) return false;
    const std::int32_t* at = stream.data() + 1;
    const std::int32_t* const end = stream.data() + stream.size();
    for (std::int32_t face = 0; face < stream[0]; ++face) {
        if (at == end || static_cast<std::uint32_t>(*at) >= static_cast<std::size_t>(end - at)) return false;
        for (const auto* const end_of_face = at + 1 + *at; ++at != end_of_face;)
            if (slot_of(*at) != name_of(*at) && !contains(points, *at)) return false;
    }
    return at == end;
}

std::string cell_size_fault(std::int64_t cell, std::uint8_t type, std::int64_t num_points)
{
    const CellType& known = cell_type_of(type);
    if (known.name.empty()) return fmt::format("cell {} has type {}, which VTK does not know", cell, type);
    if (known.fits(num_points)) return {};
    return fmt::format("cell {} ({}) has {} points, expected {}{}", cell, known.name, num_points, known.min_points,
                       known.fixed_size ? "" : " or more");
}

MeshFaults find_faults(const Mesh& mesh)
{
    if (mesh.is_point_cloud()) return {};
    std::vector<bool> is_used(mesh.num_points(), false);
    MeshFaults faults = walk_cells(mesh, &is_used);
    faults.unused_points = std::ranges::count(is_used, false);
    return faults;
}

MeshFaults find_cell_faults(const Mesh& mesh, std::span<const std::int32_t> numbers)
{
    return mesh.is_point_cloud() ? MeshFaults{} : walk_cells(mesh, nullptr, numbers);
}

std::vector<std::uint64_t> cell_hashes(const Mesh& mesh)
{
    std::vector<std::uint64_t> hashes;
    hashes.reserve(mesh.num_cells());
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i)
        hashes.push_back(mesh.cells.row(i).empty() ? 0 : hash_of(mesh.cells.row(i), mesh.cell_types[i]));
    return hashes;
}

std::vector<std::string> describe(const MeshFaults& faults)
{
    std::vector<std::string> sentences;
    if (faults.unused_points > 0)
        sentences.push_back(
            (faults.unused_points == 1 ? "1 point is" : fmt::format("{} points are", faults.unused_points)) +
            " used by no cell; they are kept.");
    if (faults.duplicate_cells > 0)
        sentences.push_back(cells_text(faults.duplicate_cells, faults.first_duplicate) +
                            " of the same type on the same points as an earlier one; all are kept.");
    if (faults.degenerate_cells > 0)
        sentences.push_back(cells_text(faults.degenerate_cells, faults.first_degenerate) +
                            " with a point that is used twice.");
    if (faults.inverted_cells > 0)
        sentences.push_back(cells_text(faults.inverted_cells, faults.first_inverted) +
                            " of negative volume: their points are in the wrong order.");
    if (faults.outward_wedges > 0)
        sentences.push_back(cells_text(faults.outward_wedges, faults.first_outward) +
                            " of type wedge whose first triangle looks outward: of negative volume in VTK's filters. "
                            "OpenFOAM's readers give that order, gmsh "
                            "the other; meshard "
                            "takes either.");
    return sentences;
}

}  // namespace meshard
