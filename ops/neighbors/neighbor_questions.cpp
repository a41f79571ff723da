// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/neighbor_questions.h"

#include "ops/search/point_boxes.h"
#include "ops/search/point_cells.h"
#include "partition/lists.h"

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

namespace meshard {
namespace {

constexpr int kBoxes = 64, kBoxesOfRadius = 32;  // the most boxes that a rank broadcasts
// Widths of the cells in a radius search's questions, as multiples of the radius. With finer cells fewer points are
// received, but the questions cost more.
constexpr double kFineCell = 0.03, kCoarseCells[] = {4, 1, 0.5};

std::vector<std::int64_t> without_flags(std::vector<std::int64_t> counts)
{
    for (auto& count : counts) count = std::max<std::int64_t>(0, count);
    return counts;
}

/// The boxes that all ranks broadcast around their points.
struct Surroundings {
    std::vector<std::vector<PointBox>> boxes;  // for each rank
    std::vector<std::optional<PointBox>> hulls;
    std::vector<std::int64_t> held;  // number of points of each rank
};

PointBox hull(const std::vector<PointBox>& boxes)
{
    auto all = boxes.front();
    for (const auto& box : boxes) {
        for (int d = 0; d < 3; ++d) {
            all.low[d] = std::min(all.low[d], box.low[d]);
            all.high[d] = std::max(all.high[d], box.high[d]);
        }
    }
    return all;
}

template <class T>
Surroundings surroundings(std::span<const T> own, int dimensions, int max_boxes, const RankGroup& group)
{
    const auto mine = point_boxes<T>(own, dimensions, max_boxes);
    std::vector<T> numbers;
    for (const auto& box : mine) {
        for (const auto& corner : {box.low, box.high}) {
            // Exact, since it is a coordinate of a point.
            for (const auto x : corner) numbers.push_back(static_cast<T>(x));
        }
        // Rounded down, so that it is not larger than the number of points.
        const auto count = static_cast<T>(box.num_points);
        numbers.push_back(static_cast<std::int64_t>(count) > box.num_points ? std::nextafter(count, T{0}) : count);
    }
    Surroundings all;
    std::vector<std::int64_t> counts;
    for (const auto& rank :
         group.all_gather_integers(std::vector<std::int64_t>{std::ssize(mine), std::ssize(own) / dimensions})) {
        counts.push_back(rank[0]);
        all.held.push_back(rank[1]);
    }
    const auto gathered = group.all_gather_rows(tensor_of(numbers, 7), counts);
    const auto* at = gathered.template const_data_ptr<T>();
    const auto next = [&] { return static_cast<double>(*at++); };
    for (const auto count : counts) {
        auto& boxes = all.boxes.emplace_back(count);
        for (auto& box : boxes) {
            for (auto* corner : {&box.low, &box.high}) {
                for (auto& x : *corner) x = next();
            }
            box.num_points = static_cast<std::int64_t>(next());
        }
        all.hulls.push_back(boxes.empty() ? std::nullopt : std::optional(hull(boxes)));
    }
    return all;
}

/// A squared distance within which there are at least k points: boxes are sorted by their farthest distance, and their
/// points counted.
double certain_bound(const std::vector<std::vector<PointBox>>& boxes, const std::array<double, 3>& x, std::int64_t k,
                     std::span<const double> period, double epsilon)
{
    std::vector<std::pair<double, std::int64_t>> ends;
    for (const auto& rank : boxes) {
        for (const auto& box : rank) ends.emplace_back(distance_range(box, x, period, epsilon).most, box.num_points);
    }
    std::ranges::sort(ends);
    std::int64_t count = 0;
    for (const auto& [most, num_points] : ends) {
        if ((count += num_points) >= k) return most;
    }
    return std::numeric_limits<double>::infinity();
}

/// Each query's squared bound: of the radius, or of the distance of the k-th own point.
template <class T>
std::vector<double> own_bounds(const NeighborRequest& request, std::span<const T> queries, std::int64_t num_queries,
                               const PointSearch<T>& search)
{
    constexpr double slack = kBoundSlack<T>;
    std::vector<double> bounds(num_queries);
    if (!request.is_knn) {
        const auto radius = static_cast<double>(static_cast<T>(request.largest_radius()));
        std::ranges::fill(bounds, radius * radius * slack);
        return bounds;
    }
    const auto wanted = request.num_wanted();
    const auto near = search.knn(queries, wanted);
    for (std::int64_t i = 0; i < num_queries; ++i) {
        const bool enough = near.offsets[i + 1] - near.offsets[i] == wanted;
        const double farthest = enough ? static_cast<double>(near.distances[near.offsets[i + 1] - 1]) : 0.0;
        // Squares of smaller distances are 0 in T, and all such points are equally near.
        constexpr double smallest = std::numeric_limits<T>::min();
        bounds[i] = enough ? std::max(farthest * farthest, smallest) * slack : std::numeric_limits<double>::infinity();
    }
    return bounds;
}

/// For each rank the queries that may have neighbours there; in a search for k nearest each with its bound.
template <class T>
std::vector<std::vector<T>> questions_for(const NeighborRequest& request, std::span<const T> queries,
                                          std::vector<double> bounds, const Surroundings& there, int dimensions,
                                          const std::vector<char>& is_asked)
{
    constexpr double slack = kBoundSlack<T>, epsilon = std::numeric_limits<T>::epsilon();
    const auto& period = request.options.period;
    const auto num_ranks = static_cast<int>(there.boxes.size());
    std::vector<std::vector<T>> questions(num_ranks);
    for (std::size_t i = 0; i < bounds.size(); ++i) {
        const auto query = queries.subspan(i * dimensions, dimensions);
        std::array<double, 3> x{};
        std::ranges::copy(query, x.begin());
        const auto reaches = [&](int r) {
            const auto reached = [&](const PointBox& box) {
                return distance_range(box, x, period, epsilon).least <= bounds[i] * slack;
            };
            return is_asked[r] && there.hulls[r] && reached(*there.hulls[r]) &&
                   std::ranges::any_of(there.boxes[r], reached);
        };
        bool is_certain = !request.is_knn;
        for (int r = 0; r < num_ranks; ++r) {
            if (!reaches(r)) continue;
            if (!is_certain) {
                bounds[i] =
                    std::min(bounds[i], certain_bound(there.boxes, x, request.num_wanted(), period, epsilon) * slack);
                is_certain = true;
                if (!reaches(r)) continue;
            }
            append(questions[r], query);
            constexpr double largest = std::numeric_limits<T>::max();
            if (request.is_knn) questions[r].push_back(static_cast<T>(std::min(bounds[i] * slack, largest)));
        }
    }
    return questions;
}

/// Sends `bytes[r]` to rank r; returns the bytes received from each rank.
std::vector<std::vector<std::uint8_t>> exchanged_bytes(const std::vector<std::vector<std::uint8_t>>& bytes,
                                                       const RankGroup& group)
{
    std::vector<std::uint8_t> all;
    std::vector<std::int64_t> send;
    for (const auto& some : bytes) {
        append(all, some);
        send.push_back(std::ssize(some));
    }
    const auto receive = exchanged(send, group);
    const auto received = group.all_to_all_rows(tensor_of(all, 1), send, receive);
    std::vector<std::vector<std::uint8_t>> result;
    auto at = values_of<std::uint8_t>(received).begin();
    for (const auto size : receive) {
        result.emplace_back(at, at + size);
        at += size;
    }
    return result;
}

/// Keeps the queries of a radius search that are near a point of the rank asked, which answers for coarse cells: boxes
/// around irregular parts are mostly empty.
template <class T>
std::vector<std::vector<T>> worth_asking(const NeighborRequest& request, std::vector<std::vector<T>> questions,
                                         const PointSearch<T>& own, double width, int dimensions,
                                         const RankGroup& group)
{
    const auto radius = request.largest_radius();
    std::vector<PointCells> cells;
    std::vector<std::vector<std::uint8_t>> asking;
    for (const auto& some : questions) {
        cells.push_back(point_cells<T>(some, dimensions, width));
        asking.push_back(some.empty() ? std::vector<std::uint8_t>() : packed(cells.back()));
    }
    const auto asked = exchanged_bytes(asking, group);
    std::vector<std::vector<std::uint8_t>> answers(questions.size());  // one bit for each cell
    for (std::size_t r = 0; r < asked.size(); ++r) {
        if (asked[r].empty()) continue;
        const auto theirs = unpacked_cells(asked[r]);
        const auto bound = static_cast<T>((radius + theirs.template reach<T>(dimensions)) * kBoundSlack<T>);
        const auto near = own.knn(theirs.template centroids<T>(dimensions), 1, {},
                                  std::vector<T>(theirs.codes.size(), bound * bound));
        answers[r].assign((theirs.codes.size() + 7) / 8, 0);
        for (std::size_t c = 0; c < theirs.codes.size(); ++c)
            answers[r][c / 8] |= static_cast<std::uint8_t>((near.offsets[c + 1] > near.offsets[c]) << c % 8);
    }
    const auto answered = exchanged_bytes(answers, group);
    for (std::size_t r = 0; r < questions.size(); ++r) {
        const auto query_cells = cell_of_each<T>(cells[r], questions[r], dimensions);
        std::vector<T> kept;
        for (std::size_t i = 0; i < query_cells.size(); ++i) {
            if ((answered[r][query_cells[i] / 8] >> query_cells[i] % 8 & 1) == 0) continue;
            kept.insert(kept.end(), questions[r].begin() + i * dimensions, questions[r].begin() + (i + 1) * dimensions);
        }
        questions[r] = std::move(kept);
    }
    return questions;
}

/// A lower bound of the number of points that answer the questions: those of boxes that lie completely within the bound
/// of one of a few questions.
template <class T>
std::int64_t certain_answers(const NeighborRequest& request, const std::vector<T>& questions,
                             const std::vector<PointBox>& boxes, int dimensions)
{
    constexpr std::size_t kTried = 64;
    const auto width = static_cast<std::size_t>(dimensions + (request.is_knn ? 1 : 0)),
               count = questions.size() / width;
    std::vector<char> is_within(boxes.size(), 0);
    for (std::size_t i = 0; i < std::min(kTried, count); ++i) {
        const auto* question = questions.data() + i * count / std::min(kTried, count) * width;
        std::array<double, 3> x{};
        std::copy_n(question, dimensions, x.begin());
        const auto radius = static_cast<double>(static_cast<T>(request.largest_radius()));
        const auto bound = request.is_knn ? static_cast<double>(question[dimensions]) : radius * radius;
        for (std::size_t b = 0; b < boxes.size(); ++b)
            is_within[b] |=
                distance_range(boxes[b], x, request.options.period, std::numeric_limits<T>::epsilon()).most <= bound;
    }
    std::int64_t answers = 0;
    for (std::size_t b = 0; b < boxes.size(); ++b) answers += is_within[b] ? boxes[b].num_points : 0;
    return answers;
}

template <class T>
AskedOfRank sent_questions(const NeighborRequest& request, const std::vector<std::vector<T>>& questions,
                           const Surroundings& there, int dimensions, const RankGroup& group)
{
    std::vector<std::int64_t> send(questions.size(), 0);
    std::vector<std::uint8_t> bytes;
    for (std::size_t r = 0; r < questions.size(); ++r) {
        if (questions[r].empty()) continue;
        const auto before = bytes.size();
        if (request.is_knn) {
            const auto* data = reinterpret_cast<const std::uint8_t*>(questions[r].data());
            bytes.insert(bytes.end(), data, data + questions[r].size() * sizeof(T));
        } else {
            const auto cells = packed(point_cells<T>(questions[r], dimensions, kFineCell * request.largest_radius()));
            append(bytes, cells);
        }
        send[r] = static_cast<std::int64_t>(bytes.size() - before);
        const auto point_bytes = dimensions * static_cast<std::int64_t>(sizeof(T));
        if (send[r] + point_bytes * certain_answers<T>(request, questions[r], there.boxes[r], dimensions) <=
            point_bytes * there.held[r])
            continue;
        bytes.resize(before);
        send[r] = AskedOfRank::kEverything;
    }
    AskedOfRank asked;
    std::int64_t num_pairs = 0, num_replicated = 0;
    for (const auto& rank : group.all_gather_integers(send)) {
        asked.counts.push_back(rank[group.rank()]);
        num_pairs += std::ranges::count_if(rank, [](auto size) { return size != 0; });
        num_replicated += std::ranges::count(rank, AskedOfRank::kEverything);
    }
    constexpr std::int64_t kFewPoints = 100'000;  // all of which nobody minds to send
    if (num_replicated > 0 && group.rank() == 0 && std::reduce(there.held.begin(), there.held.end()) > kFewPoints) {
        TORCH_WARN_ONCE(
            request.where, ": ", num_replicated, " of ", num_pairs,
            " pairs of ranks that have neighbours for each other send all their points: that is fewer bytes than "
            "asking for those within reach. A smaller radius, or cuts with less surface, need fewer ghosts.");
    }
    asked.bytes = group.all_to_all_rows(tensor_of(bytes, 1), without_flags(send), without_flags(asked.counts));
    return asked;
}
}  // namespace

std::vector<std::int64_t> exchanged(const std::vector<std::int64_t>& send, const RankGroup& group)
{
    std::vector<std::int64_t> receive;
    for (const auto& rank : group.all_gather_integers(send)) receive.push_back(rank[group.rank()]);
    return receive;
}

template <class T>
AskedOfRank exchanged_questions(const NeighborRequest& request, std::span<const T> own, const PointSearch<T>& search,
                                std::span<const T> queries, int dimensions, const std::vector<char>& is_asked,
                                const RankGroup& group)
{
    const auto there = surroundings<T>(own, dimensions, request.is_knn ? kBoxes : kBoxesOfRadius, group);
    auto bounds = own_bounds<T>(request, queries, std::ssize(queries) / dimensions, search);
    auto questions = questions_for<T>(request, queries, std::move(bounds), there, dimensions, is_asked);
    for (const auto width : kCoarseCells) {
        // Cells of a radius that reaches everywhere would have centroids beyond the largest coordinates.
        if (!request.is_knn && width * request.largest_radius() < 1e16)
            questions = worth_asking<T>(request, std::move(questions), search, width * request.largest_radius(),
                                        dimensions, group);
    }
    return sent_questions(request, questions, there, dimensions, group);
}
template AskedOfRank exchanged_questions(const NeighborRequest&, std::span<const float>, const PointSearch<float>&,
                                         std::span<const float>, int, const std::vector<char>&, const RankGroup&);
template AskedOfRank exchanged_questions(const NeighborRequest&, std::span<const double>, const PointSearch<double>&,
                                         std::span<const double>, int, const std::vector<char>&, const RankGroup&);

}  // namespace meshard
