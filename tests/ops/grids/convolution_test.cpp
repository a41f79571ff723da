// SPDX-License-Identifier: Apache-2.0
// Convolutions of cut grids against the plain operator.
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

std::string show(const char* name, const std::vector<std::int64_t>& values)
{
    std::string text = std::string(" ") + name + " (";
    for (const auto value : values) text += " " + std::to_string(value);
    return text + " )";
}

struct Drawn {
    std::vector<std::int64_t> size, kernel, stride, padding, dilation, output_padding;
    std::int64_t groups = 1;
    bool transposed = false;
};

/// A convolution that has at least one output in every dimension.
RuleCase draw_convolution(Draw& draw, bool transposed)
{
    const auto n = draw.integer(1, 3);
    Drawn c;
    c.transposed = transposed;
    c.groups = draw.chance(0.3) ? 2 : 1;
    for (std::int64_t i = 0; i < n; ++i) {
        c.kernel.push_back(draw.integer(1, n == 3 ? 3 : 5));
        c.stride.push_back(draw.integer(1, 3));
        c.dilation.push_back(draw.integer(1, 2));
        const auto reach = c.dilation[i] * (c.kernel[i] - 1);
        c.padding.push_back(draw.integer(0, transposed ? std::min<std::int64_t>(2, reach) : 3));
        c.output_padding.push_back(transposed ? draw.integer(0, std::max(c.stride[i], c.dilation[i]) - 1) : 0);
        const auto least = transposed ? 1 + (2 * c.padding[i] + c.stride[i] - 1) / c.stride[i]
                                      : std::max<std::int64_t>(1, reach + 1 - 2 * c.padding[i]);
        c.size.push_back(std::max(least, draw.integer(1, n == 3 ? 6 : 12)));
    }
    const auto in = 2 * draw.integer(1, 2), out = 2 * draw.integer(1, 2);
    std::vector<std::int64_t> input{draw.integer(1, 3), in},
        weight{transposed ? in : out, (transposed ? out : in) / c.groups};
    input.insert(input.end(), c.size.begin(), c.size.end());
    weight.insert(weight.end(), c.kernel.begin(), c.kernel.end());

    RuleCase item;
    item.text = std::string(transposed ? "transposed " : "") + "convolution" + show("size", c.size) +
                show("kernel", c.kernel) + show("stride", c.stride) + show("padding", c.padding) +
                show("dilation", c.dilation) + show("output padding", c.output_padding) + " groups " +
                std::to_string(c.groups);
    item.inputs = {draw.values(input), draw.values(weight)};
    if (draw.chance(0.7)) item.inputs.push_back(draw.values({out}));
    if (draw.chance(0.7)) item.whole_inputs = {1, 2};
    const bool traced = draw.chance(0.2);  // the form that traced programs call
    item.function = [c, traced](const std::vector<at::Tensor>& x) {
        const auto bias = x.size() > 2 ? std::optional(x[2]) : std::nullopt;
        if (traced) {
            return std::vector{at::_convolution(x[0], x[1], bias, c.stride, c.padding, c.dilation, c.transposed,
                                                c.output_padding, c.groups, false, false, true, true)};
        }
        return std::vector{at::convolution(x[0], x[1], bias, c.stride, c.padding, c.dilation, c.transposed,
                                           c.output_padding, c.groups)};
    };
    return item;
}

TEST(Convolution, EqualsThePlainOperator)
{
    check_rule([](Draw& draw) { return draw_convolution(draw, false); }, {.num_cases = 300, .num_block_cases = 60});
}

TEST(Convolution, TransposedEqualsThePlainOperator)
{
    check_rule([](Draw& draw) { return draw_convolution(draw, true); }, {.num_cases = 300, .num_block_cases = 60});
}

