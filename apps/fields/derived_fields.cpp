// SPDX-License-Identifier: Apache-2.0
#include "apps/fields/derived_fields.h"

#include "apps/fields/field_tensors.h"
#include "partition/error.h"
#include "partition/mesh/cell_type.h"
#include "partition/mesh/vector_algebra.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshard {
namespace {

constexpr double kPlane = 1 - 1e-6;  // least cosine between normals that count as parallel

bool is_of_vectors(Quantity quantity)
{
    return quantity == Quantity::Divergence || quantity == Quantity::Vorticity || quantity == Quantity::QCriterion;
}

/// Returns whether all polygons have the same normal, up to its sign.
bool is_plane(const Mesh& mesh)
{
    Vector3 first{};
    for (const auto& area : area_vectors(mesh)) {
        const Vector3 normal = unit(area);
        if (norm(first) == 0) first = normal;
        if (norm(normal) > 0 && std::abs(dot(first, normal)) < kPlane) return false;
    }
    return true;
}

at::Tensor entry(const at::Tensor& gradient, int component, int axis)
{
    return gradient.select(1, component).select(1, axis);
}

at::Tensor divergence_of(const at::Tensor& j)
{
    return (entry(j, 0, 0) + entry(j, 1, 1) + entry(j, 2, 2)).unsqueeze(1);
}

at::Tensor vorticity_of(const at::Tensor& j)
{
    return at::stack(
        {entry(j, 2, 1) - entry(j, 1, 2), entry(j, 0, 2) - entry(j, 2, 0), entry(j, 1, 0) - entry(j, 0, 1)}, 1);
}

/// Q is (|W|^2 - |S|^2) / 2, which equals minus half the trace of J J.
at::Tensor q_criterion_of(const at::Tensor& j)
{
    const auto squares = entry(j, 0, 0).square() + entry(j, 1, 1).square() + entry(j, 2, 2).square();
    const auto products =
        entry(j, 0, 1) * entry(j, 1, 0) + entry(j, 0, 2) * entry(j, 2, 0) + entry(j, 1, 2) * entry(j, 2, 1);
    return (-0.5 * squares - products).unsqueeze(1);
}

}  // namespace

const char* name_of(Quantity quantity)
{
    switch (quantity) {
    case Quantity::Gradient:
        return "Gradient";
    case Quantity::Divergence:
        return "Divergence";
    case Quantity::Vorticity:
        return "Vorticity";
    case Quantity::QCriterion:
        return "Q Criterion";
    case Quantity::Laplacian:
        break;
    }
    return "Laplacian";
}

int top_dimension(const Mesh& mesh)
{
    int top = -1;
    for (const auto type : mesh.cell_types) top = std::max(top, cell_dimension(type));
    return top;
}

void require_derivable(const Mesh& mesh, std::span<const Derivation> derivations, std::string_view where)
{
    if (derivations.empty()) return;
    const auto top = top_dimension(mesh);
    if (top < 2) {
        throw InvalidInput("{} {}; derivatives need solids or polygons. Only --wall-distance works without them.",
                           where, mesh.is_point_cloud() ? "is a point cloud" : "has vertices and lines only");
    }
    if (const auto strip = first_strip(mesh); strip >= 0) {
        throw InvalidInput("{}: cell {} is a strip of triangles; derivatives need single polygons. Triangulate it.",
                           where, strip);
    }
    for (const auto& [quantity, place, field, result] : derivations) {
        const std::string what = fmt::format("{}: the field '{}'", where, field);
        const auto& array = *find_array(arrays_at(mesh, place), field);
        if (array.type() == ScalarType::String) throw InvalidInput("{} holds texts, expected numbers.", what);
        if (is_of_vectors(quantity) && array.num_components() != 3) {
            throw InvalidInput("{} has {} component{}; the {} needs a vector of three.", what, array.num_components(),
                               array.num_components() == 1 ? "" : "s", name_of(quantity));
        }
        if (quantity == Quantity::Laplacian && place == FieldPlace::Points)
            throw InvalidInput("{} is of points; the Laplacian needs a cell field.", what);
        if ((quantity == Quantity::Vorticity || quantity == Quantity::QCriterion) && top == 2 && !is_plane(mesh)) {
            throw InvalidInput("{} is a surface that is not plane; only derivatives within the surface are "
                               "known, which give a Gradient and a Divergence but no {}.",
                               where, name_of(quantity));
        }
    }
}

