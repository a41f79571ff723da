// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoints/model_checkpoint.h"
#include "models/diffusion/edm_preconditioner.h"
#include "models/diffusion/edm_sampling.h"
#include "models/diffusion/grid_noise.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixture_cases.h"
#include "tests/support/run_fixture.h"
#include "tests/support/run_ranks.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <cmath>

namespace meshard {
namespace {

using test::NamedTensors;

EdmPreconditioner model_of(const nlohmann::json& description, const NamedTensors& tensors)
{
    const auto& constructor = description["constructor"];
    EdmPreconditioner model(dit_options(constructor["dit"]), std::vector<double>{constructor["sigma_data"].get<double>()});
    const torch::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) item.value().copy_(tensors.at("param." + item.key()));
    model->eval();
    return model;
}

std::vector<test::FixtureCase> stormscopes()
{
    return test::fixture_cases({"EDMPreconditioner"});
}

class EdmFixtures : public testing::TestWithParam<test::FixtureCase> {};

TEST_P(EdmFixtures, LossAgrees)
{
    const auto tensors = test::read_tensors(GetParam().arrays_path());
    auto model = model_of(GetParam().description(), tensors);
    const DenoiserCondition condition{tensors.at("input.condition.cond_concat"), tensors.at("input.condition.cond_vec")};

    const auto loss = edm_loss(model, tensors.at("input.x"), tensors.at("input.t"), tensors.at("edm.noise"), condition);

    test::expect_near("loss", loss.detach(), tensors.at("edm.loss"), 1e-5 * test::largest(tensors.at("edm.loss")));
    test::expect_near("weight", model->loss_weight(tensors.at("input.t")).flatten(), tensors.at("edm.loss_weight"),
                      1e-6 * test::largest(tensors.at("edm.loss_weight")));
}

TEST_P(EdmFixtures, HeunsMethodAgreesOnAnyNumberOfRanks)
{
    const auto description = GetParam().description();
    const auto tensors = test::read_tensors(GetParam().arrays_path());
    const auto& start = tensors.at("edm.sample_start");
    const auto steps = tensors.at("edm.time_steps").to(torch::kDouble);
    const std::vector<double> levels(steps.data_ptr<double>(), steps.data_ptr<double>() + steps.numel());
    const std::vector<std::vector<std::int64_t>> cuts{{12}, {2, 10}, {4, 0, 8}};

    for (const auto& extents : cuts) {
        SCOPED_TRACE(extents.size());
        run_ranks(static_cast<int>(extents.size()), [&](std::shared_ptr<const DeviceMesh> mesh) {
            auto model = model_of(description, tensors);
            const auto cut = [&](const at::Tensor& whole) {
                return from_local(whole.split_with_sizes(extents, 2)[mesh->coordinate(0)].clone(), mesh, {Shard(2)});
            };
            const DenoiserCondition condition{cut(tensors.at("input.condition.cond_concat")), tensors.at("input.condition.cond_vec")};

            const auto sample = follow_noise_levels(model, cut(start), levels, condition, {});

            test::expect_near("sample", full_tensor(sample), tensors.at("edm.sample"), 1e-4 * test::largest(tensors.at("edm.sample")));
        });
    }
}

INSTANTIATE_TEST_SUITE_P(All, EdmFixtures, testing::ValuesIn(stormscopes()), test::NameOfFixture());

TEST(EdmCheckpoint, GivesTheReferencesOutput)
{
    const std::string folder = source_path("tests/data/fixtures/checkpoints/stormscope_a");
    const auto values = test::read_tensors(folder + "/values.safetensors");
    const auto checkpoint = read_checkpoint(folder + "/model.mdlus");
    auto model = make_edm_preconditioner(nlohmann::json::parse(checkpoint.arguments));
    {
        const torch::NoGradGuard no_grad;
        auto places = model->named_parameters();
        for (const auto& buffer : model->named_buffers()) places.insert(buffer.key(), buffer.value());
        ASSERT_EQ(places.size(), checkpoint.weights.arrays.size());
        for (const auto& array : checkpoint.weights.arrays)
            places[array.name].copy_(torch::from_blob(const_cast<std::byte*>(array.data), array.shape, torch::kFloat));
    }

    const auto output =
        model->forward(values.at("input.x"), values.at("input.t"), {values.at("input.condition.cond_concat"), values.at("input.condition.cond_vec")});

    test::expect_near("output", output.detach(), values.at("output"), 2e-6 * std::max(1.0, test::largest(values.at("output"))));
}

DitOptions small_denoiser()
{
    return dit_options({{"input_size", {12, 8}},
                        {"in_channels", 3},
                        {"out_channels", 2},
                        {"patch_size", 2},
                        {"hidden_size", 8},
                        {"depth", 1},
                        {"num_heads", 1},
                        {"mlp_ratio", 2.0},
                        {"attention_backend", "natten2d"}});
}

EdmPreconditioner rough_denoiser(std::vector<double> sigma_data)
{
    torch::manual_seed(4);
    EdmPreconditioner model(small_denoiser(), sigma_data);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.add_(0.1 * torch::randn_like(parameter));
    model->eval();
    return model;
}

TEST(EdmPreconditioning, TakesADeviationForEachChannel)
{
    auto model = rough_denoiser({0.5, 2.0});
    const auto noisy = torch::randn({1, 2, 12, 8}), image = torch::randn({1, 1, 12, 8}), sigma = torch::tensor({0.7});

    const auto denoised = model->forward(noisy, sigma, {image, {}});

    // The same by hand, channel by channel.
    std::vector<at::Tensor> scaled;
    const std::vector<double> data{0.5, 2.0};
    const double s = 0.7;
    for (int c = 0; c < 2; ++c) scaled.push_back(noisy.narrow(1, c, 1) / std::sqrt(s * s + data[c] * data[c]));
    const auto inner = model->dit()->forward(torch::cat({scaled[0], scaled[1], image}, 1), torch::full({1}, std::log(s) / 4));
    for (int c = 0; c < 2; ++c) {
        const auto total = s * s + data[c] * data[c];
        const auto expected = noisy.narrow(1, c, 1) * (data[c] * data[c] / total) + inner.narrow(1, c, 1) * (s * data[c] / std::sqrt(total));
        EXPECT_TRUE(torch::allclose(denoised.narrow(1, c, 1), expected, 1e-5, 1e-6));
    }
}

TEST(EdmPreconditioning, RefusesWhatDoesNotFit)
{
    auto model = rough_denoiser({0.5});
    EXPECT_TRUE(
        throws_with<InvalidInput>("must have 2 channels and the condition image 1", [&] { model->forward(torch::zeros({1, 2, 12, 8}), torch::ones({1})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("sigma_data must be positive", [] { EdmPreconditioner(small_denoiser(), std::vector<double>{0.0}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("3 numbers for 2 channels", [] { EdmPreconditioner(small_denoiser(), std::vector<double>{1, 2, 3}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("has a model of the class 'SongUNet'; expected ConcatConditionWrapper",
                                          [] { make_edm_preconditioner({{"model", {{"__name__", "SongUNet"}, {"__args__", nlohmann::json::object()}}}}); }));
}

TEST(NoiseLevels, AreThoseOfThePaper)
{
    const auto levels = noise_levels({.num_steps = 3, .sigma_min = 0.01, .sigma_max = 10});

    ASSERT_EQ(levels.size(), 4U);
    EXPECT_NEAR(levels[0], 10, 1e-12);
    EXPECT_NEAR(levels[1], std::pow((std::pow(10.0, 1 / 7.0) + std::pow(0.01, 1 / 7.0)) / 2, 7), 1e-12);
    EXPECT_NEAR(levels[2], 0.01, 1e-12);
    EXPECT_EQ(levels[3], 0);
    EXPECT_TRUE(throws_with<InvalidInput>("sigma_max must be larger than sigma_min, and is 0.001", [] { EdmSampling{.sigma_max = 0.001}.validate(); }));
    EXPECT_TRUE(throws_with<InvalidInput>("the number of steps", [] { EdmSampling{.num_steps = 0}.validate(); }));
}

TEST(GridNoise, BelongsToThePositionsOfTheWhole)
{
    const auto whole = grid_noise(torch::zeros({2, 3, 40, 30}), 7, 2);

    EXPECT_NEAR(whole.mean().item<double>(), 0, 0.03);
    EXPECT_NEAR(whole.std().item<double>(), 1, 0.03);
    EXPECT_FALSE(torch::equal(whole, grid_noise(torch::zeros({2, 3, 40, 30}), 8, 2)));
    EXPECT_FALSE(torch::equal(whole, grid_noise(torch::zeros({2, 3, 40, 30}), 7, 3)));
    EXPECT_FALSE(torch::equal(whole[0], whole[1]));
    run_ranks({2, 2}, {"rows", "columns"}, [&](std::shared_ptr<const DeviceMesh> mesh) {
        const auto local = torch::zeros({2, 3, 40, 30}).split_with_sizes({1, 39}, 2)[mesh->coordinate(0)].split_with_sizes({19, 11}, 3)[mesh->coordinate(1)];
        EXPECT_TRUE(torch::equal(full_tensor(grid_noise(from_local(local.clone(), mesh, {Shard(2), Shard(3)}), 7, 2)), whole));
    });
}

TEST(GenerateImages, IsTheSameOnAnyNumberOfRanksWithNoiseAddedAnew)
{
    const EdmSampling sampling{.num_steps = 5, .churn = 3, .seed = 11};
    const auto like = torch::zeros({2, 2, 12, 8}), image = torch::randn({2, 1, 12, 8});
    auto serial = rough_denoiser({0.5});
    const auto expected = generate_images(serial, like, {image, {}}, sampling);
    EXPECT_TRUE(torch::equal(generate_images(serial, like, {image, {}}, sampling), expected));
    auto without = sampling;
    without.churn = 0;
    EXPECT_GT((generate_images(serial, like, {image, {}}, without) - expected).abs().max().item<double>(), 1e-3);
    EXPECT_FALSE(torch::allclose(expected[0], expected[1]));

    run_ranks(3, [&](std::shared_ptr<const DeviceMesh> mesh) {
        EdmPreconditioner model(small_denoiser(), std::vector<double>{0.5});
        {
            const torch::NoGradGuard no_grad;
            const auto values = serial->named_parameters();
            for (auto& item : model->named_parameters()) item.value().copy_(values[item.key()]);
        }
        const auto cut = [&](const at::Tensor& whole) {
            return from_local(whole.split_with_sizes({2, 6, 4}, 2)[mesh->coordinate(0)].clone(), mesh, {Shard(2)});
        };

        const auto found = generate_images(model, cut(like), {cut(image), {}}, sampling);

        test::expect_near("images", full_tensor(found), expected, 2e-5 * test::largest(expected));
    });
}

}  // namespace
}  // namespace meshard
