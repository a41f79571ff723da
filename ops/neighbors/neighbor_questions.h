// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/neighbor_request.h"
#include "ops/search/point_search.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace meshard {

/// Factor by which squared bounds are widened, so that no neighbour is lost by rounding.
template <class T>
inline constexpr double kBoundSlack = 1 + 16 * static_cast<double>(std::numeric_limits<T>::epsilon());

template <class T>
at::Tensor tensor_of(const std::vector<T>& values, std::int64_t width)
{
    auto tensor = at::empty({std::ssize(values) / width, width}, c10::CppTypeToScalarType<T>::value);
    std::ranges::copy(values, tensor.template mutable_data_ptr<T>());
    return tensor;
}

template <class T>
std::span<const T> values_of(const at::Tensor& tensor)
{
    return {tensor.const_data_ptr<T>(), static_cast<std::size_t>(tensor.numel())};
}

/// Sends `send[r]` to rank r; returns the number received from each rank. Collective.
std::vector<std::int64_t> exchanged(const std::vector<std::int64_t>& send, const RankGroup& group);

/// The questions received by this rank: the bytes of each rank concatenated, or a request for all points.
struct AskedOfRank {
    static constexpr std::int64_t kEverything = -1;

    at::Tensor bytes;
    std::vector<std::int64_t> counts;  ///< bytes from each rank, or kEverything for a request for all points
};

/// Sends this rank's queries to the ranks that may have points near them, and receives theirs. Collective.
///
/// Every rank broadcasts a few boxes around its points. A query is sent to the ranks with a box within its bound: the
/// radius, or the distance of the k-th point known so far. In a radius search cells of a fine grid around the queries
/// are sent instead of the queries: such questions are short, and only a few more points are received than needed.
/// Coarser cells are sent first: no finer cells follow if a rank has no points near them.
/// @param search     search among the rank's own points `own`
/// @param is_asked   for each rank whether this rank may send it questions
template <class T>
AskedOfRank exchanged_questions(const NeighborRequest& request, std::span<const T> own, const PointSearch<T>& search,
                                std::span<const T> queries, int dimensions, const std::vector<char>& is_asked,
                                const RankGroup& group);

}  // namespace meshard
