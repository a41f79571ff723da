// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/cases/shard_cache.h"
#include "io/mesh_io.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/apps/learning/store/stored_tensors.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/stored_case.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace meshard {
namespace {

DataConfig data_config()
{
    DataConfig data;
    data.fields = {{"pressure", "pressure", ""}};
    data.normals = "Normals";
    data.frame = {"bounds", "bounds"};
    return data;
}

std::vector<std::int64_t> all_rows(std::int64_t n)
{
    std::vector<std::int64_t> rows(n);
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
}

TEST(CaseFrame, IsTheBoundingBoxOrWhatIsSaid)
{
    const std::array<double, 6> bounds{0, 4, -1, 1, 2, 5};
    const CaseSource source{"7", {}, {{"length", "2.5"}}};

    const auto frame = case_frame({"bounds", "bounds"}, bounds, source);

    EXPECT_EQ(frame.center, (std::array<double, 3>{2, 0, 3.5}));
    EXPECT_EQ(frame.lengths, (std::array<double, 3>{4, 4, 4}));
    EXPECT_EQ(case_frame({"none", "none"}, bounds, source).center, (std::array<double, 3>{0, 0, 0}));
    EXPECT_EQ(case_frame({"none", "none"}, bounds, source).lengths[2], 1);
    EXPECT_EQ(case_frame({"bounds", "0.5"}, bounds, source).lengths[2], 0.5);
    EXPECT_EQ(case_frame({"bounds", "length"}, bounds, source).lengths[2], 2.5);
    EXPECT_EQ(case_frame({"1,2,3", "4,5,6"}, bounds, source).center, (std::array<double, 3>{1, 2, 3}));
    EXPECT_EQ(case_frame({"1,2,3", "4,5,6"}, bounds, source).lengths, (std::array<double, 3>{4, 5, 6}));
    EXPECT_TRUE(
        throws_with<InvalidInput>("no column 'lengths'", [&] { case_frame({"bounds", "lengths"}, bounds, source); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("case 7: data.length is 0", [&] { case_frame({"bounds", "bounds"}, {}, source); }));
}

TEST(PointInputs, AreCornerMeansAndComputedNormals)
{
    auto mesh = strip(3);  // unit squares along x in the plane z = 0
    mesh.cell_data.clear();
    const auto rows = all_rows(3);

    const auto inputs = point_inputs(mesh, rows, data_config(), {{1.5, 0.5, 0}, {2, 2, 2}}, "strip");

    ASSERT_EQ(inputs.sizes(), (std::vector<std::int64_t>{3, 6}));
    for (int i = 0; i < 3; ++i) {
        const auto expected = torch::tensor({(i + 0.5F - 1.5F) / 2, 0.0F, 0.0F});
        EXPECT_TRUE(torch::allclose(inputs[i].slice(0, 0, 3), expected)) << inputs[i];
        EXPECT_FLOAT_EQ(std::abs(inputs[i][5].item<float>()), 1.0F);
    }
}

TEST(PointInputs, PreferTheArrayOfNormals)
{
    auto mesh = strip(2);
    mesh.cell_data = {DataArray::from<float>("Normals", {0, 1, 0, 1, 0, 0}, 3)};

    const auto inputs = point_inputs(mesh, all_rows(2), data_config(), {}, "strip");

    EXPECT_TRUE(torch::equal(inputs.slice(1, 3, 6), torch::tensor({{0.0F, 1.0F, 0.0F}, {1.0F, 0.0F, 0.0F}})));
}

TEST(PointInputs, RefuseNormalsThatCannotBe)
{
    const auto solid = cube(2);

    EXPECT_TRUE(throws_with<InvalidInput>("cube has no cell array 'Normals'",
                                          [&] { point_inputs(solid, all_rows(8), data_config(), {}, "cube"); }));
    EXPECT_TRUE(throws_with<InvalidInput>("set data.inputs=[points]",
                                          [&] { point_inputs(solid, all_rows(8), data_config(), {}, "cube"); }));
}

TEST(FieldValues, StandSideBySideInTheOrderOfTheConfiguration)
{
    auto mesh = strip(2);
    mesh.cell_data = {DataArray::from<double>("pressure", {1, 2}),
                      DataArray::from<float>("tau", {3, 4, 5, 6, 7, 8}, 3)};
    auto data = data_config();
    data.fields = {{"wss", "tau", ""}, {"p", "pressure", ""}};

    EXPECT_TRUE(torch::equal(field_values(mesh, all_rows(2), data, "strip"),
                             torch::tensor({{3.0F, 4.0F, 5.0F, 1.0F}, {6.0F, 7.0F, 8.0F, 2.0F}})));
}

TEST(FieldValues, RefuseMissingArraysAndNaN)
{
    auto mesh = strip(3);
    mesh.cell_data = {DataArray::from<float>("pressure", {1, std::numeric_limits<float>::quiet_NaN(), 2})};
    auto data = data_config();

    EXPECT_TRUE(throws_with<InvalidInput>("case 3: the array 'pressure' is NaN in row 1",
                                          [&] { field_values(mesh, all_rows(3), data, "case 3"); }));
    data.fields = {{"p", "presure", ""}};
    EXPECT_TRUE(throws_with<InvalidInput>("pressure", [&] { field_values(mesh, all_rows(3), data, "case 3"); }));
}

TEST(PartRuns, GiveEveryRankARunOfNearlyEqualRows)
{
    Manifest manifest;
    manifest.parts.resize(5);
    for (auto& part : manifest.parts) part.num_owned_cells = 10;
    manifest.parts.back().num_owned_cells = 40;

    EXPECT_EQ(part_runs(manifest, true, 1), (std::vector<std::int32_t>{0, 5}));
    EXPECT_EQ(part_runs(manifest, true, 2), (std::vector<std::int32_t>{0, 4, 5}));
    EXPECT_EQ(part_runs(manifest, true, 5), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5}));
    for (const std::int64_t num_ranks : {3, 4, 7}) {
        const auto runs = part_runs(manifest, true, num_ranks);
        EXPECT_EQ(runs.size(), num_ranks + 1U);
        EXPECT_TRUE(std::is_sorted(runs.begin(), runs.end()));
        EXPECT_EQ(runs.back(), 5);
        for (std::int64_t r = 0; num_ranks <= 5 && r < num_ranks; ++r) EXPECT_LT(runs[r], runs[r + 1]) << num_ranks;
    }
}

TEST(PartRuns, ComeNearestToUnequalShares)
{
    const std::vector<std::int64_t> rows(30, 7);
    EXPECT_EQ(part_runs(rows, {2, 1}), (std::vector<std::int32_t>{0, 20, 30}));
    EXPECT_EQ(part_runs(rows, {0.2, 0.5, 0.3}), (std::vector<std::int32_t>{0, 6, 21, 30}));
    EXPECT_EQ(part_runs(rows, {1, 1e-6, 1}), (std::vector<std::int32_t>{0, 15, 16, 30})) << "each has a part";
}

TEST(StoredTensors, HoldEveryCellOnce)
{
    const TemporaryFolder folder;
    auto mesh = strip(12);
    std::vector<float> values(12);
    std::iota(values.begin(), values.end(), 0.0F);
    mesh.cell_data = {DataArray::from<float>("pressure", values)};
    write_mesh(folder / "boundary_1.vtp", mesh);
    const CaseSource source{"1", folder / "boundary_1.vtp", {}};

    const auto shards = prepare_shards(source, {.folder = folder / "shards", .num_parts = 4});
    const auto tensors = stored_tensors(source, shards, data_config(), DeviceMesh::single());

    EXPECT_EQ(tensors.num_points, 12);
    EXPECT_EQ(tensors.inputs.embedding.size(2), 6);
    EXPECT_TRUE(is_sharded(tensors.target));
    const auto sorted = std::get<0>(full_tensor(tensors.target).flatten().sort());
    EXPECT_TRUE(torch::equal(sorted, torch::arange(12, torch::kFloat32)));
}

}  // namespace
}  // namespace meshard
