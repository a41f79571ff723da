// SPDX-License-Identifier: Apache-2.0
#include "models/layers/field_loss.h"
#include "models/layers/metrics.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <string>
#include <vector>

namespace meshard {
namespace {

constexpr std::int64_t kLossPoints = 37;
const std::vector<std::int64_t> kChannels{1, 3};  // pressure and wall shear stress
const std::vector<std::vector<double>> kWeights{{2}, {1, 0.5, 3}};

struct Sample {
    at::Tensor prediction, target, areas;
    Normalizer normalizer;
};

Sample sample(at::ScalarType type = at::kDouble)
{
    torch::manual_seed(4);
    const auto options = torch::TensorOptions(type);
    auto areas = torch::rand({1, kLossPoints, 1}, options) + 0.1;
    areas = areas / areas.mean();
    return {torch::randn({1, kLossPoints, 4}, options) * 1.7,
            torch::randn({1, kLossPoints, 4}, options),
            areas,
            {torch::tensor({-3.0, 0.1, 0.0, 0.2}, options), torch::tensor({20.0, 0.5, 0.25, 2.0}, options)}};
}

/// From the definitions, number by number.
double by_hand(LossKind kind, double delta, const Sample& sample, const std::vector<std::vector<double>>& field_weights,
               bool weigh_areas)
{
    const auto y = sample.prediction.accessor<double, 3>(), t = sample.target.accessor<double, 3>();
    const auto mean = sample.normalizer.mean.accessor<double, 1>(), std = sample.normalizer.std.accessor<double, 1>();
    const auto area = sample.areas.accessor<double, 3>();
    double above = 0, below = 0;
    std::int64_t first = 0;
    for (std::size_t f = 0; f < kChannels.size(); ++f) {
        double of_errors = 0, of_truths = 0, sum_of_weights = 0;
        for (std::int64_t c = 0; c < kChannels[f]; ++c) {
            const auto weight = field_weights.empty()          ? 1.0
                                : field_weights[f].size() == 1 ? field_weights[f][0]
                                                               : field_weights[f][c];
            double sum = 0, truths = 0, count = 0;
            for (std::int64_t i = 0; i < kLossPoints; ++i) {
                const auto m = weigh_areas ? area[0][i][0] : 1.0;
                const auto truth = t[0][i][first + c], d = y[0][i][first + c] - truth;
                count += m;
                truths += m * truth * truth;
                of_errors += m * std::pow(d * std[first + c], 2);
                of_truths += m * std::pow(truth * std[first + c] + mean[first + c], 2);
                if (kind == LossKind::Absolute) sum += m * std::abs(d);
                if (kind == LossKind::MeanSquare || kind == LossKind::RelativeMeanSquare) sum += m * d * d;
                if (kind == LossKind::Huber)
                    sum += m * (std::abs(d) <= delta ? d * d / 2 : delta * (std::abs(d) - delta / 2));
            }
            if (kind != LossKind::RelativeL2) {
                above += weight *
                         (kind == LossKind::RelativeMeanSquare ? (sum / count) / (truths / count + 1e-8) : sum / count);
                below += weight;
            }
            sum_of_weights += weight;
        }
        if (kind == LossKind::RelativeL2) {
            const auto weight = sum_of_weights / static_cast<double>(kChannels[f]);
            above += weight * std::sqrt(of_errors / of_truths + 1e-12);
            below += weight;
        }
        first += kChannels[f];
    }
    return above / below;
}

constexpr LossKind kKinds[] = {LossKind::MeanSquare, LossKind::Absolute, LossKind::Huber, LossKind::RelativeMeanSquare,
                               LossKind::RelativeL2};

TEST(FieldLoss, IsThatOfTheDefinitions)
{
    const auto given = sample();
    for (const auto kind : kKinds) {
        for (const auto& weights : {std::vector<std::vector<double>>{}, kWeights}) {
            for (const bool weigh_areas : {false, true}) {
                const FieldLoss loss({.terms = {{kind, 1}}, .huber_delta = 0.7, .field_weights = weights}, kChannels,
                                     given.normalizer);
                const auto expected = by_hand(kind, 0.7, given, weights, weigh_areas);
                EXPECT_NEAR(
                    loss(given.prediction, given.target, weigh_areas ? given.areas : at::Tensor()).item<double>(),
                    expected, 1e-6 * expected)
                    << static_cast<int>(kind) << " " << weights.size() << " " << weigh_areas;
                if (!weigh_areas) continue;
                // Of points that are drawn the weights' mean is another than 1.
                EXPECT_NEAR(loss(given.prediction, given.target, 3 * given.areas).item<double>(), expected,
                            1e-6 * expected)
                    << static_cast<int>(kind);
            }
        }
    }
}

TEST(FieldLoss, RelativeToTheTruthDoesNotDependOnUnits)
{
    const auto given = sample(torch::kFloat);
    const auto loss_in = [&](float unit) {
        const Normalizer normalizer{given.normalizer.mean * unit, given.normalizer.std * unit};
        return FieldLoss({.terms = {{LossKind::RelativeL2, 1}}}, kChannels, normalizer)(given.prediction, given.target)
            .item<float>();
    };
    for (const int power : {-80, -30, 40})
        EXPECT_EQ(loss_in(std::exp2(static_cast<float>(power))), loss_in(1)) << power;
}

TEST(FieldLoss, IsTheWeightedSumOfItsTerms)
{
    const auto given = sample();
    const FieldLoss loss(
        {.terms = {{LossKind::MeanSquare, 1}, {LossKind::RelativeL2, 0.05}}, .huber_delta = 1, .field_weights = {}},
        kChannels, given.normalizer);

    const auto expected =
        by_hand(LossKind::MeanSquare, 1, given, {}, false) + 0.05 * by_hand(LossKind::RelativeL2, 1, given, {}, false);
    EXPECT_NEAR(loss(given.prediction, given.target).item<double>(), expected, 1e-7 * expected);
}

TEST(FieldLoss, IsTheMeanSquaredErrorUnlessSaid)
{
    const auto given = sample(at::kFloat);
    const auto expected = mean_squared_error(given.prediction, given.target);

    EXPECT_TRUE(torch::equal(FieldLoss()(given.prediction, given.target), expected));
    EXPECT_TRUE(torch::equal(FieldLoss({}, kChannels, given.normalizer)(given.prediction, given.target),
                             expected));  // to the bit
}

TEST(FieldLoss, HasGradientsWhereThePredictionIsRight)
{
    const auto given = sample();
    for (const auto kind : kKinds) {
        const auto prediction = given.target.clone().requires_grad_();
        FieldLoss({.terms = {{kind, 1}}, .huber_delta = 1, .field_weights = {}}, kChannels,
                  given.normalizer)(prediction, given.target)
            .backward();
        EXPECT_TRUE(prediction.grad().isfinite().all().item<bool>()) << static_cast<int>(kind);
    }
}

TEST(FieldLoss, OfShardsIsThatOfTheWhole)
{
    const auto given = sample();
    const std::vector<LossTerm> all{{LossKind::MeanSquare, 1},
                                    {LossKind::Absolute, 0.3},
                                    {LossKind::Huber, 2},
                                    {LossKind::RelativeMeanSquare, 0.5},
                                    {LossKind::RelativeL2, 0.05}};
    std::vector<std::vector<LossTerm>> mixtures{all};
    for (const auto kind : kKinds) mixtures.push_back({{kind, 1}});
    for (const auto& terms : mixtures) {
        const FieldLoss loss({.terms = terms, .huber_delta = 0.7, .field_weights = kWeights}, kChannels,
                             given.normalizer);
        const auto whole = given.prediction.clone().requires_grad_();
        const auto expected = loss(whole, given.target, given.areas);
        expected.backward();
        for (const auto& extents : std::vector<Extents>{{37}, {30, 7}, {20, 0, 17}}) {
            run_ranks(static_cast<int>(extents.size()), [&](const auto& mesh) {
                std::int64_t offset = 0;
                for (int r = 0; r < mesh->all().rank(); ++r) offset += extents[r];
                const auto count = extents[mesh->all().rank()];
                const auto shard = [&](const at::Tensor& rows) {
                    return from_local(rows.narrow(1, offset, count), mesh, {Shard(1)});
                };
                const auto own = given.prediction.narrow(1, offset, count).clone().requires_grad_();

                const auto found = loss(from_local(own, mesh, {Shard(1)}), shard(given.target), shard(given.areas));
                found.backward();

                EXPECT_NEAR(found.template item<double>(), expected.item<double>(), 1e-12 * expected.item<double>());
                EXPECT_TRUE(tensors_near(own.grad(), whole.grad().narrow(1, offset, count), 1e-11));
            });
        }
    }
}

TEST(FieldLoss, RefusesWeightsThatDoNotFit)
{
    const auto given = sample();
    const auto refuses = [&](std::vector<std::vector<double>> weights, std::string_view text) {
        return throws_with<InvalidInput>(text, [&] {
            FieldLoss({.terms = {{}}, .huber_delta = 1, .field_weights = weights}, kChannels, given.normalizer);
        });
    };
    EXPECT_TRUE(refuses({{1}}, "1 weights for 2 fields"));
    EXPECT_TRUE(refuses({{1}, {1, 2}}, "field 2 has 3 channels, and 2 weights"));
    EXPECT_TRUE(refuses({{0}, {0}}, "the weights of all fields are 0"));
    EXPECT_TRUE(throws_with<InvalidInput>("'mae' is none of mse, l1, huber, relative_mse, relative_l2",
                                          [] { loss_kind("mae"); }));
    for (const std::string name : {"mse", "l1", "huber", "relative_mse", "relative_l2"}) loss_kind(name);
}

}  // namespace
}  // namespace meshard
