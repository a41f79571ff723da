// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/point_sampling.h"

#include "ops/neighbors/neighbor_questions.h"
#include "ops/neighbors/neighbors.h"
#include "ops/rows/cut_rows.h"
#include "partition/error.h"
#include "partition/random_numbers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace meshard {
namespace {

/// This rank's rows with their ids, and positions if needed.
struct Cloud {
    CutRows part;
    RankGroup group;
    std::vector<std::int64_t> ids;
    at::Tensor positions;  ///< (own, 3), double, on the CPU; missing axes are 0

    std::int64_t size() const { return static_cast<std::int64_t>(ids.size()); }
    const double* position(std::int64_t row) const { return positions.const_data_ptr<double>() + 3 * row; }
};

/// @param error      an error in the function's other arguments; empty if none
/// @param arguments  these other arguments, which are checked to be equal on every rank
Cloud cloud_of(const char* where, const at::Tensor& points, bool with_positions, std::string error, const std::vector<std::int64_t>& arguments)
{
    Cloud cloud;
    cloud.part = cut_rows_of(where, "points", points);
    cloud.group = cloud.part.group();
    const auto& own = cloud.part.own;
    const auto fits = with_positions ? own.dim() == 2 && own.size(1) >= 1 && own.size(1) <= 3 && own.is_floating_point() : own.dim() >= 1;
    if (!fits) {
        error = std::string(where) + ": the points are a tensor of type " + c10::toString(own.scalar_type()) + " and " + std::to_string(own.dim()) +
                " dimensions; expected (n, 1), (n, 2) or (n, 3) of a floating type.";
    } else if (with_positions) {
        cloud.positions = at::constant_pad_nd(own.detach().to(at::kCPU, at::kDouble), {0, 3 - own.size(1)}).contiguous();
        if (!cloud.positions.isfinite().all().item<bool>()) error = std::string(where) + ": a point has a coordinate that is not finite.";
    }
    throw_together(error, cloud.group);
    const auto all = cloud.group.all_gather_integers(arguments);
    const bool is_same = std::all_of(all.begin(), all.end(), [&](const auto& of_rank) { return of_rank == all[0]; });
    if (!is_same) throw InvalidInput(std::string(where) + ": ranks pass different arguments. Call it with the same numbers and seed on every rank.");
    cloud.ids = cloud.part.ids();
    return cloud;
}

/// A sample of own rows; `by_id` sorts them by id.
PointSample sample_of(const Cloud& cloud, std::vector<std::int64_t> rows, bool by_id)
{
    if (by_id) std::sort(rows.begin(), rows.end(), [&](auto a, auto b) { return cloud.ids[a] < cloud.ids[b]; });
    std::vector<std::int64_t> ids;
    for (const auto row : rows) ids.push_back(cloud.ids[row]);
    const auto device = cloud.part.own.device();
    return {at::tensor(rows, at::kLong).to(device), at::tensor(ids, at::kLong).to(device)};
}

std::string count_error(const char* where, std::int64_t count, std::int64_t num_points)
{
    if (count >= 0 && count <= num_points) return {};
    return std::string(where) + ": " + std::to_string(count) + " rows are asked for, there are " + std::to_string(num_points) + ".";
}

/// Distinct random numbers for ids.
class IdNumbers {
public:
    explicit IdNumbers(std::uint64_t seed) : start_(RandomNumbers(seed).next()) {}
    std::uint64_t operator()(std::int64_t id) const { return RandomNumbers(start_ + 0x9e3779b97f4a7c15u * static_cast<std::uint64_t>(id)).next(); }

private:
    std::uint64_t start_;
};

/// The `count`-th smallest (from 1) of all ranks' numbers, by a radix search with one all-reduce for every eight bits.
std::uint64_t nth_smallest(const std::vector<std::uint64_t>& numbers, std::int64_t count, const RankGroup& group)
{
    std::uint64_t found = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        auto counts = at::zeros({256}, at::kLong);
        auto* bucket = counts.mutable_data_ptr<std::int64_t>();
        for (const auto number : numbers) {
            const bool is_candidate = shift == 56 || number >> (shift + 8) == found >> (shift + 8);
            if (is_candidate) ++bucket[number >> shift & 255];
        }
        group.all_reduce(counts);
        bucket = counts.mutable_data_ptr<std::int64_t>();
        std::uint64_t digit = 0;
        while (bucket[digit] < count) count -= bucket[digit++];
        found |= digit << shift;
    }
    return found;
}

using VoxelKey = std::array<std::int64_t, 3>;

/// A rank's candidate for a voxel; five integers in a message.
struct VoxelCandidate {
    VoxelKey key;
    double distance_squared;  // to the voxel's center
    std::int64_t id;
    std::int64_t index;  // own row, or index in the message

    auto order() const { return std::tuple(key, distance_squared, id); }
};

