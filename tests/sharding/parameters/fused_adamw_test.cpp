// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/fused_adamw.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <cmath>
#include <vector>

namespace meshard {
namespace {

constexpr double kRate = 3e-3, kBeta1 = 0.9, kBeta2 = 0.98, kEpsilon = 1e-8, kDecay = 0.05;

torch::optim::AdamWOptions options()
{
    return torch::optim::AdamWOptions(kRate).betas({kBeta1, kBeta2}).eps(kEpsilon).weight_decay(kDecay);
}

/// Parameters of several shapes, one of them empty, as a rank may hold of cut parameters.
std::vector<torch::Tensor> parameters()
{
    torch::manual_seed(1);
    std::vector<torch::Tensor> all;
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{7, 5}, {1}, {0}, {3, 2, 4}})
        all.push_back(torch::randn(shape).requires_grad_());
    return all;
}

void set_gradients(std::vector<torch::Tensor>& parameters, int step)
{
    torch::manual_seed(100 + step);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto gradient = torch::randn_like(parameters[i]);
        parameters[i].mutable_grad() = i == 1 && step < 2 ? torch::Tensor() : gradient;  // one that joins late
    }
}

template <class Optimizer>
void take_steps(Optimizer& optimizer, std::vector<torch::Tensor>& parameters, int first, int last)
{
    for (int step = first; step < last; ++step) {
        set_gradients(parameters, step);
        optimizer.step();
    }
}

void expect_near(const std::vector<torch::Tensor>& found, const std::vector<torch::Tensor>& expected)
{
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-5, 1e-6)) << i;
}

TEST(FusedAdamW, IsTheClosedFormAndLibTorchsByRounding)
{
    auto fused = parameters(), plain = parameters();
    std::vector<torch::Tensor> exact, means, squares;
    for (const auto& parameter : parameters()) {
        exact.push_back(parameter.detach().to(torch::kDouble));
        means.push_back(torch::zeros_like(exact.back()));
        squares.push_back(torch::zeros_like(exact.back()));
    }
    FusedAdamW optimizer(fused, options());
    torch::optim::AdamW reference(plain, options());

    for (int step = 0; step < 20; ++step) {
        take_steps(optimizer, fused, step, step + 1);
        take_steps(reference, plain, step, step + 1);
        for (std::size_t i = 0; i < exact.size(); ++i) {
            if (!fused[i].grad().defined()) continue;
            const auto gradient = fused[i].grad().to(torch::kDouble);
            const auto count = i == 1 ? step - 1 : step + 1;
            means[i] = kBeta1 * means[i] + (1 - kBeta1) * gradient;
            squares[i] = kBeta2 * squares[i] + (1 - kBeta2) * gradient.square();
            exact[i] =
                exact[i] * (1 - kRate * kDecay) - kRate * (means[i] / (1 - std::pow(kBeta1, count))) /
                                                      ((squares[i] / (1 - std::pow(kBeta2, count))).sqrt() + kEpsilon);
        }
    }

    std::vector<torch::Tensor> rounded;
    for (const auto& values : exact) rounded.push_back(values.to(torch::kFloat));
    expect_near(fused, rounded);
    expect_near(fused, plain);
    EXPECT_GT((fused[0] - parameters()[0]).abs().max().item<double>(), 1e-2);
}

TEST(FusedAdamW, GoesOnWhereLibTorchsStoppedAndBack)
{
    for (const bool fused_first : {true, false}) {
        auto whole = parameters(), parts = parameters();
        torch::optim::AdamW reference(whole, options()), plain(parts, options());
        FusedAdamW fused(parts, options());
        torch::optim::AdamW *first = fused_first ? &fused : &plain, *then = fused_first ? &plain : &fused;

        take_steps(reference, whole, 0, 9);
        take_steps(*first, parts, 0, 4);
        then->state() = std::move(first->state());
        take_steps(*then, parts, 4, 9);

        expect_near(parts, whole);
        const auto& state =
            static_cast<const torch::optim::AdamWParamState&>(*then->state().at(parts[0].unsafeGetTensorImpl()));
        EXPECT_EQ(state.step(), 9);
    }
}

TEST(FusedAdamW, LeavesTheCpuToLibTorchs)
{
    auto of_cpu = parameters(), of_reference = parameters();
    const auto optimizer = make_adamw(of_cpu, options());
    torch::optim::AdamW reference(of_reference, options());

    take_steps(*optimizer, of_cpu, 0, 5);
    take_steps(reference, of_reference, 0, 5);

    EXPECT_EQ(dynamic_cast<FusedAdamW*>(optimizer.get()), nullptr);
    for (std::size_t i = 0; i < of_cpu.size(); ++i)
        EXPECT_TRUE(torch::equal(of_cpu[i], of_reference[i]));  // to the bit
}

}  // namespace
}  // namespace meshard
