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

/// Layout of fields on the cells, or on the points, of a mesh.
struct FieldLayout {
    const char* what = "cells";  ///< "cells" or "points", for messages
    std::int64_t num_owned = 0, num_global = 0;
    SpecPtr layout;                            ///< layout of sharded fields; null for a whole mesh
    std::shared_ptr<const ExchangePlan> plan;  ///< exchanges the ghosts of sharded fields; null for a whole mesh

    /// Makes a tensor with this layout from the owned rows, (owned, ...); for a whole mesh returns the argument itself.
    at::Tensor field(const at::Tensor& own) const;

    /// The owned rows of a field, as a plain tensor. @throws InvalidInput with a message that begins with `where`, if
    /// the field has another layout
    at::Tensor own_rows(const char* where, const at::Tensor& field) const;
};

/// A mesh, whole or this rank's subdomain, with sizes and centroids of its cells and the exchange plans of its fields.
/// Input of mesh_operators.h.
///
/// Fields of a whole mesh are plain tensors with one row for each cell or point. Fields of a subdomain are sharded
/// along their rows: each rank holds the rows of its owned cells or points. `FieldLayout::field` makes them.
class MeshGeometry {
public:
    /// @throws InvalidInput for cells of a type whose faces are unknown
    explicit MeshGeometry(Mesh mesh);

    /// Part r of the mesh on rank r of the axis `domain`. Collective over that axis.
    /// @throws InvalidInput on every rank if a rank has another rank's part, the parts are not those of one mesh, there
    ///         are several parts without a ghost layer, or the faces of a cell's type are unknown
    MeshGeometry(Subdomain part, const std::shared_ptr<const DeviceMesh>& device_mesh);

    const Mesh& mesh() const { return part_.mesh; }             ///< with the ghosts of a subdomain
    const CellMeasures& measures() const { return measures_; }  ///< for all local cells, ghosts included
    const IndexMap& cell_ids() const { return part_.cells; }
    const IndexMap& point_ids() const { return part_.points; }
    const FieldLayout& cells() const { return cells_; }
    const FieldLayout& points() const { return points_; }

    // Fields on the cells, in double precision.
    at::Tensor sizes() const;         ///< (cells): length, area or volume
    at::Tensor centroids() const;     ///< (cells, 3)
    at::Tensor area_vectors() const;  ///< (cells, 3): area times normal of polygons, zero for other cells
    at::Tensor normals() const;       ///< (cells, 3): unit normals of polygons, zero for other cells

private:
    at::Tensor vector_field(const std::vector<Vector3>& values) const;

    Subdomain part_;
    CellMeasures measures_;
    FieldLayout cells_, points_;
};

}  // namespace meshard
