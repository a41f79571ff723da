// SPDX-License-Identifier: Apache-2.0
#include "sharding/memory/tensor_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace meshard {
namespace {

constexpr std::int64_t kMegabyte = 1 << 20;

at::Tensor megabytes(std::int64_t count)
{
    return at::empty({count * kMegabyte}, at::kByte);
}

TEST(TensorMemory, OfFreedTensorsServesTheNextOfTheirSize)
{
    keep_tensor_memory();
    const auto before = tensor_memory();
    auto tensor = megabytes(8);
    const auto* place = tensor.const_data_ptr();
    EXPECT_EQ(tensor_memory().in_use - before.in_use, 8 * kMegabyte);

    tensor = at::Tensor();

    EXPECT_EQ(tensor_memory().in_use, before.in_use);
    EXPECT_GE(tensor_memory().kept, 8 * kMegabyte);
    EXPECT_EQ(megabytes(8).const_data_ptr(), place);
}

TEST(TensorMemory, NeverHoldsMuchMoreThanWasInUseAtOneTime)
{
    keep_tensor_memory();
    std::vector<at::Tensor> held;
    for (const std::int64_t size : {3, 17, 5, 29, 11, 2, 40, 7, 23}) {
        for (int i = 0; i < 3; ++i) held.push_back(megabytes(size + i));
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(held.size()) / 2);
        const auto now = tensor_memory();
        EXPECT_LE(now.in_use + now.kept, now.peak + now.peak / 8);
    }
    for (auto& tensor : held) tensor.fill_(1);  // every block is whole and nobody else's
    for (std::size_t i = 0; i < held.size(); ++i) {
        EXPECT_EQ(held[i].sum().item<std::int64_t>(), held[i].numel()) << i;
        held[i].fill_(2);
    }
}

TEST(TensorMemory, SmallTensorsStayWithTheCLibrary)
{
    keep_tensor_memory();
    const auto before = tensor_memory();

    const auto small = at::ones({1000}, at::kByte), grown = at::cat({small, small});
    auto resized = at::ones({10}, at::kByte);
    resized.resize_({4 * kMegabyte});
    resized.resize_({20 * kMegabyte});

    EXPECT_EQ(grown.sum().item<std::int64_t>(), 2000);
    EXPECT_EQ(resized.narrow(0, 0, 10).sum().item<std::int64_t>(), 10);
    EXPECT_EQ(tensor_memory().in_use - before.in_use, 20 * kMegabyte);
}

}  // namespace
}  // namespace meshard
