// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace meshard {

/// Returns whether `text` is UTF-8: no stray, missing or overlong bytes, no surrogates.
bool is_utf8(std::string_view text);

/// `text` without UTF-8's byte order mark, with which some programs begin text files.
std::string_view without_byte_order_mark(std::string_view text);

/// Converts text in ISO-8859-1 (Latin-1), or in Windows' code page 1252, which has letters where Latin-1 has control
/// characters, to UTF-8.
std::string utf8_from_latin1(std::string_view text);

/// `text` if it is UTF-8, else converted from Latin-1; for files whose format does not specify an encoding.
std::string utf8_or_latin1(std::string_view text);

/// Converts `text` from the named encoding (`ISO-8859-1`, `UTF-16LE`, ..., in any case) to UTF-8; none if the system
/// does not know the encoding, or the text has invalid bytes.
std::optional<std::string> utf8_from(std::string_view text, std::string_view encoding);

}  // namespace meshard
