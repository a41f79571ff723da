// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>

namespace meshard {

/// A lock between processes: whoever holds the lock of a file keeps others from having it, until it lets go or ends, however it ends.
///
/// A folder that exists is locked itself. Otherwise the file is made where it is missing and stays, empty. Where the file system has no locks (some
/// network file systems) everyone gets it, and where it has them for one host only, one process a host does: what the lock guards must stay right
/// then, and may only take longer.
class FileLock {
public:
    /// Does not wait: nothing if another holds the lock. @throws IoError if the file cannot be made or opened for writing, or the folder not be read.
    static std::optional<FileLock> try_acquire(const std::filesystem::path& path);

    FileLock(FileLock&& other) noexcept;
    FileLock& operator=(FileLock&&) = delete;
    ~FileLock();

private:
    explicit FileLock(int descriptor) : descriptor_(descriptor) {}

    int descriptor_ = -1;
};

}  // namespace meshard
