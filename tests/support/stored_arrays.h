// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/zip_archive.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_paths.h"

#include <filesystem>
#include <span>
#include <string>

namespace meshard {

/// Unpacks what Python packages have written: `forms.zip`, a group of Zarr (tests/data/zarr/write.py), or `times.zip`,
/// files with arrays in time (write_times.py).
inline void unpack_arrays(const std::string& archive_name, const std::filesystem::path& folder)
{
    const auto bytes = read_bytes(source_path("tests/data/zarr/" + archive_name));
    const ZipArchive archive({std::as_bytes(std::span(bytes)), nullptr}, archive_name);
    for (const auto& name : archive.names()) {
        std::filesystem::create_directories((folder / name).parent_path());
        write_bytes(folder / name, archive.read(name).text());
    }
}

}  // namespace meshard
