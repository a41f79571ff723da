// SPDX-License-Identifier: Apache-2.0
#include "tests/apps/program_test.h"
#include "tests/support/sample_meshes.h"

namespace meshard {
namespace {

class Check : public ProgramTest {
protected:
    /// Shards of a 4 x 4 x 4 cube in three parts.
    std::string make_shards() const
    {
        EXPECT_EQ(meshard({"partition", write("cube.vtu", cube(4)), "-n", "3", "-o", path("shards")}).exit_code, 0);
        return path("shards");
    }
};

TEST_F(Check, SaysOfEachPromiseThatItHolds)
{
    const ProgramResult result = meshard({"check", make_shards()});

    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(std::ranges::count(result.out, '\n'), 9);
    EXPECT_EQ(result.out.find("FAIL"), std::string::npos);
    EXPECT_NE(result.out.find("OK    every cell and every point of the source is owned by exactly one part\n"),
              std::string::npos);
}

TEST_F(Check, FindsOneChangedByte)
{
    const std::string shards = make_shards();
    const std::string piece = shards + "/pieces/mesh_0001.vtu";
    std::string content = content_of(piece);
    content[content.size() - 200] = static_cast<char>(content[content.size() - 200] ^ 1);
    std::ofstream(piece, std::ios::binary) << content;

    const ProgramResult result = meshard({"check", shards});

    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.out.find("FAIL  every piece"), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("mesh_0001.vtu has the hash"), std::string::npos) << result.out;
}

TEST_F(Check, FindsAMissingPiece)
{
    const std::string shards = make_shards();
    std::filesystem::remove(shards + "/pieces/mesh_0002.vtu");

    const ProgramResult result = meshard({"check", shards, "--json"});

    EXPECT_EQ(result.exit_code, 1);
    auto report = nlohmann::json::parse(result.out);
    EXPECT_EQ(report["ok"], false);
    EXPECT_EQ(report["checks"][0]["ok"], true);
    EXPECT_EQ(report["checks"][2]["ok"], false);
    EXPECT_EQ(report["checks"][3]["tested"], false);
}

TEST_F(Check, FindsADamagedManifest)
{
    const std::string shards = make_shards();
    std::ofstream(shards + "/manifest.json") << "{ \"format\"";

    EXPECT_EQ(meshard({"check", shards}).exit_code, 1);
}

TEST_F(Check, RefusesWhatIsNoShardsFolder)
{
    std::filesystem::create_directory(path("folder"));

    EXPECT_TRUE(fails_with(meshard({"check", path("folder")}), 3, {"meshard check: ", "manifest.json"}));
    EXPECT_TRUE(fails_with(meshard({"check", path("none")}), 3, {"none"}));
    EXPECT_TRUE(fails_with(meshard({"check", write_text("file", "")}), 3, {"file"}));
}

}  // namespace
}  // namespace meshard
