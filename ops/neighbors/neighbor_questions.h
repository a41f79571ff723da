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

/// What widens squared bounds, so that rounding of coordinates' differences leaves out none.
template <class T>
inline constexpr double kBoundSlack = 1 + 16 * static_cast<double>(std::numeric_limits<T>::epsilon());

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

/// `send[r]` is for rank r; what each rank had for this one. Collective.
std::vector<std::int64_t> exchanged(const std::vector<std::int64_t>& send, const RankGroup& group);

/// What is asked of this rank, as it travelled: for each rank its bytes, one after the other, or that it wants everything.
struct AskedOfRank {
    static constexpr std::int64_t kEverything = -1;

    at::Tensor bytes;
    std::vector<std::int64_t> counts;  ///< of bytes, or kEverything for all points
};

/// Asks the ranks of which points may be near this one's queries, and is asked by them. Collective.
///
/// Every rank publishes a few boxes around its points. A query asks the ranks of which a box is within its bound: the radius, or the distance of the
/// k-th point known so far. Of a radius search the questions are cells of a fine grid in which queries lie, and not the queries: a few points more come
/// than are needed, and questions are short. Coarser cells are asked about first: where a rank has no points near one, nothing more is asked.
/// @param search   of the rank's own points `own`
/// @param is_asked for each rank whether this one may ask it
template <class T>
AskedOfRank exchanged_questions(const NeighborRequest& request, std::span<const T> own, const PointSearch<T>& search, std::span<const T> queries,
                                int dimensions, const std::vector<char>& is_asked, const RankGroup& group);

}  // namespace meshard
