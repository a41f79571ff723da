// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/cloud_interpolation.h"

#include "ops/neighbors/neighbor_request.h"
#include "ops/rows/segment_reduce.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <string>
#include <vector>

namespace meshard {
namespace {

constexpr const char* kWhere = "CloudInterpolation";

/// Weights of each target's neighbours, of which at least one is: their sum is 1.
at::Tensor weights_of(const Neighbors& neighbors, double power)
{
    const auto& offsets = neighbors.offsets;
    const auto counts = offsets.diff();
    const auto for_entries = [&](const at::Tensor& of_targets) { return of_targets.repeat_interleave(counts, 0); };
    const auto distances = neighbors.distances.to(at::kDouble);
    const auto nearest = for_entries(distances.index_select(0, offsets.narrow(0, 0, counts.size(0))));
    const auto is_here = distances == 0;
    const auto positive = [](const at::Tensor& x) { return at::where(x > 0, x, at::ones_like(x)); };
    // Distances relative to the nearest one, so that no power overflows.
    const auto weights =
        at::where(nearest > 0, (positive(nearest) / positive(distances)).pow(power), is_here.to(at::kDouble));
    return weights / for_entries(segment_reduce(weights, offsets, SegmentReduction::Sum).values);
}

}  // namespace

CloudInterpolation::CloudInterpolation(const at::Tensor& sources, const at::Tensor& targets,
                                       const InterpolationOptions& options)
{
    std::string error;
    if (!(options.power > 0)) error = fmt::format("{}: the power is {}; it must be positive.", kWhere, options.power);
    if (sources.dim() > 0 && sources.size(0) == 0)
        error = std::string(kWhere) + ": there are no points to interpolate from.";
    // Makes the other ranks throw at the start of their search.
    if (!error.empty()) throw_together(error, search_group(sources, targets));
    targets_ = cut_rows_of(kWhere, "targets", targets);
    targets_.own = at::Tensor();  // only the layout is needed
    neighbors_ = knn(sources, targets, options.num_neighbors);
    weights_ = weights_of(neighbors_, options.power);
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
