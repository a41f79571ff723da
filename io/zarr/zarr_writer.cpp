// SPDX-License-Identifier: Apache-2.0
#include "io/zarr/zarr_writer.h"

#include "io/bytes/atomic_file.h"
#include "io/zarr/zarr_box.h"
#include "io/zarr/zarr_codecs.h"
#include "partition/error.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <bit>
#include <cctype>
#include <cstring>
#include <utility>

namespace meshard {
namespace {

using OrderedJson = nlohmann::ordered_json;

void make_folder(const std::filesystem::path& folder)
{
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw IoError("cannot create the folder {}: {}.", folder.string(), error.message());
}

/// A file in a folder that appears as a whole.
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes)
{
    AtomicFile file(path);
    file.write(bytes);
    file.commit(/*sync=*/false);
}

void write_metadata(const std::filesystem::path& folder, const OrderedJson& metadata)
{
    make_folder(folder);
    const auto text = metadata.dump(2) + "\n";
    write_file(folder / "zarr.json", std::as_bytes(std::span(text)));
}

}  // namespace

void write_zarr_group(const std::filesystem::path& folder, const OrderedJson& attributes)
{
    auto all = attributes;
    all["has_all_chunks"] = true;
    write_metadata(folder, {{"zarr_format", 3}, {"node_type", "group"}, {"attributes", all}});
}

ZarrArrayWriter::ZarrArrayWriter(std::filesystem::path folder, ScalarType type, std::vector<std::int64_t> shape,
                                 std::vector<std::int64_t> chunk_shape, const std::vector<std::string>& dimension_names)
    : folder_(std::move(folder)), width_(size_of(type)), shape_(std::move(shape)), chunk_shape_(std::move(chunk_shape))
{
    static_assert(std::endian::native == std::endian::little, "chunks are written as they are in memory");
    std::string type_name(to_string(type));  // Float32, in Zarr float32
    for (auto& letter : type_name) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    const bool is_float = type == ScalarType::Float32 || type == ScalarType::Float64;
    write_metadata(folder_, {{"zarr_format", 3},
                             {"node_type", "array"},
                             {"shape", shape_},
                             {"data_type", type_name},
                             {"chunk_grid", {{"name", "regular"}, {"configuration", {{"chunk_shape", chunk_shape_}}}}},
                             {"chunk_key_encoding", {{"name", "default"}, {"configuration", {{"separator", "/"}}}}},
                             {"fill_value", is_float ? OrderedJson("NaN") : OrderedJson(0)},
                             {"codecs", zarr_chunk_codecs()},
                             {"attributes", OrderedJson::object()},
                             {"dimension_names", dimension_names}});
}

void ZarrArrayWriter::write(const std::vector<std::int64_t>& first, const std::vector<std::int64_t>& count,
                            std::span<const std::byte> values) const
{
    const auto order = plain_order(shape_.size());
    const auto chunk_strides = strides_of(chunk_shape_, order), box_strides = strides_of(count, order);
    std::vector<std::byte> chunk(width_ * static_cast<std::size_t>(product_of(chunk_shape_)));
    for_each_chunk(chunk_shape_, first, count, [&](const ZarrSizes& number) {
        auto begin = number;
        for (std::size_t dim = 0; dim < begin.size(); ++dim) begin[dim] *= chunk_shape_[dim];
        const SharedBox shared(first, count, begin, chunk_shape_);
        if (shared.count != chunk_shape_) std::ranges::fill(chunk, std::byte{});  // beyond the array's end
        shared.for_each_run(begin, chunk_strides, first, box_strides,
                            [&](std::size_t to, std::size_t from, std::size_t length) {
                                std::memcpy(chunk.data() + to * width_, values.data() + from * width_, length * width_);
                            });
        const auto file = folder_ / fmt::format("c/{}", fmt::join(number, "/"));
        make_folder(file.parent_path());
        write_file(file, encode_zarr_chunk(chunk));
    });
}

}  // namespace meshard
