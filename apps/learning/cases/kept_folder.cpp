// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/kept_folder.h"

#include "io/bytes/file_lock.h"
#include "partition/error.h"

#include <cerrno>
#include <cstring>
#include <system_error>
#include <unistd.h>
#include <vector>

namespace meshard {
namespace {

std::string host_name()
{
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    return name;
}

/// Returns the beginning of the names of this host's unfinished folders. Other hosts may still work on theirs, where
/// locks do not reach them.
std::string unfinished_prefix(const std::filesystem::path& dir)
{
    return dir.filename().string() + ".cutting-" + host_name() + "-";
}

/// Removes what stopped processes left. Only the holder of the lock may call it.
void remove_unfinished(const std::filesystem::path& dir)
{
    std::vector<std::filesystem::path> unfinished;
    for (const auto& entry : std::filesystem::directory_iterator(dir.parent_path())) {
        if (entry.path().filename().string().starts_with(unfinished_prefix(dir))) unfinished.push_back(entry.path());
    }
    for (const auto& path : unfinished) std::filesystem::remove_all(path);
    std::filesystem::remove_all(dir);  // the caller found it incomplete
}

}  // namespace

std::string why_not_writable(const std::filesystem::path& folder)
{
    std::error_code error;
    std::filesystem::create_directories(folder / "locks", error);
    if (error) return error.message();
    return ::access(folder.c_str(), W_OK | X_OK) == 0 ? "" : std::strerror(errno);
}

bool try_keep_folder(const std::filesystem::path& dir, const std::function<bool()>& is_complete,
                     const std::function<void(const std::filesystem::path& unfinished)>& make)
{
    if (is_complete()) return true;
    const auto lock = FileLock::try_acquire(dir.parent_path() / "locks" / dir.filename());
    if (!lock) return false;
    if (is_complete()) return true;  // the former holder of the lock may have made it
    remove_unfinished(dir);
    const auto unfinished = dir.parent_path() / (unfinished_prefix(dir) + std::to_string(getpid()));
    std::error_code error;
    try {
        make(unfinished);
    } catch (...) {
        std::filesystem::remove_all(unfinished, error);
        throw;
    }
    std::filesystem::rename(unfinished, dir, error);
    if (!error) return true;
    std::filesystem::remove_all(unfinished);
    // Where locks do not reach other hosts, another host may have made the folder first.
    if (!is_complete()) throw IoError("cannot create {}: {}.", dir.string(), error.message());
    return true;
}

}  // namespace meshard
