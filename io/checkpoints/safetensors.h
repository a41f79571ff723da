// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// Type of a NamedArray's values; the names are those of the safetensors format.
enum class ArrayType : std::uint8_t { F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, BOOL };

std::size_t size_of(ArrayType type);
std::string_view to_string(ArrayType type);

/// A dense row-major array with a name: one tensor of a checkpoint, without LibTorch.
struct NamedArray {
    std::string name;
    ArrayType type = ArrayType::F32;
    std::vector<std::int64_t> shape;    ///< empty for a single value
    const std::byte* data = nullptr;    ///< aligned for the type
    std::shared_ptr<const void> owner;  ///< keeps `data` alive; null if the caller does

    std::int64_t num_values() const;
    std::span<const std::byte> bytes() const { return {data, static_cast<std::size_t>(num_values()) * size_of(type)}; }
};

/// The content of a safetensors file: arrays in the order of its header, and its metadata.
struct NamedArrays {
    std::vector<NamedArray> arrays;
    std::map<std::string, std::string> metadata;

    const NamedArray* find(std::string_view name) const;  ///< null if absent
};

/// The metadata entry in which a checkpoint of meshard describes itself, as the text of a JSON object, and the version
/// of that object.
inline constexpr const char* checkpoint_key = "meshard";
inline constexpr int checkpoint_version = 1;

/// Maps a safetensors file; the arrays are views into it (copies if the file does not align them).
/// @throws IoError if the file is missing, truncated, or breaks a rule of the format: header length, JSON, a type, an
///         offset out of range, overlaps, gaps, a size that does not match its shape, a name twice; or if its content
///         does not have the hash that `write_safetensors` has stored. UnknownVersion for a checkpoint of another
///         version.
NamedArrays read_safetensors(const std::filesystem::path& path);

/// Returns whether a file begins with the length of a header that fits into it, and the header with a brace.
bool looks_like_safetensors(std::span<const std::byte> bytes);

/// @param where   begins the message
/// @throws InvalidInput if a name occurs twice or is `__metadata__`, an extent is negative, or values are missing
void require_writable(const NamedArrays& content, const std::string& where);

/// Writes atomically; arrays are aligned so that a reader can map them, and keep their order. The metadata get an entry
/// `meshard_hash`.
/// @throws InvalidInput as `require_writable`
/// @throws IoError if the file cannot be written.
void write_safetensors(const std::filesystem::path& path, const NamedArrays& content);

}  // namespace meshard
