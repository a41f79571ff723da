// SPDX-License-Identifier: Apache-2.0
// The kernels for tensor cores on the host, the same source as on a GPU, against plain loops in double precision. With
// several warps a block, which then are threads, pairs of heads, and tables that come in chunks.
#include "ops/cuda/row_tiles.h"
#include "ops/cuda/tile_kernels.h"
#include "tests/support/slice_oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace meshard::tiles {
namespace {

struct TileCase {
    SliceSizes sizes;
    HostForm form;
    bool warm = false;
};

template <TileMath M>
void expect_as_in_double(const TileCase& made, double limit)
{
    using T = typename Storage<M>::type;
    const auto& s = made.sizes;
    const HostExecutor executor{.form = made.form};
    std::mt19937 generator(3);
    const auto random = [&](auto number, std::int64_t size, float scale) {
        std::normal_distribution<float> normal(0, scale);
        std::vector<decltype(number)> numbers(static_cast<std::size_t>(size));
        for (auto& each : numbers) assign(each, normal(generator));
        return numbers;
    };
    const auto doubles = [](const auto& numbers) {
        std::vector<double> wide;
        for (const auto& each : numbers) wide.push_back(to_float(each));
        return wide;
    };
    const auto rows = s.count * s.heads * s.head_dim, slices = static_cast<std::int64_t>(s.heads) * s.slices;
    auto x = random(T(), rows, 1), f = random(T(), rows, 1), dy = random(T(), rows, 1);
    const auto W = random(float(), slices * s.head_dim, 0.7F), bias = random(float(), slices, 1),
               states = random(float(), slices * s.head_dim, 1), dsums = random(float(), slices * (s.head_dim + 1), 1);
    const auto padded = padded_points(s.count);
    std::vector<float> inverse_temperature(s.heads * padded, NAN), noise;
    if (made.warm) {
        for (int h = 0; h < s.heads; ++h)
            for (std::int64_t n = 0; n < s.count; ++n)
                inverse_temperature[h * padded + n] = 0.5F + 0.1F * static_cast<float>((n + h) % 9);
        noise = random(float(), s.count * slices, 1);
    }
    const auto expected = slice_oracle(
        s, {doubles(x), doubles(W), doubles(bias), doubles(f), doubles(dy), doubles(states), doubles(dsums),
            made.warm ? doubles(inverse_temperature) : std::vector<double>(), doubles(noise)});

    std::vector<float> log_sums(s.heads * padded, NAN), sums(slices * (s.head_dim + 1), NAN), dstates(sums), dW(sums),
        dwarmth(s.heads * padded, NAN);
    std::vector<T> y(rows), dx(rows), df(rows);
    const auto stride = static_cast<std::int64_t>(s.heads) * s.head_dim;
    const TilePoints points{M,
                            {x.data(), stride},
                            W.data(),
                            bias.data(),
                            made.warm ? inverse_temperature.data() : nullptr,
                            made.warm ? noise.data() : nullptr,
                            log_sums.data(),
                            s.count,
                            s.heads,
                            s.slices,
                            s.head_dim};
    sum_in_slices(executor, points, {f.data(), stride}, true, sums.data());
    EXPECT_LT(relative_error(doubles(sums), expected.sums), limit);
    deslice_rows(executor, points, states.data(), {y.data(), stride});
    EXPECT_LT(relative_error(doubles(y), expected.y), limit);
    sum_in_slices(executor, points, {dy.data(), stride}, false, dstates.data());
    EXPECT_LT(relative_error(doubles(dstates), expected.dstates), limit);
    const TileGradients of{states.data(),
                           dsums.data(),
                           {f.data(), stride},
                           {dy.data(), stride},
                           {dx.data(), stride},
                           {df.data(), stride},
                           made.warm ? dwarmth.data() : nullptr};
    find_slice_gradients(executor, points, of, dW.data());
    EXPECT_LT(relative_error(doubles(dx), expected.dx), limit);
    EXPECT_LT(relative_error(doubles(df), expected.df), limit);
    EXPECT_LT(relative_error(doubles(dW), expected.dW), limit);
    if (!made.warm) return;
    double difference = 0, size = 0;
    for (int h = 0; h < s.heads; ++h)
        for (std::int64_t n = 0; n < s.count; ++n) {
            const auto e = expected.dwarmth[n * s.heads + h];
            difference += std::pow(dwarmth[h * padded + n] - e, 2);
            size += e * e;
        }
    EXPECT_LT(std::sqrt(difference / std::max(size, 1e-300)), limit);
}

class SliceTiles : public testing::TestWithParam<TileCase> {};

TEST_P(SliceTiles, AreNearLoopsInDouble)
{
    expect_as_in_double<TileMath::Float32>(GetParam(), 3e-5);
    expect_as_in_double<TileMath::Bfloat16>(GetParam(), 1.2e-2);
    expect_as_in_double<TileMath::Float16>(GetParam(), 3e-3);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, SliceTiles,
    testing::Values(TileCase{{203, 2, 64, 32}, {1, 1, 2, 0}}, TileCase{{75, 2, 64, 32}, {2, 2, 2, 0}},
                    TileCase{{1, 1, 7, 32}, {2, 1, 2, 0}}, TileCase{{15, 2, 1, 24}, {2, 2, 2, 0}},
                    TileCase{{97, 1, 128, 32}, {2, 1, 2, 48}}, TileCase{{65, 3, 33, 8}, {1, 1, 2, 0}},
                    TileCase{{170, 2, 96, 40}, {1, 1, 1, 32}}, TileCase{{65, 3, 70, 56}, {3, 1, 2, 0}},
                    TileCase{{66, 2, 20, 128}, {2, 1, 2, 16}}, TileCase{{0, 2, 5, 16}, {2, 2, 2, 0}},
                    TileCase{{130, 2, 40, 32}, {1, 1, 2, 0}, true}, TileCase{{45, 2, 70, 16}, {2, 1, 2, 32}, true}));

template <class T>
std::vector<T> numbers_of(std::int64_t size, unsigned seed)
{
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0.3F, 1);
    std::vector<T> numbers(static_cast<std::size_t>(size));
    for (auto& each : numbers) assign(each, normal(generator));
    return numbers;
}

