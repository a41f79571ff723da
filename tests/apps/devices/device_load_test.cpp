// SPDX-License-Identifier: Apache-2.0
#include "apps/console/error_text.h"
#include "apps/devices/device_load.h"
#include "apps/plan/mode_needs.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace meshard {
namespace {

constexpr std::int64_t kGiB = std::int64_t(1) << 30;

DeviceLoad million_points()
{
    return {.device = c10::Device(c10::kCUDA, 0),
            .what = "a training step of case car",
            .num_points = 1 << 20,
            .memory = "stored",
            .mode_option = "training.memory=",
            .modes = {{"stored", 100 * 1024.0, double(kGiB)}, {"recomputed", 8 * 1024.0, double(kGiB)}, {"streamed", 128, 4.0 * kGiB}},
            .rank_option = "--nproc ",
            .fewer_points = "data.sampling_resolution"};
}

TEST(DeviceLoad, NamesTheModeThatFitsAndTheRanksThatDo)
{
    // 100 KiB a point are 100 GiB: with 1 GiB on each rank, 79 GiB hold 78 of them, so two ranks do; recomputed takes 9 GiB.
    EXPECT_EQ(
        out_of_memory_text(million_points(), {.now = kGiB, .peak = 60 * kGiB, .total = 79 * kGiB}),
        "out of memory: a training step of case car, 1048576 points, does not fit into the 79.0 GiB of cuda:0: with memory mode stored it takes at least "
        "60.0 KiB a point (60.0 GiB before the memory ended; by count 100.0 KiB and 1.0 GiB besides). Use training.memory=recomputed (about 8.0 KiB a point, "
        "9.0 GiB in all), at least 2 ranks (--nproc 2) or fewer points at once (data.sampling_resolution).");
}

TEST(DeviceLoad, PassesOverModesThatDoNotFit)
{
    auto load = million_points();
    const auto text = out_of_memory_text(load, {.now = kGiB, .peak = 7 * kGiB, .total = 8 * kGiB});
    EXPECT_NE(text.find("Use training.memory=streamed (about 128 bytes a point, 4.1 GiB in all), at least 15 ranks (--nproc 15)"), std::string::npos) << text;
    load.modes.pop_back();
    const auto least = out_of_memory_text(load, {.now = kGiB, .peak = 7 * kGiB, .total = 4 * kGiB});  // 8 GiB of points in 3 GiB: three ranks
    EXPECT_NE(least.find("Use training.memory=recomputed on 3 ranks (--nproc 3), about 8.0 KiB a point"), std::string::npos) << least;
}

TEST(DeviceLoad, GoesByWhatWasTakenWhereNothingIsCounted)
{
    DeviceLoad load{.device = c10::Device(c10::kCUDA, 1), .what = "validation of case car", .num_points = 1000, .num_ranks = 2, .rank_option = "--nproc "};
    EXPECT_EQ(
        out_of_memory_text(load, {.now = 0, .peak = 1000 * 1024, .total = 1 << 20}),
        "out of memory: validation of case car, 1000 points on this rank, does not fit into the 1.0 MiB of cuda:1: it takes at least 1.0 KiB a point (1000.0 "
        "KiB before the memory ended). Use at least 3 ranks (--nproc 3).");
    load.num_points = 0;
    load.rank_option.clear();
    EXPECT_EQ(out_of_memory_text(load, {}), "out of memory: validation of case car does not fit into cuda:1.");
}

TEST(DeviceLoad, CountsTheModesOfAModel)
{
    const nlohmann::json arguments{{"n_layers", 8}, {"n_hidden", 256}, {"n_head", 8}, {"slice_num", 64}, {"mlp_ratio", 2}};
    const auto modes = counted_modes("transolver", arguments, 6, 4, 1, 1e6, 2);
    ASSERT_EQ(modes.size(), 3);
    EXPECT_EQ(modes[0].name, "stored");
    EXPECT_EQ(modes[2].name, "streamed");
    for (std::size_t i = 1; i < modes.size(); ++i) EXPECT_LT(2 * modes[i].bytes_per_point, modes[i - 1].bytes_per_point) << modes[i].name;
    EXPECT_TRUE(counted_modes("domino", {}, 6, 4, 1, 1e6, 4).empty());
}

TEST(ErrorText, HasNoCallsOfTheLibrary)
{
    try {
        TORCH_CHECK(false, "a wrong shape");
    } catch (const std::exception& error) {
        EXPECT_NE(std::string(error.what()), "a wrong shape");  // it lists the calls
        EXPECT_EQ(error_text(error), "a wrong shape");
        EXPECT_EQ(error_text(std::runtime_error(std::string("of another: ") + error.what())), "of another: a wrong shape");
    }
    try {
        TORCH_CHECK_WITH(OutOfMemoryError, false,
                         "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.00 GiB is free. "
                         "Including non-PyTorch memory, this process has 78.1 GiB memory in use.");
    } catch (const std::exception& error) {
        EXPECT_EQ(error_text(error),
                  "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.00 GiB is free.");
    }
}

}  // namespace
}  // namespace meshard
