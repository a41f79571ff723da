// SPDX-License-Identifier: Apache-2.0
// AB-UPT of cases: which points are anchors, and that neither ranks nor memory change what it gives.
#include "models/graph/ab_upt.h"
#include "models/layers/memory_mode.h"
#include "models/layers/random_draws.h"
#include "models/registry/registry.h"
#include "partition/error.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/run_fixture.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include <array>
#include <mutex>

namespace meshard {
namespace {

constexpr std::int64_t kOnSurface = 37, kInVolume = 53;

std::shared_ptr<const CaseBody> tetrahedron()
{
    auto body = std::make_shared<CaseBody>();
    body->vertices = torch::tensor({-0.4, -0.4, -0.4, 0.5, -0.4, -0.4, -0.4, 0.5, -0.4, -0.4, -0.4, 0.5}, torch::kFloat)
                         .view({4, 3});
    body->triangles = torch::tensor({0, 2, 1, 0, 1, 3, 0, 3, 2, 1, 2, 3}, torch::kLong).view({4, 3});
    return body;
}

Model small_ab_upt(const nlohmann::json& changes = nlohmann::json::object(), at::ScalarType type = torch::kDouble)
{
    nlohmann::json arguments{{"surface_dim", 2},
                             {"volume_dim", 3},
                             {"hidden_dim", 24},
                             {"num_heads", 2},
                             {"mlp_ratio", 2},
                             {"radius", 300},
                             {"physics_blocks", {"perceiver", "shared", "cross", "joint"}},
                             {"num_surface_blocks", 1},
                             {"num_volume_blocks", 2},
                             {"num_geometry_points", 60},
                             {"num_supernodes", 12},
                             {"anchors", "points"},
                             {"num_surface_anchors", 11},
                             {"num_volume_anchors", 14}};
    arguments.update(changes);
    static std::mutex one_at_a_time;  // ranks are threads that share a generator
    const std::lock_guard lock(one_at_a_time);
    torch::manual_seed(4);
    auto model = make_model("abupt", arguments);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model.module->parameters()) parameter.add_(0.1 * torch::randn_like(parameter));
    model.module->to(type);
    return model;
}

/// Points of one part; cut among the ranks so that the first of three has none.
struct CutCloud {
    at::Tensor whole;  // (1, N, 3)

    std::vector<std::int64_t> own_ids(const DeviceMesh& mesh) const
    {
        std::vector<std::int64_t> ids;
        for (std::int64_t id = 0; id < whole.size(1); ++id) {
            const auto owner = mesh.all().size() < 3 ? id * id % mesh.all().size() : 1 + (id % 5 == 0);
            if (owner == mesh.all().rank()) ids.push_back(id);
        }
        return ids;
    }

    at::Tensor own(const at::Tensor& of_all, const DeviceMesh& mesh) const
    {
        return of_all.index_select(1, torch::tensor(own_ids(mesh), torch::kLong));
    }

    PointInputs on(const std::shared_ptr<const DeviceMesh>& mesh) const
    {
        const auto ids = own_ids(*mesh);
        const IndexMap map{.num_global = whole.size(1),
                           .num_owned = static_cast<std::int32_t>(ids.size()),
                           .global_ids = ids,
                           .ghost_owners = {}};
        const auto positions =
            from_local(own(whole, *mesh), shard_spec(std::make_shared<const IndexMap>(map), mesh, 1));
        return {.embedding = positions, .positions = positions, .body = tetrahedron()};
    }

    PointInputs plain() const { return {.embedding = whole, .positions = whole, .body = tetrahedron()}; }
};

struct TwoClouds {
    CutCloud surface, volume;

