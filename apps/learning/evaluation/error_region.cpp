// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/error_region.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>

namespace meshard {

std::string ErrorRegion::text(bool on_cells) const
{
    return fmt::format("{:.0f} % of its squared error lies in {:.2g} % of its {}, x {:.4g} to {:.4g}, y {:.4g} to "
                       "{:.4g}, z {:.4g} to {:.4g}",
                       100 * error_share, 100 * row_share, on_cells ? "cells" : "points", bounds[0], bounds[1],
                       bounds[2], bounds[3], bounds[4], bounds[5]);
}

std::vector<ErrorRegion> error_regions(const at::Tensor& prediction, const at::Tensor& truth,
                                       const at::Tensor& geometry, const JudgedFields& layout,
                                       const std::array<double, 6>& bounds, const RankGroup& group)
{
    constexpr auto num_boxes = kRegionsAlong * kRegionsAlong * kRegionsAlong;
    const auto num_fields = std::ssize(layout.fields);
    const auto width = [&](std::int64_t axis) { return (bounds[2 * axis + 1] - bounds[2 * axis]) / kRegionsAlong; };
    auto box = torch::zeros({truth.size(0)}, torch::kLong);
    for (std::int64_t axis = 0; axis < 3; ++axis) {
        const auto along = (geometry.select(1, 3 + axis) - bounds[2 * axis]) / std::max(width(axis), 1e-300);
        box = box * kRegionsAlong + along.floor().clamp(0, kRegionsAlong - 1).to(torch::kLong);
    }
    // The sums are a row of squared errors for each field, and last the number of rows.
    auto sums = torch::zeros({num_fields + 1, num_boxes}, torch::kDouble);
    const auto squares = (prediction.to(torch::kDouble) - truth.to(torch::kDouble)).square();
    std::int64_t channel = 0;
    for (std::int64_t f = 0; f < num_fields; ++f) {
        sums[f].scatter_add_(0, box, squares.narrow(1, channel, layout.channels[f]).sum(1));
        channel += layout.channels[f];
    }
    sums[num_fields] = torch::bincount(box, {}, num_boxes).to(torch::kDouble);
    group.all_reduce(sums);

    std::vector<ErrorRegion> regions;
    const auto totals = sums.sum(1);
    for (std::int64_t f = 0; f < num_fields; ++f) {
        const auto worst = sums[f].argmax().item<std::int64_t>();
        const std::array places{worst / (kRegionsAlong * kRegionsAlong), worst / kRegionsAlong % kRegionsAlong,
                                worst % kRegionsAlong};
        ErrorRegion region;
        for (std::int64_t axis = 0; axis < 3; ++axis) {
            region.bounds[2 * axis] = bounds[2 * axis] + width(axis) * static_cast<double>(places[axis]);
            region.bounds[2 * axis + 1] = region.bounds[2 * axis] + width(axis);
        }
        const auto of_all = totals[f].item<double>();
        region.error_share = of_all > 0 ? sums[f][worst].item<double>() / of_all : 0;
        region.row_share = sums[num_fields][worst].item<double>() / std::max(totals[num_fields].item<double>(), 1.0);
        regions.push_back(region);
    }
    return regions;
}

}  // namespace meshard
