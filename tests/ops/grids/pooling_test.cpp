// SPDX-License-Identifier: Apache-2.0
// Poolings of cut grids against the plain operator, indices of the largest values included.
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

struct Windows {
    std::int64_t n = 1;
    std::vector<std::int64_t> size, kernel, stride, padding, dilation;
    bool ceil_mode = false;
};

Windows draw_windows(Draw& draw, bool dilated)
{
    Windows w;
    w.n = draw.integer(1, 3);
    w.ceil_mode = draw.chance(0.4);
    for (std::int64_t i = 0; i < w.n; ++i) {
        w.kernel.push_back(draw.integer(1, w.n == 3 ? 3 : 4));
        w.stride.push_back(draw.integer(1, 3));
        w.padding.push_back(draw.integer(0, w.kernel[i] / 2));
        w.dilation.push_back(dilated ? draw.integer(1, 2) : 1);
        w.size.push_back(std::max(w.dilation[i] * (w.kernel[i] - 1) + 1, draw.integer(1, w.n == 3 ? 6 : 12)));
    }
    return w;
}

std::vector<std::int64_t> input_shape(Draw& draw, const Windows& w)
{
    std::vector<std::int64_t> shape{draw.integer(1, 3)};
    if (draw.chance(0.7)) shape.push_back(draw.integer(1, 2));
    shape.insert(shape.end(), w.size.begin(), w.size.end());
    return shape;
}

std::string show(const char* name, const Windows& w)
{
    std::string text = name;
    for (const auto& [label, list] :
         {std::pair{" kernel", w.kernel}, {" stride", w.stride}, {" padding", w.padding}, {" dilation", w.dilation}}) {
        text += label;
        for (const auto value : list) text += " " + std::to_string(value);
    }
    return text + (w.ceil_mode ? " ceil" : "");
}

/// Many values occur more than once, so that the first of several largest ones matters.
at::Tensor with_ties(Draw& draw, const std::vector<std::int64_t>& shape)
{
    return draw.values(shape).mul(1.5).round();
}

TEST(Pooling, LargestValuesAndTheirIndicesEqualThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const auto w = draw_windows(draw, true);
            RuleCase item;
            item.text = show("max pool", w);
            item.inputs = {draw.chance(0.5) ? with_ties(draw, input_shape(draw, w))
                                            : draw.values(input_shape(draw, w))};
            item.function = [w](const std::vector<at::Tensor>& x) {
                std::tuple<at::Tensor, at::Tensor> result;
                if (w.n == 1)
                    result = at::max_pool1d_with_indices(x[0], w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode);
                else if (w.n == 2)
                    result = at::max_pool2d_with_indices(x[0], w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode);
                else
                    result = at::max_pool3d_with_indices(x[0], w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode);
                return std::vector{std::get<0>(result), std::get<1>(result)};
            };
            return item;
        },
        {.num_cases = 300,
         .partial_inputs = false,
         .num_block_cases = 60});  // parts of sums that nearly tie would decide otherwise
}

TEST(Pooling, AveragesEqualThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const auto w = draw_windows(draw, false);
            const bool include = draw.chance(0.5);
            const auto divisor =
                draw.chance(0.2) && w.n > 1 ? std::optional<std::int64_t>(draw.integer(1, 5)) : std::nullopt;
            RuleCase item;
            item.text = show(include ? "average pool over the padding too" : "average pool", w);
            item.inputs = {draw.values(input_shape(draw, w))};
            item.function = [=](const std::vector<at::Tensor>& x) {
                if (w.n == 1)
                    return std::vector{at::avg_pool1d(x[0], w.kernel, w.stride, w.padding, w.ceil_mode, include)};
                if (w.n == 2)
                    return std::vector{
                        at::avg_pool2d(x[0], w.kernel, w.stride, w.padding, w.ceil_mode, include, divisor)};
                return std::vector{at::avg_pool3d(x[0], w.kernel, w.stride, w.padding, w.ceil_mode, include, divisor)};
            };
            return item;
        },
        {.num_cases = 300, .num_block_cases = 60});
}

struct Adaptive {
    std::int64_t n = 1;
    std::vector<std::int64_t> size, out;
    std::string text;
};

Adaptive draw_adaptive(Draw& draw, const char* name)
{
    Adaptive a;
    a.n = draw.integer(1, 3);
    a.text = std::string(name) + " to";
    for (std::int64_t i = 0; i < a.n; ++i) {
        a.size.push_back(draw.integer(1, a.n == 3 ? 6 : 12));
        a.out.push_back(draw.chance(0.4) ? 1 : draw.integer(1, a.n == 3 ? 4 : 7));
        a.text += " " + std::to_string(a.out[i]);
    }
    return a;
}

std::vector<std::int64_t> input_shape(Draw& draw, const Adaptive& a)
{
    std::vector<std::int64_t> shape{draw.integer(1, 3)};
    if (draw.chance(0.7)) shape.push_back(draw.integer(1, 2));
    shape.insert(shape.end(), a.size.begin(), a.size.end());
    return shape;
}

TEST(Pooling, AveragesToASizeEqualThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const auto a = draw_adaptive(draw, "adaptive average pool");
            RuleCase item;
            item.text = a.text;
            item.inputs = {draw.values(input_shape(draw, a))};
            item.function = [=](const std::vector<at::Tensor>& x) {
                if (a.n == 1) return std::vector{at::adaptive_avg_pool1d(x[0], a.out)};
                return std::vector{a.n == 2 ? at::adaptive_avg_pool2d(x[0], a.out)
                                            : at::adaptive_avg_pool3d(x[0], a.out)};
            };
            return item;
        },
        {.num_cases = 250, .num_block_cases = 60});
}