    explicit TwoClouds(std::int64_t on_surface = kOnSurface, std::int64_t in_volume = kInVolume)
    {
        torch::manual_seed(2);
        surface.whole = torch::rand({1, on_surface, 3}, torch::kDouble) - 0.5;
        volume.whole = 2 * torch::rand({1, in_volume, 3}, torch::kDouble) - 1;
    }
};

at::Tensor loss_of(const PartFields& fields)
{
    return fields.surface.square().mean() + (fields.volume * fields.volume).mean();
}

void expect_close(const at::Tensor& value, const at::Tensor& expected, const std::string& what)
{
    ASSERT_EQ(value.sizes(), expected.sizes()) << what;
    if (expected.numel() > 0)
        test::expect_near(what, value.detach(), expected.detach(), 1e-11 * std::max(1.0, test::largest(expected)));
}

class AbUptOnRanks : public testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(AbUptOnRanks, EqualsSerialWithEveryGradient)
{
    const auto& [num_ranks, mode] = GetParam();
    const TwoClouds clouds;
    const auto surface = clouds.surface.plain(), volume = clouds.volume.plain();
    auto serial = small_ab_upt();
    seed_draws(*serial.module, 5);
    const auto expected = serial.forward_parts(&surface, &volume);
    loss_of(expected).backward();

