// SPDX-License-Identifier: Apache-2.0
// FIGConvUNet on ranks against one rank: every reduction, search and pooling, random cuts and empty ranks; memory
// modes; what a step sends.
#include "models/grids/edge_reductions.h"
#include "models/grids/figconv_unet.h"
#include "models/layers/metrics.h"
#include "partition/error.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/copy_parameters.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_fixture.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include <cmath>
#include <functional>

namespace meshard {
namespace {

constexpr std::int64_t kCloudPoints = 53;

FigConvUNetOptions small_figconv()
{
    FigConvUNetOptions options;
    options.in_channels = 3;
    options.out_channels = 2;
    options.hidden_channels = {3, 4};
    options.num_levels = 1;
    options.num_down_blocks = options.num_up_blocks = {1};
    options.mlp_channels = {4, 6};
    options.aabb_min = {-0.1, -0.1, -0.1};
    options.aabb_max = {1.1, 1.1, 1.2};
    options.resolutions = {{2, 6, 5}, {7, 2, 5}, {7, 6, 3}};
    options.pos_encode_dim = 4;
    return options;
}

struct FigConvCase {
    std::string name;
    FigConvUNetOptions options;
};

void PrintTo(const FigConvCase& value, std::ostream* out)
{
    *out << value.name;
}

std::vector<FigConvCase> figconv_cases()
{
    std::vector<FigConvCase> cases{{"Mean", small_figconv()}};
    const auto add = [&](const char* name, const std::function<void(FigConvUNetOptions&)>& change) {
        cases.push_back({name, small_figconv()});
        change(cases.back().options);
    };
    add("EveryReduction", [](auto& o) {
        o.reductions = {"mean", "max", "min", "sum", "var", "std"}, o.pooling_type = "mean", o.pooling_layers = {0, 1};
    });
    add("NearestWithFeatures", [](auto& o) {
        o.neighbor_search_type = "knn", o.knn_k = 4, o.has_input_features = true, o.in_channels = 2,
        o.use_scalar_output = false, o.reductions = {"max"};
    });
    add("ProductsAndAttention",
        [](auto& o) { o.communication_types = {"mul"}, o.pooling_type = "attention", o.use_rel_pos_embed = false; });
    add("TwoBlocks", [](auto& o) {
        o.num_down_blocks = o.num_up_blocks = {2}, o.kernel_size = 5, o.use_rel_pos = o.use_rel_pos_embed = false;
    });
    return cases;
}

/// Rows of each rank: scattered; of several ranks the second has none.
std::vector<std::int64_t> cloud_rows(int rank, int num_ranks)
{
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < kCloudPoints; ++i) {
        auto owner = num_ranks == 1 ? 0 : static_cast<int>((i * i + i / 3) % num_ranks);
        if (num_ranks > 2 && owner == 1) owner = num_ranks - 1;
        if (owner == rank) rows.push_back(i);
    }
    return rows;
}

FigConvUNet rough_figconv(const FigConvUNetOptions& options)
{
    torch::manual_seed(3);
    FigConvUNet model(options);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.add_(0.1 * torch::randn_like(parameter));
    model->to(torch::kDouble);
    return model;
}

class ShardedFigConv : public testing::TestWithParam<std::tuple<FigConvCase, int>> {};

TEST_P(ShardedFigConv, EqualsSerial)
{
    const auto& [figconv, num_ranks] = GetParam();
    const bool has_scalar = figconv.options.use_scalar_output;
    auto serial = rough_figconv(figconv.options);
    const auto places = torch::rand({2, kCloudPoints, 3}, torch::kDouble),
               features = torch::randn({2, kCloudPoints, 2}, torch::kDouble);
    const auto target = torch::randn({2, kCloudPoints, 2}, torch::kDouble);
    const auto loss_of = [&](const FigConvUNetResult& result, const at::Tensor& wanted) {
        const auto loss = mean_squared_error(result.points, wanted);
        return has_scalar ? loss + result.scalar.square().sum() : loss;
    };
    const auto whole = places.clone().requires_grad_();
    const auto expected = serial->forward(whole, figconv.options.has_input_features ? features : at::Tensor());
    ASSERT_EQ(expected.points.sizes(), target.sizes());
    const auto expected_loss = loss_of(expected, target);
    expected_loss.backward();
    double largest_gradient = 0;
    for (const auto& parameter : serial->parameters())
        largest_gradient = std::max(largest_gradient, test::largest(parameter.grad()));

    for (const auto memory : {MemoryMode::Stored, MemoryMode::Recomputed}) {
        run_ranks(
            num_ranks, [&, &figconv = figconv, num_ranks = num_ranks](std::shared_ptr<const DeviceMesh> device_mesh) {
                const auto rank = device_mesh->all().rank();
                const auto ids = cloud_rows(rank, num_ranks);
                const IndexMap map{.num_global = kCloudPoints,
                                   .num_owned = static_cast<std::int32_t>(ids.size()),
                                   .global_ids = ids,
                                   .ghost_owners = {}};
                const auto spec = shard_spec(std::make_shared<const IndexMap>(map), device_mesh, 1);
                const auto own = [&](const at::Tensor& all) {
                    return all.index_select(1, torch::tensor(ids, torch::kLong));
                };
                FigConvUNet model(figconv.options);
                model->to(torch::kDouble);
                if (rank == 0) test::copy_parameters(*serial, *model);  // the others get theirs from `replicate`
                model->set_memory(memory);
                const auto replicated = replicate(*model, device_mesh);
                const auto local = own(places).requires_grad_();

                const auto result =
                    model->forward(from_local(local, spec),
                                   figconv.options.has_input_features ? from_local(own(features), spec) : at::Tensor());
                const auto loss = loss_of(result, from_local(own(target), spec));
                loss.backward();

                test::expect_near("points", to_local(result.points).detach(), own(expected.points.detach()),
                                  1e-11 * test::largest(expected.points));
                if (has_scalar)
                    test::expect_near("scalar", full_tensor(result.scalar).detach(), expected.scalar.detach(),
                                      1e-11 * test::largest(expected.scalar));
                EXPECT_NEAR(loss.item<double>(), expected_loss.item<double>(), 1e-11 * expected_loss.item<double>());
                test::expect_near("places", local.grad(), own(whole.grad()), 1e-10 * test::largest(whole.grad()));
                const auto parameters = model->named_parameters();
                for (const auto& item : serial->named_parameters())
                    test::expect_near(item.key(), parameters[item.key()].grad(), item.value().grad(),
                                      1e-10 * largest_gradient);
            });
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedFigConv,
                         testing::Combine(testing::ValuesIn(figconv_cases()), testing::Values(1, 2, 3, 5)),
                         [](const auto& info) {
                             return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param));
                         });

