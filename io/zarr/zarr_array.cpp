// SPDX-License-Identifier: Apache-2.0
#include "io/zarr/zarr_array.h"

#include "io/bytes/base64.h"
#include "io/zarr/zarr_box.h"
#include "partition/error.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace meshard {
namespace {

using Json = nlohmann::json;
using Sizes = ZarrArray::Sizes;

constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;  // of an array's dimension and of a chunk
constexpr std::uint64_t kIsAbsent = std::numeric_limits<std::uint64_t>::max();
constexpr bool kIsBigEndian = std::endian::native == std::endian::big;

const std::map<std::string, ScalarType>& types()
{
    static const std::map<std::string, ScalarType> by_name{
        {"bool", ScalarType::UInt8},      {"int8", ScalarType::Int8},      {"uint8", ScalarType::UInt8},
        {"int16", ScalarType::Int16},     {"uint16", ScalarType::UInt16},  {"int32", ScalarType::Int32},
        {"uint32", ScalarType::UInt32},   {"int64", ScalarType::Int64},    {"uint64", ScalarType::UInt64},
        {"float32", ScalarType::Float32}, {"float64", ScalarType::Float64}};
    return by_name;
}

Sizes sizes_of(const Json& numbers, std::int64_t least, const char* what)
{
    const auto sizes = numbers.get<Sizes>();
    std::int64_t product = 1;
    for (const auto size : sizes)
        if (size < least || size > kMostBytes ||
            __builtin_mul_overflow(product, std::max<std::int64_t>(1, size), &product))
            throw IoError("has the {} [{}], which is none", what, fmt::join(sizes, ", "));
    return sizes;
}

/// The bytes of a fill value: a number, a truth value, `NaN`, `Infinity`, `-Infinity` or the bits as `0x7fc00000`.
std::vector<std::byte> fill_bytes(const Json& value, ScalarType type)
{
    std::vector<std::byte> bytes(size_of(type));
    const auto text = value.is_string() ? value.get<std::string>() : "";
    if (text.starts_with("0x")) {
        const auto bits = std::stoull(text, nullptr, 16);
        for (std::size_t i = 0; i < bytes.size(); ++i)
            bytes[kIsBigEndian ? bytes.size() - 1 - i : i] = static_cast<std::byte>(bits >> (8 * i));
        return bytes;
    }
    with_scalar_type(type, [&]<class T>() {
        T number{};
        if (value.is_boolean())
            number = static_cast<T>(value.get<bool>());
        else if (text.empty())
            number = value.get<T>();
        else if (text == "NaN")
            number = std::numeric_limits<T>::quiet_NaN();
        else if (text == "Infinity" || text == "-Infinity")
            number = text[0] == '-' ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity();
        else
            throw IoError("has the fill value '{}', which is no number", text);
        std::memcpy(bytes.data(), &number, sizeof number);
    });
    return bytes;
}

bool is_swapped(const Json& bytes_codec)
{
    if (bytes_codec.is_string() || !bytes_codec.contains("configuration")) return false;
    const auto endian = bytes_codec.at("configuration").value("endian", "little");
    return (endian == "big") != kIsBigEndian;
}

void swap_bytes(std::span<std::byte> values, std::size_t width)
{
    if (width < 2) return;
    for (std::size_t i = 0; i + width <= values.size(); i += width)
        std::reverse(values.data() + i, values.data() + i + width);
}

Json read_metadata(const std::filesystem::path& file, const std::string& where)
{
    constexpr std::uint64_t kMostMetadata = 1 << 28;
    const auto text = RandomAccessFile::open(file, "read_mesh")->text(0, kMostMetadata);
    const auto json = Json::parse(text, nullptr, false);
    if (!json.is_object())
        throw IoError("{}: zarr.json is no JSON object: it is damaged or cut short. Copy or write it again.", where);
    if (const auto version = json.value("zarr_format", Json()); version != 3)
        throw IoError("{}: zarr.json has zarr_format {}, expected 3. Write it with zarr_format=3.", where,
                      version.dump());
    return json;
}

void add_arrays(ZarrGroup& group, const std::filesystem::path& folder, const std::string& prefix, bool has_all_chunks,
                const std::string& where)
{
    std::vector<std::filesystem::path> below;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (std::filesystem::exists(entry.path() / "zarr.json")) below.push_back(entry.path());
    std::ranges::sort(below);
    for (const auto& path : below) {
        const auto name = prefix + path.filename().string();
        const auto metadata = read_metadata(path / "zarr.json", where + ": '" + name + "'");
        if (metadata.value("node_type", Json()) == "group") {
            add_arrays(group, path, name + "/", has_all_chunks, where);
            continue;
        }
        try {
            group.arrays.emplace(name, ZarrArray(path, metadata, has_all_chunks, where + ": array '" + name + "'"));
        } catch (const InvalidInput& not_read) {
            group.left_out.emplace(name, not_read.what());
        }
    }
}

}  // namespace

