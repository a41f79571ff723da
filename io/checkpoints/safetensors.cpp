// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoints/safetensors.h"

#include "io/bytes/atomic_file.h"
#include "io/bytes/content_hash.h"
#include "io/bytes/hashed_json.h"
#include "io/bytes/mapped_file.h"
#include "io/bytes/tar_archive.h"
#include "io/bytes/zip_archive.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>

namespace meshard {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::pair<std::string_view, std::size_t>, 13> array_types{{{"F64", 8},
                                                                                {"F32", 4},
                                                                                {"F16", 2},
                                                                                {"BF16", 2},
                                                                                {"I64", 8},
                                                                                {"I32", 4},
                                                                                {"I16", 2},
                                                                                {"I8", 1},
                                                                                {"U64", 8},
                                                                                {"U32", 4},
                                                                                {"U16", 2},
                                                                                {"U8", 1},
                                                                                {"BOOL", 1}}};
constexpr std::uint64_t max_header_size = 100'000'000;  // the format's own limit
constexpr const char* metadata_key = "__metadata__";
constexpr const char* hash_key = "meshard_hash";  // key in the metadata

/// Hash of the whole content of a file: names, types, shapes and values of its arrays, and its metadata, independent of
/// order and layout.
std::string content_hash(const NamedArrays& content)
{
    nlohmann::json summary{{"metadata", content.metadata}, {"arrays", nlohmann::json::object()}};
    summary["metadata"].erase(hash_key);
    for (const NamedArray& array : content.arrays)
        summary["arrays"][array.name] = {to_string(array.type), array.shape, xxh64(array.bytes())};
    return hash_of_json(summary);
}

/// Computes the product of `extents`, each at least 0; returns false if it overflows.
bool count_values(const std::vector<std::int64_t>& extents, std::int64_t& count)
{
    count = 1;
    if (contains(extents, 0)) count = 0;
    for (const std::int64_t extent : extents)
        if (count != 0 && __builtin_mul_overflow(count, extent, &count)) return false;
    return true;
}

class SafetensorsReader {
public:
    explicit SafetensorsReader(const std::filesystem::path& path)
        : path_(path), where_("read_safetensors: " + path.string()), file_(MappedFile::open(path, "read_safetensors"))
    {
    }

    NamedArrays read()
    {
        const auto bytes = file_->bytes();
        std::uint64_t header_size = 0;
        if (looks_like_zip(bytes) || looks_like_tar(bytes) || file_->text().starts_with("\x80\x02"))
            fail("is no safetensors file, but one as .mdlus and .pt are. `meshard convert " + path_.string() + " " +
                 "NAME.safetensors` converts it");
        if (bytes.size() < 8) fail(fmt::format("has {} bytes, a safetensors file has at least 8", bytes.size()));
        std::memcpy(&header_size, bytes.data(), 8);
        if (header_size > max_header_size || header_size > bytes.size() - 8)
            fail(fmt::format(
                "announces a header of {} bytes, but has {} after its length. It is truncated or no safetensors file",
                header_size, bytes.size() - 8));
        data_ = bytes.subspan(8 + header_size);
        const Json header = parse_header(file_->text().substr(8, header_size));
        for (const auto& [name, entry] : header.items()) {
            if (name == metadata_key)
                read_metadata(entry);
            else
                read_entry(name, entry);
        }
        check_layout();
        check_content();
        return std::move(content_);
    }

private:
    struct Extent {
        std::uint64_t begin, end;
        const std::string* name;
    };

    [[noreturn]] void fail(const std::string& what) const { throw IoError("{} {}.", where_, what); }

    Json parse_header(std::string_view text) const
    {
        if (!text.starts_with('{')) fail("has a header that does not begin with '{'. It is no safetensors file");
        std::set<std::string> names;
        const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
            if (event == Json::parse_event_t::key && depth == 1 && !names.insert(parsed.get<std::string>()).second)
                fail("has two arrays named '" + parsed.get<std::string>() + "'");
            return true;
        };
        try {
            return Json::parse(text, watch);
        } catch (const nlohmann::json::exception& error) {
            fail(std::string("has a header that is not valid JSON (") + error.what() + ")");
        }
    }

