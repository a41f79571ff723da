// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/serialize.h>

#include <sstream>

namespace meshard {
namespace {

at::Tensor rows_of(const at::Tensor& whole, const Extents& extents, std::int64_t rank, std::int64_t dim)
{
    std::int64_t offset = 0;
    for (std::int64_t r = 0; r < rank; ++r) offset += extents[r];
    return whole.narrow(dim, offset, extents[rank]).clone();
}

at::Tensor counting(c10::IntArrayRef shape)
{
    return at::arange(c10::multiply_integers(shape), at::kDouble).view(shape);
}

TEST(ShardTensor, ShowsTheWholesShape)
{
    run_ranks(3, [](const auto& mesh) {
        const auto whole = counting({7, 2});
        const Extents extents{4, 0, 3};

        const auto x = from_local(rows_of(whole, extents, mesh->coordinate(0), 0), mesh, {Shard(0)});

        EXPECT_TRUE(is_sharded(x));
        EXPECT_EQ(x.sizes(), whole.sizes());
        EXPECT_EQ(x.scalar_type(), at::kDouble);
        EXPECT_EQ(*spec_of(x)->axes[0].extents, extents);
        EXPECT_TRUE(at::equal(full_tensor(x), whole));
        EXPECT_THROW(x.data_ptr(), std::exception);
    });
}

TEST(ShardTensor, CutsAnyDimensionCountedFromEitherEnd)
{
    run_ranks(2, [](const auto& mesh) {
        const auto whole = counting({2, 5, 3});
        for (const std::int64_t dim : {0, 1, 2, -1, -2}) {
            const auto front = dim < 0 ? dim + 3 : dim;
            const Extents extents = mesh->size(0) == 2 ? Extents{1, whole.size(front) - 1} : Extents{};
            const auto x = from_local(rows_of(whole, extents, mesh->coordinate(0), front), mesh, {Shard(dim)});

            EXPECT_TRUE(at::equal(full_tensor(x), whole)) << "dim " << dim;
        }
    });
}

TEST(ShardTensor, PassesGradientsThroughEveryConversion)
{
    run_ranks(3, [](const auto& mesh) {
        const auto whole = counting({6, 2});
        const Extents extents{1, 5, 0};
        const auto rank = mesh->coordinate(0);
        auto local = rows_of(whole, extents, rank, 0).requires_grad_();
        const auto factors = counting({6, 2}).add(1);

        const auto x = from_local(local, mesh, {Shard(0)});
        (full_tensor(x * 2) * factors).sum().backward();  // every rank computes the same loss from the whole

        EXPECT_TRUE(tensors_near(local.grad(), rows_of(factors * 2, extents, rank, 0), 0));
    });
}

TEST(ShardTensor, KeepsTheInputsLayoutInItsGradient)
{
    run_ranks(2, [](const auto& mesh) {
        auto x = from_local(at::ones({mesh->coordinate(0) + 1, 2}, at::kDouble), mesh, {Shard(0)}).requires_grad_();

        (x * x).sum().backward();

        ASSERT_TRUE(is_sharded(x.grad()));
        EXPECT_TRUE(*spec_of(x.grad()) == *spec_of(x));
        EXPECT_TRUE(tensors_near(full_tensor(x.grad()), at::full({3, 2}, 2.0, at::kDouble), 0));
    });
}

/// Gradients that a functional call, a retaining tensor and the leaf see, with a hook that doubles one of them; and how
/// often hooks ran.
struct HookedRun {
    at::Tensor functional, retained, leaf;
    std::vector<int> calls{0, 0};

