// SPDX-License-Identifier: Apache-2.0
// Which points take part in a step: the same on any number of ranks, in resumed runs too, and all equally often.
#include "apps/learning/steps/case_set.h"
#include "apps/learning/store/point_draws.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/apps/learning/training/small_training.h"
#include "tests/support/expect_error.h"
#include "tests/support/owner_maps.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <set>

namespace meshard {
namespace {

TEST(DrawnPoints, AreDifferentOnesAndDoNotComeBackBeforeAllWereThere)
{
    for (const auto& [num_points, count] : {std::pair{1, 1}, {2, 1}, {10, 3}, {1000, 1000}, {4097, 512}}) {
        std::set<std::int64_t> seen;
        for (std::int64_t epoch = 1; epoch <= num_points / count; ++epoch) {
            const auto drawn = drawn_points(num_points, count, 7, "car", epoch);
            ASSERT_EQ(drawn.size(), static_cast<std::size_t>(count));
            EXPECT_TRUE(std::is_sorted(drawn.begin(), drawn.end()));
            EXPECT_GE(drawn.front(), 0);
            EXPECT_LT(drawn.back(), num_points);
            seen.insert(drawn.begin(), drawn.end());
        }
        EXPECT_EQ(seen.size(), static_cast<std::size_t>(num_points / count * count)) << num_points;
    }
}

TEST(DrawnPoints, DependOnSeedCaseAndEpoch)
{
    const auto drawn = drawn_points(10000, 100, 7, "car", 1);
    EXPECT_EQ(drawn, drawn_points(10000, 100, 7, "car", 1));
    EXPECT_NE(drawn, drawn_points(10000, 100, 8, "car", 1));
    EXPECT_NE(drawn, drawn_points(10000, 100, 7, "bus", 1));
    EXPECT_NE(drawn, drawn_points(10000, 100, 7, "car", 2));
    EXPECT_NE(drawn, drawn_points(10000, 100, 7, "car", 101));  // the first of another order
}

TEST(DrawnPoints, TakeEachPointAndEachPairEquallyOften)
{
    constexpr int kPoints = 12, kCount = 3, kDraws = 40000;
    std::vector<int> times(kPoints), pairs(kPoints * kPoints);
    for (int seed = 0; seed < kDraws; ++seed) {
        const auto drawn = drawn_points(kPoints, kCount, seed, "car", 1);
        for (const auto a : drawn) {
            ++times[a];
            for (const auto b : drawn) ++pairs[a * kPoints + b];
        }
    }
    const auto expect_share = [](int found, double share) {
        EXPECT_NEAR(found, share * kDraws, 5 * std::sqrt(share * (1 - share) * kDraws));  // five standard deviations
    };
    for (int a = 0; a < kPoints; ++a) {
        expect_share(times[a], 3.0 / 12);
        for (int b = 0; b < a; ++b) expect_share(pairs[a * kPoints + b], 3.0 * 2 / (12 * 11));
    }
}

struct WholeCase {
    at::Tensor embedding, target;
};

WholeCase whole_case(std::int64_t num_points)
{
    auto embedding = at::arange(num_points * 7, at::kFloat).mul(0.37).sin().view({1, num_points, 7});
    embedding.select(-1, 6).abs_();
    return {embedding, at::arange(num_points * 2, at::kFloat).view({1, num_points, 2})};
}

CaseTensors cut_case(const WholeCase& whole, const std::vector<int>& owners,
                     const std::shared_ptr<const DeviceMesh>& mesh)
{
    const auto map = owned(owners, static_cast<int>(mesh->coordinate(0)));
    const auto spec = shard_spec(map, mesh, 1);
    const auto rows = at::tensor(map->global_ids, at::kLong);
    const auto embedding = whole.embedding.index_select(1, rows);
    CaseTensors result;
    result.id = "car";
    result.num_points = whole.target.size(1);
    result.inputs = {
        from_local(embedding, spec), from_local(embedding.narrow(-1, 0, 3).contiguous(), spec), at::ones({1, 2}), {}};
    result.target = from_local(whole.target.index_select(1, rows), spec);
    return result;
}

/// All ranks' rows of a sharded tensor (1, n, channels), at their ids.
class Gathered {
public:
    explicit Gathered(at::IntArrayRef shape) : whole_(at::full(shape, std::nan(""), at::kFloat)) {}
    void add(const at::Tensor& tensor)
    {
        const std::lock_guard lock(mutex_);
        whole_.index_copy_(1, at::tensor(spec_of(tensor)->index_map->global_ids, at::kLong), to_local(tensor));
    }
    const at::Tensor& whole() const { return whole_; }

private:
    std::mutex mutex_;
    at::Tensor whole_;
};

TEST(SampledCase, HasTheSameRowsOnAnyNumberOfRanks)
{
    const auto whole = whole_case(200);
    const auto rows = at::tensor(drawn_points(200, 31, 5, "car", 4), at::kLong);
    for (const int ranks : {1, 2, 3, 5}) {
        std::vector<int> owners(200);
        for (int i = 0; i < 200; ++i)
            owners[i] = ranks < 3 ? i % ranks : i * i % 7 % (ranks - 1);  // the last of several has none
        Gathered embedding({1, 31, 7}), positions({1, 31, 3}), target({1, 31, 2});
        run_ranks(ranks, [&](std::shared_ptr<const DeviceMesh> mesh) {
            const auto sampled = sampled_case(cut_case(whole, owners, mesh), drawn_points(200, 31, 5, "car", 4));
            EXPECT_EQ(sampled.num_points, 31);
            EXPECT_EQ(sampled.target.size(1), 31);
            EXPECT_TRUE(at::equal(sampled.inputs.constants, at::ones({1, 2})));
            embedding.add(sampled.inputs.embedding);
            positions.add(sampled.inputs.positions);
            target.add(sampled.target);
        });
        EXPECT_TRUE(at::equal(embedding.whole(), whole.embedding.index_select(1, rows))) << ranks;
        EXPECT_TRUE(at::equal(positions.whole(), whole.embedding.narrow(-1, 0, 3).index_select(1, rows))) << ranks;
        EXPECT_TRUE(at::equal(target.whole(), whole.target.index_select(1, rows))) << ranks;
    }
}

class TrainingOnSomePoints : public SmallTraining {
protected:
    std::vector<double> all_losses(const std::string& output_dir) const
    {
        return losses(output_dir, {"train_step", "val"});
    }

