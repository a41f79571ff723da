// SPDX-License-Identifier: Apache-2.0
#include "models/registry/grid_forward.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/grid_slabs.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace meshard {
namespace {

constexpr std::int64_t kRows = 16, kColumns = 8;

Normalizer of_inputs()
{
    return {torch::tensor({1.0F, -2.0F}), torch::tensor({0.5F, 4.0F})};
}

/// Rows of an image in their order, and a constant of the case.
PointInputs rows_of_image()
{
    torch::manual_seed(3);
    return {.embedding = torch::rand({1, kRows * kColumns, 2}),
            .positions = {},
            .constants = torch::tensor({{0.7F}}),
            .time = {},
            .grid = {kRows, kColumns}};
}

Model small_unet()
{
    torch::manual_seed(5);
    auto model = make_model(
        "unet2d", {{"in_channels", 3}, {"out_channels", 2}, {"num_channels", 4}, {"num_groups", 2}, {"depth", 2}});
    take_rows_of_grids(model, of_inputs());
    return model;
}

TEST(GridForward, IsTheModelOfTheScaledImageWithTheConstantAsAChannel)
{
    const auto model = small_unet();
    const auto inputs = rows_of_image();
    auto image = torch::empty({1, 3, kRows, kColumns});
    for (std::int64_t row = 0; row < kRows; ++row) {
        for (std::int64_t column = 0; column < kColumns; ++column) {
            const auto cell = inputs.embedding[0][row * kColumns + column];
            image[0][0][row][column] = (cell[0] - 1) / 0.5;
            image[0][1][row][column] = (cell[1] + 2) / 4;
            image[0][2][row][column] = 0.7;
        }
    }
    const auto expected = model.forward_grid(image), found = model.forward(inputs);
    ASSERT_EQ(found.sizes(), at::IntArrayRef({1, kRows * kColumns, 2}));
    for (std::int64_t row = 0; row < kRows; ++row) {
        for (std::int64_t column = 0; column < kColumns; ++column) {
            for (std::int64_t channel = 0; channel < 2; ++channel)
                EXPECT_NEAR(found[0][row * kColumns + column][channel].item<float>(),
                            expected[0][channel][row][column].item<float>(), 1e-5);
        }
    }
}

class GridForwardOnRanks : public testing::TestWithParam<int> {};

TEST_P(GridForwardOnRanks, EqualsOneRank)
{
    const int num_ranks = GetParam();
    const auto inputs = rows_of_image();
    const auto serial = small_unet();
    const auto target = torch::rand({1, kRows * kColumns, 2});
    const auto expected = serial.forward(inputs);
    torch::mse_loss(expected, target).backward();
    auto slabs = test::slabs_of_ranks(num_ranks);
    run_ranks(num_ranks, [&](std::shared_ptr<const DeviceMesh> mesh) {
        const auto rank = mesh->all().rank();
        auto extents = slabs;
        for (auto& extent : extents) extent *= kColumns;
        const AxisLayout layout{Shard(1), std::make_shared<const Extents>(extents), 1};
        const auto spec = make_spec(mesh, {layout});
        const auto own = [&](const at::Tensor& whole) {
            return from_local(whole.narrow(1, layout.offset(rank), extents[rank]).clone(), spec);
        };
        auto model = small_unet();
        test::copy_parameters(*serial.module, *model.module);
        const auto replicated = replicate(*model.module, mesh);
        auto cut = inputs;
        cut.embedding = own(inputs.embedding);
        const auto found = model.forward(cut);
        EXPECT_TRUE(*spec_of(found) == *spec) << "cut as the inputs are";
        EXPECT_LE((full_tensor(found) - expected).abs().max().item<double>(), 1e-5);
        torch::mse_loss(found, own(target)).backward();
        const auto parameters = model.module->named_parameters();
        for (const auto& item : serial.module->named_parameters()) {
            EXPECT_LE((parameters[item.key()].grad() - item.value().grad()).abs().max().item<double>(), 1e-5)
                << item.key();
        }
    });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GridForwardOnRanks, testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace meshard
