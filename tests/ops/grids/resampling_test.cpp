// SPDX-License-Identifier: Apache-2.0
// Padding, interpolation and rearrangement of cut grids against the plain operator.
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "tests/support/cut_rows.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

std::vector<std::int64_t> grid_shape(Draw& draw, std::int64_t n, std::int64_t largest)
{
    std::vector<std::int64_t> shape{draw.integer(1, 2), draw.integer(1, 3)};
    for (std::int64_t i = 0; i < n; ++i) shape.push_back(draw.integer(1, largest));
    return shape;
}

std::string listed(const std::string& name, const std::vector<std::int64_t>& values)
{
    std::string text = name;
    for (const auto value : values) text += " " + std::to_string(value);
    return text;
}

TEST(Padding, EqualsThePlainOperator)
{
    check_rule(
        [](Draw& draw) {
            static const std::vector<std::string> kModes{"constant", "reflect", "replicate", "circular"};
            const auto mode = draw.pick(kModes);
            const auto n = draw.integer(1, 3);
            auto shape = grid_shape(draw, n, n == 3 ? 5 : 8);
            std::vector<std::int64_t> pad;
            for (std::int64_t i = 0; i < n; ++i) {
                const auto size = shape[shape.size() - 1 - i];
                for (int end = 0; end < 2; ++end) {
                    if (mode == "constant")
                        pad.push_back(draw.integer(-std::min<std::int64_t>(2, size / 2), 4));
                    else if (mode == "reflect")
                        pad.push_back(draw.integer(0, size - 1));
                    else if (mode == "replicate")
                        pad.push_back(draw.integer(0, 4));
                    else
                        pad.push_back(draw.integer(0, size));
                }
                // The plain operator complains of an empty result.
                if (size + pad[2 * i] + pad[2 * i + 1] < 1) pad[2 * i + 1] = 1;
            }
            if (n <= 2 && mode != "constant" && draw.chance(0.3)) shape.erase(shape.begin());  // without a batch
            RuleCase item;
            item.text = listed(mode + " padding", pad);
            item.inputs = {draw.values(shape)};
            const auto value = mode == "constant" ? std::optional<double>(draw.real(-1, 1)) : std::nullopt;
            item.function = [=](const std::vector<at::Tensor>& x) {
                return std::vector{at::pad(x[0], pad, mode, value)};
            };
            return item;
        },
        {.num_cases = 300, .num_block_cases = 60});
}

using Sizes = std::optional<std::vector<std::int64_t>>;
using Factors = std::optional<std::vector<double>>;

at::Tensor interpolate(const at::Tensor& x, const std::string& mode, bool align, const Sizes& size,
                       const Factors& factors)
{
    const auto n = x.dim() - 2;
    const at::OptionalIntArrayRef to = size ? at::OptionalIntArrayRef(*size) : at::OptionalIntArrayRef();
    const auto by = factors ? std::optional<at::ArrayRef<double>>(*factors) : std::nullopt;
    if (mode == "nearest")
        return n == 1   ? at::upsample_nearest1d(x, to, by)
               : n == 2 ? at::upsample_nearest2d(x, to, by)
                        : at::upsample_nearest3d(x, to, by);
    if (mode == "nearest-exact") {
        return n == 1   ? at::_upsample_nearest_exact1d(x, to, by)
               : n == 2 ? at::_upsample_nearest_exact2d(x, to, by)
                        : at::_upsample_nearest_exact3d(x, to, by);
    }
    if (mode == "linear") {
        return n == 1   ? at::upsample_linear1d(x, to, align, by)
               : n == 2 ? at::upsample_bilinear2d(x, to, align, by)
                        : at::upsample_trilinear3d(x, to, align, by);
    }
    return mode == "cubic" ? at::upsample_bicubic2d(x, to, align, by) : at::_upsample_bilinear2d_aa(x, to, align, by);
}

