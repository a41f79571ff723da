// SPDX-License-Identifier: Apache-2.0
#include "apps/training/step_graphs.h"
#include "partition/error.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>

namespace meshard {
namespace {

/// A recorder for the CPU: it computes while it records, and counts runs. The stand-in's tests show that graphs compute again.
struct CountedRecorder : GraphRecorder {
    static inline int num_recorded = 0, num_runs = 0;
    void begin() override {}
    void end() override { ++num_recorded; }
    void run() override { ++num_runs; }
};

class StepGraphsOfSteps : public testing::Test {
protected:
    StepGraphsOfSteps()
    {
        register_graph_recorder(c10::DeviceType::CPU, [] { return std::make_unique<CountedRecorder>(); });
        CountedRecorder::num_recorded = CountedRecorder::num_runs = 0;
    }
    ~StepGraphsOfSteps() override { register_graph_recorder(c10::DeviceType::CPU, {}); }

    at::Tensor step(const std::vector<at::Tensor>& inputs)
    {
        ++num_computed_;
        const auto loss = (inputs[0] * weight_).sum();
        loss.backward();
        return loss.detach();
    }

    at::Tensor run(std::int64_t size, const std::string& key = "")
    {
        weight_.mutable_grad() = at::Tensor();
        return graphs_.run(key, {at::ones({size}), at::Tensor()}, [&](const auto& inputs) { return step(inputs); });
    }

    at::Tensor weight_ = at::ones({1}).requires_grad_();
    StepGraphs graphs_{{weight_}, c10::DeviceType::CPU};
    int num_computed_ = 0;
};

TEST_F(StepGraphsOfSteps, AreRecordedAfterWarmUpsAndRunFromThenOn)
{
    for (int i = 0; i < StepGraphs::kWarmUps; ++i) run(4);
    EXPECT_EQ(graphs_.num_graphs(), 0U);
    EXPECT_EQ(run(4).item<float>(), 4);
    EXPECT_EQ(graphs_.num_graphs(), 1U);
    EXPECT_EQ(CountedRecorder::num_runs, 1);  // what was recorded has not been computed yet
    run(4);
    run(4);
    EXPECT_EQ(CountedRecorder::num_runs, 3);
    EXPECT_EQ(graphs_.num_replays(), 3);
    EXPECT_EQ(num_computed_, StepGraphs::kWarmUps + 1);
    EXPECT_TRUE(weight_.grad().defined());
}

TEST_F(StepGraphsOfSteps, AreOfOneShapeAndKey)
{
    for (int i = 0; i < 2 * StepGraphs::kWarmUps; ++i) run(i % 2 == 0 ? 4 : 5);
    for (int i = 0; i < StepGraphs::kWarmUps; ++i) run(4, "another case");
    EXPECT_EQ(graphs_.num_graphs(), 0U);
    EXPECT_EQ(run(5).item<float>(), 5);
    EXPECT_EQ(run(4).item<float>(), 4);
    EXPECT_EQ(run(4, "another case").item<float>(), 4);
    EXPECT_EQ(graphs_.num_graphs(), 3U);
}

TEST_F(StepGraphsOfSteps, OfFurtherKindsRunAsTheyAre)
{
    const auto most = static_cast<std::int64_t>(StepGraphs::kMostGraphs);
    for (std::int64_t size = 1; size <= most + 2; ++size) {
        for (int i = 0; i <= StepGraphs::kWarmUps; ++i) EXPECT_EQ(run(size).item<float>(), static_cast<float>(size));
    }
    EXPECT_EQ(graphs_.num_graphs(), StepGraphs::kMostGraphs);
    EXPECT_FALSE(graphs_.why_not());
}

TEST_F(StepGraphsOfSteps, ThatCannotBeRecordedRunAsTheyAre)
{
    const auto run_with_draw = [&] {
        weight_.mutable_grad() = at::Tensor();
        return graphs_.run("", {at::ones({3})}, [&](const auto& inputs) {
            const auto loss = step(inputs);
            if (is_recording()) throw Error("it draws\nfrom a deck");
            return loss;
        });
    };
    for (int i = 0; i < StepGraphs::kWarmUps + 3; ++i) {
        EXPECT_EQ(run_with_draw().template item<float>(), 3);
        EXPECT_EQ(weight_.grad().item<float>(), 3);  // once, though the step was begun twice
    }
    EXPECT_EQ(graphs_.why_not(), "it draws");
    EXPECT_EQ(graphs_.num_graphs(), 0U);
    EXPECT_EQ(num_computed_, StepGraphs::kWarmUps + 4);
}

}  // namespace
}  // namespace meshard
