// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/cloud_interpolation.h"

#include "ops/neighbors/neighbor_request.h"
#include "ops/rows/segment_reduce.h"
#include "partition/error.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace meshard {
namespace {

constexpr const char* kWhere = "CloudInterpolation";

/// Weights of the neighbours of one target, from distances in ascending order.
void weigh(const double* distances, std::int64_t count, double power, double* weights)
{
    const auto num_here = std::count(distances, distances + count, 0.0);
    double sum = 0;
    for (std::int64_t e = 0; e < count; ++e) {
        // Distances relative to the nearest one, so that no power overflows.
        weights[e] = num_here > 0 ? static_cast<double>(e < num_here) : std::pow(distances[0] / distances[e], power);
        sum += weights[e];
    }
    for (std::int64_t e = 0; e < count; ++e) weights[e] /= sum;
}

}  // namespace

CloudInterpolation::CloudInterpolation(const at::Tensor& sources, const at::Tensor& targets,
                                       const InterpolationOptions& options)
{
    std::string error;
    if (!(options.power > 0)) error = fmt::format("{}: the power is {:f}; it must be positive.", kWhere, options.power);
    if (sources.dim() > 0 && sources.size(0) == 0)
        error = std::string(kWhere) + ": there are no points to interpolate from.";
    // Makes the other ranks throw at the start of their search.
    if (!error.empty()) throw_together(error, search_group(sources, targets));
    const at::NoGradGuard no_grad;
    targets_ = cut_rows_of(kWhere, "targets", targets);
    targets_.own = at::Tensor();  // only the layout is needed
    neighbors_ = knn(sources, targets, options.num_neighbors);
    const auto offsets = neighbors_.offsets.cpu(),
               distances = neighbors_.distances.to(at::kCPU, at::kDouble).contiguous();
    const auto* offset = offsets.const_data_ptr<std::int64_t>();
    auto weights = at::empty_like(distances);
    for (std::int64_t i = 0; i + 1 < offsets.numel(); ++i) {
        weigh(distances.const_data_ptr<double>() + offset[i], offset[i + 1] - offset[i], options.power,
              weights.mutable_data_ptr<double>() + offset[i]);
    }
    weights_ = weights.to(neighbors_.distances.device());
}

at::Tensor CloudInterpolation::operator()(const at::Tensor& values) const
{
    const auto rows = gather_neighbors(values, neighbors_);
    std::vector<std::int64_t> shape(rows.dim(), 1);
    shape[0] = rows.size(0);
    return targets_.like(
        segment_reduce(rows * weights_.to(rows.scalar_type()).view(shape), neighbors_.offsets, SegmentReduction::Sum)
            .values);
}

}  // namespace meshard
