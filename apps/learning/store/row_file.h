// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/store/page_hashes.h"
#include "io/bytes/mapped_file.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// Stored rows of one part of a case. A row has the point's inputs and after them its targets.
struct StoredRows {
    std::span<const std::int64_t> ids;    ///< the row's id in the whole case; rows lie in the order of `StoredOrder`
    std::span<const std::int32_t> order;  ///< the indices of the rows by ascending id
    std::span<const float> values;        ///< (rows, num_columns), row by row
    std::int64_t num_columns = 0;
    std::vector<std::int64_t> block_begins;  ///< the first row of each block of `StoredOrder`, and the number of rows

    std::int64_t num_rows() const { return std::ssize(ids); }
    const float* row(std::int64_t i) const { return values.data() + i * num_columns; }
};

/// Writes the rows as a file of three sections, ids, order and values, each beginning at a multiple of 4 KiB. The first
/// 4 KiB hold as text the number of rows, the sections' places and hashes, and `key`. The file appears complete or not
/// at all.
/// @return the file's bytes
/// @throws IoError
std::int64_t write_row_file(const std::filesystem::path& path, const StoredRows& rows, std::string_view key);

/// A mapped file of rows.
class RowFile {
public:
    /// @throws IoError naming the file if it is missing, cut short, of another format or another key; UnknownVersion.
    RowFile(const std::filesystem::path& path, std::string_view key, FilePages pages = {});

    const StoredRows& rows() const { return rows_; }

    /// Asks the system to read all of it ahead.
    void will_be_read() const { MappedFile::will_be_read(file_->bytes()); }

    /// Compares the whole file with its hashes. @throws IoError naming the file and the place of the first difference.
    void verify() const;

    /// Compares a piece of it with the pages' hashes, if it has some. @throws IoError as `verify`
    void verify(std::span<const std::byte> piece) const
    {
        if (pages_.hashes) pages_.hashes->compare(*file_, pages_.first, piece, path_);
    }

    /// Returns a row's id after comparing its page.
    std::int64_t id(std::int64_t row) const
    {
        verify(std::as_bytes(rows_.ids.subspan(row, 1)));
        return rows_.ids[row];
    }
    const float* values(std::int64_t row) const
    {
        verify(std::as_bytes(rows_.values.subspan(row * rows_.num_columns, rows_.num_columns)));
        return rows_.row(row);
    }

private:
    std::filesystem::path path_;
    std::shared_ptr<const MappedFile> file_;
    StoredRows rows_;
    std::string hashes_[3];  // one for each section
    FilePages pages_;
};

}  // namespace meshard
