// SPDX-License-Identifier: Apache-2.0
// The kernels for tensor cores on a GPU: slice attention against loops in double precision, rows against the same
// source on the host, and the same bits twice.
#include "ops/cuda/tile_launch_host.h"
#include "tests/support/on_device.h"
#include "tests/support/slice_oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace meshard {
namespace {

using tiles::assign;
using tiles::to_float;

class GpuTiles : public OnGpu {};

template <class T>
std::vector<T> random_numbers(std::int64_t size, float scale, unsigned seed)
{
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0, scale);
    std::vector<T> numbers(static_cast<std::size_t>(size));
    for (auto& each : numbers) assign(each, normal(generator));
    return numbers;
}

template <class T>
std::vector<double> as_doubles(const std::vector<T>& numbers)
{
    std::vector<double> wide;
    for (const auto& each : numbers) wide.push_back(to_float(each));
    return wide;
}

template <class T>
std::vector<T> unset(std::int64_t size)
{
    std::vector<T> numbers(static_cast<std::size_t>(size));
    for (auto& each : numbers) assign(each, std::numeric_limits<float>::quiet_NaN());
    return numbers;
}

template <TileMath M>
void expect_slices_as_in_double(const SliceSizes& s, bool warm, double limit)
{
    using T = typename tiles::Storage<M>::type;
    const auto stride = static_cast<std::int64_t>(s.heads) * s.head_dim, rows = s.count * stride,
               slices = static_cast<std::int64_t>(s.heads) * s.slices, padded = padded_points(s.count);
    const auto x = random_numbers<T>(rows, 1, 1), f = random_numbers<T>(rows, 1, 2), dy = random_numbers<T>(rows, 1, 3);
    const auto W = random_numbers<float>(slices * s.head_dim, 0.7F, 4), bias = random_numbers<float>(slices, 1, 5),
               states = random_numbers<float>(slices * s.head_dim, 1, 6),
               dsums = random_numbers<float>(slices * (s.head_dim + 1), 1, 7),
               noise = random_numbers<float>(warm ? s.count * slices : 0, 1, 8);
    std::vector<float> inverse_temperature(warm ? s.heads * padded : 0, NAN);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(inverse_temperature.size()); ++i)
        if (i % padded < s.count) inverse_temperature[i] = 0.5F + 0.1F * static_cast<float>(i % 9);
    const auto expected =
        slice_oracle(s, {as_doubles(x), as_doubles(W), as_doubles(bias), as_doubles(f), as_doubles(dy),
                         as_doubles(states), as_doubles(dsums), as_doubles(inverse_temperature), as_doubles(noise)});

    const OnDevice<T> x_(x), f_(f), dy_(dy), y_(unset<T>(rows)), dx_(unset<T>(rows)), df_(unset<T>(rows));
    const OnDevice<float> W_(W), bias_(bias), states_(states), dsums_(dsums), noise_(noise),
        warmth_(inverse_temperature), log_sums_(unset<float>(s.heads * padded)),
        sums_(unset<float>(slices * (s.head_dim + 1))), dstates_(unset<float>(slices * (s.head_dim + 1))),
        dW_(unset<float>(slices * (s.head_dim + 1))), dwarmth_(unset<float>(s.heads * padded));
    const TilePoints points{M,
                            {x_.data(), stride},
                            W_.data(),
                            bias_.data(),
                            warm ? warmth_.data() : nullptr,
                            warm ? noise_.data() : nullptr,
                            log_sums_.data(),
                            s.count,
                            s.heads,
                            s.slices,
                            s.head_dim};
    std::vector<float> once;
    for (int turn = 0; turn < 2; ++turn) {
        sum_in_slices(kGpu, points, {f_.data(), stride}, true, sums_.data());
        deslice_rows(kGpu, points, states_.data(), {y_.data(), stride});
        sum_in_slices(kGpu, points, {dy_.data(), stride}, false, dstates_.data());
        find_slice_gradients(kGpu, points,
                             {states_.data(),
                              dsums_.data(),
                              {f_.data(), stride},
                              {dy_.data(), stride},
                              {dx_.data(), stride},
                              {df_.data(), stride},
                              warm ? dwarmth_.data() : nullptr},
                             dW_.data());
        std::vector<float> all;
        for (const auto* found : {&sums_, &dstates_, &dW_}) {
            const auto values = found->values();
            all.insert(all.end(), values.begin(), values.end());
        }
        if (turn == 1) {
            EXPECT_EQ(once, all) << "two runs have other bits";
        }
        once = all;
    }
    const auto near = [&](const char* what, const std::vector<double>& found, const std::vector<double>& of) {
        EXPECT_LT(relative_error(found, of), limit)
            << what << ", N " << s.count << " H " << s.heads << " S " << s.slices << " D " << s.head_dim << " math "
            << static_cast<int>(M) << (warm ? " warm" : "");
    };
    near("sums", as_doubles(sums_.values()), expected.sums);
    near("y", as_doubles(y_.values()), expected.y);
    near("gradient of states", as_doubles(dstates_.values()), expected.dstates);
    near("gradient of x", as_doubles(dx_.values()), expected.dx);
    near("gradient of features", as_doubles(df_.values()), expected.df);
    near("gradient of slices", as_doubles(dW_.values()), expected.dW);
    if (!warm) return;
    const auto found = dwarmth_.values();
    std::vector<double> by_point;
    for (std::int64_t n = 0; n < s.count; ++n)
        for (int h = 0; h < s.heads; ++h) by_point.push_back(found[h * padded + n]);
    near("gradient of temperatures", by_point, expected.dwarmth);
}

