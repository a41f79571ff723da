// SPDX-License-Identifier: Apache-2.0
#include "models/geotransolver/geotransolver.h"
#include "models/transolver/flare.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/small_models.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <functional>

namespace meshard {
namespace {

using test::small_geotransolver;

TEST(GeoTransolver, HasTheReferencesParameterCount)
{
    GeoTransolverOptions options;  // the surface model of the reference's unified recipe
    options.functional_dim = {6};
    options.out_dim = {4};
    options.geometry_dim = 3;
    options.global_dim = 3;
    options.n_layers = 12;
    options.slice_num = 256;

    const GeoTransolver model(options);

    std::int64_t count = 0;
    for (const auto& parameter : model->parameters()) count += parameter.numel();
    EXPECT_EQ(count, 9046016);
}

TEST(GeoTransolver, WithLocalFeaturesHasTheReferencesParameterCount)
{
    GeoTransolverOptions options;  // the surface model of the reference's recipe with six radii
    options.functional_dim = {6};
    options.out_dim = {4};
    options.geometry_dim = 3;
    options.global_dim = 2;
    options.n_layers = 20;
    options.mlp_ratio = 2;
    options.slice_num = 128;
    options.include_local_features = true;
    options.radii = {0.01, 0.05, 0.25, 1, 2.5, 5};
    options.neighbors_in_radius = {4, 8, 16, 64, 128, 256};

    const GeoTransolver model(options);

    std::int64_t count = 0;
    for (const auto& parameter : model->parameters()) count += parameter.numel();
    EXPECT_EQ(count, 29490680);
}

TEST(GeoTransolver, AsksForThePlacesOfEveryStreamsPoints)
{
    GeoTransolver model(test::small_geotransolver_with_neighbors());
    const auto points = torch::zeros({1, 9, 2}), geometry = torch::zeros({1, 4, 3}), global = torch::zeros({1, 1, 2});

    EXPECT_TRUE(throws_with<InvalidInput>("local_positions has 0 streams, and the model 1",
                                          [&] { model->forward({{points}, global, geometry, {}}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("stream 0 has 8 local_positions and 9 rows", [&] {
        model->forward({{points}, global, geometry, {torch::zeros({1, 8, 3})}});
    }));
    EXPECT_TRUE(throws_with<InvalidInput>("local_positions must be (batch, points, 3)",
                                          [&] { model->forward({{points}, global, geometry, {points}}); }));
}

TEST(GeoTransolver, RefusesInputsThatDoNotFit)
{
    GeoTransolver model(small_geotransolver());
    const auto points = torch::zeros({1, 9, 2}), geometry = torch::zeros({1, 4, 3}), global = torch::zeros({1, 1, 2});
    const auto refused = [&](const GeoTransolverInputs& inputs, const char* text) {
        EXPECT_TRUE(throws_with<InvalidInput>(text, [&] { model->forward(inputs); }));
    };

    refused({{points}, global, {}, {}}, "geometry is missing; the model was made to take it");
    refused({{points}, {}, geometry, {}}, "global_embedding is missing");
    refused({{points, points}, global, geometry, {}}, "local_embedding has 2 streams, and the model 1");
    refused({{geometry}, global, geometry, {}},
            "local_embedding must be (batch, points, 2), and has the shape [1, 4, 3]");
    refused({{points}, global, points, {}}, "geometry must be (batch, points, 3)");
    auto options = small_geotransolver();
    options.geometry_dim = 0;
    model = GeoTransolver(options);
    refused({{points}, global, geometry, {}}, "geometry was given, and the model takes none");
}

TEST(GeoTransolverOptions, NameWhatIsNotImplementedOrImpossible)
{
    const auto refused = [](auto change, const char* text) {
        auto options = small_geotransolver();
        change(options);
        EXPECT_TRUE(throws_with<InvalidInput>(text, [&] { options.validate(); }));
    };
    refused([](auto& o) { o.include_local_features = true, o.geometry_dim = 0; }, "geometry_dim must be 3, and is 0");
    refused([](auto& o) { o.include_local_features = true, o.structured_shape = {4, 4}; }, "cannot be used on a grid");
    refused([](auto& o) { o.include_local_features = true, o.radii = {0.1}; },
            "radii and neighbors_in_radius must be of one length, at least 1, and have 1 and 2");
    refused([](auto& o) { o.include_local_features = true, o.radii = {0.1, -1.0}; },
            "radii must be above 0 and finite, and is -1");
    refused([](auto& o) { o.include_local_features = true, o.neighbors_in_radius = {8, 0}; },
            "neighbors_in_radius must be at least 1, and is 0");
    refused([](auto& o) { o.include_local_features = true, o.n_hidden_local = 1; },
            "n_hidden_local must be at least 2");
    refused([](auto& o) { o.use_te = true; }, "use_te");
    refused([](auto& o) { o.functional_dim = {}; }, "functional_dim must have a number for each stream");
    refused([](auto& o) { o.out_dim = {1, 2}; }, "have 1 and 2 numbers");
    refused([](auto& o) { o.n_head = 5; }, "24 is not one of 5");
    refused([](auto& o) { o.attention_type = "GALE_FE"; }, "attention_type must be GALE or GALE_FA, and is 'GALE_FE'");
    refused([](auto& o) { o.state_mixing_mode = "sum"; },
            "state_mixing_mode must be weighted or concat_project, and is 'sum'");
    refused([](auto& o) { o.structured_shape = {4}; }, "structured_shape must have 2 or 3 extents");
}

TEST(GeoTransolverOptions, SurviveJson)
{
    auto options = small_geotransolver();
    EXPECT_EQ(to_json(options)["functional_dim"], 2);
    EXPECT_EQ(to_json(geotransolver_options(to_json(options))), to_json(options));
    options.functional_dim = {6, 7};
    options.out_dim = {1, 2};
    options.geometry_dim = 0;
    EXPECT_EQ(to_json(geotransolver_options(to_json(options))), to_json(options));
    EXPECT_TRUE(to_json(options)["geometry_dim"].is_null());
    EXPECT_TRUE(throws_with<InvalidInput>("Did you mean 'geometry_dim'?",
                                          [&] { geotransolver_options({{"geometry_dims", 4}}); }));
}

TEST(ConcreteDropout, DropsAtItsRateAndKeepsTheMean)
{
    torch::manual_seed(3);
    ConcreteDropout dropout(0.3);
    const auto x = torch::ones({200000});

    const auto y = dropout(x);

    EXPECT_NEAR(y.mean().item<double>(), 1.0, 0.01);
    EXPECT_NEAR((y < 0.5 / 0.7).to(torch::kFloat).mean().item<double>(), 0.3,
                0.01);  // the relaxed draw falls below one half as often
    y.sum().backward();
    EXPECT_NE(dropout->parameters().at(0).grad().item<double>(), 0.0);
    dropout->eval();
    EXPECT_TRUE(torch::equal(dropout(x), x));
}

TEST(GeoTransolver, BlocksAreFusedWithEveryActivationAndTemperatureOfPoints)
{
    for (const auto& [act, plus] : {std::pair{"gelu", true}, std::pair{"silu", false}, std::pair{"prelu", true},
                                    std::pair{"capped_gelu", false}}) {
        SCOPED_TRACE(act);
        auto options = small_geotransolver();
        options.act = act;
        options.plus = plus;
        torch::manual_seed(2);
        GeoTransolverBlock block(options, std::make_shared<SliceNoise>(7));  // has noise while training
        block->to(torch::kDouble);
        for (auto& parameter : block->parameters()) parameter.data().add_(0.1 * torch::randn_like(parameter));
        const auto context = torch::randn({2, options.n_head, options.slice_num, options.context_dim()}, torch::kDouble)
                                 .requires_grad_();
        const auto x = torch::randn({2, 150, options.num_channels()}, torch::kDouble).requires_grad_();
        auto wanted = block->parameters();
        wanted.insert(wanted.end(), {x, context});
        const auto gradients_of = [&](const torch::Tensor& y) {
            return torch::autograd::grad({y.sin().sum()}, wanted, {}, false, false, /*allow_unused=*/true);
        };
        const auto noisy =
            plus ? std::make_shared<RowNoise>(7) : nullptr;  // draws what the block's own noise draws first

        const auto expected = block->forward(x, context);
        auto fusion = block->fusion(context);
        ASSERT_EQ(obstacle_of(x, fusion), nullptr);
        EXPECT_EQ(fusion.block.noise != nullptr, plus);
        fusion.block.noise = noisy;
        const auto found = fused_block(x, fusion.block);

        EXPECT_TRUE(tensors_near(found, expected, 1e-12));
        const auto a = gradients_of(found), b = gradients_of(expected);
        for (std::size_t i = 0; i < a.size(); ++i) {
            const bool is_nothing =
                b[i].defined() && b[i].abs().max().item<double>() < 1e-12;  // cross_k.bias: softmax does not see it
            if (is_nothing)
                EXPECT_LT(a[i].abs().max().item<double>(), 1e-12) << i;
            else
                EXPECT_TRUE(tensors_near(a[i], b[i], 1e-10)) << i;
        }
    }
}

TEST(TransolverPlus, DrawsNoiseWhileTrainingOnly)
{
    torch::manual_seed(3);
    auto options = test::small_transolver();
    options.plus = true;
    Transolver model(options);
    const auto fx = torch::randn({1, 30, 2}), embedding = torch::randn({1, 30, 3});

    EXPECT_FALSE(torch::equal(model->forward(fx, embedding), model->forward(fx, embedding)));
    model->eval();
    EXPECT_TRUE(torch::equal(model->forward(fx, embedding), model->forward(fx, embedding)));
    model->set_noise(NoiseWhen::Always);
    EXPECT_FALSE(torch::equal(model->forward(fx, embedding), model->forward(fx, embedding)));
    model->train();
    model->set_noise(NoiseWhen::Never);
    EXPECT_TRUE(torch::equal(model->forward(fx, embedding), model->forward(fx, embedding)));
    model->set_noise([](const torch::Tensor& logits) { return torch::rand_like(logits); });
    EXPECT_FALSE(torch::equal(model->forward(fx, embedding), model->forward(fx, embedding)));
}

TEST(Flare, DoesNotDependOnTheOrderOfThePoints)
{
    torch::manual_seed(2);
    auto options = test::small_transolver();
    Flare model(options);
    model->to(torch::kDouble);
    const auto fx = torch::randn({2, 40, 2}, torch::kDouble), embedding = torch::randn({2, 40, 3}, torch::kDouble);
    const auto order = torch::randperm(40);

    const auto expected = model->forward(fx, embedding).index_select(1, order);

    EXPECT_TRUE(torch::allclose(model->forward(fx.index_select(1, order), embedding.index_select(1, order)), expected,
                                1e-12, 1e-14));
    options.plus = true;
    EXPECT_TRUE(throws_with<InvalidInput>("FLARE: there is no argument 'plus'", [&] { Flare refused(options); }));
}

TEST(GeoTransolver, MemoryModesChangeNothingButRounding)
{
    const std::vector<std::function<void(GeoTransolverOptions&)>> variants{
        [](auto&) {}, [](auto& o) { o.state_mixing_mode = "concat_project"; }, [](auto& o) { o.act = "silu"; },
        [](auto& o) { o.attention_type = "GALE_FA"; }};
    for (const auto& change : variants) {
        auto options = small_geotransolver();
        change(options);
        torch::manual_seed(2);
        GeoTransolver model(options);
        model->to(torch::kDouble);
        {
            const torch::NoGradGuard no_grad;
            for (auto& parameter : model->parameters()) parameter.add_(0.1 * torch::randn_like(parameter));
        }
        GeoTransolverInputs inputs;
        for (const auto dim : options.functional_dim)
            inputs.local_embedding.push_back(torch::rand({2, 23, dim}, torch::kDouble).requires_grad_());
        if (options.geometry_dim > 0)
            inputs.geometry = torch::rand({2, 15, options.geometry_dim}, torch::kDouble).requires_grad_();
        if (options.global_dim > 0) inputs.global_embedding = torch::rand({2, 1, options.global_dim}, torch::kDouble);
        std::vector<torch::Tensor> wanted = model->parameters();
        wanted.insert(wanted.end(), inputs.local_embedding.begin(), inputs.local_embedding.end());
        if (inputs.geometry.defined()) wanted.push_back(inputs.geometry);
        const auto run = [&] {
            torch::Tensor sum = torch::zeros({}, torch::kDouble);
            for (const auto& output : model->forward(inputs)) sum = sum + output.sin().square().sum();
            auto found = torch::autograd::grad({sum}, wanted, {}, false, false, /*allow_unused=*/true);
            found.push_back(sum.detach());
            return found;
        };

        const auto stored = run();
        model->set_memory(MemoryMode::Recomputed);
        const auto recomputed = run();
        ASSERT_EQ(stored.size(), recomputed.size());
        for (std::size_t i = 0; i < stored.size(); ++i) {
            EXPECT_TRUE(tensors_near(recomputed[i], stored[i], 1e-10)) << i;
        }
        EXPECT_TRUE(throws_with<InvalidInput>("Use `recomputed`", [&] { model->set_memory(MemoryMode::Streamed); }));
    }
}

}  // namespace
}  // namespace meshard
