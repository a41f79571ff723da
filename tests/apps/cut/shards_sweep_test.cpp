// SPDX-License-Identifier: Apache-2.0
// Real meshes in many parts with many ghost layers. The environment variable MESHARD_FULL_SWEEP=1 takes every file.
#include "tests/apps/program_test.h"
#include "tests/support/test_paths.h"

#include <cstdlib>

namespace meshard {
namespace {

const std::filesystem::path data = source_path("../shared/data");

std::vector<std::string> files()
{
    const char* const full = std::getenv("MESHARD_FULL_SWEEP");
    std::vector<std::string> files;
    const auto take = [&](const std::filesystem::path& folder) {
        if (!std::filesystem::exists(data / folder)) return;
        for (const auto& entry : std::filesystem::directory_iterator(data / folder)) {
            const std::string name = entry.path().filename().string();
            const bool is_mesh = name.ends_with(".vtu") || name.ends_with(".vtp");
            const bool is_sample =
                name == "boundary_001.vtp" || name == "volume_001.vtu" || name == "boundary_motorbike.vtp";
            if (is_mesh && (is_sample || (full && std::string(full) == "1"))) files.push_back((folder / name).string());
        }
    };
    for (const char* folder : {"ahmed_mini", "ahmed_mini/volumes", "motorbike"}) take(folder);
    std::ranges::sort(files);
    return files;
}

class ShardsSweep : public ProgramTest, public testing::WithParamInterface<std::string> {};

TEST_P(ShardsSweep, PassesItsCheckAndMergesBack)
{
    const std::string source = (data / GetParam()).string();
    for (const int num_parts : {1, 2, 4, 7, 64}) {
        for (const int layers : {0, 1, 2}) {
            const std::string label = std::to_string(num_parts) + " parts, " + std::to_string(layers) + " layers";
            const std::string shards = path(label);

            auto report = meshard_json({"partition", source, "-n", std::to_string(num_parts), "-o", shards,
                                        "--ghost-layers", std::to_string(layers)});

            EXPECT_LE(report["imbalance"], 1.03) << label;
            EXPECT_EQ(report["parts"].size(), static_cast<std::size_t>(num_parts)) << label;
            const ProgramResult check = meshard({"check", shards});
            EXPECT_EQ(check.exit_code, 0) << label << '\n' << check.out << check.err;
            const ProgramResult merge = meshard({"merge", shards, "--verify", source});
            EXPECT_EQ(merge.exit_code, 0) << label << '\n' << merge.err;
            std::filesystem::remove_all(shards);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Files, ShardsSweep, testing::ValuesIn(files()), [](const auto& info) {
    std::string name = std::filesystem::path(info.param).stem().string();
    std::ranges::replace_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
    return name;
});
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ShardsSweep);

TEST(ShardsSweepData, IsThere)
{
    if (files().empty()) GTEST_SKIP() << "no meshes in " << data;
    SUCCEED();
}

}  // namespace
}  // namespace meshard
