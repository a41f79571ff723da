// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/neighbor_ghosts.h"

#include "ops/neighbors/neighbor_questions.h"
#include "ops/search/point_cells.h"
#include "partition/lists.h"

#include <algorithm>
#include <cstring>

namespace meshard {
namespace {

/// Indices that sort `ids`.
std::vector<std::int64_t> order_of(const std::vector<std::int64_t>& ids)
{
    auto order = numbers_from<std::int64_t>(0, ids.size());
    if (!std::ranges::is_sorted(ids)) std::ranges::sort(order, [&](auto a, auto b) { return ids[a] < ids[b]; });
    return order;
}

template <class T>
std::vector<T> picked(std::span<const T> rows, const std::vector<std::int64_t>& order, std::size_t width)
{
    std::vector<T> result(order.size() * width);
    for (std::size_t i = 0; i < order.size(); ++i)
        std::copy_n(rows.begin() + order[i] * width, width, result.begin() + i * width);
    return result;
}

/// Returns for each own point whether one of `centers` is within `bound`.
template <class T>
std::vector<char> within_bound(std::span<const T> own, std::span<const T> centers, double bound, int dimensions,
                               std::span<const double> period)
{
    // Only the nearest center of each point matters.
    const auto num_points = own.size() / dimensions;
    if (centers.empty()) return std::vector<char>(num_points, 0);
    const std::vector<T> bounds(num_points, static_cast<T>(bound) * static_cast<T>(bound));
    const auto near = PointSearch<T>(centers, dimensions, period).knn(own, 1, {}, bounds);
    std::vector<char> is_within(num_points);
    for (std::size_t i = 0; i < num_points; ++i) is_within[i] = near.offsets[i + 1] > near.offsets[i];
    return is_within;
}

/// Returns for each own point whether the rank that sent these questions needs it.
template <class T>
std::vector<char> answers_to(const NeighborRequest& request, std::span<const std::uint8_t> bytes,
                             std::span<const T> own, const PointSearch<T>& search, int dimensions)
{
    if (!request.is_knn) {
        const auto cells = unpacked_cells(bytes);
        const double bound = (request.largest_radius() + cells.template reach<T>(dimensions)) * kBoundSlack<T>;
        return within_bound<T>(own, cells.template centroids<T>(dimensions), bound, dimensions, request.options.period);
    }
    std::vector<char> is_needed(own.size() / dimensions, 0);
    std::vector<T> numbers(bytes.size() / sizeof(T)), queries, bounds;
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    for (std::size_t i = 0; i < numbers.size(); i += dimensions + 1) {
        queries.insert(queries.end(), numbers.begin() + i, numbers.begin() + i + dimensions);
        bounds.push_back(numbers[i + dimensions]);
    }
    for (const auto id : search.knn(queries, request.num_wanted(), {}, bounds).ids) is_needed[id] = 1;
    return is_needed;
}

/// Sends ids to each rank and returns the received ones; they are sorted for each rank, and packed into one or two
/// bytes each.
std::vector<std::int64_t> exchanged_ids(std::span<const std::int64_t> ids, std::span<const std::int64_t> send,
                                        std::span<const std::int64_t> receive, const RankGroup& group)
{
    std::vector<std::uint8_t> bytes;
    std::vector<std::int64_t> sizes;
    for (const auto count : send) {
        const auto before = bytes.size();
        pack_ascending(ids.first(count), bytes);
        ids = ids.subspan(count);
        sizes.push_back(static_cast<std::int64_t>(bytes.size() - before));
    }
    const auto packed_ids = group.all_to_all_rows(tensor_of(bytes, 1), sizes, exchanged(sizes, group));
    const auto received = values_of<std::uint8_t>(packed_ids);
    std::vector<std::int64_t> all;
    std::size_t at = 0;
    for (const auto count : receive) {
        const auto own = unpack_ascending(received, at, count);
        append(all, own);
    }
    return all;
}

/// A hash, equal on all ranks, of all data that determine the candidates: arguments, points and queries of all ranks.
template <class T>
std::uint64_t content_of(const NeighborRequest& request, const NeighborInput& points, const NeighborInput& queries,
                         const RankGroup& group)
{
    auto hash = static_cast<std::uint64_t>(fingerprint(request, points, queries));
    const auto add = [&](const void* data, std::size_t size) {
        const auto* at = static_cast<const char*>(data);
        for (std::size_t i = 0; i < size; i += 4) {  // coordinates and ids have 4 or 8 bytes
            std::uint32_t word;
            std::memcpy(&word, at + i, sizeof word);
            hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
            hash ^= hash >> 32;
        }
        hash += size;
    };
    add(points.span<T>().data(), points.span<T>().size_bytes());
    add(points.ids.data(), points.ids.size() * sizeof(std::int64_t));
    add(queries.span<T>().data(), queries.span<T>().size_bytes());
    const DeviceMesh* device_mesh = points.device_mesh.get();
    add(&device_mesh, sizeof device_mesh);
    const auto of_ranks = group.all_gather_integers(static_cast<std::int64_t>(hash));
    hash = 0;
    for (const auto& of_rank : of_ranks) add(&of_rank, sizeof of_rank);
    return hash;
}

/// Values to send to each rank, or received from each, concatenated in rank order.
template <class T>
struct ByRank {
    std::vector<T> values;
    std::vector<std::int64_t> counts;
};

/// For each rank the values of `a` followed by those of `b`.
template <class T>
ByRank<T> merged(const ByRank<T>& a, const ByRank<T>& b)
{
    ByRank<T> all;
    auto from_a = a.values.begin(), from_b = b.values.begin();
    for (std::size_t r = 0; r < a.counts.size(); ++r) {
        all.values.insert(all.values.end(), from_a, from_a + a.counts[r]);
        all.values.insert(all.values.end(), from_b, from_b + b.counts[r]);
        from_a += a.counts[r];
        from_b += b.counts[r];
        all.counts.push_back(a.counts[r] + b.counts[r]);
    }
    return all;
}

/// Points of other ranks with their ids; counts of coordinates are numbers of values, not of points.
template <class T>
struct Ghosts {
    ByRank<T> coordinates;
    ByRank<std::int64_t> ids;
};

/// Sends own rows to the ranks that need them, and receives theirs.
template <class T>
Ghosts<T> exchanged_points(const ByRank<std::int64_t>& rows, const NeighborInput& points, const RankGroup& group)
{
    const auto width = points.values.size(1);
    const auto counts = exchanged(rows.counts, group);
    const auto coordinates =
        group.all_to_all_rows(tensor_of(picked(points.span<T>(), rows.values, width), width), rows.counts, counts);
    const auto numbers = values_of<T>(coordinates);
    Ghosts<T> ghosts{
        {{numbers.begin(), numbers.end()}, counts},
        {exchanged_ids(picked<std::int64_t>(points.ids, rows.values, 1), rows.counts, counts, group), counts}};
    for (auto& count : ghosts.coordinates.counts) count *= width;
    return ghosts;
}

/// Returns whether on every rank the queries are the points themselves.
template <class T>
bool is_among_themselves(const NeighborInput& points, const NeighborInput& queries, const RankGroup& group)
{
    const auto a = points.span<T>(), b = queries.span<T>();
    return group.all_agree(points.ids == queries.ids && std::equal(a.begin(), a.end(), b.begin(), b.end()));
}

template <class T>
NeighborCandidates<T> found_candidates(const NeighborRequest& request, const NeighborInput& points,
                                       const NeighborInput& queries, const RankGroup& group)
{
    const auto dimensions = static_cast<int>(points.values.size(1));
    const auto order = order_of(points.ids);
    const auto own = picked(points.span<T>(), order, dimensions);  // sorted by id
    const PointSearch<T> search(own, dimensions, request.options.period);

    // Two points within a radius are neighbours of each other. Therefore only one rank of each pair asks; the points
    // that it receives determine which of its own points the other rank needs.
    const bool is_mutual = !request.is_knn && is_among_themselves<T>(points, queries, group);
    std::vector<char> is_asked(group.size());
    for (int r = 0; r < group.size(); ++r)
        is_asked[r] = r != group.rank() && (!is_mutual || (r < group.rank()) == ((r + group.rank()) % 2 == 0));
    const auto asked = exchanged_questions<T>(request, own, search, queries.span<T>(), dimensions, is_asked, group);

    const auto add = [&](ByRank<std::int64_t>& rows, const std::vector<char>& is_needed) {
        const auto before = rows.values.size();
        for (std::size_t i = 0; i < order.size(); ++i) {
            if (is_needed[i]) rows.values.push_back(order[i]);
        }
        rows.counts.push_back(static_cast<std::int64_t>(rows.values.size() - before));
    };
    ByRank<std::int64_t> given;  // own rows to send, each once for every rank that needs it
    auto bytes = values_of<std::uint8_t>(asked.bytes);
    for (const auto count : asked.counts) {
        if (count <= 0) {
            add(given, std::vector<char>(order.size(), count == AskedOfRank::kEverything));
            continue;
        }
        add(given, answers_to<T>(request, bytes.first(count), own, search, dimensions));
        bytes = bytes.subspan(count);
    }
    auto ghosts = exchanged_points<T>(given, points, group);
    if (is_mutual) {
        ByRank<std::int64_t> returned;
        std::span<const T> received = ghosts.coordinates.values;
        for (const auto count : ghosts.coordinates.counts) {
            add(returned, within_bound<T>(own, received.first(count), request.largest_radius() * kBoundSlack<T>,
                                          dimensions, request.options.period));
            received = received.subspan(count);
        }
        const auto more = exchanged_points<T>(returned, points, group);
        given = merged(given, returned);
        ghosts = {merged(ghosts.coordinates, more.coordinates), merged(ghosts.ids, more.ids)};
    }

    NeighborCandidates<T> candidates;
    candidates.plan = std::make_shared<const ExchangePlan>(group, points.size(), std::move(given.values),
                                                           std::move(given.counts), ghosts.ids.counts);
    std::vector<std::int64_t> all_ids = points.ids;
    append(all_ids, ghosts.ids.values);
    std::vector<T> all_points(points.span<T>().begin(), points.span<T>().end());
    append(all_points, ghosts.coordinates.values);
    candidates.rows = order_of(all_ids);
    candidates.points = picked<T>(all_points, candidates.rows, dimensions);
    candidates.ids = picked<std::int64_t>(all_ids, candidates.rows, 1);
    return candidates;
}
}  // namespace

template <class T>
std::shared_ptr<const NeighborCandidates<T>> neighbor_candidates(const NeighborRequest& request,
                                                                 const NeighborInput& points,
                                                                 const NeighborInput& queries, const RankGroup& group)
{
    struct Cached {
        std::uint64_t content;
        std::weak_ptr<const NeighborCandidates<T>> candidates;
    };
    static thread_local std::vector<Cached> cache;  // one for every rank, even if ranks are threads
    std::erase_if(cache, [](const Cached& entry) { return entry.candidates.expired(); });
    const auto content = content_of<T>(request, points, queries, group);
    const auto found = std::ranges::find_if(cache, [&](const Cached& entry) { return entry.content == content; });
    const auto known = found == cache.end() ? nullptr : found->candidates.lock();
    if (group.all_agree(known != nullptr)) return known;
    auto candidates =
        std::make_shared<const NeighborCandidates<T>>(found_candidates<T>(request, points, queries, group));
    cache.push_back({content, candidates});
    return candidates;
}
template std::shared_ptr<const NeighborCandidates<float>>
neighbor_candidates(const NeighborRequest&, const NeighborInput&, const NeighborInput&, const RankGroup&);
template std::shared_ptr<const NeighborCandidates<double>>
neighbor_candidates(const NeighborRequest&, const NeighborInput&, const NeighborInput&, const RankGroup&);

}  // namespace meshard
