// SPDX-License-Identifier: Apache-2.0
// The operators on tensors of a GPU, or of the stand-in, against the same call on the CPU, and against themselves: same
// bits every time.
#include "ops/fused/fused_block.h"
#include "ops/fused/scaled_slices.h"
#include "ops/neighbors/ball_query.h"
#include "ops/neighbors/neighbors.h"
#include "ops/rows/row_gather.h"
#include "ops/rows/row_moves.h"
#include "ops/rows/segment_reduce.h"
#include "ops/slices/token_attention.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/random_block.h"
#include "tests/support/test_device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

namespace meshard {
namespace {

class GpuOperators : public ::testing::Test {
protected:
    void SetUp() override
    {
        if (device_of_tests().is_cpu() || !has_device_of_tests())
            GTEST_SKIP() << "MESHARD_TEST_DEVICE names no device that this process sees";
        at::manual_seed(11);
    }
};

/// A copy there, a leaf.
at::Tensor on(const at::Device& device, const at::Tensor& tensor)
{
    return tensor.detach().to(device).clone().set_requires_grad(tensor.requires_grad());
}

/// Values and gradients of `apply(x)` on both devices, and twice on the GPU.
template <class Apply>
void expect_same_on_gpu(const at::Tensor& x, double tolerance, const Apply& apply)
{
    const auto run = [&](const at::Device& device) {
        const auto input = on(device, x);
        const auto result = apply(input);
        const auto weights =
            at::arange(result.numel(), at::kDouble).sin().to(result.scalar_type()).view(result.sizes()).to(device);
        (result * weights).sum().backward();
        return std::pair(result.detach().cpu(), input.grad().cpu());
    };
    const auto expected = run(at::kCPU), found = run(device_of_tests()), again = run(device_of_tests());
    EXPECT_TRUE(tensors_near(found.first, expected.first, tolerance));
    EXPECT_TRUE(tensors_near(found.second, expected.second, tolerance));
    EXPECT_TRUE(at::equal(found.first, again.first));
    EXPECT_TRUE(at::equal(found.second, again.second));
}

TEST_F(GpuOperators, RowsAreGatheredPlacedAndAdded)
{
    const auto index = at::randint(0, 300, {5000}, at::kLong), places = at::randperm(5000, at::kLong).add(17);
    for (const auto type : {at::kFloat, at::kDouble}) {
        const auto rows = at::randn({300, 3, 5}, type).requires_grad_(),
                   values = at::randn({5000, 7}, type).requires_grad_();
        expect_same_on_gpu(rows, 1e-6, [&](const at::Tensor& x) { return take_rows(x, index); });
        expect_same_on_gpu(values, 1e-6, [&](const at::Tensor& x) { return scatter_rows(x, index, 300); });
        expect_same_on_gpu(values, 0, [&](const at::Tensor& x) { return scatter_distinct_rows(x, places, 6000); });
        expect_same_on_gpu(rows, 1e-6, [&](const at::Tensor& x) { return gather_rows(x, index.to(x.device())); });
        const auto target = at::randn({300, 7}, type);
        expect_same_on_gpu(values, 1e-6, [&](const at::Tensor& x) {
            return scatter_add(target.to(x.device()), index.to(x.device()), x);
        });
    }
    const auto whole = at::arange(900).view({300, 3});
    EXPECT_TRUE(at::equal(take_rows(whole.to(device_of_tests()), index).cpu(), whole.index_select(0, index)));
    EXPECT_TRUE(at::equal(take_rows(whole.to(at::kByte).to(device_of_tests()), index).cpu(),
                          whole.to(at::kByte).index_select(0, index)));
}

TEST_F(GpuOperators, SegmentsOfEveryKind)
{
    const auto offsets = at::cat({at::zeros({1}, at::kLong), at::randint(0, 12, {700}, at::kLong).cumsum(0)});
    const auto values =
        at::randn({offsets[-1].item<std::int64_t>(), 6}, at::kDouble).mul(4).round().requires_grad_();  // ties
    for (const auto kind :
         {SegmentReduction::Sum, SegmentReduction::Mean, SegmentReduction::Max, SegmentReduction::Min}) {
        expect_same_on_gpu(values, 1e-14, [&](const at::Tensor& x) { return segment_reduce(x, offsets, kind).values; });
        const auto here = segment_reduce(values, offsets, kind).arguments;
        if (!here.defined()) continue;
        EXPECT_TRUE(at::equal(
            segment_reduce(values.to(device_of_tests()), offsets.to(device_of_tests()), kind).arguments.cpu(), here));
    }
    expect_same_on_gpu(values, 1e-13, [&](const at::Tensor& x) { return segment_softmax(x, offsets); });
}

void expect_same_neighbors(const Neighbors& found, const Neighbors& expected)
{
    EXPECT_EQ(found.ids.device().type(), device_of_tests().type());
    EXPECT_TRUE(at::equal(found.offsets.cpu(), expected.offsets));
    EXPECT_TRUE(at::equal(found.ids.cpu(), expected.ids));
    EXPECT_TRUE(at::equal(found.rows.cpu(), expected.rows));
    EXPECT_TRUE(at::equal(found.distances.cpu(), expected.distances));
}

TEST_F(GpuOperators, SearchesFindTheSameNeighbors)
{
    for (const auto type : {at::kFloat, at::kDouble}) {
        for (const std::int64_t dimensions : {1, 2, 3}) {
            const auto points = at::rand({20000, dimensions}, type).pow(2),
                       queries = at::rand({3000, dimensions}, type);
            const auto points_there = points.to(device_of_tests()), queries_there = queries.to(device_of_tests());
            const std::vector<double> period(dimensions, 1.0);
            for (const auto& options :
                 {NeighborOptions{}, NeighborOptions{.exclude_self = true}, NeighborOptions{.period = period}}) {
                for (const std::int64_t k : {1, 16, 300})
                    expect_same_neighbors(knn(points_there, queries_there, k, options),
                                          knn(points, queries, k, options));
                const std::vector<RadiusLimit> limits{{0.01, kAllNeighbors}, {0.05, 8}};
                const auto found = radius_search(points_there, queries_there, limits, options),
                           expected = radius_search(points, queries, limits, options);
                for (std::size_t l = 0; l < limits.size(); ++l) expect_same_neighbors(found[l], expected[l]);
            }
        }
    }
    const auto points = at::rand({5000, 3}), queries = at::rand({500, 3});
    const NeighborOptions grid{.order = NeighborOrder::Grid};
    expect_same_neighbors(radius_search(points.to(device_of_tests()), queries.to(device_of_tests()), 0.1, 8, grid),
                          radius_search(points, queries, 0.1, 8, grid));
}

TEST_F(GpuOperators, FeaturesOfNeighborsHaveGradients)
{
    const auto points = at::rand({2000, 3}, at::kDouble), features = at::randn({2000, 4}, at::kDouble).requires_grad_();
    expect_same_on_gpu(features, 1e-13, [&](const at::Tensor& x) {
        return gather_neighbors(x, knn(points.to(x.device()), points.to(x.device()), 9));
    });
    expect_same_on_gpu(points.clone().requires_grad_(), 1e-12,
                       [&](const at::Tensor& x) { return knn(x, x, 9, {.exclude_self = true}).distances; });
    expect_same_on_gpu(points.unsqueeze(0).clone().requires_grad_(), 1e-12, [&](const at::Tensor& x) {
        return ball_query(x, x.detach(), {{0.1, 6}}, NeighborOrder::Grid).front();
    });
}

/// Sizes whose matrices need more and less shared memory than a kernel may have without asking, and too many slices
/// for the kernel.
TEST_F(GpuOperators, TokenAttention)
{
    for (const auto& [slices, dim] : {std::pair<std::int64_t, std::int64_t>{64, 32}, {7, 24}, {96, 32}, {130, 8}}) {
        const auto weight = at::randn({3 * dim, dim}) / 4;
        expect_same_on_gpu(at::randn({2, 3, slices, dim}).requires_grad_(), 2e-5, [&](const at::Tensor& tokens) {
            return token_attention(tokens, weight.to(tokens.device()));
        });
        expect_same_on_gpu(weight.requires_grad_(), 2e-5, [&](const at::Tensor& leaf) {
            at::manual_seed(2);
            return token_attention(at::randn({2, 3, slices, dim}).to(leaf.device()), leaf);
        });
    }
}

/// Temperatures below, within, above and at the bounds, whose gradients pass only within and at them.
TEST_F(GpuOperators, SlicesByTemperature)
{
    const auto temperature = at::tensor({0.3F, 0.5F, 1.7F, 5.0F, 6.0F}), weight = at::randn({37, 11}),
               bias = at::randn({37});
    const auto both = [](const Affine<at::Tensor>& of) { return at::cat({of.weight, of.bias.unsqueeze(-1)}, -1); };
    const auto there = [](const at::Tensor& tensor, const at::Tensor& like) { return tensor.to(like.device()); };
    expect_same_on_gpu(temperature.view({1, 1, 5, 1}).requires_grad_(), 2e-6, [&](const at::Tensor& leaf) {
        return both(slices_by_temperature({there(weight, leaf), there(bias, leaf)}, leaf, 0.5, 5));
    });
    expect_same_on_gpu(weight.clone().requires_grad_(), 2e-6, [&](const at::Tensor& leaf) {
        return both(slices_by_temperature({leaf, there(bias, leaf)}, there(temperature, leaf), 0.5, 5));
    });
    expect_same_on_gpu(bias.clone().requires_grad_(), 2e-6, [&](const at::Tensor& leaf) {
        return both(slices_by_temperature({there(weight, leaf), leaf}, there(temperature, leaf), 0.5, 5));
    });
}

TEST_F(GpuOperators, FusedBlock)
{
    auto block = random_block({.channels = 32, .heads = 4, .head_dim = 8, .slices = 16, .hidden = 64, .outputs = 3},
                              at::kFloat, 0.3);
    block.attend = [](const at::Tensor& tokens, const std::vector<at::Tensor>&) { return tokens.tanh(); };
    for (const bool keep : {true, false}) {
        expect_same_on_gpu(at::randn({2, 5000, 32}).requires_grad_(), 1e-4, [&](const at::Tensor& x) {
            auto there = block;
            there.weights = block.weights.map(
                [&](const at::Tensor& weight) { return weight.defined() ? weight.detach().to(x.device()) : weight; });
            return fused_block(x, there, {.keep_activations = keep, .tile_points = 3000});
        });
    }
}

}  // namespace
}  // namespace meshard
