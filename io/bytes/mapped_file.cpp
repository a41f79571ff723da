// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/mapped_file.h"

#include "partition/error.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace meshard {

namespace {

/// An ordinary file that is open for reading; closed at the end unless it is taken.
class OpenedFile {
public:
    OpenedFile(const std::filesystem::path& path, std::string_view where)
        : where_(std::string(where) + ": " + path.string())
    {
        // O_NONBLOCK: a pipe is refused below instead of waited for.
        descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (descriptor_ < 0 && errno == ENOENT) throw IoError("{} does not exist. Check the path.", where_);
        if (descriptor_ < 0) throw IoError("{} cannot be opened: {}.", where_, std::strerror(errno));
        struct stat status{};
        std::string fault;
        if (::fstat(descriptor_, &status) != 0)
            fault = std::string(" cannot be read: ") + std::strerror(errno) + ".";
        else if (S_ISDIR(status.st_mode))
            fault = " is a folder, a file is expected.";
        else if (!S_ISREG(status.st_mode))
            fault = " is not an ordinary file.";
        size_ = static_cast<std::uint64_t>(status.st_size);
        if (fault.empty()) return;
        ::close(descriptor_);
        throw IoError(where_ + fault);
    }
    ~OpenedFile()
    {
        if (descriptor_ >= 0) ::close(descriptor_);
    }
    OpenedFile(const OpenedFile&) = delete;
    OpenedFile& operator=(const OpenedFile&) = delete;

    const std::string& where() const { return where_; }
    std::uint64_t size() const { return size_; }
    int descriptor() const { return descriptor_; }
    int take() { return std::exchange(descriptor_, -1); }

private:
    std::string where_;
    int descriptor_ = -1;
    std::uint64_t size_ = 0;
};

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path, std::string_view where)
{
    const OpenedFile opened(path, where);
    std::shared_ptr<MappedFile> file(new MappedFile);
    if (opened.size() == 0) return file;
    void* data = ::mmap(nullptr, opened.size(), PROT_READ, MAP_PRIVATE, opened.descriptor(), 0);
    if (data == MAP_FAILED && errno == ENOMEM) throw std::bad_alloc();  // no fault of the file
    if (data == MAP_FAILED) throw IoError("{} cannot be mapped: {}.", opened.where(), std::strerror(errno));
    file->size_ = opened.size();
    file->data_ = static_cast<const std::byte*>(data);
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

std::shared_ptr<const RandomAccessFile> RandomAccessFile::open(const std::filesystem::path& path,
                                                               std::string_view where)
{
    OpenedFile opened(path, where);
    std::shared_ptr<RandomAccessFile> file(new RandomAccessFile);
    file->where_ = opened.where();
    file->size_ = opened.size();
    file->descriptor_ = opened.take();
    return file;
}

RandomAccessFile::~RandomAccessFile()
{
    if (descriptor_ >= 0) ::close(descriptor_);
}

void RandomAccessFile::read(std::uint64_t begin, std::span<std::byte> out) const
{
    while (!out.empty()) {
        const auto count = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(begin));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) throw IoError("{} cannot be read: {}.", where_, std::strerror(errno));
        if (count == 0)
            throw IoError("{} ends after {} bytes, {} more are expected. It is truncated, or another "
                          "program writes it.",
                          where_, begin, out.size());
        out = out.subspan(count);
        begin += static_cast<std::uint64_t>(count);
    }
}

std::string RandomAccessFile::text(std::uint64_t begin, std::uint64_t length) const
{
    std::string text(std::min(length, size_ - std::min(begin, size_)), '\0');
    read(begin, std::as_writable_bytes(std::span(text)));
    return text;
}

}  // namespace meshard
