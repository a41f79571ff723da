// SPDX-License-Identifier: Apache-2.0
#include "io/shards/manifest.h"

#include "io/bytes/atomic_file.h"
#include "io/bytes/hashed_json.h"
#include "io/bytes/mapped_file.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

namespace meshard {

namespace {

using Json = nlohmann::ordered_json;

constexpr int format_version = 1;
constexpr const char* format_name = "meshard shards";

// Rows of a part are numbered in 32 bits.
constexpr std::int64_t most_rows_of_a_part = std::numeric_limits<std::int32_t>::max();

// The counts of a part, by their names in the manifest.
constexpr std::pair<const char*, std::int64_t PartQuality::*> kQualityCounts[] = {
    {"owned", &PartQuality::num_owned},
    {"ghosts", &PartQuality::num_ghosts},
    {"cut_edges", &PartQuality::cut_edges},
    {"components", &PartQuality::num_components}};
constexpr std::pair<const char*, std::int64_t ManifestPart::*> kRowCounts[] = {
    {"owned_cells", &ManifestPart::num_owned_cells},
    {"ghost_cells", &ManifestPart::num_ghost_cells},
    {"owned_points", &ManifestPart::num_owned_points},
    {"ghost_points", &ManifestPart::num_ghost_points}};

/// An integer that counts rows, bytes or the like. @throws IoError if it is not one, or is larger than `most`
std::int64_t count_at(const Json& json, const char* name, const std::string& where,
                      std::int64_t most = std::numeric_limits<std::int64_t>::max())
{
    const Json& value = json.at(name);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(most))
        throw IoError(
            "{}: {} is {}, expected a whole number from 0 to {}. The manifest is damaged: cut the source again.", where,
            name, value.dump(), most);
    return value.get<std::int64_t>();
}

Json to_json(const NamedTexts& texts)
{
    Json json = Json::object();
    for (const auto& [name, text] : texts) json[name] = text;
    return json;
}

NamedTexts texts_from_json(const Json& json)
{
    NamedTexts texts;
    for (const auto& [name, text] : json.items()) texts.emplace_back(name, text.get<std::string>());
    return texts;
}

Json to_json(const PartitionQuality& quality)
{
    Json parts = Json::array();
    for (const PartQuality& part : quality.parts) {
        Json& written = parts.emplace_back();
        for (const auto& [name, count] : kQualityCounts) written[name] = part.*count;
        written["neighbors"] = part.neighbors;
        written["neighbor_edges"] = part.neighbor_edges;
    }
    return {{"edge_cut", quality.edge_cut},
            {"communication_volume", quality.communication_volume},
            {"imbalance", quality.imbalance},
            {"parts", std::move(parts)}};
}

PartitionQuality quality_from_json(const Json& json)
{
    PartitionQuality quality;
    json.at("edge_cut").get_to(quality.edge_cut);
    json.at("communication_volume").get_to(quality.communication_volume);
    json.at("imbalance").get_to(quality.imbalance);
    for (const Json& part : json.at("parts")) {
        PartQuality& read = quality.parts.emplace_back();
        for (const auto& [name, count] : kQualityCounts) part.at(name).get_to(read.*count);
        part.at("neighbors").get_to(read.neighbors);
        part.at("neighbor_edges").get_to(read.neighbor_edges);
    }
    return quality;
}

Json to_json(const ManifestArray& array)
{
    Json json{{"group", array.group}, {"name", array.name}};
    if (array.stored_as != array.name) json["stored_as"] = array.stored_as;
    json["type"] = std::string(to_string(array.type));
    json["components"] = array.num_components;
    if (!array.attribute.empty()) json["attribute"] = array.attribute;
    return json;
}

ScalarType scalar_type_from_name(const std::string& name, const std::string& where)
{
    for (int i = 0; i <= static_cast<int>(ScalarType::String); ++i)
        if (to_string(static_cast<ScalarType>(i)) == name) return static_cast<ScalarType>(i);
    throw IoError("{}: unknown array type '{}'.", where, name);
}

ManifestArray array_from_json(const Json& json, const std::string& where)
{
    ManifestArray array;
    json.at("group").get_to(array.group);
    json.at("name").get_to(array.name);
    array.stored_as = json.value("stored_as", array.name);
    array.type = scalar_type_from_name(json.at("type").get<std::string>(), where);
    array.num_components =
        static_cast<std::int32_t>(count_at(json, "components", where, std::numeric_limits<std::int32_t>::max()));
    array.attribute = json.value("attribute", std::string());
    return array;
}

Json to_json(const ManifestPart& part)
{
    Json json{{"file", part.file}};
    for (const auto& [name, count] : kRowCounts) json[name] = part.*count;
    json["bytes"] = part.num_bytes;
    json["hash"] = part.hash;
    return json;
}

ManifestPart part_from_json(const Json& json, const std::string& where)
{
    ManifestPart part;
    json.at("file").get_to(part.file);
    const auto of_part = where + ", piece '" + part.file + "'";
    for (const auto& [name, count] : kRowCounts) part.*count = count_at(json, name, of_part, most_rows_of_a_part);
    part.num_bytes = count_at(json, "bytes", of_part);
    json.at("hash").get_to(part.hash);

    const std::filesystem::path file = part.file;
    if (file.is_absolute() || file.empty() || contains(file, std::filesystem::path("..")))
        throw IoError("{}: piece '{}' is not inside the folder.", where, part.file);
    return part;
}

/// Each row is owned once, so that readers can allocate memory for the manifest's number of rows. @throws IoError
/// otherwise
void require_fitting_parts(const Manifest& manifest, const std::string& where)
{
    if (manifest.parts.empty()) throw IoError("{}: it lists no parts.", where);
    const auto require = [&](const char* noun, std::int64_t stated, std::int64_t ManifestPart::* owned) {
        std::int64_t sum = 0;
        for (const auto& part : manifest.parts) sum += part.*owned;
        if (sum != stated)
            throw IoError("{}: {} is {}, expected {}, the sum of owned_{} of its parts. The manifest is "
                          "damaged: cut the source again.",
                          where, noun, stated, sum, noun);
    };
    require("cells", manifest.num_cells, &ManifestPart::num_owned_cells);
    require("points", manifest.num_points, &ManifestPart::num_owned_points);
    std::set<std::string_view> files;
    for (const auto& part : manifest.parts)
        if (!files.insert(part.file).second)
            throw IoError(
                "{}: two parts have the piece '{}', expected one each. The manifest is damaged: cut the source again.",
                where, part.file);
}

Manifest manifest_from_json(const Json& json, const std::string& where)
{
    if (!json.is_object() || json.value("format", std::string()) != format_name)
        throw IoError("{}: expected \"format\": \"{}\". It is no manifest of a shards folder.", where, format_name);
    require_version(json, format_version, where + ", a manifest of shards,");
    Manifest manifest;
    json.at("source").at("path").get_to(manifest.info.source);
    json.at("source").at("hash").get_to(manifest.info.source_hash);
    json.at("method").get_to(manifest.info.method);
    json.at("seed").get_to(manifest.info.seed);
    manifest.info.options = texts_from_json(json.at("options"));
    manifest.info.versions = texts_from_json(json.at("versions"));
    manifest.info.quality = quality_from_json(json.at("quality"));
    const auto kind = json.at("kind").get<std::string>();
    if (kind != "surface" && kind != "unstructured")
        throw IoError("{}: kind is '{}', expected surface or unstructured.", where, kind);
    manifest.kind = kind == "surface" ? MeshKind::Surface : MeshKind::Unstructured;
    manifest.num_cells = count_at(json, "cells", where);
    manifest.num_points = count_at(json, "points", where);
    manifest.num_ghost_layers =
        static_cast<std::int32_t>(count_at(json, "ghost_layers", where, std::numeric_limits<std::int32_t>::max()));
    json.at("bounds").get_to(manifest.bounds);
    for (const Json& array : json.at("arrays")) manifest.arrays.push_back(array_from_json(array, where));
    for (const Json& part : json.at("parts")) manifest.parts.push_back(part_from_json(part, where));
    require_fitting_parts(manifest, where);
    require_hash(json, where, "Cut the source again; if the change was meant, remove the entry hash.");
    return manifest;
}

}  // namespace

