// SPDX-License-Identifier: Apache-2.0
#include "models/registry/case_bodies.h"

#include "partition/error.h"

#include <torch/types.h>

#include <string>

namespace meshard {

BodyTriangles triangles_of(const CaseBody& body)
{
    const auto corners = body.vertices.to(at::kCPU, at::kDouble).index({body.triangles.flatten()}).view({-1, 3, 3});
    const auto normals =
        torch::linalg_cross(corners.select(1, 1) - corners.select(1, 0), corners.select(1, 2) - corners.select(1, 0));
    return {corners, torch::linalg_vector_norm(normals, 2, at::IntArrayRef{-1}) / 2};
}

void require_one_body(const char* model, const PointInputs& points)
{
    const auto start = std::string(model) + ": ";
    if (!points.body)
        throw InvalidInput("{}the case has no body, of whose geometry it is told. Name its surface with data.wall.",
                           start);
    if (points.positions.size(0) != 1)
        throw InvalidInput("{}a batch of {} cases, of which each has its body. Pass the cases one by one.", start,
                           points.positions.size(0));
}

}  // namespace meshard
