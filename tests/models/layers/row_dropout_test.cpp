// SPDX-License-Identifier: Apache-2.0
#include "models/layers/random_draws.h"
#include "models/registry/registry.h"
#include "sharding/exchange/row_routes.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace meshard {
namespace {

constexpr std::int64_t kRows = 30;

/// Rows that lie on the ranks in no order of their ids; the last of several ranks has none.
SpecPtr scattered(const std::shared_ptr<const DeviceMesh>& device_mesh)
{
    const std::int64_t rank = device_mesh->all().rank(),
                       with_rows = std::max<std::int64_t>(1, device_mesh->all().size() - 1);
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < kRows; ++i)
        if (i * i % 7 % with_rows == rank) ids.push_back(i);
    return shard_spec(std::make_shared<const IndexMap>(IndexMap{kRows, static_cast<std::int32_t>(ids.size()), ids, {}}),
                      device_mesh, 1);
}

at::Tensor own_rows(const at::Tensor& whole, const SpecPtr& spec)
{
    const auto owned = spec->index_map->owned();
    return whole.index_select(1, torch::tensor(std::vector<std::int64_t>(owned.begin(), owned.end()), torch::kLong));
}

TEST(RowDropout, DropsAtItsRateAndScalesTheRest)
{
    RowDropout dropout(0.3, std::make_shared<RowNoise>(1));
    const auto x = torch::ones({2, 5000, 4}).requires_grad_(true);

    const auto y = dropout(x);
    y.sum().backward();

    EXPECT_NEAR(y.eq(0).to(torch::kDouble).mean().item<double>(), 0.3, 0.01);
    EXPECT_TRUE(torch::allclose(y.masked_select(y.ne(0)), torch::tensor(static_cast<float>(1 / 0.7))));
    EXPECT_TRUE(torch::equal(x.grad(), y.detach()));
    EXPECT_FALSE(torch::equal(dropout(x), y));
    EXPECT_EQ(RowDropout(1.0, std::make_shared<RowNoise>(1))(x).abs().sum().item<double>(), 0);
    EXPECT_EQ(dropout(x.detach().to(torch::kBFloat16)).scalar_type(), torch::kBFloat16);
    dropout->eval();
    EXPECT_TRUE(torch::equal(dropout(x), x));
}

TEST(RowDropout, DropsTheSameOfAPointWhereverItLies)
{
    const auto x = torch::rand({2, kRows, 3}) + 1;
    const auto whole = RowDropout(0.5, std::make_shared<RowNoise>(3))(x);
    for (const int num_ranks : {1, 2, 4}) {
        run_ranks(num_ranks, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
            const auto spec = scattered(device_mesh);
            const auto noise = std::make_shared<RowNoise>(3);
            const auto points = from_local(own_rows(x, spec), spec);
            noise->set_rows({points});

            const auto kept = RowDropout(0.5, noise)(torch::relu(points));  // operators may have lost the ids

            EXPECT_TRUE(torch::equal(to_local(kept), own_rows(whole, spec)));
        });
    }
}

TEST(RowDropout, OfModelsIsTheSameOnAnyNumberOfRanks)
{
    const nlohmann::json small{{"n_layers", 2},  {"n_hidden", 8}, {"n_head", 2},   {"mlp_ratio", 1},
                               {"slice_num", 4}, {"out_dim", 2},  {"dropout", 0.4}};
    const nlohmann::json of_points{{"functional_dim", 1}, {"embedding_dim", 3}}, of_states{{"functional_dim", 3}};
    auto learned = of_states, mixed = of_states;
    learned["concrete_dropout"] = true;
    mixed["attention_type"] = "GALE_FA";
    const std::vector<std::pair<std::string, nlohmann::json>> dropping{{"transolver", of_points},
                                                                       {"flare", of_points},
                                                                       {"geotransolver", of_states},
                                                                       {"geotransolver", learned},
                                                                       {"geotransolver", mixed}};
    const auto places = torch::rand({1, kRows, 3});
    for (const auto& [name, options] : dropping) {
        auto arguments = small;
        arguments.update(options);
        const auto made = [&] {
            torch::manual_seed(1);
            auto model = make_model(name, arguments);
            model.module->train();
            for (const auto& part : model.module->modules())
                if (auto* draws = dynamic_cast<DrawsNoise*>(part.get())) draws->seed_noise(5);
            return model;
        };
        const auto serial = made();
        PointInputs inputs;
        inputs.embedding = inputs.positions = places;
        const auto whole = serial.forward(inputs).detach();
        serial.module->eval();
        EXPECT_FALSE(torch::allclose(serial.forward(inputs), whole));
        for (const int num_ranks : {2, 3}) {
            std::vector<decltype(made())>
                of_ranks;  // made one after the other: weights come from the program's generator
            for (int rank = 0; rank < num_ranks; ++rank) of_ranks.push_back(made());
            run_ranks(num_ranks, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
                const auto& model = of_ranks[device_mesh->all().rank()];
                const auto spec = scattered(device_mesh);
                PointInputs own;
                own.embedding = own.positions = from_local(own_rows(places, spec), spec);
                const auto found = to_local(model.forward(own));
                EXPECT_TRUE(torch::allclose(found, own_rows(whole, spec), 1e-4, 1e-5)) << name << options;
            });
        }
    }
}

}  // namespace
}  // namespace meshard
