// SPDX-License-Identifier: Apache-2.0
// Which block of a grid each rank has.
#include "apps/learning/grids/grid_case.h"
#include "ops/grids/grid_rows.h"
#include "partition/error.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace meshard {
namespace {

/// The places of the rows of a box in a grid, x fastest.
std::vector<std::int64_t> places_in(const GridBox& box, const GridBox& whole)
{
    std::vector<std::int64_t> places;
    for (auto z = box.first[2]; z < box.first[2] + box.count[2]; ++z)
        for (auto y = box.first[1]; y < box.first[1] + box.count[1]; ++y)
            for (auto x = box.first[0]; x < box.first[0] + box.count[0]; ++x)
                places.push_back((z * whole.count[1] + y) * whole.count[0] + x);
    return places;
}

/// This rank's part of the places of all rows, (N, 1).
at::Tensor own_places(const GridLayout& layout, const at::Tensor& places)
{
    return own_part(grid_of_rows(places.unsqueeze(0), layout.extents, nullptr), *layout.of_grid).flatten();
}

TEST(NamedArrays, OfAPatternHaveOneOrderInAnyFile)
{
    const std::vector<std::string> sorted{"q_2_9", "q_10_a", "q_10_b", "q_inf_1", "q_nan_1", "q_x_1"};
    auto names = sorted;
    std::ranges::sort(names);
    do {
        ImageGrid grid;
        for (const auto& name : names) grid.point_data.push_back(DataArray::from(name, std::vector<float>{1}));
        std::vector<std::string> found;
        for (const auto* array : named_arrays(grid, "q_*_*", false, "")) found.push_back(array->name());
        EXPECT_EQ(found, sorted);
    } while (std::ranges::next_permutation(names).found);
}

TEST(GridLayout, CutsDirectionsAtGroupsOfRows)
{
    run_ranks({2, 2}, {"first", "second"}, [](const std::shared_ptr<const DeviceMesh>& blocks) {
        const auto layout = grid_layout({20, 12}, 4, blocks, "case 7");

        EXPECT_EQ(to_string(*layout.of_grid), "Shard(2) of 12+8 on first, Shard(3) of 8+4 on second");
        EXPECT_EQ(to_string(*layout.of_rows), "Shard(1) of 96+48+64+32 on all");
        const auto places = torch::arange(20 * 12).view({-1, 1});
        const auto own = own_places(layout, places);
        const auto first = 12 * 12 * blocks->coordinate(0) + 8 * blocks->coordinate(1);
        EXPECT_EQ(own[0].item<std::int64_t>(), first);
        EXPECT_TRUE(torch::equal(own, torch::tensor(layout.of_rows->index_map->global_ids)));
        EXPECT_EQ(to_string(*grid_layout({6, 12}, 4, blocks, "").of_grid),
                  "Shard(2) of 3+3 on first, Shard(3) of 8+4 on second")
            << "rows that make no groups are cut anywhere";
    });
}

TEST(GridLayout, HasTheBoxOfItsRows)
{
    const auto expect_box = [](const std::shared_ptr<const DeviceMesh>& blocks, std::array<std::int64_t, 3> num_cells) {
        for (const bool of_cells : {false, true}) {
            ImageGrid grid;
            for (int axis = 0; axis < 3; ++axis)
                grid.num_points[axis] = num_cells[axis] + (of_cells && num_cells[axis] > 1);
            const auto layout = grid_layout(extents_of(grid, of_cells, ""), 2, blocks, "");
            const auto whole = whole_box(grid, of_cells);
            const auto places = torch::arange(whole.num_rows()).view({-1, 1});

            const auto in_box = places_in(layout.own_box(grid, of_cells), whole);
            EXPECT_TRUE(torch::equal(torch::tensor(in_box), own_places(layout, places)));
            EXPECT_EQ(layout.own_places(), in_box);
        }
    };
    run_ranks({2, 2}, {"first", "second"}, [&](const auto& blocks) {
        expect_box(blocks, {5, 6, 7});
        expect_box(blocks, {5, 1, 7});
    });
    run_ranks({1, 2, 2}, {"a", "b", "c"}, [&](const auto& blocks) { expect_box(blocks, {9, 6, 3}); });
    run_ranks(3, [&](const auto& slabs) { expect_box(slabs, {9, 2, 1}); });
}

TEST(GridLayout, OfLeastHaloCutsWhereFewRowsAreBesideCuts)
{
    using Cut = std::vector<std::int64_t>;
    EXPECT_EQ(cut_of_least_halo({32, 32, 32}, 2, 8), (Cut{2, 2, 2}));
    EXPECT_EQ(cut_of_least_halo({64, 64}, 4, 4), (Cut{2, 2}));
    EXPECT_EQ(cut_of_least_halo({12, 24, 8}, 2, 8), (Cut{2, 4}));
    EXPECT_EQ(cut_of_least_halo({32, 8}, 4, 4), (Cut{4}));
    EXPECT_EQ(cut_of_least_halo({24, 8}, 4, 4), (Cut{2, 2})) << "slabs of six groups of rows are uneven";
    EXPECT_EQ(cut_of_least_halo({6, 100}, 4, 4), (Cut{1, 4})) << "six rows are one group";
    EXPECT_EQ(cut_of_least_halo({9, 9}, 1, 7), (Cut{7}));
    EXPECT_EQ(cut_of_least_halo({3, 3}, 2, 8), (Cut{8})) << "some ranks are left without rows";
}

TEST(GridLayout, IsThatOfTheSettingsWhereTheyMakeAsManyRanks)
{
    using Cut = std::vector<std::int64_t>;
    const ModelConfig unet{"unet", nlohmann::json::object()}, fno{"fno", nlohmann::json::object()};
    EXPECT_EQ(cut_of_grid({1, 4}, unet, {32, 32, 32}, 4), (Cut{1, 4}));
    EXPECT_EQ(cut_of_grid({1, 4}, unet, {32, 32, 32}, 8), (Cut{2, 2, 2}));
    EXPECT_EQ(cut_of_grid({1, 4}, fno, {32, 32, 32}, 8), (Cut{8}));
    EXPECT_EQ(cut_of_grid({}, fno, {32, 32, 32}, 1), (Cut{1}));
}

TEST(GridLayout, FollowsSharesInWholeGroupsOfRows)
{
    run_ranks({2, 2}, {"first", "second"}, [](const auto& blocks) {
        EXPECT_EQ(to_string(*grid_layout({20, 12}, 4, blocks, "", {0.1, 0.1, 0.3, 0.5}).of_grid),
                  "Shard(2) of 4+16 on first, Shard(3) of 4+8 on second");
    });
    run_ranks(3, [](const auto& slabs) {
        const auto rows = [&](std::int64_t num_rows, const Shares& shares) {
            return *grid_layout({num_rows, 9}, 2, slabs, "", shares).of_grid->axes[0].extents;
        };
        EXPECT_EQ(rows(12, {0.98, 0.01, 0.01}), (Extents{8, 2, 2})) << "each rank keeps a group";
        EXPECT_EQ(rows(12, {0.01, 0.01, 0.98}), (Extents{2, 2, 8}));
        EXPECT_EQ(rows(20, {0.2, 0.3, 0.5}), (Extents{4, 6, 10}));
        EXPECT_EQ(rows(3, {0.2, 0.3, 0.5}), (Extents{1, 1, 1}));
        EXPECT_EQ(rows(2, {0.2, 0.3, 0.5}), (Extents{1, 1, 0})) << "too few rows to follow";
    });
}

TEST(GridLayout, LeavesRanksWithoutRowsAndNamesDirectionsThatAGridDoesNotHave)
{
    run_ranks({1, 3}, {"first", "second"}, [](const auto& blocks) {
        EXPECT_NE(to_string(*grid_layout({9, 2}, 1, blocks, "").of_grid).find("1+1+0"), std::string::npos);
        EXPECT_TRUE(throws_with<InvalidInput>(
            "case 7: parallel.domain is [1, 3], and the grid is 9: there are 2 numbers for 1 directions",
            [&] { grid_layout({9}, 1, blocks, "case 7"); }));
    });
}

}  // namespace
}  // namespace meshard
