// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <span>

namespace meshard {

/// A mesh whose cells are read on demand, so that it may be in a file that is larger than memory.
class StoredMesh {
public:
    virtual ~StoredMesh() = default;

    /// The mesh without its cells: points, arrays and kind.
    virtual const Mesh& rest() const = 0;

    virtual std::int64_t num_cells() const = 0;

    /// Number of entries of all cells: points, and for polyhedra also face streams.
    virtual std::int64_t num_cell_entries() const = 0;

    /// Reads the given cells, in that order: point indices are those of the whole mesh, and `points` has all of its
    /// points. Without arrays.
    /// @throws IoError naming the first cell that is damaged.
    virtual Mesh cells(std::span<const std::int32_t> cells) const = 0;

    /// Releases memory whose content can be read again.
    virtual void release_pages() const {}

    std::int64_t num_points() const { return rest().num_points(); }
    bool is_point_cloud() const { return num_cells() == 0; }

    /// Number of rows that a partition cuts: cells, or the points of a cloud.
    std::int64_t num_rows() const { return is_point_cloud() ? num_points() : num_cells(); }
};

/// A mesh in memory.
class HeldMesh : public StoredMesh {
public:
    explicit HeldMesh(Mesh mesh);

    const Mesh& rest() const override { return rest_; }
    std::int64_t num_cells() const override { return cells_.num_rows(); }
    std::int64_t num_cell_entries() const override { return cells_.num_entries() + face_streams_.num_entries(); }
    Mesh cells(std::span<const std::int32_t> cells) const override;

private:
    Mesh rest_;
    Csr cells_, face_streams_;
    std::vector<std::uint8_t> cell_types_;
};

}  // namespace meshard
