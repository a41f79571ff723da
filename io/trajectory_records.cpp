// SPDX-License-Identifier: Apache-2.0
#include "io/trajectory_records.h"

#include "io/bytes/content_hash.h"
#include "partition/error.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

namespace meshard {
namespace {

template <class T>
T number_at(std::string_view bytes, std::size_t offset)
{
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof value);  // records are little-endian, as the machines are
    return value;
}

/// The fields of a message in protocol buffers' encoding.
class Message {
public:
    Message(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

    /// Returns the next field that has content of some length: its number and content; none at the end.
    std::optional<std::pair<std::uint64_t, std::string_view>> next()
    {
        while (!bytes_.empty()) {
            const auto tag = varint();
            switch (tag & 7) {
            case 0:
                varint();
                break;
            case 1:
                taken(8);
                break;
            case 2:
                return std::pair(tag >> 3, taken(varint()));
            case 5:
                taken(4);
                break;
            default:
                fail();
            }
        }
        return std::nullopt;
    }

    /// Returns the content of the last field with a number; none if there is no such field.
    std::optional<std::string_view> field(std::uint64_t number)
    {
        std::optional<std::string_view> found;
        while (const auto field = next())
            if (field->first == number) found = field->second;
        return found;
    }

private:
    [[noreturn]] void fail() const { throw IoError("{}: it is no message of TensorFlow's. It is damaged.", where_); }

    std::string_view taken(std::uint64_t size)
    {
        if (size > bytes_.size()) fail();
        const auto content = bytes_.substr(0, size);
        bytes_.remove_prefix(size);
        return content;
    }

    std::uint64_t varint()
    {
        std::uint64_t value = 0;
        for (int shift = 0; shift < 64; shift += 7) {
            const auto byte = static_cast<std::uint8_t>(taken(1).front());
            value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
            if (byte < 0x80) return value;
        }
        fail();
    }

    std::string_view bytes_;
    const std::string& where_;
};

/// Reads the features of an Example, of which each is a list of one text of bytes.
std::map<std::string_view, std::string_view> features_of(std::string_view example, const std::string& where)
{
    std::map<std::string_view, std::string_view> found;
    Message entries(Message(example, where).field(1).value_or(std::string_view()), where);
    while (const auto entry = entries.next()) {
        const auto name = Message(entry->second, where).field(1);
        const auto feature = Message(entry->second, where).field(2);
        if (!name || !feature) continue;
        const auto list = Message(*feature, where).field(1);
        if (!list) throw IoError("{}: '{}' is no list of bytes, as MeshGraphNets' data sets have.", where, *name);
        found.emplace(*name, Message(*list, where).field(1).value_or(std::string_view()));
    }
    return found;
}

ScalarType scalar_type(const std::string& name, const std::string& where)
{
    static const std::map<std::string, ScalarType> types{{"float32", ScalarType::Float32},
                                                         {"float64", ScalarType::Float64},
                                                         {"int32", ScalarType::Int32},
                                                         {"int64", ScalarType::Int64},
                                                         {"uint8", ScalarType::UInt8}};
    const auto found = types.find(name);
    if (found == types.end())
        throw IoError("{}: the type '{}' is unknown, expected float32, float64, int32, int64 or uint8.", where, name);
    return found->second;
}

/// Returns a frame of a feature; of coordinates in a plane with z = 0.
DataArray frame(const Trajectory::Feature& feature, std::size_t index, std::int32_t num_components)
{
    const auto& all = feature.values;
    const auto num_rows = all.num_rows() / feature.num_frames;
    const auto first = num_rows * static_cast<std::int64_t>(index);
    DataArray one(all.name(), all.type(), num_rows, num_components);
    if (num_components == all.num_components()) {
        const auto size = one.bytes().size();
        std::ranges::copy(all.bytes().subspan(size * index, size), one.mutable_bytes().begin());
        return one;
    }
    std::vector<float> values(num_rows * num_components);
    for (std::int64_t row = 0; row < num_rows; ++row) {
        for (std::int32_t c = 0; c < all.num_components(); ++c)
            values[row * num_components + c] = static_cast<float>(all.value(first + row, c));
    }
    return DataArray::from(all.name(), std::move(values), num_components);
}

DataArray points_of(const Trajectory::Feature& feature, std::size_t index)
{
    auto points = frame(feature, index, 3);
    points.rename("Points");
    return points;
}

}  // namespace

Trajectory::Trajectory(std::vector<Feature> features, double step, const std::string& where)
{
    const auto taken = [&](const std::string& name) {
        const auto at = std::ranges::find_if(features, [&](const Feature& one) { return one.values.name() == name; });
        if (at == features.end() || at->num_frames != 1)
            throw IoError("{}: '{}' is missing, or changes from frame to frame.", where, name);
        auto found = std::move(*at);
        features.erase(at);
        return found;
    };
    const auto places = taken("mesh_pos"), cells = taken("cells");
    if (places.values.num_components() > 3)
        throw IoError("{}: 'mesh_pos' has {} components, expected 1 to 3.", where, places.values.num_components());
    mesh_.points = points_of(places, 0);
    const auto num_points = mesh_.num_points();
    const auto num_corners = cells.values.num_components();
    if (num_corners < 2 || num_corners > 4)
        throw IoError("{}: 'cells' have {} points, expected 2, 3 or 4: lines, triangles or tetrahedra.", where,
                      num_corners);
    mesh_.kind = num_corners == 4 ? MeshKind::Unstructured : MeshKind::Surface;
    for (const double corner : cells.values.to_doubles()) {
        if (corner < 0 || corner >= static_cast<double>(num_points))
            throw IoError("{}: 'cells' names the point {}, and there are {}. It is damaged.", where, corner,
                          num_points);
        mesh_.cells.indices.push_back(static_cast<std::int32_t>(corner));
    }
    for (std::int64_t cell = 1; cell <= cells.values.num_rows(); ++cell)
        mesh_.cells.offsets.push_back(cell * num_corners);
    constexpr std::array<std::uint8_t, 5> kTypes{0, 0, 3, 5, 10};  // VTK's: line, triangle, tetrahedron
    mesh_.cell_types.assign(static_cast<std::size_t>(cells.values.num_rows()), kTypes[num_corners]);

    std::int64_t num_frames = 1;
    for (auto& feature : features) {
        const auto& name = feature.values.name();
        if (feature.values.num_rows() != num_points * feature.num_frames)
            throw IoError("{}: '{}' has {} rows in {} frame(s), and there are {} points.", where, name,
                          feature.values.num_rows(), feature.num_frames, num_points);
        if (feature.num_frames == 1) {
            mesh_.point_data.push_back(std::move(feature.values));
            continue;
        }
        if (num_frames != 1 && num_frames != feature.num_frames)
            throw IoError("{}: '{}' has {} frames, and others {}.", where, name, feature.num_frames, num_frames);
        if (name == "world_pos" && feature.values.num_components() > 3)
            throw IoError("{}: 'world_pos' has more than three components.", where);
        num_frames = feature.num_frames;
        features_.push_back(std::move(feature));
    }
    for (std::int64_t i = 0; i < num_frames; ++i) times_.push_back(static_cast<double>(i) * step);
}

Mesh Trajectory::state(std::size_t index) const
{
    auto mesh = mesh_;
    for (const auto& feature : features_) {
        if (feature.values.name() == "world_pos")
            mesh.points = points_of(feature, index);
        else
            mesh.point_data.push_back(frame(feature, index, feature.values.num_components()));
    }
    return mesh;
}

TrajectoryRecords::TrajectoryRecords(const std::filesystem::path& path)
    : where_("read_records: " + path.string()), file_(MappedFile::open(path, "read_records"))
{
    const auto meta = path.parent_path() / "meta.json";
    const auto text = MappedFile::open(meta, "read_records: the description of the records");
    const auto where = "read_records: " + meta.string();
    try {
        const auto json = nlohmann::json::parse(text->text());
        step_ = json.value("dt", 1.0);
        for (const auto& [name, feature] : json.at("features").items()) {
            const auto shape = feature.at("shape").get<std::vector<std::int64_t>>();
            const auto is_constant = feature.at("type") == "static";
            if ((!is_constant && feature.at("type") != "dynamic") || shape.size() != 3 || shape[0] < 1 ||
                shape[2] < 1 || shape[2] > INT32_MAX || (is_constant && shape[0] != 1))
                throw IoError("{}: '{}' must be static of the shape [1, rows, components], or dynamic of "
                              "[frames, rows, components]; found {}.",
                              where, name, feature.dump());
            shapes_.push_back({name, scalar_type(feature.at("dtype"), where), shape[0], shape[2]});
        }
    } catch (const nlohmann::json::exception& error) {
        throw IoError("{}: it does not say what MeshGraphNets' data sets say there: {}.", where, error.what());
    }
    if (!(step_ > 0)) throw IoError("{}: dt is {}, expected a time above 0.", where, step_);
}

Trajectory::Feature TrajectoryRecords::feature(const Shape& shape, std::string_view bytes,
                                               const std::string& where) const
{
    DataArray one("", shape.type, 1, 1);
    const auto size_of_row = one.bytes().size() * static_cast<std::size_t>(shape.num_components);
    if (bytes.size() % (size_of_row * static_cast<std::size_t>(shape.num_frames)) != 0)
        throw IoError("{}: '{}' has {} bytes, which are no {} frame(s) of rows of {} bytes.", where, shape.name,
                      bytes.size(), shape.num_frames, size_of_row);
    DataArray values(shape.name, shape.type, static_cast<std::int64_t>(bytes.size() / size_of_row),
                     static_cast<std::int32_t>(shape.num_components));
    std::memcpy(values.mutable_bytes().data(), bytes.data(), bytes.size());
    return {std::move(values), shape.num_frames};
}

std::optional<Trajectory> TrajectoryRecords::next()
{
    const auto rest = file_->text().substr(offset_);
    if (rest.empty()) return std::nullopt;
    const auto where = fmt::format("{}, record {}", where_, num_read_);
    constexpr std::size_t kHead = 12, kTail = 4;
    if (rest.size() < kHead) throw IoError("{}: it is cut off after {} bytes.", where, rest.size());
    const auto length = number_at<std::uint64_t>(rest, 0);
    if (number_at<std::uint32_t>(rest, 8) != masked_crc32c(rest.substr(0, 8)))
        throw IoError("{}: its length has another checksum. It is damaged, or no file of TensorFlow's records.", where);
    if (length > rest.size() - kHead || rest.size() - kHead - length < kTail)
        throw IoError("{}: it is cut off: {} bytes of {} are there.", where, rest.size() - kHead, length);
    const auto example = rest.substr(kHead, length);
    if (number_at<std::uint32_t>(rest, kHead + length) != masked_crc32c(example))
        throw IoError("{}: its content has another checksum. It is damaged.", where);
    const auto found = features_of(example, where);
    std::vector<Trajectory::Feature> features;
    for (const auto& shape : shapes_) {
        const auto at = found.find(shape.name);
        if (at == found.end()) throw IoError("{}: it lacks '{}', which meta.json describes.", where, shape.name);
        features.push_back(feature(shape, at->second, where));
    }
    offset_ += kHead + length + kTail;
    ++num_read_;
    return Trajectory(std::move(features), step_, where);
}

}  // namespace meshard
