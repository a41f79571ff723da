// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/joined_points.h"

#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace meshard {

namespace {

using Place = std::array<double, 3>;
using Box = std::array<std::int64_t, 3>;

struct BoxHash {
    std::size_t operator()(const Box& box) const
    {
        std::uint64_t hash = 0;
        for (const auto index : box)
            hash = (hash ^ static_cast<std::uint64_t>(index)) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
        return hash;
    }
};

Place place_of(const DataArray& points, std::int64_t point)
{
    return {points.value(point, 0), points.value(point, 1), points.value(point, 2)};
}

// The bits of a position, with -0 replaced by 0.
Box bits_of(const Place& place)
{
    Box bits;
    for (int d = 0; d < 3; ++d) bits[d] = std::bit_cast<std::int64_t>(place[d] + 0.0);
    return bits;
}

double squared_distance(const Place& a, const Place& b)
{
    double sum = 0;
    for (int d = 0; d < 3; ++d) sum += (a[d] - b[d]) * (a[d] - b[d]);
    return sum;
}

void require_finite(const DataArray& points, double tolerance)
{
    if (!(tolerance >= 0) || !std::isfinite(tolerance))
        throw InvalidInput("join_points: the tolerance is {}, expected 0 or a length above 0.", tolerance);
    for (std::int64_t point = 0; point < points.num_rows(); ++point)
        for (const double x : place_of(points, point))
            if (!std::isfinite(x))
                throw InvalidInput("join_points: point {} has a coordinate that is NaN or infinite.", point);
}

// Points that are kept, sorted into boxes with an edge of the tolerance or more: a point within reach is in the same
// box or in a neighbouring one, and no box has many points.
class KeptPoints {
public:
    KeptPoints(const DataArray& points, double tolerance) : points_(points), tolerance_(tolerance), edge_(tolerance)
    {
        if (tolerance == 0) return;  // equal points are found without boxes
        // Coordinates are multiples of more than this: smaller boxes would have numbers too large to be told apart.
        for (const auto x : points.to_doubles()) edge_ = std::max(edge_, 1e-15 * std::abs(x));
    }

    std::int32_t nearest(const Place& place) const
    {
        const auto middle = box_of(place);
        std::int32_t best = -1;
        auto least = tolerance_ * tolerance_;
        for (int i = 0; i < 27; ++i) {
            const auto found = boxes_.find({middle[0] + i % 3 - 1, middle[1] + i / 3 % 3 - 1, middle[2] + i / 9 - 1});
            if (found == boxes_.end()) continue;
            for (const auto point : found->second) {
                const auto distance = squared_distance(place, place_of(points_, point));
                if (distance > least || (best >= 0 && distance == least && point > best)) continue;
                least = distance;
                best = point;
            }
        }
        return best;
    }

    void keep(std::int32_t point) { boxes_[box_of(place_of(points_, point))].push_back(point); }

private:
    Box box_of(const Place& place) const
    {
        Box box;
        for (int d = 0; d < 3; ++d) box[d] = static_cast<std::int64_t>(std::floor(place[d] / edge_));
        return box;
    }

    const DataArray& points_;
    double tolerance_, edge_;
    std::unordered_map<Box, std::vector<std::int32_t>, BoxHash> boxes_;
};

bool has_another_value(const DataArray& array, std::int64_t a, std::int64_t b)
{
    if (array.type() == ScalarType::String) {
        for (std::int32_t c = 0; c < array.num_components(); ++c)
            if (array.strings()[a * array.num_components() + c] != array.strings()[b * array.num_components() + c])
                return true;
        return false;
    }
    const auto bytes = array.bytes();
    const auto size = array.num_rows() > 0 ? bytes.size() / static_cast<std::size_t>(array.num_rows()) : 0;
    return !std::ranges::equal(bytes.subspan(a * size, size), bytes.subspan(b * size, size));
}

// Counts the points of some cells at the position of an earlier one.
template <class F>
std::int64_t count_coincident(const Mesh& mesh, F&& is_counted)
{
    std::vector<bool> is_used(mesh.num_points(), false);
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell)
        if (is_counted(cell))
            for (const auto point : mesh.cells.row(cell)) is_used[point] = true;
    std::vector<std::int32_t> used;
    for (std::int32_t point = 0; point < mesh.num_points(); ++point)
        if (is_used[point]) used.push_back(point);
    const auto joined = points_joined_with(mesh.points.gather(used), 0);
    std::int64_t count = 0;
    for (std::size_t i = 0; i < joined.size(); ++i) count += joined[i] != static_cast<std::int32_t>(i);
    return count;
}

// A polyhedron lists points that were joined only once.
void drop_repeated_points(Mesh& mesh)
{
    Csr cells;
    std::vector<std::int32_t> row;
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
        row.clear();
        for (const auto point : mesh.cells.row(cell))
            if (mesh.face_streams.row(cell).empty() || std::ranges::find(row, point) == row.end()) row.push_back(point);
        cells.push_row(row);
    }
    mesh.cells = std::move(cells);
}

std::string count_of(std::int64_t number, const std::string& one)
{
    return fmt::format("{} {}{}", number, one, number == 1 ? "" : "s");
}

}  // namespace

