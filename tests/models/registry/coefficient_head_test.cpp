// SPDX-License-Identifier: Apache-2.0
#include "models/registry/coefficient_head.h"
#include "partition/error.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/rule_table.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <numeric>

namespace meshard {
namespace {

constexpr std::int64_t kHeadFields = 2, kHeadFeatures = 5;

/// A small model of points for fields and features, before it has the head.
Model model_for_head(const char* name)
{
    const auto& entry = find_model(name);
    auto chosen = entry.arguments_for(
        {.embedding_dim = 6, .num_constants = 0, .out_dim = kHeadFields + kHeadFeatures, .has_time = false});
    for (const char* key : {"n_layers", "processor_size"}) {
        if (entry.defaults.contains(key)) chosen[key] = 1;
    }
    torch::manual_seed(3);
    return make_model(name, complete_arguments(entry, chosen));
}

PointInputs inputs_for_head(const at::Tensor& embedding)
{
    return {.embedding = embedding, .positions = embedding.narrow(-1, 0, 3).contiguous(), .constants = {}, .time = {}};
}

TEST(CoefficientHead, IsTwoLayersOfTheMeanOfTheLastChannels)
{
    auto model = model_for_head("transolver");
    const auto plain = model_for_head("transolver");
    const auto predict = add_coefficient_head(model, kHeadFeatures, 3);
    const auto inputs = inputs_for_head(torch::rand({1, 12, 6}));

    const auto found = predict(inputs);

    const auto rows = plain.forward(inputs);
    EXPECT_TRUE(torch::equal(found.fields, rows.narrow(-1, 0, kHeadFields)));
    EXPECT_TRUE(torch::equal(model.forward(inputs), found.fields));
    const auto parameters = model.module->named_parameters();
    const auto hidden = torch::gelu(
        rows.narrow(-1, kHeadFields, kHeadFeatures).mean(1).matmul(parameters["coefficients.hidden.weight"].t()) +
        parameters["coefficients.hidden.bias"]);
    const auto expected =
        hidden.matmul(parameters["coefficients.out.weight"].t()) + parameters["coefficients.out.bias"];
    EXPECT_TRUE(tensors_near(found.coefficients, expected, 1e-6));
    EXPECT_TRUE(
        throws_with<InvalidInput>("has a part 'coefficients'", [&] { add_coefficient_head(model, kHeadFeatures, 3); }));
}

TEST(CoefficientHead, ShardedIsSerialWithoutGathering)
{
    const auto embedding = torch::rand({1, 40, 6}, torch::kDouble),
               factors = torch::randn({1, 40, kHeadFields}, torch::kDouble),
               weights = torch::randn({1, 2}, torch::kDouble);
    const auto loss_of = [&](const FieldsAndCoefficients& found, const at::Tensor& of_fields) {
        return (found.fields * of_fields).sum() + (found.coefficients.square() * weights).sum();
    };
    for (const auto* name : {"transolver", "flare", "geotransolver"}) {
        auto serial = model_for_head(name);
        const auto predict_serial = add_coefficient_head(serial, kHeadFeatures, 2);
        serial.module->to(torch::kDouble);
        const auto expected = predict_serial(inputs_for_head(embedding));
        const auto expected_loss = loss_of(expected, factors);
        expected_loss.backward();
        for (const std::vector<std::int64_t>& extents : {std::vector<std::int64_t>{40}, {13, 27}, {13, 0, 27}}) {
            run_ranks(static_cast<int>(extents.size()), [&](std::shared_ptr<const DeviceMesh> mesh) {
                auto model = model_for_head(name);
                const auto predict = add_coefficient_head(model, kHeadFeatures, 2);
                model.module->to(torch::kDouble);
                {
                    torch::NoGradGuard no_grad;
                    const auto from = serial.module->named_parameters();
                    for (const auto& item : model.module->named_parameters())
                        at::Tensor(item.value()).copy_(from[item.key()]);
                }
                const auto replicated = replicate(*model.module, mesh);
                const auto rank = mesh->all().rank();
                const auto begin = std::accumulate(extents.begin(), extents.begin() + rank, std::int64_t{0});
                const auto shard = [&](const at::Tensor& whole) {
                    return from_local(whole.narrow(1, begin, extents[rank]).contiguous(), mesh, {Shard(1)});
                };

                set_gather_policy(GatherPolicy::Refuse);
                const auto sharded_embedding = shard(embedding);
                const auto found = predict({.embedding = sharded_embedding,
                                            .positions = shard(embedding.narrow(-1, 0, 3)),
                                            .constants = {},
                                            .time = {}});
                const auto loss = loss_of(found, shard(factors));
                loss.backward();

                EXPECT_TRUE(tensors_near(full_tensor(found.fields), expected.fields.detach(), 1e-12)) << name;
                const auto coefficients =
                    is_sharded(found.coefficients) ? full_tensor(found.coefficients) : found.coefficients;
                EXPECT_TRUE(tensors_near(coefficients, expected.coefficients.detach(), 1e-12)) << name;
                EXPECT_NEAR((is_sharded(loss) ? full_tensor(loss) : loss).item<double>(), expected_loss.item<double>(),
                            1e-10);
                const auto gradients = serial.module->named_parameters();
                for (const auto& item : model.module->named_parameters()) {
                    const auto found_gradient = item.value().grad(), expected_gradient = gradients[item.key()].grad();
                    if (!expected_gradient.defined()) continue;
                    // Keys' biases shift all weights of a softmax alike: their gradient is 0, and what is found of it
                    // rounding.
                    if (expected_gradient.abs().max().item<double>() < 1e-14)
                        EXPECT_LT(found_gradient.abs().max().item<double>(), 1e-14) << name << " " << item.key();
                    else
                        EXPECT_TRUE(tensors_near(found_gradient, expected_gradient, 1e-11))
                            << name << " " << item.key();
                }
            });
        }
    }
}

}  // namespace
}  // namespace meshard