bool is_shards_folder(const std::filesystem::path& dir)
{
    std::error_code ignored;
    return std::filesystem::is_regular_file(dir / "manifest.json", ignored);
}

Manifest read_manifest(const std::filesystem::path& dir)
{
    if (!std::filesystem::exists(dir))
        throw IoError("read_manifest: there is no folder {}. Check the path.", dir.string());
    if (!is_shards_folder(dir))
        throw IoError("read_manifest: {} is not a shards folder: it has no manifest.json.", dir.string());
    const auto path = dir / "manifest.json";
    const std::string where = "read_manifest: " + path.string();
    const auto file = MappedFile::open(path, "read_manifest");
    try {
        return manifest_from_json(Json::parse(file->text()), where);
    } catch (const nlohmann::json::exception& error) {
        throw IoError("{} is damaged: {}.", where, error.what());
    }
}

void write_manifest(const std::filesystem::path& dir, const Manifest& manifest)
{
    Json arrays = Json::array(), parts = Json::array();
    for (const ManifestArray& array : manifest.arrays) arrays.push_back(to_json(array));
    for (const ManifestPart& part : manifest.parts) parts.push_back(to_json(part));
    const Json json{{"format", format_name},
                    {"version", format_version},
                    {"source", {{"path", manifest.info.source}, {"hash", manifest.info.source_hash}}},
                    {"method", manifest.info.method},
                    {"seed", manifest.info.seed},
                    {"options", to_json(manifest.info.options)},
                    {"kind", manifest.kind == MeshKind::Surface ? "surface" : "unstructured"},
                    {"cells", manifest.num_cells},
                    {"points", manifest.num_points},
                    {"ghost_layers", manifest.num_ghost_layers},
                    {"bounds", manifest.bounds},
                    {"quality", to_json(manifest.info.quality)},
                    {"arrays", std::move(arrays)},
                    {"parts", std::move(parts)},
                    {"versions", to_json(manifest.info.versions)}};
    try {
        write_file_atomically(dir / "manifest.json", with_hash(json).dump(2) + "\n");
    } catch (const nlohmann::json::exception& error) {
        throw IoError("write_manifest: {}: a name or path is not valid UTF-8, which JSON demands ({}). Rename it.",
                      (dir / "manifest.json").string(), error.what());
    }
}

}  // namespace meshard
