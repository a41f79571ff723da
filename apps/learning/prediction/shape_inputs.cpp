// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/shape_inputs.h"

#include "apps/learning/cases/usable_input.h"
#include "apps/learning/settings/settings.h"
#include "ops/surface/surface_distance.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <array>
#include <memory>
#include <vector>

namespace meshard {
namespace {

// Inputs are computed in single precision, and arrays of files may have few digits.
constexpr double kRounding = 1e-4;
// A corner with a smaller weight in the nearest point does not hold it: the point lies on the edge across, or in
// another corner.
constexpr double kNoWeight = 1e-9;
// Points lie on the surface up to this share of its size: those of files are in single precision, or have six digits.
constexpr double kOnTheSurface = 1e-5;

template <std::size_t N>
at::Tensor numbers(const std::array<double, N>& values, const at::Tensor& like)
{
    return torch::tensor(std::vector<double>(values.begin(), values.end()), torch::kDouble).to(like.device());
}

/// `CaseFrame` as tensors: (3), the ground a number.
struct MovingFrame {
    at::Tensor low, high, center, lengths, ground;

    /// The box moves with its points: of several extreme ones each with an equal share.
    MovingFrame(const at::Tensor& points, const FrameConfig& config, const CaseFrame& frame)
        : low(points.amin(0)), high(points.amax(0)),
          center(config.center == "bounds" ? 0.5 * (low + high) : numbers(frame.center, points)),
          lengths(config.length == "bounds" ? (high - low).amax().expand({3}) : numbers(frame.lengths, points))
    {
        const auto up = numbers(frame.up, points);
        ground = number_in(config.ground) ? torch::tensor(frame.ground, points.options())
                                          : torch::minimum(up * low, up * high).sum();
    }
};

at::Tensor unit_vectors(const at::Tensor& vectors)
{
    const auto lengths = lengths_of(vectors.detach()).unsqueeze(1);
    const auto has_length = lengths > 0;
    const auto safe = torch::where(has_length, vectors, torch::ones_like(vectors));
    return torch::where(has_length, safe / lengths_of(safe).unsqueeze(1), torch::zeros_like(vectors));
}

/// Weights of the corners (N, 3, 3) of triangles in points (N, 3) on them, (N, 3): areas of the triangles across, of
/// which the points are the apex. They have no derivatives.
at::Tensor weights_of(const at::Tensor& corners, const at::Tensor& points)
{
    const auto to_corners = corners.detach() - points.unsqueeze(1);
    const auto across = [&](std::int64_t a, std::int64_t b) {
        return lengths_of(torch::linalg_cross(to_corners.select(1, a), to_corners.select(1, b)));
    };
    const auto weights = torch::stack({across(1, 2), across(2, 0), across(0, 1)}, 1);
    return weights / weights.sum(1, true).clamp_min(1e-300);
}

/// The corners (N, 3, 3) of `faces` (N) among triangles (T, 3).
at::Tensor corners_of(const at::Tensor& faces, const at::Tensor& vertices, const at::Tensor& triangles)
{
    return vertices.index_select(0, triangles.index_select(0, faces).flatten()).view({-1, 3, 3});
}

/// The longest edge of the box around points (N, 3), a number.
at::Tensor size_of(const at::Tensor& points)
{
    return (points.amax(0) - points.amin(0)).amax();
}

/// Vectors from places to the nearest points of triangles, (N, 3). A point stays on the triangle, edge or vertex on
/// which it is, and moves along it with the place.
/// @param nearest   (N, 3), the points
/// @param faces     (N), their triangles
at::Tensor ways_to(const at::Tensor& nearest, const at::Tensor& faces, const at::Tensor& vertices,
                   const at::Tensor& triangles, const at::Tensor& places)
{
    const auto corners = corners_of(faces, vertices, triangles);
    const auto [sorted, order] = weights_of(corners, nearest).sort(/*dim=*/1, /*descending=*/true);
    const auto num_holding = (sorted > kNoWeight).sum(1, true);
    const auto corner = [&](std::int64_t k) {
        return corners.gather(1, order.select(1, k).view({-1, 1, 1}).expand({-1, 1, 3})).squeeze(1);
    };
    const auto a = corner(0), along = corner(1) - a, normal = torch::linalg_cross(along, corner(2) - a);
    const auto dot = [](const at::Tensor& x, const at::Tensor& y) { return (x * y).sum(1, true); };
    const auto part_along = [&](const at::Tensor& direction, const at::Tensor& used) {
        const auto squared = dot(direction, direction);
        return dot(places - a, direction) / torch::where(used, squared, torch::ones_like(squared)) * direction;
    };
    const auto on_face = num_holding == 3, on_edge = num_holding == 2;
    const auto in_corner = a - places;
    return torch::where(on_face, -part_along(normal, on_face),
                        torch::where(on_edge, in_corner + part_along(along, on_edge), in_corner));
}

/// Computes inputs of a case's rows.
class RowInputs {
public:
    RowInputs(const MovableSurface& surface, const ShapeOfCase& shape)
        : surface_(surface), shape_(shape), frame_(surface.points(), shape.data.frame, shape.frame),
          own_(torch::tensor(std::vector<std::int64_t>(shape.rows.begin(), shape.rows.end()), torch::kLong)
                   .to(surface.points().device())),
          places_(own(shape.data.on_cells ? surface.cell_places() : surface.points()))
    {
    }