    void read_metadata(const Json& entry)
    {
        if (!entry.is_object()) fail("has metadata that are no JSON object");
        for (const auto& [name, value] : entry.items()) {
            if (!value.is_string()) fail("has metadata '" + name + "' that are no text");
            content_.metadata[name] = value.get<std::string>();
        }
    }

    void read_entry(const std::string& name, const Json& entry)
    {
        const std::string what = "has array '" + name + "' ";
        if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
            !entry.contains("data_offsets") || entry.size() != 3)
            fail(what + "whose entry does not consist of dtype, shape and data_offsets");
        NamedArray array;
        array.name = name;
        const std::string dtype = entry["dtype"].is_string() ? entry["dtype"].get<std::string>() : std::string();
        const auto* type = std::ranges::find(array_types, dtype, &std::pair<std::string_view, std::size_t>::first);
        if (type == array_types.end()) fail(what + "of unknown type '" + dtype + "'");
        array.type = static_cast<ArrayType>(type - array_types.begin());

        const Json& shape = entry["shape"];
        const Json& offsets = entry["data_offsets"];
        const auto is_count = [](const Json& value) {
            return value.is_number_unsigned() && value.get<std::uint64_t>() <= INT64_MAX;
        };
        if (!shape.is_array() || !std::ranges::all_of(shape, is_count))
            fail(what + "with a shape that is no list of counts");
        if (!offsets.is_array() || offsets.size() != 2 || !std::ranges::all_of(offsets, is_count))
            fail(what + "with data_offsets that are no pair of counts");
        for (const Json& extent : shape) array.shape.push_back(extent.get<std::int64_t>());

        const auto begin = offsets[0].get<std::uint64_t>(), end = offsets[1].get<std::uint64_t>();
        if (begin > end || end > data_.size())
            fail(fmt::format("{}at bytes {} to {} of {}. It is truncated or damaged", what, begin, end, data_.size()));
        std::int64_t count = 0, num_bytes = 0;
        if (!count_values(array.shape, count) ||
            __builtin_mul_overflow(count, static_cast<std::int64_t>(type->second), &num_bytes) ||
            static_cast<std::uint64_t>(num_bytes) != end - begin)
            fail(fmt::format("{}whose shape and type do not match its {} bytes", what, end - begin));
        array.data = data_.data() + begin;
        array.owner = file_;
        if (reinterpret_cast<std::uintptr_t>(array.data) % type->second != 0) {
            std::shared_ptr<std::byte[]> copy(new std::byte[end - begin]);
            std::memcpy(copy.get(), array.data, end - begin);
            array.data = copy.get();
            array.owner = copy;
        }
        content_.arrays.push_back(std::move(array));
        extents_.push_back({begin, end, nullptr});
    }

    /// The format wants the arrays to fill the data without gaps and overlaps.
    void check_layout()
    {
        for (std::size_t i = 0; i < extents_.size(); ++i) extents_[i].name = &content_.arrays[i].name;
        std::ranges::sort(extents_, {}, [](const Extent& extent) { return std::pair(extent.begin, extent.end); });
        std::uint64_t end = 0;
        for (const Extent& extent : extents_) {
            if (extent.begin != end)
                fail(fmt::format("has array '{}' at byte {}, expected {}: arrays {}", *extent.name, extent.begin, end,
                                 extent.begin < end ? "overlap" : "leave a gap"));
            end = extent.end;
        }
        if (end != data_.size())
            fail(fmt::format("has {} bytes after its last array. It is damaged", data_.size() - end));
    }

    /// Checks the version and the hash that meshard has written. The version comes first: another one may hash
    /// differently.
    void check_content()
    {
        if (const auto found = content_.metadata.find(checkpoint_key); found != content_.metadata.end()) {
            const auto description = Json::parse(found->second, nullptr, false);
            if (description.is_object() && description.contains("version"))
                require_version(description, checkpoint_version, where_ + ", a checkpoint of meshard,");
        }
        const auto stated = content_.metadata.find(hash_key);
        if (stated == content_.metadata.end()) return;
        if (const auto found = content_hash(content_); found != stated->second)
            fail("is damaged or was changed: its arrays and metadata have the hash " + found +
                 ", and when it was written had " + stated->second +
                 ". Take another copy; if the change was meant, remove '" + hash_key + "' from its metadata");
        content_.metadata.erase(stated);
    }

    std::filesystem::path path_;
    std::string where_;
    std::shared_ptr<const MappedFile> file_;
    std::span<const std::byte> data_;
    NamedArrays content_;
    std::vector<Extent> extents_;
};

}  // namespace

