// SPDX-License-Identifier: Apache-2.0
#include "models/geotransolver.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "models/flare.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"

namespace meshard {
namespace {

GeoTransolverOptions small_options()
{
    GeoTransolverOptions options;
    options.functional_dim = {6};
    options.out_dim = {4};
    options.geometry_dim = 3;
    options.global_dim = 2;
    options.n_layers = 1;
    options.n_hidden = 16;
    options.n_head = 2;
    options.mlp_ratio = 2;
    options.slice_num = 5;
    return options;
}

TEST(GeoTransolver, HasTheReferencesParameterCount)
{
    GeoTransolverOptions options;   // the surface model of the reference's unified recipe
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

TEST(GeoTransolver, RefusesInputsThatDoNotFit)
{
    GeoTransolver model(small_options());
    const auto points = torch::zeros({1, 9, 6}), geometry = torch::zeros({1, 4, 3}), global = torch::zeros({1, 1, 2});
    const auto refused = [&](const GeoTransolverInputs& inputs, const char* text) {
        EXPECT_TRUE(throws_with<InvalidInput>(text, [&] { model->forward(inputs); }));
    };

    refused({{points}, global, {}}, "geometry is missing; the model was made to take it");
    refused({{points}, {}, geometry}, "global_embedding is missing");
    refused({{points, points}, global, geometry}, "local_embedding has 2 streams, and the model 1");
    refused({{geometry}, global, geometry}, "local_embedding must be (batch, points, 6), and has the shape [1, 4, 3]");
    refused({{points}, global, points}, "geometry must be (batch, points, 3)");
    auto options = small_options();
    options.geometry_dim = 0;
    model = GeoTransolver(options);
    refused({{points}, global, geometry}, "geometry was given, and the model takes none");
}

TEST(GeoTransolverOptions, NameWhatIsNotImplementedOrImpossible)
{
    const auto refused = [](auto change, const char* text) {
        auto options = small_options();
        change(options);
        EXPECT_TRUE(throws_with<InvalidInput>(text, [&] { options.validate(); }));
    };
    refused([](auto& o) { o.include_local_features = true; }, "include_local_features (ball queries) is not implemented");
    refused([](auto& o) { o.use_te = true; }, "use_te");
    refused([](auto& o) { o.functional_dim = {}; }, "functional_dim must have a number for each stream");
    refused([](auto& o) { o.out_dim = {1, 2}; }, "have 1 and 2 numbers");
    refused([](auto& o) { o.n_head = 3; }, "16 is not one of 3");
    refused([](auto& o) { o.attention_type = "GALE_FE"; }, "attention_type must be GALE or GALE_FA, and is 'GALE_FE'");
    refused([](auto& o) { o.state_mixing_mode = "sum"; }, "state_mixing_mode must be weighted or concat_project, and is 'sum'");
    refused([](auto& o) { o.structured_shape = {4}; }, "structured_shape must have 2 or 3 extents");
}

TEST(GeoTransolverOptions, SurviveJson)
{
    auto options = small_options();
    EXPECT_EQ(to_json(options)["functional_dim"], 6);
    EXPECT_EQ(to_json(geotransolver_options(to_json(options))), to_json(options));
    options.functional_dim = {6, 7};
    options.out_dim = {1, 2};
    options.geometry_dim = 0;
    EXPECT_EQ(to_json(geotransolver_options(to_json(options))), to_json(options));
    EXPECT_TRUE(to_json(options)["geometry_dim"].is_null());
    EXPECT_TRUE(throws_with<InvalidInput>("Did you mean 'geometry_dim'?", [&] { geotransolver_options({{"geometry_dims", 4}}); }));
}

TEST(ConcreteDropout, DropsAtItsRateAndKeepsTheMean)
{
    torch::manual_seed(3);
    ConcreteDropout dropout(0.3);
    const auto x = torch::ones({200000});

    const auto y = dropout(x);

    EXPECT_NEAR(y.mean().item<double>(), 1.0, 0.01);
    EXPECT_NEAR((y < 0.5 / 0.7).to(torch::kFloat).mean().item<double>(), 0.3, 0.01);   // the relaxed draw falls below one half as often
    y.sum().backward();
    EXPECT_NE(dropout->parameters().at(0).grad().item<double>(), 0.0);
    dropout->eval();
    EXPECT_TRUE(torch::equal(dropout(x), x));
}

TEST(TransolverPlus, DrawsNoiseWhileTrainingOnly)
{
    torch::manual_seed(3);
    TransolverOptions options;
    options.functional_dim = 1;
    options.embedding_dim = 3;
    options.out_dim = 2;
    options.n_layers = 1;
    options.n_hidden = 16;
    options.n_head = 2;
    options.plus = true;
    Transolver model(options);
    const auto fx = torch::randn({1, 30, 1}), embedding = torch::randn({1, 30, 3});

    EXPECT_FALSE(torch::equal(model->forward(fx, embedding), model->forward(fx, embedding)));
    model->eval();
    EXPECT_TRUE(torch::equal(model->forward(fx, embedding), model->forward(fx, embedding)));
    model->set_noise([](const torch::Tensor& logits) { return torch::rand_like(logits); });
    EXPECT_FALSE(torch::equal(model->forward(fx, embedding), model->forward(fx, embedding)));
}

TEST(Flare, DoesNotDependOnTheOrderOfThePoints)
{
    torch::manual_seed(2);
    TransolverOptions options;
    options.functional_dim = 1;
    options.embedding_dim = 3;
    options.out_dim = 2;
    options.n_layers = 2;
    options.n_hidden = 16;
    options.n_head = 2;
    Flare model(options);
    model->to(torch::kDouble);
    const auto fx = torch::randn({2, 40, 1}, torch::kDouble), embedding = torch::randn({2, 40, 3}, torch::kDouble);
    const auto order = torch::randperm(40);

    const auto expected = model->forward(fx, embedding).index_select(1, order);

    EXPECT_TRUE(torch::allclose(model->forward(fx.index_select(1, order), embedding.index_select(1, order)), expected, 1e-12, 1e-14));
    options.plus = true;
    EXPECT_TRUE(throws_with<InvalidInput>("FLARE: there is no argument 'plus'", [&] { Flare refused(options); }));
}

}  // namespace
}  // namespace meshard
