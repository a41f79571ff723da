// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace meshard {

/// Makes a folder and its folder `locks`. Returns why it cannot be made or written in, or an empty text.
std::string why_not_writable(const std::filesystem::path& folder);

/// Makes a folder that appears complete or not at all and never changes afterwards; any number of processes may call it
/// at once. The caller that makes it holds the lock `locks/NAME` beside it (file_lock.h) and fills
/// `NAME.cutting-<host>-<process>`, which is then renamed. What a killed process left, and a folder that is not
/// complete, is removed by the next process of the same host that holds the lock.
/// @param dir           its parent folder must be writable (`why_not_writable`)
/// @param is_complete   called without the lock, too
/// @param make          fills the given folder, which does not exist yet
/// @return false if another process holds the lock.
/// @throws what `make` throws; IoError if the folder cannot be renamed.
bool try_keep_folder(const std::filesystem::path& dir, const std::function<bool()>& is_complete,
                     const std::function<void(const std::filesystem::path& unfinished)>& make);

}  // namespace meshard