TEST(Interpolation, EqualsThePlainOperator)
{
    check_rule(
        [](Draw& draw) {
            static const std::vector<std::string> kModes{"nearest", "nearest-exact", "linear",
                                                         "linear",  "cubic",         "antialiased"};
            const auto mode = draw.pick(kModes);
            const auto n = mode == "cubic" || mode == "antialiased" ? 2 : draw.integer(1, 3);
            const auto shape = grid_shape(draw, n, n == 3 ? 5 : 9);
            const bool align = draw.chance(0.5);
            Sizes size;
            Factors factors;
            if (draw.chance(0.5)) {
                size.emplace();
                for (std::int64_t i = 0; i < n; ++i) size->push_back(draw.integer(1, 11));
            } else {
                static const std::vector<double> kFactors{2, 2, 3, 1, 0.5, 1.7, 0.4, 2.3};
                factors.emplace();
                for (std::int64_t i = 0; i < n; ++i)
                    factors->push_back(std::max(draw.pick(kFactors), 1.01 / static_cast<double>(shape[i + 2])));
            }
            RuleCase item;
            item.text = mode + (align ? " with aligned corners" : "");
            if (size) item.text = listed(item.text + " to", *size);
            if (factors) {
                for (const auto factor : *factors) item.text += " by " + std::to_string(factor);
            }
            item.text = listed(item.text + " of", shape);
            item.inputs = {draw.values(shape)};
            item.function = [=](const std::vector<at::Tensor>& x) {
                return std::vector{interpolate(x[0], mode, align, size, factors)};
            };
            return item;
        },
        {.num_cases = 400,
         .num_block_cases = 60,
         .gathers = {{"aten::_upsample_bilinear2d_aa(_backward)?", "", kNoRule}}});
}

TEST(Rearrangement, EqualsThePlainOperator)
{
    check_rule(
        [](Draw& draw) {
            const auto r = draw.integer(1, 3);
            const auto h = draw.integer(1, 5), w = draw.integer(1, 4), b = draw.integer(1, 2), c = draw.integer(1, 2);
            RuleCase item;
            switch (draw.integer(0, 4)) {
            case 0:
                item = {"pixel shuffle",
                        {draw.values({b, c * r * r, h, w})},
                        [=](auto& x) { return std::vector{at::pixel_shuffle(x[0], r)}; },
                        {}};
                break;
            case 1:
                item = {"pixel unshuffle",
                        {draw.values({b, c, h * r, w * r})},
                        [=](auto& x) { return std::vector{at::pixel_unshuffle(x[0], r)}; },
                        {}};
                break;
            case 2:
                item = {"channel shuffle",
                        {draw.values({b, c * r, h, w})},
                        [=](auto& x) { return std::vector{at::channel_shuffle(x[0], r)}; },
                        {}};
                break;
            case 3:
                item = {"unfold",
                        {draw.values({b, c, h + 2, w + 1})},
                        [=](auto& x) { return std::vector{at::im2col(x[0], {2, 2}, {2, 1}, {1, 1}, {r, r})}; },
                        {}};
                break;
            default:
                item = {"fold",
                        {draw.values({b, c * 6, h * w})},
                        [=](auto& x) {
                            return std::vector{
                                at::col2im(x[0], {(h - 1) * r + 1, w + 1}, {3, 2}, {1, 1}, {1, 0}, {r, 1})};
                        },
                        {}};
            }
            item.text += " by " + std::to_string(r);
            return item;
        },
        {.num_cases = 300});
}

