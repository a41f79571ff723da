// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "sharding/parameters/gradient_norm.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace meshard {
namespace {

at::Tensor with_gradient(const at::Tensor& gradient)
{
    auto parameter = at::zeros_like(gradient).requires_grad_();
    parameter.mutable_grad() = gradient.clone();
    return parameter;
}

TEST(GradientNormOfParts, IsThatOfTheWholeAndScalesItDown)
{
    const auto whole = at::arange(30).sub(11).mul(0.3).to(at::kFloat);
    const auto expected = std::sqrt(whole.to(at::kDouble).square().sum().item<double>());
    for (const auto& extents : std::vector<std::vector<std::int64_t>>{{30}, {19, 11}, {17, 0, 13}}) {
        run_ranks(static_cast<int>(extents.size()), [&](const auto& mesh) {
            std::int64_t offset = 0;
            for (int r = 0; r < mesh->all().rank(); ++r) offset += extents[r];
            const auto part = whole.narrow(0, offset, extents[mesh->all().rank()]);
            const std::vector<at::Tensor> parameters{with_gradient(part), at::zeros({3}).requires_grad_()};

            const auto norm = gradient_norm(parameters, &mesh->all());
            EXPECT_NEAR(norm.template item<double>(), expected, 1e-13 * expected);
            scale_to_norm(parameters, norm, 5);
            EXPECT_TRUE(tensors_near(parameters[0].grad(), part * (5 / (expected + 1e-6)), 1e-6));
            const auto small = parameters[0].grad().clone();
            scale_to_norm(parameters, gradient_norm(parameters, &mesh->all()), 5.1);
            EXPECT_TRUE(at::equal(parameters[0].grad(), small));  // small enough: to the bit
        });
    }
}

TEST(GradientNormOfParts, OfWholeGradientsCountsThemOnce)
{
    run_ranks(2, [](const auto& mesh) {
        const std::vector<at::Tensor> parameters{with_gradient(at::full({4}, 3.0)),
                                                 with_gradient(at::full({2, 2}, 4.0))};
        EXPECT_NEAR(gradient_norm(parameters, nullptr).template item<double>(), 10, 1e-12);
        EXPECT_NEAR(gradient_norm(parameters, &mesh->all()).template item<double>(), 10 * std::sqrt(2), 1e-12);
    });
    EXPECT_EQ(gradient_norm({at::zeros({3}).requires_grad_()}, nullptr).item<double>(), 0);
    EXPECT_FALSE(std::isfinite(
        gradient_norm({with_gradient(at::full({2}, std::numeric_limits<float>::infinity()))}, nullptr).item<double>()));
    EXPECT_THROW(scale_to_norm({}, at::ones({}, at::kDouble), 0), InvalidInput);
}

}  // namespace
}  // namespace meshard
