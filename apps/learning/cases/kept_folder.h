// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace meshard {

/// Why a folder cannot be made or written in; empty if it can. Makes the folder and its folder `locks`.
std::string why_not_writable(const std::filesystem::path& folder);

/// Sees to it that a folder is there that appears complete or not at all, and is never changed, whoever makes it: any number of processes may ask at once.
/// Who makes it holds the lock `locks/NAME` beside it (file_lock.h) and fills `NAME.cutting-<host>-<process>`, which is renamed. What a killed process has
/// left of that is removed by the next of its host that holds the lock, and so is a folder that is not complete.
/// @param dir           in a folder in which can be written (`why_not_writable`)
/// @param is_complete   asked without the lock, too
/// @param make          fills the folder that it is given, which is not there yet
/// @return false if another process holds the lock.
/// @throws what `make` throws; IoError if the folder cannot be renamed.
bool try_keep_folder(const std::filesystem::path& dir, const std::function<bool()>& is_complete,
                     const std::function<void(const std::filesystem::path& unfinished)>& make);

}  // namespace meshard
