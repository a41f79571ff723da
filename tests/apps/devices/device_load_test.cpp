// SPDX-License-Identifier: Apache-2.0
#include "apps/console/error_text.h"
#include "apps/devices/device_load.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

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
            .modes = {"stored", "recomputed", "streamed"},
            .rank_option = "--nproc ",
            .fewer_points = "data.sampling_resolution"};
}

TEST(DeviceLoad, NamesTheNextModeAndTheRanksThatDo)
{
    // At least 60 KiB a point are 60 GiB: more than one device holds of 40, so at least two ranks do; of 16, at least
    // four.
    EXPECT_EQ(out_of_memory_text(million_points(), {.now = kGiB, .peak = 60 * kGiB, .total = 40 * kGiB}),
              "out of memory: a training step of case car, 1048576 points, does not fit into the 40.0 GiB of cuda:0: "
              "with memory mode stored it takes at least "
              "60.0 KiB a point (60.0 GiB before the memory ended). Use training.memory=recomputed, at least 2 ranks "
              "(--nproc 2) or fewer points at once "
              "(data.sampling_resolution).");
    auto load = million_points();
    load.memory = "streamed";
    const auto last = out_of_memory_text(load, {.now = kGiB, .peak = 60 * kGiB, .total = 16 * kGiB});
    EXPECT_NE(last.find("Use at least 4 ranks (--nproc 4) or fewer"), std::string::npos) << last;
}

TEST(DeviceLoad, GoesByWhatWasTakenWhereNothingIsCounted)
{
    DeviceLoad load{.device = c10::Device(c10::kCUDA, 1),
                    .what = "validation of case car",
                    .num_points = 1000,
                    .num_ranks = 2,
                    .rank_option = "--nproc "};
    EXPECT_EQ(out_of_memory_text(load, {.now = 0, .peak = 1000 * 1024, .total = 1 << 20}),
              "out of memory: validation of case car, 1000 points on this rank, does not fit into the 1.0 MiB of "
              "cuda:1: it takes at least 1.0 KiB a point (1000.0 "
              "KiB before the memory ended). Use at least 3 ranks (--nproc 3).");
    load.num_points = 0;
    load.rank_option.clear();
    EXPECT_EQ(out_of_memory_text(load, {}), "out of memory: validation of case car does not fit into cuda:1.");
}

TEST(ErrorText, HasNoCallsOfTheLibrary)
{
    try {
        TORCH_CHECK(false, "a wrong shape");
    } catch (const std::exception& error) {
        EXPECT_NE(std::string(error.what()), "a wrong shape");  // it lists the calls
        EXPECT_EQ(error_text(error), "a wrong shape");
        EXPECT_EQ(error_text(std::runtime_error(std::string("of another: ") + error.what())),
                  "of another: a wrong shape");
    }
    try {
        TORCH_CHECK_WITH(OutOfMemoryError, false,
                         "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of "
                         "which 1.00 GiB is free. "
                         "Including non-PyTorch memory, this process has 78.1 GiB memory in use.");
    } catch (const std::exception& error) {
        EXPECT_EQ(error_text(error), "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
                                     "capacity of 79.11 GiB of which 1.00 GiB is free.");
    }
}

}  // namespace
}  // namespace meshard