ZarrArray::ZarrArray(std::filesystem::path folder, const Json& metadata, bool has_all_chunks, std::string where)
    : folder_(std::move(folder)), where_(std::move(where)), has_all_chunks_(has_all_chunks)
{
    const auto fail = [&](const std::string& what) {
        throw IoError("{}: zarr.json {}. It is damaged: copy or write it again.", where_, what);
    };
    try {
        read_layout(metadata);
    } catch (const Json::exception& wrong) {
        fail(fmt::format("is not that of an array ({})", wrong.what()));
    } catch (const IoError& wrong) {
        fail(wrong.what());
    } catch (const std::logic_error& wrong) {  // std::stoull throws it
        fail("has a fill value that is no number");
    }
}

void ZarrArray::read_layout(const Json& metadata)
{
    if (metadata.at("node_type") != "array") throw IoError("says neither that it is a group nor an array");
    shape_ = sizes_of(metadata.at("shape"), 0, "shape");
    const auto num_dimensions = shape_.size();
    if (const auto found = metadata.find("dimension_names"); found != metadata.end() && found->is_array()) {
        for (const auto& name : *found) dimension_names_.push_back(name.is_string() ? name.get<std::string>() : "");
        if (dimension_names_.size() != num_dimensions)
            throw IoError("has {} dimension_names for {} dimensions", dimension_names_.size(), num_dimensions);
    }
    const auto attributes = metadata.value("attributes", Json::object());
    unit_ = attributes.is_object() && attributes.contains("units") && attributes.at("units").is_string()
                ? attributes.at("units").get<std::string>()
                : "";
    const auto type_name = metadata.at("data_type").is_string() ? metadata.at("data_type").get<std::string>()
                                                                : zarr_name(metadata.at("data_type"));
    const auto type = types().find(type_name);
    if (type == types().end())
        throw InvalidInput("has the data type {}, which is not read. Write it as float32 or float64, or as "
                           "integers.",
                           type_name);
    type_ = type->second;
    if (attributes.is_object()) read_packing(attributes);
    if (const auto found = metadata.find("storage_transformers"); found != metadata.end() && !found->empty())
        throw InvalidInput("has the storage transformer '{}', which is not read. Write it without.",
                           zarr_name(found->at(0)));
    const auto& grid = metadata.at("chunk_grid");
    if (const auto name = zarr_name(grid); name != "regular")
        throw InvalidInput("has chunks on the grid '{}', which is not read. Write it with regular chunks.", name);
    chunk_shape_ = sizes_of(grid.at("configuration").at("chunk_shape"), 1, "chunk_shape");
    if (chunk_shape_.size() != num_dimensions)
        throw IoError("has chunks of {} dimensions and an array of {}", chunk_shape_.size(), num_dimensions);
    const auto& keys = metadata.at("chunk_key_encoding");
    const auto keys_name = zarr_name(keys);
    if (keys_name != "default" && keys_name != "v2")
        throw InvalidInput("has the chunk_key_encoding '{}', which is not read. Write it with default.", keys_name);
    has_v2_keys_ = keys_name == "v2";
    separator_ = has_v2_keys_ ? "." : "/";
    if (keys.is_object() && keys.contains("configuration"))
        separator_ = keys.at("configuration").value("separator", separator_);
    if (separator_ != "/" && separator_ != ".") throw IoError("has chunk keys separated by '{}'", separator_);
    pipeline_ = pipeline_of(metadata.at("codecs"), true);
    fill_value_ = fill_bytes(metadata.at("fill_value"), type_);
    const auto& decoded = inner_shape_.empty() ? chunk_shape_ : inner_shape_;
    if (product_of(decoded) > kMostBytes / static_cast<std::int64_t>(size_of(type_)))
        throw IoError("has chunks of [{}] values, more than a chunk can hold", fmt::join(decoded, ", "));
}

