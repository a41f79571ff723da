// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/step_graphs.h"
#include "partition/error.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <set>

namespace meshard {
namespace {

/// A recorder for the CPU: it computes while it records, and counts runs. The stand-in's tests show that graphs compute
/// again.
struct CountedRecorder : GraphRecorder {
    static inline std::atomic<int> num_recorded = 0, num_runs = 0;
    void begin() override {}
    void end() override { ++num_recorded; }
    void run() override { ++num_runs; }
};

class StepGraphsOfSteps : public testing::Test {
protected:
    StepGraphsOfSteps()
    {
        register_graph_recorder(c10::DeviceType::CPU, [] { return std::make_unique<CountedRecorder>(); });
        CountedRecorder::num_recorded = 0;
        CountedRecorder::num_runs = 0;
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
        return graphs_.run({key, "case", {at::ones({size}), at::Tensor()}, {}},
                           [&](const auto& inputs) { return step(inputs); });
    }

    at::Tensor weight_ = at::ones({1}).requires_grad_();
    StepGraphs graphs_{{weight_}, {}, c10::DeviceType::CPU};
    int num_computed_ = 0;
};

TEST_F(StepGraphsOfSteps, AreRecordedAfterWarmUpsAndRunFromThenOn)
{
    for (int i = 0; i < StepGraphs::kWarmUps; ++i) run(4);
    EXPECT_EQ(graphs_.num_graphs(), 0U);
    EXPECT_EQ(run(4).item<float>(), 4);
    EXPECT_EQ(graphs_.num_graphs(), 1U);
    EXPECT_EQ(CountedRecorder::num_runs, 1);  // what was recorded has not been computed yet
    for (int i = 0; i < StepGraphs::kChecked; ++i) run(4);
    EXPECT_EQ(CountedRecorder::num_runs, StepGraphs::kChecked + 1);
    EXPECT_EQ(graphs_.num_replays(), StepGraphs::kChecked + 1);
    EXPECT_EQ(num_computed_, StepGraphs::kWarmUps + 1 + StepGraphs::kChecked);  // beside the first runs
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
        return graphs_.run({"", "case", {at::ones({3})}, {}}, [&](const auto& inputs) {
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

/// As a search for neighbours that is kept as long as the points are there.
TEST_F(StepGraphsOfSteps, ThatKnowTheirTensorsAreRecordedCaseByCase)
{
    std::set<const c10::TensorImpl*> known;
    const auto run_of = [&](const std::string& subject, const at::Tensor& points) {
        weight_.mutable_grad() = at::Tensor();
        return graphs_.run({"", subject, {points}, {}}, [&](const auto& inputs) {
            if (known.insert(inputs[0].unsafeGetTensorImpl()).second && is_recording()) throw Error("a search waits");
            return step(inputs);
        });
    };
    const auto a = at::ones({3}), b = at::full({3}, 2.0);
    for (int epoch = 0; epoch < 5; ++epoch) {
        EXPECT_EQ(run_of("a", a).item<float>(), 3);
        EXPECT_EQ(run_of("b", b).item<float>(), 6);
    }
    EXPECT_FALSE(graphs_.why_not());
    EXPECT_EQ(graphs_.num_graphs(), 2U);
    EXPECT_GT(graphs_.num_replays(), 2);

    EXPECT_EQ(run_of("a", a.clone()).item<float>(), 3);  // as it is
    EXPECT_EQ(graphs_.why_not(), "a search waits");
}

TEST_F(StepGraphsOfSteps, ThatDependOnMoreThanTheirInputsRunAsTheyAre)
{
    double hidden = 1;
    const auto run_with_hidden = [&] {
        weight_.mutable_grad() = at::Tensor();
        return graphs_.run({"", "case", {at::ones({3})}, {}},
                           [&](const auto& inputs) { return step({inputs[0] * hidden}); });
    };
    for (int i = 0; i <= StepGraphs::kWarmUps; ++i) EXPECT_EQ(run_with_hidden().item<float>(), 3);
    hidden = 2;
    EXPECT_EQ(run_with_hidden().item<float>(), 6);
    EXPECT_EQ(weight_.grad().item<float>(), 6);
    EXPECT_EQ(graphs_.why_not(), "run from a graph a step gave other numbers than the step itself");
    EXPECT_EQ(graphs_.num_replays(), 1);
}

/// Of a recorder that computes while it records, each run adds to what a step writes besides gradients.
TEST_F(StepGraphsOfSteps, WriteToOtherTensorsOnceWhileTheyAreChecked)
{
    const auto sum = at::zeros({1});
    StepGraphs graphs{{weight_}, {sum}, c10::DeviceType::CPU};
    register_graph_recorder(c10::DeviceType::CPU, [&] {
        struct Adding : CountedRecorder {
            explicit Adding(at::Tensor sum) : sum(std::move(sum)), before(this->sum.clone()) {}
            void end() override { sum.copy_(before); }
            void run() override { sum.add_(1); }
            at::Tensor sum, before;
        };
        return std::make_unique<Adding>(sum);
    });
    const auto run_and_add = [&] {
        weight_.mutable_grad() = at::Tensor();
        return graphs.run({"", "case", {at::ones({3})}, {}}, [&](const auto& inputs) {
            sum.add_(1);
            return step(inputs);
        });
    };
    for (int i = 1; i < StepGraphs::kWarmUps + StepGraphs::kChecked + 3; ++i) {
        run_and_add();
        EXPECT_EQ(sum.item<float>(), i);
    }
    EXPECT_GT(graphs.num_replays(), StepGraphs::kChecked);
}

/// What a rank says of its graphs after each step; the same on all.
struct Told {
    std::size_t num_graphs;
    std::int64_t num_replays;
    std::optional<std::string> why_not;
    bool operator==(const Told&) const = default;
};

/// Runs steps on two ranks, whose lengths and failures may differ.
Told on_two_ranks(const std::function<std::int64_t(int rank, int step)>& length,
                  const std::function<void(int rank, int step)>& fail, int num_steps)
{
    std::array<Told, 2> told;
    run_ranks({2}, {"data"}, [&](std::shared_ptr<const DeviceMesh> mesh) {
        const auto rank = mesh->all().rank();
        auto weight = at::ones({1}).requires_grad_();
        StepGraphs graphs{{weight}, {}, c10::DeviceType::CPU, mesh->all()};
        for (int i = 0; i < num_steps; ++i) {
            weight.mutable_grad() = at::Tensor();
            graphs.run({"", "case", {at::ones({length(rank, i)})}, {}}, [&](const auto& inputs) {
                const auto loss = (inputs[0] * weight).sum();
                loss.backward();
                mesh->all().all_reduce(weight.mutable_grad());
                fail(rank, i);
                return loss.detach();
            });
        }
        told[rank] = {graphs.num_graphs(), graphs.num_replays(), graphs.why_not()};
    });
    EXPECT_EQ(told[0], told[1]);
    return told[0];
}

TEST_F(StepGraphsOfSteps, OfSeveralRanksAreRecordedTogether)
{
    const auto nothing = [](int, int) {};
    const auto same = on_two_ranks([](int rank, int) { return 3 + rank; }, nothing, 8);
    EXPECT_EQ(same.num_graphs, 1U);
    EXPECT_EQ(same.num_replays, 8 - StepGraphs::kWarmUps);
    // The second rank's change while the first one's do not.
    const auto changing = on_two_ranks([](int rank, int step) { return rank == 0 ? 3 : 3 + step; }, nothing, 8);
    EXPECT_EQ(changing.num_graphs, 0U);
}

TEST_F(StepGraphsOfSteps, OfSeveralRanksRunAsTheyAreWhereOneCannotBeRecorded)
{
    const auto told = on_two_ranks([](int, int) { return 3; },
                                   [](int rank, int) {
                                       if (rank == 1 && is_recording()) throw Error("it draws");
                                   },
                                   8);
    EXPECT_EQ(told.why_not, "rank 1: it draws");
    EXPECT_EQ(told.num_replays, 0);
}

}  // namespace
}  // namespace meshard
