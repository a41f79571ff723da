// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/gpu_rates.h"
#include "apps/plan/step_plan.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"

#include <gtest/gtest.h>

namespace meshard {
namespace {

GpuRates eight_a_host(GpuPrecision precision = GpuPrecision::BFloat16)
{
    return {find_gpu("h100"), precision, find_link("nvlink"), find_link("ib"), 8};
}

PlannedModel model()
{
    return planned_model("transolver", {{"n_hidden", 256}, {"n_layers", 8}, {"n_head", 8}, {"slice_num", 64}, {"mlp_ratio", 2}}, {});
}

TEST(GpuRates, GiveALargeProductFourFifthsOfThePublishedRate)
{
    Operation product;
    product.kind = Operation::Kind::Product;
    product.rows = product.columns = product.inner = 8192;
    product.bytes = 3 * 2.0 * 8192 * 8192;
    // Measured on an H100: 798 TFLOP/s.
    EXPECT_NEAR(product.flop() / eight_a_host().seconds(product) / 798e12, 1, 0.02);
    EXPECT_NEAR(product.flop() / eight_a_host(GpuPrecision::Float32).seconds(product) / 67e12, 0.8, 0.01);
}

TEST(GpuRates, GiveACopyNineTenthsOfTheMemory)
{
    Operation copy;
    copy.bytes = 2e9;
    // Measured on an H100: 3.0 TB/s.
    EXPECT_NEAR(copy.bytes / eight_a_host().seconds(copy) / 3.0e12, 1, 0.02);
}

TEST(GpuRates, SendMessagesInsideAHostAndBeyond)
{
    const StepMessage few{"all_reduce", "", 10, 8}, many{"all_reduce", "", 1, 1 << 30};
    const auto rates = eight_a_host();
    EXPECT_NEAR(rates.seconds(few, 8), 10 * 20e-6, 1e-8);
    EXPECT_NEAR(rates.seconds(few, 16), 10 * 40e-6, 1e-8);
    EXPECT_NEAR(rates.seconds(few, 64), 10 * 60e-6, 1e-8) << "a tree of eight hosts";
    const double bytes = 1 << 30;
    EXPECT_NEAR(rates.seconds(many, 2), 20e-6 + bytes / (0.7 * 450e9), 1e-8);
    EXPECT_NEAR(rates.seconds(many, 16), 40e-6 + 2 * 7.0 / 8 * bytes / (0.7 * 450e9) + bytes / 8 / (0.7 * 50e9), 1e-8) << "eight adapters a host";
}

TEST(GpuRates, NameTheNearest)
{
    EXPECT_TRUE(throws_with<InvalidInput>("Did you mean 'h200'?", [] { find_gpu("h20"); }));
    EXPECT_TRUE(throws_with<InvalidInput>("known are nvlink, pcie, ib, ethernet", [] { find_link("infiniband"); }));
    EXPECT_EQ(find_gpu("H100").name, "h100");
}

TEST(StepPlan, NeedsTheFewestRanksThatFit)
{
    const auto rates = eight_a_host();
    const auto planned = model();
    for (const auto mode : {MemoryMode::Stored, MemoryMode::Recomputed}) {
        PlanRequest request{.points = 140e6, .memory = mode, .ghosts = {}};
        const auto fewest = fewest_ranks(planned, request, rates, 4096);
        ASSERT_TRUE(fewest);
        request.num_ranks = *fewest;
        EXPECT_TRUE(step_plan(planned, request, rates).fits);
        request.num_ranks = *fewest - 1;
        EXPECT_FALSE(step_plan(planned, request, rates).fits);
        EXPECT_FALSE(fewest_ranks(planned, request, rates, *fewest - 1));
    }
}

TEST(StepPlan, LosesToImbalanceFirstAndToLatencyInSmallShards)
{
    const auto rates = eight_a_host();
    const auto planned = model();
    const auto efficiency_of = [&](double points, std::int64_t ranks, double imbalance) {
        return efficiency(planned, step_plan(planned, {.points = points, .num_ranks = ranks, .imbalance = imbalance, .ghosts = {}}, rates), rates);
    };
    EXPECT_NEAR(efficiency_of(8e6, 8, 1.03), 1 / 1.03, 0.02);
    EXPECT_GT(efficiency_of(8e6, 8, 1), 0.98);
    EXPECT_LT(efficiency_of(100e3, 8, 1), 0.9);
    EXPECT_DOUBLE_EQ(efficiency_of(1e6, 1, 1.03), 1) << "one rank has no shards that could differ";
}

TEST(StepPlan, HasMessagesOfTheSameSizeForAnyNumberOfPoints)
{
    const auto rates = eight_a_host();
    const auto small = step_plan(model(), {.points = 1e5, .num_ranks = 4, .ghosts = {}}, rates),
               large = step_plan(model(), {.points = 1e8, .num_ranks = 4, .ghosts = {}}, rates);
    EXPECT_EQ(small.work.message_bytes(), large.work.message_bytes());
    // One all-reduce a layer each way of 4 (C + H) M and 4 C M bytes, gradients of 14.7 MiB in messages of at
    // most 4, which no parameter is cut for, the loss.
    EXPECT_EQ(large.work.num_messages(), 8 + 8 + 5 + 1);
    std::int64_t parameters = 0;
    for (const auto size : model().parameters) parameters += size;
    EXPECT_EQ(large.work.message_bytes(), 8 * 4 * (256 + 8) * 64 + 8 * 4 * 256 * 64 + 4 * parameters + 16);
}

TEST(StepPlan, OfGraphsSendsMoreGhostsInVolumesThanOnSurfaces)
{
    const auto rates = eight_a_host();
    const auto graph = planned_model("meshgraphnet", nlohmann::json::object(), {});
    const auto volume = step_plan(graph, {.points = 8e6, .num_ranks = 8, .ghosts = {}}, rates),
               surface = step_plan(graph, {.points = 8e6, .num_ranks = 8, .on_surface = true, .ghosts = {}}, rates);
    EXPECT_GT(volume.work.message_bytes(), 3 * surface.work.message_bytes());
    EXPECT_GT(volume.seconds, surface.seconds);
}

}  // namespace
}  // namespace meshard
