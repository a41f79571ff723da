// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/tar_archive.h"

#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace meshard {
namespace {

constexpr std::size_t kBlock = 512;
constexpr std::size_t kSizeAt = 124, kSizeWidth = 12, kChecksumAt = 148, kChecksumWidth = 8, kTypeAt = 156,
                      kMagicAt = 257, kPrefixAt = 345;

/// A text field, which ends at its first zero or at its width.
std::string_view text_field(std::string_view header, std::size_t at, std::size_t width)
{
    const auto field = header.substr(at, width);
    return field.substr(0, field.find('\0'));
}

std::optional<std::uint64_t> number_field(std::string_view header, std::size_t at, std::size_t width)
{
    auto field = header.substr(at, width);
    std::uint64_t value = 0;
    if (static_cast<unsigned char>(field[0]) == 0x80) {  // GNU's binary form for large numbers
        for (const char c : field.substr(1)) {
            if (value >> 56 != 0) return std::nullopt;
            value = value << 8 | static_cast<unsigned char>(c);
        }
        return value;
    }
    field = field.substr(0, field.find('\0'));
    while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
    while (!field.empty() && field.back() == ' ') field.remove_suffix(1);
    if (field.empty()) return 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value, 8);
    if (error != std::errc() || end != field.data() + field.size()) return std::nullopt;
    return value;
}

/// Checks the sum of the header's bytes, with its own field counted as blanks.
bool has_valid_checksum(std::string_view header)
{
    const auto stated = number_field(header, kChecksumAt, kChecksumWidth);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < kBlock; ++i)
        sum += i >= kChecksumAt && i < kChecksumAt + kChecksumWidth ? ' ' : static_cast<unsigned char>(header[i]);
    return stated && *stated == sum;
}

/// The value of `key` in a pax header, whose records are "length key=value\n".
std::optional<std::string> pax_value(std::string_view records, std::string_view key)
{
    std::optional<std::string> value;
    while (!records.empty()) {
        std::size_t length = 0;
        const auto [end, error] = std::from_chars(records.data(), records.data() + records.size(), length);
        const auto digits = static_cast<std::size_t>(end - records.data());
        if (error != std::errc() || length <= digits + 1 || length > records.size()) break;
        const auto record = records.substr(digits + 1, length - digits - 2);
        const auto equals = record.find('=');
        if (record.substr(0, equals) == key && equals != std::string_view::npos) value = record.substr(equals + 1);
        records.remove_prefix(length);
    }
    return value;
}

}  // namespace

bool looks_like_tar(std::span<const std::byte> bytes)
{
    if (bytes.size() < kBlock) return false;
    const std::string_view header(reinterpret_cast<const char*>(bytes.data()), kBlock);
    return header[0] != '\0' && has_valid_checksum(header);
}

std::map<std::string, SharedBytes> read_tar(const SharedBytes& archive, const std::string& where)
{
    const auto fail = [&](const std::string& what) -> void {
        throw IoError("{} is a damaged tar archive: {}.", where, what);
    };
    const auto text = archive.text();
    std::map<std::string, SharedBytes> files;
    std::optional<std::string> next_name;
    std::optional<std::uint64_t> next_size;
    std::size_t at = 0;
    bool has_end = false;
    while (at < text.size() && !has_end) {
        if (text.size() - at < kBlock)
            fail(fmt::format("it ends within a header, at byte {}. It is truncated", text.size()));
        const auto header = text.substr(at, kBlock);
        if (std::ranges::all_of(header, [](char c) { return c == '\0'; })) {
            has_end = true;
            break;
        }
        if (!has_valid_checksum(header)) fail(fmt::format("the header at byte {} does not match its checksum", at));
        auto size = number_field(header, kSizeAt, kSizeWidth);
        const char type = header[kTypeAt];
        const bool is_file = type == '0' || type == '\0' || type == '7';
        if (is_file && next_size) size = next_size;
        if (!size) fail(fmt::format("the header at byte {} states no size", at));
        std::string name(text_field(header, 0, 100));
        if (header.substr(kMagicAt, 6) == std::string_view("ustar\0", 6)) {
            const auto prefix = text_field(header, kPrefixAt, 155);
            if (!prefix.empty()) name = std::string(prefix) + "/" + name;
        }
        at += kBlock;
        if (*size > text.size() - at)
            fail(fmt::format("'{}' has {} bytes, and {} are left. It is truncated", name, *size, text.size() - at));
        const auto content = text.substr(at, *size);
        if (type == 'x') {
            if (const auto path = pax_value(content, "path")) next_name = path;
            if (const auto value = pax_value(content, "size")) {
                std::uint64_t number = 0;
                if (std::from_chars(value->data(), value->data() + value->size(), number).ec == std::errc())
                    next_size = number;
            }
        } else if (type == 'L') {
            next_name = std::string(content.substr(0, content.find('\0')));
        } else if (is_file) {
            if (next_name) name = *next_name;
            if (name.starts_with("./")) name.erase(0, 2);
            if (!files.emplace(name, SharedBytes{archive.bytes.subspan(at, *size), archive.owner}).second)
                fail("it has two files '" + name + "'");
        }
        if (type != 'x' && type != 'L') {
            next_name.reset();
            next_size.reset();
        }
        const std::size_t padded = (*size + kBlock - 1) / kBlock * kBlock;
        at += std::min(padded, text.size() - at);
    }
    if (!has_end) fail("its end mark is missing. It is truncated");
    return files;
}

}  // namespace meshard
