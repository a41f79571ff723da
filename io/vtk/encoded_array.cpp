// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/encoded_array.h"

#include "io/bytes/base64.h"
#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

namespace meshard {

EncodedArray::EncodedArray(std::shared_ptr<const RandomAccessFile> file, std::uint64_t begin, std::uint64_t length,
                           bool is_base64, const ArrayEncoding& encoding, std::string where)
    : file_(std::move(file)), begin_(begin), length_(length), is_base64_(is_base64), encoding_(encoding),
      where_(std::move(where))
{
    read_header();
}

EncodedArray::EncodedArray(std::string_view text, bool is_base64, const ArrayEncoding& encoding, std::string where)
    : text_(text), begin_(0), length_(text.size()), is_base64_(is_base64), encoding_(encoding), where_(std::move(where))
{
    read_header();
}

void EncodedArray::read_header()
{
    if (is_base64_ && length_ == 0) return;
    if (encoding_.compression != Compression::None) {
        read_block_sizes();
        return;
    }
    size_ = words(0, 1)[0];
    if (size_ == 0) return;
    first_ = encoding_.word_size;
    // Some writers encode header and values together, others separately: then the header's last group is padded.
    const auto header = base64_length(encoding_.word_size);
    std::string buffer;
    if (is_base64_ && text(header - 3 + encoding_.word_size % 3, 1, buffer) == "=") {
        begin_ += header;
        length_ -= header;
        first_ = 0;
    }
    if (size_ > num_available() || size_ + first_ > num_available())
        fail(fmt::format("should have {} bytes, but only {} are left in the file. It is truncated or damaged", size_,
                         num_available()));
}

// Number of blocks, size of a block, size of the last block if it is shorter (else 0), the compressed size of each;
// then the blocks. In base64 the header is a run of its own.
void EncodedArray::read_block_sizes()
{
    const auto num_blocks = words(0, 1)[0];
    if (num_blocks == 0) return;
    if (num_blocks > length_ / encoding_.word_size)
        fail(fmt::format("should have {} compressed blocks, more than the file can hold. It is truncated or damaged",
                         num_blocks));
    const auto header = words(0, 3 + num_blocks);
    block_size_ = header[1];
    const auto last_size = header[2] != 0 ? header[2] : block_size_;
    const auto header_size = (3 + num_blocks) * encoding_.word_size;
    const auto skipped = is_base64_ ? base64_length(header_size) : header_size;
    begin_ += skipped;
    length_ -= skipped;
    std::uint64_t end = 0;
    for (std::size_t i = 3; i < header.size(); ++i) {
        if (header[i] > num_available() - end)
            fail(fmt::format("should have more compressed bytes than the {} that are left in the file. It is truncated "
                             "or damaged",
                             num_available()));
        block_ends_.push_back(end += header[i]);
    }
    const auto ratio = largest_ratio(encoding_.compression);
    if (last_size > block_size_ || last_size / ratio > end ||
        (num_blocks > 1 && block_size_ / ratio > end / (num_blocks - 1)))
        fail(
            fmt::format("announces blocks of {} bytes, more than its data can hold. The file is damaged", block_size_));
    size_ = block_size_ * (num_blocks - 1) + last_size;
}

void EncodedArray::fail(const std::string& what) const
{
    throw IoError("{} {}.", where_, what);
}

std::vector<std::uint64_t> EncodedArray::words(std::uint64_t first, std::uint64_t count) const
{
    const auto size = encoding_.word_size;
    if (first + count > num_available() / size) fail("ends inside its header. The file is truncated or damaged");
    std::vector<std::byte> bytes(count * size);
    fetch(first * size, bytes);
    std::vector<std::uint64_t> words(count);
    for (std::size_t i = 0; i < count; ++i) {
        auto* word = bytes.data() + i * size;
        if (encoding_.is_swapped) std::reverse(word, word + size);
        std::memcpy(&words[i], word, size);
    }
    return words;
}

// Characters as they are written. `buffer` is the memory of those that are read from a file.
std::string_view EncodedArray::text(std::uint64_t begin, std::uint64_t length, std::string& buffer) const
{
    if (!file_) return text_.substr(begin_ + begin, length);
    buffer = file_->text(begin_ + begin, length);
    return buffer;
}

// Bytes of the file, decoded from base64.
void EncodedArray::fetch(std::uint64_t begin, std::span<std::byte> out) const
{
    if (!is_base64_ && file_) {
        file_->read(begin_ + begin, out);
        return;
    }
    if (!is_base64_) {
        std::memcpy(out.data(), text_.data() + begin_ + begin, out.size());
        return;
    }
    constexpr std::uint64_t kGroups = 1 << 14;  // a group is three bytes, or four characters
    std::array<std::byte, 3 * kGroups> decoded;
    std::string buffer;
    while (!out.empty()) {
        const auto first = begin / 3, end = std::min((begin + out.size() + 2) / 3, first + kGroups);
        const auto count = decode_base64(text(4 * first, 4 * (end - first), buffer), decoded.data());
        const auto skipped = begin - 3 * first,
                   wanted = std::min<std::uint64_t>(out.size(), 3 * (end - first) - skipped);
        if (count.value_or(0) < skipped + wanted) fail("is not valid base64");
        std::copy_n(decoded.begin() + static_cast<std::ptrdiff_t>(skipped), wanted, out.begin());
        out = out.subspan(wanted);
        begin += wanted;
    }
}

// Short pieces that lie near each other are fetched at once.
void EncodedArray::fetch_through_window(std::uint64_t begin, std::span<std::byte> out)
{
    constexpr std::uint64_t kWindow = 1 << 14;
    if (out.size() >= kWindow) {
        fetch(begin, out);
        return;
    }
    if (begin < window_begin_ || begin + out.size() > window_begin_ + window_.size()) {
        window_begin_ = begin;
        window_.resize(std::min(kWindow, first_ + size_ - begin));
        fetch(begin, window_);
    }
    std::memcpy(out.data(), window_.data() + (begin - window_begin_), out.size());
}

// Inflates a block to `out`, which has its length; `compressed` is memory for it.
void EncodedArray::inflate(std::size_t block, std::vector<std::byte>& compressed, std::span<std::byte> out) const
{
    const auto begin = block == 0 ? 0 : block_ends_[block - 1], length = block_ends_[block] - begin;
    auto bytes = std::as_bytes(std::span(text_)).subspan(file_ || is_base64_ ? 0 : begin_ + begin);
    if (file_ || is_base64_) {
        compressed.resize(length);
        fetch(begin, compressed);
        bytes = compressed;
    }
    if (!decompress_block(encoding_.compression, bytes.first(length), out))
        fail(fmt::format("cannot be inflated in its block {}. The file is damaged", block));
}

void EncodedArray::read(std::uint64_t begin, std::span<std::byte> out)
{
    if (block_ends_.empty()) {
        fetch_through_window(first_ + begin, out);
        return;
    }
    while (!out.empty()) {
        const auto block = begin / block_size_, skipped = begin % block_size_;
        if (inflated_ != block + 1) {
            inflated_ = 0;
            block_.resize(length_of(block));
            inflate(block, compressed_, block_);
            inflated_ = block + 1;
        }
        const auto count = std::min<std::uint64_t>(out.size(), block_.size() - skipped);
        std::memcpy(out.data(), block_.data() + skipped, count);
        out = out.subspan(count);
        begin += count;
    }
}

std::span<const std::byte> EncodedArray::read_all(std::shared_ptr<std::byte[]>& memory) const
{
    if (size_ == 0) return {};
    if (!block_ends_.empty()) {
        memory.reset(new std::byte[size_]);
        for_each_in_parallel(block_ends_.size(), [&](std::size_t block) {
            thread_local std::vector<std::byte> compressed;
            inflate(block, compressed, {memory.get() + block * block_size_, length_of(block)});
        });
        return {memory.get(), size_};
    }
    if (!is_base64_) return std::as_bytes(std::span(text_)).subspan(begin_ + first_, size_);
    const auto encoded = text_.substr(begin_, base64_length(first_ + size_));
    constexpr std::size_t run = std::size_t{1} << 18;  // characters
    memory.reset(new std::byte[encoded.size() / 4 * 3]);
    std::atomic<std::size_t> num_decoded = 0;
    for_each_in_parallel((encoded.size() + run - 1) / run, [&](std::size_t i) {
        num_decoded += decode_base64(encoded.substr(i * run, run), memory.get() + i * run / 4 * 3).value_or(0);
    });
    if (num_decoded < first_ + size_) fail("is not valid base64");
    return {memory.get() + first_, size_};
}

}  // namespace meshard
