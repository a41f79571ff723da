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

/// Which of the neighbours are kept and how they are ordered.
enum class NeighborOrder : std::uint8_t {
    Nearest,  ///< nearest first, ties by global id
    Grid,     ///< radius search in three dimensions only: the order of a walk over a grid (grid_walk.h), for published GeoTransolver weights
};

struct NeighborOptions {
    bool exclude_self = false;     ///< leave out the point whose global id is that of the query
    std::vector<double> period{};  ///< lengths of a periodic box, 0 for an open axis; empty for none
    NeighborOrder order = NeighborOrder::Nearest;
};

/// Neighbours of this rank's queries among the points of all ranks. Plain tensors; those of local query i are entries offsets[i], ...,
/// offsets[i + 1] - 1.
///
/// Keep it as long as the points stay where they are: `gather_neighbors` then moves features of ghosts and nothing else.
struct Neighbors {
    at::Tensor offsets;                        ///< (queries + 1), int64; batches one after the other
    at::Tensor ids;                            ///< (entries), int64: global ids of the points; in a batch, those within the cloud
    at::Tensor rows;                           ///< (entries), int64: rows of owned points and ghosts, which `plan` brings
    at::Tensor distances;                      ///< (entries), in the points' type; differentiable in points and queries
    std::shared_ptr<const ExchangePlan> plan;  ///< null if every rank holds all points
    RankGroup queries_group;                   ///< among which queries are cut; of one if they are not
    SpecPtr points_layout;                     ///< how the points are cut; null if they are not
    std::int64_t num_points = 0;               ///< owned, of one cloud
    std::int64_t num_batches = 0;              ///< clouds of this rank, of which a batch that is cut may leave it none
    bool is_batch = false;                     ///< whether points had a batch dimension
};

/// The k nearest points of each query; fewer if there are not so many.
///
/// Points and queries are plain, Replicate, or cut along their rows, each in its own way; ids are those of their index maps, or numbers of rows in the
/// whole. On every rank and any partition the result is that of a search among all points. Ranks tell each other a few boxes around their points;
/// queries go to ranks that may hold something nearer than the k-th point known so far; from there come the points that some query needs, once each.
///
/// @param points   (N, D), or (B, N, D), D 1 to 3, of a floating type. Of a batch that is cut along B each rank searches its own clouds
/// @param queries  (M, D) or (B, M, D), of the same type
/// @throws InvalidInput on every rank, before any point travels: wrong shapes, types, coordinates, k, or periods, and arguments in which ranks differ
Neighbors knn(const at::Tensor& points, const at::Tensor& queries, std::int64_t k, const NeighborOptions& options = {});

/// The points within a radius, the bound included; of more than `max_neighbors` the first in the chosen order.
Neighbors radius_search(const at::Tensor& points, const at::Tensor& queries, double radius, std::int64_t max_neighbors = kAllNeighbors,
                        const NeighborOptions& options = {});

/// The same for several radii: ghosts of the largest, one walk, one result each.
std::vector<Neighbors> radius_search(const at::Tensor& points, const at::Tensor& queries, const std::vector<RadiusLimit>& limits,
                                     const NeighborOptions& options = {});

/// Rows of the neighbours, one an entry: features (N, ...) that lie as the points did, to (entries, ...); of batches (B, N, ...). Collective where the
/// points are cut: ghosts' rows travel once each. Differentiable: gradients return to the owners.
/// @throws InvalidInput if the features have other rows than the points: on every rank if they are others in number on any, otherwise where their ids are
/// others
at::Tensor gather_neighbors(const at::Tensor& features, const Neighbors& neighbors);

}  // namespace meshard
