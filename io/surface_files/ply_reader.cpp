// SPDX-License-Identifier: Apache-2.0
#include "io/surface_files/ply_reader.h"

#include "io/bytes/ascii_numbers.h"
#include "io/bytes/mapped_file.h"
#include "io/bytes/read_warnings.h"
#include "io/bytes/text_encoding.h"
#include "io/vtk/vtk_xml_reader.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

namespace {

struct Property {
    std::string name;
    ScalarType type = ScalarType::Float32;
    std::optional<ScalarType> count_type;  // for a list: the type of its length
    std::vector<std::byte> values;         // for a scalar: row by row
};

struct Element {
    std::string name;
    std::int64_t count = 0;
    std::vector<Property> properties;
};

std::optional<ScalarType> ply_type(std::string_view name)
{
    constexpr std::array<std::pair<std::string_view, ScalarType>, 16> types{{{"char", ScalarType::Int8},
                                                                             {"int8", ScalarType::Int8},
                                                                             {"uchar", ScalarType::UInt8},
                                                                             {"uint8", ScalarType::UInt8},
                                                                             {"short", ScalarType::Int16},
                                                                             {"int16", ScalarType::Int16},
                                                                             {"ushort", ScalarType::UInt16},
                                                                             {"uint16", ScalarType::UInt16},
                                                                             {"int", ScalarType::Int32},
                                                                             {"int32", ScalarType::Int32},
                                                                             {"uint", ScalarType::UInt32},
                                                                             {"uint32", ScalarType::UInt32},
                                                                             {"float", ScalarType::Float32},
                                                                             {"float32", ScalarType::Float32},
                                                                             {"double", ScalarType::Float64},
                                                                             {"float64", ScalarType::Float64}}};
    const auto* found = std::ranges::find(types, name, &std::pair<std::string_view, ScalarType>::first);
    if (found == types.end()) return std::nullopt;
    return found->second;
}

class PlyReader {
public:
    explicit PlyReader(const std::filesystem::path& path)
        : where_("read_mesh: " + path.string()), file_(MappedFile::open(path, "read_mesh")),
          scanner_(without_byte_order_mark(file_->text()))
    {
    }

    Mesh read()
    {
        read_header();
        for (Element& element : elements_) read_element(element);
        return finish();
    }

    /// Warnings about lines that are longer than the header specifies, and about data that the mesh does not have.
    const std::vector<std::string>& warnings() const { return warnings_; }

private:
    [[noreturn]] void fail(const std::string& what) const { throw IoError("{} {}.", where_, what); }

    void read_header()
    {
        if (scanner_.line() != "ply") fail("does not begin with the line 'ply': it is no PLY file");
        for (bool in_header = true; in_header;) {
            if (scanner_.rest().empty()) fail("ends before 'end_header'. It is truncated or no PLY file");
            TextScanner line(scanner_.line());
            const std::string_view keyword = line.word();
            if (keyword == "end_header")
                in_header = false;
            else if (keyword == "format")
                format_ = line.word();
            else if (keyword == "element")
                add_element(line);
            else if (keyword == "property")
                add_property(line);
            else if (keyword != "comment" && keyword != "obj_info" && !keyword.empty())
                fail("has the unknown word '" + std::string(keyword.substr(0, 40)) + "' in its header");
        }
        if (format_ != "ascii" && format_ != "binary_little_endian" && format_ != "binary_big_endian")
            fail("has format '" + format_ + "', expected ascii, binary_little_endian or binary_big_endian");
        is_text_ = format_ == "ascii";
        body_ = scanner_.rest();
    }

    void add_element(TextScanner& line)
    {
        Element element;
        element.name = line.word();
        const auto count = line.number<std::int64_t>();
        if (!count || *count < 0 || *count > std::numeric_limits<std::int32_t>::max())
            fail("does not say how many elements '" + element.name + "' it has");
        element.count = *count;
        elements_.push_back(std::move(element));
    }

    void add_property(TextScanner& line)
    {
        if (elements_.empty()) fail("has a property before any element");
        Property property;
        auto type = line.word();
        if (type == "list") {
            property.count_type = ply_type(line.word());
            if (!property.count_type) fail("has a list whose length has an unknown type");
            type = line.word();
        }
        const auto value_type = ply_type(type);
        if (!value_type) fail("has a property of unknown type '" + std::string(type.substr(0, 40)) + "'");
        property.type = *value_type;
        property.name = line.word();
        elements_.back().properties.push_back(std::move(property));
    }

