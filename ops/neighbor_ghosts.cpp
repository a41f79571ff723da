// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbor_ghosts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>

#include "ops/point_boxes.h"
#include "ops/point_cells.h"

namespace meshard {
namespace {

constexpr int kBoxes = 64, kBoxesOfRadius = 32;   // that a rank publishes
// Widths of cells in which a radius search asks, in radii. Finer ones than the last bring fewer points, and cost more than those.
constexpr double kFineCell = 0.03, kCoarseCells[] = {4, 1, 0.5};
constexpr std::int64_t kEverything = -1;

std::vector<std::int64_t> exchanged(const std::vector<std::int64_t>& send, const RankGroup& group)
{
    std::vector<std::int64_t> receive;
    for (const auto& rank : group.all_gather_integers(send)) receive.push_back(rank[group.rank()]);
    return receive;
}

std::vector<std::int64_t> without_flags(std::vector<std::int64_t> counts)
{
    for (auto& count : counts) count = std::max<std::int64_t>(0, count);
    return counts;
}

template <class T>
at::Tensor tensor_of(const std::vector<T>& values, std::int64_t width)
{
    auto tensor = at::empty({static_cast<std::int64_t>(values.size()) / width, width}, c10::CppTypeToScalarType<T>::value);
    std::copy(values.begin(), values.end(), tensor.template mutable_data_ptr<T>());
    return tensor;
}

template <class T>
std::span<const T> values_of(const at::Tensor& tensor)
{
    return {tensor.const_data_ptr<T>(), static_cast<std::size_t>(tensor.numel())};
}

/// What every rank tells of where its points are.
struct Surroundings {
    std::vector<std::vector<PointBox>> boxes;   // of each rank
    std::vector<std::optional<PointBox>> hulls;
    std::vector<std::int64_t> held;             // points of each rank
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
            for (const auto x : corner) numbers.push_back(static_cast<T>(x));   // a coordinate of a point: exact
        }
        const auto count = static_cast<T>(box.num_points);   // never more than there are
        numbers.push_back(static_cast<std::int64_t>(count) > box.num_points ? std::nextafter(count, T{0}) : count);
    }
    Surroundings all;
    std::vector<std::int64_t> counts;
    for (const auto& rank : group.all_gather_integers(std::vector<std::int64_t>{static_cast<std::int64_t>(mine.size()), static_cast<std::int64_t>(own.size()) / dimensions})) {
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

/// A squared distance within which at least k points lie for certain: of boxes that end there, nearest ends first.
double certain_bound(const std::vector<std::vector<PointBox>>& boxes, const std::array<double, 3>& x, std::int64_t k, std::span<const double> period)
{
    std::vector<std::pair<double, std::int64_t>> ends;
    for (const auto& rank : boxes) {
        for (const auto& box : rank) ends.emplace_back(distance_range(box, x, period).most, box.num_points);
    }
    std::sort(ends.begin(), ends.end());
    std::int64_t count = 0;
    for (const auto& [most, num_points] : ends) {
        if ((count += num_points) >= k) return most;
    }
    return std::numeric_limits<double>::infinity();
}

/// Places of `ids` in ascending order.
std::vector<std::int64_t> order_of(const std::vector<std::int64_t>& ids)
{
    std::vector<std::int64_t> order(ids.size());
    std::iota(order.begin(), order.end(), 0);
    if (!std::is_sorted(ids.begin(), ids.end())) std::sort(order.begin(), order.end(), [&](auto a, auto b) { return ids[a] < ids[b]; });
    return order;
}

template <class T>
std::vector<T> picked(std::span<const T> rows, const std::vector<std::int64_t>& order, std::size_t width)
{
    std::vector<T> result(order.size() * width);
    for (std::size_t i = 0; i < order.size(); ++i) std::copy_n(rows.begin() + order[i] * width, width, result.begin() + i * width);
    return result;
}

/// How far each query looks, squared, as far as own points tell.
template <class T>
std::vector<double> own_bounds(const NeighborRequest& request, std::span<const T> queries, std::int64_t num_queries, std::int64_t wanted,
                               const PointSearch<T>* search, double slack)
{
    std::vector<double> bounds(num_queries);
    if (!search) {
        const auto radius = static_cast<double>(static_cast<T>(request.largest_radius()));
        std::fill(bounds.begin(), bounds.end(), radius * radius * slack);
        return bounds;
    }
    const auto near = search->knn(queries, wanted);
    for (std::int64_t i = 0; i < num_queries; ++i) {
        const bool enough = near.offsets[i + 1] - near.offsets[i] == wanted;
        const double farthest = enough ? static_cast<double>(near.distances[near.offsets[i + 1] - 1]) : 0.0;
        bounds[i] = enough ? farthest * farthest * slack : std::numeric_limits<double>::infinity();
    }
    return bounds;
}

/// For each rank the queries that it may have an answer for, of a kNN search with their bounds.
template <class T>
std::vector<std::vector<T>> questions_for(const NeighborRequest& request, std::span<const T> queries, std::vector<double> bounds, std::int64_t wanted,
                                          const Surroundings& there, int dimensions, int rank, double slack)
{
    const auto& period = request.options.period;
    const auto num_ranks = static_cast<int>(there.boxes.size());
    std::vector<std::vector<T>> questions(num_ranks);
    for (std::size_t i = 0; i < bounds.size(); ++i) {
        const auto query = queries.subspan(i * dimensions, dimensions);
        std::array<double, 3> x{};
        std::copy(query.begin(), query.end(), x.begin());
        const auto reaches = [&](int r) {
            const auto reached = [&](const PointBox& box) { return distance_range(box, x, period).least <= bounds[i] * slack; };
            return r != rank && there.hulls[r] && reached(*there.hulls[r]) && std::any_of(there.boxes[r].begin(), there.boxes[r].end(), reached);
        };
        bool is_certain = !request.is_knn;
        for (int r = 0; r < num_ranks; ++r) {
            if (!reaches(r)) continue;
            if (!is_certain) {
                bounds[i] = std::min(bounds[i], certain_bound(there.boxes, x, wanted, period) * slack);
                is_certain = true;
                if (!reaches(r)) continue;
            }
            questions[r].insert(questions[r].end(), query.begin(), query.end());
            if (request.is_knn) questions[r].push_back(static_cast<T>(std::min(bounds[i] * slack, 1e30)));
        }
    }
    return questions;
}

/// `bytes[r]` go to rank r; what each rank had for this one.
std::vector<std::vector<std::uint8_t>> exchanged_bytes(const std::vector<std::vector<std::uint8_t>>& bytes, const RankGroup& group)
{
    std::vector<std::uint8_t> all;
    std::vector<std::int64_t> send;
    for (const auto& some : bytes) {
        all.insert(all.end(), some.begin(), some.end());
        send.push_back(static_cast<std::int64_t>(some.size()));
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

/// Leaves of a radius search's questions those that lie near a point of the rank asked, by coarse cells: boxes of ragged parts hold much that is empty.
template <class T>
std::vector<std::vector<T>> worth_asking(const NeighborRequest& request, std::vector<std::vector<T>> questions, const PointSearch<T>& own, double width, int dimensions,
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
    const double slack = 1 + 16 * static_cast<double>(std::numeric_limits<T>::epsilon());
    std::vector<std::vector<std::uint8_t>> answers(questions.size());   // a bit a cell
    for (std::size_t r = 0; r < asked.size(); ++r) {
        if (asked[r].empty()) continue;
        const auto theirs = unpacked_cells(asked[r]);
        const auto bound = static_cast<T>((radius + theirs.template reach<T>(dimensions)) * slack);
        const auto near = own.knn(theirs.template middles<T>(dimensions), 1, {}, std::vector<T>(theirs.codes.size(), bound * bound));
        answers[r].assign((theirs.codes.size() + 7) / 8, 0);
        for (std::size_t c = 0; c < theirs.codes.size(); ++c) answers[r][c / 8] |= static_cast<std::uint8_t>((near.offsets[c + 1] > near.offsets[c]) << c % 8);
    }
    const auto answered = exchanged_bytes(answers, group);
    for (std::size_t r = 0; r < questions.size(); ++r) {
        const auto places = cell_of_each<T>(cells[r], questions[r], dimensions);
        std::vector<T> kept;
        for (std::size_t i = 0; i < places.size(); ++i) {
            if ((answered[r][places[i] / 8] >> places[i] % 8 & 1) == 0) continue;
            kept.insert(kept.end(), questions[r].begin() + i * dimensions, questions[r].begin() + (i + 1) * dimensions);
        }
        questions[r] = std::move(kept);
    }
    return questions;
}

/// What is asked of this rank, as it travelled: for each rank its bytes, or that it wants everything.
struct Asked {
    at::Tensor bytes;
    std::vector<std::int64_t> counts;   // kEverything for all points
};

/// Points that some question needs for certain: those of boxes that lie within the reach of one of a few questions.
template <class T>
std::int64_t certain_answers(const NeighborRequest& request, const std::vector<T>& questions, const std::vector<PointBox>& boxes, int dimensions)
{
    constexpr std::size_t kTried = 64;
    const auto width = static_cast<std::size_t>(dimensions + (request.is_knn ? 1 : 0)), count = questions.size() / width;
    std::vector<char> is_within(boxes.size(), 0);
    for (std::size_t i = 0; i < std::min(kTried, count); ++i) {
        const auto* question = questions.data() + i * count / std::min(kTried, count) * width;
        std::array<double, 3> x{};
        std::copy_n(question, dimensions, x.begin());
        const auto radius = static_cast<double>(static_cast<T>(request.largest_radius()));
        const auto bound = request.is_knn ? static_cast<double>(question[dimensions]) : radius * radius;
        for (std::size_t b = 0; b < boxes.size(); ++b) is_within[b] |= distance_range(boxes[b], x, request.options.period).most <= bound;
    }
    std::int64_t answers = 0;
    for (std::size_t b = 0; b < boxes.size(); ++b) answers += is_within[b] ? boxes[b].num_points : 0;
    return answers;
}

template <class T>
Asked exchanged_questions(const NeighborRequest& request, const std::vector<std::vector<T>>& questions, const Surroundings& there, int dimensions,
                          const RankGroup& group)
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
            bytes.insert(bytes.end(), cells.begin(), cells.end());
        }
        send[r] = static_cast<std::int64_t>(bytes.size() - before);
        const auto point_bytes = dimensions * static_cast<std::int64_t>(sizeof(T));
        if (send[r] + point_bytes * certain_answers<T>(request, questions[r], there.boxes[r], dimensions) <= point_bytes * there.held[r]) continue;
        bytes.resize(before);
        send[r] = kEverything;
    }
    Asked asked;
    std::int64_t num_pairs = 0, num_replicated = 0;
    for (const auto& rank : group.all_gather_integers(send)) {
        asked.counts.push_back(rank[group.rank()]);
        num_pairs += std::count_if(rank.begin(), rank.end(), [](auto size) { return size != 0; });
        num_replicated += std::count(rank.begin(), rank.end(), kEverything);
    }
    if (num_replicated > 0 && group.rank() == 0) {
        TORCH_WARN_ONCE(request.where, ": ", num_replicated, " of ", num_pairs, " pairs of ranks that have neighbours for each other send all their points: that is fewer bytes than "
                        "asking for those within reach. A smaller radius, or cuts with less surface, need fewer ghosts.");
    }
    asked.bytes = group.all_to_all_rows(tensor_of(bytes, 1), without_flags(send), without_flags(asked.counts));
    return asked;
}

/// Which own points answer the questions of one rank.
template <class T>
std::vector<char> answers_to(const NeighborRequest& request, std::span<const std::uint8_t> bytes, std::span<const T> own, const PointSearch<T>* search,
                             std::int64_t wanted, int dimensions, double slack)
{
    const auto num_points = own.size() / dimensions;
    std::vector<char> is_needed(num_points, 0);
    if (request.is_knn) {
        std::vector<T> numbers(bytes.size() / sizeof(T)), queries, bounds;
        std::memcpy(numbers.data(), bytes.data(), bytes.size());
        for (std::size_t i = 0; i < numbers.size(); i += dimensions + 1) {
            queries.insert(queries.end(), numbers.begin() + i, numbers.begin() + i + dimensions);
            bounds.push_back(numbers[i + dimensions]);
        }
        for (const auto id : search->knn(queries, wanted, {}, bounds).ids) is_needed[id] = 1;
        return is_needed;
    }
    // One query within the radius is enough, so the points ask for their nearest.
    const auto cells = unpacked_cells(bytes);
    const double bound = (request.largest_radius() + cells.template reach<T>(dimensions)) * slack;
    const std::vector<T> bounds(num_points, static_cast<T>(bound) * static_cast<T>(bound));
    const auto near = PointSearch<T>(cells.template middles<T>(dimensions), dimensions, request.options.period).knn(own, 1, {}, bounds);
    for (std::size_t i = 0; i < num_points; ++i) is_needed[i] = near.offsets[i + 1] > near.offsets[i];
    return is_needed;
}

/// Global ids that ascend for every rank, a byte or two each.
std::vector<std::int64_t> exchanged_ids(std::span<const std::int64_t> ids, std::span<const std::int64_t> send, std::span<const std::int64_t> receive,
                                        const RankGroup& group)
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
        all.insert(all.end(), own.begin(), own.end());
    }
    return all;
}

