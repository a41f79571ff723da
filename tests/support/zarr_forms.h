// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/zip_archive.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_paths.h"

#include <filesystem>
#include <span>

namespace meshard {

/// Unpacks the group that tests/data/zarr/write.py has written with the Python package zarr.
inline void unpack_zarr_forms(const std::filesystem::path& group)
{
    const auto bytes = read_bytes(source_path("tests/data/zarr/forms.zip"));
    const ZipArchive archive({std::as_bytes(std::span(bytes)), nullptr}, "forms.zip");
    for (const auto& name : archive.names()) {
        std::filesystem::create_directories((group / name).parent_path());
        write_bytes(group / name, archive.read(name).text());
    }
}

}  // namespace meshard