FieldDerivatives::FieldDerivatives(const MeshGeometry& geometry, int top_dimension, GradientNeighbors neighbors)
    : geometry_(geometry), neighbors_(neighbors)
{
    const auto& mesh = geometry.mesh();
    counts_ = at::zeros({geometry.cell_ids().num_owned}, at::kDouble);
    for (std::int32_t i = 0; i < geometry.cell_ids().num_owned; ++i) {
        counts_.mutable_data_ptr<double>()[i] =
            cell_dimension(mesh.cell_types[i]) == top_dimension && geometry.measures().sizes[i] > 0 ? 1 : 0;
    }
}

at::Tensor FieldDerivatives::operator()(const Derivation& derivation)
{
    switch (derivation.quantity) {
    case Quantity::Gradient:
        return gradient(derivation).flatten(1);
    case Quantity::Divergence:
        return divergence_of(gradient(derivation));
    case Quantity::Vorticity:
        return vorticity_of(gradient(derivation));
    case Quantity::QCriterion:
        return q_criterion_of(gradient(derivation));
    case Quantity::Laplacian:
        break;
    }
    return laplacian_of(values_of(derivation));
}

at::Tensor FieldDerivatives::values_of(const Derivation& derivation) const
{
    const auto& ids = derivation.place == FieldPlace::Points ? geometry_.point_ids() : geometry_.cell_ids();
    return tensor_of(*find_array(arrays_at(geometry_.mesh(), derivation.place), derivation.field), ids.num_owned);
}

const at::Tensor& FieldDerivatives::gradient(const Derivation& derivation)
{
    auto& kept = gradients_[{derivation.place, derivation.field}];
    if (!kept.defined())
        kept = derivation.place == FieldPlace::Points ? point_gradient(values_of(derivation))
                                                      : cell_gradient(values_of(derivation));
    return kept;
}

at::Tensor FieldDerivatives::cell_gradient(const at::Tensor& values)
{
    if (!cell_gradient_) cell_gradient_ = least_squares_gradient(geometry_, neighbors_);
    const auto found = to_local((*cell_gradient_)(geometry_.cells().field(values)));
    const auto is_unknown = counts_.eq(0).logical_or(cell_gradient_->is_empty_row());
    return found.masked_fill(is_unknown.view({-1, 1, 1}), std::numeric_limits<double>::quiet_NaN());
}

at::Tensor FieldDerivatives::point_gradient(const at::Tensor& values)
{
    if (!point_gradient_) {
        point_gradient_ = green_gauss_gradient(geometry_);
        to_points_ = cells_to_points(geometry_);
    }
    const auto of_cells = to_local((*point_gradient_)(geometry_.points().field(values)));
    const auto counts = counts_.view({-1, 1, 1});
    const auto counted = of_cells.masked_fill(counts.eq(0), 0);
    // Both operators average over all cells around a point; the ratio is the mean over the cells that count.
    const auto sums = to_local((*to_points_)(geometry_.cells().field(counted))),
               shares = to_local((*to_points_)(geometry_.cells().field(counts)));
    return sums / shares;
}

at::Tensor FieldDerivatives::laplacian_of(const at::Tensor& values)
{
    if (!laplacian_) laplacian_ = laplacian(geometry_);
    const auto found = to_local((*laplacian_)(geometry_.cells().field(values)));
    const auto is_unknown = counts_.eq(0).logical_or(laplacian_->is_empty_row());
    return found.masked_fill(is_unknown.view({-1, 1}), std::numeric_limits<double>::quiet_NaN());
}

}  // namespace meshard