/// A number of all that decides which points come to any rank: other rows somewhere, another number.
template <class T>
std::uint64_t content_of(const NeighborRequest& request, const NeighborInput& points, const NeighborInput& queries, const RankGroup& group)
{
    auto hash = static_cast<std::uint64_t>(fingerprint(request, points, queries));
    const auto add = [&](const void* data, std::size_t size) {
        const auto* at = static_cast<const char*>(data);
        for (std::size_t i = 0; i < size; i += 4) {   // coordinates and ids are of 4 bytes or 8
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
    const auto of_ranks = group.all_gather_integers(std::vector<std::int64_t>{static_cast<std::int64_t>(hash)});
    hash = 0;
    for (const auto& rank : of_ranks) add(rank.data(), sizeof rank[0]);
    return hash;
}

template <class T>
NeighborCandidates<T> found_candidates(const NeighborRequest& request, const NeighborInput& points, const NeighborInput& queries, const RankGroup& group)
{
    const auto dimensions = static_cast<int>(points.values.size(1));
    const auto order = order_of(points.ids);
    const auto own = picked(points.span<T>(), order, dimensions);   // by ascending id
    const double slack = 1 + 16 * static_cast<double>(std::numeric_limits<T>::epsilon());
    const auto wanted = request.k + (request.options.exclude_self ? 1 : 0);
    const PointSearch<T> search(own, dimensions, request.options.period);
    const auto* own_search = request.is_knn ? &search : nullptr;

    const auto there = surroundings<T>(own, dimensions, request.is_knn ? kBoxes : kBoxesOfRadius, group);
    auto bounds = own_bounds<T>(request, queries.span<T>(), queries.size(), wanted, own_search, slack);
    auto questions = questions_for<T>(request, queries.span<T>(), std::move(bounds), wanted, there, dimensions, group.rank(), slack);
    for (const auto width : kCoarseCells) {
        if (!request.is_knn) questions = worth_asking<T>(request, std::move(questions), search, width * request.largest_radius(), dimensions, group);
    }
    const auto asked = exchanged_questions(request, questions, there, dimensions, group);

    std::vector<std::int64_t> answer_counts(group.size(), 0), answers;   // own rows, each once for every rank that needs it
    auto bytes = values_of<std::uint8_t>(asked.bytes);
    for (int r = 0; r < group.size(); ++r) {
        if (asked.counts[r] == 0) continue;
        const auto size = static_cast<std::size_t>(std::max<std::int64_t>(0, asked.counts[r]));
        std::vector<char> is_needed(order.size(), 1);
        if (asked.counts[r] != kEverything) is_needed = answers_to<T>(request, bytes.first(size), own, own_search, wanted, dimensions, slack);
        bytes = bytes.subspan(size);
        for (std::size_t i = 0; i < order.size(); ++i) {
            if (!is_needed[i]) continue;
            answers.push_back(order[i]);
            ++answer_counts[r];
        }
    }
    const auto ghost_counts = exchanged(answer_counts, group);
    const std::span<const std::int64_t> own_ids = points.ids;
    const auto ghost_points = group.all_to_all_rows(tensor_of(picked(points.span<T>(), answers, dimensions), dimensions), answer_counts, ghost_counts);
    const auto ghost_ids = exchanged_ids(picked(own_ids, answers, 1), answer_counts, ghost_counts, group);

    NeighborCandidates<T> candidates;
    candidates.plan = std::make_shared<const ExchangePlan>(group, points.size(), std::move(answers), std::move(answer_counts), ghost_counts);
    std::vector<std::int64_t> all_ids = points.ids;
    all_ids.insert(all_ids.end(), ghost_ids.begin(), ghost_ids.end());
    std::vector<T> all_points(points.span<T>().begin(), points.span<T>().end());
    const auto more_points = values_of<T>(ghost_points);
    all_points.insert(all_points.end(), more_points.begin(), more_points.end());
    candidates.rows = order_of(all_ids);
    candidates.points = picked<T>(all_points, candidates.rows, dimensions);
    candidates.ids = picked<std::int64_t>(all_ids, candidates.rows, 1);
    return candidates;
}
}  // namespace

template <class T>
std::shared_ptr<const NeighborCandidates<T>> neighbor_candidates(const NeighborRequest& request, const NeighborInput& points, const NeighborInput& queries,
                                                                 const RankGroup& group)
{
    struct Remembered {
        std::uint64_t content;
        std::weak_ptr<const NeighborCandidates<T>> candidates;
    };
    static thread_local std::vector<Remembered> remembered;   // by every rank, be it a thread
    std::erase_if(remembered, [](const Remembered& one) { return one.candidates.expired(); });
    const auto content = content_of<T>(request, points, queries, group);
    const auto found = std::find_if(remembered.begin(), remembered.end(), [&](const Remembered& one) { return one.content == content; });
    const auto known = found == remembered.end() ? nullptr : found->candidates.lock();
    if (group.all_agree(known != nullptr)) return known;
    auto candidates = std::make_shared<const NeighborCandidates<T>>(found_candidates<T>(request, points, queries, group));
    remembered.push_back({content, candidates});
    return candidates;
}
template std::shared_ptr<const NeighborCandidates<float>> neighbor_candidates(const NeighborRequest&, const NeighborInput&, const NeighborInput&, const RankGroup&);
template std::shared_ptr<const NeighborCandidates<double>> neighbor_candidates(const NeighborRequest&, const NeighborInput&, const NeighborInput&, const RankGroup&);

}  // namespace meshard
