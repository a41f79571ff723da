// SPDX-License-Identifier: Apache-2.0
#include "io/foam/patch_geometry.h"

#include "partition/mesh/vector_algebra.h"

#include <algorithm>
#include <utility>

namespace meshard {

PatchGeometry::PatchGeometry(const DataArray& points, const Csr& faces, std::span<const std::int32_t> owner,
                             std::span<const std::int32_t> neighbour, std::int64_t start, std::int64_t num_faces)
    : points_(points), faces_(faces), owner_(owner), neighbour_(neighbour), start_(start), num_faces_(num_faces)
{
}

std::span<const Vector3> PatchGeometry::normals()
{
    if (normals_.empty())
        for (std::int64_t i = 0; i < num_faces_; ++i) normals_.push_back(unit(shape_of(start_ + i).area));
    return normals_;
}

std::span<const double> PatchGeometry::distances()
{
    if (!distances_.empty() || num_faces_ == 0) return distances_;
    const auto normals_of_faces = normals();
    const auto centers = centers_behind();
    for (std::int64_t i = 0; i < num_faces_; ++i)
        distances_.push_back(dot(normals_of_faces[i], shape_of(start_ + i).center - centers[i]));
    return distances_;
}

Vector3 PatchGeometry::point(std::int32_t number) const
{
    return {points_.value(number, 0), points_.value(number, 1), points_.value(number, 2)};
}

// Uses triangles between the face's edges and the mean of its points.
PatchGeometry::FaceShape PatchGeometry::shape_of(std::int64_t face) const
{
    const auto row = faces_.row(face);
    Vector3 mean{};
    for (const std::int32_t p : row) add_scaled(mean, point(p), 1.0 / static_cast<double>(row.size()));
    FaceShape shape;
    for (std::size_t i = 0; i < row.size(); ++i) {
        const Vector3 a = point(row[i]), b = point(row[(i + 1) % row.size()]);
        add_scaled(shape.area, cross(b - a, mean - a), 0.5);
    }
    const Vector3 normal = unit(shape.area);
    double sum = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
        const Vector3 a = point(row[i]), b = point(row[(i + 1) % row.size()]);
        const double weight = dot(cross(b - a, mean - a), normal);
        add_scaled(shape.center, a + b + mean, weight / 3);
        sum += weight;
    }
    shape.center = sum > 0 ? (1 / sum) * shape.center : mean;
    return shape;
}

// Volume centroids, from pyramids between the faces of a cell and the mean of their centres.
std::vector<Vector3> PatchGeometry::centers_behind() const
{
    const auto is_patch_cell = [&](std::span<const std::int32_t> cells, std::int64_t face,
                                   const std::vector<std::int32_t>& slots) {
        return face < std::ssize(cells) && cells[face] < static_cast<std::int32_t>(slots.size()) ? slots[cells[face]]
                                                                                                 : -1;
    };
    const auto behind = owner_.subspan(start_, num_faces_);
    std::vector<std::int32_t> slots(static_cast<std::size_t>(*std::ranges::max_element(behind)) + 1, -1);
    std::int32_t num_slots = 0;
    for (const std::int32_t cell : behind)
        if (slots[cell] < 0) slots[cell] = num_slots++;
    std::vector<Vector3> means(num_slots), centers(means.size());
    std::vector<double> counts(means.size(), 0), volumes(means.size(), 0);
    for (const bool as_pyramids : {false, true})
        for (std::int64_t face = 0; face < faces_.num_rows(); ++face)
            for (const auto& [cells, sign] : {std::pair(owner_, 1.0), std::pair(neighbour_, -1.0)}) {
                const std::int32_t slot = is_patch_cell(cells, face, slots);
                if (slot < 0) continue;
                const FaceShape shape = shape_of(face);
                if (!as_pyramids) {
                    add_scaled(means[slot], shape.center, 1);
                    counts[slot] += 1;
                    continue;
                }
                const Vector3 mean = (1 / counts[slot]) * means[slot];
                const double volume = sign * dot(shape.area, shape.center - mean);
                add_scaled(centers[slot], 0.75 * shape.center + 0.25 * mean, volume);
                volumes[slot] += volume;
            }
    std::vector<Vector3> result;
    for (const std::int32_t cell : behind) {
        const std::int32_t slot = slots[cell];
        result.push_back(volumes[slot] > 0 ? (1 / volumes[slot]) * centers[slot] : (1 / counts[slot]) * means[slot]);
    }
    return result;
}

}  // namespace meshard
