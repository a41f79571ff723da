// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/neighbourhood_attention.h"
#include "ops/attention/window_kernels.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"
#include "tests/support/test_device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

namespace meshard {
namespace {

/// The entries that the query at `entry` sees along an axis, from the definition: among those of equal remainder, the
/// `size` ones from size / 2 before it on, moved inwards at the borders.
std::set<std::int64_t> seen_entries(std::int64_t entry, std::int64_t length, std::int64_t size, std::int64_t dilation)
{
    std::vector<std::int64_t> alike;
    std::int64_t place = 0;
    for (std::int64_t i = entry % dilation; i < length; i += dilation) {
        if (i == entry) place = static_cast<std::int64_t>(alike.size());
        alike.push_back(i);
    }
    auto first = place - size / 2;
    while (first < 0) ++first;
    while (first + size > static_cast<std::int64_t>(alike.size())) --first;
    return {alike.begin() + first, alike.begin() + first + size};
}

/// Minus infinity where a query does not see a key: (rows * columns, rows * columns).
at::Tensor dense_mask(std::int64_t rows, std::int64_t columns, const NeighbourhoodWindow& window)
{
    auto mask = at::full({rows, columns, rows, columns}, -std::numeric_limits<double>::infinity(), at::kDouble);
    auto numbers = mask.accessor<double, 4>();
    for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < columns; ++j) {
            for (const auto row : seen_entries(i, rows, window.size[0], window.dilation[0])) {
                for (const auto column : seen_entries(j, columns, window.size[1], window.dilation[1]))
                    numbers[i][j][row][column] = 0;
            }
        }
    }
    return mask.view({rows * columns, rows * columns});
}

at::Tensor dense_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                           double scale)
{
    const auto by_heads = [](const at::Tensor& x) { return x.flatten(1, 2).transpose(1, 2); };
    const auto weights =
        at::softmax(at::matmul(by_heads(q), by_heads(k).transpose(2, 3)) * scale + mask.to(q.options()), -1);
    return at::matmul(weights, by_heads(v)).transpose(1, 2).unflatten(1, q.sizes().slice(1, 2));
}

struct GridCase {
    std::vector<std::int64_t> shape;
    NeighbourhoodWindow window;
    std::optional<double> scale;

    std::string text() const
    {
        std::string text = "grid";
        for (const auto size : shape) text += " " + std::to_string(size);
        for (int i = 0; i < 2; ++i)
            text += (i ? " and " : ", windows of ") + std::to_string(window.size[i]) + " at " +
                    std::to_string(window.dilation[i]);
        return text;
    }
};

GridCase draw_grid(Draw& draw)
{
    GridCase grid;
    for (int axis = 0; axis < 2; ++axis) {
        grid.window.size[axis] = draw.integer(1, 5);
        grid.window.dilation[axis] = draw.chance(0.6) ? 1 : draw.integer(2, 3);
    }
    const auto length = [&](int axis) {
        return grid.window.size[axis] * grid.window.dilation[axis] + (draw.chance(0.3) ? 0 : draw.integer(1, 14));
    };
    const auto rows = length(0), columns = length(1);
    grid.shape = {draw.integer(1, 2), rows, columns, draw.integer(1, 3), draw.integer(1, 9)};
    if (draw.chance(0.3)) grid.scale = draw.real(0.1, 1.5);
    return grid;
}

/// Output and the three gradients.
std::vector<at::Tensor> results(std::vector<at::Tensor> inputs, const at::Tensor& factor,
                                const std::function<at::Tensor(const std::vector<at::Tensor>&)>& run)
{
    for (auto& input : inputs) input = input.detach().requires_grad_();
    const auto output = run(inputs);
    (output * factor).sum().backward();
    return {output.detach(), inputs[0].grad(), inputs[1].grad(), inputs[2].grad()};
}

TEST(NeighbourhoodAttention, EqualsTheDenseMaskedOneForAnyWindow)
{
    if (!has_device_of_tests()) GTEST_SKIP() << "no device " << device_of_tests();
    Draw draw(3);
    for (int i = 0; i < 150; ++i) {
        const auto grid = draw_grid(draw);
        SCOPED_TRACE(grid.text());
        const auto mask = dense_mask(grid.shape[1], grid.shape[2], grid.window);
        const auto scale = grid.scale.value_or(1 / std::sqrt(static_cast<double>(grid.shape[4])));
        std::vector<at::Tensor> inputs;
        for (int k = 0; k < 3; ++k) inputs.push_back(draw.values(grid.shape));
        const auto factor = draw.values(grid.shape);
        const auto expected =
            results(inputs, factor, [&](const auto& x) { return dense_attention(x[0], x[1], x[2], mask, scale); });

        for (const auto type : {at::kDouble, at::kFloat}) {
            auto own = inputs;
            for (auto& input : own) input = input.to(device_of_tests(), type);
            const auto found = results(own, factor.to(device_of_tests(), type), [&](const auto& x) {
                return neighbourhood_attention(x[0], x[1], x[2], grid.window, grid.scale);
            });
            // A gradient that vanishes but for rounding, as where a query sees a single key, is judged beside ones.
            for (int k = 0; k < 4; ++k) {
                const auto beside_ones = [&](const at::Tensor& x) {
                    return at::cat({x.to(at::kCPU, at::kDouble).reshape({-1}), at::ones({1}, at::kDouble)});
                };
                EXPECT_TRUE(
                    tensors_near(beside_ones(found[k]), beside_ones(expected[k]), type == at::kDouble ? 1e-13 : 3e-6))
                    << "result " << k;
            }
        }
    }
}

