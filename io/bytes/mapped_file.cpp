// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/mapped_file.h"

#include "partition/error.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace meshard {

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path, std::string_view where)
{
    const std::string begin = std::string(where) + ": " + path.string();
    // O_NONBLOCK: a pipe is refused below instead of waited for.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        if (errno == ENOENT) throw IoError(begin + " does not exist. Check the path.");
        throw IoError(begin + " cannot be opened: " + std::strerror(errno) + ".");
    }

    struct stat status{};
    std::string fault;
    std::shared_ptr<MappedFile> file(new MappedFile);
    if (::fstat(descriptor, &status) != 0)
        fault = std::string(" cannot be read: ") + std::strerror(errno) + ".";
    else if (S_ISDIR(status.st_mode))
        fault = " is a folder, a file is expected.";
    else if (!S_ISREG(status.st_mode))
        fault = " is not an ordinary file.";
    else if (status.st_size > 0) {
        file->size_ = static_cast<std::size_t>(status.st_size);
        void* data = ::mmap(nullptr, file->size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (data == MAP_FAILED) {
            file->size_ = 0;
            fault = std::string(" cannot be mapped: ") + std::strerror(errno) + ".";
        } else {
            file->data_ = static_cast<const std::byte*>(data);
        }
    }
    ::close(descriptor);
    if (!fault.empty()) throw IoError(begin + fault);
    return file;
}

void MappedFile::will_be_read(std::span<const std::byte> piece)
{
    if (piece.empty()) return;
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<std::uintptr_t>(piece.data()), first = begin / page * page;
    // Only advice: a failure does not matter.
    ::madvise(reinterpret_cast<void*>(first), begin + piece.size() - first, MADV_WILLNEED);
}

void MappedFile::release_pages() const
{
    if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

MappedFile::~MappedFile()
{
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace meshard
