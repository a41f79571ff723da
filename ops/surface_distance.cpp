// SPDX-License-Identifier: Apache-2.0
#include "ops/surface_distance.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "ops/cut_rows.h"
#include "ops/row_gather.h"
#include "ops/surface_search.h"
#include "ops/winding_number.h"
#include "partition/error.h"
#include "partition/vector_algebra.h"
#include "sharding/with_backward.h"

namespace meshard {
namespace {

constexpr const char* kWhere = "signed_distance";
constexpr std::int64_t kQueriesAThread = 256;   // at least

void require_rows(const char* what, const at::Tensor& tensor, bool of_numbers)
{
    const bool fits = of_numbers ? tensor.is_floating_point() : tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt;
    if (tensor.dim() == 2 && tensor.size(1) == 3 && fits) return;
    throw InvalidInput(std::string(kWhere) + ": the " + what + " are a tensor of type " + c10::toString(tensor.scalar_type()) + " with " +
                       std::to_string(tensor.dim()) + " dimensions" + (tensor.dim() == 2 ? " and " + std::to_string(tensor.size(1)) + " columns" : std::string()) +
                       "; expected (n, 3) of " + (of_numbers ? "a floating type." : "int64 or int32."));
}

/// A surface's tensor with all its rows, in the order of their ids. Differentiable.
at::Tensor gathered(const CutRows& part, const at::Tensor& tensor)
{
    return part.is_cut() ? gather_rows(tensor, at::arange(part.num_global, at::kLong)) : part.own;
}

template <class T>
std::vector<T> values_of(const at::Tensor& tensor)
{
    const at::Tensor here = tensor.detach().to(at::kCPU, c10::CppTypeToScalarType<T>::value).contiguous();
    const auto* begin = here.const_data_ptr<T>();
    return {begin, begin + here.numel()};
}

/// Results of the own queries, in double precision.
struct Found {
    at::Tensor distances, directions, points, faces;
    at::Tensor corners;   ///< (M, 3), int64: vertices of the nearest triangle; 0 without result
    at::Tensor weights;   ///< (M, 3): of the three, the nearest point; 0 without result
};

Found find_nearest(const TriangleSurface& surface, const at::Tensor& queries, const SurfaceDistanceOptions& options)
{
    const SurfaceSearch search(surface);
    std::optional<WindingNumber> winding;
    if (options.sign == SurfaceSign::WindingNumber) winding.emplace(surface);
    const auto m = queries.size(0);
    const auto none = std::nan("");
    Found found{at::full({m}, none, at::kDouble), at::full({m, 3}, none, at::kDouble), at::full({m, 3}, none, at::kDouble),
                at::full({m}, -1, at::kLong), at::zeros({m, 3}, at::kLong), at::zeros({m, 3}, at::kDouble)};
    const auto* from = queries.const_data_ptr<double>();
    auto* distances = found.distances.mutable_data_ptr<double>();
    auto* directions = found.directions.mutable_data_ptr<double>();
    auto* points = found.points.mutable_data_ptr<double>();
    auto* faces = found.faces.mutable_data_ptr<std::int64_t>();
    auto* corners = found.corners.mutable_data_ptr<std::int64_t>();
    auto* weights = found.weights.mutable_data_ptr<double>();
    at::parallel_for(0, m, kQueriesAThread, [&](std::int64_t begin, std::int64_t end) {
        for (auto i = begin; i < end; ++i) {
            const Vector3 query{from[3 * i], from[3 * i + 1], from[3 * i + 2]};
            const auto [face, nearest] = search.nearest(query, options.max_distance);
            if (face < 0) continue;
            const Vector3& normal = surface.feature_normal(face, nearest.feature);
            const bool is_corner = nearest.feature < 3, is_inside_triangle = nearest.feature == 6;
            // From a corner rather than the nearest point itself: both give the sign, but the corner has no rounding of its own.
            const Vector3 from_corner = query - surface.corner(face, is_corner ? nearest.feature : is_inside_triangle ? 0 : nearest.feature - 3);
            const bool is_above = dot(from_corner, normal) >= 0;
            const double sign = (winding ? !winding->is_inside(query) : is_above) ? 1 : -1;
            const double distance = std::sqrt(nearest.distance_squared);
            // Above a triangle's inside the direction is its normal, which keeps its digits however near the point is.
            Vector3 direction = is_inside_triangle ? (is_above ? sign : -sign) * normal : sign * unit(query - nearest.point);
            if (distance == 0) direction = unit(normal);
            distances[i] = sign * distance;
            faces[i] = face;
            for (int d = 0; d < 3; ++d) {
                directions[3 * i + d] = direction[d];
                points[3 * i + d] = nearest.point[d];
                corners[3 * i + d] = surface.vertex_id(face, d);
                weights[3 * i + d] = nearest.weights[d];
            }
        }
    });
    return found;
}

/// Queries differ from rank to rank, vertices do not: their gradient is the sum over ranks.
at::Tensor shared_by_all(const at::Tensor& vertices, const RankGroup& group)
{
    if (group.size() == 1) return vertices;
    return with_backward(vertices.detach().alias(), vertices, "SharedSurfaceBackward", [group](const at::Tensor& gradient) {
        auto whole = gradient.contiguous().clone();
        group.all_reduce(whole);
        return whole;
    });
}

/// The distances as they are, with their gradient in queries and vertices: the nearest point moves with the triangle, and how it moves on the triangle
/// does not change the distance.
at::Tensor with_gradient(const at::Tensor& distances, const Found& found, const at::Tensor& queries, const at::Tensor& vertices)
{
    const auto directions = found.directions.nan_to_num(0.0).to(distances.scalar_type());
    auto change = (directions * (queries - queries.detach())).sum(1);
    if (vertices.requires_grad()) {
        const auto moved = (vertices - vertices.detach()).to(distances.scalar_type()).index_select(0, found.corners.view({-1})).view({-1, 3, 3});   // (M, corner, 3)
        change = change - (directions * (found.weights.to(distances.scalar_type()).unsqueeze(2) * moved).sum(1)).sum(1);
    }
    return distances + change;
}

}  // namespace

SurfaceDistance signed_distance(const at::Tensor& vertices, const at::Tensor& faces, const at::Tensor& queries, const SurfaceDistanceOptions& options)
{
    require_rows("vertices", vertices, true);
    require_rows("faces", faces, false);
    require_rows("queries", queries, true);
    const auto vertex_rows = cut_rows_of(kWhere, "vertices", vertices), face_rows = cut_rows_of(kWhere, "faces", faces);
    const auto query_rows = cut_rows_of(kWhere, "queries", queries);
    // Of the ranks that hold different rows, to find errors together.
    const auto group = query_rows.is_cut() ? query_rows.group() : vertex_rows.is_cut() ? vertex_rows.group() : face_rows.group();
    auto all_vertices = gathered(vertex_rows, vertices);
    const auto all_faces = gathered(face_rows, faces);
    const auto own = query_rows.own.detach().to(at::kCPU, at::kDouble).contiguous();

    std::optional<TriangleSurface> surface;
    std::string error;
    try {
        if (!(options.max_distance > 0)) throw InvalidInput(std::string(kWhere) + ": max_distance is " + std::to_string(options.max_distance) + "; it must be positive.");
        if (!own.abs().lt(1e18).all().item<bool>()) throw InvalidInput(std::string(kWhere) + ": a query has a coordinate that is not finite, or beyond 1e18.");
        surface.emplace(values_of<double>(all_vertices), values_of<std::int64_t>(all_faces));
    } catch (const InvalidInput& wrong) {
        error = wrong.what();
    }
    throw_together(error, group);

    auto found = find_nearest(*surface, own, options);
    const auto device = query_rows.own.device();
    const auto type = query_rows.own.scalar_type();
    const auto finished = [&](const at::Tensor& tensor) { return tensor.to(device, type); };
    SurfaceDistance result;
    auto distances = finished(found.distances);
    if (at::GradMode::is_enabled() && (query_rows.own.requires_grad() || all_vertices.requires_grad())) {
        for (auto* tensor : {&found.directions, &found.corners, &found.weights}) *tensor = tensor->to(device);
        if (!vertex_rows.is_cut() && all_vertices.requires_grad()) all_vertices = shared_by_all(all_vertices, query_rows.group());
        distances = with_gradient(distances, found, query_rows.own, all_vertices);
    }
    result.distances = query_rows.like(distances);
    result.directions = query_rows.like(finished(found.directions));
    result.points = query_rows.like(finished(found.points));
    result.faces = query_rows.like(found.faces.to(device));
    return result;
}

}  // namespace meshard
