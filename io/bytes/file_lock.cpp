// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/file_lock.h"

#include "partition/error.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <utility>

namespace meshard {

std::optional<FileLock> FileLock::try_acquire(const std::filesystem::path& path)
{
    const bool is_folder = std::filesystem::is_directory(path);
    const int descriptor = is_folder ? ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                                     : ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0)
        throw IoError("lock: {} cannot be {}{}.", path.string(),
                      is_folder ? "read: " : "written: ", std::strerror(errno));
    FileLock lock(descriptor);
    int result = 0;
    do result = ::flock(descriptor, LOCK_EX | LOCK_NB);
    while (result != 0 && errno == EINTR);
    if (result != 0 && errno == EWOULDBLOCK) return std::nullopt;
    return lock;  // other errors: a file system without locks
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock::~FileLock()
{
    if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace meshard