TEST(NeighbourhoodAttention, IsTheSameForEverySetOfInstructions)
{
    Draw draw(5);
    const std::vector<std::int64_t> shape{1, 13, 45, 2, 11};
    std::vector<at::Tensor> inputs;
    for (int k = 0; k < 3; ++k) inputs.push_back(draw.values(shape, at::kFloat));
    const auto factor = draw.values(shape, at::kFloat);
    std::vector<std::vector<at::Tensor>> found;
    const auto before = limit_window_kernels(2);
    for (const int level : {0, 1, 2}) {
        limit_window_kernels(level);
        found.push_back(results(
            inputs, factor, [](const auto& x) { return neighbourhood_attention(x[0], x[1], x[2], {{5, 8}, {1, 2}}); }));
    }
    limit_window_kernels(before);
    for (int level = 1; level < 3; ++level) {
        for (int k = 0; k < 4; ++k) EXPECT_TRUE(tensors_near(found[level][k], found[0][k], 2e-6)) << level << k;
    }
}

TEST(NeighbourhoodAttention, EqualsThePlainOneForAnyCut)
{
    check_rule(
        [](Draw& draw) {
            const auto grid = draw_grid(draw);
            return RuleCase{grid.text(),
                            {draw.values(grid.shape), draw.values(grid.shape), draw.values(grid.shape)},
                            [=](const auto& x) {
                                return Tensors{neighbourhood_attention(x[0], x[1], x[2], grid.window, grid.scale),
                                               x[0] * 1, x[1] * 1, x[2] * 1};
                            },
                            {}};
        },
        {.num_cases = 150});
}

at::Tensor cut_grid(const at::Tensor& whole, const Extents& extents, const std::shared_ptr<const DeviceMesh>& mesh)
{
    return from_local(whole.split_with_sizes(extents, 1)[mesh->coordinate(0)].clone(), mesh, {Shard(1)});
}

TEST(NeighbourhoodAttention, SendsTheRowsThatWindowsReachOnceEachWay)
{
    // One rank with a single row at the border: its window is moved inwards over six rows of the next ranks.
    const Extents extents{1, 4, 0, 6, 3};
    const auto whole = at::rand({1, 14, 9, 2, 4});
    const NeighbourhoodWindow window{{7, 3}, {1, 1}};
    const std::vector<std::int64_t> rows_received{6, 4, 0, 6, 4};
    run_ranks(5, [&](const auto& mesh) {
        const auto x = cut_grid(whole, extents, mesh).requires_grad_();
        mesh->counter().reset();

        const auto output = neighbourhood_attention(x, x * 2, x * 3, window);

        EXPECT_EQ(mesh->counter().num_calls(), 1);
        EXPECT_EQ(mesh->counter().total_bytes(),
                  rows_received[mesh->coordinate(0)] * 9 * 2 * 4 * 2 * 4);  // keys and values in single precision
        mesh->counter().reset();
        output.sum().backward();
        EXPECT_EQ(mesh->counter().num_calls(), 1);
    });
}

TEST(NeighbourhoodAttention, NeedsNoMessageWhereWindowsEndAtTheCut)
{
    run_ranks(2, [](const auto& mesh) {
        const auto x = cut_grid(at::rand({1, 8, 5, 1, 4}), {3, 5}, mesh).requires_grad_();
        mesh->counter().reset();
        neighbourhood_attention(x, x, x, {{1, 5}, {1, 1}}).sum().backward();
        EXPECT_EQ(mesh->counter().num_calls(), 0);
    });
}

TEST(NeighbourhoodAttention, RefusesWhatItCannotCompute)
{
    const auto x = at::zeros({1, 6, 8, 2, 4});
    const auto refusal = [&](const std::string& text, const at::Tensor& keys, const NeighbourhoodWindow& window) {
        EXPECT_TRUE(throws_with<InvalidInput>(text, [&] { neighbourhood_attention(x, keys, keys, window); }));
    };
    refusal("must have one shape, (batch, rows, columns, heads, channels)", at::zeros({1, 6, 7, 2, 4}), {});
    refusal("must share one floating type", x.to(at::kDouble), {});
    refusal("a window of 7 rows with dilation 1 needs a grid of at least 7 rows; this one has 6.", x, {{7, 3}, {1, 1}});
    refusal("a window of 3 columns with dilation 3 needs a grid of at least 9 columns; this one has 8.", x,
            {{3, 3}, {1, 3}});
    refusal("both must be at least 1", x, {{3, 3}, {0, 1}});
}

}  // namespace
}  // namespace meshard