void ZarrArray::read_packing(const Json& attributes)
{
    if (attributes.value("_Unsigned", Json()) == "true")
        throw InvalidInput("has the attribute _Unsigned, which is not read. Write it unpacked, as float32.");
    const auto numbers = [&](const char* name) {
        const auto found = attributes.find(name);
        std::vector<double> values;
        if (found == attributes.end()) return values;
        for (const auto& one : found->is_array() ? *found : Json::array({*found})) {
            if (one.is_number()) {
                values.push_back(one.get<double>());
                continue;
            }
            // Numbers with a point may be bytes, little endian, as xarray writes them.
            const auto bytes = decode_base64(one.is_string() ? one.get<std::string>() : "");
            if (bytes && bytes->size() == sizeof(double))
                std::memcpy(&values.emplace_back(), bytes->data(), sizeof(double));
            else if (one != "NaN")
                throw InvalidInput("has the attribute {} of {}, which is no number. Write it unpacked, as "
                                   "float32.",
                                   name, one.dump());
        }
        return values;
    };
    for (const auto& [name, to] :
         {std::pair("scale_factor", &packing_.scale), std::pair("add_offset", &packing_.offset)}) {
        const auto values = numbers(name);
        if (values.size() > 1)
            throw InvalidInput("has {} numbers in the attribute {}, expected one. Write it unpacked, as "
                               "float32.",
                               values.size(), name);
        if (!values.empty()) *to = values.front();
    }
    for (const char* name : {"_FillValue", "missing_value"})
        for (const auto value : numbers(name))
            if (!std::isnan(value)) packing_.missing.push_back(value);
}

ZarrArray::Pipeline ZarrArray::pipeline_of(const Json& codecs, bool of_whole_chunks)
{
    Pipeline pipeline{.order = plain_order(shape_.size()), .codecs = {}};
    auto next = codecs.begin();
    for (; next != codecs.end() && zarr_name(*next) == "transpose"; ++next) {
        const auto moved = next->at("configuration").at("order").get<std::vector<std::size_t>>();
        auto sorted = moved;
        std::ranges::sort(sorted);
        if (sorted != plain_order(shape_.size())) throw IoError("has a transpose whose order is no permutation");
        auto order = pipeline.order;
        for (std::size_t i = 0; i < moved.size(); ++i) order[i] = pipeline.order[moved[i]];
        pipeline.order = std::move(order);
    }
    if (next == codecs.end()) throw IoError("has no codec that makes bytes of the values");
    const auto& to_bytes = *next++;
    const auto name = zarr_name(to_bytes);
    const std::vector<Json> rest(next, codecs.end());
    if (name == "sharding_indexed") {
        if (!of_whole_chunks || !rest.empty() || pipeline.order != plain_order(shape_.size()))
            throw InvalidInput("has shards in shards, or shards that are transposed or compressed as a whole, which "
                               "are not read. Write it with compressed chunks in shards.");
        const auto& configuration = to_bytes.at("configuration");
        read_sharding(configuration);
        return pipeline_of(configuration.at("codecs"), false);
    }
    if (name != "bytes")
        throw InvalidInput("has the codec '{}', which is not read. Write it with bytes or sharding_indexed.", name);
    pipeline.is_swapped = is_swapped(to_bytes);
    pipeline.codecs = ZarrByteCodecs(rest);
    return pipeline;
}

