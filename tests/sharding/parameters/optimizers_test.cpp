// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "sharding/parameters/optimizers.h"
#include "sharding/parameters/orthogonalize.h"
#include "sharding/parameters/weight_average.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

namespace meshard {
namespace {

/// What becomes of a singular value.
double mapped(double x)
{
    for (int i = 0; i < 5; ++i) x = 3.4445 * x - 4.7750 * std::pow(x, 3) + 2.0315 * std::pow(x, 5);
    return x;
}

TEST(Orthogonalized, MapsSingularValuesByThePolynomial)
{
    const auto diagonal = orthogonalized(torch::diag(torch::tensor({3.0, 4.0}, torch::kDouble)));
    EXPECT_TRUE(
        tensors_near(diagonal, torch::diag(torch::tensor({0.72288, 1.11920}, torch::kDouble)), 5e-6));  // published
    for (const auto& [x, y] :
         std::vector<std::pair<double, double>>{{0.01, 0.69892}, {0.1, 0.71212}, {0.5, 0.76544}, {1, 0.69644}})
        EXPECT_NEAR(mapped(x), y, 5e-6);

    torch::manual_seed(3);
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{5, 9}, {9, 5}, {1, 4}, {6, 6}}) {
        const auto matrix = torch::randn(shape, torch::kDouble);
        const auto [u, values, v] = at::linalg_svd(matrix, /*full_matrices=*/false);
        auto expected = values / values.norm();
        for (std::int64_t i = 0; i < expected.numel(); ++i) expected[i] = mapped(expected[i].item<double>());
        EXPECT_TRUE(tensors_near(orthogonalized(matrix), u.matmul(torch::diag(expected)).matmul(v), 1e-9));
        EXPECT_TRUE(tensors_near(orthogonalized(torch::stack({matrix, matrix * 7}))[1], orthogonalized(matrix), 1e-10));
    }
    EXPECT_TRUE(torch::equal(orthogonalized(torch::zeros({2, 3})), torch::zeros({2, 3})));
}

at::Tensor leaf(const std::vector<double>& values)
{
    return torch::tensor(values, torch::kDouble).requires_grad_();
}

TEST(Lion, TakesThreeStepsAsByHand)
{
    const auto p = leaf({1, -2, 0.5});
    Optimizers optimizers(
        {{{.rule = UpdateRule::Lion, .rate_factor = 0.5, .weight_decay = 0.1, .betas = {0.9, 0.99}}, {{p, {3}}}}});
    optimizers.set_rate(0.02);  // 0.01 for this group
    // p *= 1 - lr wd, p -= lr sign(0.9 m + 0.1 g), m = 0.99 m + 0.01 g
    const std::vector<std::vector<double>> gradients{{1, -1, 0}, {-0.05, 2, 0}, {-1, 0, 3}};
    const std::vector<std::vector<double>> signs{{1, -1, 0}, {1, 1, 0}, {-1, 1, 1}};
    // second: 0.9 * 0.01 - 0.1 * 0.05 > 0; -0.9 * 0.01 + 0.2 > 0. third: m2 = 0.0099 - 0.0005 = 0.0094, 0.00846 - 0.1 <
    // 0; m2 = -0.0099 + 0.02 > 0
    std::vector<double> expected{1, -2, 0.5};
    for (int step = 0; step < 3; ++step) {
        at::Tensor(p).mutable_grad() = torch::tensor(gradients[step], torch::kDouble);
        optimizers.step();
        for (int i = 0; i < 3; ++i) expected[i] = expected[i] * (1 - 0.01 * 0.1) - 0.01 * signs[step][i];
        EXPECT_TRUE(tensors_near(p.detach(), torch::tensor(expected, torch::kDouble), 1e-15)) << step;
    }
    EXPECT_TRUE(tensors_near(optimizers.state(p)->mean,
                             torch::tensor({0.99 * 0.0094 - 0.01, 0.99 * 0.0101, 0.03}, torch::kDouble), 1e-12));
    EXPECT_EQ(optimizers.state(p)->step, 3);
}

/// Shapes of a small model's parameters.
const std::vector<std::vector<std::int64_t>> kShapes{{6, 4}, {6}, {4, 6}, {3, 11}, {1, 2, 2, 1}, {6, 4}};

std::vector<at::Tensor> whole_values(int seed)
{
    torch::manual_seed(seed);
    std::vector<at::Tensor> values;
    for (const auto& shape : kShapes) values.push_back(torch::randn(shape, torch::kDouble));
    return values;
}

