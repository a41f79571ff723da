// SPDX-License-Identifier: Apache-2.0
#include "tests/apps/program_test.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/test_paths.h"

#include <regex>

namespace meshard {
namespace {

using CommandLine = ProgramTest;

const std::vector<std::string> verbs{"info",   "partition", "repartition", "check",  "merge", "interpolate",
                                     "derive", "train",     "predict",     "forces", "render"};
const std::vector<std::string> mesh_verbs{"info", "partition", "repartition", "check", "merge", "forces", "render"};

TEST_F(CommandLine, HelpNamesEveryVerb)
{
    const ProgramResult result = meshard({"--help"});

    EXPECT_EQ(result.exit_code, 0);
    for (const std::string& verb : verbs) EXPECT_NE(result.out.find("\n  " + verb + " "), std::string::npos) << verb;
    EXPECT_EQ(meshard({"-h"}).out, result.out);
    EXPECT_EQ(meshard({"help"}).out, result.out);
}

TEST_F(CommandLine, EveryVerbExplainsItself)
{
    for (const std::string& verb : mesh_verbs) {
        const ProgramResult result = meshard({verb, "--help"});

        EXPECT_EQ(result.exit_code, 0) << verb;
        EXPECT_NE(result.out.find("Usage: meshard " + verb + " "), std::string::npos) << result.out;
        EXPECT_TRUE(result.err.empty()) << result.err;
    }
}

TEST_F(CommandLine, EveryOptionOfTheHelpIsInTheDocumentation)
{
    const std::string documentation = content_of(source_path("docs/commands.md"));
    ASSERT_FALSE(documentation.empty());
    for (const std::string& verb : mesh_verbs) {
        const auto begin = documentation.find("\n## meshard " + verb);
        ASSERT_NE(begin, std::string::npos) << verb;
        const std::string chapter = documentation.substr(begin, documentation.find("\n## ", begin + 1) - begin);
        const std::string help = meshard({verb, "--help"}).out;
        const std::regex option("--[a-z-]+");
        for (auto it = std::sregex_iterator(help.begin(), help.end(), option); it != std::sregex_iterator(); ++it) {
            EXPECT_NE((chapter + "`--help").find("`" + it->str()), std::string::npos) << verb << ' ' << it->str();
        }
    }
}

TEST_F(CommandLine, VersionNamesTheLibraries)
{
    const ProgramResult result = meshard({"--version"});

    EXPECT_EQ(result.exit_code, 0);
    EXPECT_TRUE(std::regex_search(result.out, std::regex("^meshard [0-9]+\\.[0-9]+\\.[0-9]+\n"))) << result.out;
    EXPECT_TRUE(std::regex_search(result.out, std::regex("METIS [0-9]+\\.[0-9]+\\.[0-9]+\n"))) << result.out;
    EXPECT_TRUE(std::regex_search(result.out, std::regex("VTK [0-9]+\\.[0-9]+\\.[0-9]+\n"))) << result.out;
}

TEST_F(CommandLine, SaysWhichVerbsThisBuildLacks)
{
    if (meshard({"--version"}).out.find("LibTorch") != std::string::npos) GTEST_SKIP() << "this build has LibTorch";

    EXPECT_TRUE(fails_with(meshard({"train", "car.yaml"}), 2, {"meshard train: ", "no LibTorch"}));
    EXPECT_TRUE(fails_with(meshard({"predict", "--help"}), 2, {"meshard predict: ", "no LibTorch"}));
}

TEST_F(CommandLine, AsksForAVerb)
{
    EXPECT_TRUE(fails_with(meshard({}), 2, {"the verb is missing"}));
}

TEST_F(CommandLine, SuggestsTheNearestVerb)
{
    EXPECT_TRUE(
        fails_with(meshard({"partiton", "car.vtu"}), 2, {"unknown verb 'partiton'", "Did you mean 'partition'?"}));
    EXPECT_TRUE(fails_with(meshard({"xyzzy"}), 2, {"unknown verb 'xyzzy'", "meshard --help"}));
    EXPECT_TRUE(fails_with(meshard({"serve", "runs/car"}), 2, {"python3 -m meshard.serve RUN"}));
}

TEST_F(CommandLine, SuggestsTheNearestOptionBeforeItMissesOne)
{
    const ProgramResult result = meshard({"partition", "car.vtu", "--num-part", "4", "-o", path("shards")});

    EXPECT_TRUE(
        fails_with(result, 2, {"meshard partition: ", "unknown option '--num-part'", "Did you mean '--num-parts'?"}));
}

TEST_F(CommandLine, RefusesWhatNoOptionTakes)
{
    const std::string file = write("strip.vtp", strip(3));

    EXPECT_TRUE(fails_with(meshard({"info", file, "more"}), 2, {"unexpected argument 'more'"}));
    EXPECT_TRUE(fails_with(meshard({"info", file, "-x"}), 2, {"unknown option '-x'", "meshard info --help"}));
}

TEST_F(CommandLine, TakesBracketsForPartsOfNames)
{
    const std::string file = write("strip.vtp", strip(3));

    EXPECT_TRUE(fails_with(meshard({"forces", "[" + file + "]", "--pressure", "p"}), 3, {"[" + file + "]"}));
    EXPECT_TRUE(fails_with(meshard({"info", file, "[more]"}), 2, {"unexpected argument '[more]'"}));
}

TEST_F(CommandLine, SaysWhichArgumentIsMissing)
{
    EXPECT_TRUE(fails_with(meshard({"info"}), 2, {"meshard info: ", "file"}));
    EXPECT_TRUE(fails_with(meshard({"partition", "car.vtu", "-o", path("shards")}), 2, {"--num-parts"}));
}

TEST_F(CommandLine, RefusesAnOptionThatIsNoNumber)
{
    EXPECT_TRUE(fails_with(meshard({"partition", "car.vtu", "-n", "four", "-o", path("shards")}), 2, {"four"}));
}

TEST_F(CommandLine, SaysWhenStandardOutputIsFull)
{
    const std::string file = write("strip.vtp", strip(3));
    ProgramOptions options;
    options.stdout_to = "/dev/full";

    EXPECT_TRUE(fails_with(meshard({"info", file}, options), 3, {"standard output"}));
}

}  // namespace
}  // namespace meshard
