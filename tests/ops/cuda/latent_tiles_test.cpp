// SPDX-License-Identifier: Apache-2.0
// The kernels for FLARE's latents on the host, the same source as on a GPU, against loops in double precision.
#include "ops/cuda/row_tiles.h"
#include "ops/cuda/tile_kernels.h"
#include "tests/support/slice_oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace meshard::tiles {
namespace {

struct LatentCase {
    SliceSizes sizes;
    HostForm form = {};
    float offset = 0;  ///< added to the logits of every third latent, subtracted from those of the others
};

template <TileMath M>
void expect_latents_as_in_double(const LatentCase& made, double limit)
{
    using T = typename Storage<M>::type;
    const auto& s = made.sizes;
    const auto stride = static_cast<std::int64_t>(s.heads) * s.head_dim, rows = s.count * stride,
               latents = static_cast<std::int64_t>(s.heads) * s.slices;
    std::mt19937 generator(3);
    std::normal_distribution<float> normal(0, 1);
    const auto random = [&](auto number, std::int64_t size, float scale) {
        std::vector<decltype(number)> numbers(static_cast<std::size_t>(size));
        for (auto& each : numbers) assign(each, scale * normal(generator));
        return numbers;
    };
    const auto doubles = [](const auto& numbers) {
        std::vector<double> wide;
        for (const auto& each : numbers) wide.push_back(to_float(each));
        return wide;
    };
    auto k = random(T(), rows, 1), v = random(T(), rows, 1), dy = random(T(), rows, 1);
    auto q = random(float(), latents * s.head_dim, 1.5F / std::sqrt(static_cast<float>(s.head_dim)));
    if (made.offset > 0) {
        for (std::int64_t i = 0; i < s.count * s.heads; ++i) assign(k[i * s.head_dim], 1.0F);
        for (std::int64_t i = 0; i < latents; ++i)
            q[i * s.head_dim] = static_cast<float>(i % 3 == 0 ? made.offset : -made.offset);
    }
    const auto expected = latent_oracle(s, doubles(k), doubles(q), doubles(v), doubles(dy));

    const HostExecutor executor{.form = made.form};
    const std::vector<float> bias(latents);
    std::vector<float> log_sums(s.heads * padded_points(s.count), NAN), means(latents * (s.head_dim + 1), NAN),
        dstates(means), dq(means), states;
    std::vector<T> y(rows), dk(rows), dv(rows);
    const TilePoints points{M,         {k.data(), stride}, q.data(), bias.data(), nullptr,
                            nullptr,   log_sums.data(),    s.count,  s.heads,     s.slices,
                            s.head_dim};
    const auto without_last = [&](const std::vector<float>& lines) {
        std::vector<double> wide;
        for (std::size_t i = 0; i < lines.size(); ++i)
            if (static_cast<int>(i) % (s.head_dim + 1) != s.head_dim) wide.push_back(lines[i]);
        return wide;
    };
    const auto near = [&](const char* what, std::vector<double> found, std::vector<double> of) {
        found.push_back(s.count == 1);  // latents are alike then, and gradients zero but for rounding
        of.push_back(s.count == 1);
        EXPECT_LT(relative_error(found, of), limit)
            << what << ", N " << s.count << " H " << s.heads << " S " << s.slices << " D " << s.head_dim << " math "
            << static_cast<int>(M) << " offset " << made.offset;
    };
    find_point_means(executor, points, {v.data(), stride}, means.data());
    if (s.count > 0) near("means", doubles(means), expected.means);
    for (std::int64_t i = 0; i < latents; ++i)
        states.insert(states.end(), &means[i * (s.head_dim + 1)], &means[i * (s.head_dim + 1) + s.head_dim]);
    near("states", doubles(states), without_last({expected.means.begin(), expected.means.end()}));
    deslice_rows(executor, points, states.data(), {y.data(), stride});
    near("y", doubles(y), expected.y);
    sum_in_slices(executor, points, {dy.data(), stride}, false, dstates.data());
    near("gradient of states", without_last(dstates), expected.dstates);
    // Gradients of the logarithms, by what products make of those of the means.
    auto means_gradient = dstates;
    for (std::int64_t i = 0; i < latents; ++i) {
        const auto* mean = &means[i * (s.head_dim + 1)];
        auto* of_mean = &means_gradient[i * (s.head_dim + 1)];
        of_mean[s.head_dim] = 0;
        for (int d = 0; d < s.head_dim; ++d)
            of_mean[s.head_dim] -= mean[d] * (of_mean[d] - lost_by_rounding<M>(of_mean[d]));
    }
    find_slice_gradients(executor, points,
                         {states.data(),
                          means_gradient.data(),
                          {v.data(), stride},
                          {dy.data(), stride},
                          {dk.data(), stride},
                          {dv.data(), stride},
                          nullptr,
                          means.data()},
                         dq.data());
    near("gradient of keys", doubles(dk), expected.dk);
    near("gradient of values", doubles(dv), expected.dv);
    near("gradient of queries", without_last(dq), expected.dq);
}

class LatentTiles : public testing::TestWithParam<LatentCase> {};

TEST_P(LatentTiles, AreNearLoopsInDouble)
{
    const bool far = GetParam().offset > 0;
    expect_latents_as_in_double<TileMath::Float32>(GetParam(), far ? 3e-4 : 3e-5);
    expect_latents_as_in_double<TileMath::Bfloat16>(GetParam(), 2e-2);
    expect_latents_as_in_double<TileMath::Float16>(GetParam(), 4e-3);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, LatentTiles,
    testing::Values(LatentCase{{1, 2, 7, 32}, {2, 1, 2, 0}}, LatentCase{{15, 2, 1, 24}, {2, 2, 2, 0}},
                    LatentCase{{33, 2, 64, 16}, {1, 1, 2, 0}}, LatentCase{{4099, 2, 64, 8}, {1, 1, 7, 0}},
                    LatentCase{{203, 1, 96, 32}, {1, 1, 5, 32}}, LatentCase{{75, 2, 64, 32}, {2, 2, 2, 0}},
                    LatentCase{{33, 1, 512, 16}, {1, 1, 2, 64}}, LatentCase{{33, 1, 70, 40}, {2, 1, 1, 48}},
                    LatentCase{{34, 1, 20, 128}, {2, 1, 2, 16}}, LatentCase{{130, 1, 33, 64}, {3, 1, 2, 0}},
                    LatentCase{{0, 2, 5, 16}, {1, 2, 2, 0}}, LatentCase{{203, 2, 64, 32}, {1, 1, 3, 0}, 300},
                    LatentCase{{97, 1, 96, 64}, {1, 1, 2, 0}, 300}));

/// One point's weight is e^18 times that of each other, whose weights a float16 cannot hold.
TEST(LatentTiles, OfFloat16KeepSmallWeights)
{
    const SliceSizes s{64, 1, 1, 8};
    std::vector<Float16> k(s.count * 8), v(s.count * 8), dy(s.count * 8), dk(s.count * 8), dv(s.count * 8);
    std::vector<float> q(8), bias(1), log_sums(64), means(9), means_gradient(9), dq(9);
    std::vector<double> wide_k(k.size()), wide_q(8), wide_v(k.size()), wide_dy(k.size(), 300);
    wide_q[0] = q[0] = 1;
    wide_k[0] = 18;
    for (std::size_t i = 0; i < k.size(); ++i) {
        wide_v[i] = i < 8 ? 0 : 1;
        assign(k[i], i == 0 ? 18.0F : 0.0F);
        assign(v[i], i < 8 ? 0.0F : 1.0F);
        assign(dy[i], 300.0F);
    }
    const auto expected = latent_oracle(s, wide_k, wide_q, wide_v, wide_dy);
    const TilePoints points{TileMath::Float16, {k.data(), 8}, q.data(), bias.data(), nullptr, nullptr,
                            log_sums.data(),   s.count,       1,        1,           8};
    const HostExecutor executor;

    find_point_means(executor, points, {v.data(), 8}, means.data());
    for (int d = 0; d < 8; ++d) means_gradient[d] = static_cast<float>(expected.dstates[d]);
    find_slice_gradients(executor, points,
                         {means.data(),
                          means_gradient.data(),
                          {v.data(), 8},
                          {dy.data(), 8},
                          {dk.data(), 8},
                          {dv.data(), 8},
                          nullptr,
                          means.data()},
                         dq.data());

    EXPECT_NEAR(means[3] / expected.means[3], 1, 1e-2);
    for (std::size_t i = 8; i < dv.size(); ++i) EXPECT_NEAR(to_float(dv[i]) / expected.dv[i], 1, 1e-2);
}

}  // namespace
}  // namespace meshard::tiles