TEST_F(GpuTiles, AreNearLoopsInDouble)
{
    for (const auto& s : {SliceSizes{1, 1, 7, 32},
                          {15, 2, 1, 24},
                          {8191, 2, 96, 40},
                          {2500, 8, 64, 32},
                          {4099, 3, 33, 8},
                          {1601, 2, 512, 32},
                          {700, 2, 1024, 32},
                          {5000, 2, 64, 64},
                          {1003, 2, 70, 128},
                          {600, 1, 512, 128},
                          {100003, 2, 64, 32},
                          {3000, 4, 64, 16}}) {
        expect_slices_as_in_double<TileMath::Bfloat16>(
            s, false, s.count == 1 ? 3e-2 : 1.2e-2);  // of one point rounding does not average
        expect_slices_as_in_double<TileMath::Float16>(s, false, 3e-3);
        expect_slices_as_in_double<TileMath::Tf32>(s, false, 2.5e-3);
        expect_slices_as_in_double<TileMath::Float32>(s, false, 2e-5);
    }
    for (const auto& s : {SliceSizes{1003, 2, 64, 32}, {700, 3, 512, 16}, {300, 2, 40, 64}}) {
        expect_slices_as_in_double<TileMath::Bfloat16>(s, true, 1.2e-2);
        expect_slices_as_in_double<TileMath::Float16>(s, true, 3e-3);
        expect_slices_as_in_double<TileMath::Tf32>(s, true, 2.5e-3);
        expect_slices_as_in_double<TileMath::Float32>(s, true, 2e-5);
    }
}

template <class T>
void expect_rows_as_on_the_host(RowType type, std::int64_t rows, std::int64_t channels, double limit)
{
    using N = tiles::Number<T>;
    const auto size = rows * channels;
    const auto x = random_numbers<T>(size, 1, 1), add = random_numbers<T>(size, 1, 2),
               g = random_numbers<T>(size, 1, 3), before = random_numbers<T>(size, 1, 4);
    std::vector<N> bias(channels), zero_rows(rows), zero_channels(channels);
    for (std::int64_t c = 0; c < channels; ++c) bias[c] = N(0.1) * static_cast<N>(c % 5);
    const HostExecutor host;
    const tiles::HostLauncher launcher(host);
    std::vector<T> sum(size), hat(size), result(size), y(size), of_x(g), again(size);
    std::vector<N> scales(rows), before_sums(channels), result_sums(channels), gelu_sums(channels);
    tiles::normalize_rows_by(launcher, {type, x.data(), add.data(), bias.data(), bias.data(), sum.data(), hat.data(),
                                        scales.data(), rows, channels, 1e-5});
    tiles::normalize_rows_backward_by(launcher,
                                      {type, g.data(), hat.data(), scales.data(), before.data(), result.data(),
                                       before_sums.data(), result_sums.data(), rows, channels});
    tiles::gelu_rows_by(launcher, type, x.data(), y.data(), size);
    tiles::gelu_rows_backward_by(launcher,
                                 {type, x.data(), of_x.data(), again.data(), gelu_sums.data(), rows, channels});

    const OnDevice<T> x_(x), add_(add), g_(g), before_(before), sum_(sum), hat_(unset<T>(size)),
        result_(unset<T>(size)), y_(unset<T>(size)), of_x_(g), again_(unset<T>(size));
    const OnDevice<N> bias_(bias), scales_(zero_rows), before_sums_(zero_channels), result_sums_(zero_channels),
        gelu_sums_(zero_channels);
    normalize_rows(kGpu, {type, x_.data(), add_.data(), bias_.data(), bias_.data(), sum_.data(), hat_.data(),
                          scales_.data(), rows, channels, 1e-5});
    normalize_rows_backward(kGpu, {type, g_.data(), hat_.data(), scales_.data(), before_.data(), result_.data(),
                                   before_sums_.data(), result_sums_.data(), rows, channels});
    gelu_rows(kGpu, type, x_.data(), y_.data(), size);
    gelu_rows_backward(kGpu, {type, x_.data(), of_x_.data(), again_.data(), gelu_sums_.data(), rows, channels});
    const auto near = [&](const char* what, const auto& found, const auto& expected) {
        EXPECT_LT(relative_error(as_doubles(found), as_doubles(expected)), limit)
            << what << ' ' << rows << " x " << channels << " of type " << static_cast<int>(type);
    };
    near("sum", sum_.values(), sum);
    near("x_hat", hat_.values(), hat);
    near("scales", scales_.values(), scales);
    near("gradient", result_.values(), result);
    near("sums before", before_sums_.values(), before_sums);
    near("sums of the gradient", result_sums_.values(), result_sums);
    near("gelu", y_.values(), y);
    near("gelu again", again_.values(), again);
    near("gradient of gelu", of_x_.values(), of_x);
    near("sums of it", gelu_sums_.values(), gelu_sums);
}