    at::Tensor of(const std::string& name) const
    {
        if (name == "points") return in_frame(places_);
        if (name == "normals") return own(normals());
        if (name == "areas") {
            const auto areas = lengths_of(surface_.area_vectors());
            const auto of_rows = shape_.data.on_cells ? areas : surface_.shares_at_points(areas);
            return own(of_rows / of_rows.mean()).unsqueeze(1);
        }
        if (name == "height")
            return ((places_ * numbers(shape_.frame.up, places_)).sum(1, true) - frame_.ground) / frame_.lengths[0];
        if (name == "box") return in_box();
        if (name == "sdf") return distances().unsqueeze(1) / frame_.lengths[0];
        return directions();
    }

    /// The wall as `case_body` has it.
    at::Tensor body() const { return in_frame(shape_.wall->vertices); }

    /// The points of the case's other part, in the frame that moves.
    at::Tensor others() const { return in_frame(shape_.other_places); }

private:
    at::Tensor own(const at::Tensor& rows) const { return rows.index_select(0, own_); }
    at::Tensor in_frame(const at::Tensor& places) const { return (places - frame_.center) / frame_.lengths; }

    at::Tensor normals() const
    {
        const auto areas = surface_.area_vectors();
        return unit_vectors(shape_.data.on_cells ? areas : surface_.sums_at_points(areas));
    }

    at::Tensor in_box() const
    {
        const auto extent = frame_.high - frame_.low;
        const auto is_wide = extent.detach() > 0;
        const auto safe = torch::where(is_wide, extent, torch::ones_like(extent));
        return torch::where(is_wide, (2 * places_ - frame_.low - frame_.high) / safe, torch::zeros_like(places_));
    }

    SurfaceDistance found(const at::Tensor& vertices, const at::Tensor& places) const
    {
        return signed_distance(vertices.cpu(), shape_.wall->triangles.cpu(), places.cpu(),
                               {.sign = SurfaceSign::WindingNumber});
    }

    at::Tensor distances() const { return found(shape_.wall->vertices, places_).distances.to(places_.device()); }

    at::Tensor directions() const
    {
        const auto& [vertices, triangles, num_staying] = *shape_.wall;
        const auto nearest = found(vertices.detach(), places_.detach());
        const auto points = nearest.points.to(places_.device());
        const auto ways = ways_to(points, nearest.faces.to(places_.device()), vertices, triangles, places_);
        const auto is_off =
            lengths_of(points - places_.detach()).unsqueeze(1) > kOnTheWall * size_of(vertices.detach());
        return torch::where(is_off, unit_vectors(ways), torch::zeros_like(ways));
    }

