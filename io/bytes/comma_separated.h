// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace meshard {

/// Splits a line into values (RFC 4180, without line breaks in values). Blanks around a value are dropped; between
/// quotes all is kept, and "" is a quote.
/// @param where   begins messages
/// @throws IoError if quotes do not end before the next comma.
std::vector<std::string> comma_separated(const std::string& line, const std::string& where);

}  // namespace meshard
