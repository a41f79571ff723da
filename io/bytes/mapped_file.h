// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
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

}  // namespace meshard