void ZarrArray::read_sharding(const Json& configuration)
{
    inner_shape_ = sizes_of(configuration.at("chunk_shape"), 1, "chunk_shape of its shards");
    for (std::size_t dim = 0; dim < shape_.size(); ++dim)
        if (inner_shape_.size() != shape_.size() || chunk_shape_[dim] % inner_shape_[dim] != 0)
            throw IoError("has chunks of [{}] in shards of [{}], which they do not fill", fmt::join(inner_shape_, ", "),
                          fmt::join(chunk_shape_, ", "));
    const auto place = configuration.value("index_location", "end");
    is_index_last_ = place == "end";
    for (const auto& codec : configuration.at("index_codecs")) {
        const auto name = zarr_name(codec);
        if (name == "bytes")
            is_index_swapped_ = is_swapped(codec);
        else if (name == "crc32c")
            has_index_checksum_ = true;
        else
            throw InvalidInput(
                "has an index of its shards with the codec '{}', which is not read. Write it with bytes and crc32c.",
                name);
    }
}

std::string ZarrArray::key_of(const Sizes& chunk) const
{
    const auto numbers = fmt::format("{}", fmt::join(chunk, separator_));
    if (has_v2_keys_) return numbers.empty() ? "0" : numbers;
    return numbers.empty() ? "c" : "c" + separator_ + numbers;
}

void ZarrArray::read_box(const Sizes& first, const Sizes& count, std::span<std::byte> out) const
{
    const Wanted wanted{first, count, out};
    for_each_chunk(chunk_shape_, first, count, [&](const Sizes& chunk) {
        auto begin = chunk;
        for (std::size_t dim = 0; dim < begin.size(); ++dim) begin[dim] *= chunk_shape_[dim];
        const auto key = key_of(chunk);
        const auto file = folder_ / key;
        const auto where = where_ + ": chunk " + key;
        std::error_code error;
        if (!std::filesystem::exists(file, error)) {
            if (has_all_chunks_) throw IoError("{} is missing. Copy or write it again.", where);
            fill(begin, chunk_shape_, wanted);
            return;
        }
        const auto opened = RandomAccessFile::open(file, "read_mesh");
        if (!inner_shape_.empty()) {
            read_shard(*opened, where, begin, wanted);
            return;
        }
        std::vector<std::byte> bytes(opened->size());
        opened->read(0, bytes);
        put(pipeline_, std::move(bytes), begin, chunk_shape_, wanted, where);
    });
}

void ZarrArray::read_shard(const RandomAccessFile& file, const std::string& where, const Sizes& begin,
                           const Wanted& wanted) const
{
    constexpr std::uint64_t kEntry = 16;  // first byte and number of bytes of a chunk
    Sizes num_chunks;
    for (std::size_t dim = 0; dim < begin.size(); ++dim) num_chunks.push_back(chunk_shape_[dim] / inner_shape_[dim]);
    const auto num_entries = static_cast<std::uint64_t>(product_of(num_chunks));
    const auto index_size = kEntry * num_entries + (has_index_checksum_ ? 4 : 0);
    if (num_entries > file.size() / kEntry || index_size > file.size())
        throw IoError("{} is cut short: its shard has an index of {} chunks, {} bytes each, and the file {} "
                      "bytes. Copy or write it again.",
                      where, num_entries, kEntry, file.size());
    std::vector<std::byte> index(index_size);
    file.read(is_index_last_ ? file.size() - index_size : 0, index);
    if (has_index_checksum_) {
        static const ZarrByteCodecs checksum(std::vector<Json>{"crc32c"});
        index = checksum.decode(std::move(index), kEntry * num_entries, where + ": the index of its shard");
    }
    if (is_index_swapped_) swap_bytes(index, sizeof(std::uint64_t));

    const SharedBox shared(wanted.first, wanted.count, begin, chunk_shape_);
    auto first = shared.first;
    for (std::size_t dim = 0; dim < begin.size(); ++dim) first[dim] -= begin[dim];
    for_each_chunk(inner_shape_, first, shared.count, [&](const Sizes& chunk) {
        std::uint64_t number = 0, place[2];
        auto begin_of_chunk = begin;
        for (std::size_t dim = 0; dim < chunk.size(); ++dim) {
            number = number * static_cast<std::uint64_t>(num_chunks[dim]) + static_cast<std::uint64_t>(chunk[dim]);
            begin_of_chunk[dim] += chunk[dim] * inner_shape_[dim];
        }
        std::memcpy(place, index.data() + kEntry * number, sizeof place);
        const auto where_in_shard = fmt::format("{}: chunk {} of its shard", where, fmt::join(chunk, "/"));
        if (place[0] == kIsAbsent && place[1] == kIsAbsent) {
            fill(begin_of_chunk, inner_shape_, wanted);
            return;
        }
        if (place[0] > file.size() || place[1] > file.size() - place[0])
            throw IoError("{} should have {} bytes from byte {} on, and the file has {}. It is damaged or "
                          "cut short: copy or write it again.",
                          where_in_shard, place[1], place[0], file.size());
        std::vector<std::byte> bytes(place[1]);
        file.read(place[0], bytes);
        put(pipeline_, std::move(bytes), begin_of_chunk, inner_shape_, wanted, where_in_shard);
    });
}

