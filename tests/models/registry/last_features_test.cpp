// SPDX-License-Identifier: Apache-2.0
#include "models/registry/coefficient_head.h"
#include "models/registry/last_features.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <numeric>

namespace meshard {
namespace {

constexpr std::int64_t kFieldsSeen = 2;

Model model_that_sees(const char* name, std::int64_t out_dim)
{
    const auto& entry = find_model(name);
    auto chosen = entry.arguments_for({.embedding_dim = 6, .num_constants = 0, .out_dim = out_dim, .has_time = false});
    for (const char* key : {"n_layers", "processor_size"}) {
        if (entry.defaults.contains(key)) chosen[key] = 2;
    }
    torch::manual_seed(3);
    auto model = make_model(name, complete_arguments(entry, chosen));
    model.module->eval();
    return model;
}

PointInputs seen_inputs(const at::Tensor& embedding)
{
    return {.embedding = embedding, .positions = embedding.narrow(-1, 0, 3).contiguous(), .constants = {}, .time = {}};
}

/// The derivative of the mean of the first output by the first row of the last layer's weights is what that layer is
/// given, averaged over the points.
TEST(LastFeatures, AreTheDerivativeOfTheMeanOutputByTheLastWeights)
{
    const auto embedding = torch::rand({1, 40, 6});
    for (const auto& [name, last] :
         {std::pair("transolver", "blocks.1.ln_mlp2.1.weight"), std::pair("flare", "blocks.1.ln_mlp2.1.weight"),
          std::pair("geotransolver", "ln_mlp_out.0.1.weight"),
          std::pair("meshgraphnet", "node_decoder.model.4.weight")}) {
        const auto model = model_that_sees(name, kFieldsSeen);
        const auto inputs = seen_inputs(embedding);
        const auto parameters = model.module->named_parameters();
        ASSERT_TRUE(parameters.contains(last)) << name;
        model.forward(inputs).select(-1, 0).mean().backward();
        const auto expected = parameters[last].grad()[0].to(torch::kDouble);
        const auto before = model.forward(inputs).detach();

        const auto found = mean_last_features(model, inputs, kFieldsSeen);

        ASSERT_TRUE(found.defined()) << name;
        EXPECT_TRUE(tensors_near(found, expected, 1e-5)) << name;
        EXPECT_TRUE(torch::equal(model.forward(inputs).detach(), before)) << name << ": its weights are back";
        for (const std::vector<std::int64_t>& extents : {std::vector<std::int64_t>{13, 27}, {13, 0, 27}}) {
            run_ranks(static_cast<int>(extents.size()), [&](const std::shared_ptr<const DeviceMesh>& mesh) {
                const auto own = model_that_sees(name, kFieldsSeen);  // ranks draw in any order
                {
                    const torch::NoGradGuard no_grad;
                    for (const auto& item : own.module->named_parameters())
                        at::Tensor(item.value()).copy_(parameters[item.key()]);
                }
                const auto rank = mesh->all().rank();
                const auto begin = std::accumulate(extents.begin(), extents.begin() + rank, std::int64_t{0});
                const auto shard = [&](const at::Tensor& whole) {
                    return from_local(whole.narrow(1, begin, extents[rank]).contiguous(), mesh, {Shard(1)});
                };
                auto sharded = inputs;
                sharded.embedding = shard(inputs.embedding);
                sharded.positions = shard(inputs.positions);
                EXPECT_TRUE(tensors_near(mean_last_features(own, sharded, kFieldsSeen), expected, 1e-5)) << name;
            });
        }
    }
}

TEST(LastFeatures, AreThoseOfTheFieldsWhereThereIsAHead)
{
    auto model = model_that_sees("transolver", kFieldsSeen + 5);
    const auto inputs = seen_inputs(torch::rand({1, 40, 6}));
    const auto expected = mean_last_features(model, inputs, kFieldsSeen + 5);
    add_coefficient_head(model, 5, 2);
    EXPECT_TRUE(torch::equal(mean_last_features(model, inputs, kFieldsSeen), expected));
}

TEST(LastFeatures, AreNotDefinedForAModelWithoutALastLayer)
{
    const auto model = model_that_sees("figconvunet", kFieldsSeen);
    EXPECT_FALSE(mean_last_features(model, seen_inputs(torch::rand({1, 40, 6})), kFieldsSeen).defined());
}

}  // namespace
}  // namespace meshard
