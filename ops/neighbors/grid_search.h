// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/cell_grid.h"
#include "ops/cuda/grid_order.h"
#include "ops/neighbors/neighbor_request.h"
#include "ops/search/grid_walk.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <vector>

namespace meshard {

/// Neighbours of all queries as tensors; query i has the entries offsets[i], ..., offsets[i + 1] - 1.
struct FoundNeighbors {
    at::Tensor offsets;    ///< (queries + 1), int64
    at::Tensor rows;       ///< (entries), int64: rows of the points
    at::Tensor distances;  ///< (entries), in the points' type
};

/// Searches with the kernels of ops/cuda, with the results of PointSearch and `neighbors_in_grid_order`: one list for
/// each radius, or one for the k nearest. Runs on the device of the tensors, which is that of the executor.
template <class T, class Executor>
class GridSearch {
public:
    /// @param points, queries   (n, D) and (m, D) of T, contiguous, checked by `require_searchable`
    /// @param excluded          (m), int32: for each query a row to leave out, -1 for none; undefined if no query has
    /// any
    GridSearch(const Executor& executor, const at::Tensor& points, const at::Tensor& queries,
               const at::Tensor& excluded)
        : executor_(executor), points_(points), queries_(queries), excluded_(excluded)
    {
    }

    std::vector<FoundNeighbors> answer(const NeighborRequest& request) const
    {
        std::vector<FoundNeighbors> lists;
        if (request.options.order == NeighborOrder::Grid) {
            for (const auto& limit : request.limits) lists.push_back(in_grid_order(limit));
            return lists;
        }
        std::array<double, 3> period{};
        std::ranges::copy(request.options.period, period.begin());
        const auto points = in_box(points_, period), queries = in_box(queries_, period);
        const auto shape = shape_around(points, request, period);
        const CellGrid<T, Executor> grid(executor_, points.template const_data_ptr<T>(), num_points(), shape);
        const GridQueries<T> asked{queries.template const_data_ptr<T>(), num_queries(),
                                   excluded_.defined() ? excluded_.const_data_ptr<std::int32_t>() : nullptr};
        if (request.is_knn) lists.push_back(nearest(grid, asked, request.k));
        for (const auto& limit : request.limits) lists.push_back(within(grid, asked, limit));
        return lists;
    }

private:
    std::int64_t num_points() const { return points_.size(0); }
    std::int64_t num_queries() const { return queries_.size(0); }

    at::Tensor in_box(const at::Tensor& rows, const std::array<double, 3>& period) const
    {
        auto placed = at::empty({rows.size(0), 3}, rows.options());
        place_rows_in_box(executor_, rows.template const_data_ptr<T>(), rows.size(0), static_cast<int>(rows.size(1)),
                          period.data(), placed.template mutable_data_ptr<T>());
        return placed;
    }

    GridShape shape_around(const at::Tensor& points, const NeighborRequest& request,
                           const std::array<double, 3>& period) const
    {
        auto box = at::zeros({2, 3}, at::kDouble);
        if (num_points() > 0) box = at::stack({points.amin(0), points.amax(0)}).to(at::kCPU, at::kDouble);
        const auto *low = box.const_data_ptr<double>(), *high = low + 3;
        auto shape = request.is_knn ? grid_for_nearest(low, high, request.k, num_points())
                                    : grid_for_radius(low, high, request.largest_radius(), num_points());
        std::ranges::copy(period, shape.period);
        for (auto& length : shape.period) length = static_cast<double>(static_cast<T>(length));
        return shape;
    }

    /// Memory for the entries, allocated once the counting kernel has filled the offsets.
    struct Entries {
        at::Tensor ids, distances;
    };
    Entries entries_for(const at::Tensor& offsets) const
    {
        const auto count = offsets[-1].item<std::int64_t>();
        return {at::empty({count}, points_.options().dtype(at::kInt)), at::empty({count}, points_.options())};
    }
    at::Tensor new_offsets() const { return at::empty({num_queries() + 1}, points_.options().dtype(at::kLong)); }

    FoundNeighbors nearest(const CellGrid<T, Executor>& grid, const GridQueries<T>& asked, std::int64_t k) const
    {
        auto offsets = new_offsets();
        auto counts = at::full({num_queries()}, std::min(k, num_points()), offsets.options());
        if (excluded_.defined()) counts = counts.minimum(num_points() - excluded_.ge(0).to(at::kLong));
        offsets.zero_().narrow(0, 1, num_queries()).copy_(counts.cumsum(0));
        const auto entries = entries_for(offsets);
        grid.nearest(asked, offsets.template const_data_ptr<std::int64_t>(),
                     entries.ids.template mutable_data_ptr<std::int32_t>(),
                     entries.distances.template mutable_data_ptr<T>());
        return {offsets, entries.ids.to(at::kLong), entries.distances};
    }

    FoundNeighbors within(const CellGrid<T, Executor>& grid, const GridQueries<T>& asked,
                          const RadiusLimit& limit) const
    {
        const auto offsets = new_offsets();
        const auto radius = static_cast<T>(limit.radius);
        grid.count(asked, radius, limit.max_neighbors, offsets.template mutable_data_ptr<std::int64_t>());
        const auto entries = entries_for(offsets);
        grid.fill(asked, radius, offsets.template const_data_ptr<std::int64_t>(),
                  entries.ids.template mutable_data_ptr<std::int32_t>(),
                  entries.distances.template mutable_data_ptr<T>());
        return {offsets, entries.ids.to(at::kLong), entries.distances};
    }

    FoundNeighbors in_grid_order(const RadiusLimit& limit) const
    {
        const GridOrder order(limit.radius);
        for (const auto& rows : {points_, queries_}) require_in_grid(rows, order);
        auto cells = at::empty({num_points(), 3}, points_.options().dtype(at::kInt));
        cells_in_grid_order(executor_, points_.template const_data_ptr<T>(), num_points(), order,
                            cells.template mutable_data_ptr<std::int32_t>());
        auto ids = at::arange(num_points(), points_.options().dtype(at::kLong));
        for (int d = 0; d < 3; ++d)
            ids = ids.index_select(
                0, at::argsort(cells.select(1, d).index_select(0, ids), /*stable=*/true, 0, /*descending=*/false));
        const auto rows = points_.index_select(0, ids);
        cells = cells.index_select(0, ids);
        const OrderedPoints<T> points{rows.template const_data_ptr<T>(), cells.template const_data_ptr<std::int32_t>(),
                                      num_points()};

        auto offsets = new_offsets();
        const auto* queries = queries_.template const_data_ptr<T>();
        count_in_grid_order(executor_, points, queries, num_queries(), order, limit.max_neighbors,
                            offsets.template mutable_data_ptr<std::int64_t>());
        const auto entries = entries_for(offsets);
        fill_in_grid_order(executor_, points, queries, num_queries(), order, limit.max_neighbors,
                           offsets.template mutable_data_ptr<std::int64_t>(),
                           entries.ids.template mutable_data_ptr<std::int32_t>(),
                           entries.distances.template mutable_data_ptr<T>());
        return {offsets, ids.index_select(0, entries.ids), entries.distances};
    }

    static void require_in_grid(const at::Tensor& rows, const GridOrder& order)
    {
        if (rows.numel() == 0) return;
        const auto farthest = rows.abs().max().template item<double>() + static_cast<double>(order.radius);
        if (farthest / static_cast<double>(order.width) < GridOrder::kMostCells) return;
        refuse_grid_order(farthest, order.radius);
    }

    Executor executor_;
    at::Tensor points_, queries_, excluded_;
};

}  // namespace meshard
