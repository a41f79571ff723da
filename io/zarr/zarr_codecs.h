// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// The codecs of a Zarr array that turn bytes into bytes: at most one of zstd, gzip and blosc, and checksums (crc32c)
/// before or after it.
class ZarrByteCodecs {
public:
    ZarrByteCodecs() = default;

    /// @param codecs   metadata of the codecs in the order of writing
    /// @throws InvalidInput for a codec that this program or this build does not read, with what to do
    explicit ZarrByteCodecs(std::span<const nlohmann::json> codecs);

    bool is_empty() const { return codecs_.empty(); }

    /// @param where   begins messages: the file
    /// @return `size` bytes
    /// @throws IoError if the bytes are damaged, or of another size
    std::vector<std::byte> decode(std::vector<std::byte> bytes, std::uint64_t size, const std::string& where) const;

private:
    enum class Kind : std::uint8_t { Checksum, Gzip, Zstd, Blosc };

    std::vector<Kind> codecs_;
};

/// Metadata of the codecs that `encode_zarr_chunk` applies: zstd with a checksum, or without that library a checksum
/// alone.
nlohmann::ordered_json zarr_chunk_codecs();

std::vector<std::byte> encode_zarr_chunk(std::span<const std::byte> bytes);

/// Returns the name of a codec or another extension: metadata are an object with a name, or the name.
std::string zarr_name(const nlohmann::json& metadata);

}  // namespace meshard
