// SPDX-License-Identifier: Apache-2.0
#include "tests/apps/program_test.h"
#include "tests/support/sample_meshes.h"

namespace meshard {
namespace {

using Render = ProgramTest;

/// Width and height that the PNG file's header says.
std::pair<int, int> size_of_picture(const std::string& content)
{
    const auto number = [&](std::size_t at) {
        int value = 0;
        for (std::size_t i = at; i < at + 4; ++i) value = 256 * value + static_cast<unsigned char>(content.at(i));
        return value;
    };
    return {number(16), number(20)};
}

TEST_F(Render, DrawsAField)
{
    const ProgramResult result =
        meshard({"render", write("sphere.vtp", sphere(12)), "-o", path("a.png"), "--color-by", "velocity",
                 "--component", "y", "--range", "-1,0.5", "--view", "side", "--size", "320x200"});

    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string picture = content_of(path("a.png"));
    EXPECT_TRUE(picture.starts_with("\x89PNG\r\n"));
    EXPECT_EQ(size_of_picture(picture), std::pair(320, 200));
}

TEST_F(Render, DrawsThePartsOfShards)
{
    for (const auto& [name, mesh] :
         {NamedMesh{"sphere.vtp", sphere(12)}, NamedMesh{"cloud.vtp", random_cloud(100, 1)}}) {
        const std::string shards = path(name + ".shards");
        ASSERT_EQ(meshard({"partition", write(name, mesh), "-n", "4", "-o", shards}).exit_code, 0);

        const ProgramResult result =
            meshard({"render", shards, "-o", path(name + ".png"), "--color-by", "PartitionId"});

        EXPECT_EQ(result.exit_code, 0) << result.err;
        EXPECT_TRUE(content_of(path(name + ".png")).starts_with("\x89PNG\r\n"));
    }
}

TEST_F(Render, SuggestsTheNearestField)
{
    const ProgramResult result =
        meshard({"render", write("sphere.vtp", sphere(12)), "-o", path("a.png"), "--color-by", "presure"});

    EXPECT_TRUE(fails_with(result, 3, {"presure", "Did you mean 'pressure'?"}));
    EXPECT_EQ(entries(), std::vector<std::string>{"sphere.vtp"});
}

TEST_F(Render, RefusesImpossibleOptions)
{
    const std::string file = write("strip.vtp", strip(4));
    const auto run = [&](std::vector<std::string> options) {
        options.insert(options.begin(), {"render", file, "-o", path("a.png")});
        return meshard(options);
    };

    EXPECT_TRUE(fails_with(run({"--size", "wide"}), 2, {"--size is 'wide'", "1280x800"}));
    EXPECT_TRUE(fails_with(run({"--size", "100x1"}), 2, {"--size is '100x1'"}));
    EXPECT_TRUE(fails_with(run({"--range", "1"}), 2, {"--range is '1'"}));
    EXPECT_TRUE(fails_with(run({"--range", "1,1"}), 2, {"--range is '1,1'"}));
    EXPECT_TRUE(fails_with(run({"--view", "back"}), 2, {"back", "iso"}));
    EXPECT_TRUE(fails_with(meshard({"render", file, "-o", path("a.jpg")}), 2, {"a.jpg", ".png"}));
    EXPECT_TRUE(fails_with(meshard({"render", path("none.vtp"), "-o", path("a.png")}), 3, {"none.vtp"}));
    EXPECT_EQ(entries(), std::vector<std::string>{"strip.vtp"});
}

}  // namespace
}  // namespace meshard
