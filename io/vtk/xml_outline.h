// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/mapped_file.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace meshard {

/// A place in a file.
struct TextPlace {
    std::uint64_t begin = 0, length = 0;
};

/// A VTK XML file without the values of its arrays, which may be larger than memory.
struct XmlOutline {
    std::string document;  ///< each text that is long has its place instead (`place_in`), appended data have none
    std::optional<TextPlace> appended;  ///< what follows the mark '_' of appended data, up to their end tag
};

/// Reads a file from its begin to its appended data, piece by piece.
/// @param where   begins messages
/// @throws IoError if it cannot be read, or ends inside its appended data
XmlOutline outline_of(const RandomAccessFile& file, const std::string& where);

/// Returns where in the file a text of an outline lies; nothing if it is there itself.
std::optional<TextPlace> place_in(std::string_view text);

}  // namespace meshard
