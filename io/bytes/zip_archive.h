// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// Bytes, and the owner of their memory.
struct SharedBytes {
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner;

    std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};

/// The entries of a zip archive in memory (APPNOTE 6.3.10): stored and deflated ones, zip64 included.
///
/// Nothing is unpacked to disk. Entries that overlap are refused, and so are archives that unpack to more than 64 MiB
/// and ten times their size, so that the unpacked data stay in proportion to the archive.
class ZipArchive {
public:
    /// @param where   begins the message of an error, e.g. "read_checkpoint: model.mdlus"
    /// @throws IoError if the archive is truncated, damaged, encrypted, in several volumes, names an entry twice, or
    /// claims to unpack to far more than it is.
    ZipArchive(SharedBytes archive, std::string where);

    bool contains(const std::string& name) const { return entries_.contains(name); }
    std::vector<std::string> names() const;

    /// The unpacked bytes of an entry: a view into the archive if it is stored.
    /// @throws IoError if there is no such entry, or its bytes do not match their size or checksum (0 counts as not
    /// given).
    SharedBytes read(const std::string& name) const;

private:
    struct Entry {
        std::uint16_t method = 0;
        std::uint32_t checksum = 0;
        std::uint64_t packed_size = 0;
        std::uint64_t size = 0;
        std::uint64_t begin = 0;  // offset of the packed bytes
    };

    [[noreturn]] void fail(const std::string& what) const;
    [[noreturn]] void fail_as_damaged(const std::string& what) const;
    std::span<const std::byte> part(std::uint64_t begin, std::uint64_t size, const char* what) const;
    void read_directory();
    void refuse_overlaps(std::uint64_t directory_begin) const;
    void refuse_bombs() const;

    SharedBytes archive_;
    std::string where_;
    std::map<std::string, Entry> entries_;
};

/// Returns whether the bytes begin like a zip archive.
bool looks_like_zip(std::span<const std::byte> bytes);

/// A zip archive to be written, with every entry stored (uncompressed) and aligned to 64 bytes so that readers can map
/// it. The bytes of the entries are not copied: they must stay valid until the archive has been written.
class ZipLayout {
public:
    /// Adds an entry whose content is the concatenation of the pieces.
    void add(const std::string& name, const std::vector<std::span<const std::byte>>& pieces);
    void add(const std::string& name, std::string text);  ///< keeps the text

    /// The whole archive, in pieces that refer to this layout and to the entries' bytes. Must be called once, last.
    std::vector<std::span<const std::byte>> finish();

private:
    void append(std::string bytes);  // keeps them

    std::deque<std::string> kept_;
    std::vector<std::span<const std::byte>> pieces_;
    std::string directory_;
    std::uint64_t size_ = 0;
    std::uint64_t num_entries_ = 0;
};

}  // namespace meshard
