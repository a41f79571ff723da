// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/data_array.h"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Makes a folder that is a group of Zarr's version 3. An absent chunk of its arrays is an error to `ZarrArray`.
/// @throws IoError if it cannot be written
void write_zarr_group(const std::filesystem::path& folder, const nlohmann::ordered_json& attributes);

/// Writes an array of Zarr's version 3 chunk by chunk, compressed by `encode_zarr_chunk`.
class ZarrArrayWriter {
public:
    /// Writes the metadata. @param folder   the array's, which is made
    /// @throws IoError if it cannot be written
    ZarrArrayWriter(std::filesystem::path folder, ScalarType type, std::vector<std::int64_t> shape,
                    std::vector<std::int64_t> chunk_shape, const std::vector<std::string>& dimension_names);

    /// Writes the chunks of a box, which holds them whole but for the array's end.
    /// @param values   of the box from `first` on, `count` along each dimension, the last fastest
    /// @throws IoError if they cannot be written
    void write(const std::vector<std::int64_t>& first, const std::vector<std::int64_t>& count,
               std::span<const std::byte> values) const;

private:
    std::filesystem::path folder_;
    std::size_t width_;
    std::vector<std::int64_t> shape_, chunk_shape_;
};

}  // namespace meshard
