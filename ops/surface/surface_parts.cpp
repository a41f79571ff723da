// SPDX-License-Identifier: Apache-2.0
#include "ops/surface/surface_parts.h"

#include "ops/search/point_boxes.h"
#include "partition/lists.h"
#include "partition/mesh/vector_algebra.h"
#include "sharding/ranks/parallel_for.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>

namespace meshard {
namespace {

constexpr int kBoxes = 64;                    // number of boxes that a rank publishes
constexpr std::int64_t kFewestQueries = 256;  // the fewest queries for a thread
constexpr double kSlack = 1 + 1e-12;          // covers the rounding of roots and squares

/// Sends `rows[r]`, with `width` numbers in a row, to rank r; returns the rows received from each rank.
template <class T>
std::vector<std::vector<T>> exchanged(const std::vector<std::vector<T>>& rows, std::int64_t width,
                                      const RankGroup& group)
{
    std::vector<std::int64_t> send, receive;
    std::vector<T> all;
    for (const auto& some : rows) {
        send.push_back(std::ssize(some) / width);
        append(all, some);
    }
    for (const auto& rank : group.all_gather_integers(send)) receive.push_back(rank[group.rank()]);
    const auto received =
        group.all_to_all_rows(at::tensor(all, c10::CppTypeToScalarType<T>::value).view({-1, width}), send, receive);
    std::vector<std::vector<T>> result;
    const auto* at = received.template const_data_ptr<T>();
    for (const auto count : receive) {
        result.emplace_back(at, at + count * width);
        at += count * width;
    }
    return result;
}

Vector3 corner_of(const SurfacePart& part, std::int64_t face, int k)
{
    const auto* at = &part.corners[9 * face + 3 * k];
    return {at[0], at[1], at[2]};
}

/// A hash of a position. Collisions are rare, and only cause a few more triangles to be sent.
std::int64_t key_of(const Vector3& position)
{
    std::uint64_t hash = 0;
    for (const auto x : position) {
        hash = (hash ^ std::bit_cast<std::uint64_t>(x + 0.0)) * 0x9e3779b97f4a7c15u;  // -0 and 0 are the same position
        hash ^= hash >> 29;
    }
    return static_cast<std::int64_t>(hash >> 1);
}

/// For each position of a corner that this rank's triangles share with triangles of other ranks, those ranks.
std::unordered_map<std::int64_t, std::vector<int>> ranks_at_corners(const SurfacePart& part, const RankGroup& group)
{
    const auto size = static_cast<std::size_t>(group.size());
    std::vector<std::int64_t> keys;
    for (std::size_t c = 0; c < part.corner_ids.size(); ++c)
        keys.push_back(key_of(corner_of(part, static_cast<std::int64_t>(c / 3), static_cast<int>(c % 3))));
    sort_unique(keys);
    // Each key is assigned to one rank, to which all ranks with that key send it.
    std::vector<std::vector<std::int64_t>> sent_keys(size), answers(size);
    for (const auto key : keys) sent_keys[static_cast<std::uint64_t>(key) % size].push_back(key);
    const auto received = exchanged(sent_keys, 1, group);
    std::vector<std::pair<std::int64_t, int>> entries;
    for (std::size_t r = 0; r < size; ++r) {
        for (const auto key : received[r]) entries.emplace_back(key, static_cast<int>(r));
    }
    std::ranges::sort(entries);
    for (auto begin = entries.begin(); begin != entries.end();) {
        const auto end =
            std::find_if(begin, entries.end(), [&](const auto& entry) { return entry.first != begin->first; });
        for (auto one = begin; one != end; ++one) {
            for (auto other = begin; other != end; ++other) {
                if (one != other) answers[one->second].insert(answers[one->second].end(), {one->first, other->second});
            }
        }
        begin = end;
    }
    std::unordered_map<std::int64_t, std::vector<int>> ranks_at;
    for (const auto& pairs : exchanged(answers, 2, group)) {
        for (std::size_t i = 0; i < pairs.size(); i += 2) ranks_at[pairs[i]].push_back(static_cast<int>(pairs[i + 1]));
    }
    return ranks_at;
}

/// This rank's triangles and those of other ranks that share a corner with them, sorted by id.
struct LocalSurface {
    SurfacePart part;
    std::vector<char> is_own;
    std::optional<TriangleSurface> surface;  // none without own triangles
    std::optional<SurfaceSearch> search;

