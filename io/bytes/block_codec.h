// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace meshard {

enum class Compression : std::uint8_t { None, Zlib, Lz4, Lzma };

/// Returns whether this build can read and write blocks of that kind; lz4 and lzma, which is only read, are optional.
bool is_available(Compression compression);

/// VTK's name of the compressor in its XML files, e.g. `vtkZLibDataCompressor`; empty for None.
std::string_view vtk_compressor_name(Compression compression);

/// Upper bound of the compression ratio. A block that claims a higher one is damaged; no memory is allocated for it.
std::uint64_t largest_ratio(Compression compression);

std::size_t compressed_bound(Compression compression, std::size_t size);

/// Compresses a block to `out`, which has room for `compressed_bound`; returns the size, 0 on failure.
std::size_t compress_block(Compression compression, std::span<const std::byte> in, std::span<std::byte> out);

/// Decompresses a block; returns false unless `in` is a complete block that fills `out` exactly.
bool decompress_block(Compression compression, std::span<const std::byte> in, std::span<std::byte> out);

/// Calls `f(0) ... f(count - 1)`, on as many threads as this process may use. After an exception no further calls
/// start; it is rethrown when all threads have ended.
void for_each_in_parallel(std::size_t count, const std::function<void(std::size_t)>& f);

}  // namespace meshard