std::vector<std::int32_t> points_joined_with(const DataArray& points, double tolerance)
{
    require_finite(points, tolerance);
    std::vector<std::int32_t> joined(points.num_rows());
    KeptPoints kept(points, tolerance);
    std::unordered_map<Box, std::int32_t, BoxHash> at;
    if (tolerance == 0) at.reserve(joined.size());
    for (std::int32_t point = 0; point < std::ssize(joined); ++point) {
        const auto place = place_of(points, point);
        if (tolerance == 0) {
            joined[point] = at.try_emplace(bits_of(place), point).first->second;
            continue;
        }
        const auto found = kept.nearest(place);
        joined[point] = found < 0 ? point : found;
        if (found < 0) kept.keep(point);
    }
    return joined;
}

JoinedMesh join_points(const Mesh& mesh, double tolerance)
{
    if (mesh.is_point_cloud())
        throw InvalidInput("join_points: the mesh is a point cloud; joining points would drop its rows.");
    const auto joined = points_joined_with(mesh.points, tolerance);
    std::vector<std::int32_t> kept, number(joined.size());
    for (std::int32_t point = 0; point < std::ssize(joined); ++point) {
        number[point] = joined[point] == point ? static_cast<std::int32_t>(kept.size()) : number[joined[point]];
        if (joined[point] == point) kept.push_back(point);
    }
    JoinedMesh result;
    result.num_joined = std::ssize(joined) - std::ssize(kept);
    auto& out = result.mesh;
    out.kind = mesh.kind;
    out.cells = mesh.cells;
    out.cell_types = mesh.cell_types;
    out.face_streams = mesh.face_streams;
    out.cell_data = mesh.cell_data;
    out.field_data = mesh.field_data;
    out.points = mesh.points.gather(kept);
    for (auto& point : out.cells.indices) point = number[point];
    for_each_face_point(out.face_streams, [&](std::int64_t, std::int32_t& point) { point = number[point]; });
    if (result.num_joined > 0 && mesh.has_polyhedra()) drop_repeated_points(out);
    for (const auto& array : mesh.point_data) {
        out.point_data.push_back(array.gather(kept));
        for (std::int32_t point = 0; point < std::ssize(joined); ++point)
            if (joined[point] != point && has_another_value(array, joined[point], point)) {
                result.differing_fields.push_back(array.name());
                break;
            }
    }
    return result;
}

std::string describe(const UnjoinedCells& found, const std::string& file, const std::string& shared,
                     const std::string& effect)
{
    if (found.num_isolated == 0 && found.num_coincident == 0) return {};
    std::string text;
    if (found.num_isolated > 0)
        text = count_of(found.num_isolated, "cell") + (found.num_isolated == 1 ? " shares no " : " share no ") +
               shared + " with another";
    if (found.num_coincident > 0)
        text += (text.empty() ? "" : ", and ") + count_of(found.num_coincident, "point") +
                (found.num_coincident == 1 ? " lies" : " lie") + " at the place of another";
    return text + ": " + effect + " If cells there should touch, join their points: `meshard convert " + file +
           " OUT --join-points " + (found.num_coincident > 0 ? "0" : "TOL") + "`.";
}

UnjoinedCells find_unjoined_cells(const Mesh& mesh, const Csr& graph)
{
    UnjoinedCells found;
    const auto is_counted = [&](std::int64_t cell) { return cell_dimension(mesh.cell_types[cell]) >= 2; };
    std::vector<bool> is_reached(mesh.num_cells(), false);
    std::vector<std::int32_t> group;
    std::int64_t num_pieces = 0;
    for (std::int32_t start = 0; start < mesh.num_cells(); ++start) {
        if (is_reached[start] || !is_counted(start)) continue;
        ++num_pieces;
        found.num_isolated += graph.row(start).empty();
        is_reached[start] = true;
        group.assign(1, start);
        while (!group.empty()) {
            const auto cell = group.back();
            group.pop_back();
            for (const auto other : graph.row(cell)) {
                if (is_reached[other]) continue;
                is_reached[other] = true;
                group.push_back(other);
            }
        }
    }
    if (num_pieces < 2) return {};
    found.num_coincident = count_coincident(mesh, is_counted);
    return found;
}

UnjoinedCells find_cells_without_common_points(const Mesh& mesh, int dimension)
{
    UnjoinedCells found;
    const auto is_counted = [&](std::int64_t cell) { return cell_dimension(mesh.cell_types[cell]) == dimension; };
    std::vector<std::int32_t> num_users(mesh.num_points(), 0), root(mesh.num_points());
    std::iota(root.begin(), root.end(), 0);
    const auto root_of = [&](std::int32_t point) {
        while (root[point] != point) point = root[point] = root[root[point]];
        return point;
    };
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
        if (!is_counted(cell)) continue;
        const auto points = mesh.cells.row(cell);
        for (const auto point : points) {
            ++num_users[point];
            root[root_of(point)] = root_of(points[0]);
        }
    }
    std::int64_t num_pieces = 0;
    for (std::int32_t point = 0; point < mesh.num_points(); ++point)
        num_pieces += num_users[point] > 0 && root[point] == point;
    if (num_pieces < 2) return {};
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell)
        found.num_isolated += is_counted(cell) && std::ranges::all_of(mesh.cells.row(cell), [&](std::int32_t point) {
                                  return num_users[point] == 1;
                              });
    found.num_coincident = count_coincident(mesh, is_counted);
    return found;
}

}  // namespace meshard