void ZarrArray::put(const Pipeline& pipeline, std::vector<std::byte> bytes, const Sizes& begin,
                    const Sizes& chunk_shape, const Wanted& wanted, const std::string& where) const
{
    const auto width = size_of(type_);
    bytes =
        pipeline.codecs.decode(std::move(bytes), width * static_cast<std::uint64_t>(product_of(chunk_shape)), where);
    if (pipeline.is_swapped) swap_bytes(bytes, width);
    const auto strides = strides_of(chunk_shape, pipeline.order);
    const SharedBox shared(wanted.first, wanted.count, begin, chunk_shape);
    const auto step = static_cast<std::size_t>(strides.empty() ? 1 : strides.back());
    shared.for_each_run(begin, strides, wanted.first, strides_of(wanted.count, plain_order(wanted.count.size())),
                        [&](std::size_t from, std::size_t to, std::size_t length) {
                            const auto* source = bytes.data() + from * width;
                            auto* target = wanted.out.data() + to * width;
                            if (step == 1) {
                                std::memcpy(target, source, length * width);
                                return;
                            }
                            for (std::size_t i = 0; i < length; ++i)
                                std::memcpy(target + i * width, source + i * step * width, width);
                        });
}

void ZarrArray::fill(const Sizes& begin, const Sizes& chunk_shape, const Wanted& wanted) const
{
    const auto strides = strides_of(wanted.count, plain_order(wanted.count.size()));
    const auto width = fill_value_.size();
    SharedBox(wanted.first, wanted.count, begin, chunk_shape)
        .for_each_run(begin, strides, wanted.first, strides, [&](std::size_t, std::size_t to, std::size_t length) {
            for (std::size_t i = to; i < to + length; ++i)
                std::memcpy(wanted.out.data() + i * width, fill_value_.data(), width);
        });
}

ZarrGroup open_zarr_group(const std::filesystem::path& folder, const std::string& where)
{
    std::error_code error;
    if (!std::filesystem::exists(folder, error)) throw IoError("{} does not exist.", where);
    if (!std::filesystem::exists(folder / "zarr.json", error)) {
        const bool is_older =
            std::filesystem::exists(folder / ".zgroup", error) || std::filesystem::exists(folder / ".zarray", error);
        throw IoError(where + (is_older ? " is of Zarr's version 2, expected 3. Write it with zarr_format=3."
                                        : " has no zarr.json; expected a group of Zarr's version 3."));
    }
    const auto metadata = read_metadata(folder / "zarr.json", where);
    const auto node_type = metadata.value("node_type", Json()).dump();
    if (node_type != "\"group\"")
        throw IoError(
            "{}: zarr.json has the node_type {}, expected \"group\". Name the folder of the group that has the arrays.",
            where, node_type);
    ZarrGroup group{.attributes = metadata.value("attributes", Json::object()), .arrays = {}, .left_out = {}};
    const bool has_all_chunks =
        group.attributes.is_object() && group.attributes.value("has_all_chunks", Json()) == true;
    try {
        add_arrays(group, folder, "", has_all_chunks, where);
    } catch (const std::filesystem::filesystem_error& wrong) {
        throw IoError("{} cannot be listed: {}.", where, wrong.code().message());
    }
    return group;
}

}  // namespace meshard