    const MovableSurface& surface_;
    const ShapeOfCase& shape_;
    MovingFrame frame_;
    at::Tensor own_, places_;
};

/// Returns why an input cannot be moved with the surface, or an empty text.
std::string fault_of(const std::string& name, const at::Tensor& computed, const at::Tensor& known,
                     const ShapeOfCase& shape)
{
    if (computed.numel() == 0) return {};
    const auto expected = known.to(torch::kCPU, torch::kDouble);
    const auto off = ((computed.detach().to(torch::kCPU) - expected).abs() / (1 + expected.abs())).max().item<double>();
    if (off <= kRounding) return {};
    const auto& data = shape.data;
    auto text = fmt::format("{}: no sensitivity: the input '{}' differs by up to {:.2g} from what its points give",
                            shape.where, name, off);
    if (name == "sdf" && !data.distances.empty())
        text += fmt::format(", and the array '{}' is not the distance from this wall. Give the surface from which it "
                            "is measured with --wall",
                            data.distances);
    if (name == "normals")
        text += fmt::format(", so that it is not known how the array '{}' moves with them. Remove the array, then "
                            "normals are computed of the polygons{}",
                            data.normals, data.turns_outward ? "" : "; or turn these outward (--orient outward)");
    return text + ".";
}

}  // namespace

MovingWall moving_wall(const Wall& wall, const MovableSurface& surface)
{
    const auto of_surface = surface.triangle_vertices();
    const auto device = of_surface.device();
    const auto vertices = torch::tensor(wall.vertices, torch::kDouble).view({-1, 3});
    const auto nearest = signed_distance(of_surface.detach().cpu(), surface.triangles().cpu(), vertices);
    const auto lies_on =
        lengths_of(nearest.points - vertices).unsqueeze(1) <= kOnTheSurface * size_of(of_surface.detach()).cpu();
    const auto corners = corners_of(nearest.faces.to(device), of_surface, surface.triangles());
    const auto weights = weights_of(corners, nearest.points.to(device)).unsqueeze(2);
    const auto ways = (weights * (corners - corners.detach())).sum(1);
    return {vertices.to(device) + torch::where(lies_on.to(device), ways, torch::zeros_like(ways)),
            torch::tensor(wall.triangles, torch::kLong).view({-1, 3}).to(device),
            lies_on.logical_not().sum().item<std::int64_t>()};
}

PointInputs shape_inputs(const MovableSurface& surface, const PointInputs& known, const ShapeOfCase& shape,
                         at::ScalarType type, const RankGroup& ranks)
{
    const auto& data = shape.data;
    const auto of_known = to_local(known.embedding).squeeze(0);
    std::vector<at::Tensor> inputs;
    at::Tensor body, others;
    read_together(ranks, [&] {
        if (data.has_input("sdf") && !shape.wall)
            throw InvalidInput("{}: no sensitivity: the input 'sdf' is the array '{}' of the case "
                               "(data.distances), and from which surface is not known. Give its file with "
                               "--wall.",
                               shape.where, data.distances);
        const RowInputs rows(surface, shape);
        std::int64_t first = 0;
        for (const auto& name : data.inputs) {
            const auto& computed = inputs.emplace_back(rows.of(name));
            const auto fault = fault_of(name, computed, of_known.narrow(1, first, computed.size(1)), shape);
            if (!fault.empty()) throw InvalidInput(fault);
            first += computed.size(1);
        }
        if (known.body) body = rows.body();
        if (known.other_part) others = rows.others();
    });
    auto moved = sharded_inputs(torch::cat(inputs, 1).to(type), spec_of(known.embedding));
    const auto as_type = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(type) : tensor; };
    moved.constants = as_type(known.constants);
    moved.time = as_type(known.time);
    if (known.other_part)
        moved.other_part =
            std::make_shared<const PointInputs>(sharded_inputs(others.to(type), spec_of(known.other_part->positions)));
    if (known.body) moved.body = std::make_shared<const CaseBody>(CaseBody{body.to(type), known.body->triangles});
    return moved;
}

}  // namespace meshard