TEST(Muon, StepsAsItsDefinition)
{
    for (const bool matches_adamw : {true, false}) {
        const auto p = torch::randn({3, 12}, torch::kDouble).requires_grad_(),
                   q = torch::randn({8, 2}, torch::kDouble).requires_grad_();
        Optimizers optimizers(
            {{{.rule = UpdateRule::Muon, .weight_decay = 0.2, .momentum = 0.9, .matches_adamw = matches_adamw},
              {{p, {3, 12}}, {q, {8, 2}}}}});
        optimizers.set_rate(0.1);
        for (const auto& parameter : {p, q}) {
            auto expected = parameter.detach().clone(), buffer = torch::zeros_like(expected);
            for (int step = 0; step < 3; ++step) {
                torch::manual_seed(step);
                for (const auto& any : {p, q}) at::Tensor(any).mutable_grad() = at::Tensor();
                const auto gradient = torch::randn_like(expected);
                at::Tensor(parameter).mutable_grad() = gradient;
                optimizers.step();
                buffer = 0.9 * buffer + 0.1 * gradient;
                const auto rows = static_cast<double>(parameter.size(0)),
                           columns = static_cast<double>(parameter.size(1));
                const auto size =
                    matches_adamw ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
                expected = expected * (1 - 0.1 * 0.2) - 0.1 * size * orthogonalized(0.1 * gradient + 0.9 * buffer);
            }
            EXPECT_TRUE(tensors_near(parameter.detach(), expected, 1e-12));
        }
    }
}

/// Steps of all rules, on whole parameters or on flat parts of them that end anywhere.
TEST(Optimizers, OfPartsAreThoseOfTheWhole)
{
    const auto groups = [](const std::vector<at::Tensor>& values, UpdateRule rule) {
        std::vector<OptimizedGroup> all(2);
        all[0].options = {.rule = rule, .rate_factor = 1, .weight_decay = 0.1};
        all[1].options = {.rule = UpdateRule::AdamW, .rate_factor = 0.3, .weight_decay = 0};
        for (std::size_t i = 0; i < values.size(); ++i)
            all[i == 3 ? 1 : 0].parameters.push_back({values[i], kShapes[i]});
        return all;
    };
    for (const auto rule : {UpdateRule::AdamW, UpdateRule::Lion, UpdateRule::Muon}) {
        const auto set_gradient = [](const at::Tensor& parameter, const at::Tensor& gradient, int step, std::size_t i) {
            at::Tensor(parameter).mutable_grad() =
                i == 2 && step == 1 ? at::Tensor() : gradient.clone();  // one sits a step out
        };
        const auto start = whole_values(1);
        std::vector<std::vector<at::Tensor>> gradients;
        for (int step = 0; step < 4; ++step) gradients.push_back(whole_values(10 + step));
        auto whole = whole_values(1);
        for (auto& value : whole) value.requires_grad_();
        Optimizers serial(groups(whole, rule));
        for (int step = 0; step < 4; ++step) {
            serial.set_rate(0.02 / (1 + step));
            for (std::size_t i = 0; i < whole.size(); ++i) set_gradient(whole[i], gradients[step][i], step, i);
            serial.step();
        }
        EXPECT_GT((whole[0].detach() - start[0]).abs().max().item<double>(), 1e-3);

        for (const int num_ranks : {1, 2, 3, 4}) {
            run_ranks(num_ranks, [&](const auto& mesh) {
                const auto& ranks = mesh->all();
                // All parameters end to end, cut at places that have nothing to do with their borders; the second of
                // four ranks has nothing.
                const std::vector<std::int64_t> cuts = num_ranks == 4 ? std::vector<std::int64_t>{0, 29, 29, 61, 115}
                                                                      : std::vector<std::int64_t>{0, 50, 77, 115};
                const auto begin = cuts[ranks.rank()],
                           end = ranks.rank() + 1 == num_ranks ? 115 : cuts[ranks.rank() + 1];
                const auto part = [&](const std::vector<at::Tensor>& values, std::size_t i) {
                    std::int64_t first = 0;
                    for (std::size_t k = 0; k < i; ++k) first += values[k].numel();
                    const auto low = std::clamp<std::int64_t>(begin - first, 0, values[i].numel()),
                               high = std::clamp<std::int64_t>(end - first, 0, values[i].numel());
                    return values[i].detach().reshape({-1}).narrow(0, low, high - low).clone();
                };
                std::vector<at::Tensor> parts;
                for (std::size_t i = 0; i < start.size(); ++i) parts.push_back(part(start, i).requires_grad_());
                Optimizers optimizers(groups(parts, rule), &ranks);
                for (int step = 0; step < 4; ++step) {
                    optimizers.set_rate(0.02 / (1 + step));
                    for (std::size_t i = 0; i < parts.size(); ++i)
                        set_gradient(parts[i], part(gradients[step], i), step, i);
                    optimizers.step();
                }
                for (std::size_t i = 0; i < parts.size(); ++i)
                    EXPECT_TRUE(tensors_near(parts[i].detach(), part(whole, i), 1e-12)) << i;
            });
        }
    }
}

