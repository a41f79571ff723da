// SPDX-License-Identifier: Apache-2.0
#include "models/diffusion/edm_sampling.h"
#include "models/registry/grid_forward.h"
#include "ops/grids/grid_rows.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/copy_parameters.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace meshard {
namespace {

constexpr std::int64_t kNumRows = 16, kColumns = 8;

Normalizer of_inputs()
{
    return {torch::tensor({1.0F, -2.0F}), torch::tensor({0.5F, 4.0F})};
}

/// Rows of an image in their order, and a constant of the case.
PointInputs rows_of_image()
{
    torch::manual_seed(3);
    return {.embedding = torch::rand({1, kNumRows * kColumns, 2}),
            .positions = {},
            .constants = torch::tensor({{0.7F}}),
            .time = {},
            .grid = {kNumRows, kColumns}};
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
    auto image = torch::empty({1, 3, kNumRows, kColumns});
    for (std::int64_t row = 0; row < kNumRows; ++row) {
        for (std::int64_t column = 0; column < kColumns; ++column) {
            const auto cell = inputs.embedding[0][row * kColumns + column];
            image[0][0][row][column] = (cell[0] - 1) / 0.5;
            image[0][1][row][column] = (cell[1] + 2) / 4;
            image[0][2][row][column] = 0.7;
        }
    }
    const auto expected = model.forward_grid(image), found = model.forward(inputs);
    ASSERT_EQ(found.sizes(), at::IntArrayRef({1, kNumRows * kColumns, 2}));
    for (std::int64_t row = 0; row < kNumRows; ++row) {
        for (std::int64_t column = 0; column < kColumns; ++column) {
            for (std::int64_t channel = 0; channel < 2; ++channel)
                EXPECT_NEAR(found[0][row * kColumns + column][channel].item<float>(),
                            expected[0][channel][row][column].item<float>(), 1e-5);
        }
    }
}

/// A diffusion transformer with rough weights; a new one returns zeros.
Model small_denoiser()
{
    torch::manual_seed(5);
    const auto network = make_model("dit", {{"input_size", {kNumRows, kColumns}},
                                            {"in_channels", 5},
                                            {"out_channels", 2},
                                            {"patch_size", 2},
                                            {"hidden_size", 8},
                                            {"depth", 1},
                                            {"num_heads", 2}});
    const auto [name, arguments] = find_model("dit").of_grids()->denoiser(network.arguments);
    auto model = make_model(name, arguments);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model.module->parameters()) parameter.add_(0.1 * torch::randn_like(parameter));
    take_rows_of_grids(model, of_inputs());
    model.sampling->num_steps = 3;
    return model;
}

/// An image of two channels, its rows cut among ranks.
struct CutImage {
    CutImage(const std::vector<Extents>& cuts, const std::shared_ptr<const DeviceMesh>& mesh)
    {
        AxisLayouts axes;
        for (std::size_t i = 0; i < cuts.size(); ++i)
            axes.push_back({Shard(static_cast<std::int64_t>(i) + 2), std::make_shared<const Extents>(cuts[i]), 1});
        layout = make_spec(mesh, axes);
        of_rows = layout_of_rows(layout, {kNumRows, kColumns});
    }

    at::Tensor own(const at::Tensor& whole) const
    {
        const auto image = whole.view({1, kNumRows, kColumns, 2}).movedim(-1, 1);
        return from_local(own_part(image, *layout).movedim(1, -1).reshape({1, -1, 2}), of_rows);
    }

    PointInputs part_of(PointInputs cut) const
    {
        cut.embedding = own(cut.embedding);
        cut.grid_layout = layout;
        return cut;
    }

    void expect_part(const at::Tensor& found, const at::Tensor& whole, double tolerance) const
    {
        EXPECT_TRUE(*spec_of(found) == *of_rows) << "cut as the inputs are";
        EXPECT_TRUE(torch::allclose(to_local(found), to_local(own(whole)), 0, tolerance));
    }

    SpecPtr layout, of_rows;
};

/// Cuts along the rows, and along the columns if there are two.
class GridForwardOnRanks : public testing::TestWithParam<std::vector<Extents>> {
protected:
    /// Compares a model on ranks with `serial`, whose gradients are there.
    /// @param run   computes a loss of rows
    static void expect_equal(const Model& serial, Model (*make)(),
                             const std::function<at::Tensor(const Model&, const CutImage&)>& run)
    {
        const auto& cuts = GetParam();
        std::vector<std::int64_t> shape;
        for (const auto& cut : cuts) shape.push_back(std::ssize(cut));
        const std::vector<std::string> names{"domain", "columns"};
        run_ranks(shape, {names.begin(), names.begin() + std::ssize(shape)},
                  [&](std::shared_ptr<const DeviceMesh> mesh) {
                      auto model = make();
                      test::copy_parameters(*serial.module, *model.module);
                      const auto replicated = replicate(*model.module, mesh);
                      run(model, CutImage(cuts, mesh)).backward();
                      const auto parameters = model.module->named_parameters();
                      for (const auto& item : serial.module->named_parameters()) {
                          const auto difference = parameters[item.key()].grad() - item.value().grad();
                          EXPECT_LE(difference.abs().max().item<double>(), 1e-5) << item.key();
                      }
                  });
    }
};

TEST_P(GridForwardOnRanks, EqualsOneRank)
{
    const auto serial = small_unet();
    const auto target = torch::rand({1, kNumRows * kColumns, 2});
    const auto inputs = rows_of_image();
    const auto expected = serial.forward(inputs);
    torch::mse_loss(expected, target).backward();
    expect_equal(serial, small_unet, [&](const Model& model, const CutImage& image) {
        const auto found = model.forward(image.part_of(inputs));
        image.expect_part(found, expected, 1e-5);
        if (GetParam().size() > 1) {
            const auto& places = image.of_rows->index_map->global_ids;
            const auto at_places = expected.index_select(1, torch::tensor(places));
            EXPECT_TRUE(torch::equal(to_local(image.own(expected)), at_places)) << "rows of the grid by their places";
        }
        return torch::mse_loss(found, image.own(target));
    });
}

TEST_P(GridForwardOnRanks, OfADenoiserEqualsOneRankAndDrawsTheSameSample)
{
    const auto inputs = rows_of_image();
    const auto serial = small_denoiser();
    const auto clean = torch::randn({1, kNumRows * kColumns, 2}), noisy = clean + 0.7 * torch::randn_like(clean);
    const auto expected = serial.denoise(inputs, noisy, 0.7), sample = serial.forward(inputs);
    torch::mse_loss(expected, clean).backward();
    serial.sampling->seed = 1;
    EXPECT_FALSE(torch::allclose(serial.forward(inputs), sample, 0, 0.1));
    expect_equal(serial, small_denoiser, [&](const Model& model, const CutImage& image) {
        image.expect_part(model.forward(image.part_of(inputs)), sample, 1e-4);
        const auto found = model.denoise(image.part_of(inputs), image.own(noisy), 0.7);
        image.expect_part(found, expected, 1e-5);
        return torch::mse_loss(found, image.own(clean));
    });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GridForwardOnRanks,
                         testing::Values(std::vector<Extents>{{16}}, std::vector<Extents>{{7, 9}},
                                         std::vector<Extents>{{5, 1, 10}}, std::vector<Extents>{{3, 1, 8, 0, 4}},
                                         std::vector<Extents>{{7, 9}, {5, 3}}));

}  // namespace
}  // namespace meshard
