// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/fields/mesh_fields.h"
#include "ops/fields/mesh_operators.h"
#include "partition/mesh/mesh.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace meshard {

/// Quantities derived from a field u of a mesh. J is its gradient: row c, column k is the derivative of component c
/// along axis k.
enum class Quantity : std::uint8_t {
    Gradient,    ///< J row by row
    Divergence,  ///< trace of J, for vectors
    Vorticity,   ///< curl, for vectors
    /// (|W|^2 - |S|^2) / 2 for vectors, with the symmetric part S and the antisymmetric part W of J (Hunt, Wray and
    /// Moin 1988)
    QCriterion,
    Laplacian  ///< sum of fluxes between neighbours, for each component of a cell field
};

/// Returns the name of the array, as in ParaView's filter Gradient.
const char* name_of(Quantity quantity);

struct Derivation {
    Quantity quantity = Quantity::Gradient;
    FieldPlace place = FieldPlace::Points;  ///< where the field and the result have values
    std::string field;
    std::string result;  ///< name of the result's array
};

/// Returns the highest dimension of the mesh's cells, over which derivatives are computed; -1 for a cloud.
int top_dimension(const Mesh& mesh);

/// Checks that these fields can be derived on this mesh.
/// @throws InvalidInput, beginning with `where`: no polygons or solids, strips of triangles, vorticity or Q on a
///         surface that is not plane, a quantity of vectors for a field without three components, texts, the Laplacian
///         of a point field
void require_derivable(const Mesh& mesh, std::span<const Derivation> derivations, std::string_view where);

/// Derives fields of one mesh, or of this rank's part of one. Gradients of cell fields are least squares fits to the
/// neighbours. Gradients of point fields average the mean gradients of the cells around each point. Cells below the
/// mesh's highest dimension are not used and get NaN, and so do points that no other cell uses, and cells without
/// neighbours.
class FieldDerivatives {
public:
    /// @param top_dimension   highest dimension of the whole mesh's cells
    FieldDerivatives(const MeshGeometry& geometry, int top_dimension, GradientNeighbors neighbors);

    /// Returns this rank's rows of the result, (rows, components), from this rank's rows of the mesh's array.
    /// Collective.
    at::Tensor operator()(const Derivation& derivation);

private:
    const at::Tensor& gradient(const Derivation& derivation);
    at::Tensor cell_gradient(const at::Tensor& values);
    at::Tensor point_gradient(const at::Tensor& values);
    at::Tensor laplacian_of(const at::Tensor& values);
    at::Tensor values_of(const Derivation& derivation) const;

    const MeshGeometry& geometry_;
    GradientNeighbors neighbors_;
    at::Tensor counts_;  ///< (cells): 1 for own cells of the highest dimension with a size above 0, otherwise 0
    std::optional<MeshOperator> cell_gradient_, point_gradient_, to_points_, laplacian_;
    std::map<std::pair<FieldPlace, std::string>, at::Tensor> gradients_;
};

}  // namespace meshard
