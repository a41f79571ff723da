// SPDX-License-Identifier: Apache-2.0
// The U-Net of volumes on ranks against one rank: every option that reads other rows, cut along each direction; memory
// modes; messages.
#include "models/grids/unet_3d.h"
#include "models/layers/metrics.h"
#include "partition/error.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/copy_parameters.h"
#include "tests/support/expect_error.h"
#include "tests/support/grid_slabs.h"
#include "tests/support/run_fixture.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include <functional>

namespace meshard {
namespace {

UNet3dOptions small_unet_3d()
{
    UNet3dOptions options;
    options.in_channels = 2;
    options.out_channels = 3;
    options.model_depth = 3;
    options.feature_map_channels = {3, 3, 4, 4, 5, 5};
    options.conv_activation = "gelu";
    return options;
}

UNet3dOptions with_gates()
{
    auto options = small_unet_3d();
    options.use_attn_gate = true;
    options.attn_decoder_feature_maps = {5, 4};
    options.attn_feature_map_channels = {4, 3};
    options.attn_intermediate_channels = 3;
    options.normalization = "layernorm";
    return options;
}

struct UNet3dCase {
    std::string name;
    UNet3dOptions options;
};

void PrintTo(const UNet3dCase& value, std::ostream* out)
{
    *out << value.name;
}

std::vector<UNet3dCase> unet_3d_cases()
{
    std::vector<UNet3dCase> cases{{"GroupNorm", small_unet_3d()}, {"Gates", with_gates()}};
    const auto add = [&](const char* name, const std::function<void(UNet3dOptions&)>& change) {
        cases.push_back({name, small_unet_3d()});
        change(cases.back().options);
    };
    add("BatchNormReplicate", [](auto& o) {
        o.normalization = "batchnorm", o.padding_mode = "replicate", o.conv_transpose_activation = "silu";
    });
    add("NoNormReflectAveraged",
        [](auto& o) { o.normalization = "", o.padding_mode = "reflect", o.pooling_type = "AvgPool3d"; });
    add("CircularWideKernel", [](auto& o) {
        o.padding_mode = "circular", o.kernel_size = 5, o.padding = 2, o.conv_activation = "leaky_relu";
    });
    add("OneBlockALevel", [](auto& o) { o.num_conv_blocks = 1, o.feature_map_channels = {3, 4, 5}; });
    return cases;
}

UNet3d rough_unet_3d(const UNet3dOptions& options)
{
    torch::manual_seed(3);
    UNet3d model(options);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.add_(0.1 * torch::randn_like(parameter));
    model->to(torch::kDouble);
    return model;
}

class ShardedUNet3d : public testing::TestWithParam<std::tuple<UNet3dCase, int, int>> {};

TEST_P(ShardedUNet3d, EqualsSerial)
{
    const auto& [unet, num_ranks, dim] = GetParam();
    auto serial = rough_unet_3d(unet.options);
    std::vector<std::int64_t> extents{2, 2, 8, 8, 12};
    extents[dim] = 16;
    auto of_result = extents;
    of_result[1] = 3;
    const auto volume = torch::randn(extents, torch::kDouble), target = torch::randn(of_result, torch::kDouble);
    const auto whole = volume.clone().requires_grad_();
    const auto expected = serial->forward(whole);
    ASSERT_EQ(expected.sizes(), target.sizes());
    const auto expected_loss = mean_squared_error(expected, target);
    expected_loss.backward();
    double largest_gradient = 0;
    for (const auto& parameter : serial->parameters())
        largest_gradient = std::max(largest_gradient, test::largest(parameter.grad()));
    const auto slabs = test::slabs_of_ranks(num_ranks);

    for (const auto memory : {MemoryMode::Stored, MemoryMode::Recomputed}) {
        run_ranks(num_ranks, [&, &unet = unet, dim = dim](std::shared_ptr<const DeviceMesh> device_mesh) {
            const auto rank = device_mesh->all().rank();
            const auto own = [&](const at::Tensor& all) { return all.split_with_sizes(slabs, dim)[rank].clone(); };
            UNet3d model(unet.options);
            model->to(torch::kDouble);
            if (rank == 0) test::copy_parameters(*serial, *model);  // the others get theirs from `replicate`
            model->set_memory(memory);
            const auto replicated = replicate(*model, device_mesh);
            const auto local = own(volume).requires_grad_();

            const auto output = model->forward(from_local(local, device_mesh, {Shard(dim)}));
            const auto loss = mean_squared_error(output, from_local(own(target), device_mesh, {Shard(dim)}));
            loss.backward();

            test::expect_near("output", full_tensor(output).detach(), expected.detach(),
                              1e-12 * test::largest(expected));
            EXPECT_NEAR(loss.item<double>(), expected_loss.item<double>(), 1e-12);
            test::expect_near("input", local.grad(), own(whole.grad()), 1e-12 * test::largest(whole.grad()));
            const auto parameters = model->named_parameters();
            for (const auto& item : serial->named_parameters()) {
                test::expect_near(item.key(), parameters[item.key()].grad(), item.value().grad(),
                                  1e-11 * largest_gradient);
            }
            const auto buffers = model->named_buffers();  // running statistics are updated once, recomputed or not
            for (const auto& item : serial->named_buffers())
                test::expect_near(item.key(), buffers[item.key()], item.value(), 1e-12);
        });
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedUNet3d,
                         testing::Combine(testing::ValuesIn(unet_3d_cases()), testing::Values(1, 2, 3, 5),
                                          testing::Values(2, 4)),
                         [](const auto& info) {
                             return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param)) +
                                    "_dim" + std::to_string(std::get<2>(info.param));
                         });

// A convolution asks for its rows in one message, a group norm for two sums in another; cuts at multiples of 2^(depth -
// 1) leave poolings nothing to say.
TEST(UNet3dMessages, AreARowExchangeAConvolutionAndTheSumsOfTheNorms)
{
    for (const char* norm : {"", "layernorm", "groupnorm"}) {
        for (const std::int64_t extent : {8, 32}) {
            SCOPED_TRACE(std::string(norm) + " " + std::to_string(extent));
            run_ranks(2, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
                auto options = small_unet_3d();
                options.normalization = norm;
                UNet3d model(options);
                const auto replicated = replicate(*model, device_mesh);
                const auto volume =
                    from_local(torch::randn({1, 2, extent / 2, extent, extent}), device_mesh, {Shard(2)});
                const auto target =
                    from_local(torch::randn({1, 3, extent / 2, extent, extent}), device_mesh, {Shard(2)});
                auto& counter = device_mesh->counter();
                constexpr std::int64_t kConvolutions = 6 + 2 * 2 + 1, kNorms = 6 + 2 * 2, kRaised = 2;

                counter.reset();
                const auto loss = mean_squared_error(model->forward(volume), target);
                const auto forward = counter.num_calls();
                counter.reset();
                loss.backward();
                const auto backward = counter.num_calls();

                const std::int64_t sums = std::string(norm) == "groupnorm" ? kNorms : 0;
                EXPECT_EQ(forward, kConvolutions + kRaised + sums);
                // Backward asks for the rows again and gives their gradients back, but for the volume, which needs
                // none; the parameters' gradients go in one.
                EXPECT_EQ(backward, 2 * (kConvolutions + kRaised) - 1 + sums + 1);
            });
        }
    }
}

