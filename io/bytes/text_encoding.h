// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace meshard {

/// Whether `text` is UTF-8: no stray, missing or overlong bytes, no surrogates.
bool is_utf8(std::string_view text);

/// `text` without UTF-8's byte order mark, with which some programs begin text files.
std::string_view without_byte_order_mark(std::string_view text);

/// Text in ISO-8859-1 (Latin-1), or in Windows' code page 1252, which has letters where Latin-1 has control characters, as UTF-8.
std::string utf8_from_latin1(std::string_view text);

/// `text` if it is UTF-8, else read as Latin-1. Files whose format names no encoding are read so.
std::string utf8_or_latin1(std::string_view text);

/// `text` in the encoding of that name (`ISO-8859-1`, `UTF-16LE`, ..., in any case) as UTF-8; none if the system does not know
/// the encoding or the text has bytes that it does not.
std::optional<std::string> utf8_from(std::string_view text, std::string_view encoding);

}  // namespace meshard
