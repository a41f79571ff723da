// SPDX-License-Identifier: Apache-2.0
#include "io/zarr/zarr_codecs.h"

#include "io/bytes/content_hash.h"
#include "io/bytes/gzip.h"
#include "partition/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <ranges>
#include <string_view>
#ifdef MESHARD_WITH_ZSTD
#include <zstd.h>
#endif
#ifdef MESHARD_WITH_BLOSC
#include <blosc.h>
#endif

namespace meshard {
namespace {

constexpr std::size_t kChecksumSize = 4;

[[noreturn]] void fail_by_size(const std::string& where, std::uint64_t expected, std::uint64_t found)
{
    throw IoError("{} is damaged or cut short: it should hold {} bytes once it is decoded, found {}. Copy "
                  "or write it again.",
                  where, expected, found);
}

[[noreturn]] void fail_to_inflate(const std::string& where, std::string_view codec)
{
    throw IoError("{} is damaged or cut short: {} cannot inflate it. Copy or write it again.", where, codec);
}

std::array<std::byte, kChecksumSize> checksum_of(std::span<const std::byte> bytes)
{
    const auto checksum = crc32c({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    std::array<std::byte, kChecksumSize> stored;
    for (std::size_t i = 0; i < kChecksumSize; ++i) stored[i] = static_cast<std::byte>(checksum >> (8 * i));
    return stored;
}

void remove_checksum(std::vector<std::byte>& bytes, const std::string& where)
{
    if (bytes.size() < kChecksumSize) fail_by_size(where, kChecksumSize, bytes.size());
    const auto content = std::span(bytes).first(bytes.size() - kChecksumSize);
    if (!std::ranges::equal(checksum_of(content), std::span(bytes).last(kChecksumSize)))
        throw IoError("{} is damaged: its bytes have another checksum (crc32c) than they had when they were "
                      "written. Copy or write it again.",
                      where);
    bytes.resize(content.size());
}

std::vector<std::byte> inflate_gzip(const std::vector<std::byte>& bytes, std::uint64_t size, const std::string& where)
{
    const auto text = gunzip(bytes, where);
    if (text.size() != size) fail_by_size(where, size, text.size());
    const auto inflated = std::as_bytes(std::span(text));
    return {inflated.begin(), inflated.end()};
}

#ifdef MESHARD_WITH_ZSTD
std::vector<std::byte> inflate_zstd(const std::vector<std::byte>& bytes, std::uint64_t size, const std::string& where)
{
    const auto stated = ZSTD_getFrameContentSize(bytes.data(), bytes.size());
    if (stated == ZSTD_CONTENTSIZE_ERROR) fail_to_inflate(where, "zstd");
    constexpr std::uint64_t kLargestRatio = 1 << 16;  // no memory for what so few bytes cannot be
    if (stated != ZSTD_CONTENTSIZE_UNKNOWN && stated != size) fail_by_size(where, size, stated);
    if (size / kLargestRatio > bytes.size()) fail_to_inflate(where, "zstd");
    std::vector<std::byte> inflated(size);
    const auto count = ZSTD_decompress(inflated.data(), inflated.size(), bytes.data(), bytes.size());
    if (ZSTD_isError(count)) fail_to_inflate(where, "zstd");
    if (count != size) fail_by_size(where, size, count);
    return inflated;
}
#endif

#ifdef MESHARD_WITH_BLOSC
std::vector<std::byte> inflate_blosc(const std::vector<std::byte>& bytes, std::uint64_t size, const std::string& where)
{
    std::size_t stated = 0;
    if (bytes.size() < BLOSC_MIN_HEADER_LENGTH || blosc_cbuffer_validate(bytes.data(), bytes.size(), &stated) < 0)
        fail_to_inflate(where, "blosc");
    if (stated != size) fail_by_size(where, size, stated);
    std::vector<std::byte> inflated(size);
    if (blosc_decompress_ctx(bytes.data(), inflated.data(), inflated.size(), 1) != static_cast<int>(size))
        fail_to_inflate(where, "blosc");
    return inflated;
}
#endif

}  // namespace

std::string zarr_name(const nlohmann::json& metadata)
{
    if (metadata.is_string()) return metadata;
    return metadata.at("name");
}

ZarrByteCodecs::ZarrByteCodecs(std::span<const nlohmann::json> codecs)
{
    for (const auto& codec : codecs) {
        const auto name = zarr_name(codec);
        if (name == "crc32c") {
            codecs_.push_back(Kind::Checksum);
            continue;
        }
        if (name == "gzip") {
            codecs_.push_back(Kind::Gzip);
#ifdef MESHARD_WITH_ZSTD
        } else if (name == "zstd") {
            codecs_.push_back(Kind::Zstd);
#endif
#ifdef MESHARD_WITH_BLOSC
        } else if (name == "blosc") {
            codecs_.push_back(Kind::Blosc);
#endif
        } else if (name == "zstd" || name == "blosc") {
            throw InvalidInput("is compressed by {}, and this build of meshard has no lib{}. Build it "
                               "with lib{}-dev, or write the array with gzip.",
                               name, name, name);
        } else {
            throw InvalidInput("has the codec '{}', which is not read. Write it with zstd, gzip, blosc or "
                               "without compression.",
                               name);
        }
        if (codecs_.size() - static_cast<std::size_t>(std::ranges::count(codecs_, Kind::Checksum)) > 1)
            throw InvalidInput("is compressed twice, last by '{}'. Write it with one compressor.", name);
    }
}

std::vector<std::byte> ZarrByteCodecs::decode(std::vector<std::byte> bytes, std::uint64_t size,
                                              const std::string& where) const
{
    auto num_checksums = static_cast<std::uint64_t>(std::ranges::count(codecs_, Kind::Checksum));
    for (const auto codec : std::views::reverse(codecs_)) {
        // What a compressor gives has the checksums that were added before it.
        const auto inflated_size = size + kChecksumSize * num_checksums;
        switch (codec) {
        case Kind::Checksum:
            remove_checksum(bytes, where);
            --num_checksums;
            break;
        case Kind::Gzip:
            bytes = inflate_gzip(bytes, inflated_size, where);
            break;
#ifdef MESHARD_WITH_ZSTD
        case Kind::Zstd:
            bytes = inflate_zstd(bytes, inflated_size, where);
            break;
#endif
#ifdef MESHARD_WITH_BLOSC
        case Kind::Blosc:
            bytes = inflate_blosc(bytes, inflated_size, where);
            break;
#endif
        default:
            break;
        }
    }
    if (bytes.size() != size) fail_by_size(where, size, bytes.size());
    return bytes;
}

nlohmann::ordered_json zarr_chunk_codecs()
{
    nlohmann::ordered_json codecs{{{"name", "bytes"}, {"configuration", {{"endian", "little"}}}}};
#ifdef MESHARD_WITH_ZSTD
    codecs.push_back({{"name", "zstd"}, {"configuration", {{"level", 1}, {"checksum", true}}}});
#else
    codecs.push_back({{"name", "crc32c"}});
#endif
    return codecs;
}

std::vector<std::byte> encode_zarr_chunk(std::span<const std::byte> bytes)
{
#ifdef MESHARD_WITH_ZSTD
    const std::unique_ptr<ZSTD_CCtx, std::size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(), &ZSTD_freeCCtx);
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, 1);
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
    std::vector<std::byte> encoded(ZSTD_compressBound(bytes.size()));
    const auto size = ZSTD_compress2(context.get(), encoded.data(), encoded.size(), bytes.data(), bytes.size());
    if (ZSTD_isError(size)) throw Error("zstd: {}", ZSTD_getErrorName(size));
    encoded.resize(size);
#else
    std::vector<std::byte> encoded(bytes.begin(), bytes.end());
    const auto checksum = checksum_of(bytes);
    encoded.insert(encoded.end(), checksum.begin(), checksum.end());
#endif
    return encoded;
}

}  // namespace meshard
