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

/// Stored rows of one part of a case. A row has what a point is told and after it what is to be predicted there.
struct StoredRows {
    std::span<const std::int64_t> ids;    ///< of each row, in the whole case; in the order in which rows are stored (StoredOrder)
    std::span<const std::int32_t> order;  ///< the stored rows in the order of their ids
    std::span<const float> values;        ///< (rows, num_columns), row by row
    std::int64_t num_columns = 0;
    std::vector<std::int64_t> block_begins;  ///< the first row of each block of `StoredOrder` that is stored here, and the number of all

    std::int64_t num_rows() const { return static_cast<std::int64_t>(ids.size()); }
    const float* row(std::int64_t i) const { return values.data() + i * num_columns; }
};

/// Writes them as a file of three sections, ids, order and values, each of which begins at a multiple of 4 KiB; in the first 4 KiB stands as text how many
/// there are, where, a hash of each section and `key`. Complete or not at all. @return its bytes   @throws IoError
std::int64_t write_row_file(const std::filesystem::path& path, const StoredRows& rows, std::string_view key);

/// Such a file, mapped.
class RowFile {
public:
    /// @throws IoError naming the file if it is missing, cut short, no such file, or of another key; UnknownVersion.
    RowFile(const std::filesystem::path& path, std::string_view key, FilePages pages = {});

    const StoredRows& rows() const { return rows_; }

    void will_be_read() const { MappedFile::will_be_read(file_->bytes()); }  ///< all of it, next

    /// Reads all of it. @throws IoError naming the file and the place where its bytes are not those that were written.
    void verify() const;

    /// Compares a piece of it with the pages' hashes, where there are some. @throws IoError as `verify`
    void verify(std::span<const std::byte> piece) const
    {
        if (pages_.hashes) pages_.hashes->compare(*file_, pages_.first, piece, path_);
    }

    /// Of a row, compared before.
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
    std::string hashes_[3];  // of the sections
    FilePages pages_;
};

}  // namespace meshard
