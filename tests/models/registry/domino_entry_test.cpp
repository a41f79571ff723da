// SPDX-License-Identifier: Apache-2.0
// DoMINO of points that were drawn from a surface: what it gives of all points, at those.
#include "models/registry/registry.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/run_fixture.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <mutex>

namespace meshard {
namespace {

constexpr std::int64_t kPoints = 40;

std::shared_ptr<const CaseBody> cube()
{
    auto body = std::make_shared<CaseBody>();
    body->vertices =
        torch::tensor({0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1}, torch::kFloat)
            .view({8, 3}) -
        0.5;
    body->triangles = torch::tensor({0, 2, 1, 1, 2, 3, 4, 5, 6, 5, 7, 6, 0, 1, 4, 1, 5, 4,
                                     2, 6, 3, 3, 6, 7, 0, 4, 2, 2, 4, 6, 1, 3, 5, 3, 7, 5},
                                    torch::kLong)
                          .view({12, 3});
    return body;
}

Model small_domino()
{
    static std::mutex one_at_a_time;  // ranks are threads that share a generator
    const std::lock_guard lock(one_at_a_time);
    torch::manual_seed(4);
    return make_model("domino", {{"output_features_surf", 3},
                                 {"output_features_vol", nullptr},
                                 {"interp_res", {8, 8, 8}},
                                 {"processor_type", "conv"},
                                 {"base_filters", 2},
                                 {"base_neurons", 4},
                                 {"surface_radii", {0.6}},
                                 {"surface_neighbors_in_radius", {4}},
                                 {"volume_radii", {0.6}},
                                 {"volume_neighbors_in_radius", {4}},
                                 {"local_surface_radii", {0.5}},
                                 {"local_surface_neighbors", {4}},
                                 {"local_volume_radii", {0.5}},
                                 {"local_volume_neighbors", {4}},
                                 {"num_neighbors_surface", 4},
                                 {"basis_width", 8},
                                 {"position_width", 8},
                                 {"aggregation_width", 8}});
}

/// Rows of the whole, cut in this rank's range, with their ids: as `ids` says.
SpecPtr spec_of_rows(const std::shared_ptr<const DeviceMesh>& mesh, std::int64_t num_global,
                     std::vector<std::int64_t> ids)
{
    IndexMap map{.num_global = num_global,
                 .num_owned = static_cast<std::int32_t>(ids.size()),
                 .global_ids = std::move(ids),
                 .ghost_owners = {}};
    return shard_spec(std::make_shared<const IndexMap>(std::move(map)), mesh, 1);
}

TEST(KeptInputsOfDomino, FollowEmbeddingBodyAndDerivatives)
{
    torch::manual_seed(2);
    auto told = torch::rand({1, kPoints, 7}) - 0.5;
    told.select(2, 6).add_(0.6);
    const auto positions = told.narrow(2, 0, 3).contiguous();
    const auto body = std::make_shared<CaseBody>(*cube());
    auto model = small_domino();
    const auto forward = [&](Model& by) {
        return by.forward({.embedding = told, .positions = positions, .body = body});
    };
    const auto expect_as_new = [&](const char* what) {
        auto other = small_domino();
        EXPECT_TRUE(torch::equal(forward(model), forward(other))) << what;
    };
    const torch::Tensor leaves[] = {positions, body->vertices};
    {
        const torch::NoGradGuard no_grad;
        expect_as_new("first");
        told = told.clone();
        told.narrow(2, 3, 3).mul_(-1);
        expect_as_new("other normals");
        body->vertices.mul_(1.3);
        expect_as_new("a body that was written to");
        forward(model);
    }
    for (auto leaf : leaves) {
        leaf.requires_grad_();
        std::vector<torch::Tensor> found;
        for (int step = 0; step < 3; ++step) {
            auto other = small_domino();
            auto& by = step < 2 ? model : other;
            found.push_back(torch::autograd::grad({forward(by).square().sum()}, {leaf})[0]);
        }
        for (const auto& gradient : found) EXPECT_TRUE(torch::equal(gradient, found.back()));
        EXPECT_GT(found.back().abs().max().item<double>(), 0);
        leaf.requires_grad_(false);
    }
}

TEST(DominoOfDrawnPoints, EqualsThatOfAllPointsThere)
{
    torch::manual_seed(1);
    auto told = torch::rand({1, kPoints, 7}) - 0.5;
    told.select(2, 6).add_(0.6);                               // areas are positive
    told[0].narrow(0, 12, 1).copy_(told[0].narrow(0, 11, 1));  // two points in one place
    told[0][12][6] = 0.3;
    told[0][20][6] = 0;  // a polygon without area
    const auto whole =
        small_domino().forward({.embedding = told, .positions = told.narrow(2, 0, 3).contiguous(), .body = cube()});
    EXPECT_TRUE(torch::isfinite(whole).all().item<bool>());
    const std::vector<std::int64_t> drawn{3, 11, 12, 20, 21, 22, 35, 39};
    const auto expected = whole.index_select(1, torch::tensor(drawn));

    for (const int num_ranks : {1, 2, 3}) {
        SCOPED_TRACE(num_ranks);
        run_ranks(num_ranks, [&](std::shared_ptr<const DeviceMesh> mesh) {
            // All points by turns, and of the drawn ones none on the last of three ranks.
            const auto rank = mesh->coordinate(0);
            std::vector<std::int64_t> ids, places, rows, own_ids;
            for (std::int64_t id = 0; id < kPoints; ++id) {
                const auto number = std::ranges::find(drawn, id) - drawn.begin();
                const bool is_drawn = number < std::ssize(drawn);
                if ((is_drawn ? number % std::min(num_ranks, 2) : id % num_ranks) != rank) continue;
                if (is_drawn) {
                    rows.push_back(std::ssize(ids));
                    own_ids.push_back(id);
                    places.push_back(number);
                }
                ids.push_back(id);
            }
            const auto all = spec_of_rows(mesh, kPoints, ids), some = spec_of_rows(mesh, std::ssize(drawn), places);
            const auto local = told.index_select(1, torch::tensor(ids, torch::kLong)),
                       chosen = local.index_select(1, torch::tensor(rows, torch::kLong));
            const auto of = [](const torch::Tensor& numbers, const SpecPtr& spec) {
                return from_local(numbers.contiguous(), spec);
            };
            const PointInputs inputs{
                .embedding = of(chosen, some),
                .positions = of(chosen.narrow(2, 0, 3), some),
                .body = cube(),
                .drawn_from = std::make_shared<const AllPoints>(
                    AllPoints{of(local, all), of(local.narrow(2, 0, 3), all), torch::tensor(own_ids, torch::kLong)})};
            const auto output = small_domino().forward(inputs);
            ASSERT_EQ(output.sizes(), expected.sizes());
            const auto own = expected.index_select(1, torch::tensor(places, torch::kLong));
            if (own.numel() > 0)
                test::expect_near("output", to_local(output).detach(), own.detach(), 1e-5 * test::largest(expected));
        });
    }
}

}  // namespace
}  // namespace meshard
