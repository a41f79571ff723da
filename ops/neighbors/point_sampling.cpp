// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/point_sampling.h"

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
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

namespace meshard {
namespace {

/// Own rows with their ids, and positions where they matter.
struct Cloud {
    CutRows part;
    RankGroup group;
    std::vector<std::int64_t> ids;
    at::Tensor positions;  ///< (own, 3), double, on the CPU; missing axes are 0

    std::int64_t size() const { return static_cast<std::int64_t>(ids.size()); }
    const double* position(std::int64_t row) const { return positions.const_data_ptr<double>() + 3 * row; }
};

/// @param error      what is wrong with the other arguments
/// @param arguments  those themselves, the same on every rank
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

/// Own rows as a sample, in ascending order of ids if asked.
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

/// Random numbers of ids, no two alike: those of one stream.
class IdNumbers {
public:
    explicit IdNumbers(std::uint64_t seed) : start_(RandomNumbers(seed).next()) {}
    std::uint64_t operator()(std::int64_t id) const { return RandomNumbers(start_ + 0x9e3779b97f4a7c15u * static_cast<std::uint64_t>(id)).next(); }

private:
    std::uint64_t start_;
};

/// The `count`-th smallest of all ranks' numbers, count from 1: eight bits a round.
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

/// What a rank has to offer for a voxel: five integers in a message.
struct VoxelOffer {
    VoxelKey key;
    double distance_squared;  // to the voxel's middle
    std::int64_t id;
    std::int64_t place;  // own row, or place in the message

    auto order() const { return std::tuple(key, distance_squared, id); }
};

/// The best offer for each voxel.
std::vector<VoxelOffer> best_offers(std::vector<VoxelOffer> offers)
{
    std::sort(offers.begin(), offers.end(), [](const auto& a, const auto& b) { return a.order() < b.order(); });
    offers.erase(std::unique(offers.begin(), offers.end(), [](const auto& a, const auto& b) { return a.key == b.key; }), offers.end());
    return offers;
}

std::vector<std::int64_t> received_counts(const std::vector<std::int64_t>& sent, const RankGroup& group)
{
    std::vector<std::int64_t> counts;
    for (const auto& rank : group.all_gather_integers(sent)) counts.push_back(rank[group.rank()]);
    return counts;
}

/// Each voxel has a rank that decides on all offers for it. Which of the own offers won.
std::vector<std::int64_t> agreed_rows(const std::vector<VoxelOffer>& own, const RankGroup& group)
{
    std::vector<std::vector<const VoxelOffer*>> by_rank(group.size());
    for (const auto& offer : own) {
        std::uint64_t hash = 0;
        for (const auto k : offer.key) hash = RandomNumbers(hash ^ static_cast<std::uint64_t>(k)).next();
        by_rank[hash % static_cast<std::uint64_t>(group.size())].push_back(&offer);
    }
    std::vector<std::int64_t> message, sent;
    std::vector<const VoxelOffer*> in_order;
    for (const auto& offers : by_rank) {
        sent.push_back(static_cast<std::int64_t>(offers.size()));
        for (const auto* offer : offers) {
            message.insert(message.end(), offer->key.begin(), offer->key.end());
            message.insert(message.end(), {std::bit_cast<std::int64_t>(offer->distance_squared), offer->id});
            in_order.push_back(offer);
        }
    }
    const auto received = received_counts(sent, group);
    const auto all = group.all_to_all_rows(at::tensor(message, at::kLong).view({-1, 5}), sent, received);
    std::vector<VoxelOffer> offers;
    const auto* at = all.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < all.size(0); ++i, at += 5) offers.push_back({{at[0], at[1], at[2]}, std::bit_cast<double>(at[3]), at[4], i});
    auto won = at::zeros({all.size(0), 1}, at::kByte);
    for (const auto& offer : best_offers(std::move(offers))) won.mutable_data_ptr<std::uint8_t>()[offer.place] = 1;
    const auto answers = group.all_to_all_rows(won, received, sent);
    std::vector<std::int64_t> rows;
    for (std::size_t i = 0; i < in_order.size(); ++i) {
        if (answers.const_data_ptr<std::uint8_t>()[i]) rows.push_back(in_order[i]->place);
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
    const bool fits = cloud.size() == 0 || cloud.positions.abs().max().item<double>() / voxel_size < 4e15;  // whole numbers in double
    throw_together(fits ? "" : "voxel_sample: a coordinate is more than 4e15 voxels from the origin. Use larger voxels.", cloud.group);
    std::vector<VoxelOffer> offers;
    for (std::int64_t i = 0; i < cloud.size(); ++i) {
        VoxelOffer offer{{}, 0, cloud.ids[i], i};
        std::array<double, 3> middle;
        for (int d = 0; d < 3; ++d) {
            const double voxel = std::floor(cloud.position(i)[d] / voxel_size);
            offer.key[d] = static_cast<std::int64_t>(voxel);
            middle[d] = (voxel + 0.5) * voxel_size;
        }
        offer.distance_squared = squared_distance(cloud.position(i), middle.data());
        offers.push_back(offer);
    }
    return sample_of(cloud, agreed_rows(best_offers(std::move(offers)), cloud.group), true);
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

    // A point is in as soon as all that come before it and are too near are out, and out as soon as one of them is in. Ranks tell each other what
    // they have decided until nothing is open.
    enum State : std::uint8_t { Open, In, Out };
    auto states = at::zeros({cloud.size()}, at::kByte);
    for (bool is_done = false; !is_done;) {
        const auto neighbors = gather_neighbors(cloud.part.like(states), near).cpu();
        const auto* of_neighbor = neighbors.const_data_ptr<std::uint8_t>();
        states = states.clone();
        auto* state = states.mutable_data_ptr<std::uint8_t>();
        is_done = true;
        for (std::int64_t i = 0; i < cloud.size(); ++i) {
            if (state[i] != Open) continue;
            state[i] = In;
            const auto number = number_of(cloud.ids[i]);
            for (auto e = offset[i]; e < offset[i + 1] && state[i] != Out; ++e) {
                if (!conflicts[e] || number_of(id[e]) > number || of_neighbor[e] == Out) continue;
                state[i] = of_neighbor[e] == In ? Out : Open;
            }
            is_done = is_done && state[i] != Open;
        }
        is_done = cloud.group.all_agree(is_done);
    }
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < cloud.size(); ++i) {
        if (states.const_data_ptr<std::uint8_t>()[i] == In) rows.push_back(i);
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
    std::vector<double> distances(cloud.size(), 0);  // squared, to the nearest chosen one
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
        // Distances that are not negative are ordered as their bits are.
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