TEST(Convolution, SamePaddingOfEvenKernelsEqualsThePlainOperator)
{
    check_rule(
        [](Draw& draw) {
            const auto dilation = draw.integer(1, 2);
            RuleCase item{
                "conv2d with padding 'same'",
                {draw.values({2, 2, draw.integer(1, 9), draw.integer(1, 7)}),
                 draw.values({2, 2, draw.integer(1, 4), draw.integer(1, 4)})},
                [=](auto& x) { return std::vector{at::conv2d(x[0], x[1], {}, {1, 1}, "same", {dilation, dilation})}; },
                {1}};
            return item;
        },
        {.num_cases = 60});
}

/// A grid cut along its rows, with a gradient to be asked for.
TEST(Convolution, SendsTheRowsAtTheSeamAndNothingElse)
{
    const auto image = Draw(1).values({2, 3, 9, 5}), weight = Draw(2).values({4, 3, 3, 3});
    run_ranks(2, [&](const auto& mesh) {
        const auto x = cut_rows(image, {4, 5}, mesh).requires_grad_();
        mesh->counter().reset();

        const auto y = at::conv2d(x, weight, {}, 1, 1);
        const auto forward = mesh->counter().calls();
        y.sum().backward();

        EXPECT_EQ(to_string(*spec_of(y)), "Shard(2) of 4+5 on domain");
        const auto row = 2 * 3 * 5 * static_cast<std::int64_t>(sizeof(double));
        ASSERT_EQ(forward.size(), 1u);
        EXPECT_EQ(forward[0].operation, "all_to_all");
        EXPECT_EQ(forward[0].bytes, row);
        for (const auto& call : mesh->counter().calls()) {
            if (call.operation == "all_to_all")
                EXPECT_EQ(call.bytes, row);
            else
                EXPECT_EQ(call.operation, "all_reduce");
        }
    });
}

TEST(Convolution, OfPatchesThatEachLieOnOneRankSendsNothing)
{
    const auto image = Draw(1).values({1, 3, 16, 8}), weight = Draw(2).values({6, 3, 4, 4});
    run_ranks(2, [&](const auto& mesh) {
        const auto x = cut_rows(image, {12, 4}, mesh).requires_grad_();
        mesh->counter().reset();

        const auto y = at::conv2d(x, weight, {}, 4);

        EXPECT_EQ(to_string(*spec_of(y)), "Shard(2) of 3+1 on domain");
        EXPECT_EQ(mesh->counter().num_calls(), 0);
        EXPECT_TRUE(tensors_near(full_tensor(y).detach(), at::conv2d(image, weight, {}, 4), 1e-12));
    });
}

TEST(Convolution, NeedsNoGatherOfACutGrid)
{
    const auto image = Draw(1).values({2, 4, 9, 7}), weight = Draw(2).values({4, 2, 3, 2});
    run_ranks({2, 2}, {"data", "domain"}, [&](const auto& mesh) {
        const AxisLayout rows{Shard(2), std::make_shared<Extents>(Extents{8, 1}), 1},
            columns{Shard(3), std::make_shared<Extents>(Extents{2, 5}), 1};
        const auto part =
            narrow_to_shard(narrow_to_shard(image, rows, mesh->coordinate(0)), columns, mesh->coordinate(1));
        const auto x = from_local(part.clone(), make_spec(mesh, {rows, columns})).requires_grad_();
        set_gather_policy(GatherPolicy::Refuse);
        at::conv2d(x, weight, {}, 2, {3, 1}, {1, 2}, 2).sum().backward();
        at::conv_transpose2d(x, weight, {}, 2, 1, 1, 2, 2).sum().backward();
        set_gather_policy(GatherPolicy::Silent);
    });
}

TEST(Convolution, RefusesWhatThePlainOperatorRefusesOnEveryRank)
{
    const auto image = Draw(1).values({1, 3, 6, 5}), weight = Draw(2).values({4, 2, 3, 3});
    run_ranks(3, [&](const auto& mesh) {
        const auto x = cut_rows(image, {6, 0, 0}, mesh).requires_grad_();
        set_gather_policy(GatherPolicy::Silent);
        EXPECT_THROW(at::conv2d(x, weight), c10::Error);
    });
}

}  // namespace
}  // namespace meshard
