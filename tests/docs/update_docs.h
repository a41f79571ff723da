// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace meshard {

/// Writes every page, and every table of a page, that follows from the program.
inline constexpr const char* kUpdateCommand = "MESHARD_UPDATE_DOCS=1 build/release/bin/docs_tests";

/// The page must be `current`; with MESHARD_UPDATE_DOCS set it is made so.
inline void expect_up_to_date(const std::filesystem::path& page, const std::string& current)
{
    if (std::getenv("MESHARD_UPDATE_DOCS")) std::ofstream(page) << current;
    std::ostringstream written;
    written << std::ifstream(page).rdbuf();
    EXPECT_TRUE(written.str() == current)
        << "docs/" << page.filename().string()
        << " is out of date. Write it anew, from the root of the repository: " << kUpdateCommand;
}

}  // namespace meshard
