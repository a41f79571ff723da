// SPDX-License-Identifier: Apache-2.0
// Truncated Fourier transforms of cut grids against the sums that define them.
#include "ops/grids/grid_modes.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <complex>
#include <numbers>

namespace meshard {
namespace {

/// Modes that are kept along each direction, in their order.
std::vector<std::vector<std::int64_t>> kept_modes(at::IntArrayRef extents, at::IntArrayRef num_modes)
{
    std::vector<std::vector<std::int64_t>> kept;
    for (std::size_t a = 0; a < num_modes.size(); ++a) {
        std::vector<std::int64_t> modes;
        for (std::int64_t k = 0; k < num_modes[a]; ++k) modes.push_back(k);
        for (std::int64_t k = 0; k < num_modes[a] && a + 1 < num_modes.size(); ++k)
            modes.push_back(extents[a] - num_modes[a] + k);
        kept.push_back(std::move(modes));
    }
    return kept;
}

/// exp(-2 pi i sum k_a r_a / n_a), (modes flattened, cells flattened)
at::Tensor waves(at::IntArrayRef extents, at::IntArrayRef num_modes)
{
    auto phases = torch::zeros({1, 1}, torch::kDouble);
    const auto kept = kept_modes(extents, num_modes);
    for (std::size_t a = 0; a < num_modes.size(); ++a) {
        const auto k = torch::tensor(kept[a], torch::kDouble).view({1, -1, 1, 1}),
                   r = torch::arange(extents[a], torch::kDouble).view({1, 1, 1, -1});
        phases = (phases.view({phases.size(0), 1, phases.size(1), 1}) + k * r / static_cast<double>(extents[a]));
        phases = phases.reshape({phases.size(0) * phases.size(1), phases.size(2) * phases.size(3)});
    }
    return torch::polar(torch::ones_like(phases), -2 * std::numbers::pi * phases);
}

struct ModesCase {
    std::vector<std::int64_t> extents, num_modes;
};

std::vector<ModesCase> modes_cases()
{
    return {{{9, 8}, {3, 3}},       {{8, 8}, {5, 5}},       {{7, 9}, {7, 5}},
            {{8, 6, 7}, {3, 2, 2}}, {{9, 3, 8}, {1, 3, 5}}, {{8}, {4}}};
}

class GridModes : public testing::TestWithParam<std::tuple<ModesCase, int, bool>> {};

TEST_P(GridModes, AreTheSumsThatDefineThem)
{
    const auto& [modes_case, num_ranks, cuts_last] = GetParam();
    const auto& [extents, num_modes] = modes_case;
    torch::manual_seed(5);
    std::vector<std::int64_t> shape{2, 3};
    shape.insert(shape.end(), extents.begin(), extents.end());
    const auto dim = cuts_last ? static_cast<std::int64_t>(shape.size()) - 1 : 2;
    const auto grid = torch::randn(shape, torch::kDouble).requires_grad_();
    const auto wave = waves(extents, num_modes);
    auto modes_shape = std::vector<std::int64_t>{2, 3};
    for (const auto& kept : kept_modes(extents, num_modes))
        modes_shape.push_back(static_cast<std::int64_t>(kept.size()));
    const auto expected_modes =
        torch::matmul(grid.reshape({2, 3, -1}).to(torch::kComplexDouble), wave.t()).view(modes_shape);

    // Inverse, with conjugates: factors of the last direction.
    auto factors = torch::full({num_modes.back()}, 2.0, torch::kDouble);
    factors[0] = 1;
    if (2 * (num_modes.back() - 1) == extents.back()) factors[num_modes.back() - 1] = 1;
    const auto scaled = torch::randn(modes_shape, torch::kComplexDouble).requires_grad_();
    const auto expected_grid =
        torch::real(torch::matmul((scaled * factors).reshape({2, 3, -1}), wave.conj())).view(shape) /
        static_cast<double>(wave.size(1));
    const auto of_modes = torch::randn(modes_shape, torch::kComplexDouble),
               of_grid = torch::randn(shape, torch::kDouble);
    const auto grid_gradient = torch::autograd::grad({torch::real(expected_modes * of_modes).sum()}, {grid})[0];
    const auto modes_gradient = torch::autograd::grad({(expected_grid * of_grid).sum()}, {scaled})[0];

    run_ranks(num_ranks, [&, &num_modes = num_modes, num_ranks = num_ranks,
                          dim = dim](std::shared_ptr<const DeviceMesh> device_mesh) {
        const auto rank = device_mesh->all().rank();
        const auto n = shape[dim];
        std::vector<std::int64_t> strips(num_ranks, 0);  // the second of three has none
        strips.front() = num_ranks == 1 ? n : n - 3;
        if (num_ranks > 1) strips.back() = 3;
        const auto own = [&](const at::Tensor& whole) {
            return whole.detach().split_with_sizes(strips, dim)[rank].clone();
        };
        const auto local = own(grid).requires_grad_();
        const auto cut = from_local(local, device_mesh, {Shard(dim)});
        const auto leaf = scaled.detach().clone().requires_grad_();

        const auto modes = grid_modes(cut, num_modes);
        const auto back = grid_from_modes(from_local(leaf, device_mesh, {Replicate()}), cut, num_modes);
        torch::real(modes * of_modes).sum().backward();
        (back * from_local(own(of_grid), device_mesh, {Shard(dim)})).sum().backward();

        EXPECT_TRUE(torch::allclose(full_tensor(modes), expected_modes.detach(), 1e-12, 1e-12));
        EXPECT_TRUE(torch::allclose(to_local(back), own(expected_grid), 1e-12, 1e-12));
        EXPECT_TRUE(torch::allclose(local.grad(), own(grid_gradient), 1e-12, 1e-12));
        EXPECT_TRUE(torch::allclose(leaf.grad(), modes_gradient, 1e-12, 1e-12));
    });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GridModes,
                         testing::Combine(testing::ValuesIn(modes_cases()), testing::Values(1, 2, 3), testing::Bool()));

TEST(GridModesUnderAutocast, HaveTheBitsOfSinglePrecision)
{
    const auto grid = torch::randn({2, 3, 8, 6});
    run_ranks(2, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
        const auto own = grid.split(3, 3)[device_mesh->all().rank()].clone();
        const auto cut = from_local(own, device_mesh, {Shard(3)});
        const auto expected = grid_modes(cut, {2, 2});
        const auto expected_grid = grid_from_modes(expected, cut, {2, 2});

        at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
        at::autocast::set_autocast_enabled(at::kCPU, true);
        const auto modes = grid_modes(cut, {2, 2}), back = grid_from_modes(modes, cut, {2, 2});
        at::autocast::set_autocast_enabled(at::kCPU, false);

        EXPECT_TRUE(torch::equal(to_local(modes), to_local(expected)));
        EXPECT_TRUE(torch::equal(to_local(back), to_local(expected_grid)));
    });
}

TEST(GridModeRefusals, NameWhatDoesNotFit)
{
    const auto grid = torch::randn({1, 1, 6, 6});
    EXPECT_TRUE(throws_with<InvalidInput>("modes [7, 2] cannot be kept of a grid of shape [1, 1, 6, 6]",
                                          [&] { grid_modes(grid, {7, 2}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("modes [2, 5] cannot be kept", [&] { grid_modes(grid, {2, 5}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("grid_from_modes: modes of shape [1, 1, 2, 2]", [&] {
        grid_from_modes(torch::zeros({1, 1, 2, 2}, torch::kComplexFloat), grid, {2, 2});
    }));
}

}  // namespace
}  // namespace meshard