TEST_F(GpuTiles, OfRowsAreNearTheHosts)
{
    for (const std::int64_t channels : {8, 12, 128, 256, 264, 512, 768, 1032, 2048}) {
        for (const std::int64_t rows : {1, 37, 5003}) {
            expect_rows_as_on_the_host<tiles::Bfloat16>(RowType::Bfloat16, rows, channels, 4e-3);
            expect_rows_as_on_the_host<tiles::Float16>(RowType::Float16, rows, channels, 5e-4);
            expect_rows_as_on_the_host<float>(RowType::Float32, rows, channels, 1e-5);
            expect_rows_as_on_the_host<double>(RowType::Float64, rows, channels, 1e-12);
        }
    }
}

/// Matrices that need more and less shared memory than a kernel may have without asking.
TEST_F(GpuTiles, OfTokensAreNearTheHosts)
{
    struct Sizes {
        int heads, count, dim;
    };
    const HostExecutor host;
    const tiles::HostLauncher launcher(host);
    for (const auto& [heads, count, dim] :
         {Sizes{3, 7, 24}, {1, 1, 8}, {2, 64, 32}, {2, 33, 40}, {1, 96, 24}, {1, 128, 8}}) {
        if (!tokens_fit(kGpu, count, dim)) continue;  // LibTorch's operators are taken
        const std::int64_t size = std::int64_t{heads} * count * dim, weights = std::int64_t{3} * dim * dim;
        const auto tokens = random_numbers<float>(size, 1, 1), gradient = random_numbers<float>(size, 1, 2),
                   weight = random_numbers<float>(weights, 0.25F, 3);
        const auto pointers = [&, heads = heads, count = count, dim = dim](const float* t, const float* w) {
            return TokenAttention{t, w, heads, count, dim, 0.2F};
        };
        std::vector<float> states(size), of_tokens(size), of_weight(weights);
        tiles::attend_tokens_by(launcher, pointers(tokens.data(), weight.data()), states.data());
        tiles::attend_tokens_backward_by(launcher, pointers(tokens.data(), weight.data()),
                                         {states.data(), gradient.data(), of_tokens.data(), of_weight.data()});

        const OnDevice<float> tokens_(tokens), gradient_(gradient), weight_(weight);
        std::vector<float> once;
        for (int turn = 0; turn < 2; ++turn) {
            const OnDevice<float> states_(unset<float>(size)), of_tokens_(unset<float>(size)),
                of_weight_(unset<float>(weights));
            const auto of = pointers(tokens_.data(), weight_.data());
            attend_tokens(kGpu, of, states_.data());
            attend_tokens_backward(kGpu, of, {states_.data(), gradient_.data(), of_tokens_.data(), of_weight_.data()});
            const auto near = [&](const char* what, const std::vector<float>& found,
                                  const std::vector<float>& expected) {
                EXPECT_LT(relative_error(as_doubles(found), as_doubles(expected)), 1e-5)
                    << what << ", S " << count << " D " << dim;
            };
            near("states", states_.values(), states);
            near("gradient of tokens", of_tokens_.values(), of_tokens);
            near("gradient of the weight", of_weight_.values(), of_weight);
            if (turn == 1) {
                EXPECT_EQ(once, of_weight_.values()) << "two runs have other bits";
            }
            once = of_weight_.values();
        }
    }
}

