// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/interruption.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace meshard {

/// The path to which `path` leads: follows links, also to a target that does not exist yet. @throws IoError for
/// circular links
std::filesystem::path followed_links(const std::filesystem::path& path);

/// The file that an index names: beside the index, or, where there is none, beside what the index is a link to.
std::filesystem::path listed_file(const std::filesystem::path& index, const std::filesystem::path& name);

/// `followed_links` of a path that can be written as a file. @throws IoError also for a folder, a device or a pipe
std::filesystem::path file_to_write(const std::filesystem::path& path);

/// A file that appears complete or not at all: bytes are written to a temporary file in the same folder; `commit` syncs
/// it to disk and renames it. Without `commit` the destructor removes the temporary file. An older file of that name is
/// kept until `commit`. If the path is a link, its target is written.
class AtomicFile {
public:
    /// @throws IoError if the folder does not exist or cannot be written, or as `file_to_write`.
    explicit AtomicFile(std::filesystem::path path);
    ~AtomicFile();
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    void write(std::span<const std::byte> bytes);  ///< @throws IoError, e.g. when the disk is full; Interrupted
    void write(std::string_view text);
    std::uint64_t size() const { return size_; }  ///< bytes written so far

    /// Reserves room on the disk for `size` bytes, for libraries that cannot handle a failed write.
    void reserve(std::uint64_t size);  ///< @throws IoError if there is no room

    /// The temporary file, for libraries that write a file by its name.
    const std::filesystem::path& temporary() const { return temporary_; }

    /// Without `sync` the system writes the bytes to the disk later; after a power failure the file may then be
    /// damaged.
    void commit(bool sync = true);  ///< @throws IoError

private:
    void flush();
    void write_through(const std::byte* data, std::size_t size);

    UnfinishedOutput unfinished_;
    std::filesystem::path path_, target_;  ///< the path as given, for messages, and with links followed
    std::filesystem::path temporary_;
    std::vector<std::byte> buffer_;
    std::uint64_t size_ = 0;
    int descriptor_ = -1;
};

/// Replaces the content of `path` in one step. @throws IoError
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

struct FileContent {
    std::filesystem::path path;
    std::string_view text;
};

/// The same of files that belong together: none is replaced before all are written. @throws IoError
void write_files_atomically(std::span<const FileContent> files);

}  // namespace meshard