    void read_element(Element& element)
    {
        if (element.properties.empty()) return;  // rows without properties take no bytes
        for (std::int64_t row = 0; row < element.count; ++row) {
            for (Property& property : element.properties) {
                if (!property.count_type) {
                    read_value(property.type, element, row, property.values);
                    continue;
                }
                scratch_.clear();
                read_value(*property.count_type, element, row, scratch_);
                const std::int64_t length = integer(*property.count_type, 0);
                if (length < 0) fail(fmt::format("has a list of negative length in {} {}", element.name, row));
                scratch_.clear();
                for (std::int64_t i = 0; i < length; ++i) read_value(property.type, element, row, scratch_);
                if (is_of_corners(element, property.name)) add_face(property.type, length, row);
            }
            if (is_text_ && !scanner_.at_line_end() && has_a_line_a_row()) {
                if (warnings_.empty())
                    warnings_.push_back(fmt::format("the line of {} {} has more values than the header announces; here "
                                                    "and on other lines they are left out",
                                                    element.name, row));
                scanner_.line();
            }
        }
    }

    /// Returns whether each row has its own line, as in nearly all files. Others may have the next row on the same
    /// line.
    bool has_a_line_a_row()
    {
        if (!has_a_line_a_row_) {
            std::int64_t num_rows = 0, num_lines = 0;
            for (const Element& element : elements_) num_rows += element.count;
            for (TextScanner lines(body_); !lines.at_end(); lines.line()) ++num_lines;
            has_a_line_a_row_ = num_lines >= num_rows;
        }
        return *has_a_line_a_row_;
    }

    void read_value(ScalarType type, const Element& element, std::int64_t row, std::vector<std::byte>& values)
    {
        const std::size_t size = size_of(type), begin = values.size();
        values.resize(begin + size);
        if (is_text_) {
            const std::string_view word = scanner_.word();
            if (word.empty()) fail_truncated(element, row);
            with_scalar_type(type, [&]<class T>() {
                const auto value = parse_number<T>(word);
                if (!value)
                    fail(fmt::format("has '{}' in {} {}, a number of type {} is expected", word.substr(0, 40),
                                     element.name, row, to_string(type)));
                std::memcpy(values.data() + begin, &*value, sizeof(T));
            });
            return;
        }
        if (body_.size() < size) fail_truncated(element, row);
        std::memcpy(values.data() + begin, body_.data(), size);
        if (format_ == "binary_big_endian")
            std::reverse(values.begin() + static_cast<std::ptrdiff_t>(begin), values.end());
        body_.remove_prefix(size);
    }

    [[noreturn]] void fail_truncated(const Element& element, std::int64_t row) const
    {
        fail(fmt::format("ends in {} {} of {}. It is truncated", element.name, row, element.count));
    }

    std::int64_t integer(ScalarType type, std::size_t index) const
    {
        return with_scalar_type(type, [&]<class T>() {
            T value;
            std::memcpy(&value, scratch_.data() + index * sizeof(T), sizeof(T));
            return static_cast<std::int64_t>(value);
        });
    }

    void add_face(ScalarType type, std::int64_t length, std::int64_t row)
    {
        const auto vertices = std::ranges::find(elements_, "vertex", &Element::name);
        const std::int64_t num_points = vertices == elements_.end() ? 0 : vertices->count;
        for (std::int64_t i = 0; i < length; ++i) {
            const std::int64_t point = integer(type, static_cast<std::size_t>(i));
            if (point < 0 || point >= num_points)
                fail(fmt::format("has face {} with point {}, expected 0 to {}", row, point, num_points - 1));
            cells_.indices.push_back(static_cast<std::int32_t>(point));
        }
        cells_.offsets.push_back(std::ssize(cells_.indices));
    }

    /// Moves the scalar properties `names` into one array, if all exist and have one type.
    std::optional<DataArray> take(Element& element, const std::string& name, const std::vector<std::string>& names)
    {
        std::vector<const Property*> parts;
        for (const std::string& part : names) {
            const auto found = std::ranges::find(element.properties, part, &Property::name);
            if (found == element.properties.end() || found->count_type ||
                (!parts.empty() && found->type != parts.front()->type))
                return std::nullopt;
            parts.push_back(&*found);
        }
        const std::size_t size = size_of(parts.front()->type);
        auto bytes =
            std::shared_ptr<std::byte[]>(new std::byte[size * parts.size() * static_cast<std::size_t>(element.count)]);
        for (std::int64_t row = 0; row < element.count; ++row)
            for (std::size_t i = 0; i < parts.size(); ++i)
                std::memcpy(bytes.get() + (row * parts.size() + i) * size, parts[i]->values.data() + row * size, size);
        const DataArray array = DataArray::view(name, parts.front()->type, element.count,
                                                static_cast<std::int32_t>(parts.size()), bytes.get(), bytes);
        std::erase_if(element.properties, [&](const Property& property) { return contains(names, property.name); });
        return array;
    }

