// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/search/point_search.h"
#include "sharding/exchange/exchange_plan.h"
#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace meshard {

/// The order of a query's neighbours, which also decides which ones are kept if there are too many.
enum class NeighborOrder : std::uint8_t {
    Nearest,  ///< nearest first, ties by global id
    /// Radius search in three dimensions only: in order of grid cells (grid_walk.h), for published GeoTransolver
    /// weights.
    Grid,
};

struct NeighborOptions {
    bool exclude_self = false;     ///< exclude the point with the query's global id
    std::vector<double> period{};  ///< lengths of a periodic box, 0 for an axis that is not periodic; empty if none is
    NeighborOrder order = NeighborOrder::Nearest;
};

/// Neighbours of this rank's queries among the points of all ranks, as plain tensors. Local query i has the entries
/// offsets[i], ..., offsets[i + 1] - 1.
///
/// Keep the object as long as the points do not move: `gather_neighbors` then only exchanges features of ghosts.
struct Neighbors {
    at::Tensor offsets;  ///< (queries + 1), int64; clouds of a batch are concatenated
    at::Tensor ids;      ///< (entries), int64: global ids of the points; in a batch ids within the cloud
    /// (entries), int64: rows among owned points and then ghosts, which `plan` exchanges.
    at::Tensor rows;
    at::Tensor distances;                      ///< (entries), in the points' type; differentiable in points and queries
    std::shared_ptr<const ExchangePlan> plan;  ///< null if every rank holds all points
    RankGroup queries_group;                   ///< ranks among which queries are cut; a group of one if they are not
    SpecPtr points_layout;                     ///< of the points; null if they are not cut
    std::int64_t num_points = 0;               ///< owned points of one cloud
    std::int64_t num_batches = 0;  ///< clouds of this rank; 0 for a rank without clouds in a batch that is cut
    bool is_batch = false;         ///< whether the points had a batch dimension
};

/// The k nearest points of each query, or all if there are fewer.
///
/// Points and queries are plain, Replicate, or cut along their rows, independently; ids are those of their index maps,
/// or row numbers in the whole. On every rank and for any partition the result is that of a search among all points.
/// Each rank broadcasts a few boxes around its points; queries are sent to ranks that may hold a point nearer than the
/// k-th point known so far, which answer with the points that some query needs, each once.
///
/// @param points   (N, D), or (B, N, D), D 1 to 3, of a floating type. In a batch that is cut along B each rank
/// searches its own clouds
/// @param queries  (M, D) or (B, M, D), of the same type
/// @throws InvalidInput on every rank, before points are sent: wrong shapes, types, coordinates, k, or periods, and
/// arguments that differ between ranks
Neighbors knn(const at::Tensor& points, const at::Tensor& queries, std::int64_t k, const NeighborOptions& options = {});

/// The points at most `radius` away; if there are more than `max_neighbors`, the first in the chosen order.
Neighbors radius_search(const at::Tensor& points, const at::Tensor& queries, double radius,
                        std::int64_t max_neighbors = kAllNeighbors, const NeighborOptions& options = {});

/// `radius_search` for several radii at once, with ghosts for the largest; one result for each radius.
std::vector<Neighbors> radius_search(const at::Tensor& points, const at::Tensor& queries,
                                     const std::vector<RadiusLimit>& limits, const NeighborOptions& options = {});

/// Gathers the rows of the neighbours, one for each entry: features (N, ...), in batches (B, N, ...), with the points'
/// layout, to (entries, ...). Collective if the points are cut: owners send each ghost row once. Differentiable:
/// gradients are sent to the owners.
/// @throws InvalidInput if the features have other rows than the points: on every rank if their number differs on any
///         rank, otherwise only on ranks whose ids differ
at::Tensor gather_neighbors(const at::Tensor& features, const Neighbors& neighbors);

}  // namespace meshard
