// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/geometric_partitioner.h"

#include "partition/cut/curve_order.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

namespace meshard {

namespace {

struct Box {
    std::array<float, 3> low, high;

    Box()
    {
        low.fill(std::numeric_limits<float>::infinity());
        high.fill(-std::numeric_limits<float>::infinity());
    }

    void add(const float* x)
    {
        for (int d = 0; d < 3; ++d) {
            low[d] = std::min(low[d], x[d]);
            high[d] = std::max(high[d], x[d]);
        }
    }

    int longest_side() const
    {
        int longest = 0;
        for (int d = 1; d < 3; ++d)
            if (high[d] - low[d] > high[longest] - low[longest]) longest = d;
        return longest;
    }
};

std::int64_t require_sizes(const char* where, std::span<const float> centroids, std::int32_t num_parts,
                           const BalanceTarget& balance)
{
    require_parts(where, num_parts);
    const auto num_rows = static_cast<std::int64_t>(centroids.size() / 3);
    largest_weights_allowed(num_rows, num_parts, balance);
    return num_rows;
}

// Weight of each row, with a total of one; empty if all are equal.
std::vector<double> row_shares(std::int64_t num_rows, const BalanceTarget& balance)
{
    std::vector<double> shares;
    if (balance.row_weights.empty()) return shares;
    const auto num_weights = static_cast<std::size_t>(balance.num_weights);
    std::vector<double> totals(num_weights, 0);
    for (std::size_t at = 0; at < balance.row_weights.size(); ++at) totals[at % num_weights] += balance.row_weights[at];
    shares.assign(num_rows, 0);
    const auto num_used = static_cast<double>(std::ranges::count_if(totals, [](double total) { return total > 0; }));
    if (num_used == 0) return {};
    for (std::size_t at = 0; at < balance.row_weights.size(); ++at)
        if (const auto total = totals[at % num_weights]; total > 0)
            shares[at / num_weights] += balance.row_weights[at] / total / num_used;
    return shares;
}

// Share of the whole that the first p parts take.
std::vector<double> shares_before(std::int32_t num_parts, const BalanceTarget& balance)
{
    std::vector<double> before(num_parts + 1, 0);
    for (std::int32_t part = 0; part < num_parts; ++part)
        before[part + 1] = before[part] + (balance.capacities.empty() ? 1 : balance.capacities[part]);
    for (auto& share : before) share /= before[num_parts];
    before[num_parts] = 1;
    return before;
}

class Bisection {
public:
    Bisection(std::span<const float> centroids, std::int32_t num_parts, const BalanceTarget& balance)
        : centroids_(centroids), weights_(row_shares(static_cast<std::int64_t>(centroids.size() / 3), balance)),
          before_(shares_before(num_parts, balance)), rows_(centroids.size() / 3),
          partition_{num_parts, std::vector<std::int32_t>(centroids.size() / 3)}
    {
        std::iota(rows_.begin(), rows_.end(), 0);
    }

    Partition run()
    {
        cut(rows_, 0, partition_.num_parts);
        return std::move(partition_);
    }

private:
    void cut(std::span<std::int32_t> rows, std::int32_t first_part, std::int32_t end_part)
    {
        if (end_part - first_part == 1) {
            for (const auto row : rows) partition_.owners[row] = first_part;
            return;
        }
        if (rows.empty()) return;
        Box box;
        for (const auto row : rows) box.add(&centroids_[3 * row]);
        const auto axis = box.longest_side();
        const auto comes_before = [&](std::int32_t a, std::int32_t b) {
            const auto x = centroids_[3 * a + axis], y = centroids_[3 * b + axis];
            return x != y ? x < y : a < b;
        };
        const auto middle_part = (first_part + end_part) / 2;
        std::int64_t count;
        if (weights_.empty()) {
            // The first row of a part in a perfect cut of the whole, so that rounding errors do not accumulate.
            const auto place = [&](std::int32_t part) {
                return static_cast<std::int64_t>(before_[part] * static_cast<double>(rows_.size()) + 0.5);
            };
            count = std::clamp<std::int64_t>(place(middle_part) - place(first_part), 0, std::ssize(rows));
            std::nth_element(rows.begin(), rows.begin() + count, rows.end(), comes_before);
        } else {
            std::ranges::sort(rows, comes_before);
            double total = 0, sum = 0;
            for (const auto row : rows) total += weights_[row];
            const auto wanted =
                total * (before_[middle_part] - before_[first_part]) / (before_[end_part] - before_[first_part]);
            for (count = 0; count < std::ssize(rows); ++count) {
                if (sum + 0.5 * weights_[rows[count]] > wanted) break;
                sum += weights_[rows[count]];
            }
        }
        cut(rows.first(count), first_part, middle_part);
        cut(rows.subspan(count), middle_part, end_part);
    }

