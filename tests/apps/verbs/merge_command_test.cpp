// SPDX-License-Identifier: Apache-2.0
#include "tests/apps/program_test.h"
#include "tests/support/sample_meshes.h"

namespace meshard {
namespace {

class Merge : public ProgramTest {
protected:
    std::string make_shards(const std::string& source) const
    {
        EXPECT_EQ(meshard({"partition", source, "-n", "3", "-o", path("shards")}).exit_code, 0);
        return path("shards");
    }
};

TEST_F(Merge, GivesBackTheSource)
{
    const std::string source = write("mixed.vtu", mixed_cells());

    const ProgramResult result = meshard({"merge", make_shards(source), "-o", path("back.vtu"), "--verify", source});

    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("bit for bit"), std::string::npos);
    EXPECT_EQ(difference(read_mesh(path("back.vtu")), read_mesh(source)), "");
}

TEST_F(Merge, KeepsSurfacesSurfaces)
{
    const std::string source = write("sphere.vtp", sphere(8));

    ASSERT_EQ(meshard({"merge", make_shards(source), "-o", path("back.vtp")}).exit_code, 0);

    EXPECT_EQ(difference(read_mesh(path("back.vtp")), read_mesh(source)), "");
}

TEST_F(Merge, NamesTheFirstDifferenceAndWritesNothing)
{
    const std::string source = write("cube.vtu", cube(4));
    const std::string shards = make_shards(source);
    Mesh other = cube(4);
    other.cell_data[0].mutable_values<std::int32_t>()[17] += 1;
    write("cube.vtu", other);

    const ProgramResult result = meshard({"merge", shards, "-o", path("back.vtu"), "--verify", source});

    EXPECT_TRUE(fails_with(result, 1, {"meshard merge: ", "'patch'", "is not the file that was cut"}));
    EXPECT_EQ(entries(), (std::vector<std::string>{"cube.vtu", "shards"}));
}

TEST_F(Merge, RefusesImpossibleArguments)
{
    const std::string source = write("cube.vtu", cube(3));
    const std::string shards = make_shards(source);

    EXPECT_TRUE(fails_with(meshard({"merge", shards}), 2, {"-o", "--verify"}));
    EXPECT_TRUE(fails_with(meshard({"merge", shards, "-o", path("back.vtp")}), 2, {"back.vtp", ".vtu"}));
    EXPECT_TRUE(fails_with(meshard({"merge", shards, "-o", path("back.stl")}), 2, {"back.stl", ".vtu"}));
    EXPECT_TRUE(fails_with(meshard({"merge", shards, "--verify", path("none.vtu")}), 3, {"none.vtu"}));
    EXPECT_TRUE(fails_with(meshard({"merge", source, "-o", path("back.vtu")}), 3, {"cube.vtu"}));
    EXPECT_EQ(entries(), (std::vector<std::string>{"cube.vtu", "shards"}));
}

TEST_F(Merge, LeavesNothingWhenTheDiskIsFull)
{
    const std::string shards = make_shards(write("cube.vtu", cube(12)));

    const ProgramResult result = meshard({"merge", shards, "-o", path("back.vtu")}, full_disk());

    EXPECT_TRUE(fails_with(result, 3, {"back.vtu"}));
    EXPECT_EQ(entries(), (std::vector<std::string>{"cube.vtu", "shards"}));
}

TEST_F(Merge, SaysWhichPieceIsDamaged)
{
    const std::string shards = make_shards(write("cube.vtu", cube(4)));
    const std::string piece = shards + "/pieces/mesh_0001.vtu";
    std::filesystem::resize_file(piece, std::filesystem::file_size(piece) / 2);

    EXPECT_TRUE(fails_with(meshard({"merge", shards, "-o", path("back.vtu")}), 3, {"mesh_0001.vtu"}));
}

}  // namespace
}  // namespace meshard