/// Two weights behind one norm, and a weight without norm.
template <class T>
void expect_folded_as_on_the_host(RowType type, std::int64_t columns, double limit)
{
    using N = tiles::Number<T>;
    const std::int64_t rows = 37, size = rows * columns;
    const auto weight = random_numbers<N>(3 * size, 1, 1), bias = random_numbers<N>(2 * rows, 1, 2),
               norm = random_numbers<N>(2 * columns, 1, 3), gradient = random_numbers<N>(2 * size, 1, 4),
               bias_gradient = random_numbers<N>(2 * rows, 1, 5);
    const auto folded = [&](const N* w, const N* b, const N* n, T* to, T* bias_to) {
        return FoldedWeights{type,
                             {{w, b, n, n + columns, to, bias_to, rows, columns},
                              {w + size, b + rows, n, n + columns, to + size, bias_to + rows, rows, columns},
                              {w + 2 * size, nullptr, nullptr, nullptr, to + 2 * size, nullptr, rows, columns}},
                             3};
    };
    const auto unfolded = [&](const N* g, const N* of_bias, const N* n, const N* w, N* of_weight, N* of_norm) {
        return UnfoldedWeights{sizeof(N) == 8 ? RowType::Float64 : RowType::Float32,
                               {{g,
                                 of_bias,
                                 n,
                                 n + columns,
                                 {w, w + size},
                                 {of_weight, of_weight + size},
                                 of_norm,
                                 of_norm + columns,
                                 2,
                                 rows,
                                 columns}},
                               1};
    };
    const HostExecutor host;
    const tiles::HostLauncher launcher(host);
    std::vector<T> to(3 * size), bias_to(2 * rows);
    std::vector<N> of_weight(2 * size), of_norm(2 * columns);
    tiles::fold_weights_by(launcher, folded(weight.data(), bias.data(), norm.data(), to.data(), bias_to.data()));
    tiles::unfold_weights_by(launcher, unfolded(gradient.data(), bias_gradient.data(), norm.data(), weight.data(),
                                                of_weight.data(), of_norm.data()));

    const OnDevice<N> weight_(weight), bias_(bias), norm_(norm), gradient_(gradient), bias_gradient_(bias_gradient),
        of_weight_(unset<N>(2 * size)), of_norm_(unset<N>(2 * columns));
    const OnDevice<T> to_(unset<T>(3 * size)), bias_to_(unset<T>(2 * rows));
    fold_weights(kGpu, folded(weight_.data(), bias_.data(), norm_.data(), to_.data(), bias_to_.data()));
    unfold_weights(kGpu, unfolded(gradient_.data(), bias_gradient_.data(), norm_.data(), weight_.data(),
                                  of_weight_.data(), of_norm_.data()));
    const auto near = [&](const char* what, const auto& found, const auto& expected, double most) {
        EXPECT_LT(relative_error(as_doubles(found), as_doubles(expected)), most)
            << what << ", " << columns << " columns of type " << static_cast<int>(type);
    };
    const double least = sizeof(N) == 8 ? 1e-13 : 2e-6;
    near("weights", to_.values(), to, limit);
    near("biases", bias_to_.values(), bias_to, limit);
    near("gradients of weights", of_weight_.values(), of_weight, least);
    near("gradients of the norm", of_norm_.values(), of_norm, least);
}

TEST_F(GpuTiles, OfWeightsAreNearTheHosts)
{
    for (const std::int64_t columns : {1, 19, 256, 520}) {
        expect_folded_as_on_the_host<tiles::Bfloat16>(RowType::Bfloat16, columns, 4e-3);
        expect_folded_as_on_the_host<tiles::Float16>(RowType::Float16, columns, 5e-4);
        expect_folded_as_on_the_host<float>(RowType::Float32, columns, 2e-6);
        expect_folded_as_on_the_host<double>(RowType::Float64, columns, 1e-13);
    }
}

}  // namespace
}  // namespace meshard
