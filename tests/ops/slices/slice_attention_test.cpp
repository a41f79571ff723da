// SPDX-License-Identifier: Apache-2.0
// Slices by LibTorch's attention against the kernels' reference, which adds up point by point.
#include "ops/slices/slice_attention.h"
#include "tests/support/expect_tensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

struct Shape {
    std::int64_t points, heads, slices, head_dim;
};

class SliceAttention : public testing::TestWithParam<Shape> {};

TEST_P(SliceAttention, EqualsTheKernels)
{
    const auto& [n, H, S, D] = GetParam();
    at::manual_seed(n);
    const auto draw = [](at::IntArrayRef shape) { return at::randn(shape, at::kDouble); };
    const auto x = draw({n, H * D}), slices = draw({H, S, D}), bias = draw({H, S}), features = draw({n, H * D}), states = draw({H, S, D}),
               sums_gradient = draw({H, S, D + 1}), mixed_gradient = draw({n, H * D});
    const SlicePoints reference(x, slices, bias);

    const AttendedSlices attended(x, slices, bias);

    EXPECT_TRUE(tensors_near(attended.sums(features), reference.sums(features), 1e-11));
    EXPECT_TRUE(tensors_near(attended.deslice(states), reference.deslice(states), 1e-12));
    const auto found = attended.backward(features, states, sums_gradient, mixed_gradient),
               expected = reference.backward(features, states, sums_gradient, mixed_gradient);
    EXPECT_TRUE(tensors_near(found.x, expected.x, 1e-11));
    EXPECT_TRUE(tensors_near(found.features, expected.features, 1e-11));
    EXPECT_TRUE(tensors_near(found.slices, expected.slices, 1e-11));
    EXPECT_TRUE(tensors_near(found.bias, expected.bias, 1e-11));
}

INSTANTIATE_TEST_SUITE_P(Shapes, SliceAttention,
                         testing::Values(Shape{1, 1, 1, 1}, Shape{5, 2, 3, 4}, Shape{512, 3, 7, 8}, Shape{513, 2, 5, 31}, Shape{1601, 4, 33, 16},
                                         Shape{700, 1, 6, 120}));

TEST(SliceAttentionInHalfPrecision, AddsManyPointsWithoutLosingThem)
{
    constexpr std::int64_t kPoints = 40000, kSlices = 4, kDim = 8;
    at::manual_seed(2);
    const auto x = at::randn({kPoints, kDim}), features = at::rand({kPoints, kDim}), slices = at::randn({1, kSlices, kDim}), bias = at::zeros({1, kSlices});
    const auto rounded = [](const at::Tensor& values) { return values.to(at::kBFloat16); };
    const auto widened = [&](const at::Tensor& values) { return rounded(values).to(at::kDouble); };

    const auto found = AttendedSlices(rounded(x), slices, bias).sums(rounded(features));

    // Added in bfloat16 one after the other, 40,000 numbers of about 1 would stay near 256.
    const auto weights = at::softmax(at::matmul(widened(x), widened(slices)[0].t()), 1);
    const auto expected = at::cat({at::matmul(weights.t(), widened(features)), weights.sum(0).unsqueeze(1)}, 1).unsqueeze(0);
    EXPECT_LT(((found - expected).abs() / expected.abs()).max().item<double>(), 0.01);
}

}  // namespace
}  // namespace meshard