/// Norms and gelu of rows, forward and backward, against loops in double.
template <class T>
void expect_rows_as_in_double(RowType type, std::int64_t rows, std::int64_t channels, double limit)
{
    using N = Number<T>;
    const auto size = rows * channels;
    const auto x = numbers_of<T>(size, 1), add = numbers_of<T>(size, 2), g = numbers_of<T>(size, 3),
               before = numbers_of<T>(size, 4);
    std::vector<N> bias(channels), after(channels), scales(rows, NAN), before_sums(channels, NAN),
        result_sums(channels, NAN), gelu_sums(channels, NAN);
    for (std::int64_t c = 0; c < channels; ++c) {
        bias[c] = N(0.1) * static_cast<N>(c % 5);
        after[c] = N(0.2) - N(0.1) * static_cast<N>(c % 3);
    }
    std::vector<T> sum(size), hat(size), result(size), y(size), again(size);
    for (const bool threads : {false, true}) {
        if (threads && channels > 12) break;  // a block for each channel, and four threads for each block
        const HostExecutor executor{.form = {threads ? 4 : 1, 1, 2, 0}};
        normalize_rows(executor, {type, x.data(), add.data(), bias.data(), after.data(), sum.data(), hat.data(),
                                  scales.data(), rows, channels, 1e-5});
        normalize_rows_backward(executor, {type, g.data(), hat.data(), scales.data(), before.data(), result.data(),
                                           before_sums.data(), result_sums.data(), rows, channels});
        auto of_x = g;
        gelu_rows(executor, type, x.data(), y.data(), size);
        gelu_rows_backward(executor, {type, x.data(), of_x.data(), again.data(), gelu_sums.data(), rows, channels});

        std::vector<double> e_sum(size), e_hat(size), e_result(size), e_y(size), e_of_x(size), e_before_sums(channels),
            e_result_sums(channels), e_gelu_sums(channels);
        for (std::int64_t r = 0; r < rows; ++r) {
            double mean = 0, variance = 0, g_mean = 0, slope = 0;
            const auto value = [&](std::int64_t c) {
                return to_float(x[r * channels + c]) + to_float(add[r * channels + c]) + bias[c];
            };
            for (std::int64_t c = 0; c < channels; ++c) mean += value(c) / static_cast<double>(channels);
            for (std::int64_t c = 0; c < channels; ++c)
                variance += std::pow(value(c) - mean, 2) / static_cast<double>(channels);
            for (std::int64_t c = 0; c < channels; ++c) {
                const auto at = r * channels + c;
                e_sum[at] = value(c) + after[c];
                e_hat[at] = (value(c) - mean) / std::sqrt(variance + 1e-5);
                g_mean += to_float(g[at]) / static_cast<double>(channels);
                slope += to_float(g[at]) * e_hat[at] / static_cast<double>(channels);
                const double v = to_float(x[at]), p = 0.5 * std::erfc(-v * std::sqrt(0.5)),
                             density = std::exp(-0.5 * v * v) / std::sqrt(2 * M_PI);
                e_y[at] = v * p;
                e_of_x[at] = to_float(g[at]) * (p + v * density);
                e_gelu_sums[c] += e_of_x[at];
            }
            for (std::int64_t c = 0; c < channels; ++c) {
                const auto at = r * channels + c;
                e_result[at] =
                    to_float(before[at]) + (to_float(g[at]) - g_mean - e_hat[at] * slope) / std::sqrt(variance + 1e-5);
                e_before_sums[c] += to_float(before[at]);
                e_result_sums[c] += e_result[at];
            }
        }
        const auto near = [&](const auto& found, const std::vector<double>& expected, const char* what) {
            std::vector<double> wide;
            for (const auto& each : found) wide.push_back(to_float(each));
            EXPECT_LT(relative_error(wide, expected), limit)
                << what << ' ' << rows << " x " << channels << (threads ? ", threads" : "");
        };
        near(sum, e_sum, "sum");
        near(hat, e_hat, "x_hat");
        near(result, e_result, "gradient");
        near(before_sums, e_before_sums, "sums before");
        near(result_sums, e_result_sums, "sums of the gradient");
        near(y, e_y, "gelu");
        near(again, e_y, "gelu again");
        near(of_x, e_of_x, "gradient of gelu");
        near(gelu_sums, e_gelu_sums, "its sums");
    }
}

