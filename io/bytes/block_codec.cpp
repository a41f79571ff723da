// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/block_codec.h"

#include "partition/run_on_threads.h"

#ifdef MESHARD_WITH_LIBDEFLATE
#include <libdeflate.h>
#else
#include <zlib.h>
#endif
#ifdef MESHARD_WITH_LZ4
#include <lz4.h>
#endif
#ifdef MESHARD_WITH_LZMA
#include <lzma.h>
#endif

#include <algorithm>
#include <limits>
#include <memory>
#include <thread>

namespace meshard {

namespace {

#ifdef MESHARD_WITH_LIBDEFLATE
constexpr int zlib_level = 6;

template <class T, void (*release)(T*)>
struct Release {
    void operator()(T* object) const { release(object); }
};

libdeflate_compressor* this_threads_compressor()
{
    thread_local const std::unique_ptr<libdeflate_compressor,
                                       Release<libdeflate_compressor, libdeflate_free_compressor>>
        one(libdeflate_alloc_compressor(zlib_level));
    return one.get();
}

libdeflate_decompressor* this_threads_decompressor()
{
    thread_local const std::unique_ptr<libdeflate_decompressor,
                                       Release<libdeflate_decompressor, libdeflate_free_decompressor>>
        one(libdeflate_alloc_decompressor());
    return one.get();
}
#else
const Bytef* zlib_bytes(std::span<const std::byte> bytes)
{
    return reinterpret_cast<const Bytef*>(bytes.data());
}
#endif

}  // namespace

bool is_available(Compression compression)
{
#ifndef MESHARD_WITH_LZ4
    if (compression == Compression::Lz4) return false;
#endif
#ifndef MESHARD_WITH_LZMA
    if (compression == Compression::Lzma) return false;
#endif
    return compression != Compression::None;
}

std::string_view vtk_compressor_name(Compression compression)
{
    switch (compression) {
    case Compression::Zlib:
        return "vtkZLibDataCompressor";
    case Compression::Lz4:
        return "vtkLZ4DataCompressor";
    case Compression::Lzma:
        return "vtkLZMADataCompressor";
    default:
        return {};
    }
}

std::uint64_t largest_ratio(Compression compression)
{
    switch (compression) {
    case Compression::Zlib:
        return 1032;
    case Compression::Lz4:
        return 255;
    case Compression::Lzma:
        return 10000;  // zeros reach some 7,000
    default:
        return 1;
    }
}

std::size_t compressed_bound(Compression compression, std::size_t size)
{
    if (compression == Compression::Zlib) {
#ifdef MESHARD_WITH_LIBDEFLATE
        return libdeflate_zlib_compress_bound(this_threads_compressor(), size);
#else
        return ::compressBound(size);
#endif
    }
    return size + size / 255 + 16;  // LZ4_COMPRESSBOUND
}

std::size_t compress_block(Compression compression, std::span<const std::byte> in, std::span<std::byte> out)
{
    if (compression == Compression::Zlib) {
#ifdef MESHARD_WITH_LIBDEFLATE
        return libdeflate_zlib_compress(this_threads_compressor(), in.data(), in.size(), out.data(), out.size());
#else
        uLongf written = out.size();
        return ::compress(reinterpret_cast<Bytef*>(out.data()), &written, zlib_bytes(in), in.size()) == Z_OK ? written
                                                                                                             : 0;
#endif
    }
#ifdef MESHARD_WITH_LZ4
    if (compression == Compression::Lz4 && in.size() <= LZ4_MAX_INPUT_SIZE &&
        out.size() <= std::numeric_limits<int>::max())
        return static_cast<std::size_t>(
            LZ4_compress_default(reinterpret_cast<const char*>(in.data()), reinterpret_cast<char*>(out.data()),
                                 static_cast<int>(in.size()), static_cast<int>(out.size())));
#endif
    return 0;
}

bool decompress_block(Compression compression, std::span<const std::byte> in, std::span<std::byte> out)
{
    if (compression == Compression::Zlib) {
#ifdef MESHARD_WITH_LIBDEFLATE
        return libdeflate_zlib_decompress(this_threads_decompressor(), in.data(), in.size(), out.data(), out.size(),
                                          nullptr) == LIBDEFLATE_SUCCESS;
#else
        uLongf written = out.size();
        return ::uncompress(reinterpret_cast<Bytef*>(out.data()), &written, zlib_bytes(in), in.size()) == Z_OK &&
               written == out.size();
#endif
    }
#ifdef MESHARD_WITH_LZ4
    constexpr std::size_t most = std::numeric_limits<int>::max();
    if (compression == Compression::Lz4 && in.size() <= most && out.size() <= most)
        return LZ4_decompress_safe(reinterpret_cast<const char*>(in.data()), reinterpret_cast<char*>(out.data()),
                                   static_cast<int>(in.size()),
                                   static_cast<int>(out.size())) == static_cast<int>(out.size());
#endif
#ifdef MESHARD_WITH_LZMA
    if (compression == Compression::Lzma) {
        std::uint64_t most_memory = 256U << 20;  // the highest preset takes 65 MiB, a damaged header may ask for 4 GiB
        std::size_t read = 0, written = 0;
        const auto result =
            lzma_stream_buffer_decode(&most_memory, 0, nullptr, reinterpret_cast<const std::uint8_t*>(in.data()), &read,
                                      in.size(), reinterpret_cast<std::uint8_t*>(out.data()), &written, out.size());
        return result == LZMA_OK && read == in.size() && written == out.size();
    }
#endif
    return false;
}

void for_each_in_parallel(std::size_t count, const std::function<void(std::size_t)>& f)
{
    const std::size_t num_threads = std::min<std::size_t>(count, std::max(1U, std::thread::hardware_concurrency()));
    run_on_threads(static_cast<std::int32_t>(num_threads), [&](const std::function<std::int64_t()>& next) {
        for (auto i = static_cast<std::size_t>(next()); i < count; i = static_cast<std::size_t>(next())) f(i);
    });
}

}  // namespace meshard
