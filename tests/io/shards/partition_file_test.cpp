// SPDX-License-Identifier: Apache-2.0
#include "io/shards/partition_file.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <fstream>

namespace meshard {
namespace {

std::vector<std::int32_t> owners_in(const std::filesystem::path& path)
{
    std::vector<std::int32_t> owners;
    read_partition_file(path, [&](std::int32_t owner) { owners.push_back(owner); });
    return owners;
}

class PartitionFile : public testing::Test {
protected:
    std::filesystem::path write(const std::string& text)
    {
        const auto path = folder_.path() / "file";
        std::ofstream(path) << text;
        return path;
    }

    TemporaryFolder folder_;
};

TEST_F(PartitionFile, ReadsOneNumberALine)
{
    EXPECT_EQ(owners_in(write("0\n2\n1\r\n1\n")), (std::vector<std::int32_t>{0, 2, 1, 1}));
    EXPECT_TRUE(owners_in(write("")).empty());
}

TEST_F(PartitionFile, ReadsOpenFoamsCellDecomposition)
{
    const std::string header =
        "FoamFile\n{\n    version 2.0;\n    format ascii;\n    class labelList;\n}\n// * * //\n\n";

    EXPECT_EQ(owners_in(write(header + "5\n(\n0\n1\n1\n0\n3\n)\n")), (std::vector<std::int32_t>{0, 1, 1, 0, 3}));
    EXPECT_EQ(owners_in(write(header + "3(2 1 0)")), (std::vector<std::int32_t>{2, 1, 0}));
    EXPECT_EQ(owners_in(write(header + "3{2}")), (std::vector<std::int32_t>{2, 2, 2}));
}

TEST_F(PartitionFile, ReadsBinaryCellDecompositions)
{
    const std::string numbers("\2\0\0\0\0\0\0\0\1\0\0\0", 12);
    EXPECT_EQ(owners_in(write(
                  "FoamFile { version 2.0; format binary; arch \"LSB;label=32;scalar=64\"; class labelList; }\n3\n(" +
                  numbers + ")\n")),
              (std::vector<std::int32_t>{2, 0, 1}));
}

TEST_F(PartitionFile, ReadsFilesOfManyBlocks)
{
    std::string text;
    std::vector<std::int32_t> expected;
    for (std::int32_t i = 0; i < 400000; ++i)
        expected.push_back(static_cast<std::int32_t>(std::int64_t{i} * 7919 % 100003));
    for (const auto owner : expected) text += std::to_string(owner) + "\r\n";  // 2.7 MB

    EXPECT_EQ(owners_in(write(text)), expected);
    EXPECT_TRUE(throws_with<IoError>("has 'x' for row 400000;", [&] { owners_in(write(text + "x")); }));
    EXPECT_TRUE(throws_with<IoError>("a million characters", [&] { owners_in(write(std::string(3000000, '0'))); }));
}

TEST_F(PartitionFile, RefusesDamagedFiles)
{
    const auto refused = [&](const std::string& text, const std::string& what) {
        return throws_with<IoError>(what, [&] { owners_in(write(text)); });
    };
    EXPECT_TRUE(refused("0\n1\nx\n", "has 'x' for row 2;"));
    EXPECT_TRUE(refused("0\n1.5\n1\n", "has '1.5' for row 1;"));
    EXPECT_TRUE(refused("0\n-1\n", "expected a part, a whole number from 0"));
    EXPECT_TRUE(refused("FoamFile { format ascii; } 3 ( 1 2 )", "expected a number"));
    EXPECT_TRUE(refused("FoamFile { format ascii; } 3 ( 1 2 3 4 )", "expected ')'"));
    EXPECT_TRUE(refused("FoamFile { format ascii; } 3", "is truncated"));
    EXPECT_TRUE(
        refused("FoamFile { format ascii; } 2 ( 1 -2 )", "has '-2' for row 1; expected a part, a whole number from 0"));
    EXPECT_TRUE(refused("FoamFile { format binary; } 3(12345)", "more than"));
    EXPECT_TRUE(throws_with<IoError>("cannot be opened", [&] { owners_in(folder_.path() / "none"); }));
}

}  // namespace
}  // namespace meshard