/// The nearest candidate of each voxel.
std::vector<VoxelCandidate> nearest_candidates(std::vector<VoxelCandidate> candidates)
{
    std::sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) { return a.order() < b.order(); });
    candidates.erase(std::unique(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) { return a.key == b.key; }), candidates.end());
    return candidates;
}

/// Own rows of the chosen candidates: each voxel is assigned to a rank, which receives all candidates for it and
/// chooses the nearest.
std::vector<std::int64_t> agreed_rows(const std::vector<VoxelCandidate>& own, const RankGroup& group)
{
    std::vector<std::vector<const VoxelCandidate*>> by_rank(group.size());
    for (const auto& candidate : own) {
        std::uint64_t hash = 0;
        for (const auto k : candidate.key) hash = RandomNumbers(hash ^ static_cast<std::uint64_t>(k)).next();
        by_rank[hash % static_cast<std::uint64_t>(group.size())].push_back(&candidate);
    }
    std::vector<std::int64_t> message, sent;
    std::vector<const VoxelCandidate*> in_order;
    for (const auto& candidates : by_rank) {
        sent.push_back(static_cast<std::int64_t>(candidates.size()));
        for (const auto* candidate : candidates) {
            message.insert(message.end(), candidate->key.begin(), candidate->key.end());
            message.insert(message.end(), {std::bit_cast<std::int64_t>(candidate->distance_squared), candidate->id});
            in_order.push_back(candidate);
        }
    }
    const auto received = exchanged(sent, group);
    const auto all = group.all_to_all_rows(at::tensor(message, at::kLong).view({-1, 5}), sent, received);
    std::vector<VoxelCandidate> candidates;
    const auto* at = all.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < all.size(0); ++i, at += 5) candidates.push_back({{at[0], at[1], at[2]}, std::bit_cast<double>(at[3]), at[4], i});
    auto is_chosen = at::zeros({all.size(0), 1}, at::kByte);
    for (const auto& candidate : nearest_candidates(std::move(candidates))) is_chosen.mutable_data_ptr<std::uint8_t>()[candidate.index] = 1;
    const auto answers = group.all_to_all_rows(is_chosen, received, sent);
    std::vector<std::int64_t> rows;
    for (std::size_t i = 0; i < in_order.size(); ++i) {
        if (answers.const_data_ptr<std::uint8_t>()[i]) rows.push_back(in_order[i]->index);
    }
    return rows;
}

double squared_distance(const double* a, const double* b)
{
    const double x = a[0] - b[0], y = a[1] - b[1], z = a[2] - b[2];
    return x * x + y * y + z * z;
}

}  // namespace

PointSample random_sample(const at::Tensor& points, std::int64_t count, std::uint64_t seed)
{
    const auto num_rows = points.dim() > 0 ? points.size(0) : 0;
    const auto cloud = cloud_of("random_sample", points, false, count_error("random_sample", count, num_rows), {count, static_cast<std::int64_t>(seed)});
    const IdNumbers number_of(seed);
    std::vector<std::uint64_t> numbers;
    for (const auto id : cloud.ids) numbers.push_back(number_of(id));
    std::vector<std::int64_t> rows;
    if (count > 0) {
        const auto largest = nth_smallest(numbers, count, cloud.group);
        for (std::int64_t i = 0; i < cloud.size(); ++i) {
            if (numbers[i] <= largest) rows.push_back(i);
        }
    }
    return sample_of(cloud, std::move(rows), true);
}

PointSample voxel_sample(const at::Tensor& points, double voxel_size)
{
    std::string error;
    if (!(voxel_size > 0) || !std::isfinite(voxel_size))
        error = "voxel_sample: the voxel size is " + std::to_string(voxel_size) + "; it must be positive and finite.";
    const auto cloud = cloud_of("voxel_sample", points, true, error, {std::bit_cast<std::int64_t>(voxel_size)});
    // Doubles represent these integers exactly.
    const bool fits = cloud.size() == 0 || cloud.positions.abs().max().item<double>() / voxel_size < 4e15;
    throw_together(fits ? "" : "voxel_sample: a coordinate is more than 4e15 voxels from the origin. Use larger voxels.", cloud.group);
    std::vector<VoxelCandidate> candidates;
    for (std::int64_t i = 0; i < cloud.size(); ++i) {
        VoxelCandidate candidate{{}, 0, cloud.ids[i], i};
        std::array<double, 3> center;
        for (int d = 0; d < 3; ++d) {
            const double voxel = std::floor(cloud.position(i)[d] / voxel_size);
            candidate.key[d] = static_cast<std::int64_t>(voxel);
            center[d] = (voxel + 0.5) * voxel_size;
        }
        candidate.distance_squared = squared_distance(cloud.position(i), center.data());
        candidates.push_back(candidate);
    }
    return sample_of(cloud, agreed_rows(nearest_candidates(std::move(candidates)), cloud.group), true);
}

