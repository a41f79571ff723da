// SPDX-License-Identifier: Apache-2.0
#include "models/layers/activation.h"
#include "models/transolver/physics_attention.h"
#include "models/transolver/transolver.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_models.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/functional/linear.h>

#include <cmath>

namespace meshard {
namespace {

using test::small_transolver;

TEST(Transolver, HasTheReferencesParameterCount)
{
    auto options = small_transolver();
    options.functional_dim = 1;
    options.embedding_dim = 6;
    options.n_layers = 4;
    options.n_hidden = 64;
    options.n_head = 4;
    options.slice_num = 32;

    const Transolver model(options);

    std::int64_t count = 0;
    for (const auto& parameter : model->parameters()) count += parameter.numel();
    EXPECT_EQ(count, 132180);  // as the reference run of this configuration reports
}

TEST(Transolver, ShareOfFeaturesAndEmbeddingMayBeNothing)
{
    const auto x = torch::randn({2, 30, 3});
    const auto result_with = [&](std::int64_t functional_dim, const torch::Tensor& fx, const torch::Tensor& embedding) {
        auto options = small_transolver();
        options.functional_dim = functional_dim;
        options.embedding_dim = 3 - functional_dim;
        torch::manual_seed(5);
        return Transolver(options)->forward(fx, embedding);
    };
    const auto expected = result_with(2, x.narrow(2, 1, 2), x.narrow(2, 0, 1)), nothing = x.narrow(2, 0, 0);

    EXPECT_TRUE(torch::equal(result_with(3, x, nothing), expected));
    EXPECT_TRUE(torch::equal(result_with(3, x, {}), expected));
    EXPECT_TRUE(torch::equal(result_with(0, nothing, x), expected));
    EXPECT_TRUE(throws_with<InvalidInput>("embedding must be (batch, points, 1), and is missing",
                                          [&] { result_with(2, x.narrow(2, 1, 2), {}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("functional_dim must be at least 1, and is 0", [] {
        transolver_options({{"functional_dim", 0}, {"embedding_dim", 0}, {"out_dim", 1}}).validate();
    }));
    EXPECT_TRUE(throws_with<InvalidInput>("embedding_dim must be set unless unified_pos", [] {
        transolver_options({{"functional_dim", 2}, {"out_dim", 1}}).validate();
    }));
    EXPECT_TRUE(to_json(transolver_options({{"functional_dim", 2}, {"out_dim", 1}}))["embedding_dim"].is_null());
}

TEST(Transolver, StartsWithSmallWeightsAndNoBias)
{
    torch::manual_seed(1);
    const Transolver model(small_transolver());

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
    const Transolver first(small_transolver());
    torch::manual_seed(5);
    const Transolver second(small_transolver());

    const auto a = first->parameters();
    const auto b = second->parameters();
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i]));
}

TEST(Transolver, DoesNotDependOnTheOrderOfThePoints)
{
    torch::manual_seed(2);
    Transolver model(small_transolver());
    model->to(torch::kDouble);
    const auto fx = torch::randn({1, 40, 2}, torch::kDouble);
    const auto embedding = torch::randn({1, 40, 3}, torch::kDouble);
    const auto order = torch::randperm(40);

    const auto expected = model->forward(fx, embedding).index_select(1, order);
    const auto shuffled = model->forward(fx.index_select(1, order), embedding.index_select(1, order));

    EXPECT_TRUE(torch::allclose(shuffled, expected, 1e-12, 1e-14));
}

TEST(Transolver, WithTemperaturesOfPointsTrainsInHalfPrecision)
{
    for (const auto type : {torch::kBFloat16, torch::kHalf}) {
        auto options = small_transolver();
        options.plus = true;
        torch::manual_seed(2);
        Transolver model(options);
        model->to(type);
        const auto result = model->forward(torch::randn({1, 40, 2}).to(type), torch::randn({1, 40, 3}).to(type));
        EXPECT_EQ(result.scalar_type(), type);
        result.to(torch::kFloat).square().sum().backward();
        for (const auto& parameter : model->named_parameters()) {
            ASSERT_TRUE(parameter->grad().defined()) << parameter.key();
            EXPECT_TRUE(parameter->grad().isfinite().all().item<bool>()) << parameter.key();
        }
    }
}

TEST(Transolver, RefusesShapesThatDoNotFit)
{
    Transolver model(small_transolver());

    EXPECT_TRUE(throws_with<InvalidInput>("embedding must be (batch, points, 3)",
                                          [&] { model->forward(torch::zeros({1, 4, 2}), torch::zeros({1, 4, 6})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("fx must be (batch, points, 2)",
                                          [&] { model->forward(torch::zeros({4, 2}), torch::zeros({1, 4, 3})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("is missing", [&] { model->forward(torch::zeros({1, 4, 2}), {}); }));
    EXPECT_TRUE(throws_with<InvalidInput>(
        "no time_input", [&] { model->forward(torch::zeros({1, 4, 2}), torch::zeros({1, 4, 3}), torch::zeros(1)); }));
}

TEST(TransolverOptions, NameWhatIsNotImplementedOrImpossible)
{
    const auto refused = [](auto change, const char* text) {
        auto options = small_transolver();
        change(options);
        EXPECT_TRUE(throws_with<InvalidInput>(text, [&] { options.validate(); }));
    };
    refused([](auto& o) { o.unified_pos = true; }, "unified_pos needs a structured_shape of 2 extents");
    refused([](auto& o) { o.unified_pos = true, o.structured_shape = {4, 4, 4}; },
            "unified_pos needs a structured_shape of 2 extents");
    refused([](auto& o) { o.structured_shape = {4}; }, "structured_shape must have 2 or 3 extents, and has 1");
    refused([](auto& o) { o.structured_shape = {4, 0}; }, "an extent of structured_shape must be at least 1");
    refused([](auto& o) { o.use_te = true; }, "use_te");
    refused([](auto& o) { o.n_head = 5; }, "24 is not one of 5");
    refused([](auto& o) { o.slice_num = 0; }, "slice_num must be at least 1");
    refused([](auto& o) { o.dropout = 1.5; }, "dropout must lie in [0, 1]");
    refused([](auto& o) { o.time_input = true, o.n_hidden = 15, o.n_head = 1; }, "even n_hidden");
}

TEST(TransolverOptions, SurviveJson)
{
    auto options = small_transolver();
    options.act = "silu";
    options.dropout = 0.25;

    const auto copy = transolver_options(to_json(options));

    EXPECT_EQ(to_json(copy), to_json(options));
    EXPECT_EQ(copy.act, "silu");
}

TEST(TransolverOptions, RefuseUnknownNamesAndWrongTypes)
{
    EXPECT_TRUE(throws_with<InvalidInput>("Did you mean 'n_head'?", [&] { transolver_options({{"n_heads", 4}}); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("n_head cannot be \"four\"", [&] { transolver_options({{"n_head", "four"}}); }));
}

TEST(PhysicsAttention, TakesTheAuthorsConstantsByASwitch)
{
    torch::manual_seed(3);
    const SliceOptions options{.dim = 6,
                               .num_heads = 1,
                               .head_dim = 6,
                               .num_slices = 4,
                               .plus = false,
                               .grid = {},
                               .noise = nullptr,
                               .authors_constants = true};
    PhysicsAttention attention(options, 0.0);
    attention->to(torch::kDouble);
    auto parameters = attention->named_parameters();
    const torch::NoGradGuard no_grad;
    parameters["temperature"].fill_(0.2);  // below PhysicsNeMo's bound
    const auto x = torch::randn({1, 9, 6}, torch::kDouble);

    const auto found = attention->forward(x);

    // Wu et al. 2024, as their code has it for points in any order.
    const auto linear = [&](const torch::Tensor& y, const std::string& name) {
        return torch::nn::functional::linear(y, parameters[name + ".weight"],
                                             parameters.contains(name + ".bias") ? parameters[name + ".bias"]
                                                                                 : torch::Tensor());
    };
    const auto weights = torch::softmax(linear(linear(x, "in_project_x"), "in_project_slice") / 0.2, -1);  // (1, N, S)
    const auto tokens =
        torch::matmul(weights.transpose(1, 2), linear(x, "in_project_fx")) / (weights.sum(1).unsqueeze(-1) + 1e-5);
    const auto qkv = linear(tokens, "qkv_project").chunk(3, -1);
    const auto attended =
        torch::matmul(torch::softmax(torch::matmul(qkv[0], qkv[1].transpose(1, 2)) / std::sqrt(6.0), -1), qkv[2]);
    const auto expected = linear(torch::matmul(weights, attended), "out_linear");
    EXPECT_TRUE(torch::allclose(found, expected, 1e-12, 1e-13));

    auto reference = options;
    reference.authors_constants = false;
    PhysicsAttention other(reference, 0.0);
    other->to(torch::kDouble);
    for (const auto& item : other->named_parameters()) item.value().copy_(parameters[item.key()]);
    EXPECT_FALSE(torch::allclose(other->forward(x), expected, 1e-3, 1e-3));
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