TEST(FigConvUNetOfNoCloud, GivesNoPointsAndGradientsOfZero)
{
    for (const char* search : {"radius", "knn"}) {
        auto options = small_figconv();
        options.neighbor_search_type = search;
        options.knn_k = 4;
        auto model = rough_figconv(options);

        const auto result = model->forward(torch::rand({0, kCloudPoints, 3}, torch::kDouble), {}).points;
        result.square().sum().backward();

        EXPECT_EQ(result.sizes(), (std::vector<std::int64_t>{0, kCloudPoints, 2})) << search;
        for (const auto& parameter : model->parameters())
            if (parameter.grad().defined()) {
                EXPECT_EQ(test::largest(parameter.grad()), 0) << search;
            }
    }
}

TEST(FigConvMessages, AreTheSumsOfTheVerticesAndTheirGradientsWhateverTheCloud)
{
    for (const std::int64_t num_points : {40, 400}) {
        SCOPED_TRACE(num_points);
        run_ranks(3, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
            const auto options = small_figconv();
            FigConvUNet model(options);
            const auto replicated = replicate(*model, device_mesh);
            const auto own = device_mesh->all().rank() == 0 ? num_points - 8 : 4;
            const auto places = from_local(torch::rand({1, own, 3}), device_mesh, {Shard(1)}),
                       target = from_local(torch::rand({1, own, 2}), device_mesh, {Shard(1)});
            std::int64_t num_vertices = 0;
            for (const auto& plane : options.planes()) num_vertices += plane.num_vertices();
            auto& counter = device_mesh->counter();

            counter.reset();
            const auto result = model->forward(places);
            ASSERT_EQ(counter.num_calls(), 1);
            EXPECT_EQ(counter.calls()[0].operation, "all_reduce");
            EXPECT_EQ(counter.calls()[0].bytes, 4 * num_vertices * (3 + 1))
                << "sums of 3 channels, and the number of messages";

            const auto loss = mean_squared_error(result.points, target) + result.scalar.sum();
            counter.reset();
            loss.backward();
            ASSERT_EQ(counter.num_calls(), 2) << "the gradient of the vertices' features, and those of the parameters";
            EXPECT_EQ(counter.calls()[0].bytes, 4 * num_vertices * 3);
        });
    }
}