/// Operators that are made of those above, or gathered: a model may use any of them.
TEST(Resampling, OperatorsOnTopEqualThePlainOnes)
{
    check_rule(
        [](Draw& draw) {
            const std::vector<std::pair<const char*, std::function<Tensors(const Tensors&)>>> operators{
                {"max_unpool2d",
                 [](auto& x) {
                     const auto [values, indices] = at::max_pool2d_with_indices(x[0], {2, 2});
                     return Tensors{at::max_unpool2d(values, indices, x[0].sizes().slice(2))};
                 }},
                {"conv2d without a batch", [](auto& x) { return Tensors{at::conv2d(x[0][0], x[1], {}, 1, 1)}; }},
                {"conv1d over flattened rows",
                 [](auto& x) { return Tensors{at::conv1d(x[0].flatten(2), x[1].select(2, 0), {}, 2, 1)}; }},
                {"conv of transposed image",
                 [](auto& x) {
                     return Tensors{
                         at::conv2d(x[0].transpose(2, 3), x[1], {}, at::IntArrayRef({2, 1}), at::IntArrayRef({0, 1}))};
                 }},
                {"conv, pool, interpolate, join",
                 [](auto& x) {
                     const auto coarse = at::relu(at::conv2d(at::max_pool2d(x[0], 2, 2, 0, 1, true), x[1], {}, 1, 1));
                     const auto fine = at::upsample_bilinear2d(coarse, x[0].sizes().slice(2), true);
                     return Tensors{at::cat({x[0], fine}, 1)};
                 }},
                {"transposed back to the same size",
                 [](auto& x) {
                     const auto coarse = at::conv2d(x[0], x[1], {}, 2, 1);
                     const auto odd = [&](std::int64_t d) { return (x[0].size(d) + 1) % 2; };
                     return Tensors{at::conv_transpose2d(coarse, x[1], {}, 2, 1, {odd(2), odd(3)}) + x[0]};
                 }},
                {"grid_sample",
                 [](auto& x) {
                     const auto rows =
                         at::linspace(-1, 1, 5, at::TensorOptions(x[0].scalar_type()).device(x[0].device()))
                             .view({1, 5, 1, 1})
                             .expand({x[0].size(0), 5, 4, 2});
                     return Tensors{at::grid_sampler(x[0], rows * 0.9, 0, 0, false)};
                 }},
                {"windows, heads and back",
                 [](auto& x) {
                     const auto columns = at::im2col(x[0], {3, 3}, {1, 1}, {1, 1}, {1, 1});
                     return Tensors{
                         at::matmul(columns.transpose(1, 2),
                                    at::ones({columns.size(1), 2},
                                             at::TensorOptions(columns.scalar_type()).device(columns.device())))};
                 }},
            };
            const auto& [name, function] = operators[draw.integer(0, static_cast<std::int64_t>(operators.size()) - 1)];
            return RuleCase{name,
                            {draw.values({draw.integer(1, 2), 2, draw.integer(3, 8), draw.integer(3, 6)}),
                             draw.values({2, 2, 3, 3})},
                            function,
                            {}};
        },
        {.num_cases = 250,
         .tolerance = 1e-10,
         .partial_inputs = false,
         .gathers = {{"aten::max_unpool2d", "", kNoRule},
                     {"aten::convolution(_backward)?", " x \\(", "a grid whose cut dimension was joined with others"},
                     {"aten::gather|aten::view", "second", kTwoAxes}}});
}

TEST(Resampling, NeedsNoGatherOfACutGrid)
{
    const auto whole = Draw(1).values({2, 4, 9, 7});
    run_ranks({2, 2}, {"data", "domain"}, [&](const auto& mesh) {
        const AxisLayout rows{Shard(2), std::make_shared<Extents>(Extents{8, 1}), 1},
            columns{Shard(3), std::make_shared<Extents>(Extents{2, 5}), 1};
        const auto part =
            narrow_to_shard(narrow_to_shard(whole, rows, mesh->coordinate(0)), columns, mesh->coordinate(1));
        const auto x = from_local(part.clone(), make_spec(mesh, {rows, columns})).requires_grad_();
        set_gather_policy(GatherPolicy::Refuse);
        for (const auto* mode : {"constant", "reflect", "replicate"}) at::pad(x, {2, 1, 3, 0}, mode).sum().backward();
        for (const auto* mode : {"nearest", "nearest-exact", "linear", "cubic"}) {
            interpolate(x, mode, false, std::vector<std::int64_t>{17, 5}, std::nullopt).sum().backward();
        }
        at::pixel_unshuffle(at::pixel_shuffle(x, 2), 2).sum().backward();
        at::channel_shuffle(x, 2);
        at::col2im(at::im2col(x, {3, 2}, {1, 1}, {1, 0}, {2, 1}), {9, 7}, {3, 2}, {1, 1}, {1, 0}, {2, 1})
            .sum()
            .backward();
        set_gather_policy(GatherPolicy::Silent);
    });
}

