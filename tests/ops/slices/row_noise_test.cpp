// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/row_numbers.h"
#include "ops/slices/row_noise.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace meshard {
namespace {

TEST(RowNoise, IsUniformAndNewInEveryDraw)
{
    RowNoise noise(7);
    const auto like = torch::zeros({2, 500, 4, 25}, torch::kDouble);

    const auto first = noise.draw(like), second = noise.draw(like);

    EXPECT_FALSE(torch::equal(first, second));
    EXPECT_NEAR(first.mean().item<double>(), 0.5, 0.005);
    EXPECT_NEAR(first.var().item<double>(), 1.0 / 12, 0.002);
    EXPECT_GE(first.min().item<double>(), 0);
    EXPECT_LT(first.max().item<double>(), 1);
    EXPECT_NEAR(((first - 0.5) * (second - 0.5)).mean().item<double>(), 0, 0.002);
    EXPECT_NEAR(((first.narrow(1, 0, 499) - 0.5) * (first.narrow(1, 1, 499) - 0.5)).mean().item<double>(), 0,
                0.002);  // neighbouring rows
    EXPECT_TRUE(torch::equal(RowNoise(7).draw(like), first));
    EXPECT_FALSE(torch::equal(RowNoise(8).draw(like), first));
}

TEST(RowNoise, BelongsToTheRowWhereverItLies)
{
    constexpr std::int64_t kRows = 20;
    const auto whole = RowNoise(3).draw(torch::zeros({2, kRows, 3}));
    for (const int num_ranks : {1, 2, 3, 5}) {
        run_ranks(num_ranks, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
            std::vector<std::int64_t> ids;
            for (std::int64_t i = 0; i < kRows; ++i) {
                if (i * i % 7 % num_ranks == device_mesh->all().rank()) ids.push_back(i);
            }
            const auto map =
                std::make_shared<const IndexMap>(IndexMap{kRows, static_cast<std::int32_t>(ids.size()), ids, {}});
            const auto points = from_local(torch::zeros({2, static_cast<std::int64_t>(ids.size()), 3}),
                                           shard_spec(map, device_mesh, 1));
            RowNoise noise(3);
            const auto constants = torch::ones_like(points);  // lie as the points do, and know no ids
            noise.set_rows({torch::Tensor(),
                            from_local(to_local(constants), make_spec(device_mesh, spec_of(points)->axes)), points});

            const auto drawn = noise.draw(torch::relu(points + 1));  // operators may have lost the ids

            EXPECT_TRUE(torch::equal(to_local(drawn), whole.index_select(1, torch::tensor(ids, torch::kLong))));
        });
    }
}

TEST(RowNoise, IsThatOfTheWholeWhereColumnsOfAGridAreCut)
{
    const auto whole = RowNoise(3).draw(torch::zeros({2, 4 * 6, 3}));
    for (const auto& extents : {Extents{4, 2}, Extents{3, 0, 3}}) {
        run_ranks(static_cast<int>(extents.size()), [&](std::shared_ptr<const DeviceMesh> device_mesh) {
            const AxisLayout columns{Shard(2), std::make_shared<const Extents>(extents), 1};
            const auto grid = from_local(torch::zeros({2, 4, extents[device_mesh->coordinate(0)], 3}),
                                         make_spec(device_mesh, {columns}));
            RowNoise noise(3);
            EXPECT_TRUE(torch::equal(full_tensor(noise.draw(grid.flatten(1, 2))), whole));
        });
    }
}

TEST(RowNoise, KernelsOfDevicesDrawTheSameNumbers)
{
    const std::vector<std::int64_t> ids{7, 1, 123456789012, 4, 4};
    RowNoise noise(11);
    const auto whole = noise.draw(torch::zeros({3, 1000, 2, 3}));
    std::vector<float> by_place(3 * 1000 * 6), by_id(2 * 5 * 6);
    const auto key = mixed_key(11, 1);

    draw_numbers(HostExecutor(), RowNumbers{key, nullptr, 0, 0}, 3, 1000, 6, by_place.data());
    draw_numbers(HostExecutor(), RowNumbers{key, ids.data(), 0, 1}, 2, 5, 6, by_id.data());

    EXPECT_TRUE(torch::equal(torch::tensor(by_place).view_as(whole), whole));
    const auto rows = torch::tensor(by_id).view({2, 5, 2, 3});
    for (const auto i : {0, 1, 3, 4})
        EXPECT_TRUE(torch::equal(rows.select(1, i), whole.narrow(0, 1, 2).select(1, ids[i])));
    EXPECT_FALSE(torch::equal(rows.select(1, 2), rows.select(1, 3)));
}

TEST(RowNoise, IsTheSameInPartsAndForSamplesOnRanksOfTheirOwn)
{
    const auto whole = RowNoise(5).draw(torch::zeros({4, 9, 2, 3}, torch::kDouble));
    RowNoise noise(5);
    const auto draw = noise.next_draw(torch::zeros({4, 9, 8}));
    auto part = torch::zeros({6, 4}, torch::kDouble);  // numbers of a row beneath each other

    draw.fill(2, 3, 4, 6, {.row = 1, .number = 4}, part.data_ptr<double>());

    EXPECT_TRUE(torch::equal(part.t(), whole[2].narrow(0, 3, 4).reshape({4, 6})));
    run_ranks(3, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
        const Extents extents{1, 0, 3};
        const auto layout = AxisLayout{Shard(0), std::make_shared<Extents>(extents), 1};
        const auto rank = device_mesh->all().rank();
        RowNoise own(5);
        const auto drawn = own.draw(
            from_local(torch::zeros({extents[rank], 9, 2, 3}, torch::kDouble), make_spec(device_mesh, {layout})));
        EXPECT_TRUE(torch::equal(to_local(drawn), whole.narrow(0, layout.offset(rank), extents[rank])));
    });
}

}  // namespace
}  // namespace meshard
