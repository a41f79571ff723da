// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/mapped_file.h"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace meshard {

/// Hashes of a stored case's files, one for each page of 4 KiB. What is read of a file is compared with them, the first time that this object sees it; pages
/// that nobody reads are not read for that.
class PageHashes {
public:
    static constexpr std::int64_t kPage = 4096;

    /// Pages of a file of so many bytes; the last one may be shorter.
    static std::int64_t pages_of(std::int64_t num_bytes) { return (num_bytes + kPage - 1) / kPage; }

    /// Writes the hashes of these files, one after the other. @throws IoError
    static void write(const std::filesystem::path& path, std::span<const std::filesystem::path> files);

    /// @throws IoError if the file is missing or has not so many hashes
    PageHashes(const std::filesystem::path& path, std::int64_t num_pages);

    /// Compares the pages on which `piece` lies. May be called by several threads.
    /// @param first_page   of the file, among the hashes
    /// @throws IoError naming the file and the first byte of the page that differs
    void compare(const MappedFile& file, std::int64_t first_page, std::span<const std::byte> piece, const std::filesystem::path& path) const
    {
        if (piece.empty()) return;
        const auto begin = (piece.data() - file.bytes().data()) / kPage, end = (piece.data() + piece.size() - 1 - file.bytes().data()) / kPage;
        for (auto page = begin; page <= end; ++page) {
            const auto at = static_cast<std::size_t>(first_page + page);
            if ((compared_[at / 64].load(std::memory_order_relaxed) >> (at % 64) & 1) == 0) compare_page(file, page, at, path);
        }
    }

private:
    void compare_page(const MappedFile& file, std::int64_t page, std::size_t at, const std::filesystem::path& path) const;

    std::shared_ptr<const MappedFile> file_;
    std::span<const std::uint64_t> hashes_;
    mutable std::vector<std::atomic<std::uint64_t>> compared_;  // a bit a page
};

/// Where a file's hashes are; null in cases that earlier versions stored.
struct FilePages {
    std::shared_ptr<const PageHashes> hashes;
    std::int64_t first = 0;
};

}  // namespace meshard
