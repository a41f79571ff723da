// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/mesh/data_array.h"
#include "partition/mesh/surface_geometry.h"

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// Geometry of the faces of a patch that boundary conditions need, computed as in OpenFOAM, on first use.
class PatchGeometry {
public:
    /// The geometry of `num_faces` faces from `start` on; the arguments must outlive it. `owner` and `neighbour` are
    /// the cells of each face.
    PatchGeometry(const DataArray& points, const Csr& faces, std::span<const std::int32_t> owner,
                  std::span<const std::int32_t> neighbour, std::int64_t start, std::int64_t num_faces);

    /// Unit normals out of the mesh, one for each face.
    std::span<const Vector3> normals();

    /// Distance along its normal from the centre of the cell behind each face to the face.
    std::span<const double> distances();

private:
    struct FaceShape {
        Vector3 center{}, area{};  // area: normal times area
    };
    Vector3 point(std::int32_t number) const;
    FaceShape shape_of(std::int64_t face) const;
    std::vector<Vector3> centers_behind() const;

    const DataArray& points_;
    const Csr& faces_;
    std::span<const std::int32_t> owner_, neighbour_;
    std::int64_t start_, num_faces_;
    std::vector<Vector3> normals_;
    std::vector<double> distances_;
};

}  // namespace meshard
