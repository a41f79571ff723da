// SPDX-License-Identifier: Apache-2.0
// Scenes that are mirrored, turned and shifted. The oracle is a scene in closed form: fields that follow from places
// and free stream in a way that has no favoured direction come out the same, whether the scene is mapped first or last.
#include "apps/learning/steps/augmentation.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/owner_maps.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

namespace meshard {
namespace {

constexpr std::int64_t kRows = 17;

DataConfig scene_data()
{
    DataConfig data;
    data.inputs = {"points", "sdf", "normals", "wall_direction", "height"};
    data.fields = {{"p", "p", "kinematic"},
                   {"u", "u", "velocity"},
                   {"w", "w", "axial"},
                   {"s", "s", "tensor"},
                   {"pair", "pair", "scalar"}};
    data.constants = {"speed_squared", "u_z", "u_x", "u_y", "yaw"};
    return data;
}

const std::vector<std::string> kStream{"u_x", "u_y", "u_z"};

at::Tensor cross_product(const at::Tensor& a, const at::Tensor& b)
{
    return at::linalg_cross(a, b.expand_as(a));
}

/// A scene by its places (N, 3) relative to its centre, which lies at `center`, and its free stream: pressure |x| +
/// x.U, velocity U + 2 x (x.U), vorticity x cross U (which is axial), stress x U^T, distance |x|, normal x / |x|,
/// direction to the wall -x / |x|. In double.
CaseTensors scene(const at::Tensor& x, const at::Tensor& stream, const at::Tensor& center, const at::Tensor& heights,
                  double yaw)
{
    const auto along = (x * stream).sum(-1, true), size = x.norm(2, -1, true), rows = x.new_ones({x.size(0), 1});
    const auto stress = (x.unsqueeze(-1) * stream.view({1, 1, 3})).reshape({-1, 9});
    CaseTensors result;
    result.id = "car";
    result.num_points = x.size(0);
    result.inputs.embedding = at::cat({x + center, size, x / size, -x / size, heights}, -1).unsqueeze(0);
    result.inputs.positions = (x + center).unsqueeze(0);
    result.inputs.constants = at::cat({stream.square().sum().view({1}), stream.narrow(0, 2, 1), stream.narrow(0, 0, 2),
                                       at::full({1}, yaw, stream.options())})
                                  .unsqueeze(0);
    result.target =
        at::cat({size + along, stream + 2 * x * along, cross_product(x, stream), stress, 3 * rows, 5 * rows}, -1)
            .unsqueeze(0);
    result.channels = {1, 3, 3, 9, 2};
    return result;
}

at::Tensor matrix_of(const SceneMap& map)
{
    auto matrix = at::empty({3, 3}, at::kDouble);
    for (int i = 0; i < 3; ++i) {
        for (int k = 0; k < 3; ++k) matrix[i][k] = map.matrix[i][k];
    }
    return matrix;
}

void expect_same_scene(const CaseTensors& found, const CaseTensors& expected, double tolerance)
{
    EXPECT_TRUE(tensors_near(found.inputs.embedding, expected.inputs.embedding, tolerance));
    EXPECT_TRUE(tensors_near(found.inputs.positions, expected.inputs.positions, tolerance));
    EXPECT_TRUE(tensors_near(found.inputs.constants, expected.inputs.constants, tolerance));
    EXPECT_TRUE(tensors_near(found.target, expected.target, tolerance));
}

TEST(MappedCase, IsTheCaseOfTheMappedScene)
{
    const auto x = at::randn({kRows, 3}, at::kDouble), stream = at::randn({3}, at::kDouble),
               heights = at::rand({kRows, 1}, at::kDouble);
    const auto none = at::zeros({3}, at::kDouble);
    const auto original = scene(x, stream, none, heights, 0.25);
    for (const int axis : {-1, 0, 1, 2}) {
        for (const double angle : {0.0, 2.0}) {
            const AugmentationConfig augmentation{.mirror_axis = axis,
                                                  .mirror_share = 1,
                                                  .rotation = angle,
                                                  .translation = {0.5, 0, 2},
                                                  .free_stream = kStream,
                                                  .sided_constants = {"yaw"}};
            const auto map = drawn_map(augmentation, {1, 2, -2}, 3, 4, "car");
            EXPECT_EQ(map.is_mirrored, axis >= 0);
            const auto matrix = matrix_of(map);
            const auto shift = at::tensor({map.shift[0], map.shift[1], map.shift[2]}, at::kDouble);

            // Vectors are turned by a product of matrices of the oracle's own; what follows from them is computed from
            // the turned scene.
            auto expected =
                scene(x.matmul(matrix.t()), matrix.mv(stream), shift, heights, map.is_mirrored ? -0.25 : 0.25);
            expect_same_scene(mapped_case(original, map, augmentation, scene_data()), expected, 1e-13);
        }
    }
}

TEST(MappedCase, MirrorsThePlacesInTheBox)
{
    DataConfig data;
    data.inputs = {"points", "sdf", "box"};
    data.fields = {{"p", "p", "kinematic"}};
    const auto box = at::rand({kRows, 3}, at::kDouble) * 2 - 1;
    CaseTensors original;
    original.inputs.embedding = at::cat({3 * box, at::ones({kRows, 1}, at::kDouble), box}, -1).unsqueeze(0);
    original.inputs.positions = (3 * box).unsqueeze(0);
    original.target = at::ones({1, kRows, 1}, at::kDouble);
    original.channels = {1};
    const AugmentationConfig augmentation{.mirror_axis = 1, .mirror_share = 1, .translation = {1, 2, 3}};
    const auto found = mapped_case(original, drawn_map(augmentation, {0, 0, 1}, 3, 4, "car"), augmentation, data)
                           .inputs.embedding.squeeze(0);
    EXPECT_TRUE(tensors_near(found.narrow(1, 4, 3), box * at::tensor({1.0, -1.0, 1.0}, at::kDouble),
                             1e-15));  // a shift takes the box along
}

TEST(MappedCase, IsTheSameBitsOnAnyNumberOfRanks)
{
    const auto x = at::randn({kRows, 3}), stream = at::randn({3}), heights = at::rand({kRows, 1});
    const auto whole = scene(x, stream, at::zeros({3}), heights, 0.25);
    const AugmentationConfig augmentation{
        .mirror_axis = 1, .mirror_share = 1, .rotation = 1, .translation = {1, 1, 1}, .free_stream = kStream};
    const auto map = drawn_map(augmentation, {0, 0, 1}, 3, 4, "car");
    const auto expected = mapped_case(whole, map, augmentation, scene_data());
    for (const int ranks : {1, 2, 3}) {
        std::vector<int> owners(kRows);
        for (int i = 0; i < kRows; ++i)
            owners[i] = ranks < 3 ? i % ranks : i % 5 == 0 ? 2 : 0;  // the second of three has none
        run_ranks(ranks, [&](std::shared_ptr<const DeviceMesh> mesh) {
            const auto own = owned(owners, static_cast<int>(mesh->coordinate(0)));
            const auto spec = shard_spec(own, mesh, 1);
            const auto rows = at::tensor(own->global_ids, at::kLong);
            auto example = whole;
            for (auto* tensor : {&example.inputs.embedding, &example.inputs.positions, &example.target})
                *tensor = from_local(tensor->index_select(1, rows), spec);
            const auto found = mapped_case(example, map, augmentation, scene_data());
            const auto same = [&](const at::Tensor& part, const at::Tensor& all) {
                return at::equal(to_local(part), all.index_select(1, rows));
            };
            EXPECT_TRUE(same(found.inputs.embedding, expected.inputs.embedding));
            EXPECT_TRUE(same(found.inputs.positions, expected.inputs.positions));
            EXPECT_TRUE(same(found.target, expected.target));
            EXPECT_TRUE(at::equal(found.inputs.constants, expected.inputs.constants));
        });
    }
}

TEST(DrawnMap, DependsOnSeedEpochAndCase)
{
    const AugmentationConfig augmentation{.rotation = 1};
    const auto map = [&](std::int64_t seed, std::int64_t epoch, const char* id) {
        return drawn_map(augmentation, {0, 0, 1}, seed, epoch, id).matrix;
    };
    EXPECT_EQ(map(1, 1, "car"), map(1, 1, "car"));
    EXPECT_NE(map(1, 1, "car"), map(2, 1, "car"));
    EXPECT_NE(map(1, 1, "car"), map(1, 2, "car"));
    EXPECT_NE(map(1, 1, "car"), map(1, 1, "bus"));
}

TEST(DrawnMap, HasTheSharesAndBoundsThatWereAskedFor)
{
    const AugmentationConfig augmentation{
        .mirror_axis = 1, .mirror_share = 0.3, .rotation = 0.5, .translation = {0.25, 0, 2}};
    constexpr int kDraws = 20000;
    int num_mirrored = 0;
    double angles = 0, squares = 0, largest = 0;
    std::array<double, 3> shifts{};
    for (int epoch = 1; epoch <= kDraws; ++epoch) {
        const auto map = drawn_map(augmentation, {0, 0, 3}, 5, epoch, "car");
        num_mirrored += map.is_mirrored;
        EXPECT_EQ(map.matrix[2], (std::array<double, 3>{0, 0, 1}));
        const auto angle = std::atan2(map.matrix[1][0], map.matrix[0][0]);  // the first column is not mirrored
        angles += angle;
        squares += angle * angle;
        largest = std::max(largest, std::abs(angle));
        for (int c = 0; c < 3; ++c) shifts[c] = std::max(shifts[c], std::abs(map.shift[c]));
    }
    // Within five standard deviations of the estimates.
    EXPECT_NEAR(num_mirrored, 0.3 * kDraws, 5 * std::sqrt(0.3 * 0.7 * kDraws));
    EXPECT_NEAR(angles / kDraws, 0, 5 * 0.5 / std::sqrt(3.0 * kDraws));
    EXPECT_NEAR(squares / kDraws, 0.25 / 3, 5 * 0.25 * std::sqrt((1.0 / 5 - 1.0 / 9) / kDraws));
    EXPECT_LE(largest, 0.5);
    EXPECT_GT(largest, 0.495);
    EXPECT_LE(shifts[0], 0.25);
    EXPECT_GT(shifts[0], 0.24);
    EXPECT_EQ(shifts[1], 0);
    EXPECT_GT(shifts[2], 1.95);
}

TEST(Augmentation, RefusesFieldsThatItCannotTurn)
{
    auto data = scene_data();
    require_turnable(data, std::vector<std::int64_t>{1, 3, 3, 9, 2});
    EXPECT_TRUE(throws_with<InvalidInput>("the field 'u' has 2 component(s), and its kind is velocity, which has 3",
                                          [&] { require_turnable(data, std::vector<std::int64_t>{1, 2, 3, 9, 2}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("which has 9",
                                          [&] { require_turnable(data, std::vector<std::int64_t>{1, 3, 3, 6, 2}); }));
    data.fields[4].kind = "";
    EXPECT_TRUE(throws_with<InvalidInput>("the field 'pair' has 2 component(s) and no kind",
                                          [&] { require_turnable(data, std::vector<std::int64_t>{1, 3, 3, 9, 2}); }));
    require_turnable(data, std::vector<std::int64_t>{1, 3, 3, 9, 1});
}

TEST(Augmentation, RefusesHalfBodies)
{
    require_whole_body("car", {0, 4, -1, 1, 0, 1.5}, 1);
    require_whole_body("car", {0, 4, -1, 0.2, 0, 1.5}, 1);
    for (const auto& [low, high] : {std::pair{0.0, 0.2}, {-0.2, 0.0}, {-1e-6, 0.2}, {0.4, 1.0}, {0.0, 0.0}}) {
        EXPECT_TRUE(throws_with<InvalidInput>("case car lies on one side of the plane y = 0",
                                              [&] { require_whole_body("car", {0, 4, low, high, 0, 1}, 1); }));
    }
}

}  // namespace
}  // namespace meshard
