// SPDX-License-Identifier: Apache-2.0
#include "sharding/transport/peer_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace meshard {
namespace {

/// Exit code of a child process that runs `body`.
int in_child(const std::function<int()>& body)
{
    const auto child = fork();
    if (child == 0) _exit(body());
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(PeerMemory, IsWrittenToByAnotherProcess)
{
    const auto memory = PeerMemory::create();
    ASSERT_TRUE(memory);
    const auto first = memory->empty({3, 5}, at::kFloat), second = memory->empty({4000}, at::kLong);
    first.fill_(1);
    second.fill_(2);
    const auto address = memory->address();
    const auto offset = memory->offset_of(second);

    const auto code = in_child([&] {
        const auto view = PeerView::open(address);
        if (!view) return 1;
        std::int64_t there = 0;
        std::memcpy(&there, view->at(offset), sizeof there);
        const std::int64_t number = 77;
        std::memcpy(view->at(offset + 8), &number, sizeof number);
        return there == 2 ? 0 : 2;
    });

    EXPECT_EQ(code, 0);
    EXPECT_EQ(second[0].item<std::int64_t>(), 2);
    EXPECT_EQ(second[1].item<std::int64_t>(), 77);
    EXPECT_TRUE(at::equal(first, at::ones({3, 5})));
}

TEST(PeerMemory, GivesOutWhatWasGivenBackAndNothingTwice)
{
    const auto memory = PeerMemory::create();
    ASSERT_TRUE(memory);
    auto a = memory->empty({5000}, at::kByte), b = memory->empty({5000}, at::kByte),
         c = memory->empty({5000}, at::kByte);
    const auto offset_a = memory->offset_of(a), offset_b = memory->offset_of(b), offset_c = memory->offset_of(c);
    EXPECT_GE(offset_b - offset_a, 5000);
    EXPECT_GE(offset_c - offset_b, 5000);

    const auto view_of_b = b.narrow(0, 10, 5);
    b.reset();
    EXPECT_NE(memory->offset_of(memory->empty({10}, at::kByte)), offset_b) << "a view of it still lives";
    a.reset();
    EXPECT_EQ(memory->offset_of(memory->empty({5000}, at::kByte)), offset_a);
    EXPECT_EQ(memory->offset_of(view_of_b), offset_b + 10);
}

TEST(PeerMemory, JoinsNeighboursThatWereGivenBack)
{
    const auto memory = PeerMemory::create();
    ASSERT_TRUE(memory);
    std::vector<at::Tensor> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(memory->empty({4096}, at::kByte));
    const auto first = memory->offset_of(blocks[0]);
    for (const int i : {1, 0, 2}) blocks[i].reset();

    EXPECT_EQ(memory->offset_of(memory->empty({3 * 4096}, at::kByte)), first);
}

TEST(PeerMemory, OutlivesItsOwnerInItsTensors)
{
    auto memory = PeerMemory::create();
    ASSERT_TRUE(memory);
    const auto tensor = memory->empty({100}, at::kInt);
    memory.reset();

    tensor.fill_(5);

    EXPECT_EQ(tensor.sum().item<std::int64_t>(), 500);
}

TEST(PeerMemory, IsNotMistakenForAnother)
{
    const auto memory = PeerMemory::create();
    ASSERT_TRUE(memory);
    auto address = memory->address();
    ++address[2];
    EXPECT_FALSE(PeerView::open(address)) << "another token";
    EXPECT_FALSE(PeerView::open({memory->address()[0], 0, memory->address()[2]})) << "no file in memory";
    EXPECT_FALSE(PeerView::open({1 << 30, 3, 0})) << "no process";
    EXPECT_EQ(memory->offset_of(at::ones({3})), -1);
}

TEST(PeerMemory, IsDoneWithoutWhereFilesAreLimited)
{
    const auto code = in_child([] {
        const rlimit limit{1 << 20, 1 << 20};
        return setrlimit(RLIMIT_FSIZE, &limit) == 0 && !PeerMemory::create() ? 0 : 1;
    });
    EXPECT_EQ(code, 0);
}

TEST(PeerMemory, HasNoRoomForMoreThanTheMachineHas)
{
    const auto memory = PeerMemory::create();
    ASSERT_TRUE(memory);
    EXPECT_FALSE(memory->empty({std::int64_t{1} << 50}, at::kByte).defined());
    EXPECT_TRUE(memory->empty({1000}, at::kByte).defined());
}

}  // namespace
}  // namespace meshard