TEST(Optimizers, GoOnFromTheirState)
{
    for (const auto rule : {UpdateRule::AdamW, UpdateRule::Lion, UpdateRule::Muon}) {
        const auto run = [&](int stop) {
            auto values = whole_values(1);
            std::vector<OptimizedGroup> groups(1);
            groups[0].options = {.rule = rule, .weight_decay = 0.1};
            for (std::size_t i = 0; i < values.size(); ++i)
                groups[0].parameters.push_back({values[i].requires_grad_(), kShapes[i]});
            auto optimizers = std::make_unique<Optimizers>(groups);
            for (int step = 0; step < 5; ++step) {
                if (step == stop) {
                    auto next = std::make_unique<Optimizers>(groups);
                    for (const auto& value : values) next->set_state(value, *optimizers->state(value));
                    optimizers = std::move(next);
                }
                const auto gradients = whole_values(10 + step);
                for (std::size_t i = 0; i < values.size(); ++i) values[i].mutable_grad() = gradients[i];
                optimizers->set_rate(0.01);
                optimizers->set_first_beta(0.9 - 0.01 * step);
                optimizers->step();
            }
            optimizers->zero_grad();
            for (const auto& value : values) EXPECT_FALSE(value.grad().defined());
            return values;
        };
        const auto whole = run(-1), stopped = run(3);
        for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(at::equal(whole[i], stopped[i]));
    }
    EXPECT_FALSE(Optimizers({{{.rule = UpdateRule::Lion}, {{leaf({1}), {1}}}}}).state(leaf({1})).has_value());
}

TEST(Optimizers, HaveTheBitsOfLibTorchsAdamWOnTheCpu)
{
    auto own = whole_values(1), plain = whole_values(1);
    std::vector<OptimizedGroup> groups(1);
    groups[0].options = {.rule = UpdateRule::AdamW, .weight_decay = 0.05, .betas = {0.8, 0.98}};
    for (std::size_t i = 0; i < own.size(); ++i) groups[0].parameters.push_back({own[i].requires_grad_(), kShapes[i]});
    for (auto& value : plain) value.requires_grad_();
    Optimizers optimizers(groups);
    torch::optim::AdamW reference(plain, torch::optim::AdamWOptions(0.01).betas({0.8, 0.98}).weight_decay(0.05));
    optimizers.set_rate(0.01);
    for (int step = 0; step < 3; ++step) {
        const auto gradients = whole_values(10 + step);
        for (std::size_t i = 0; i < own.size(); ++i) own[i].mutable_grad() = plain[i].mutable_grad() = gradients[i];
        optimizers.step();
        reference.step();
    }
    for (std::size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(at::equal(own[i], plain[i]));
}

TEST(WeightAverage, IsTheWeightedSumOfAllWeights)
{
    auto p = leaf({1, 2});
    WeightAverage average({p}, 0.5);
    double expected = 1;
    for (int t = 0; t < 12; ++t) {
        {
            const at::NoGradGuard no_grad;
            p.add_(t);
        }
        average.update();
        const auto decay = std::min(0.5, (1.0 + t) / (10.0 + t));
        expected = decay * expected + (1 - decay) * p[0].item<double>();
        EXPECT_NEAR(average.means()[0][0].item<double>(), expected, 1e-12 * expected);
    }
    EXPECT_EQ(average.num_updates(), 12);
    const auto raw = p.detach().clone(), mean = average.means()[0].clone();
    average.swap();
    EXPECT_TRUE(at::equal(p, mean));
    EXPECT_TRUE(at::equal(*average.mean_of(p), raw));
    average.swap();
    EXPECT_TRUE(at::equal(p, raw));
    EXPECT_EQ(average.mean_of(raw), nullptr);
    EXPECT_THROW(WeightAverage({p}, 1), InvalidInput);
}

TEST(WeightAverage, OfWeightsThatStayIsTheirs)
{
    const auto p = torch::randn({7});
    WeightAverage average({p}, 0.999);
    for (int t = 0; t < 50; ++t) average.update();
    EXPECT_TRUE(at::equal(average.means()[0], p));
}

}  // namespace
}  // namespace meshard
