// SPDX-License-Identifier: Apache-2.0
// Models of images that are cut along their height: users of the rules for convolutions, pooling, resampling, norms and
// attention.
#include "models/grids/unet.h"
#include "models/grids/vision_transformer.h"
#include "models/layers/metrics.h"
#include "partition/error.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_fixture.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>

namespace meshard {
namespace {

UNet small_unet()
{
    UNetOptions options;
    options.in_channels = 2;
    options.out_channels = 3;
    options.num_channels = 4;
    options.depth = 2;
    options.num_groups = 2;
    return UNet(options);
}

VisionTransformer small_transformer()
{
    VisionTransformerOptions options;
    options.in_channels = 2;
    options.out_channels = 3;
    options.height = 20;
    options.width = 8;
    options.patch_size = 4;
    options.n_layers = 2;
    options.n_hidden = 12;
    options.n_head = 2;
    options.mlp_ratio = 2;
    return VisionTransformer(options);
}

/// Rows of the image on each rank; the second of several has none.
std::vector<std::int64_t> rows_of_ranks(int num_ranks)
{
    switch (num_ranks) {
    case 1:
        return {20};
    case 2:
        return {7, 13};
    case 3:
        return {9, 0, 11};
    default:
        return {3, 0, 8, 1, 8};
    }
}

template <class Holder>
void expect_sharded_equals_serial(const std::function<Holder()>& make, int num_ranks)
{
    torch::manual_seed(3);
    auto serial = make();
    serial->to(torch::kDouble);
    const auto image = torch::randn({2, 2, 20, 8}, torch::kDouble),
               target = torch::randn({2, 3, 20, 8}, torch::kDouble);
    const auto expected = serial->forward(image);
    ASSERT_EQ(expected.sizes(), target.sizes());
    const auto expected_loss = mean_squared_error(expected, target);
    expected_loss.backward();
    double largest_gradient = 0;
    for (const auto& parameter : serial->parameters())
        largest_gradient = std::max(largest_gradient, test::largest(parameter.grad()));
    const auto rows = rows_of_ranks(num_ranks);

    run_ranks(num_ranks, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
        const auto rank = device_mesh->all().rank();
        const auto own = [&](const at::Tensor& whole) { return whole.split_with_sizes(rows, 2)[rank]; };
        auto model = make();
        model->to(torch::kDouble);
        {
            const torch::NoGradGuard no_grad;
            auto parameters = model->parameters();
            const auto values = serial->parameters();
            for (std::size_t i = 0; i < values.size(); ++i) parameters[i].copy_(values[i]);
        }
        const auto replicated = replicate(*model, device_mesh);

        const auto output = model->forward(from_local(own(image), device_mesh, {Shard(2)}));
        const auto loss = mean_squared_error(output, from_local(own(target), device_mesh, {Shard(2)}));
        loss.backward();

        test::expect_near("output", full_tensor(output).detach(), expected.detach(), 1e-12 * test::largest(expected));
        EXPECT_NEAR(loss.template item<double>(), expected_loss.template item<double>(), 1e-12);
        const auto parameters = model->named_parameters();
        for (const auto& item : serial->named_parameters()) {
            test::expect_near(item.key(), parameters[item.key()].grad(), item.value().grad(), 1e-11 * largest_gradient);
        }
    });
}

class GridModels : public testing::TestWithParam<int> {};

TEST_P(GridModels, UNetEqualsSerial)
{
    expect_sharded_equals_serial<UNet>(small_unet, GetParam());
}

TEST_P(GridModels, VisionTransformerEqualsSerial)
{
    expect_sharded_equals_serial<VisionTransformer>(small_transformer, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Ranks, GridModels, testing::Values(1, 2, 3, 5));

TEST(GridModelOptions, NameWhatIsImpossible)
{
    auto unet = small_unet();
    EXPECT_TRUE(throws_with<InvalidInput>("multiples of 4, and has the shape [1, 2, 6, 8]",
                                          [&] { unet->forward(torch::zeros({1, 2, 6, 8})); }));
    auto transformer = small_transformer();
    EXPECT_TRUE(throws_with<InvalidInput>("the image must be (batch, 2, 20, 8)",
                                          [&] { transformer->forward(torch::zeros({1, 2, 6, 8})); }));
    VisionTransformerOptions options;
    options.in_channels = options.out_channels = 1;
    options.height = 10, options.width = 8;
    EXPECT_TRUE(throws_with<InvalidInput>("height must be a multiple of patch_size; 10 is not one of 4",
                                          [&] { options.validate(); }));
}

}  // namespace
}  // namespace meshard
