// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/made_folders.h"

#include "io/bytes/atomic_file.h"
#include "partition/error.h"

#include <system_error>

namespace meshard {

MadeFolders::MadeFolders(const std::filesystem::path& file)
    : folder_(std::filesystem::absolute(followed_links(file)).lexically_normal().parent_path())
{
    std::error_code error;
    for (there_ = folder_; !std::filesystem::exists(there_, error) && there_.has_relative_path();)
        there_ = there_.parent_path();
    std::filesystem::create_directories(folder_, error);
    if (!error) return;
    const std::string reason = error.message();
    remove_empty();
    throw IoError("write: cannot create the folder {}: {}. Choose a place that you may write to.", folder_.string(),
                  reason);
}

MadeFolders::~MadeFolders()
{
    remove_empty();
}

void MadeFolders::remove_empty() const
{
    // Another run may have written to them: this removes only empty ones.
    std::error_code ignored;
    for (auto made = folder_; made != there_ && std::filesystem::remove(made, ignored);) made = made.parent_path();
}

}  // namespace meshard