TEST(Padding, ByAConstantSendsNothing)
{
    const auto whole = Draw(4).values({1, 2, 6, 3});
    run_ranks(3, [&](const auto& mesh) {
        const auto x = cut_rows(whole, {1, 3, 2}, mesh).requires_grad_();
        mesh->counter().reset();

        const auto y = at::constant_pad_nd(x, {1, 1, 2, 1}, 0.5);
        y.backward(y);

        EXPECT_EQ(mesh->counter().num_calls(), 0);
        EXPECT_EQ(to_string(*spec_of(y)), "Shard(2) of 3+3+3 on domain");
        EXPECT_EQ(to_string(*spec_of(x.grad())), "Shard(2) of 1+3+2 on domain");
    });
}

TEST(Padding, ByNothingIsACopy)
{
    const auto whole = Draw(4).values({1, 2, 6, 3});
    run_ranks(2, [&](const auto& mesh) {
        const auto x = cut_rows(whole, {2, 4}, mesh);
        for (const std::int64_t back : {0, -1})
            for (const auto* mode : {"constant", "reflect", "replicate", "circular"}) {
                if (back < 0 && std::string_view(mode) != "circular") continue;
                auto padded = at::pad(x, {0, back, 0, 0}, mode);
                padded.add_(1);
                EXPECT_TRUE(at::equal(full_tensor(x), whole)) << mode << back;
                EXPECT_TRUE(at::equal(full_tensor(padded), at::pad(whole, {0, back, 0, 0}, mode) + 1)) << mode;
            }
    });
}

TEST(Interpolation, TwiceAsFineSendsTheRowsAtTheSeamOnly)
{
    const auto whole = Draw(4).values({1, 2, 6, 3});
    run_ranks(2, [&](const auto& mesh) {
        const auto x = cut_rows(whole, {2, 4}, mesh).requires_grad_();
        mesh->counter().reset();

        const auto nearest = at::upsample_nearest2d(x, {12, 6});
        EXPECT_EQ(mesh->counter().num_calls(), 0);
        const auto linear = at::upsample_bilinear2d(x, {12, 6}, false);

        ASSERT_EQ(mesh->counter().num_calls(), 1);
        EXPECT_EQ(mesh->counter().total_bytes(), 2 * 3 * static_cast<std::int64_t>(sizeof(double)));
        EXPECT_EQ(to_string(*spec_of(nearest)), "Shard(2) of 4+8 on domain");
        EXPECT_EQ(to_string(*spec_of(linear)), "Shard(2) of 4+8 on domain");
    });
}

TEST(Interpolation, IsExactInSinglePrecision)
{
    // Sizes at which rounding decides which entry is nearest.
    check_rule(
        [](Draw& draw) {
            const auto n = draw.integer(1, 300), m = draw.integer(1, 300);
            RuleCase item{"nearest in floats",
                          {draw.values({1, 1, n}, at::kFloat)},
                          [=](auto& x) {
                              return std::vector{at::upsample_nearest1d(x[0], {m}),
                                                 at::_upsample_nearest_exact1d(x[0], {m})};
                          },
                          {}};
            item.text += " from " + std::to_string(n) + " to " + std::to_string(m);
            return item;
        },
        {.num_cases = 100, .tolerance = 1e-5, .partial_inputs = false, .num_single_cases = 0});
}

}  // namespace
}  // namespace meshard
