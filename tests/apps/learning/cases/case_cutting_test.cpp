// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/case_cutting.h"
#include "io/bytes/interruption.h"
#include "io/mesh_io.h"
#include "io/shards/manifest.h"
#include "partition/error.h"
#include "tests/support/run_ranks.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>

namespace meshard {
namespace {

namespace fs = std::filesystem;

TEST(DealBySize, GivesTheLargestFirstToWhoHasLeast)
{
    const std::vector<std::int64_t> sizes{1, 7, 3, 5, 4};

    EXPECT_EQ(deal_by_size(sizes, 2), (std::vector<int>{1, 0, 0, 1, 1}));  // 7; 5, 4; 3 to 7; 1 to 9
}

TEST(DealBySize, KeepsTheLargestLoadNearTheBest)
{
    std::mt19937 random(5);
    for (int trial = 0; trial < 200; ++trial) {
        std::vector<std::int64_t> sizes(random() % 30);
        for (auto& size : sizes) size = 1 + random() % 1000;
        const int num_ranks = 1 + static_cast<int>(random() % 6);
        std::vector<std::int64_t> loads(num_ranks, 0);
        const auto owners = deal_by_size(sizes, num_ranks);
        std::int64_t total = 0, largest = 0;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            ASSERT_TRUE(owners[i] >= 0 && owners[i] < num_ranks);
            loads[owners[i]] += sizes[i];
            total += sizes[i];
            largest = std::max(largest, sizes[i]);
        }
        // Graham 1969: no list is dealt worse than mean plus largest.
        EXPECT_LE(*std::ranges::max_element(loads), total / num_ranks + largest);
    }
}

TEST(DealBySize, SpreadsEmptyFiles)
{
    const std::vector<std::int64_t> sizes(6, 0);

    auto owners = deal_by_size(sizes, 3);

    std::ranges::sort(owners);
    EXPECT_EQ(owners, (std::vector<int>{0, 0, 1, 1, 2, 2}));
}

class CutCases : public testing::Test {
protected:
    CutCases()
    {
        for (int i = 0; i < 5; ++i) {
            cases_.push_back({std::to_string(i), folder_ / ("body_" + std::to_string(i) + ".vtp"), {}});
            write_mesh(cases_.back().file, sphere(5 + 3 * i));
        }
    }

    std::vector<fs::path> cut(const fs::path& shards, const std::shared_ptr<const DeviceMesh>& ranks,
                              const std::vector<CaseSource>& cases) const
    {
        TrainingLog log({}, false);
        return cut_cases(cases, {.folder = shards, .num_parts = 2}, ranks->all(), log, stop_);
    }

    const TemporaryFolder folder_;
    std::vector<CaseSource> cases_;
    volatile std::sig_atomic_t stop_ = 0;
};

TEST_F(CutCases, GivesEveryRankAllShards)
{
    run_ranks(3, [&](std::shared_ptr<const DeviceMesh> ranks) {
        const auto shards = cut(folder_ / "shards", ranks, cases_);
        ASSERT_EQ(shards.size(), cases_.size());
        for (std::size_t i = 0; i < shards.size(); ++i)
            EXPECT_EQ(read_manifest(shards[i]).num_cells, read_mesh(cases_[i].file).num_cells());
    });
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "shards" / "locks"), {}), 5) << "no marks are left";
}

TEST_F(CutCases, FindsOutWhoSeesTheSameFolder)
{
    fs::create_directories(folder_ / "a");
    fs::create_directory_symlink(folder_ / "a", folder_ / "also_a");
    run_ranks(4, [&](std::shared_ptr<const DeviceMesh> ranks) {
        const char* names[] = {"b", "a", "b", "also_a"};
        EXPECT_EQ(lowest_ranks_with(folder_ / names[ranks->all().rank()], ranks->all()),
                  (std::vector<int>{0, 1, 0, 1}));
        EXPECT_EQ(lowest_ranks_with("/proc/none", ranks->all()), (std::vector<int>{0, 1, 2, 3}));
    });
}

TEST_F(CutCases, CutsOnceOnEachHost)
{
    run_ranks(4, [&](std::shared_ptr<const DeviceMesh> ranks) {
        const auto mine = folder_ / (ranks->all().rank() < 2 ? "host_a" : "host_b");
        for (const auto& shards : cut(mine, ranks, cases_)) {
            EXPECT_EQ(shards.parent_path(), mine);
            EXPECT_TRUE(is_shards_folder(shards));
        }
    });
}

TEST_F(CutCases, RefusesHostsWithDifferentFiles)
{
    auto others = cases_;
    others[3].file = folder_ / "other" / "body_3.vtp";
    fs::create_directories(folder_ / "other");
    write_mesh(others[3].file, sphere(4));
    std::atomic<int> num_refusals = 0;
    run_ranks(2, [&](std::shared_ptr<const DeviceMesh> ranks) {
        const bool is_first = ranks->all().rank() == 0;
        try {
            cut(folder_ / (is_first ? "host_a" : "host_b"), ranks, is_first ? cases_ : others);
        } catch (const InvalidInput& error) {
            EXPECT_NE(std::string(error.what()).find("case 3: the ranks of this run see different files"),
                      std::string::npos)
                << error.what();
            ++num_refusals;
        }
    });
    EXPECT_EQ(num_refusals, 2);
}

TEST_F(CutCases, EndsOnEveryRankWhenOneIsToldToStop)
{
    stop_ = 1;
    std::atomic<int> num_ends = 0;
    run_ranks(2, [&](std::shared_ptr<const DeviceMesh> ranks) {
        try {
            std::vector<CaseSource> many;
            for (int i = 0; i < 40; ++i) {
                many.push_back(cases_[4]);
                many.back().id += "_" + std::to_string(i);
            }
            cut(folder_ / "shards", ranks, many);
        } catch (const Interrupted&) {
            ++num_ends;
        }
    });
    EXPECT_EQ(num_ends, 2);
}

}  // namespace
}  // namespace meshard
