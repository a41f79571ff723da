// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/ghosts/subdomain.h"
#include "partition/mesh/cell_geometry.h"
#include "sharding/exchange/exchange_plan.h"
#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace meshard {

/// How the fields of a mesh's cells or points lie.
struct FieldLayout {
    const char* what = "cells";  ///< or points
    std::int64_t num_owned = 0, num_global = 0;
    SpecPtr layout;                            ///< null for a whole mesh
    std::shared_ptr<const ExchangePlan> plan;  ///< the same

    /// Own rows, (owned, ...), as a tensor that lies so; the tensor itself for a whole mesh.
    at::Tensor field(const at::Tensor& own) const;

    /// Own rows of a field, plain. @throws InvalidInput, beginning with `where`, if the field does not lie so
    at::Tensor own_rows(const char* where, const at::Tensor& field) const;
};

/// A mesh, whole or this rank's subdomain, with its measures and the ways between ranks: what operators on its fields are made from (mesh_operators.h).
///
/// Fields of a whole mesh are plain tensors with a row a cell or point. Fields of a subdomain are cut along their rows as the subdomain's owned cells
/// or points are; `FieldLayout::field` makes them.
class MeshGeometry {
public:
    /// @throws InvalidInput for cells whose faces nobody can know
    explicit MeshGeometry(Mesh mesh);

    /// Part r of the mesh on rank r of the axis `domain`. Collective over that axis.
    /// @throws InvalidInput on every rank if a part is not its rank's, the parts do not make up a mesh, several parts have no ghost layer, or a cell's
    ///         faces are not known
    MeshGeometry(Subdomain part, const std::shared_ptr<const DeviceMesh>& device_mesh);

    const Mesh& mesh() const { return part_.mesh; }             ///< of a subdomain with its ghosts
    const CellMeasures& measures() const { return measures_; }  ///< of all local cells
    const IndexMap& cell_ids() const { return part_.cells; }
    const IndexMap& point_ids() const { return part_.points; }
    const FieldLayout& cells() const { return cells_; }
    const FieldLayout& points() const { return points_; }

    // Fields of the cells, in double precision.
    at::Tensor sizes() const;         ///< (cells): length, area or volume
    at::Tensor centroids() const;     ///< (cells, 3)
    at::Tensor area_vectors() const;  ///< (cells, 3): area times normal of polygons, zero of others
    at::Tensor normals() const;       ///< (cells, 3): of polygons, of unit length; zero of others

private:
    at::Tensor vector_field(const std::vector<Vector3>& values) const;

    Subdomain part_;
    CellMeasures measures_;
    FieldLayout cells_, points_;
};

}  // namespace meshard
