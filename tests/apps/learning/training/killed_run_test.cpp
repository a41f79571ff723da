// SPDX-License-Identifier: Apache-2.0
// A run that is killed, or whose disk is full, leaves no output that looks finished.
#include "partition/error.h"
#include "tests/apps/program_test.h"
#include "tests/support/sample_meshes.h"

#include <chrono>
#include <functional>

namespace meshard {
namespace {

struct Verb {
    const char* name;
    std::vector<std::string> words;  ///< IN, SHARDS and OUT stand for paths
    const char* output;
};

class UnfinishedOutput : public ProgramTest, public testing::WithParamInterface<Verb> {
protected:
    void SetUp() override
    {
        source_ = write("source.vtu", cube(24));
        ASSERT_EQ(meshard({"partition", source_, "-n", "4", "-o", path("shards")}).exit_code, 0);
        for (std::string word : GetParam().words)
            words_.push_back(word == "IN"       ? source_
                             : word == "SHARDS" ? path("shards")
                             : word == "OUT"    ? output()
                                                : word);
    }

    std::string output() const { return path(GetParam().output); }

    bool is_whole() const
    {
        if (std::filesystem::is_directory(output()))
            return meshard({"check", output()}).exit_code == 0 &&
                   meshard({"merge", output(), "--verify", source_}).exit_code == 0;
        try {
            return difference(read_mesh(output()), read_mesh(source_)).empty();
        } catch (const Error&) {
            return false;
        }
    }

    std::string source_;
    std::vector<std::string> words_;
};

TEST_P(UnfinishedOutput, IsNotThereAfterAKill)
{
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(meshard(words_).exit_code, 0);
    const std::chrono::duration<double> whole_run = std::chrono::steady_clock::now() - begin;
    ASSERT_TRUE(is_whole());
    std::filesystem::remove_all(output());

    constexpr int num_trials = 10;
    int num_killed = 0;
    for (int i = 0; i < num_trials; ++i) {
        std::vector<std::string> words{"-s", "KILL", std::to_string(whole_run.count() * (i + 0.5) / num_trials),
                                       program_path()};
        words.insert(words.end(), words_.begin(), words_.end());
        num_killed += run_program("/usr/bin/timeout", words).exit_code != 0;
        if (std::filesystem::exists(output())) {
            EXPECT_TRUE(is_whole()) << "killed after " << words[2] << " s";
        }
        for (const std::string& name : entries())
            if (name != "source.vtu" && name != "shards") std::filesystem::remove_all(path(name));
    }
    EXPECT_GT(num_killed, num_trials / 3);
}

TEST_P(UnfinishedOutput, IsNotThereAfterAFullDisk)
{
    EXPECT_TRUE(fails_with(meshard(words_, full_disk()), 3, {"meshard "}));
    EXPECT_EQ(entries(), (std::vector<std::string>{"shards", "source.vtu"}));
}

INSTANTIATE_TEST_SUITE_P(Of, UnfinishedOutput,
                         testing::Values(Verb{"Partition", {"partition", "IN", "-n", "6", "-o", "OUT"}, "out"},
                                         Verb{"PartitionInWindows",
                                              {"partition", "IN", "-n", "6", "-o", "OUT", "--max-memory", "300M"},
                                              "out"},
                                         Verb{"Repartition", {"repartition", "SHARDS", "-n", "6", "-o", "OUT"}, "out"},
                                         Verb{"Merge", {"merge", "SHARDS", "-o", "OUT"}, "out.vtu"},
                                         Verb{"Convert", {"convert", "IN", "OUT", "--compress", "zlib"}, "out.vtu"},
                                         Verb{"ConvertToVtkHdf", {"convert", "IN", "OUT"}, "out.vtkhdf"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace meshard
