// SPDX-License-Identifier: Apache-2.0
// Normalisations whose statistics cross the cuts, against the plain operators.
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

RuleProperty property(std::uint64_t first_seed, std::vector<Gathering> gathers = {})
{
    RuleProperty property;
    property.gathers = std::move(gathers);
    property.tolerance = 1e-10;
    property.first_seed = first_seed;
    property.partial_inputs = false;
    return property;
}

/// (N, C, ...) with no to three further dimensions.
std::vector<std::int64_t> draw_shape(Draw& draw, std::int64_t channels, int least_positions)
{
    std::vector<std::int64_t> shape{draw.integer(2, 4), channels};
    for (auto k = draw.integer(least_positions, 2); k > 0; --k) shape.push_back(draw.integer(2, 6));
    return shape;
}

TEST(BatchNorm, EqualsThePlainOperatorWithRunningStatistics)
{
    check_rule(
        [](Draw& draw) {
            const auto channels = draw.integer(1, 5);
            const bool training = draw.chance(0.7), affine = draw.chance(0.8), running = !training || draw.chance(0.7);
            const auto momentum = draw.real(0.05, 1);
            const auto mean = draw.values({channels}), variance = draw.values({channels}).square() + 0.5;
            Tensors inputs{draw.values(draw_shape(draw, channels, 0)) * 2 + 3};
            if (affine) inputs.insert(inputs.end(), {draw.values({channels}), draw.values({channels})});
            std::vector<std::int64_t> whole;
            if (draw.chance(0.7) && affine) whole = {1, 2};
            return RuleCase{
                training ? "batch norm in training" : "batch norm in evaluation", inputs,
                [=](const Tensors& x) {
                    const auto copy = [&](const at::Tensor& statistic) {
                        return running ? statistic.to(x[0].device(), x[0].scalar_type(), false, true) : at::Tensor();
                    };
                    const auto running_mean = copy(mean), running_var = copy(variance);
                    const auto y = at::batch_norm(x[0], affine ? x[1] : at::Tensor(), affine ? x[2] : at::Tensor(),
                                                  running_mean, running_var, training, momentum, 1e-3, true);
                    // The statistics come out as if they depended on the input, so that they are compared too.
                    return running ? Tensors{y, y.detach().sum() * 0 + running_mean, y.detach().sum() * 0 + running_var}
                                   : Tensors{y};
                },
                whole};
        },
        property(1000));
}

TEST(BatchNorm, LeavesTheSameRunningStatisticsOnEveryRank)
{
    run_ranks(3, [](const auto& mesh) {
        const auto whole = at::arange(42, at::kDouble).mul(0.7).sin().view({7, 2, 3}) + 5;
        const auto layout = AxisLayout{Shard(0), std::make_shared<Extents>(Extents{5, 0, 2}), 1};
        const auto x =
            from_local(narrow_to_shard(whole, layout, mesh->coordinate(0)).clone(), make_spec(mesh, {layout}));
        set_gather_policy(GatherPolicy::Refuse);
        auto mean = at::zeros({2}, at::kDouble), variance = at::ones({2}, at::kDouble), plain_mean = mean.clone(),
             plain_variance = variance.clone();

        at::batch_norm(x, {}, {}, mean, variance, true, 0.1, 1e-5, true);
        at::batch_norm(whole, {}, {}, plain_mean, plain_variance, true, 0.1, 1e-5, true);

        EXPECT_FALSE(is_sharded(mean));
        EXPECT_TRUE(tensors_near(mean, plain_mean, 1e-14));
        EXPECT_TRUE(tensors_near(variance, plain_variance, 1e-14));
        set_gather_policy(GatherPolicy::Warn);
    });
}

TEST(BatchNorm, KeepsItsAccuracyFarFromZero)
{
    run_ranks(4, [](const auto& mesh) {
        const auto whole = (at::arange(4096, at::kDouble).mul(1.7).sin().view({1024, 4}) + 1000).to(at::kFloat);
        const auto x = redistribute(from_local(whole, replicated_spec(mesh)), {Shard(0)});

        const auto y = full_tensor(at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, true));

        EXPECT_TRUE(tensors_near(y.to(at::kDouble),
                                 at::batch_norm(whole.to(at::kDouble), {}, {}, {}, {}, true, 0.1, 1e-5, true), 1e-4));
    });
}

TEST(GroupNorm, EqualsThePlainOperator)
{
    check_rule(
        [](Draw& draw) {
            const auto groups = draw.integer(1, 3), channels = groups * draw.integer(1, 3);
            const bool affine = draw.chance(0.8);
            Tensors inputs{draw.values(draw_shape(draw, channels, channels > groups ? 0 : 1)) + 1};
            if (affine) inputs.insert(inputs.end(), {draw.values({channels}), draw.values({channels})});
            return RuleCase{"group norm",
                            inputs,
                            [=](const Tensors& x) {
                                return Tensors{at::group_norm(x[0], groups, affine ? x[1] : at::Tensor(),
                                                              affine ? x[2] : at::Tensor(), 1e-3)};
                            },
                            {}};
        },
        property(2000));
}

TEST(InstanceNorm, EqualsThePlainOperator)
{
    check_rule(
        [](Draw& draw) {
            const auto channels = draw.integer(1, 4);
            const bool affine = draw.chance(0.5), training = draw.chance(0.8);
            const auto mean = draw.values({channels}), variance = draw.values({channels}).square() + 0.5;
            Tensors inputs{draw.values(draw_shape(draw, channels, 1)) + 1};
            if (affine) inputs.insert(inputs.end(), {draw.values({channels}), draw.values({channels})});
            return RuleCase{"instance norm", inputs,
                            [=](const Tensors& x) {
                                const auto running_mean = mean.clone(), running_var = variance.clone();
                                const auto y =
                                    at::instance_norm(x[0], affine ? x[1] : at::Tensor(), affine ? x[2] : at::Tensor(),
                                                      training ? at::Tensor() : running_mean,
                                                      training ? at::Tensor() : running_var, training, 0.1, 1e-3, true);
                                return Tensors{y};
                            },
                            affine ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{}};
        },
        property(3000, {{"aten::view", "second", kTwoAxes}}));
}

TEST(LayerNorm, EqualsThePlainOperatorOverCutDimensions)
{
    check_rule(
        [](Draw& draw) {
            const auto shape = draw_shape(draw, draw.integer(2, 5), 0);
            const auto outer = draw.integer(0, static_cast<std::int64_t>(shape.size()) - 1);
            const std::vector<std::int64_t> normalized(shape.begin() + outer, shape.end());
            const bool affine = draw.chance(0.7), rms = draw.chance(0.3);
            Tensors inputs{draw.values(shape) + 1};
            if (affine) inputs.insert(inputs.end(), {draw.values(normalized), draw.values(normalized)});
            return RuleCase{rms ? "RMS norm" : "layer norm",
                            inputs,
                            [=](const Tensors& x) {
                                const auto weight = affine ? x[1] : at::Tensor(), bias = affine ? x[2] : at::Tensor();
                                if (rms)
                                    return Tensors{at::rms_norm(
                                        x[0], normalized, affine ? std::make_optional(weight) : std::nullopt, 1e-3)};
                                return Tensors{at::layer_norm(x[0], normalized, weight, bias, 1e-3)};
                            },
                            {}};
        },
        property(4000));
}

}  // namespace
}  // namespace meshard
