// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/file_lock.h"
#include "partition/error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

namespace meshard {
namespace {

TEST(FileLock, IsHeldByOneAtATime)
{
    const TemporaryFolder folder;

    auto first = FileLock::try_acquire(folder / "lock");
    ASSERT_TRUE(first);
    EXPECT_FALSE(FileLock::try_acquire(folder / "lock"));
    EXPECT_TRUE(FileLock::try_acquire(folder / "other"));

    first.reset();
    EXPECT_TRUE(FileLock::try_acquire(folder / "lock"));
}

TEST(FileLock, OfAFolderLeavesNothingInIt)
{
    const TemporaryFolder folder;
    std::filesystem::create_directory(folder / "run");

    const auto lock = FileLock::try_acquire(folder / "run");

    ASSERT_TRUE(lock);
    EXPECT_FALSE(FileLock::try_acquire(folder / "run"));
    EXPECT_TRUE(std::filesystem::is_empty(folder / "run"));
}

TEST(FileLock, EndsWithItsHolder)
{
    const TemporaryFolder folder;
    std::array<int, 2> ready{};
    ASSERT_EQ(pipe(ready.data()), 0);
    const pid_t holder = fork();
    if (holder == 0) {
        const auto lock = FileLock::try_acquire(folder / "lock");
        const char has_it = lock ? 'y' : 'n';
        (void)!write(ready[1], &has_it, 1);
        pause();
        _exit(0);
    }
    char has_it = 0;
    ASSERT_EQ(read(ready[0], &has_it, 1), 1);
    ASSERT_EQ(has_it, 'y');
    EXPECT_FALSE(FileLock::try_acquire(folder / "lock"));

    kill(holder, SIGKILL);
    waitpid(holder, nullptr, 0);

    EXPECT_TRUE(FileLock::try_acquire(folder / "lock"));
}

TEST(FileLock, NeedsAFolder)
{
    const TemporaryFolder folder;

    EXPECT_THROW(FileLock::try_acquire(folder / "absent" / "lock"), IoError);
}

}  // namespace
}  // namespace meshard
