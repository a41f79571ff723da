// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/mesh_io.h"
#include "tests/support/run_program.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

namespace meshard {

/// Runs `meshard`; each test has a folder of its own, which is empty at first and removed in the end.
class ProgramTest : public testing::Test {
protected:
    ProgramTest()
    {
        const auto* info = testing::UnitTest::GetInstance()->current_test_info();
        std::string name =
            std::string("meshard-") + info->test_suite_name() + "-" + info->name() + "-" + std::to_string(getpid());
        std::ranges::replace(name, '/', '-');  // in the names of tests with a parameter
        folder_ = std::filesystem::temp_directory_path() / name;
        std::filesystem::remove_all(folder_);
        std::filesystem::create_directories(folder_);
    }
    ~ProgramTest() override { std::filesystem::remove_all(folder_); }

    static ProgramResult meshard(const std::vector<std::string>& arguments, const ProgramOptions& options = {})
    {
        return run_program(program_path(), arguments, options);
    }

    /// What the program prints as JSON; the test fails if it does not end well.
    static nlohmann::json meshard_json(std::vector<std::string> arguments)
    {
        arguments.push_back("--json");
        const ProgramResult result = meshard(arguments);
        EXPECT_EQ(result.exit_code, 0) << result.err;
        return nlohmann::json::parse(result.out, nullptr, false);
    }

    /// As if the disk were full after 20 kB.
    static ProgramOptions full_disk()
    {
        ProgramOptions options;
        options.max_file_bytes = 20000;
        return options;
    }

    std::string path(const std::string& name) const { return (folder_ / name).string(); }

    std::string write(const std::string& name, const Mesh& mesh) const
    {
        write_mesh(folder_ / name, mesh);
        return path(name);
    }

    std::string write_text(const std::string& name, const std::string& text) const
    {
        std::ofstream(folder_ / name, std::ios::binary) << text;
        return path(name);
    }

    static std::string content_of(const std::string& file)
    {
        std::ostringstream text;
        text << std::ifstream(file, std::ios::binary).rdbuf();
        return text.str();
    }

    /// Names of all that lies in the test's folder, sorted: shows whether something half-written was left.
    std::vector<std::string> entries() const
    {
        std::vector<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(folder_))
            names.push_back(entry.path().filename().string());
        std::ranges::sort(names);
        return names;
    }

private:
    std::filesystem::path folder_;
};

/// Succeeds if the program ended with `exit_code` and said one line on stderr that contains every one of `texts`.
inline testing::AssertionResult fails_with(const ProgramResult& result, int exit_code,
                                           const std::vector<std::string>& texts)
{
    if (result.exit_code != exit_code) {
        return testing::AssertionFailure()
               << "exit code " << result.exit_code << ", expected " << exit_code << "; stderr: " << result.err;
    }
    if (std::ranges::count(result.err, '\n') != 1)
        return testing::AssertionFailure() << "not one line on stderr: " << result.err;
    if (!result.err.starts_with("meshard"))
        return testing::AssertionFailure() << "does not begin with meshard: " << result.err;
    for (const std::string& text : texts) {
        if (result.err.find(text) == std::string::npos) {
            return testing::AssertionFailure() << "no '" << text << "' in: " << result.err;
        }
    }
    return testing::AssertionSuccess();
}

}  // namespace meshard