TEST(Pooling, LargestValuesToASizeEqualThePlainOperators)
{
    check_rule(
        [](Draw& draw) {
            const auto a = draw_adaptive(draw, "adaptive max pool");
            RuleCase item;
            item.text = a.text;
            item.inputs = {draw.chance(0.5) ? with_ties(draw, input_shape(draw, a))
                                            : draw.values(input_shape(draw, a))};
            item.function = [=](const std::vector<at::Tensor>& x) {
                const auto result = a.n == 1   ? at::adaptive_max_pool1d(x[0], a.out)
                                    : a.n == 2 ? at::adaptive_max_pool2d(x[0], a.out)
                                               : at::adaptive_max_pool3d(x[0], a.out);
                return std::vector{std::get<0>(result), std::get<1>(result)};
            };
            return item;
        },
        {.num_cases = 250, .partial_inputs = false, .num_block_cases = 60});
}

TEST(Pooling, NeedsNoGatherOfACutGrid)
{
    const auto whole = Draw(1).values({2, 4, 9, 7});
    run_ranks({2, 2}, {"data", "domain"}, [&](const auto& mesh) {
        const AxisLayout rows{Shard(2), std::make_shared<Extents>(Extents{8, 1}), 1},
            columns{Shard(3), std::make_shared<Extents>(Extents{2, 5}), 1};
        const auto part =
            narrow_to_shard(narrow_to_shard(whole, rows, mesh->coordinate(0)), columns, mesh->coordinate(1));
        const auto x = from_local(part.clone(), make_spec(mesh, {rows, columns})).requires_grad_();
        set_gather_policy(GatherPolicy::Refuse);
        at::max_pool2d(x, 3, 2, 1, 1, true).sum().backward();
        at::avg_pool2d(x, 3, 2, 1, true, false).sum().backward();
        at::adaptive_avg_pool2d(x, {6, 2}).sum().backward();
        std::get<0>(at::adaptive_max_pool2d(x, {6, 2})).sum().backward();
        set_gather_policy(GatherPolicy::Silent);
    });
}

TEST(Pooling, WithoutIndicesNeedsNoGradients)
{
    const auto whole = Draw(3).values({2, 3, 11});
    run_ranks(3, [&](const auto& mesh) {
        const AxisLayout layout{Shard(2), std::make_shared<Extents>(Extents{2, 8, 1}), 1};
        const auto x =
            from_local(narrow_to_shard(whole, layout, mesh->coordinate(0)).clone(), make_spec(mesh, {layout}));
        EXPECT_TRUE(at::equal(full_tensor(at::max_pool1d(x, 3, 2, 1)), at::max_pool1d(whole, 3, 2, 1)));
    });
}

TEST(Pooling, OfInfinitiesGivesIndicesThatExist)
{
    const auto whole = at::full({1, 1, 5, 5}, -std::numeric_limits<double>::infinity());
    run_ranks(2, [&](const auto& mesh) {
        const AxisLayout layout{Shard(2), std::make_shared<Extents>(Extents{3, 2}), 1};
        const auto x =
            from_local(narrow_to_shard(whole, layout, mesh->coordinate(0)).clone(), make_spec(mesh, {layout}));
        const auto indices = std::get<1>(at::max_pool2d_with_indices(x, 3, 2, 1, 1, true));
        EXPECT_TRUE(at::equal(full_tensor(indices), std::get<1>(at::max_pool2d_with_indices(whole, 3, 2, 1, 1, true))));
    });
}

TEST(Pooling, OfWindowsThatEachLieOnOneRankSendsNothing)
{
    const auto whole = Draw(3).values({1, 2, 12, 6});
    run_ranks(2, [&](const auto& mesh) {
        const AxisLayout layout{Shard(2), std::make_shared<Extents>(Extents{8, 4}), 1};
        const auto x =
            from_local(narrow_to_shard(whole, layout, mesh->coordinate(0)).clone(), make_spec(mesh, {layout}));
        mesh->counter().reset();

        const auto y = at::max_pool2d(x, 2);

        EXPECT_EQ(mesh->counter().num_calls(), 0);
        EXPECT_EQ(to_string(*spec_of(y)), "Shard(2) of 4+2 on domain");
        EXPECT_TRUE(at::equal(full_tensor(y), at::max_pool2d(whole, 2)));
    });
}

/// Aten tells the result how it lies by as_strided_, with the shape that it has.
TEST(Pooling, TakesChannelsThatLieLast)
{
    run_ranks(2, [](const auto& mesh) {
        set_gather_policy(GatherPolicy::Silent);
        const auto whole = at::arange(2 * 3 * 10 * 4, at::kDouble)
                               .view({2, 3, 10, 4})
                               .sin()
                               .contiguous(at::MemoryFormat::ChannelsLast);
        const auto layout = AxisLayout{Shard(2), std::make_shared<Extents>(Extents{7, 3}), 1};
        const auto x =
            from_local(narrow_to_shard(whole, layout, mesh->coordinate(0)).clone(), make_spec(mesh, {layout}))
                .contiguous(at::MemoryFormat::ChannelsLast);
        for (const auto& image : {x, x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2})}) {
            EXPECT_TRUE(tensors_near(full_tensor(at::adaptive_avg_pool2d(image, {1, 1})),
                                     at::adaptive_avg_pool2d(whole, {1, 1}), 1e-14));
        }
        set_gather_policy(GatherPolicy::Warn);
    });
}

}  // namespace
}  // namespace meshard