void require_writable(const NamedArrays& content, const std::string& where)
{
    std::set<std::string_view> names;
    for (const NamedArray& array : content.arrays) {
        const std::string what = where + ": array '" + array.name + "' ";
        if (array.name == metadata_key)
            throw InvalidInput("{}has the name that the format keeps for metadata. Rename it.", what);
        if (!names.insert(array.name).second) throw InvalidInput("{}occurs twice. Rename one.", what);
        if (std::ranges::any_of(array.shape, [](std::int64_t extent) { return extent < 0; }))
            throw InvalidInput("{}has a negative extent.", what);
        if (array.data == nullptr && array.num_values() > 0) throw InvalidInput("{}has no data.", what);
    }
}

std::size_t size_of(ArrayType type)
{
    return array_types[static_cast<std::size_t>(type)].second;
}

std::string_view to_string(ArrayType type)
{
    return array_types[static_cast<std::size_t>(type)].first;
}

std::int64_t NamedArray::num_values() const
{
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

const NamedArray* NamedArrays::find(std::string_view name) const
{
    const auto found = std::ranges::find(arrays, name, &NamedArray::name);
    return found == arrays.end() ? nullptr : &*found;
}

bool looks_like_safetensors(std::span<const std::byte> bytes)
{
    std::uint64_t header_size = 0;
    if (bytes.size() < 9) return false;
    std::memcpy(&header_size, bytes.data(), 8);
    return header_size <= max_header_size && header_size <= bytes.size() - 8 && bytes[8] == std::byte{'{'};
}

NamedArrays read_safetensors(const std::filesystem::path& path)
{
    return SafetensorsReader(path).read();
}

void write_safetensors(const std::filesystem::path& path, const NamedArrays& content)
{
    require_writable(content, "write_safetensors");
    // Widest types first: with a header of a multiple of 8 bytes each array is aligned for its type.
    auto order = numbers_from<std::size_t>(0, content.arrays.size());
    std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return size_of(content.arrays[i].type); });
    std::vector<std::uint64_t> begins(order.size());
    std::uint64_t end = 0;
    for (const std::size_t i : order) {
        begins[i] = end;
        end += content.arrays[i].bytes().size();
    }

    Json header = Json::object();
    header[metadata_key] = content.metadata;
    header[metadata_key][hash_key] = content_hash(content);
    for (std::size_t i = 0; i < content.arrays.size(); ++i) {
        const NamedArray& array = content.arrays[i];
        header[array.name] = {{"dtype", std::string(to_string(array.type))},
                              {"shape", array.shape},
                              {"data_offsets", {begins[i], begins[i] + array.bytes().size()}}};
    }
    std::string text;
    try {
        text = header.dump();
    } catch (const nlohmann::json::exception& error) {
        throw InvalidInput("write_safetensors: {}: a name is not valid UTF-8 ({}).", path.string(), error.what());
    }
    text.append((8 - text.size() % 8) % 8, ' ');

    AtomicFile file(path);
    const std::uint64_t header_size = text.size();
    file.write(std::as_bytes(std::span(&header_size, 1)));
    file.write(text);
    for (const std::size_t i : order) file.write(content.arrays[i].bytes());
    file.commit();
}

}  // namespace meshard
