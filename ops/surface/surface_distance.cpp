// SPDX-License-Identifier: Apache-2.0
#include "ops/surface/surface_distance.h"

#include "ops/neighbors/neighbor_rows.h"
#include "ops/rows/cut_rows.h"
#include "ops/rows/row_gather.h"
#include "ops/rows/row_moves.h"
#include "ops/surface/surface_parts.h"
#include "partition/error.h"
#include "sharding/ranks/parallel_for.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

namespace meshard {
namespace {

constexpr const char* kWhere = "signed_distance";
constexpr std::int64_t kQueriesAThread = 256;  // the smallest share of the work for which another thread is used

/// The error message about a tensor that must have rows of three; empty if it is valid.
std::string error_of_rows(const char* what, const at::Tensor& tensor, bool of_numbers)
{
    const bool fits =
        of_numbers ? tensor.is_floating_point() : tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt;
    if (tensor.dim() == 2 && tensor.size(1) == 3 && fits) return {};
    return fmt::format("{}: the {} are a tensor of type {} with {} dimensions{}; expected (n, 3) of {}", kWhere, what,
                       c10::toString(tensor.scalar_type()), tensor.dim(),
                       tensor.dim() == 2 ? fmt::format(" and {} columns", tensor.size(1)) : "",
                       of_numbers ? "a floating type." : "int64 or int32.");
}

/// Throws on all ranks if ranks differ in arguments on which later messages depend. Collective.
void require_same_call(const SurfaceDistanceOptions& options, bool queries_need_gradient, bool vertices_need_gradient,
                       const RankGroup& group)
{
    const std::vector<std::int64_t> mine{static_cast<std::int64_t>(options.sign),
                                         std::bit_cast<std::int64_t>(options.max_distance), queries_need_gradient,
                                         vertices_need_gradient};
    const auto all = group.all_gather_integers(mine);
    if (std::ranges::all_of(all, [&](const auto& rank) { return rank == all[0]; })) return;
    throw InvalidInput("{}: ranks pass different arguments. Call it with the same options on every rank, and with "
                       "tensors all or none of which need gradients.",
                       kWhere);
}

/// All rows of a tensor of the surface, gathered and sorted by id. Differentiable.
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

/// Results of this rank's queries, in double precision.
struct Found {
    at::Tensor distances, directions, points, faces;
    at::Tensor corners;  ///< (M, 3), int64: vertices of the nearest triangle; 0 without result
    at::Tensor weights;  ///< (M, 3): weights of these vertices that give the nearest point; 0 without result
};

Found no_results(std::int64_t m)
{
    const auto none = std::nan("");
    return {at::full({m}, none, at::kDouble), at::full({m, 3}, none, at::kDouble), at::full({m, 3}, none, at::kDouble),
            at::full({m}, -1, at::kLong),     at::zeros({m, 3}, at::kLong),        at::zeros({m, 3}, at::kDouble)};
}

void set_result(const Found& found, std::int64_t i, const SurfaceNearest& nearest)
{
    if (nearest.face < 0) return;
    found.distances.mutable_data_ptr<double>()[i] = nearest.distance;
    found.faces.mutable_data_ptr<std::int64_t>()[i] = nearest.face;
    std::copy_n(nearest.direction.begin(), 3, found.directions.mutable_data_ptr<double>() + 3 * i);
    std::copy_n(nearest.point.begin(), 3, found.points.mutable_data_ptr<double>() + 3 * i);
    std::copy_n(nearest.corners.begin(), 3, found.corners.mutable_data_ptr<std::int64_t>() + 3 * i);
    std::copy_n(nearest.weights.begin(), 3, found.weights.mutable_data_ptr<double>() + 3 * i);
}

Found find_nearest(const TriangleSurface& surface, const at::Tensor& queries, const SurfaceDistanceOptions& options)
{
    const SurfaceSearch search(surface);
    std::optional<WindingNumber> winding;
    if (options.sign == SurfaceSign::WindingNumber) winding.emplace(surface);
    const auto m = queries.size(0);
    const auto found = no_results(m);
    const auto* from = queries.const_data_ptr<double>();
    at::parallel_for(0, m, kQueriesAThread, [&](std::int64_t begin, std::int64_t end) {
        for (auto i = begin; i < end; ++i) {
            set_result(found, i,
                       nearest_on_surface(surface, search, winding ? &*winding : nullptr,
                                          {from[3 * i], from[3 * i + 1], from[3 * i + 2]}, options.max_distance));
        }
    });
    return found;
}

/// `find_nearest` for a surface that is cut among the ranks.
Found find_in_parts(const at::Tensor& vertices, const CutRows& vertex_rows, const CutRows& face_rows,
                    const at::Tensor& queries, double max_distance)
{
    const auto group = face_rows.group();
    SurfacePart part{face_rows.ids(), values_of<std::int64_t>(face_rows.own), {}};
    const auto wrong = std::ranges::find_if(
        part.corner_ids, [&](auto vertex) { return vertex < 0 || vertex >= vertex_rows.num_global; });
    std::string error;
    if (face_rows.num_global == 0) error = std::string(kWhere) + ": the surface has no triangles. Pass one or more.";
    if (wrong != part.corner_ids.end()) {
        error = fmt::format("{}: a face of the surface has vertex {}; there are vertices 0 to {}.", kWhere, *wrong,
                            vertex_rows.num_global - 1);
    }
    throw_together(error, group);
    part.corners = values_of<double>(gather_rows(vertices.detach(), at::tensor(part.corner_ids, at::kLong)));
    if (!std::ranges::all_of(part.corners, [](double x) { return std::abs(x) < 1e18; })) {
        error = std::string(kWhere) + ": a vertex of the surface has a coordinate that is not finite, or beyond 1e18.";
    }
    throw_together(error, group);
    const auto nearest = nearest_among_parts(std::move(part), values_of<double>(queries), max_distance, group);
    const auto found = no_results(queries.size(0));
    for (std::size_t i = 0; i < nearest.size(); ++i) set_result(found, static_cast<std::int64_t>(i), nearest[i]);
    return found;
}

/// The distances with gradients in queries and vertices. The nearest point moves with the triangle; a move within the
/// triangle does not change the distance (to first order).
/// @param corners   (M, corner, 3), the nearest triangles' vertices with their history
at::Tensor with_gradient(const at::Tensor& distances, const Found& found, const at::Tensor& queries,
                         const at::Tensor& corners)
{
    const auto directions = found.directions.nan_to_num(0.0).to(distances.scalar_type());
    auto change = (directions * (queries - queries.detach())).sum(1);
    if (corners.requires_grad()) {
        const auto moved = (corners - corners.detach()).to(distances.scalar_type());
        change = change - (directions * (found.weights.to(distances.scalar_type()).unsqueeze(2) * moved).sum(1)).sum(1);
    }
    return distances + change;
}

}  // namespace

SurfaceDistance signed_distance(const at::Tensor& vertices, const at::Tensor& faces, const at::Tensor& queries,
                                const SurfaceDistanceOptions& options)
{
    const auto vertex_rows = cut_rows_of(kWhere, "vertices", vertices), face_rows = cut_rows_of(kWhere, "faces", faces);
    const auto query_rows = cut_rows_of(kWhere, "queries", queries);
    // Arguments are checked together by the ranks that hold different rows.
    const auto group = query_rows.is_cut()    ? query_rows.group()
                       : vertex_rows.is_cut() ? vertex_rows.group()
                                              : face_rows.group();
    const auto own = query_rows.own.detach().to(at::kCPU, at::kDouble).contiguous();
    const bool with_gradients =
        at::GradMode::is_enabled() && (query_rows.own.requires_grad() || vertices.requires_grad());
    // If faces and queries are cut among the same ranks, no rank needs the whole surface.
    const bool in_parts = has_surface_search() && options.sign == SurfaceSign::PseudoNormal && face_rows.is_cut() &&
                          query_rows.is_cut() && face_rows.axis == query_rows.axis &&
                          face_rows.layout->device_mesh == query_rows.layout->device_mesh &&
                          (!vertex_rows.is_cut() || (vertex_rows.axis == face_rows.axis &&
                                                     vertex_rows.layout->device_mesh == face_rows.layout->device_mesh));
    auto error = error_of_rows("vertices", vertices, true);
    if (error.empty()) error = error_of_rows("faces", faces, false);
    if (error.empty()) error = error_of_rows("queries", queries, true);
    if (!(options.max_distance > 0)) {
        error = fmt::format("{}: max_distance is {}; it must be positive.", kWhere, options.max_distance);
    } else if (error.empty() && !own.abs().lt(1e18).all().item<bool>()) {
        error = std::string(kWhere) + ": a query has a coordinate that is not finite, or beyond 1e18.";
    }
    throw_together(error, group);
    require_same_call(options, with_gradients && query_rows.own.requires_grad(),
                      with_gradients && vertices.requires_grad(), group);

    at::Tensor all_vertices;  // if every rank has them
    Found found;
    if (in_parts) {
        found = find_in_parts(vertices, vertex_rows, face_rows, own, options.max_distance);
    } else {
        all_vertices = gathered(vertex_rows, vertices);
        const auto all_faces = gathered(face_rows, faces);
        std::optional<TriangleSurface> surface;
        try {
            surface.emplace(values_of<double>(all_vertices), values_of<std::int64_t>(all_faces));
        } catch (const InvalidInput& wrong) {
            error = wrong.what();
        }
        throw_together(error, group);
        found = find_nearest(*surface, own, options);
    }
    const auto device = query_rows.own.device();
    const auto type = query_rows.own.scalar_type();
    const auto finished = [&](const at::Tensor& tensor) { return tensor.to(device, type); };
    SurfaceDistance result;
    auto distances = finished(found.distances);
    if (with_gradients) {
        auto source = in_parts ? vertices : all_vertices;
        if (!vertex_rows.is_cut())
            // Queries differ from rank to rank, vertices do not.
            source = rows_with_ghosts(vertex_rows.own, nullptr, query_rows.group());
        const auto wanted = found.corners.view({-1});
        const auto corners = vertices.requires_grad()
                                 ? (in_parts ? gather_rows(source, wanted) : take_rows(source, wanted)).view({-1, 3, 3})
                                 : at::empty({0});
        for (auto* tensor : {&found.directions, &found.weights}) *tensor = tensor->to(device);
        distances = with_gradient(distances, found, query_rows.own, corners.to(device));
    }
    result.distances = query_rows.like(distances);
    result.directions = query_rows.like(finished(found.directions));
    result.points = query_rows.like(finished(found.points));
    result.faces = query_rows.like(found.faces.to(device));
    return result;
}

}  // namespace meshard
