// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/shape_numbers.h"

#include "apps/learning/evaluation/case_sums.h"
#include "partition/mesh/vector_algebra.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>

namespace meshard {
namespace {

/// Returns the axis nearest to a direction.
int nearest_axis(const Vector3& direction)
{
    int nearest = 0;
    for (int c = 1; c < 3; ++c) {
        if (std::abs(direction[c]) > std::abs(direction[nearest])) nearest = c;
    }
    return nearest;
}

}  // namespace

void ShapeSums::add(const Vector3& vector, const Vector3& place)
{
    const auto area = norm(vector);
    if (!(area > 0)) return;
    for (int axis = 0; axis < 3; ++axis) {
        const auto seen = std::abs(vector[axis]);
        auto* const to = numbers.data() + (2 * axis + (vector[axis] > 0)) * kOfFacing;
        to[0] += seen;
        for (int c = 0; c < 3; ++c) {
            to[1 + c] += seen * vector[c] / area;
            to[4 + c] += seen * std::abs(vector[c]) / area;
        }
        to[7] += seen * place[axis];
    }
}

ShapeSums shape_sums(const Mesh& mesh, const RankGroup& group)
{
    ShapeSums sums;
    const auto rows = row_geometry(mesh, true);
    for (std::size_t at = 0; at < rows.size(); at += kGeometryColumns) {
        const auto* row = rows.data() + at;
        sums.add({row[0], row[1], row[2]}, {row[3], row[4], row[5]});
    }
    auto all = torch::from_blob(sums.numbers.data(), {ShapeSums::kNumbers}, torch::kDouble).clone();
    group.all_reduce(all);
    std::copy_n(all.const_data_ptr<double>(), ShapeSums::kNumbers, sums.numbers.begin());
    return sums;
}

std::optional<std::vector<double>> shape_numbers(const ShapeSums& shape, const ForceSums& forces,
                                                 const std::array<double, 6>& bounds, const FlowReference& flow)
{
    const auto along = nearest_axis(flow.drag), up = nearest_axis(flow.lift), aside = 3 - along - up;
    if (along == up) return std::nullopt;
    const auto outward = signs_of(forces, flow.drag).normal;  // sign of the area vectors
    const bool flows_up_the_axis = flow.drag[along] > 0;
    const auto sign_of_lift = flow.lift[up] > 0 ? 1.0 : -1.0;
    const auto extent = [&](int axis) { return bounds[2 * axis + 1] - bounds[2 * axis]; };
    const auto height = extent(up);

    std::vector<double> numbers;
    double seen = 0;
    for (const bool is_rear : {false, true}) {
        const bool points_up_the_axis = is_rear == flows_up_the_axis;
        const auto* const sums =
            shape.numbers.data() + (2 * along + (points_up_the_axis == (outward > 0))) * ShapeSums::kOfFacing;
        if (!(sums[0] > 0) || !(height > 0)) return std::nullopt;
        seen += sums[0] / 2;
        const auto end = points_up_the_axis ? bounds[2 * along + 1] : bounds[2 * along];
        numbers.insert(numbers.end(), {sums[4 + along] / sums[0], outward * sign_of_lift * sums[1 + up] / sums[0],
                                       sums[4 + aside] / sums[0], std::abs(end - sums[7] / sums[0]) / height});
    }
    const auto lowest = sign_of_lift > 0 ? bounds[2 * up] : -bounds[2 * up + 1];
    numbers.insert(numbers.end(),
                   {extent(along) / height, extent(aside) / height, lowest / height, forces.area / seen});
    return numbers;
}

}  // namespace meshard