    run_ranks(num_ranks, [&, mode = mode](std::shared_ptr<const DeviceMesh> mesh) {
        auto model = small_ab_upt();
        set_memory(*model.module, memory_mode(mode));
        const auto replicated = replicate(*model.module, mesh);
        seed_draws(*model.module, 5);
        const auto own_surface = clouds.surface.on(mesh), own_volume = clouds.volume.on(mesh);
        const auto fields = model.forward_parts(&own_surface, &own_volume);
        loss_of(fields).backward();

        expect_close(to_local(fields.surface), clouds.surface.own(expected.surface, *mesh), "surface");
        expect_close(to_local(fields.volume), clouds.volume.own(expected.volume, *mesh), "volume");
        const auto parameters = model.module->named_parameters();
        for (const auto& item : serial.module->named_parameters()) {
            ASSERT_EQ(item.value().grad().defined(), parameters[item.key()].grad().defined()) << item.key();
            if (item.value().grad().defined())
                expect_close(parameters[item.key()].grad(), item.value().grad(), item.key());
        }
    });
}

INSTANTIATE_TEST_SUITE_P(All, AbUptOnRanks,
                         testing::Combine(testing::Values(1, 2, 3), testing::Values("stored", "recomputed")),
                         [](const auto& info) {
                             return std::get<1>(info.param) + "_on_" + std::to_string(std::get<0>(info.param));
                         });

TEST(AbUptInputs, ThatNothingCutsGiveSerial)
{
    const TwoClouds clouds;
    const auto surface = clouds.surface.plain(), volume = clouds.volume.plain();
    auto serial = small_ab_upt();
    seed_draws(*serial.module, 5);
    loss_of(serial.forward_parts(&surface, &volume)).backward();

    run_ranks(2, [&](std::shared_ptr<const DeviceMesh> mesh) {
        auto model = small_ab_upt();
        const auto replicated = replicate(*model.module, mesh);
        seed_draws(*model.module, 5);
        auto on_ranks = std::array{surface, volume};
        for (auto& part : on_ranks)
            for (auto* tensor : {&part.embedding, &part.positions})
                *tensor = from_local(*tensor, replicated_spec(mesh));
        loss_of(model.forward_parts(&on_ranks[0], &on_ranks[1])).backward();

        const auto parameters = model.module->named_parameters();
        for (const auto& item : serial.module->named_parameters())
            if (item.value().grad().defined())
                expect_close(parameters[item.key()].grad(), item.value().grad(), item.key());
    });
}

TEST(AbUptAnchors, AreOtherPointsInEachStepAndTheSameInPrediction)
{
    const TwoClouds clouds;
    const auto surface = clouds.surface.plain(), volume = clouds.volume.plain();
    auto model = small_ab_upt();
    const torch::NoGradGuard no_grad;
    const auto of_seed = [&](std::uint64_t seed) {
        seed_draws(*model.module, seed);
        return model.forward_parts(&surface, &volume).surface;
    };
    const auto first = of_seed(1), second = of_seed(2);
    EXPECT_TRUE(torch::equal(of_seed(1), first));
    EXPECT_GT(test::largest(first - second), 1e-6);
    model.module->eval();
    EXPECT_TRUE(torch::equal(of_seed(1), of_seed(2)));
}

TEST(AbUptAnchors, MayBeAllPoints)
{
    const TwoClouds clouds(11, 14);
    const auto surface = clouds.surface.plain(), volume = clouds.volume.plain();
    auto model = small_ab_upt();
    AbUpt inner(std::dynamic_pointer_cast<AbUptImpl>(model.module));
    const auto fields = model.forward_parts(&surface, &volume);
    EXPECT_EQ(fields.surface.size(1), 11);
    EXPECT_EQ(fields.volume.size(1), 14);
    // A query at the place of an anchor gets the anchor's result.
    const torch::NoGradGuard no_grad;
    const auto places = 500 * (clouds.surface.whole + 1), around = 500 * (clouds.volume.whole + 1);
    const auto outputs = inner->forward({.geometry = around,
                                         .supernodes = around.narrow(1, 0, 5),
                                         .surface_anchors = places,
                                         .volume_anchors = around,
                                         .surface_queries = places,
                                         .volume_queries = around,
                                         .condition = {}});
    expect_close(outputs.surface_queries, outputs.surface_anchors, "surface");
    expect_close(outputs.volume_queries, outputs.volume_anchors, "volume");
}

TEST(AbUptPrediction, OfOnePartIsThatOfBothIfItKnowsTheOthersPoints)
{
    const TwoClouds clouds;
    for (const int num_ranks : {1, 3}) {
        run_ranks(num_ranks, [&](std::shared_ptr<const DeviceMesh> mesh) {
            auto model = small_ab_upt();
            model.module->eval();
            const torch::NoGradGuard no_grad;
            auto surface = clouds.surface.on(mesh), volume = clouds.volume.on(mesh);
            const auto both = model.forward_parts(&surface, &volume);
            const auto alone = model.forward_parts(&surface, nullptr);
            EXPECT_FALSE(alone.volume.defined());
            EXPECT_EQ(alone.surface.sizes(), both.surface.sizes());
            surface.other_part = std::make_shared<const PointInputs>(volume);
            volume.other_part = std::make_shared<const PointInputs>(clouds.surface.on(mesh));
            expect_close(to_local(model.forward_parts(&surface, nullptr).surface), to_local(both.surface), "surface");
            expect_close(to_local(model.forward_parts(nullptr, &volume).volume), to_local(both.volume), "volume");
        });
    }
}

TEST(AbUptPrediction, TakesQueriesInTurnsWithoutADifference)
{
    const TwoClouds clouds;
    for (const auto& [num_ranks, of_a_turn] :
         std::vector<std::pair<int, int>>{{1, 4}, {2, 4}, {3, 4}, {1, 1}, {3, 1}}) {
        run_ranks(num_ranks, [&, of_a_turn = of_a_turn](std::shared_ptr<const DeviceMesh> mesh) {
            auto model = small_ab_upt({{"surface_dim", of_a_turn}, {"volume_dim", of_a_turn}});
            model.module->eval();
            const torch::NoGradGuard no_grad;
            const auto surface = clouds.surface.on(mesh), volume = clouds.volume.on(mesh);
            const auto at_once = model.forward_parts(&surface, &volume);
            std::dynamic_pointer_cast<AbUptImpl>(model.module)->set_queries_of_a_turn(of_a_turn);
            const auto in_turns = model.forward_parts(&surface, &volume);
            expect_close(to_local(in_turns.surface), to_local(at_once.surface), "surface");
            expect_close(to_local(in_turns.volume), to_local(at_once.volume), "volume");
        });
    }
}

TEST(AbUptPrediction, WithAnchorsFromTheBodyDoesNotDependOnOtherPoints)
{
    const TwoClouds clouds;
    auto model = small_ab_upt({{"anchors", "body"}}, torch::kFloat);
    model.module->eval();
    const torch::NoGradGuard no_grad;
    auto surface = clouds.surface.plain();
    surface.positions = surface.positions.to(torch::kFloat);
    auto some = surface;
    some.positions = surface.positions.narrow(1, 5, 7).contiguous();
    const auto all = model.forward_parts(&surface, nullptr).surface;
    test::expect_near("surface", model.forward_parts(&some, nullptr).surface, all.narrow(1, 5, 7), 1e-5);
    EXPECT_THROW(small_ab_upt({{"anchors", "anywhere"}}), InvalidInput);
}

}  // namespace
}  // namespace meshard
