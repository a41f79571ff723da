// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoints/model_checkpoint.h"
#include "models/diffusion/edm_preconditioner.h"
#include "models/diffusion/edm_sampling.h"
#include "partition/error.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixture_cases.h"
#include "tests/support/run_fixture.h"
#include "tests/support/run_ranks.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include <cmath>

namespace meshard {
namespace {

using test::NamedTensors;

EdmPreconditioner model_of(const nlohmann::json& description, const NamedTensors& tensors)
{
    const auto& constructor = description["constructor"];
    EdmPreconditioner model(dit_options(constructor["dit"]),
                            std::vector<double>{constructor["sigma_data"].get<double>()});
    const torch::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) item.value().copy_(tensors.at("param." + item.key()));
    model->eval();
    return model;
}

/// (s^2 + d^2) / (s d)^2 of each sample's noise, (B), and each channel's deviation, (channels) or a single one.
torch::Tensor loss_weight(const torch::Tensor& deviations, const torch::Tensor& sigma)
{
    const auto s = sigma.view({-1, 1, 1, 1}), d = deviations.view({1, -1, 1, 1});
    return (s.square() + d.square()) / (s * d).square();
}

/// The mean over all entries of the weight times (D(clean + sigma noise, sigma) - clean)^2 (Karras et al. 2022,
/// equation 8).
torch::Tensor edm_loss(EdmPreconditioner& model, const torch::Tensor& weight, const torch::Tensor& clean,
                       const torch::Tensor& sigma, const torch::Tensor& noise, const DenoiserCondition& condition)
{
    const auto denoised = model->forward(clean + sigma.view({-1, 1, 1, 1}) * noise, sigma, condition);
    return (weight * (denoised - clean).square()).mean();
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
    const DenoiserCondition condition{tensors.at("input.condition.cond_concat"),
                                      tensors.at("input.condition.cond_vec")};

    const auto deviation = torch::tensor(GetParam().description()["constructor"]["sigma_data"].get<float>());
    const auto weight = loss_weight(deviation, tensors.at("input.t"));
    const auto loss =
        edm_loss(model, weight, tensors.at("input.x"), tensors.at("input.t"), tensors.at("edm.noise"), condition);

    test::expect_near("loss", loss.detach(), tensors.at("edm.loss"), 1e-5 * test::largest(tensors.at("edm.loss")));
    test::expect_near("weight", weight.flatten(), tensors.at("edm.loss_weight"),
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
            const DenoiserCondition condition{cut(tensors.at("input.condition.cond_concat")),
                                              tensors.at("input.condition.cond_vec")};

            const auto sample = follow_noise_levels(model, cut(start), levels, condition, {});

            test::expect_near("sample", full_tensor(sample), tensors.at("edm.sample"),
                              1e-4 * test::largest(tensors.at("edm.sample")));
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
        model->forward(values.at("input.x"), values.at("input.t"),
                       {values.at("input.condition.cond_concat"), values.at("input.condition.cond_vec")});

    test::expect_near("output", output.detach(), values.at("output"),
                      2e-6 * std::max(1.0, test::largest(values.at("output"))));
}

nlohmann::json small_dit_arguments()
{
    return {{"input_size", {12, 8}}, {"in_channels", 3}, {"out_channels", 2},
            {"patch_size", 2},       {"hidden_size", 8}, {"depth", 1},
            {"num_heads", 1},        {"mlp_ratio", 2.0}, {"attention_backend", "natten2d"}};
}

DitOptions denoiser_options()
{
    return dit_options(small_dit_arguments());
}

EdmPreconditioner rough_denoiser(std::vector<double> sigma_data)
{
    torch::manual_seed(4);
    EdmPreconditioner model(denoiser_options(), sigma_data);
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
    const auto inner =
        model->dit()->forward(torch::cat({scaled[0], scaled[1], image}, 1), torch::full({1}, std::log(s) / 4));
    for (int c = 0; c < 2; ++c) {
        const auto total = s * s + data[c] * data[c];
        const auto expected = noisy.narrow(1, c, 1) * (data[c] * data[c] / total) +
                              inner.narrow(1, c, 1) * (s * data[c] / std::sqrt(total));
        EXPECT_TRUE(torch::allclose(denoised.narrow(1, c, 1), expected, 1e-5, 1e-6));
    }
}

// Exact in single precision, in which the buffer is made.
const std::vector<double> kDeviations{0.25, 3.0};
const std::vector<std::vector<std::int64_t>> kUnevenRows{{2, 10}, {4, 0, 8}};

/// In double precision, with a deviation for each channel.
EdmPreconditioner double_denoiser()
{
    auto model = rough_denoiser(kDeviations);
    model->to(torch::kDouble);
    return model;
}

EdmPreconditioner double_copy_of(EdmPreconditioner other)
{
    EdmPreconditioner model(denoiser_options(), kDeviations);
    model->to(torch::kDouble);
    model->eval();
    const torch::NoGradGuard no_grad;
    const auto values = other->named_parameters();
    for (auto& item : model->named_parameters()) item.value().copy_(values[item.key()]);
    return model;
}

/// What the network inside gives for an image with noise, each channel of it scaled by its own c_in.
at::Tensor network(EdmPreconditioner& model, const at::Tensor& noisy, double sigma, const at::Tensor& image)
{
    std::vector<at::Tensor> channels;
    for (int c = 0; c < 2; ++c) channels.push_back(noisy.narrow(1, c, 1) / std::hypot(sigma, kDeviations[c]));
    channels.push_back(image);
    return model->dit()->forward(torch::cat(channels, 1),
                                 torch::full({noisy.size(0)}, std::log(sigma) / 4, torch::kDouble));
}

TEST(EdmPreconditioning, LossWithADeviationForEachChannelIsThatOfThePaper)
{
    const auto type = torch::kDouble;
    auto serial = double_denoiser();
    const auto clean = torch::randn({2, 2, 12, 8}, type), noise = torch::randn({2, 2, 12, 8}, type),
               image = torch::randn({2, 1, 12, 8}, type);
    const std::vector<double> sigmas{0.7, 4.0};
    const auto sigma = torch::tensor(sigmas, type);

    const auto weight =
        loss_weight(torch::tensor(std::vector<double>(std::begin(kDeviations), std::end(kDeviations)), type), sigma);
    const auto loss = edm_loss(serial, weight, clean, sigma, noise, {image, {}});
    loss.backward();

    // Karras et al. 2022, equation 8: with this weight the network itself is compared with its effective target, (clean
    // - c_skip noisy) / c_out.
    double expected = 0;
    {
        const torch::NoGradGuard no_grad;
        for (int b = 0; b < 2; ++b) {
            const auto s = sigmas[b];
            const auto noisy = clean.narrow(0, b, 1) + s * noise.narrow(0, b, 1);
            const auto given = network(serial, noisy, s, image.narrow(0, b, 1));
            for (int c = 0; c < 2; ++c) {
                const auto data = kDeviations[c], total = s * s + data * data;
                const auto target = (clean[b][c] - data * data / total * noisy[0][c]) * std::sqrt(total) / (s * data);
                expected += (given[0][c] - target).square().mean().item<double>() / 4;
            }
        }
    }
    EXPECT_NEAR(loss.item<double>(), expected, 1e-12 * expected);

    for (const auto& extents : kUnevenRows) {
        SCOPED_TRACE(extents.size());
        run_ranks(static_cast<int>(extents.size()), [&](std::shared_ptr<const DeviceMesh> mesh) {
            auto model = double_copy_of(serial);
            const auto replicated = replicate(*model, mesh);
            const auto cut = [&](const at::Tensor& whole) {
                return from_local(whole.split_with_sizes(extents, 2)[mesh->coordinate(0)].clone(), mesh, {Shard(2)});
            };

            const auto found = edm_loss(model, weight, cut(clean), sigma, cut(noise), {cut(image), {}});
            found.backward();

            EXPECT_NEAR(full_tensor(found).item<double>(), expected, 1e-12 * expected);
            const auto gradients = serial->named_parameters();
            for (const auto& item : model->named_parameters()) {
                const auto& gradient = gradients[item.key()].grad();
                test::expect_near(item.key(), item.value().grad(), gradient,
                                  1e-11 * std::max(1.0, test::largest(gradient)));
            }
        });
    }
}

TEST(EdmPreconditioning, SamplesWithADeviationForEachChannelAreThoseOfThePaper)
{
    const auto type = torch::kDouble;
    auto serial = double_denoiser();
    const std::vector<double> levels{20, 3, 0.5, 0};
    const auto start = levels[0] * torch::randn({2, 2, 12, 8}, type), image = torch::randn({2, 1, 12, 8}, type);

    const auto sample = follow_noise_levels(serial, start, levels, {image, {}}, {});

    // Karras et al. 2022, algorithm 1, channel by channel; (x - D) / s = (s x - sd sqrt(s^2 + sd^2) F) / (s^2 + sd^2).
    auto expected = start;
    {
        const torch::NoGradGuard no_grad;
        const auto slope = [&](const at::Tensor& x, double s) {
            const auto given = network(serial, x, s, image);
            std::vector<at::Tensor> channels;
            for (int c = 0; c < 2; ++c) {
                const auto data = kDeviations[c], total = s * s + data * data;
                channels.push_back((s * x.narrow(1, c, 1) - data * std::sqrt(total) * given.narrow(1, c, 1)) / total);
            }
            return torch::cat(channels, 1);
        };
        for (std::size_t i = 0; i + 1 < levels.size(); ++i) {
            const auto step = levels[i + 1] - levels[i];
            const auto first = slope(expected, levels[i]);
            const auto moved = expected + step * first;
            expected = levels[i + 1] > 0 ? expected + step * 0.5 * (first + slope(moved, levels[i + 1])) : moved;
        }
    }
    test::expect_near("sample", sample, expected, 1e-11 * test::largest(expected));

    for (const auto& extents : kUnevenRows) {
        SCOPED_TRACE(extents.size());
        run_ranks(static_cast<int>(extents.size()), [&](std::shared_ptr<const DeviceMesh> mesh) {
            auto model = double_copy_of(serial);
            const auto cut = [&](const at::Tensor& whole) {
                return from_local(whole.split_with_sizes(extents, 2)[mesh->coordinate(0)].clone(), mesh, {Shard(2)});
            };

            const auto found = follow_noise_levels(model, cut(start), levels, {cut(image), {}}, {});

            test::expect_near("sample", full_tensor(found), expected, 1e-11 * test::largest(expected));
        });
    }
}

TEST(EdmPreconditioning, SamplesOfAConstantNetworkFollowTheirClosedForm)
{
    auto model = double_denoiser();
    {
        const torch::NoGradGuard no_grad;
        for (auto& item : model->named_parameters()) {
            if (item.value().dim() > 1) item.value().zero_();
        }
    }
    const EdmSampling sampling{.num_steps = 400, .sigma_max = 10};
    const auto start = 10 * torch::randn({1, 2, 12, 8}, torch::kDouble),
               image = torch::randn({1, 1, 12, 8}, torch::kDouble);
    const auto constant = network(model, start, 10, image).detach();
    ASSERT_TRUE(torch::equal(network(model, -start, 0.1, -image).detach(), constant));
    ASSERT_GT(constant.abs().max().item<double>(), 0.01);

    const auto sample = follow_noise_levels(model, start, noise_levels(sampling), {image, {}}, sampling);

    // With F constant, dx/ds = (x - D) / s is solved by x = sqrt(s^2 + sd^2) (u - F atan(s / sd)), where u does not
    // depend on s.
    for (int c = 0; c < 2; ++c) {
        const auto data = kDeviations[c];
        const auto expected = data * (start[0][c] / std::hypot(10, data) + constant[0][c] * std::atan(10 / data));
        test::expect_near("channel " + std::to_string(c), sample[0][c], expected, 3e-4 * test::largest(expected));
    }
}

TEST(EdmPreconditioning, TakesDeviationsFromArguments)
{
    const auto arguments_with = [](nlohmann::json sigma_data) -> nlohmann::json {
        const nlohmann::json dit{{"__name__", "DiT"}, {"__args__", small_dit_arguments()}};
        return {{"sigma_data", std::move(sigma_data)},
                {"model", {{"__name__", "ConcatConditionWrapper"}, {"__args__", {{"model", dit}}}}}};
    };

    EXPECT_TRUE(torch::equal(make_edm_preconditioner(arguments_with({0.25, 3.0}))->named_buffers()["sigma_data"],
                             torch::tensor({0.25F, 3.0F})));
    // The reference makes one number of a list of one.
    EXPECT_TRUE(torch::equal(
        make_edm_preconditioner(arguments_with(nlohmann::json::array({0.25})))->named_buffers()["sigma_data"],
        torch::tensor(0.25F)));
    EXPECT_TRUE(throws_with<InvalidInput>("3 numbers for 2 channels",
                                          [&] { make_edm_preconditioner(arguments_with({1, 2, 3})); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("sigma_data cannot be", [&] { make_edm_preconditioner(arguments_with({"a", 2})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("one number or one for each channel",
                                          [&] { make_edm_preconditioner(arguments_with(nlohmann::json::array())); }));
}

TEST(EdmPreconditioning, RefusesWhatDoesNotFit)
{
    auto model = rough_denoiser({0.5});
    EXPECT_TRUE(throws_with<InvalidInput>("must have 2 channels and the condition image 1",
                                          [&] { model->forward(torch::zeros({1, 2, 12, 8}), torch::ones({1})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("sigma_data must be positive",
                                          [] { EdmPreconditioner(denoiser_options(), std::vector<double>{0.0}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("3 numbers for 2 channels",
                                          [] { EdmPreconditioner(denoiser_options(), std::vector<double>{1, 2, 3}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("has a model of the class 'SongUNet'; expected ConcatConditionWrapper", [] {
        make_edm_preconditioner({{"model", {{"__name__", "SongUNet"}, {"__args__", nlohmann::json::object()}}}});
    }));
}

TEST(NoiseLevels, AreThoseOfThePaper)
{
    const auto levels = noise_levels({.num_steps = 3, .sigma_min = 0.01, .sigma_max = 10});

    ASSERT_EQ(levels.size(), 4U);
    EXPECT_NEAR(levels[0], 10, 1e-12);
    EXPECT_NEAR(levels[1], std::pow((std::pow(10.0, 1 / 7.0) + std::pow(0.01, 1 / 7.0)) / 2, 7), 1e-12);
    EXPECT_NEAR(levels[2], 0.01, 1e-12);
    EXPECT_EQ(levels[3], 0);
    EXPECT_TRUE(throws_with<InvalidInput>("sigma_max must be larger than sigma_min, and is 0.001",
                                          [] { EdmSampling{.sigma_max = 0.001}.validate(); }));
    EXPECT_TRUE(throws_with<InvalidInput>("the number of steps", [] { EdmSampling{.num_steps = 0}.validate(); }));
}

TEST(DrawnLevels, HaveTheLogarithmsOfThePaper)
{
    constexpr int kCount = 20000;
    auto logarithms = torch::empty({kCount}, torch::kDouble);
    for (int i = 0; i < kCount; ++i) logarithms[i] = std::log(drawn_level(static_cast<std::uint64_t>(i)));
    EXPECT_NEAR(logarithms.mean().item<double>(), kMeanLevel, 0.03);
    EXPECT_NEAR(logarithms.std().item<double>(), kLevelDeviation, 0.03);
}

TEST(EdmPreconditioning, OfANewModelIsBestForNormalNumbersWithTheSameLossAtEveryLevel)
{
    EdmPreconditioner model(denoiser_options(), std::vector<double>{1.0});
    const torch::NoGradGuard no_grad;
    const auto clean = torch::randn({64, 2, 12, 8}), noise = torch::randn_like(clean),
               image = torch::rand({64, 1, 12, 8});
    for (const double level : {0.05, 1.0, 20.0}) {
        const auto noisy = clean + level * noise;
        const auto denoised = model->forward(noisy, torch::full({64}, level), {image, {}});
        // The mean of normal numbers of which so much is known.
        EXPECT_TRUE(torch::allclose(denoised, noisy / (1 + level * level), 1e-5, 1e-6)) << level;
        const auto error = (denoised - clean).square().mean().item<double>();
        EXPECT_NEAR(error, level * level / (1 + level * level), 0.05 * error) << level;
        EXPECT_NEAR(meshard::loss_weight(level) * error, 1, 0.05) << level;
    }
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
        const auto local = torch::zeros({2, 3, 40, 30})
                               .split_with_sizes({1, 39}, 2)[mesh->coordinate(0)]
                               .split_with_sizes({19, 11}, 3)[mesh->coordinate(1)];
        EXPECT_TRUE(
            torch::equal(full_tensor(grid_noise(from_local(local.clone(), mesh, {Shard(2), Shard(3)}), 7, 2)), whole));
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
        EdmPreconditioner model(denoiser_options(), std::vector<double>{0.5});
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
