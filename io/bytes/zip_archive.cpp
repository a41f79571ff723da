// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/zip_archive.h"

#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <zlib.h>

namespace meshard {
namespace {

constexpr std::uint32_t kLocalSignature = 0x04034b50, kEntrySignature = 0x02014b50, kEndSignature = 0x06054b50;
constexpr std::uint32_t kEnd64Signature = 0x06064b50, kLocator64Signature = 0x07064b50;
constexpr std::size_t kLocalSize = 30, kEntrySize = 46, kEndSize = 22, kLocator64Size = 20, kEnd64Size = 56;
constexpr std::uint64_t kIn64 = 0xffffffff;  // this value of a 32-bit field means that the value is in the zip64 field
constexpr std::uint16_t kStored = 0, kDeflated = 8, kZip64Field = 1, kPaddingField = 0x4246;
constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kLargestRatio = 10;      // weights are hardly compressible; deflate's largest ratio is 1032
constexpr std::uint64_t kModestSize = 64 << 20;  // up to this number of bytes any ratio is accepted

template <class Integer>
Integer number_at(std::span<const std::byte> bytes, std::size_t at)
{
    Integer value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

template <class Integer>
void put(std::string& bytes, Integer value)
{
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::uint32_t checksum_of(std::span<const std::byte> bytes, std::uint32_t start = 0)
{
    if (bytes.empty()) return start;  // for zlib a null pointer means a new checksum
    return static_cast<std::uint32_t>(crc32_z(start, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

/// Inflates raw deflate data; returns false unless it yields exactly `out`.
bool inflate_into(std::span<const std::byte> packed, std::span<std::byte> out)
{
    z_stream stream{};
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return false;
    constexpr std::size_t kStep = std::numeric_limits<uInt>::max();
    int status = Z_OK;
    std::byte nothing{};
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data()));
    stream.next_out = reinterpret_cast<Bytef*>(out.empty() ? &nothing : out.data());
    std::size_t left_in = packed.size(), left_out = out.size();
    while (status == Z_OK) {
        const auto in = static_cast<uInt>(std::min(left_in, kStep)),
                   room = static_cast<uInt>(std::min(left_out, kStep));
        stream.avail_in = in;
        stream.avail_out = room;
        status = inflate(&stream, Z_NO_FLUSH);
        left_in -= in - stream.avail_in;
        left_out -= room - stream.avail_out;
        if (status == Z_OK && in == stream.avail_in && room == stream.avail_out) break;  // no progress
    }
    inflateEnd(&stream);
    return status == Z_STREAM_END && left_out == 0;
}

}  // namespace

bool looks_like_zip(std::span<const std::byte> bytes)
{
    return bytes.size() >= 4 && (number_at<std::uint32_t>(bytes, 0) == kLocalSignature ||
                                 number_at<std::uint32_t>(bytes, 0) == kEndSignature);
}

ZipArchive::ZipArchive(SharedBytes archive, std::string where) : archive_(std::move(archive)), where_(std::move(where))
{
    read_directory();
}

void ZipArchive::fail(const std::string& what) const
{
    throw IoError("{} {}.", where_, what);
}

void ZipArchive::fail_as_damaged(const std::string& what) const
{
    fail("is a damaged zip archive: " + what);
}

std::span<const std::byte> ZipArchive::part(std::uint64_t begin, std::uint64_t size, const char* what) const
{
    const auto bytes = archive_.bytes;
    if (begin > bytes.size() || size > bytes.size() - begin)
        fail_as_damaged(
            fmt::format("{} lies at byte {} with {} bytes, beyond the end at {}", what, begin, size, bytes.size()));
    return bytes.subspan(begin, size);
}

void ZipArchive::read_directory()
{
    const auto bytes = archive_.bytes;
    // The end record is at the end, before a comment of at most 65535 bytes.
    std::size_t end = bytes.size();
    bool is_found = false;
    if (bytes.size() >= kEndSize) {
        const std::size_t first = bytes.size() - std::min<std::size_t>(bytes.size(), kEndSize + 65535);
        for (std::size_t at = bytes.size() - kEndSize + 1; at-- > first && !is_found;) {
            if (number_at<std::uint32_t>(bytes, at) != kEndSignature) continue;
            is_found = at + kEndSize + number_at<std::uint16_t>(bytes, at + 20) == bytes.size();
            end = at;
        }
    }
    if (!is_found) fail("is no complete zip archive: its directory at the end is missing. It is truncated");

    std::uint64_t count = number_at<std::uint16_t>(bytes, end + 10);
    std::uint64_t directory_size = number_at<std::uint32_t>(bytes, end + 12),
                  directory_begin = number_at<std::uint32_t>(bytes, end + 16);
    const std::uint32_t volumes = number_at<std::uint16_t>(bytes, end + 4) | number_at<std::uint16_t>(bytes, end + 6);
    std::uint64_t limit = end;
    if (count == 0xffff || directory_size == kIn64 || directory_begin == kIn64) {
        if (end < kLocator64Size || number_at<std::uint32_t>(bytes, end - kLocator64Size) != kLocator64Signature)
            fail_as_damaged("its zip64 locator is missing");
        const auto at = number_at<std::uint64_t>(bytes, end - kLocator64Size + 8);
        const auto record = part(at, kEnd64Size, "the zip64 end record");
        if (number_at<std::uint32_t>(record, 0) != kEnd64Signature) fail_as_damaged("its zip64 end record is missing");
        count = number_at<std::uint64_t>(record, 32);
        directory_size = number_at<std::uint64_t>(record, 40);
        directory_begin = number_at<std::uint64_t>(record, 48);
        limit = at;
    } else if (volumes != 0) {
        fail("is a zip archive in several volumes, which is not supported");
    }
    if (directory_begin > limit || directory_size > limit - directory_begin)
        fail_as_damaged(fmt::format("its directory of {} bytes at byte {} does not end before byte {}", directory_size,
                                    directory_begin, limit));

    auto rest = bytes.subspan(directory_begin, directory_size);
    for (std::uint64_t i = 0; i < count; ++i) {
        if (rest.size() < kEntrySize || number_at<std::uint32_t>(rest, 0) != kEntrySignature)
            fail_as_damaged(fmt::format("its directory announces {} entries, and entry {} is missing", count, i));
        const std::size_t name_size = number_at<std::uint16_t>(rest, 28),
                          extra_size = number_at<std::uint16_t>(rest, 30);
        const std::size_t total = kEntrySize + name_size + extra_size + number_at<std::uint16_t>(rest, 32);
        if (total > rest.size()) fail_as_damaged(fmt::format("entry {} of its directory is cut off", i));
        const std::string name(reinterpret_cast<const char*>(rest.data()) + kEntrySize, name_size);
        Entry entry{.method = number_at<std::uint16_t>(rest, 10),
                    .checksum = number_at<std::uint32_t>(rest, 16),
                    .packed_size = number_at<std::uint32_t>(rest, 20),
                    .size = number_at<std::uint32_t>(rest, 24)};
        std::uint64_t header = number_at<std::uint32_t>(rest, 42);
        if (number_at<std::uint16_t>(rest, 8) & 1) fail("has the encrypted entry '" + name + "'. Decrypt the archive");

        auto extra = rest.subspan(kEntrySize + name_size, extra_size);
        while (extra.size() >= 4) {
            const auto id = number_at<std::uint16_t>(extra, 0);
            const std::size_t size = number_at<std::uint16_t>(extra, 2);
            if (size > extra.size() - 4) fail_as_damaged("the extra field of '" + name + "' is cut off");
            auto field = extra.subspan(4, size);
            if (id == kZip64Field) {
                for (std::uint64_t* value : {&entry.size, &entry.packed_size, &header}) {
                    if (*value != kIn64) continue;
                    if (field.size() < 8) fail_as_damaged("the zip64 field of '" + name + "' is cut off");
                    *value = number_at<std::uint64_t>(field, 0);
                    field = field.subspan(8);
                }
            }
            extra = extra.subspan(4 + size);
        }

        const auto local = part(header, kLocalSize, ("the header of '" + name + "'").c_str());
        if (number_at<std::uint32_t>(local, 0) != kLocalSignature)
            fail_as_damaged("the header of '" + name + "' is missing");
        entry.begin = header + kLocalSize + number_at<std::uint16_t>(local, 26) + number_at<std::uint16_t>(local, 28);
        part(entry.begin, entry.packed_size, ("entry '" + name + "'").c_str());
        if (!entries_.emplace(name, entry).second) fail("has two entries '" + name + "'");
        rest = rest.subspan(total);
    }
    refuse_overlaps(directory_begin);
    refuse_bombs();
}

void ZipArchive::refuse_bombs() const
{
    std::uint64_t total = 0;
    for (const auto& [name, entry] : entries_) {
        if (entry.method == kDeflated) total += std::min(entry.size, std::numeric_limits<std::uint64_t>::max() - total);
    }
    if (total > kModestSize && total / kLargestRatio > archive_.bytes.size())
        fail(fmt::format("is a zip archive of {} bytes that claims to unpack to {}, more than {} times as much. If "
                         "that is meant, pack it without compression",
                         archive_.bytes.size(), total, kLargestRatio));
}

void ZipArchive::refuse_overlaps(std::uint64_t directory_begin) const
{
    std::vector<std::pair<std::uint64_t, const std::string*>> order;
    for (const auto& [name, entry] : entries_) order.emplace_back(entry.begin, &name);
    std::ranges::sort(order, {}, [](const auto& item) { return item.first; });
    for (std::size_t i = 0; i < order.size(); ++i) {
        const std::uint64_t end = i + 1 < order.size() ? order[i + 1].first : directory_begin;
        if (order[i].first > end || entries_.at(*order[i].second).packed_size > end - order[i].first)
            fail_as_damaged("entry '" + *order[i].second + "' overlaps what follows it");
    }
}

std::vector<std::string> ZipArchive::names() const
{
    std::vector<std::string> names;
    for (const auto& [name, entry] : entries_) names.push_back(name);
    return names;
}

SharedBytes ZipArchive::read(const std::string& name) const
{
    const auto found = entries_.find(name);
    if (found == entries_.end()) fail("has no entry '" + name + "'");
    const Entry& entry = found->second;
    SharedBytes content{archive_.bytes.subspan(entry.begin, entry.packed_size), archive_.owner};
    if (entry.method == kDeflated) {
        const std::shared_ptr<std::byte[]> unpacked(new std::byte[entry.size]);
        const std::span<std::byte> out(unpacked.get(), entry.size);
        if (!inflate_into(content.bytes, out))
            fail(fmt::format("has entry '{}' that does not unpack to its {} bytes. It is damaged", name, entry.size));
        content = {out, unpacked};
    } else if (entry.method != kStored) {
        fail(
            fmt::format("has entry '{}' packed by method {}; expected stored (0) or deflated (8)", name, entry.method));
    } else if (entry.size != entry.packed_size) {
        fail(fmt::format("has entry '{}' of two sizes, {} and {} bytes. It is damaged", name, entry.packed_size,
                         entry.size));
    }
    // PyTorch has an option to omit checksums; they are 0 then.
    if (entry.checksum != 0 && checksum_of(content.bytes) != entry.checksum)
        fail("has entry '" + name + "' that does not match its checksum. It is damaged");
    return content;
}

void ZipLayout::append(std::string bytes)
{
    size_ += bytes.size();
    pieces_.push_back(std::as_bytes(std::span(kept_.emplace_back(std::move(bytes)))));
}

void ZipLayout::add(const std::string& name, std::string text)
{
    const std::string& kept = kept_.emplace_back(std::move(text));
    add(name, {std::as_bytes(std::span(kept))});
}

void ZipLayout::add(const std::string& name, const std::vector<std::span<const std::byte>>& pieces)
{
    std::uint64_t size = 0;
    std::uint32_t checksum = 0;
    for (const auto& piece : pieces) {
        checksum = checksum_of(piece, checksum);
        size += piece.size();
    }
    const std::uint64_t header = size_;
    const bool is_large = size >= kIn64, is_far = header >= kIn64;
    const auto stated = static_cast<std::uint32_t>(is_large ? kIn64 : size);

    // Version needed, flags (names are UTF-8), method, time and date (1980-01-01), checksum, sizes, length of the name.
    const auto put_common = [&](std::string& bytes) {
        put<std::uint16_t>(bytes, is_large || is_far ? 45 : 20);
        put<std::uint16_t>(bytes, 0x800);
        put<std::uint16_t>(bytes, kStored);
        put<std::uint16_t>(bytes, 0);
        put<std::uint16_t>(bytes, 0x21);
        put<std::uint32_t>(bytes, checksum);
        put<std::uint32_t>(bytes, stated);
        put<std::uint32_t>(bytes, stated);
        put<std::uint16_t>(bytes, static_cast<std::uint16_t>(name.size()));
    };
    std::string extra;
    if (is_large) {
        put<std::uint16_t>(extra, kZip64Field);
        put<std::uint16_t>(extra, 16);
        put<std::uint64_t>(extra, size);
        put<std::uint64_t>(extra, size);
    }
    const std::uint64_t unpadded = header + kLocalSize + name.size() + extra.size() + 4;
    const auto padding = static_cast<std::uint16_t>((kAlignment - unpadded % kAlignment) % kAlignment);
    put<std::uint16_t>(extra, kPaddingField);
    put<std::uint16_t>(extra, padding);
    extra.append(padding, 'Z');

    std::string local;
    put(local, kLocalSignature);
    put_common(local);
    put<std::uint16_t>(local, static_cast<std::uint16_t>(extra.size()));
    append(local + name + extra);
    pieces_.insert(pieces_.end(), pieces.begin(), pieces.end());
    size_ += size;

    std::string fields;
    if (is_large) {
        put<std::uint64_t>(fields, size);
        put<std::uint64_t>(fields, size);
    }
    if (is_far) put<std::uint64_t>(fields, header);
    std::string zip64;
    if (!fields.empty()) {
        put<std::uint16_t>(zip64, kZip64Field);
        put<std::uint16_t>(zip64, static_cast<std::uint16_t>(fields.size()));
        zip64 += fields;
    }
    put(directory_, kEntrySignature);
    put<std::uint16_t>(directory_, 45);
    put_common(directory_);
    put<std::uint16_t>(directory_, static_cast<std::uint16_t>(zip64.size()));
    directory_.append(10, '\0');  // no comment, first volume, no attributes
    put<std::uint32_t>(directory_, static_cast<std::uint32_t>(is_far ? kIn64 : header));
    directory_ += name + zip64;
    ++num_entries_;
}

std::vector<std::span<const std::byte>> ZipLayout::finish()
{
    const std::uint64_t begin = size_, size = directory_.size();
    append(std::move(directory_));
    const bool is_large = begin >= kIn64 || size >= kIn64 || num_entries_ >= 0xffff;
    std::string end;
    if (is_large) {
        put(end, kEnd64Signature);
        put<std::uint64_t>(end, kEnd64Size - 12);
        put<std::uint16_t>(end, 45);
        put<std::uint16_t>(end, 45);
        put<std::uint64_t>(end, 0);  // first volume, twice
        put<std::uint64_t>(end, num_entries_);
        put<std::uint64_t>(end, num_entries_);
        put<std::uint64_t>(end, size);
        put<std::uint64_t>(end, begin);
        put(end, kLocator64Signature);
        put<std::uint32_t>(end, 0);
        put<std::uint64_t>(end, begin + size);
        put<std::uint32_t>(end, 1);
    }
    put(end, kEndSignature);
    put<std::uint32_t>(end, 0);
    const auto count = static_cast<std::uint16_t>(is_large ? 0xffff : num_entries_);
    put(end, count);
    put(end, count);
    put<std::uint32_t>(end, static_cast<std::uint32_t>(is_large ? kIn64 : size));
    put<std::uint32_t>(end, static_cast<std::uint32_t>(is_large ? kIn64 : begin));
    put<std::uint16_t>(end, 0);
    append(std::move(end));
    return std::move(pieces_);
}

}  // namespace meshard
