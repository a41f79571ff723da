// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/mapped_file.h"
#include "partition/error.h"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Returns the error that a file of a stored case is not what was written. @param what   e.g. `is damaged: it is empty`
IoError unusable_file(const std::filesystem::path& path, const std::string& what);

/// @throws IoError if a file of a stored case has another number of bytes
void require_size(const std::filesystem::path& path, const MappedFile& file, std::int64_t num_bytes);

/// Hashes of a stored case's files, one for each page of 4 KiB. A page is compared with its hash when this object first
/// sees it; pages that nobody reads are not compared.
class PageHashes {
public:
    static constexpr std::int64_t kPage = 4096;

    /// Returns the number of pages of a file with so many bytes; the last page may be shorter.
    static std::int64_t pages_of(std::int64_t num_bytes) { return (num_bytes + kPage - 1) / kPage; }

    /// Writes the hashes of these files, one file after the other. @throws IoError
    static void write(const std::filesystem::path& path, std::span<const std::filesystem::path> files);

    /// @throws IoError if the file is missing or does not have `num_pages` hashes
    PageHashes(const std::filesystem::path& path, std::int64_t num_pages);

    /// Compares the pages on which `piece` lies. May be called by several threads.
    /// @param first_page   index of the file's first page among the hashes
    /// @throws IoError naming the file and the first byte of the page that differs
    void compare(const MappedFile& file, std::int64_t first_page, std::span<const std::byte> piece,
                 const std::filesystem::path& path) const
    {
        if (piece.empty()) return;
        const auto begin = (piece.data() - file.bytes().data()) / kPage,
                   end = (piece.data() + piece.size() - 1 - file.bytes().data()) / kPage;
        for (auto page = begin; page <= end; ++page) {
            const auto at = static_cast<std::size_t>(first_page + page);
            if ((compared_[at / 64].load(std::memory_order_relaxed) >> (at % 64) & 1) == 0)
                compare_page(file, page, at, path);
        }
    }

private:
    void compare_page(const MappedFile& file, std::int64_t page, std::size_t at,
                      const std::filesystem::path& path) const;

    std::shared_ptr<const MappedFile> file_;
    std::span<const std::uint64_t> hashes_;
    mutable std::vector<std::atomic<std::uint64_t>> compared_;  // one bit for each page: whether it was compared
};

/// The hashes of one file: the case's hashes and the index of the file's first; null in cases that earlier versions
/// stored.
struct FilePages {
    std::shared_ptr<const PageHashes> hashes;
    std::int64_t first = 0;
};

}  // namespace meshard
