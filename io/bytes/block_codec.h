// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace meshard {

enum class Compression : std::uint8_t { None, Zlib, Lz4 };

/// Whether this build can read and write blocks of that kind; lz4 is optional.
bool is_available(Compression compression);

/// VTK's name of the compressor in its XML files, e.g. `vtkZLibDataCompressor`; empty for None.
std::string_view vtk_compressor_name(Compression compression);

/// How many times smaller a block can at most become: what claims more is damaged and must not make us allocate.
std::uint64_t largest_ratio(Compression compression);

std::size_t compressed_bound(Compression compression, std::size_t size);

/// Size of the compressed block in `out`, which has room for `compressed_bound`; 0 if it could not be made.
std::size_t compress_block(Compression compression, std::span<const std::byte> in, std::span<std::byte> out);

/// Whether `in` is a whole block that fills `out` to the last byte.
bool decompress_block(Compression compression, std::span<const std::byte> in, std::span<std::byte> out);

/// Calls `f(0) ... f(count - 1)`, on as many threads as this process may use. The first exception is thrown again when all threads have ended; numbers
/// not begun by then stay undone.
void for_each_in_parallel(std::size_t count, const std::function<void(std::size_t)>& f);

}  // namespace meshard
