// SPDX-License-Identifier: Apache-2.0
// Exact mode on the device of the tests: operators that add with atomics on GPUs give the same bits in every run and on
// any number of ranks, or are refused.
#include "sharding/tensor/exact_mode.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "tests/support/cut_rows.h"
#include "tests/support/expect_error.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"
#include "tests/support/standin/standin.h"
#include "tests/support/test_device.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace meshard {
namespace {

class FixedOrder : public ::testing::Test {
protected:
    void SetUp() override
    {
        if (!has_device_of_tests()) GTEST_SKIP() << "this process sees no device of type " << device_of_tests();
        set(true);
    }
    void TearDown() override { set(false); }

private:
    static void set(bool on)
    {
        set_exact_mode(on);
        if (const auto* standin = loaded_standin()) standin->add_in_any_order(on);
    }
};

/// An operator of a tensor of this shape, with many summands for each number of its gradient.
struct Adding {
    const char* name;
    std::vector<std::int64_t> shape;
    std::function<at::Tensor(const at::Tensor&)> function;
};

/// Few rows, each named by many entries.
at::Tensor rows_for(const at::Tensor& x, std::int64_t count)
{
    return at::arange(count, at::TensorOptions(at::kLong).device(x.device())).mul(7).remainder(5);
}

const std::vector<Adding>& adding_operators()
{
    static const std::vector<std::int64_t> rows{20000, 3}, image{2, 3, 96, 64}, volume{1, 2, 24, 20, 16};
    static const auto weight = [](const at::Tensor& x, std::vector<std::int64_t> shape) {
        Draw draw(2);
        return draw.values(shape, x.scalar_type()).to(x.device());
    };
    static const std::vector<Adding> all{
        {"scatter_add", rows,
         [](auto& x) {
             return at::zeros_like(x).scatter_add(0, rows_for(x, x.size(0)).unsqueeze(1).expand({-1, 3}), x * x);
         }},
        {"index_add", rows, [](auto& x) { return at::zeros_like(x).index_add(0, rows_for(x, x.size(0)), x * x, 2); }},
        {"scatter_reduce", rows,
         [](auto& x) {
             return at::zeros_like(x).scatter_reduce(0, rows_for(x, x.size(0)).unsqueeze(1).expand({-1, 3}), x * x,
                                                     "sum");
         }},
        {"gather", rows, [](auto& x) { return at::gather(x, 0, rows_for(x, 20000).unsqueeze(1).expand({-1, 3})); }},
        {"index_select", rows, [](auto& x) { return at::index_select(x, 0, rows_for(x, 20000)); }},
        {"index", rows, [](auto& x) { return at::index(x, {rows_for(x, 20000)}); }},
        {"embedding", rows, [](auto& x) { return at::embedding(x, rows_for(x, 20000)); }},
        {"max_pool2d", image, [](auto& x) { return at::max_pool2d(x, {7, 7}, {2, 2}); }},
        {"max_pool3d", volume, [](auto& x) { return at::max_pool3d(x, {5, 5, 5}, {1, 1, 1}); }},
        {"avg_pool2d", image, [](auto& x) { return at::avg_pool2d(x, {7, 7}, {2, 2}); }},
        {"avg_pool3d", volume, [](auto& x) { return at::avg_pool3d(x, {5, 5, 5}, {1, 1, 1}, {2, 2, 2}, true, false); }},
        {"avg_pool3d with a divisor", volume,
         [](auto& x) { return at::avg_pool3d(x, {5, 4, 3}, {2, 1, 1}, {2, 1, 1}, false, true, 7); }},
        {"adaptive_max_pool2d", image, [](auto& x) { return std::get<0>(at::adaptive_max_pool2d(x, {50, 40})); }},
        {"adaptive_max_pool3d", volume, [](auto& x) { return std::get<0>(at::adaptive_max_pool3d(x, {11, 13, 9})); }},
        {"adaptive_avg_pool2d", image, [](auto& x) { return at::adaptive_avg_pool2d(x, {50, 40}); }},
        {"adaptive_avg_pool3d", volume, [](auto& x) { return at::adaptive_avg_pool3d(x, {11, 13, 9}); }},
        {"reflection_pad2d", image, [](auto& x) { return at::reflection_pad2d(x, {40, 30, 20, 10}); }},
        {"reflection_pad3d", volume, [](auto& x) { return at::reflection_pad3d(x, {3, 2, 4, 5, 6, 7}); }},
        {"replication_pad2d", image, [](auto& x) { return at::replication_pad2d(x, {40, 30, 20, 10}); }},
        {"replication_pad3d", volume, [](auto& x) { return at::replication_pad3d(x, {3, 2, 4, 5, 6, 7}); }},
        {"nearest", image, [](auto& x) { return at::upsample_nearest2d(x, {300, 200}); }},
        {"linear", {2, 3, 500}, [](auto& x) { return at::upsample_linear1d(x, {3000}, false); }},
        {"bilinear", image, [](auto& x) { return at::upsample_bilinear2d(x, {300, 200}, false); }},
        {"bilinear with aligned corners", image, [](auto& x) { return at::upsample_bilinear2d(x, {300, 200}, true); }},
        {"bicubic", image, [](auto& x) { return at::upsample_bicubic2d(x, {300, 200}, false); }},
        {"antialiased", image, [](auto& x) { return at::_upsample_bilinear2d_aa(x, {30, 200}, false); }},
        {"trilinear", volume, [](auto& x) { return at::upsample_trilinear3d(x, {50, 70, 40}, false); }},
        {"conv2d", image, [](auto& x) { return at::conv2d(x, weight(x, {8, 3, 5, 5}), {}, 2, 2); }},
        {"conv3d", volume, [](auto& x) { return at::conv3d(x, weight(x, {4, 2, 3, 3, 3}), {}, 1, 1); }},
        {"conv_transpose2d", image, [](auto& x) { return at::conv_transpose2d(x, weight(x, {3, 4, 5, 5}), {}, 2); }},
    };
    return all;
}

/// Output and gradient, on the CPU.
Tensors results_of(const Adding& adding, const std::shared_ptr<const DeviceMesh>& mesh)
{
    Draw draw(1);
    const auto whole = draw.values(adding.shape, at::kFloat).to(device_of_tests());
    const auto dim = adding.shape.size() == 2 ? 0 : 2, ranks = static_cast<int>(mesh->num_ranks());
    const AxisLayout cut{Shard(dim), std::make_shared<Extents>(even_extents(whole.size(dim), ranks)), 1};
    const auto x =
        from_local(narrow_to_shard(whole, cut, mesh->coordinate(0)).clone(), make_spec(mesh, {cut})).requires_grad_();
    const auto y = adding.function(x);
    (y * y).sum().backward();
    return {full_tensor(y).detach().cpu(), full_tensor(x.grad()).cpu()};
}

TEST_F(FixedOrder, GivesTheSameBitsInEveryRunAndOnAnyNumberOfRanks)
{
    for (const auto& adding : adding_operators()) {
        Tensors first;
        for (const int num_ranks : {1, 1, 1, 2, 3}) {
            Tensors found;
            run_ranks(num_ranks, [&](const auto& mesh) {
                set_gather_policy(GatherPolicy::Silent);
                const auto own = results_of(adding, mesh);
                if (mesh->all().rank() == 0) found = own;
            });
            if (first.empty()) first = found;
            ASSERT_EQ(found.size(), 2U);
            for (int i = 0; i < 2; ++i)
                EXPECT_TRUE(at::equal(found[i], first[i]))
                    << adding.name << (i == 0 ? ", output, " : ", gradient, ") << num_ranks;
        }
    }
}

/// Against LibTorch's own, in double precision on the CPU.
TEST_F(FixedOrder, GivesTheGradientsOfThePlainOperators)
{
    for (const auto& adding : adding_operators()) {
        Draw draw(1);
        const auto x = draw.values(adding.shape, at::kFloat).to(at::kDouble).requires_grad_();
        const auto y = adding.function(x);
        (y * y).sum().backward();
        run_ranks(2, [&](const auto& mesh) {
            set_gather_policy(GatherPolicy::Silent);
            const auto found = results_of(adding, mesh);
            const at::Tensor error = (found[1].to(at::kDouble) - x.grad()).abs().max() / x.grad().abs().max();
            // Of 4,000 summands, and of some hundreds (Higham 2002, 4.2).
            EXPECT_LT(error.item<double>(), adding.shape.size() == 2 ? 4.8e-4 : 2e-5) << adding.name;
        });
    }
}

TEST_F(FixedOrder, LeavesTheSettingsOfTheProgramAsTheyWere)
{
    auto& context = at::globalContext();
    for (const bool on : {false, true}) {
        context.setDeterministicAlgorithms(on, false);
        run_ranks(2, [&](const auto& mesh) { results_of(adding_operators()[0], mesh); });
        EXPECT_EQ(context.deterministicAlgorithms(), on);
        EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly());
    }
    context.setDeterministicAlgorithms(false, false);
}

TEST_F(FixedOrder, RefusesByNameWhatHasNone)
{
    if (device_of_tests().is_cpu()) GTEST_SKIP() << "CPUs add in one order";
    run_ranks(2, [](const auto& mesh) {
        Draw draw(3);
        const auto image = from_local(draw.values({1, 2, 6, 5}, at::kFloat).to(device_of_tests()), mesh, {Replicate()});
        const auto places = cut_rows(draw.values({1, 4, 9, 2}, at::kFloat).to(device_of_tests()), {6, 3}, mesh);
        const auto gradient =
            cut_rows(draw.values({1, 2, 9, 4}, at::kFloat).to(device_of_tests()), {6, 3}, mesh).transpose(2, 3);
        const auto backward = [&] { at::grid_sampler_2d_backward(gradient, image, places, 0, 0, false, {true, true}); };

        EXPECT_TRUE(throws_with<MissingShardRule>("aten::grid_sampler_2d_backward", backward));
        EXPECT_TRUE(throws_with<MissingShardRule>("adds in any order", backward));
        mesh->all().barrier();
        set_exact_mode(false);
        EXPECT_NO_THROW(backward());
    });
}

}  // namespace
}  // namespace meshard
