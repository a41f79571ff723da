// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/interruption.h"

#include <filesystem>

namespace meshard {

/// A guard around writing a file (or a folder): makes the missing folders above it. At its end those of them that are
/// empty are removed, so that an output that failed leaves nothing.
class MadeFolders {
public:
    /// @throws IoError if they cannot be made
    explicit MadeFolders(const std::filesystem::path& file);
    ~MadeFolders();
    MadeFolders(const MadeFolders&) = delete;
    MadeFolders& operator=(const MadeFolders&) = delete;

private:
    void remove_empty() const;

    UnfinishedOutput unfinished_;
    std::filesystem::path folder_, there_;  ///< the folder above the file, and the nearest one above it that existed
};

}  // namespace meshard