    explicit HookedRun(const at::Tensor& values)
    {
        const auto x = values.detach().requires_grad_();
        const auto y = x * 3;
        y.retain_grad();
        x.register_hook([&](const at::Tensor& gradient) {
            ++calls[0];
            EXPECT_EQ(gradient.sizes(), x.sizes());
        });
        y.register_hook([&](const at::Tensor& gradient) {
            ++calls[1];
            return gradient * 2;
        });
        const auto loss = y.square().sum();
        functional = torch::autograd::grad({loss}, {y}, {}, /*retain_graph=*/true)[0];
        loss.backward();
        retained = y.grad();
        leaf = x.grad();
    }
};

TEST(ShardTensor, CallsHooksAsOftenAndGivesTheGradientsOfPlainTensors)
{
    const HookedRun expected(at::ones({3, 2}, at::kDouble));
    run_ranks(3, [&](const auto& mesh) {
        const HookedRun found(from_local(at::ones({mesh->coordinate(0), 2}, at::kDouble), mesh, {Shard(0)}));
        EXPECT_EQ(found.calls, expected.calls);
        EXPECT_TRUE(tensors_near(full_tensor(found.functional), expected.functional, 0));
        EXPECT_TRUE(tensors_near(full_tensor(found.retained), expected.retained, 0));
        EXPECT_TRUE(tensors_near(full_tensor(found.leaf), expected.leaf, 0));
    });
}

TEST(ShardTensor, RefusesLocalRowsThatDoNotFit)
{
    run_ranks(2, [](const auto& mesh) {
        auto axes = std::vector<AxisLayout>{{Shard(0), std::make_shared<Extents>(Extents{3, 4}), 1}};
        try {
            from_local(at::ones({5, 2}), make_spec(mesh, axes));
            ADD_FAILURE() << "accepted five rows";
        } catch (const InvalidInput& error) {
            const auto expected = std::to_string(3 + mesh->coordinate(0));
            EXPECT_NE(std::string(error.what()).find("has 5 entries, the layout says " + expected), std::string::npos)
                << error.what();
        }
    });
}

TEST(ShardTensor, RefusesRanksThatDisagreeBesideTheCut)
{
    run_ranks(2, [](const auto& mesh) {
        EXPECT_THROW(from_local(at::ones({2, 3 + mesh->coordinate(0)}), mesh, {Shard(0)}), InvalidInput);
        EXPECT_TRUE(throws_with<InvalidInput>(
            "different placements", [&] { from_local(at::ones({4, 4}), mesh, {Shard(mesh->coordinate(0))}); }));
        EXPECT_TRUE(
            throws_with<InvalidInput>("meta tensor", [&] { from_local(at::ones({4}, at::kMeta), mesh, {Shard(0)}); }));
    });
}

TEST(ShardTensor, PlainTensorsMeetItAsThePolicySays)
{
    run_ranks(2, [](const auto& mesh) {
        const auto x = from_local(at::ones({2, 3}), mesh, {Shard(0)});
        const auto plain = at::ones({3});

        EXPECT_TRUE(is_sharded(x + plain));
        set_plain_tensor_policy(PlainTensorPolicy::Refuse);
        EXPECT_THROW(x + plain, InvalidInput);
        EXPECT_TRUE(is_sharded(x + 1));  // a number is no tensor
        set_plain_tensor_policy(PlainTensorPolicy::Silent);
    });
}

TEST(ShardTensor, ShowsAPendingSumAsOneNumber)
{
    run_ranks(3, [](const auto& mesh) {
        const auto x = from_local(at::full({mesh->coordinate(0), 2}, 1.5, at::kDouble), mesh, {Shard(0)});

        const auto total = x.sum();

        EXPECT_TRUE(spec_of(total)->axes[0].is_partial());
        EXPECT_EQ(total.template item<double>(), 3 * 2 * 1.5);
        EXPECT_TRUE(spec_of(total)->axes[0].is_replicate()) << "what was reduced once must not be reduced again";
    });
}

TEST(ShardTensor, HasNoMemoryOfTheWholeToRead)
{
    run_ranks(2, [](const auto& mesh) {
        const auto x = from_local(at::ones({3, 2}), mesh, {Shard(0)});
        EXPECT_TRUE(throws_with<c10::Error>("use to_local or full_tensor", [&] { x.const_data_ptr(); }));
        EXPECT_TRUE(throws_with<c10::Error>("use to_local or full_tensor", [&] { (x * 2).data_ptr(); }));
    });
}

TEST(ShardTensor, AnswersQuestionsAboutItsStorageWithoutALook)
{
    run_ranks(2, [](const auto& mesh) {
        const auto x = from_local(at::ones({3, 2}), mesh, {Shard(0)});
        for (const auto& tensor : {x, x * 2}) {
            EXPECT_EQ(tensor.storage().data_ptr().get(), nullptr);  // as LibTorch asks whether processes share it
            EXPECT_EQ(tensor.storage().nbytes(), 0u);
            EXPECT_THROW(tensor.data_ptr(), c10::Error);
        }
    });
}

TEST(ShardTensor, IsRefusedByTorchSave)
{
    run_ranks(2, [](const auto& mesh) {
        const auto x = from_local(at::ones({3, 2}), mesh, {Shard(0)});
        for (const auto& tensor : {x, x * 2}) {
            std::ostringstream file;
            EXPECT_ANY_THROW(torch::save(tensor, file)) << "a file without the numbers";
        }
    });
}

TEST(ShardTensor, FollowsAutocast)
{
    run_ranks(2, [](const auto& mesh) {
        const auto whole = at::arange(40).to(at::kFloat).view({10, 4});
        const auto layout = AxisLayout{Shard(0), std::make_shared<Extents>(Extents{7, 3}), 1};
        const auto x =
            from_local(narrow_to_shard(whole, layout, mesh->coordinate(0)).clone(), make_spec(mesh, {layout}));
        at::autocast::set_autocast_enabled(at::kCPU, true);
        const auto dtype = at::autocast::get_autocast_dtype(at::kCPU);
        at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);

        const auto product = at::matmul(x.t(), x), expected = at::matmul(whole.t(), whole);
        const auto loss = at::mse_loss(product, product * 0), expected_loss = at::mse_loss(expected, expected * 0);

        at::autocast::set_autocast_dtype(at::kCPU, dtype);
        at::autocast::set_autocast_enabled(at::kCPU, false);
        at::autocast::clear_cache();
        EXPECT_EQ(product.scalar_type(), at::kBFloat16);
        EXPECT_EQ(expected.scalar_type(), at::kBFloat16);
        EXPECT_EQ(loss.scalar_type(), expected_loss.scalar_type());
        EXPECT_TRUE(tensors_near(full_tensor(product), expected, 1e-2));
    });
}

TEST(ShardTensor, KeepsGradientsApartThatShareMemory)
{
    // The same gradient reaches both summands, one of them through a view; adding to it in place for one would spoil
    // the other.
    run_ranks(2, [](const auto& mesh) {
        const auto whole = at::arange(12, at::kDouble).view({6, 2});
        const auto run = [](at::Tensor x) {
            x.requires_grad_();
            auto y = x * 1;
            for (int i = 0; i < 3; ++i) y = y + at::tanh(y).view({6, 1, 2}).view({6, 2}) + y.view({6, 2});
            (y * y).sum().backward();
            return x.grad();
        };
        const auto gradient = run(from_local(whole.narrow(0, 3 * mesh->coordinate(0), 3).clone(), mesh, {Shard(0)}));

        EXPECT_TRUE(tensors_near(full_tensor(gradient), run(whole.clone()), 1e-14));
    });
}

TEST(ShardSpec, ComesFromTheOwnedRowsOfAnIndexMap)
{
    run_ranks(2, [](const auto& mesh) {
        auto map = std::make_shared<IndexMap>();
        map->num_global = 5;
        map->global_ids =
            mesh->coordinate(0) == 0 ? std::vector<std::int64_t>{1, 3} : std::vector<std::int64_t>{0, 2, 4};
        map->num_owned = map->num_local();

        const auto spec = shard_spec(map, mesh, 1);

        EXPECT_EQ(to_string(*spec), "Shard(1) of 2+3 on domain");
        EXPECT_EQ(spec->global_shape({1, map->num_owned, 4}), (std::vector<std::int64_t>{1, 5, 4}));
    });
}

TEST(ShardSpec, RefusesPartsOfDifferentMeshes)
{
    run_ranks(2, [](const auto& mesh) {
        auto map = std::make_shared<IndexMap>();
        map->num_global = 6;
        map->num_owned = 2;
        map->global_ids = {0, 1};
        EXPECT_THROW(shard_spec(map, mesh), InvalidInput);
        map->num_global = 4;  // rows 0 and 1 are owned twice
        EXPECT_TRUE(throws_with<InvalidInput>("not each of the rows 0 to 3 once", [&] { shard_spec(map, mesh); }));
        if (mesh->coordinate(0) == 1) map->global_ids = {3, 2};
        EXPECT_TRUE(throws_with<InvalidInput>("rank 1 has no ids", [&] { shard_spec(map, mesh); }));
    });
}

TEST(ShardSpec, RefusesExtentsThatAreNotOneARank)
{
    run_ranks(2, [](const auto& mesh) {
        const auto layout = [](Extents extents, std::int64_t blocks = 1) {
            return AxisLayout{Shard(0), std::make_shared<Extents>(std::move(extents)), blocks};
        };
        const auto local = at::ones({5, 2});
        EXPECT_TRUE(throws_with<InvalidInput>("Shard(0) on axis 'domain' has 1 extents, expected 2",
                                              [&] { make_spec(mesh, {layout({5})}); }));
        EXPECT_TRUE(
            throws_with<InvalidInput>("has 3 extents, expected 2", [&] { make_spec(mesh, {layout({5, 5, 5})}); }));
        EXPECT_TRUE(
            throws_with<InvalidInput>("has the extent -1 on rank 1", [&] { make_spec(mesh, {layout({5, -1})}); }));
        EXPECT_TRUE(
            throws_with<InvalidInput>("has no extents", [&] { make_spec(mesh, {AxisLayout{Shard(0), nullptr, 1}}); }));
        EXPECT_TRUE(throws_with<InvalidInput>("has 0 blocks", [&] { make_spec(mesh, {layout({5, 5}, 0)}); }));
        EXPECT_TRUE(throws_with<InvalidInput>("2 layouts for a device mesh of 1 axes",
                                              [&] { make_spec(mesh, {layout({5, 5}), {}}); }));

        // One that was put together by hand.
        const auto by_hand = std::make_shared<ShardSpec>(*make_spec(mesh, {layout({5, 5})}));
        by_hand->axes[0].extents = std::make_shared<Extents>(Extents{5});
        EXPECT_TRUE(throws_with<InvalidInput>("has 1 extents, expected 2", [&] { from_local(local, by_hand); }));
        const auto x = from_local(local, make_spec(mesh, {layout({5, 5})}));
        EXPECT_TRUE(throws_with<InvalidInput>("has 1 extents, expected 2", [&] { redistribute(x, by_hand); }));
        EXPECT_TRUE(
            throws_with<InvalidInput>("must add up", [&] { redistribute(x, make_spec(mesh, {layout({4, 5})})); }));
    });
}

TEST(ShardSpec, RefusesTwoAxesThatCutOneDimension)
{
    run_ranks({2, 2}, {"data", "domain"}, [](const auto& mesh) {
        const auto layout = [](std::int64_t dim) {
            return AxisLayout{Shard(dim), std::make_shared<Extents>(Extents{4, 4}), 1};
        };
        EXPECT_TRUE(throws_with<InvalidInput>("Shard(0) on axis 'domain' cuts a dimension that axis 'data' cuts, too",
                                              [&] { make_spec(mesh, {layout(0), layout(0)}); }));
        EXPECT_NO_THROW(make_spec(mesh, {layout(0), layout(1)}));
    });
    run_ranks({1, 1}, {"data", "domain"}, [](const auto& mesh) {
        const AxisLayout whole{Shard(0), std::make_shared<Extents>(Extents{4}), 1};
        EXPECT_EQ(to_local(from_local(at::ones({4}), make_spec(mesh, {whole, whole}))).size(0), 4);
    });
}

TEST(ShardSpec, SplitsEvenlyWithTheLargerExtentsFirst)
{
    EXPECT_EQ(even_extents(7, 3), (Extents{3, 2, 2}));
    EXPECT_EQ(even_extents(2, 3), (Extents{1, 1, 0}));
}

}  // namespace
}  // namespace meshard