    std::span<const float> centroids_;
    std::vector<double> weights_;
    std::vector<double> before_;
    std::vector<std::int32_t> rows_;
    Partition partition_;
};

struct Place {
    std::uint64_t on_curve;
    std::int32_t row;

    bool operator<(const Place& other) const
    {
        return on_curve != other.on_curve ? on_curve < other.on_curve : row < other.row;
    }
};

// Assigns rows to the parts `first_part` to `end_part` - 1 by halving the parts: selecting the rows on each side along
// the curve costs less than sorting.
void give_runs(std::span<Place> places, std::int64_t offset, std::int32_t first_part, std::int32_t end_part,
               std::span<const std::int64_t> ends, std::vector<std::int32_t>& owners)
{
    if (places.empty()) return;
    if (end_part - first_part == 1) {
        for (const auto& place : places) owners[place.row] = first_part;
        return;
    }
    const auto middle_part = (first_part + end_part) / 2;
    const auto count = std::clamp<std::int64_t>(ends[middle_part - 1] - offset, 0, std::ssize(places));
    if (count > 0 && count < std::ssize(places)) std::nth_element(places.begin(), places.begin() + count, places.end());
    give_runs(places.first(count), offset, first_part, middle_part, ends, owners);
    give_runs(places.subspan(count), offset + count, middle_part, end_part, ends, owners);
}

}  // namespace

std::array<double, 3> first_point(const Mesh& mesh)
{
    std::array<double, 3> first{};
    if (mesh.num_points() > 0)
        for (int d = 0; d < 3; ++d) first[d] = mesh.points.value(0, d);
    return first;
}

template <class Result>
std::vector<Result> row_centroids(const Mesh& mesh, const std::array<double, 3>& origin)
{
    std::vector<Result> centroids(3 * mesh.num_rows(), 0);
    with_scalar_type(mesh.points.type(), [&]<class T>() {
        const auto points = mesh.points.values<T>();
        if (mesh.is_point_cloud()) {
            for (std::size_t i = 0; i < points.size(); ++i)
                centroids[i] = static_cast<Result>(static_cast<double>(points[i]) - origin[i % 3]);
            return;
        }
        for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
            const auto corners = mesh.cells.row(cell);
            if (corners.empty()) continue;
            std::array<double, 3> sum{};
            for (const auto point : corners)
                for (int d = 0; d < 3; ++d)
                    sum[d] += static_cast<double>(points[3 * static_cast<std::int64_t>(point) + d]);
            for (int d = 0; d < 3; ++d)
                centroids[3 * cell + d] = static_cast<Result>(sum[d] / static_cast<double>(corners.size()) - origin[d]);
        }
    });
    return centroids;
}

template std::vector<float> row_centroids(const Mesh&, const std::array<double, 3>&);
template std::vector<double> row_centroids(const Mesh&, const std::array<double, 3>&);

Partition partition_by_bisection(std::span<const float> centroids, std::int32_t num_parts, const BalanceTarget& balance)
{
    require_sizes("partition_by_bisection", centroids, num_parts, balance);
    return Bisection(centroids, num_parts, balance).run();
}

Partition partition_by_curve(std::span<const float> centroids, std::int32_t num_parts, const BalanceTarget& balance)
{
    const auto num_rows = require_sizes("partition_by_curve", centroids, num_parts, balance);
    Box box;
    for (std::int64_t i = 0; i < num_rows; ++i) box.add(&centroids[3 * i]);
    double longest = 0;
    for (int d = 0; d < 3; ++d) longest = std::max(longest, static_cast<double>(box.high[d]) - box.low[d]);
    const double scale = longest > 0 ? 1 / longest : 0;
    std::vector<Place> places(num_rows);
    for (std::int32_t i = 0; i < num_rows; ++i) {
        std::array<double, 3> unit;
        for (int d = 0; d < 3; ++d)
            unit[d] = (static_cast<double>(centroids[3 * std::int64_t{i} + d]) - box.low[d]) * scale;
        places[i] = {hilbert_index(unit), i};
    }

    Partition partition{num_parts, std::vector<std::int32_t>(num_rows)};
    const auto before = shares_before(num_parts, balance);
    std::vector<std::int64_t> ends(num_parts);
    const auto weights = row_shares(num_rows, balance);
    if (weights.empty()) {
        for (std::int32_t part = 0; part < num_parts; ++part)
            ends[part] = static_cast<std::int64_t>(before[part + 1] * static_cast<double>(num_rows) + 0.5);
    } else {
        std::sort(places.begin(), places.end());
        double sum = 0;
        std::int64_t at = 0;
        for (std::int32_t part = 0; part < num_parts; ++part) {
            for (; at < num_rows && sum + 0.5 * weights[places[at].row] <= before[part + 1]; ++at)
                sum += weights[places[at].row];
            ends[part] = part + 1 == num_parts ? num_rows : at;
        }
    }
    give_runs(places, 0, 0, num_parts, ends, partition.owners);
    return partition;
}

}  // namespace meshard