    DataArray take_points(Element& vertices)
    {
        auto points = take(vertices, "Points", {"x", "y", "z"});
        if (points && (points->type() == ScalarType::Float32 || points->type() == ScalarType::Float64))
            return std::move(*points);
        if (points) return DataArray::from("Points", points->to_doubles(), 3);
        std::vector<DataArray> axes;
        for (const char* name : {"x", "y", "z"}) {
            auto values = take(vertices, name, {name});
            if (!values) fail("has no x, y and z that are numbers on its vertices");
            axes.push_back(std::move(*values));
        }
        std::vector<double> coordinates;
        for (std::int64_t row = 0; row < vertices.count; ++row)
            for (const DataArray& axis : axes) coordinates.push_back(axis.value(row));
        return DataArray::from("Points", std::move(coordinates), 3);
    }

    static bool is_of_corners(const Element& element, const std::string& property)
    {
        return element.name == "face" && (property == "vertex_indices" || property == "vertex_index");
    }

    void leave_out(const std::string& what)
    {
        warnings_.push_back(what + " are left out: a mesh has points and faces with numbers");
    }

    std::vector<DataArray> take_arrays(Element& element)
    {
        std::vector<DataArray> arrays;
        if (auto normals = take(element, "Normals", {"nx", "ny", "nz"})) {
            normals->attribute = "Normals";
            arrays.push_back(std::move(*normals));
        }
        if (auto color = take(element, "RGBA", {"red", "green", "blue", "alpha"})) arrays.push_back(std::move(*color));
        if (auto color = take(element, "RGB", {"red", "green", "blue"})) arrays.push_back(std::move(*color));
        while (!element.properties.empty()) {
            const std::string name = element.properties.front().name;
            if (auto array = take(element, name, {name})) {
                add_array(arrays, std::move(*array), where_);
                continue;
            }
            if (!is_of_corners(element, name))
                leave_out("the lists '" + name + "' of the element '" + element.name + "'");
            element.properties.erase(element.properties.begin());
        }
        return arrays;
    }

    Mesh finish()
    {
        Mesh mesh;
        mesh.kind = MeshKind::Surface;
        const auto vertices = std::ranges::find(elements_, "vertex", &Element::name);
        if (vertices == elements_.end()) fail("has no element 'vertex'");
        mesh.points = take_points(*vertices);
        mesh.point_data = take_arrays(*vertices);
        for (std::int64_t i = 0; i < cells_.num_rows(); ++i)
            mesh.cell_types.push_back(polydata_cell_type(2, cells_.offsets[i + 1] - cells_.offsets[i]));
        mesh.cells = std::move(cells_);
        const auto faces = std::ranges::find(elements_, "face", &Element::name);
        if (faces != elements_.end()) {
            if (faces->count != mesh.num_cells()) fail("has faces without the list vertex_indices");
            mesh.cell_data = take_arrays(*faces);
        }
        for (const Element& element : elements_)
            if (element.name != "vertex" && element.name != "face" && element.count > 0 && !element.properties.empty())
                leave_out(fmt::format("rows of the element '{}' ({})", element.name, element.count));
        return mesh;
    }

    std::string where_;
    std::shared_ptr<const MappedFile> file_;
    TextScanner scanner_;
    std::string format_;
    bool is_text_ = false;
    std::string_view body_;
    std::vector<Element> elements_;
    std::vector<std::byte> scratch_;
    std::optional<bool> has_a_line_a_row_;
    std::vector<std::string> warnings_;
    Csr cells_;
};

}  // namespace

Mesh read_ply(const std::filesystem::path& path, const ReadOptions& options)
{
    PlyReader reader(path);
    Mesh mesh = reader.read();
    std::vector<std::string> warnings;
    for (const auto& warning : reader.warnings()) warnings.push_back(path.string() + ": " + warning);
    deliver_read_warnings(warnings, options);
    return mesh;
}

}  // namespace meshard
