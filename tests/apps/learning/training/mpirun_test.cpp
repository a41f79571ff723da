// SPDX-License-Identifier: Apache-2.0
// The program as ranks that mpirun starts.
#include "tests/apps/learning/training/small_training.h"

#include <gtest/gtest.h>

namespace meshard {
namespace {

class Mpirun : public SmallTraining {
protected:
    std::vector<std::string> train(const std::string& output_dir) const
    {
        return {"train", path("car.yaml"), "output_dir=" + path(output_dir)};
    }
};

TEST_F(Mpirun, TrainsAsOneRankDoes)
{
    if (mpirun_path().empty()) GTEST_SKIP() << "this build has no mpirun";
    ASSERT_EQ(meshard(train("one")).exit_code, 0);
    const auto expected = losses("one");
    ASSERT_EQ(expected.size(), 10U);
    for (const int num_ranks : {2, 3}) {
        const auto name = std::to_string(num_ranks);
        const auto result = mpirun(num_ranks, train(name));
        ASSERT_EQ(result.exit_code, 0) << result.err;
        const auto found = losses(name);
        ASSERT_EQ(found.size(), expected.size());
        for (std::size_t i = 0; i < found.size(); ++i)
            EXPECT_NEAR(found[i], expected[i], 1e-5 * expected[i]) << num_ranks << " ranks, step " << i;
    }
}

}  // namespace
}  // namespace meshard