    ProgramResult train(const std::string& output_dir, std::vector<std::string> more) const
    {
        std::vector<std::string> words{"train", path("car.yaml"), "output_dir=" + path(output_dir),
                                       "data.shards=" + path("shards"), "logging.every_n_steps=1"};
        words.insert(words.end(), more.begin(), more.end());
        return meshard(words);
    }
};

TEST_F(TrainingOnSomePoints, HasTheSameLossesOnAnyNumberOfRanks)
{
    const std::vector<std::string> some{"data.sampling_resolution=50", "data.parts=6"};
    ASSERT_EQ(train("one", some).exit_code, 0);
    const auto expected = all_losses("one");
    ASSERT_EQ(expected.size(), 15U);  // two steps and a validation an epoch
    for (const std::string ranks : {"2", "3"}) {
        auto words = some;
        words.insert(words.end(), {"--nproc", ranks});
        ASSERT_EQ(train("on_" + ranks, words).exit_code, 0);
        const auto found = all_losses("on_" + ranks);
        ASSERT_EQ(found.size(), expected.size());
        for (std::size_t i = 0; i < found.size(); ++i)
            EXPECT_NEAR(found[i], expected[i], 1e-4 * expected[i]) << ranks << " ranks, loss " << i;
    }
    ASSERT_EQ(train("all", {"data.parts=6"}).exit_code, 0);
    EXPECT_GT(std::abs(all_losses("all")[0] - expected[0]), 1e-3 * expected[0]);  // some points are not all
}

TEST_F(TrainingOnSomePoints, GoesOnToTheSameBits)
{
    ASSERT_EQ(train("whole", {"data.sampling_resolution=50"}).exit_code, 0);
    ASSERT_EQ(train("cut", {"data.sampling_resolution=50", "training.max_steps=5"}).exit_code,
              0);  // within the third epoch
    ASSERT_EQ(meshard({"train", "--resume", path("cut/car"), "training.max_steps=0"}).exit_code, 0);
    const auto whole = all_losses("whole");
    const auto resumed = all_losses("cut");
    EXPECT_EQ(whole.back(), resumed.back());
    EXPECT_EQ(whole[whole.size() - 2], resumed[resumed.size() - 2]);

    const auto other =
        meshard({"train", "--resume", path("cut/car"), "data.sampling_resolution=40", "training.num_epochs=6"});
    EXPECT_NE(other.exit_code, 0);
    EXPECT_NE(other.err.find("data.sampling_resolution was 50 when the run began, and is 40 now"), std::string::npos)
        << other.err;
}

}  // namespace
}  // namespace meshard