TEST(UNet3dOptions, NameWhatIsImpossible)
{
    const auto refuses = [](const char* what, const std::function<void(UNet3dOptions&)>& change) {
        auto options = with_gates();
        change(options);
        return throws_with<InvalidInput>(what, [&] { options.validate(); });
    };
    EXPECT_TRUE(refuses("feature_map_channels must have model_depth * num_conv_blocks = 6 entries, and has 2",
                        [](auto& o) { o.feature_map_channels = {3, 3}; }));
    EXPECT_TRUE(refuses("the last two entries of feature_map_channels must be the same, and are 5 and 6",
                        [](auto& o) { o.feature_map_channels[5] = 6; }));
    EXPECT_TRUE(refuses("conv_activation must be celu, elu", [](auto& o) { o.conv_activation = "rleu"; }));
    EXPECT_TRUE(
        refuses("attn_feature_map_channels with an entry a level", [](auto& o) { o.attn_feature_map_channels = {4}; }));
    EXPECT_TRUE(
        refuses("use_attn_gate needs attn_intermediate_channels", [](auto& o) { o.attn_intermediate_channels = 0; }));
    EXPECT_TRUE(refuses("num_groups 2, which must divide the channels of each block, and not 3",
                        [](auto& o) { o.norm_groups = 2, o.normalization = "groupnorm"; }));
    for (const nlohmann::json& wrong :
         {nlohmann::json{{"groups", 2}}, nlohmann::json{{"num_groups", 0}}, nlohmann::json("none")})
        EXPECT_TRUE(throws_with<InvalidInput>("expected some of num_groups, eps and affine",
                                              [&] { unet_3d_options({{"normalization_args", wrong}}); }));

    UNet3d model(small_unet_3d());
    EXPECT_TRUE(throws_with<InvalidInput>("has the shape [1, 2, 8, 6, 8]. X, Y and Z must be multiples of 4",
                                          [&] { model->forward(torch::zeros({1, 2, 8, 6, 8})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("the volume must be (batch, 2, X, Y, Z)",
                                          [&] { model->forward(torch::zeros({1, 3, 8, 8, 8})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("Use `recomputed`", [&] { model->set_memory(MemoryMode::Streamed); }));
}

TEST(UNet3dOptions, AreTheArgumentsOfCheckpoints)
{
    const nlohmann::json arguments{
        {"in_channels", 2}, {"out_channels", 1}, {"normalization", nullptr}, {"normalization_args", nullptr}};
    const auto options = unet_3d_options(arguments);
    EXPECT_EQ(options.normalization, "");
    EXPECT_EQ(options.model_depth, 5);
    EXPECT_TRUE(to_json(options).at("normalization").is_null());
    EXPECT_TRUE(to_json(options).at("attn_feature_map_channels").is_null());
    EXPECT_EQ(unet_3d_options(to_json(options)).normalization, "");
    const nlohmann::json of_norm{{"num_groups", 2}, {"eps", 1e-3}, {"affine", false}};
    EXPECT_EQ(to_json(unet_3d_options({{"in_channels", 2}, {"out_channels", 1}, {"normalization_args", of_norm}}))
                  .at("normalization_args"),
              of_norm);
}

}  // namespace
}  // namespace meshard
