// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

namespace meshard {

/// Decompresses a gzip file (RFC 1952; several members are concatenated).
/// @throws IoError, with a message that begins with `where`, if it is truncated or damaged.
std::string gunzip(std::span<const std::byte> compressed, const std::string& where);

}  // namespace meshard