TEST(EdgeReductions, HaveADeviationOfLargeEqualNumbers)
{
    const auto edges = torch::full({7, 1}, 1234.567F, torch::requires_grad());  // whose mean of squares is rounded down
    const auto targets = torch::zeros({7}, torch::kLong);
    const std::vector<std::string> reductions{"std"};
    const auto deviation = edge_reductions(reductions, edge_sums(reductions, edges, targets, 1, {}), 1);
    deviation.sum().backward();
    EXPECT_LT(deviation.item<double>(), 0.6);  // rounding of squares of 1.5e6
    EXPECT_TRUE(deviation.isfinite().all().item<bool>() && edges.grad().isfinite().all().item<bool>());
}

TEST(PlanePairsInReach, AreThoseOfAllPairs)
{
    torch::manual_seed(2);
    for (const auto& plane : small_figconv().planes()) {
        const auto points = torch::rand({200, 3}) * 1.6 - 0.3;  // beyond the box, too
        const auto pairs = pairs_in_reach(points, plane);

        const auto scale = plane.scale();
        const auto factors = torch::tensor({scale[0], scale[1], scale[2]}, torch::kFloat);
        const auto near = torch::cdist((points * factors).to(torch::kDouble),
                                       (plane.vertices(torch::kCPU) * factors).to(torch::kDouble))
                              .le(std::sqrt(3.0))
                              .nonzero();
        EXPECT_TRUE(torch::equal(torch::stack({pairs.points, pairs.vertices}, 1), near));
        EXPECT_GT(near.size(0), 0);
    }
}

TEST(FigConvUNetOptions, NameWhatIsImpossible)
{
    const auto refuses = [](const char* what, const std::function<void(FigConvUNetOptions&)>& change) {
        auto options = small_figconv();
        change(options);
        return throws_with<InvalidInput>(what, [&] { options.validate(); });
    };
    EXPECT_TRUE(refuses("hidden_channels must have num_levels + 1 = 2 entries, and has 1",
                        [](auto& o) { o.hidden_channels = {3}; }));
    EXPECT_TRUE(refuses("kernel_size must be odd, and is 4", [](auto& o) { o.kernel_size = 4; }));
    EXPECT_TRUE(refuses("in_channels must be hidden_channels[0] = 3, and is 5", [](auto& o) { o.in_channels = 5; }));
    EXPECT_TRUE(refuses("communication_types must have 1 = 1 entries, and has 2",
                        [](auto& o) { o.communication_types = {"sum", "mul"}; }));
    EXPECT_TRUE(
        refuses("to_point_sample_method must be graphconv", [](auto& o) { o.to_point_sample_method = "interp"; }));
    EXPECT_TRUE(refuses("must be b_xc_y_z, b_yc_x_z or b_zc_x_y, and is 'b_x_y_z'",
                        [](auto& o) { o.memory_formats[0] = "b_x_y_z"; }));
    EXPECT_TRUE(refuses("pooling_layers must lie in [0, num_levels = 1]", [](auto& o) { o.pooling_layers = {2}; }));
    EXPECT_TRUE(throws_with<InvalidInput>("found [\"b_xc_y_z\",[2,3]]", [] {
        figconv_unet_options(nlohmann::json::parse(R"({"resolution_memory_format_pairs": [["b_xc_y_z", [2, 3]]]})"));
    }));

    FigConvUNet model(small_figconv());
    EXPECT_TRUE(throws_with<InvalidInput>("the vertices must be (batch, points, 3)",
                                          [&] { model->forward(torch::zeros({4, 3})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("no has_input_features",
                                          [&] { model->forward(torch::zeros({1, 4, 3}), torch::zeros({1, 4, 3})); }));
    EXPECT_TRUE(throws_with<InvalidInput>("Use `recomputed`", [&] { model->set_memory(MemoryMode::Streamed); }));
}

TEST(FigConvUNetOptions, AreTheArgumentsOfCheckpoints)
{
    const auto options = figconv_unet_options(
        {{"in_channels", 3}, {"out_channels", 1}, {"num_levels", 2}, {"num_down_blocks", 2}, {"voxel_size", nullptr}});
    EXPECT_EQ(options.num_down_blocks, (std::vector<std::int64_t>{2, 2}));
    EXPECT_EQ(options.num_up_blocks, (std::vector<std::int64_t>{1, 1}));
    EXPECT_EQ(figconv_unet_options({{"num_levels", 2}, {"num_up_blocks", std::vector<int>{3}}}).num_up_blocks,
              (std::vector<std::int64_t>{3, 3}));
    EXPECT_TRUE(to_json(options).at("pooling_layers").is_null());
    EXPECT_EQ(to_json(figconv_unet_options(to_json(options))), to_json(options));
}

}  // namespace
}  // namespace meshard
