// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>

namespace meshard {

/// A lock between processes: one process at a time holds the lock of a file, until it releases it or ends in any way.
///
/// If `path` is a folder, the folder itself is locked. Otherwise the file is created if it is missing, and is kept,
/// empty. On a file system without locks (some network file systems) every process gets the lock, and on one with locks
/// for each host only, one process on each host does: work under the lock must still be correct then; it may only take
/// longer.
class FileLock {
public:
    /// Does not wait: returns none if another process holds the lock. @throws IoError if the file cannot be created or
    /// opened for writing, or the folder not be read.
    static std::optional<FileLock> try_acquire(const std::filesystem::path& path);

    FileLock(FileLock&& other) noexcept;
    FileLock& operator=(FileLock&&) = delete;
    ~FileLock();

private:
    explicit FileLock(int descriptor) : descriptor_(descriptor) {}

    int descriptor_ = -1;
};

}  // namespace meshard