TEST(RowTiles, AreNearLoopsInDouble)
{
    for (const std::int64_t channels : {8, 12, 256, 264, 520, 1032}) {
        for (const std::int64_t rows : {1, 37}) {
            expect_rows_as_in_double<Bfloat16>(RowType::Bfloat16, rows, channels, 1e-2);
            expect_rows_as_in_double<Float16>(RowType::Float16, rows, channels, 1.5e-3);
            expect_rows_as_in_double<float>(RowType::Float32, rows, channels, 2e-6);
            expect_rows_as_in_double<double>(RowType::Float64, rows, channels, 1e-13);
        }
    }
}

TEST(RowTiles, SumNothingToZero)
{
    const HostExecutor executor;
    std::vector<float> sums(8, NAN), others(8, NAN);
    normalize_rows_backward(
        executor, {RowType::Float32, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, sums.data(), 0, 8});
    gelu_rows_backward(executor, {RowType::Bfloat16, nullptr, nullptr, nullptr, others.data(), 0, 8});
    std::vector<double> before(8, NAN), result(8, NAN);
    normalize_rows_backward(
        executor, {RowType::Float64, nullptr, nullptr, nullptr, nullptr, nullptr, before.data(), result.data(), 0, 8});
    for (int c = 0; c < 8; ++c) EXPECT_EQ(std::abs(before[c]) + std::abs(result[c]), 0);
    for (int c = 0; c < 8; ++c) EXPECT_EQ(std::abs(sums[c]) + std::abs(others[c]), 0);
}

}  // namespace
}  // namespace meshard::tiles
