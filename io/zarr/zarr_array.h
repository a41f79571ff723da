// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/mapped_file.h"
#include "io/bytes/packed_numbers.h"
#include "io/zarr/zarr_codecs.h"
#include "partition/mesh/data_array.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// An array of a Zarr store of version 3: a folder with `zarr.json` and chunks of equal extents, each a file or, in
/// shards, a piece of one.
class ZarrArray {
public:
    using Sizes = std::vector<std::int64_t>;

    /// @param folder           has the chunks  @param metadata   the content of its `zarr.json`
    /// @param has_all_chunks   an absent chunk is an error; else it stands for the array's fill value
    /// @param where            begins messages: the file and the array
    /// @throws IoError if the metadata are damaged; InvalidInput for a type, codec, ... that is not read, with what to
    /// do, without `where`
    ZarrArray(std::filesystem::path folder, const nlohmann::json& metadata, bool has_all_chunks, std::string where);

    ScalarType type() const { return type_; }
    const Sizes& shape() const { return shape_; }
    const std::vector<std::string>& dimension_names() const { return dimension_names_; }  ///< empty: it has none
    const std::string& unit() const { return unit_; }  ///< its attribute `units`; empty: it has none
    const PackedNumbers& packing() const { return packing_; }

    /// Reads the values from `first` on, `count` along each dimension, of which the last is fastest, in this machine's
    /// byte order. Opens the chunks that have some of them, one at a time. Any thread may call it.
    /// @throws IoError if a chunk is damaged
    void read_box(const Sizes& first, const Sizes& count, std::span<std::byte> out) const;

private:
    /// How the bytes of a chunk, or of one in a shard, are written.
    struct Pipeline {
        std::vector<std::size_t> order;  ///< the array's dimensions as the bytes have them, slowest first
        bool is_swapped = false;
        ZarrByteCodecs codecs;
    };
    /// A part of the array that lies in the box that is read.
    struct Wanted {
        Sizes first, count;  ///< of the box
        std::span<std::byte> out;
    };

    void read_layout(const nlohmann::json& metadata);
    void read_packing(const nlohmann::json& attributes);
    Pipeline pipeline_of(const nlohmann::json& codecs, bool of_whole_chunks);
    void read_sharding(const nlohmann::json& configuration);
    std::string key_of(const Sizes& chunk) const;
    void read_shard(const RandomAccessFile& file, const std::string& where, const Sizes& begin,
                    const Wanted& wanted) const;
    void put(const Pipeline& pipeline, std::vector<std::byte> bytes, const Sizes& begin, const Sizes& chunk_shape,
             const Wanted& wanted, const std::string& where) const;
    void fill(const Sizes& begin, const Sizes& chunk_shape, const Wanted& wanted) const;

    std::filesystem::path folder_;
    std::string where_;
    bool has_all_chunks_;
    ScalarType type_ = ScalarType::Float32;
    Sizes shape_, chunk_shape_;
    std::vector<std::string> dimension_names_;
    std::string unit_;
    PackedNumbers packing_;
    std::vector<std::byte> fill_value_;
    std::string separator_ = "/";
    bool has_v2_keys_ = false;
    Pipeline pipeline_;  // of chunks, or of those in shards
    Sizes inner_shape_;  // of the chunks in a shard; empty: there are no shards
    bool is_index_swapped_ = false, is_index_last_ = true, has_index_checksum_ = false;
};

/// A group of a Zarr store of version 3: a folder with `zarr.json`, and arrays and groups in folders below it.
struct ZarrGroup {
    nlohmann::json attributes;
    std::map<std::string, ZarrArray> arrays;      ///< by name, in groups below it `GROUP/NAME`
    std::map<std::string, std::string> left_out;  ///< arrays that cannot be read, and why
};

/// Reads the metadata of a group and of all arrays in it.
/// @param where   begins messages: the folder
/// @throws IoError if it is missing, damaged or no group of version 3
ZarrGroup open_zarr_group(const std::filesystem::path& folder, const std::string& where);

}  // namespace meshard
