// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

namespace meshard {

/// How the sign of a distance is determined.
enum class SurfaceSign : std::uint8_t {
    PseudoNormal,  ///< by the normal of the nearest triangle, edge or vertex: exact for closed surfaces
    WindingNumber  ///< by the surface's winding number around the point: also for surfaces with holes and overlaps
};

struct SurfaceDistanceOptions {
    SurfaceSign sign = SurfaceSign::PseudoNormal;
    double max_distance = std::numeric_limits<double>::infinity();  ///< farther queries have no result
};

/// Results, one row for each query, with the layout of the queries: plain, or cut along the rows.
struct SurfaceDistance {
    at::Tensor distances;  ///< (M), in the queries' type: positive outside, negative inside; NaN without result
    /// (M, 3): the distance's gradient, a unit vector, and on the surface its normal; NaN without result.
    at::Tensor directions;
    at::Tensor points;  ///< (M, 3): nearest points of the surface; NaN without result
    at::Tensor faces;   ///< (M), int64: triangle of the nearest point, the first of several; -1 without result
};

/// Signed distance of each query to a surface of triangles, computed in double precision for any type of the tensors.
///
/// Queries stay on their ranks. If faces are cut among the same ranks as the queries, each rank holds its own faces and
/// those that share a corner with them; a query is sent to the ranks that may have a nearer face than its own rank.
/// Otherwise, and for winding numbers, every rank holds the whole surface: a cut one is gathered; others need no
/// messages. Both cases give the same bits. Distances are differentiable in queries and vertices; directions and points
/// are not. Triangles are right-handed seen from outside; vertices with equal coordinates count as one.
///
/// @param vertices  (V, 3), of a floating type; plain, Replicate, or cut along the rows
/// @param faces     (F, 3), int64 or int32: rows of the vertices, in a cut tensor by global id; plain, Replicate or cut
/// @param queries   (M, 3), of a floating type; plain, Replicate, or cut along the rows
/// @throws InvalidInput on every rank: wrong shapes and types, options in which ranks differ, a vertex that does not
///         exist, coordinates that are not finite, max_distance that is not positive, or a program that was built
///         without Embree
SurfaceDistance signed_distance(const at::Tensor& vertices, const at::Tensor& faces, const at::Tensor& queries,
                                const SurfaceDistanceOptions& options = {});

}  // namespace meshard
