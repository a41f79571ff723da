// SPDX-License-Identifier: Apache-2.0
#include "models/layers/random_draws.h"
#include "models/registry/registry.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace meshard {
namespace {

TEST(SeedDraws, StartsNoiseAndDropoutAnew)
{
    const nlohmann::json small{{"n_layers", 1},  {"n_hidden", 8},  {"n_head", 2},
                               {"mlp_ratio", 1}, {"slice_num", 4}, {"out_dim", 2}};
    const std::vector<std::pair<std::string, nlohmann::json>> drawing{
        {"transolver", {{"plus", true}, {"functional_dim", 1}, {"embedding_dim", 3}}},
        {"transolver", {{"dropout", 0.5}, {"functional_dim", 1}, {"embedding_dim", 3}}},
        {"geotransolver", {{"plus", true}, {"functional_dim", 3}, {"geometry_dim", 3}}},
        {"geotransolver", {{"dropout", 0.5}, {"concrete_dropout", true}, {"functional_dim", 3}, {"geometry_dim", 3}}}};
    for (const auto& [name, options] : drawing) {
        torch::manual_seed(1);
        auto arguments = small;
        arguments.update(options);
        const auto model = make_model(name, arguments);
        PointInputs inputs;
        inputs.embedding = inputs.positions = torch::rand({1, 20, 3});

        seed_draws(*model.module, 5);
        const auto first = model.forward(inputs), second = model.forward(inputs);
        torch::rand(3);
        seed_draws(*model.module, 5);
        const auto again = model.forward(inputs);
        seed_draws(*model.module, 6);
        const auto other = model.forward(inputs);

        EXPECT_TRUE(torch::equal(again, first)) << name << options;
        EXPECT_FALSE(torch::equal(second, first)) << name << options;
        EXPECT_FALSE(torch::equal(other, first)) << name << options;
    }
}

}  // namespace
}  // namespace meshard
