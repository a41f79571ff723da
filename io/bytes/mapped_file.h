// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace meshard {

/// The bytes of a file, mapped read-only for as long as the object lives.
class MappedFile {
public:
    /// `where` begins the message of an error, e.g. "read_mesh".
    /// @throws IoError if the file is missing, a folder, or not readable.
    static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path, std::string_view where);

    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;
    ~MappedFile();

    std::span<const std::byte> bytes() const { return {data_, size_}; }
    std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

    /// Advises the system that this piece of a mapped file is read next: it then reads large pieces ahead, while page
    /// faults read a few pages at a time.
    static void will_be_read(std::span<const std::byte> piece);

    /// Removes the pages read so far from this process's memory; the next access reads them again.
    void release_pages() const;

private:
    MappedFile() = default;

    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

/// A file from which pieces are read. It is not mapped, so it may be larger than the addresses that a process may have.
class RandomAccessFile {
public:
    /// `where` begins the message of an error, e.g. "read_mesh".
    /// @throws IoError if the file is missing, a folder, or not readable
    static std::shared_ptr<const RandomAccessFile> open(const std::filesystem::path& path, std::string_view where);

    RandomAccessFile(const RandomAccessFile&) = delete;
    RandomAccessFile& operator=(const RandomAccessFile&) = delete;
    ~RandomAccessFile();

    std::uint64_t size() const { return size_; }

    /// Fills `out` with the bytes from `begin` on. Any thread may call it. @throws IoError if the file ends before, or
    /// cannot be read
    void read(std::uint64_t begin, std::span<std::byte> out) const;

    /// The characters from `begin` on, `length` or as many as there are. @throws IoError as `read`
    std::string text(std::uint64_t begin, std::uint64_t length) const;

private:
    RandomAccessFile() = default;

    std::string where_;
    int descriptor_ = -1;
    std::uint64_t size_ = 0;
};

}  // namespace meshard