PointSample poisson_disk_sample(const at::Tensor& points, double radius, std::uint64_t seed)
{
    const at::NoGradGuard no_grad;
    const auto near = radius_search(points, points, radius, kAllNeighbors, {.exclude_self = true});
    const auto cloud = cloud_of("poisson_disk_sample", points, true, "", {static_cast<std::int64_t>(seed)});
    const IdNumbers number_of(seed);
    const auto offsets = near.offsets.cpu(), ids = near.ids.cpu(), is_near = near.distances.lt(radius).cpu();
    const auto* offset = offsets.const_data_ptr<std::int64_t>();
    const auto* id = ids.const_data_ptr<std::int64_t>();
    const auto* conflicts = is_near.const_data_ptr<bool>();

    // A point is chosen once all earlier points that are too near are rejected, and rejected once one of them is
    // chosen. Ranks exchange the states of ghosts until no point is undecided.
    enum State : std::uint8_t { Undecided, Chosen, Rejected };
    auto states = at::zeros({cloud.size()}, at::kByte);
    for (bool is_done = false; !is_done;) {
        const auto neighbors = gather_neighbors(cloud.part.like(states), near).cpu();
        const auto* of_neighbor = neighbors.const_data_ptr<std::uint8_t>();
        states = states.clone();
        auto* state = states.mutable_data_ptr<std::uint8_t>();
        is_done = true;
        for (std::int64_t i = 0; i < cloud.size(); ++i) {
            if (state[i] != Undecided) continue;
            state[i] = Chosen;
            const auto number = number_of(cloud.ids[i]);
            for (auto e = offset[i]; e < offset[i + 1] && state[i] != Rejected; ++e) {
                if (!conflicts[e] || number_of(id[e]) > number || of_neighbor[e] == Rejected) continue;
                state[i] = of_neighbor[e] == Chosen ? Rejected : Undecided;
            }
            is_done = is_done && state[i] != Undecided;
        }
        is_done = cloud.group.all_agree(is_done);
    }
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < cloud.size(); ++i) {
        if (states.const_data_ptr<std::uint8_t>()[i] == Chosen) rows.push_back(i);
    }
    return sample_of(cloud, std::move(rows), true);
}

PointSample farthest_point_sample(const at::Tensor& points, std::int64_t count, std::int64_t first)
{
    const auto num_points = points.dim() > 0 ? points.size(0) : 0;
    auto error = count_error("farthest_point_sample", count, num_points);
    if (error.empty() && count > 0 && (first < 0 || first >= num_points)) {
        error = "farthest_point_sample: the first point is " + std::to_string(first) + "; there are 0 to " + std::to_string(num_points - 1) + ".";
    }
    const auto cloud = cloud_of("farthest_point_sample", points, true, error, {count, first});
    constexpr double chosen = -1;
    std::vector<double> distances(cloud.size(), 0);  // squared distances to the nearest chosen point
    for (std::int64_t i = 0; i < cloud.size(); ++i) {
        if (cloud.ids[i] == first) distances[i] = std::numeric_limits<double>::infinity();
    }
    std::vector<std::int64_t> rows;
    for (std::int64_t step = 0; step < count; ++step) {
        std::int64_t best = -1;
        for (std::int64_t i = 0; i < cloud.size(); ++i) {
            if (distances[i] == chosen) continue;
            if (best < 0 || distances[i] > distances[best] || (distances[i] == distances[best] && cloud.ids[i] < cloud.ids[best])) best = i;
        }
        // The bits of non-negative doubles, read as integers, have the same order as the doubles.
        std::array<std::int64_t, 5> offer{-1, 0, 0, 0, 0};
        if (best >= 0) {
            const auto* x = cloud.position(best);
            offer = {std::bit_cast<std::int64_t>(distances[best]), -cloud.ids[best], std::bit_cast<std::int64_t>(x[0]), std::bit_cast<std::int64_t>(x[1]),
                     std::bit_cast<std::int64_t>(x[2])};
        }
        const auto offers = cloud.group.all_gather_integers(offer);
        const auto& winner =
            *std::max_element(offers.begin(), offers.end(), [](const auto& a, const auto& b) { return std::pair(a[0], a[1]) < std::pair(b[0], b[1]); });
        const double x[] = {std::bit_cast<double>(winner[2]), std::bit_cast<double>(winner[3]), std::bit_cast<double>(winner[4])};
        if (best >= 0 && cloud.ids[best] == -winner[1]) {
            rows.push_back(best);
            distances[best] = chosen;
        }
        for (std::int64_t i = 0; i < cloud.size(); ++i) {
            if (distances[i] == chosen) continue;
            const double distance = squared_distance(cloud.position(i), x);
            if (step == 0 || distance < distances[i]) distances[i] = distance;
        }
    }
    return sample_of(cloud, std::move(rows), false);
}

}  // namespace meshard
