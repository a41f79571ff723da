// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/tile_math.h"

#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace meshard {
namespace {

constexpr double kRounding = 2e-7;  // some units in the last place of a single-precision 1

std::vector<float> wave(std::size_t count, float height)
{
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = height * std::sin(0.37F * static_cast<float>(i) + 0.1F);
    return values;
}

double phi(double x)
{
    return 0.5 * std::erfc(-x / std::sqrt(2.0));
}

TEST(TileMath, GeluAndItsSlopeAreThoseOfTheNormalDistribution)
{
    for (const float height : {0.1F, 2.0F, 7.0F, 60.0F}) {
        const auto x = wave(1001, height);  // no multiple of a vector's length
        std::vector<float> y(x.size()), again(x.size()), slope(x.size(), 1.0F);

        gelu(y.data(), x.data(), static_cast<std::int64_t>(x.size()));
        gelu_backward(slope.data(), again.data(), x.data(), static_cast<std::int64_t>(x.size()));

        for (std::size_t i = 0; i < x.size(); ++i) {
            const double v = x[i], density = std::exp(-0.5 * v * v) / std::sqrt(2 * M_PI);
            ASSERT_NEAR(y[i], v * phi(v), kRounding * std::max(1.0, std::fabs(v))) << v;
            ASSERT_EQ(again[i], y[i]);
            ASSERT_NEAR(slope[i], phi(v) + v * density, 4 * kRounding) << v;
        }
    }
}

TEST(TileMath, GeluHandsNanOn)
{
    std::vector<float> x(33, 1.0F), y(33);
    x[7] = x[32] = std::numeric_limits<float>::quiet_NaN();

    gelu(y.data(), x.data(), 33);

    EXPECT_TRUE(std::isnan(y[7]) && std::isnan(y[32]));
    EXPECT_FALSE(std::isnan(y[8]));
}

TEST(TileMath, SoftmaxRowsEqualsItsFormulaAndSumsToOne)
{
    for (const float height : {1.0F, 30.0F, 500.0F}) {
        constexpr std::int64_t kRows = 7, kPoints = 101;  // more than one strip
        const auto logits = wave(kRows * kPoints, height);
        auto weights = logits;

        softmax_rows(weights.data(), kRows, kPoints);

        for (std::int64_t t = 0; t < kPoints; ++t) {
            double largest = logits[t], sum = 0;
            for (std::int64_t r = 0; r < kRows; ++r) largest = std::max<double>(largest, logits[r * kPoints + t]);
            for (std::int64_t r = 0; r < kRows; ++r) sum += std::exp(logits[r * kPoints + t] - largest);
            for (std::int64_t r = 0; r < kRows; ++r)
                ASSERT_NEAR(weights[r * kPoints + t], std::exp(logits[r * kPoints + t] - largest) / sum, 2 * kRounding);
        }
    }
}

TEST(TileMath, SoftmaxRowsBackwardEqualsItsFormula)
{
    constexpr std::int64_t kRows = 7, kPoints = 101;
    const auto g = wave(kRows * kPoints, 2);
    auto weights = wave(kRows * kPoints, 3);
    softmax_rows(weights.data(), kRows, kPoints);
    auto of_logits = g;

    softmax_rows_backward(of_logits.data(), weights.data(), kRows, kPoints);

    for (std::int64_t t = 0; t < kPoints; ++t) {
        double mean = 0;
        for (std::int64_t r = 0; r < kRows; ++r)
            mean += static_cast<double>(weights[r * kPoints + t]) * g[r * kPoints + t];
        for (std::int64_t r = 0; r < kRows; ++r)
            ASSERT_NEAR(of_logits[r * kPoints + t], weights[r * kPoints + t] * (g[r * kPoints + t] - mean),
                        4 * kRounding);
    }
}

TEST(TileMath, LayerNormEqualsItsFormula)
{
    constexpr std::int64_t kChannels = 19;
    constexpr double kEpsilon = 1e-5;
    for (const std::int64_t num_points : {1, 4, 11}) {  // points go by fours, the last ones alone
        const auto x = wave(num_points * kChannels, 3), scale = wave(kChannels, 2), shift = wave(kChannels, 1);
        std::vector<float> y(x.size()), mean(num_points), inverse(num_points);

        layer_norm(y.data(), mean.data(), inverse.data(), x.data(), scale.data(), shift.data(), num_points, kChannels,
                   kEpsilon);

        for (std::int64_t t = 0; t < num_points; ++t) {
            double sum = 0, squares = 0;
            for (std::int64_t c = 0; c < kChannels; ++c) sum += x[t * kChannels + c];
            for (std::int64_t c = 0; c < kChannels; ++c) squares += std::pow(x[t * kChannels + c] - sum / kChannels, 2);
            const auto scaled = 1 / std::sqrt(squares / kChannels + kEpsilon);
            EXPECT_NEAR(mean[t], sum / kChannels, 4 * kRounding);
            EXPECT_NEAR(inverse[t], scaled, 4 * kRounding * scaled);
            for (std::int64_t c = 0; c < kChannels; ++c) {
                ASSERT_NEAR(y[t * kChannels + c],
                            (x[t * kChannels + c] - sum / kChannels) * scaled * scale[c] + shift[c], 16 * kRounding)
                    << num_points << " points, point " << t;
            }
        }
    }
}

TEST(TileMath, BothWidthsAgreeOnLayerNormAndItsGradient)
{
    constexpr std::int64_t kPoints = 5, kChannels = 19;
    const auto x = wave(kPoints * kChannels, 3), g = wave(kPoints * kChannels, 1), scale = wave(kChannels, 2),
               shift = wave(kChannels, 1);
    const auto run = [&]<class T>(T) {
        const std::vector<T> xs(x.begin(), x.end()), gs(g.begin(), g.end()), scales(scale.begin(), scale.end()),
            shifts(shift.begin(), shift.end());
        std::vector<T> mean(kPoints), inverse(kPoints), y(x.size()), of_x(x.size()), of_scale(kChannels),
            of_shift(kChannels);
        layer_norm(y.data(), mean.data(), inverse.data(), xs.data(), scales.data(), shifts.data(), kPoints, kChannels,
                   1e-5);
        layer_norm_backward(of_x.data(), of_scale.data(), of_shift.data(), gs.data(), xs.data(), mean.data(),
                            inverse.data(), scales.data(), kPoints, kChannels);
        std::vector<double> all(y.begin(), y.end());
        for (const auto* part : {&of_x, &of_scale, &of_shift}) all.insert(all.end(), part->begin(), part->end());
        return all;
    };

    const auto single = run(float()), twice = run(double());

    for (std::size_t i = 0; i < twice.size(); ++i)
        EXPECT_NEAR(single[i], twice[i], 1e-5 * std::max(1.0, std::fabs(twice[i])));
}

TEST(TileMath, Bfloat16IsThatOfLibTorch)
{
    std::vector<float> x;
    for (std::uint32_t high = 0; high < 0x10000; high += 3) {
        for (const std::uint32_t low : {0x0000U, 0x0001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU})
            x.push_back(std::bit_cast<float>(high << 16 | low));  // ties, NaN and infinities too
    }
    std::vector<std::uint16_t> y(x.size());
    std::vector<float> back(x.size());

    to_bfloat16(y.data(), x.data(), static_cast<std::int64_t>(x.size()));
    from_bfloat16(back.data(), y.data(), static_cast<std::int64_t>(x.size()));

    for (std::size_t i = 0; i < x.size(); ++i) {
        const c10::BFloat16 expected(x[i]);
        if (std::isnan(x[i])) {
            ASSERT_TRUE(std::isnan(back[i])) << i;
            continue;
        }
        ASSERT_EQ(y[i], expected.x) << x[i];
        ASSERT_EQ(back[i], static_cast<float>(expected)) << x[i];
    }
}

}  // namespace
}  // namespace meshard
