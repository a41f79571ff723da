// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>

#include <random>

namespace meshard {
namespace {

/// A random cut of n rows among ranks, zeros included.
Extents random_extents(std::int64_t n, std::int64_t ranks, std::mt19937& random)
{
    Extents extents(ranks, 0);
    for (std::int64_t i = 0; i < n; ++i) ++extents[random() % ranks];
    return extents;
}

AxisLayout random_layout(c10::IntArrayRef shape, std::int64_t ranks, std::mt19937& random)
{
    const auto kind = random() % (shape.size() + 1);
    if (kind == shape.size()) return {};
    const auto dim = static_cast<std::int64_t>(kind);
    std::int64_t blocks = 1;
    if (shape[dim] % 2 == 0 && random() % 2) blocks = 2;
    return {Shard(dim), std::make_shared<Extents>(random_extents(shape[dim] / blocks, ranks, random)), blocks};
}

at::Tensor local_part(const at::Tensor& whole, const AxisLayout& layout, std::int64_t rank)
{
    return layout.is_shard() ? narrow_to_shard(whole, layout, rank).clone() : whole.clone();
}

TEST(Redistribute, ReachesAnyLayoutFromAnyOther)
{
    for (const int ranks : {1, 2, 3, 5}) {
        run_ranks(ranks, [&](const auto& mesh) {
            for (unsigned seed = 0; seed < 60; ++seed) {
                std::mt19937 random(seed);  // the same draws on every rank
                const std::vector<std::int64_t> shape{4, 1 + static_cast<std::int64_t>(random() % 6), 6};
                const auto whole = at::arange(c10::multiply_integers(shape), at::kDouble).view(shape);
                const auto from = random_layout(shape, ranks, random), to = random_layout(shape, ranks, random);
                const auto rank = mesh->coordinate(0);

                const auto x = from_local(local_part(whole, from, rank), make_spec(mesh, {from}));
                const auto y = redistribute(x, make_spec(mesh, {to}));

                EXPECT_EQ(y.sizes(), whole.sizes());
                EXPECT_TRUE(at::equal(to_local(y), local_part(whole, to, rank)))
                    << "seed " << seed << ": " << to_string(*spec_of(x)) << " to " << to_string(*spec_of(y)) << " of "
                    << whole.sizes();
            }
        });
    }
}

TEST(Redistribute, MovesTwoAxesOfAGrid)
{
    run_ranks({2, 2}, {"data", "domain"}, [](const auto& mesh) {
        const auto whole = at::arange(24, at::kDouble).view({4, 6});
        const auto replicated = from_local(whole, replicated_spec(mesh));

        const auto grid = redistribute(replicated, {Shard(0), Shard(1)});
        const auto swapped = redistribute(grid, {Shard(1), Shard(0)});

        EXPECT_EQ(to_local(grid).sizes(), (std::vector<std::int64_t>{2, 3}));
        EXPECT_TRUE(at::equal(full_tensor(grid), whole));
        EXPECT_TRUE(at::equal(full_tensor(swapped), whole));
        EXPECT_TRUE(at::equal(to_local(swapped),
                              whole.narrow(1, 3 * mesh->coordinate(0), 3).narrow(0, 2 * mesh->coordinate(1), 2)));
    });
}

TEST(Redistribute, SendsNoMoreThanWhatChangesRank)
{
    run_ranks(2, [](const auto& mesh) {
        const auto from = AxisLayout{Shard(0), std::make_shared<Extents>(Extents{6, 4}), 1};
        const auto to = AxisLayout{Shard(0), std::make_shared<Extents>(Extents{5, 5}), 1};
        const auto x =
            from_local(at::ones({(*from.extents)[mesh->coordinate(0)], 3}, at::kFloat), make_spec(mesh, {from}));
        mesh->counter().reset();

        redistribute(x, make_spec(mesh, {to}));

        ASSERT_EQ(mesh->counter().num_calls(), 1);
        EXPECT_EQ(mesh->counter().total_bytes(), mesh->coordinate(0) == 1 ? 1 * 3 * 4 : 0)
            << "one row moves from rank 0 to rank 1";
    });
}

TEST(Redistribute, ReducesPendingSumsThatMeetInOneMessage)
{
    run_ranks(3, [](const auto& mesh) {
        const auto x = from_local(at::ones({4, 2}, at::kDouble), mesh, {Shard(0)});
        const auto a = x.sum(), b = x.sum(0);
        mesh->counter().reset();

        reduce_partials({a, b, a});

        EXPECT_EQ(mesh->counter().num_calls(), 1);
        EXPECT_EQ(mesh->counter().total_bytes(), 3 * 8);
        EXPECT_EQ(to_local(a).template item<double>(), 24);
        EXPECT_TRUE(at::equal(to_local(b), at::full({2}, 12.0, at::kDouble)));
    });
}

TEST(Redistribute, RefusesToMakeAPendingSum)
{
    const auto mesh = DeviceMesh::single();
    EXPECT_THROW(redistribute(from_local(at::ones({2}), mesh, {Replicate()}), {Partial()}), InvalidInput);
}

}  // namespace
}  // namespace meshard
