// SPDX-License-Identifier: Apache-2.0
#include "models/transolver.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "models/activation.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"

namespace meshard {
namespace {

TransolverOptions small_options()
{
    TransolverOptions options;
    options.functional_dim = 1;
    options.embedding_dim = 3;
    options.out_dim = 2;
    options.n_layers = 2;
    options.n_hidden = 16;
    options.n_head = 2;
    options.mlp_ratio = 2;
    options.slice_num = 5;
    return options;
}

TEST(Transolver, HasTheReferencesParameterCount)
{
    auto options = small_options();
    options.embedding_dim = 6;
    options.out_dim = 4;
    options.n_layers = 4;
    options.n_hidden = 64;
    options.n_head = 4;
    options.slice_num = 32;

    const Transolver model(options);

    std::int64_t count = 0;
    for (const auto& parameter : model->parameters()) count += parameter.numel();
    EXPECT_EQ(count, 132180);   // as the reference run of this configuration reports
}

TEST(Transolver, StartsWithSmallWeightsAndNoBias)
{
    torch::manual_seed(1);
    const Transolver model(small_options());

    for (const auto& item : model->named_parameters()) {
        const auto& value = item.value();
        if (item.key().find("temperature") != std::string::npos) {
            EXPECT_TRUE(torch::all(value == 0.5).item<bool>()) << item.key();
        } else if (item.key().find("ln_") != std::string::npos && value.dim() == 1 && item.key().ends_with("weight")) {
            EXPECT_TRUE(torch::all(value == 1.0).item<bool>()) << item.key();
        } else if (value.dim() == 1) {
            EXPECT_TRUE(torch::all(value == 0.0).item<bool>()) << item.key();
        } else if (value.numel() > 200) {
            EXPECT_NEAR(value.std().item<double>(), 0.02, 0.004) << item.key();
        }
    }
}

TEST(Transolver, IsTheSameForTheSameSeed)
{
    torch::manual_seed(5);
    const Transolver first(small_options());
    torch::manual_seed(5);
    const Transolver second(small_options());

    const auto a = first->parameters();
    const auto b = second->parameters();
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i]));
}

TEST(Transolver, DoesNotDependOnTheOrderOfThePoints)
{
    torch::manual_seed(2);
    Transolver model(small_options());
    model->to(torch::kDouble);
    const auto fx = torch::randn({1, 40, 1}, torch::kDouble);
    const auto embedding = torch::randn({1, 40, 3}, torch::kDouble);
    const auto order = torch::randperm(40);

    const auto expected = model->forward(fx, embedding).index_select(1, order);
    const auto shuffled = model->forward(fx.index_select(1, order), embedding.index_select(1, order));

    EXPECT_TRUE(torch::allclose(shuffled, expected, 1e-12, 1e-14));
}

TEST(Transolver, RefusesShapesThatDoNotFit)
{
    Transolver model(small_options());

    EXPECT_TRUE(throws_with<InvalidInput>("embedding must be (batch, points, 3)", [&] { model->forward(torch::zeros({1, 4, 1}), torch::zeros({1, 4, 6})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("fx must be (batch, points, 1)", [&] { model->forward(torch::zeros({4, 1}), torch::zeros({1, 4, 3})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("is missing", [&] { model->forward(torch::zeros({1, 4, 1}), {}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("no time_input", [&] { model->forward(torch::zeros({1, 4, 1}), torch::zeros({1, 4, 3}), torch::zeros(1)); }));
}

TEST(TransolverOptions, NameWhatIsNotImplementedOrImpossible)
{
    const auto refused = [](auto change, const char* text) {
        auto options = small_options();
        change(options);
        EXPECT_TRUE(throws_with<InvalidInput>(text, [&] { options.validate(); }));
    };
    refused([](auto& o) { o.unified_pos = true; }, "unified_pos needs a structured_shape of 2 extents");
    refused([](auto& o) { o.unified_pos = true, o.structured_shape = {4, 4, 4}; }, "unified_pos needs a structured_shape of 2 extents");
    refused([](auto& o) { o.structured_shape = {4}; }, "structured_shape must have 2 or 3 extents, and has 1");
    refused([](auto& o) { o.structured_shape = {4, 0}; }, "an extent of structured_shape must be at least 1");
    refused([](auto& o) { o.use_te = true; }, "use_te");
    refused([](auto& o) { o.n_head = 3; }, "16 is not one of 3");
    refused([](auto& o) { o.slice_num = 0; }, "slice_num must be at least 1");
    refused([](auto& o) { o.dropout = 1.0; }, "dropout");
    refused([](auto& o) { o.time_input = true, o.n_hidden = 15, o.n_head = 1; }, "even n_hidden");
}

TEST(TransolverOptions, SurviveJson)
{
    auto options = small_options();
    options.act = "silu";
    options.dropout = 0.25;

    const auto copy = transolver_options(to_json(options));

    EXPECT_EQ(to_json(copy), to_json(options));
    EXPECT_EQ(copy.act, "silu");
}

TEST(TransolverOptions, RefuseUnknownNamesAndWrongTypes)
{
    EXPECT_TRUE(throws_with<InvalidInput>("Did you mean 'n_head'?", [&] { transolver_options({{"n_heads", 4}}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("n_head cannot be \"four\"", [&] { transolver_options({{"n_head", "four"}}); }));
}

TEST(Activation, KnowsItsNamesInAnyCase)
{
    const auto x = torch::linspace(-2, 2, 9);

    for (const auto& name : activation_names()) EXPECT_EQ(Activation(name)->forward(x).sizes(), x.sizes()) << name;
    EXPECT_TRUE(torch::equal(Activation("GELU")->forward(x), torch::gelu(x)));
    EXPECT_TRUE(torch::equal(Activation("prelu")->forward(x), torch::where(x > 0, x, 0.25 * x)));
    EXPECT_TRUE(torch::allclose(Activation("softsign")->forward(x), x / (1 + x.abs())));
}

TEST(Activation, RefusesOthersByName)
{
    EXPECT_TRUE(throws_with<InvalidInput>("Did you mean 'gelu'?", [&] { Activation("gelo"); }));
    EXPECT_TRUE(throws_with<InvalidInput>("'stan' is not implemented yet", [&] { Activation("stan"); }));
}

}  // namespace
}  // namespace meshard
