// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/block_codec.h"
#include "io/bytes/mapped_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// How the binary arrays of a VTK XML file are written.
struct ArrayEncoding {
    Compression compression = Compression::None;
    std::size_t word_size = 4;  ///< bytes of a number in the header before an array
    bool is_swapped = false;    ///< another byte order than this machine's
};

/// The bytes of an array of a VTK XML file: raw or in base64, compressed or not. Of an array that is not in memory
/// pieces are read and decoded, and no more than a block of what is compressed is held.
class EncodedArray {
public:
    /// Reads the header of an array in a file.
    /// @param begin, length   where the array lies in the file, and at most how long it is
    /// @param where           begins messages: the file and the array
    /// @throws IoError if the array is longer than that, or its header is damaged
    EncodedArray(std::shared_ptr<const RandomAccessFile> file, std::uint64_t begin, std::uint64_t length,
                 bool is_base64, const ArrayEncoding& encoding, std::string where);
    /// Reads the header of an array in memory, from the beginning of `text` on; it may end before the text does.
    /// @throws IoError as above
    EncodedArray(std::string_view text, bool is_base64, const ArrayEncoding& encoding, std::string where);

    std::uint64_t size() const { return size_; }  ///< in bytes, decoded

    /// Decodes the bytes from `begin` on, which must be there, in the file's byte order. Quickest where `begin` ascends
    /// from call to call. @throws IoError if they are damaged
    void read(std::uint64_t begin, std::span<std::byte> out);

    /// Decodes all bytes of an array in memory, on several threads. Raw ones are a view into the text; for others
    /// `memory` is made. @throws IoError if they are damaged
    std::span<const std::byte> read_all(std::shared_ptr<std::byte[]>& memory) const;

private:
    void read_header();
    void read_block_sizes();
    std::string_view text(std::uint64_t begin, std::uint64_t length, std::string& buffer) const;
    void fetch(std::uint64_t begin, std::span<std::byte> out) const;
    void fetch_through_window(std::uint64_t begin, std::span<std::byte> out);
    std::uint64_t num_available() const { return is_base64_ ? length_ / 4 * 3 : length_; }
    std::vector<std::uint64_t> words(std::uint64_t first, std::uint64_t count) const;
    std::uint64_t length_of(std::size_t block) const { return std::min(block_size_, size_ - block * block_size_); }
    void inflate(std::size_t block, std::vector<std::byte>& compressed, std::span<std::byte> out) const;
    [[noreturn]] void fail(const std::string& what) const;

    std::shared_ptr<const RandomAccessFile> file_;  // null: the array is in `text_`
    std::string_view text_;
    std::uint64_t begin_, length_;  // of what follows the last header that is a run of base64 of its own
    bool is_base64_;
    ArrayEncoding encoding_;
    std::string where_;

    std::uint64_t size_ = 0;
    std::uint64_t first_ = 0;  // where the values begin, or the blocks
    std::uint64_t block_size_ = 0;
    std::vector<std::uint64_t> block_ends_;  // of each compressed block, from `first_` on; empty: not compressed
    std::size_t inflated_ = 0;               // the number of the block in `block_`, from 1
    std::vector<std::byte> block_, compressed_;
    std::uint64_t window_begin_ = 0;
    std::vector<std::byte> window_;  // bytes that were fetched with fewer before them
};

}  // namespace meshard
