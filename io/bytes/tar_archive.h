// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/zip_archive.h"

#include <map>
#include <string>

namespace meshard {

/// Returns whether the bytes begin with a tar header with a valid checksum.
bool looks_like_tar(std::span<const std::byte> bytes);

/// The ordinary files of a tar archive in memory (ustar, and the long names and sizes of GNU and pax), by name, as
/// views; a leading `./` is removed. Links and folders are ignored.
/// @param where   begins the message of an error, e.g. "read_checkpoint: model.mdlus"
/// @throws IoError if the archive is truncated or damaged, or names a file twice.
std::map<std::string, SharedBytes> read_tar(const SharedBytes& archive, const std::string& where);

}  // namespace meshard
