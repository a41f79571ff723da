// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/atomic_file.h"
#include "io/bytes/made_folders.h"
#include "io/checkpoints/safetensors.h"
#include "io/mesh_io.h"
#include "io/shards/subdomain_io.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/error.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <sys/resource.h>

namespace meshard {
namespace {

/// No file may grow beyond so many bytes while it lives: writing fails as on a full disk.
class FullDisk {
public:
    explicit FullDisk(rlim_t max_bytes)
    {
        ::getrlimit(RLIMIT_FSIZE, &before_);
        handler_ = std::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{max_bytes, before_.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    ~FullDisk()
    {
        ::setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }

private:
    rlimit before_{};
    void (*handler_)(int);
};

TEST(AtomicFile, AppearsOnlyWhenCommitted)
{
    const TemporaryFolder folder;
    {
        AtomicFile file(folder / "a.txt");
        file.write("one ");
        EXPECT_FALSE(std::filesystem::exists(folder / "a.txt"));
        file.write("two");
        EXPECT_EQ(file.size(), 7U);
        file.commit();
    }

    EXPECT_EQ(read_bytes(folder / "a.txt"), "one two");
    EXPECT_EQ(folder.size(), 1);
}

TEST(AtomicFile, LeavesNothingWithoutCommit)
{
    const TemporaryFolder folder;
    write_bytes(folder / "a.txt", "old");
    {
        AtomicFile file(folder / "a.txt");
        file.write(std::string(5'000'000, 'x'));
    }

    EXPECT_EQ(read_bytes(folder / "a.txt"), "old");
    EXPECT_EQ(folder.size(), 1);
}

TEST(AtomicFile, KeepsTheOrderOfSmallAndLargeWrites)
{
    const TemporaryFolder folder;
    std::string expected;
    AtomicFile file(folder / "a.txt");
    for (int i = 0; i < 40; ++i) {
        const std::string text(i % 7 == 0 ? 1'500'000 : 100'000 + i, static_cast<char>('a' + i % 26));
        file.write(text);
        expected += text;
    }
    file.commit();

    EXPECT_EQ(read_bytes(folder / "a.txt"), expected);
}

TEST(AtomicFile, PassesOverWhatAKilledProcessOfTheSameNumberLeft)
{
    const TemporaryFolder folder;
    std::string name;
    {
        AtomicFile file(folder / "a.txt");
        name = std::filesystem::directory_iterator(folder.path())->path().string();
    }
    const auto digits = name.rfind('-') + 1;
    for (int i = 1; i <= 3; ++i)
        write_bytes(name.substr(0, digits) + std::to_string(std::stoi(name.substr(digits)) + i), "half");

    write_file_atomically(folder / "a.txt", "whole");

    EXPECT_EQ(read_bytes(folder / "a.txt"), "whole");
    EXPECT_EQ(folder.size(), 4);
}

TEST(AtomicFile, SaysWhyItCannotWrite)
{
    const TemporaryFolder folder;
    EXPECT_TRUE(throws_with<IoError>("there is no folder", [&] { AtomicFile(folder / "no/a.txt"); }));
    EXPECT_TRUE(throws_with<IoError>("is a folder", [&] { AtomicFile{folder.path()}; }));
    EXPECT_TRUE(throws_with<IoError>("cannot create a file in /proc", [&] { AtomicFile("/proc/a.txt"); }));
}

TEST(AtomicFile, TakesTheModeOfTheFileThatItReplacesAndNamesOfAnyLength)
{
    const TemporaryFolder folder;
    const auto path = folder / std::string(250, 'x');
    write_file_atomically(path, "new");
    std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);

    write_file_atomically(path, "private");

    EXPECT_EQ(read_bytes(path), "private");
    EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms(0600));
}

TEST(AtomicFile, WritesWhatALinkLeadsTo)
{
    const TemporaryFolder folder;
    std::filesystem::create_directory(folder / "far");
    std::filesystem::create_symlink("far/a.txt", folder / "near.txt");
    std::filesystem::create_symlink(folder / "near.txt", folder / "link.txt");
    std::filesystem::create_symlink("circle.txt", folder / "circle.txt");

    for (const char* text : {"new", "replaced"}) {
        write_file_atomically(folder / "link.txt", text);

        EXPECT_TRUE(std::filesystem::is_symlink(folder / "link.txt"));
        EXPECT_TRUE(std::filesystem::is_symlink(folder / "near.txt"));
        EXPECT_FALSE(std::filesystem::is_symlink(folder / "far/a.txt"));
        EXPECT_EQ(read_bytes(folder / "far/a.txt"), text);
    }
    EXPECT_TRUE(throws_with<IoError>("in a circle", [&] { AtomicFile(folder / "circle.txt"); }));
    EXPECT_TRUE(throws_with<IoError>("no file but a device", [&] { AtomicFile("/dev/null"); }));
}

TEST(MadeFolders, StayWhereSomethingWasWritten)
{
    const TemporaryFolder folder;
    {
        const MadeFolders made(folder / "a/b/c/file");
        write_bytes(folder / "a/kept.txt", "mine");
        EXPECT_TRUE(std::filesystem::is_directory(folder / "a/b/c"));
    }
    EXPECT_FALSE(std::filesystem::exists(folder / "a/b"));
    EXPECT_EQ(read_bytes(folder / "a/kept.txt"), "mine");
    EXPECT_TRUE(throws_with<IoError>("cannot create the folder", [&] { MadeFolders(folder / "a/kept.txt/file"); }));
    std::filesystem::create_directory(folder / "empty");
    {
        const MadeFolders made(folder / "empty/file");
    }
    EXPECT_TRUE(std::filesystem::exists(folder / "empty"));
}

TEST(AtomicFile, LeavesNothingOnAFullDisk)
{
    const TemporaryFolder folder;
    write_bytes(folder / "kept.txt", "old");
    const Mesh mesh = cube(12);
    const auto subdomains =
        extract_subdomains(mesh, mesh_graph(mesh), partition_with_metis(mesh_graph(mesh), {.num_parts = 2}), 1);
    NamedArrays arrays;
    arrays.arrays.push_back({"zeros", ArrayType::U8, {100'000}, mesh.points.bytes().data(), nullptr});
    arrays.arrays.back().shape = {static_cast<std::int64_t>(mesh.points.bytes().size())};
    {
        const FullDisk full(20'000);
        EXPECT_TRUE(throws_with<IoError>(
            "cannot write", [&] { write_file_atomically(folder / "kept.txt", std::string(50'000, 'x')); }));
        EXPECT_TRUE(throws_with<IoError>("cannot write", [&] { write_mesh(folder / "a.vtu", mesh); }));
        EXPECT_TRUE(throws_with<IoError>(
            "cannot write", [&] { write_mesh(folder / "a.vtu", mesh, {.compression = Compression::Zlib}); }));
        EXPECT_TRUE(throws_with<IoError>("cannot write", [&] { write_safetensors(folder / "a.safetensors", arrays); }));
        EXPECT_TRUE(
            throws_with<IoError>("cannot write", [&] { save_subdomains(folder / "made/shards", subdomains, {}); }));
    }

    EXPECT_EQ(read_bytes(folder / "kept.txt"), "old");
    EXPECT_EQ(folder.size(), 1);
}

}  // namespace
}  // namespace meshard
