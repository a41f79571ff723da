// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/store/page_hashes.h"

#include "io/bytes/atomic_file.h"
#include "io/bytes/content_hash.h"

#include <fmt/core.h>

#include <algorithm>

namespace meshard {
namespace {

std::span<const std::byte> page_of(const MappedFile& file, std::int64_t page)
{
    const auto begin = static_cast<std::size_t>(page * PageHashes::kPage);
    return file.bytes().subspan(begin, std::min<std::size_t>(PageHashes::kPage, file.bytes().size() - begin));
}

}  // namespace

IoError unusable_file(const std::filesystem::path& path, const std::string& what)
{
    return IoError("store: {} {}. Remove its folder: it is made again from the case.", path.string(), what);
}

void require_size(const std::filesystem::path& path, const MappedFile& file, std::int64_t num_bytes)
{
    if (std::ssize(file.bytes()) != num_bytes)
        throw unusable_file(
            path, fmt::format("is damaged: it has {} bytes, and should have {}", file.bytes().size(), num_bytes));
}

void PageHashes::write(const std::filesystem::path& path, std::span<const std::filesystem::path> files)
{
    std::vector<std::uint64_t> hashes;
    for (const auto& one : files) {
        const auto file = MappedFile::open(one, "store");
        for (std::int64_t page = 0; page < pages_of(std::ssize(file->bytes())); ++page)
            hashes.push_back(xxh64(page_of(*file, page)));
    }
    AtomicFile out(path);
    out.write(std::as_bytes(std::span(hashes)));
    out.commit(/*sync=*/false);  // the folder is synced as a whole
}

PageHashes::PageHashes(const std::filesystem::path& path, std::int64_t num_pages)
    : file_(MappedFile::open(path, "store")), compared_(static_cast<std::size_t>(num_pages / 64 + 1))
{
    require_size(path, *file_, num_pages * static_cast<std::int64_t>(sizeof(std::uint64_t)));
    hashes_ = {reinterpret_cast<const std::uint64_t*>(file_->bytes().data()), static_cast<std::size_t>(num_pages)};
}

void PageHashes::compare_page(const MappedFile& file, std::int64_t page, std::size_t at,
                              const std::filesystem::path& path) const
{
    if (at >= hashes_.size() || xxh64(page_of(file, page)) != hashes_[at])
        throw unusable_file(
            path, fmt::format("is damaged: what it has from byte {} on is not what was written", page * kPage));
    compared_[at / 64].fetch_or(std::uint64_t{1} << (at % 64), std::memory_order_relaxed);
}

}  // namespace meshard
