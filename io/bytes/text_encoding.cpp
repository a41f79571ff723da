// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/text_encoding.h"

#include "partition/nearest_name.h"

#include <array>
#include <cstdint>
#include <iconv.h>

namespace meshard {

namespace {

/// Code points of the bytes 0x80 to 0x9F in Windows' code page 1252; 0 where it has none.
constexpr std::array<std::uint16_t, 32> windows_letters{0x20AC, 0,      0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021,
                                                        0x02C6, 0x2030, 0x0160, 0x2039, 0x0152, 0,      0x017D, 0,
                                                        0,      0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014,
                                                        0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0,      0x017E, 0x0178};

}  // namespace

bool is_utf8(std::string_view text)
{
    for (std::size_t i = 0; i < text.size();) {
        const auto first = static_cast<unsigned char>(text[i]);
        if (first < 0x80) {
            ++i;
            continue;
        }
        const std::size_t length = first >= 0xC2 && first < 0xE0   ? 2
                                   : first >= 0xE0 && first < 0xF0 ? 3
                                   : first >= 0xF0 && first < 0xF5 ? 4
                                                                   : 0;
        if (length == 0 || length > text.size() - i) return false;
        std::uint32_t code = first & (0xFFu >> (length + 1));
        for (std::size_t k = 1; k < length; ++k) {
            const auto next = static_cast<unsigned char>(text[i + k]);
            if ((next & 0xC0) != 0x80) return false;
            code = code << 6 | (next & 0x3F);
        }
        if (length == 3 && (code < 0x800 || (code >= 0xD800 && code < 0xE000))) return false;
        if (length == 4 && (code < 0x10000 || code > 0x10FFFF)) return false;
        i += length;
    }
    return true;
}

std::string_view without_byte_order_mark(std::string_view text)
{
    constexpr std::string_view mark = "\xEF\xBB\xBF";
    return text.starts_with(mark) ? text.substr(mark.size()) : text;
}

std::string utf8_from_latin1(std::string_view text)
{
    std::string result;
    result.reserve(text.size() + 8);
    for (const char c : text) {
        std::uint32_t code = static_cast<unsigned char>(c);
        if (code >= 0x80 && code < 0xA0 && windows_letters[code - 0x80] != 0) code = windows_letters[code - 0x80];
        if (code < 0x80) {
            result += static_cast<char>(code);
        } else if (code < 0x800) {
            result += static_cast<char>(0xC0 | code >> 6);
            result += static_cast<char>(0x80 | (code & 0x3F));
        } else {
            result += static_cast<char>(0xE0 | code >> 12);
            result += static_cast<char>(0x80 | (code >> 6 & 0x3F));
            result += static_cast<char>(0x80 | (code & 0x3F));
        }
    }
    return result;
}

std::string utf8_or_latin1(std::string_view text)
{
    return is_utf8(text) ? std::string(text) : utf8_from_latin1(text);
}

std::optional<std::string> utf8_from(std::string_view text, std::string_view encoding)
{
    const std::string name = lower_case(encoding);
    if (name == "utf-8" || name == "utf8") return is_utf8(text) ? std::optional(std::string(text)) : std::nullopt;
    // These three do not need the system's tables, which small installations lack.
    for (const char* latin1 : {"iso-8859-1", "latin1", "windows-1252"})
        if (name == latin1) return utf8_from_latin1(text);

    const iconv_t converter = ::iconv_open("UTF-8", name.c_str());
    if (converter == iconv_t(-1)) return std::nullopt;
    std::string result;
    std::array<char, 4096> block{};
    char* in = const_cast<char*>(text.data());
    std::size_t num_left = text.size();
    bool is_valid = true;
    while (is_valid && num_left > 0) {
        char* out = block.data();
        std::size_t room = block.size();
        const std::size_t status = ::iconv(converter, &in, &num_left, &out, &room);
        result.append(block.data(), out);
        is_valid = status != std::size_t(-1) || out != block.data();  // a full output block is not an error
    }
    ::iconv_close(converter);
    return is_valid ? std::optional(std::move(result)) : std::nullopt;
}

}  // namespace meshard