    /// The result with global ids; no face if the nearest triangle belongs to another rank, which finds it itself.
    SurfaceNearest nearest(const Vector3& query, double max_distance, double* bound = nullptr) const
    {
        if (!surface) return {};
        auto found = nearest_on_surface(*surface, *search, nullptr, query, max_distance);
        if (found.face < 0) return {};
        if (bound) *bound = std::min(*bound, std::sqrt(found.distance_squared) * kSlack);
        if (!is_own[found.face]) return {};
        for (int k = 0; k < 3; ++k) found.corners[k] = part.corner_ids[3 * found.face + k];
        found.face = part.face_ids[found.face];
        return found;
    }
};

void make_local(LocalSurface& local, SurfacePart part, const RankGroup& group)
{
    const auto num_own = part.face_ids.size();
    std::vector<std::vector<std::int64_t>> ids(group.size());
    std::vector<std::vector<double>> sent_corners(group.size());
    const auto ranks_at = ranks_at_corners(part, group);
    for (std::size_t f = 0; f < num_own; ++f) {
        std::vector<int> ranks;
        for (int k = 0; k < 3; ++k) {
            const auto found = ranks_at.find(key_of(corner_of(part, static_cast<std::int64_t>(f), k)));
            if (found != ranks_at.end()) append(ranks, found->second);
        }
        sort_unique(ranks);
        for (const auto r : ranks) {
            ids[r].push_back(part.face_ids[f]);
            ids[r].insert(ids[r].end(), &part.corner_ids[3 * f], &part.corner_ids[3 * f] + 3);
            sent_corners[r].insert(sent_corners[r].end(), &part.corners[9 * f], &part.corners[9 * f] + 9);
        }
    }
    const auto ghost_ids = exchanged(ids, 4, group);
    const auto ghost_corners = exchanged(sent_corners, 9, group);
    for (std::size_t r = 0; r < ghost_ids.size(); ++r) {
        for (std::size_t i = 0; i < ghost_ids[r].size(); i += 4) {
            part.face_ids.push_back(ghost_ids[r][i]);
            part.corner_ids.insert(part.corner_ids.end(), &ghost_ids[r][i] + 1, &ghost_ids[r][i] + 4);
        }
        append(part.corners, ghost_corners[r]);
    }
    auto order = numbers_from<std::size_t>(0, part.face_ids.size());
    std::ranges::sort(order, [&](auto a, auto b) { return part.face_ids[a] < part.face_ids[b]; });
    for (const auto f : order) {
        local.is_own.push_back(f < num_own);
        local.part.face_ids.push_back(part.face_ids[f]);
        local.part.corner_ids.insert(local.part.corner_ids.end(), &part.corner_ids[3 * f], &part.corner_ids[3 * f] + 3);
        local.part.corners.insert(local.part.corners.end(), &part.corners[9 * f], &part.corners[9 * f] + 9);
    }
    if (num_own == 0) return;
    // Each triangle gets its own corners: TriangleSurface merges vertices with equal coordinates.
    auto corners = numbers_from<std::int64_t>(0, local.part.corner_ids.size());
    local.surface.emplace(local.part.corners, std::move(corners));
    local.search.emplace(*local.surface);
}

/// Bounding boxes of groups of about equal numbers of triangles, by halving along the longest side.
void add_boxes(const SurfacePart& part, std::span<std::int32_t> faces, int count, std::vector<PointBox>& boxes)
{
    PointBox box;
    box.low.fill(std::numeric_limits<double>::infinity());
    box.high.fill(-std::numeric_limits<double>::infinity());
    for (const auto f : faces) {
        for (int c = 0; c < 9; ++c) {
            box.low[c % 3] = std::min(box.low[c % 3], part.corners[9 * f + c]);
            box.high[c % 3] = std::max(box.high[c % 3], part.corners[9 * f + c]);
        }
    }
    box.num_points = std::ssize(faces);
    if (count <= 1 || faces.size() <= 1) {
        if (!faces.empty()) boxes.push_back(box);
        return;
    }
    int axis = 0;
    for (int d = 1; d < 3; ++d) axis = box.high[d] - box.low[d] > box.high[axis] - box.low[axis] ? d : axis;
    const auto middle = [&](std::int32_t f) {
        return part.corners[9 * f + axis] + part.corners[9 * f + 3 + axis] + part.corners[9 * f + 6 + axis];
    };
    const auto half = faces.size() / 2;
    std::nth_element(faces.begin(), faces.begin() + static_cast<std::ptrdiff_t>(half), faces.end(),
                     [&](auto a, auto b) { return middle(a) < middle(b); });
    add_boxes(part, faces.first(half), count / 2, boxes);
    add_boxes(part, faces.subspan(half), count - count / 2, boxes);
}

std::vector<std::vector<PointBox>> published_boxes(const SurfacePart& part, const RankGroup& group)
{
    auto faces = numbers_from<std::int32_t>(0, part.face_ids.size());
    std::vector<PointBox> mine;
    add_boxes(part, faces, kBoxes, mine);
    std::vector<double> numbers;
    for (const auto& box : mine) {
        append(numbers, box.low);
        append(numbers, box.high);
    }
    std::vector<std::vector<PointBox>> all;
    for (const auto& rank : exchanged(std::vector<std::vector<double>>(group.size(), numbers), 6, group)) {
        auto& boxes = all.emplace_back(rank.size() / 6);
        for (std::size_t b = 0; b < boxes.size(); ++b) {
            std::copy_n(&rank[6 * b], 3, boxes[b].low.begin());
            std::copy_n(&rank[6 * b] + 3, 3, boxes[b].high.begin());
        }
    }
    return all;
}

void for_each_query(std::int64_t count, const std::function<void(std::int64_t)>& work)
{
    at::parallel_for(0, count, kFewestQueries, [&](std::int64_t begin, std::int64_t end) {
        for (auto i = begin; i < end; ++i) work(i);
    });
}

constexpr std::int64_t kNumbers = 11, kIds = 4;  // numbers and ids in an answer

void pack(const SurfaceNearest& found, double* numbers, std::int64_t* ids)
{
    numbers[0] = found.distance_squared;
    numbers[1] = found.distance;
    for (int d = 0; d < 3; ++d) {
        numbers[2 + d] = found.direction[d];
        numbers[5 + d] = found.point[d];
        numbers[8 + d] = found.weights[d];
        ids[1 + d] = found.corners[d];
    }
    ids[0] = found.face;
}

SurfaceNearest unpacked(const double* numbers, const std::int64_t* ids)
{
    return {numbers[0],
            numbers[1],
            {numbers[2], numbers[3], numbers[4]},
            {numbers[5], numbers[6], numbers[7]},
            {numbers[8], numbers[9], numbers[10]},
            ids[0],
            {ids[1], ids[2], ids[3]}};
}

}  // namespace

SurfaceNearest nearest_on_surface(const TriangleSurface& surface, const SurfaceSearch& search,
                                  const WindingNumber* winding, const Vector3& query, double max_distance)
{
    const auto [face, nearest] = search.nearest(query, max_distance);
    if (face < 0) return {};
    const Vector3& normal = surface.feature_normal(face, nearest.feature);
    const bool is_corner = nearest.feature < 3, is_inside_triangle = nearest.feature == 6;
    // Uses the vector from a corner instead of the nearest point: both have the same sign, but a corner is not rounded.
    const Vector3 from_corner = query - surface.corner(face, is_corner            ? nearest.feature
                                                             : is_inside_triangle ? 0
                                                                                  : nearest.feature - 3);
    const bool is_above = dot(from_corner, normal) >= 0;
    const double distance = std::sqrt(nearest.distance_squared);
    // On the surface there is no side, and the winding number is 1/2, where it takes a sum over all triangles.
    const bool is_outside = distance == 0 || (winding ? !winding->is_inside(query) : is_above);
    const double sign = is_outside ? 1 : -1;
    // If the nearest point is inside the triangle, the direction is the triangle's normal, which is accurate also for
    // points very near the surface.
    Vector3 direction = is_inside_triangle ? (is_above ? sign : -sign) * normal : sign * unit(query - nearest.point);
    if (distance == 0) direction = unit(normal);
    SurfaceNearest found{
        nearest.distance_squared, sign * distance, direction, nearest.point, nearest.weights, face, {}};
    for (int k = 0; k < 3; ++k) found.corners[k] = surface.vertex_id(face, k);
    return found;
}

std::vector<SurfaceNearest> nearest_among_parts(SurfacePart part, const std::vector<double>& queries,
                                                double max_distance, const RankGroup& group)
{
    const auto boxes = published_boxes(part, group);
    LocalSurface local;
    make_local(local, std::move(part), group);

    const auto num_queries = std::ssize(queries) / 3;
    std::vector<SurfaceNearest> found(num_queries);
    std::vector<double> bounds(num_queries, max_distance);
    for_each_query(num_queries, [&](std::int64_t i) {
        const Vector3 query{queries[3 * i], queries[3 * i + 1], queries[3 * i + 2]};
        found[i] = local.nearest(query, max_distance, &bounds[i]);
        for (const auto& rank : boxes) {
            for (const auto& box : rank)
                bounds[i] = std::min(bounds[i], std::sqrt(distance_range(box, query, {}).most) * kSlack);
        }
    });
    std::vector<std::vector<double>> questions(group.size());
    std::vector<std::vector<std::int64_t>> asking(group.size());
    for (std::int64_t i = 0; i < num_queries; ++i) {
        const Vector3 query{queries[3 * i], queries[3 * i + 1], queries[3 * i + 2]};
        for (int r = 0; r < group.size(); ++r) {
            const auto is_reached = [&](const PointBox& box) {
                return std::sqrt(distance_range(box, query, {}).least) <= bounds[i] * kSlack;
            };
            if (r == group.rank() || std::ranges::none_of(boxes[r], is_reached)) continue;
            questions[r].insert(questions[r].end(),
                                {query[0], query[1], query[2], std::min(bounds[i] * kSlack, 1e300)});
            asking[r].push_back(i);
        }
    }

    const auto asked = exchanged(questions, 4, group);
    std::vector<std::vector<double>> numbers(group.size());
    std::vector<std::vector<std::int64_t>> ids(group.size());
    for (int r = 0; r < group.size(); ++r) {
        const auto count = std::ssize(asked[r]) / 4;
        numbers[r].resize(count * kNumbers);
        ids[r].resize(count * kIds);
        for_each_query(count, [&](std::int64_t i) {
            const auto* question = &asked[r][4 * i];
            pack(local.nearest({question[0], question[1], question[2]}, std::min(question[3], max_distance)),
                 &numbers[r][kNumbers * i], &ids[r][kIds * i]);
        });
    }
    const auto numbers_found = exchanged(numbers, kNumbers, group);
    const auto ids_found = exchanged(ids, kIds, group);
    for (int r = 0; r < group.size(); ++r) {
        for (std::size_t i = 0; i < asking[r].size(); ++i) {
            const auto other = unpacked(&numbers_found[r][kNumbers * i], &ids_found[r][kIds * i]);
            auto& best = found[asking[r][i]];
            const bool is_nearer = best.face < 0 || std::pair(other.distance_squared, other.face) <
                                                        std::pair(best.distance_squared, best.face);
            if (other.face >= 0 && is_nearer) best = other;
        }
    }
    return found;
}

}  // namespace meshard
