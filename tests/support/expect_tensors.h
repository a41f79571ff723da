// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {

/// Same shape and type, and |found - expected| <= tolerance * max(|expected|) everywhere (of all zeros: <= tolerance).
/// The message names the place that differs most.
inline ::testing::AssertionResult tensors_near(const at::Tensor& found, const at::Tensor& expected, double tolerance)
{
    const at::NoGradGuard no_grad;
    if (found.defined() != expected.defined()) {
        return ::testing::AssertionFailure()
               << (found.defined() ? "found a tensor, expected none" : "found no tensor, expected one");
    }
    if (!found.defined()) return ::testing::AssertionSuccess();
    if (found.sizes() != expected.sizes()) {
        return ::testing::AssertionFailure() << "shape " << found.sizes() << ", expected " << expected.sizes();
    }
    if (found.scalar_type() != expected.scalar_type()) {
        return ::testing::AssertionFailure()
               << "type " << found.scalar_type() << ", expected " << expected.scalar_type();
    }
    if (found.numel() == 0) return ::testing::AssertionSuccess();
    const auto f = found.to(at::kDouble).contiguous().view({-1}), e = expected.to(at::kDouble).contiguous().view({-1});
    const auto difference = (f - e).abs();
    // NaN and infinity must stand in the same places.
    const auto same_special = at::logical_or(f.eq(e), at::logical_and(f.isnan(), e.isnan()));
    const auto effective = at::where(same_special, at::zeros_like(difference), difference);
    const auto worst = effective.argmax().item<std::int64_t>();
    const auto finite = e.masked_select(e.isfinite());
    const auto scale = finite.numel() > 0 ? finite.abs().max().item<double>() : 0.0;
    const auto error = effective[worst].item<double>();
    if (error <= tolerance * (scale > 0 ? scale : 1.0)) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "at flat index " << worst << " of shape " << expected.sizes() << ": found "
                                         << f[worst].item<double>() << ", expected " << e[worst].item<double>()
                                         << "; relative to the largest value " << scale << " the error is "
                                         << error / (scale > 0 ? scale : 1.0) << ", allowed " << tolerance;
}

}  // namespace meshard
