// SPDX-License-Identifier: Apache-2.0
// States of runs of grids, of which each rank reads its block.
#include "apps/learning/grids/grid_states.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temporary_folder.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <array>
#include <cmath>

namespace meshard {
namespace {

constexpr std::int64_t kWidth = 7, kHeight = 5;
constexpr std::array kTimes{0.0, 0.5, 1.25, 3.0};

/// Component `c` of array `a` (u: 0, v: 1, forcing: 2, viscosity: 3) at a row of a state.
double value(std::size_t state, int a, std::int64_t row, int c)
{
    return std::sin(1.0 + static_cast<double>(state) + 3.0 * a + 0.7 * static_cast<double>(row) + 11.0 * c);
}

class GridStatesOfARun : public ::testing::Test {
protected:
    void SetUp() override
    {
        auto run = std::make_shared<Series>();
        for (std::size_t i = 0; i < kTimes.size(); ++i) {
            write(i, {kWidth, kHeight, 1});
            run->states.push_back({kTimes[i], file(i)});
        }
        run_ = run;
        data_.on_cells = false;
        data_.is_grid = true;
        data_.fields = {{"u", "meshard:next u", "", "u"}, {"v", "meshard:next v", "", "v"}};
        data_.arrays = {"viscosity"};
        data_.series.is_on = true;
        data_.series.history = 2;
        data_.series.given = {"forcing"};
        data_.series.learnt = LearntState::Rate;
    }

    std::filesystem::path file(std::size_t state) const { return folder_ / fmt::format("state_{}.vti", state); }

    void write(std::size_t state, std::array<std::int64_t, 3> num_points, double first_of_v = 0) const
    {
        ImageGrid grid;
        grid.num_points = num_points;
        const auto num_rows = num_points[0] * num_points[1];
        int a = 0;
        for (const auto& [name, width] : {std::pair("u", 1), {"v", 2}, {"forcing", 1}, {"viscosity", 1}}) {
            std::vector<double> values;
            for (std::int64_t row = 0; row < num_rows; ++row)
                for (int c = 0; c < width; ++c) values.push_back(value(state, a, row, c));
            if (a == 1) values[2 * 9] += first_of_v;
            grid.point_data.push_back(DataArray::from(name, std::move(values), width));
            ++a;
        }
        write_image(file(state), grid);
    }

    TemporaryFolder folder_;
    std::shared_ptr<const Series> run_;
    DataConfig data_;
};

TEST_F(GridStatesOfARun, AreReadByTheRowsOfABlock)
{
    run_ranks({2, 2}, {"first", "second"}, [&](const std::shared_ptr<const DeviceMesh>& blocks) {
        const auto image = GridFile::open(file(0))->grid();
        const auto layout = grid_layout({kHeight, kWidth}, 1, blocks, "");
        const GridStates states(image, layout.own_box(image, false), data_, "run");

        const auto step = states.step({run_, 1});
        EXPECT_EQ(step.channels, (std::vector<std::int64_t>{1, 2}));
        EXPECT_EQ(step.extents, (std::vector<std::int64_t>{kHeight, kWidth}));
        const auto places = layout.own_places();
        ASSERT_EQ(step.told.sizes(), (at::IntArrayRef{std::ssize(places), 3 + 3 + 1 + 1 + 1}));
        const auto duration = kTimes[2] - kTimes[1];
        for (std::size_t i = 0; i < places.size(); ++i) {
            const auto row = places[i];
            const auto of = [&](std::size_t state, int a, int c) {
                return static_cast<float>(value(state, a, row, c));
            };
            const std::vector<float> told{of(1, 0, 0), of(1, 1, 0), of(1, 1, 1),
                                          of(0, 0, 0), of(0, 1, 0), of(0, 1, 1),
                                          of(1, 3, 0), of(2, 2, 0), static_cast<float>(duration)};
            EXPECT_TRUE(torch::equal(step.told[static_cast<std::int64_t>(i)], torch::tensor(told))) << row;
            const auto rate = [&](int a, int c) {
                return static_cast<float>((value(2, a, row, c) - value(1, a, row, c)) / duration);
            };
            const std::vector<float> target{rate(0, 0), rate(1, 0), rate(1, 1)};
            EXPECT_TRUE(torch::equal(step.target[static_cast<std::int64_t>(i)], torch::tensor(target))) << row;
        }

        const std::array before{&run_->states[1], &run_->states[0]};
        EXPECT_TRUE(torch::equal(states.told(before, &run_->states[2], duration), step.told));
        EXPECT_TRUE(torch::equal(states.told_fields(run_->states[1]), step.told.narrow(1, 0, 3)));
        EXPECT_TRUE(
            torch::equal(states.told_besides(run_->states[1], &run_->states[2], duration), step.told.narrow(1, 6, 3)));
    });
}

TEST_F(GridStatesOfARun, NameWhatIsWrong)
{
    const auto image = GridFile::open(file(0))->grid();
    const auto states = [&] { return GridStates(image, {{1, 1, 0}, {4, 3, 1}}, data_, "run 7"); };

    write(2, {kWidth, kHeight, 1}, NAN);  // row 9 of 7 columns is (2, 1)
    EXPECT_TRUE(throws_with<InvalidInput>("run 7, the state at 1.25 (", [&] { states().step({run_, 1}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("'v' is NaN in (x, y, z) = (2, 1, 0)", [&] { states().step({run_, 1}); }));
    write(2, {kWidth + 1, kHeight, 1});
    EXPECT_TRUE(throws_with<InvalidInput>("8 x 5 x 1 points, and another state of the run 7 x 5 x 1",
                                          [&] { states().step({run_, 1}); }));
    data_.arrays = {"viscosities"};
    EXPECT_TRUE(throws_with<InvalidInput>("Did you mean 'viscosity'?", [&] { states().step({run_, 1}); }));
}

}  // namespace
}  // namespace meshard
