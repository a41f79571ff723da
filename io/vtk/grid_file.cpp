// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/grid_file.h"

#include "io/bytes/ascii_numbers.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/mapped_file.h"
#include "io/bytes/xml.h"
#include "io/vtk/array_grid.h"
#include "io/vtk/encoded_array.h"
#include "io/vtk/vtk_xml_file.h"
#include "io/vtk/vtk_xml_reader.h"
#include "io/vtk/vtkhdf.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshard {
namespace {

/// A place in a file.
struct TextPlace {
    std::uint64_t begin = 0, length = 0;
};

/// A VTK XML file without the values of its arrays, which may be larger than memory.
struct XmlOutline {
    std::string document;  ///< each text that is long has its place instead (`place_in`), appended data have none
    std::optional<TextPlace> appended;  ///< what follows the mark '_' of appended data, up to their end tag
};

constexpr std::string_view kPlace = "meshard:place ";
constexpr std::uint64_t kLongest = 4096;  // characters of a text that an outline has itself
constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;

/// Returns whether a tag that ends in '>' ends there: not inside an attribute, a comment or an instruction.
bool is_whole_tag(std::string_view tag)
{
    if (tag.starts_with("<!--")) return tag.size() > 6 && tag.ends_with("-->");
    if (tag.starts_with("<![CDATA[")) return tag.ends_with("]]>");
    if (tag.starts_with("<?")) return tag.ends_with("?>");
    char quote = 0;
    for (const char c : tag)
        if (quote != 0 ? c == quote : c == '"' || c == '\'') quote = quote != 0 ? '\0' : c;
    return quote == 0;
}

/// Goes through the characters of a file without holding them.
class Scanner {
public:
    explicit Scanner(const RandomAccessFile& file) : file_(file) {}

    std::uint64_t at() const { return begin_ + next_; }

    /// Appends what comes before the next `stop` to `text`, as much of it as fits there, and goes there. Returns false
    /// at the end of the file.
    bool go_to(char stop, std::string& text)
    {
        for (;;) {
            if (next_ == piece_.size()) {
                begin_ += piece_.size();
                piece_ = file_.text(begin_, kPiece);
                next_ = 0;
                if (piece_.empty()) return false;
            }
            const auto found = piece_.find(stop, next_);
            const auto end = found == std::string::npos ? piece_.size() : found;
            const auto room = kLongest + 1 - std::min<std::uint64_t>(text.size(), kLongest + 1);
            text.append(piece_, next_, std::min<std::uint64_t>(end - next_, room));
            next_ = end;
            if (found != std::string::npos) return true;
        }
    }

    void pass() { ++next_; }

private:
    const RandomAccessFile& file_;
    std::uint64_t begin_ = 0;
    std::string piece_;
    std::size_t next_ = 0;
};

/// Reads a file from its begin to its appended data, piece by piece.
/// @param where   begins messages
/// @throws IoError if it cannot be read, or ends inside its appended data
XmlOutline outline_of(const RandomAccessFile& file, const std::string& where)
{
    XmlOutline outline;
    auto& document = outline.document;
    Scanner scanner(file);
    for (;;) {
        const auto begin = scanner.at();
        std::string text;
        const bool has_tag = scanner.go_to('<', text);
        document += text.size() > kLongest ? fmt::format("{}{} {}", kPlace, begin, scanner.at() - begin) : text;
        if (!has_tag) return outline;
        std::string tag;
        do {
            if (!scanner.go_to('>', tag) || tag.size() > kLongest) return {document + tag, {}};
            scanner.pass();
            tag += '>';
        } while (!is_whole_tag(tag));
        document += tag;
        if (!tag.starts_with("<AppendedData")) continue;
        std::string blanks;
        const auto first = scanner.at();
        if (!scanner.go_to('_', blanks) || blanks.find_first_not_of(kXmlBlanks) != std::string::npos)
            return {document + blanks + "</AppendedData></VTKFile>", {}};
        scanner.pass();
        constexpr std::string_view kEndTag = "</AppendedData>";
        constexpr std::uint64_t kTail = 4096;
        const auto tail = std::max(first, file.size() - std::min(file.size(), kTail));
        const auto end = file.text(tail, kTail).rfind(kEndTag);
        if (end == std::string::npos)
            throw IoError("{}: the file ends inside <AppendedData> after {} bytes: it is truncated. Copy or "
                          "write it again.",
                          where, file.size());
        document += "_</AppendedData></VTKFile>";
        outline.appended = {scanner.at(), tail + end - scanner.at()};
        return outline;
    }
}

/// Returns where in the file a text of an outline lies; nothing if it is there itself.
std::optional<TextPlace> place_in(std::string_view text)
{
    if (!text.starts_with(kPlace)) return {};
    TextScanner scanner(text.substr(kPlace.size()));
    const auto begin = scanner.number<std::uint64_t>(), length = scanner.number<std::uint64_t>();
    if (!begin || !length) return {};
    return TextPlace{*begin, *length};
}

/// Points or cells of a piece, whose points are the box `points`, of a grid.
GridBox box_of_piece(const GridBox& points, const ImageGrid& grid, bool of_cells)
{
    auto box = points;
    if (!of_cells) return box;
    for (int axis = 0; axis < 3; ++axis)
        if (grid.num_points[axis] > 1) --box.count[axis];
    return box;
}

/// Image data or a rectilinear grid in VTK's XML format: one file with one piece or several, or an index of files with
/// a piece each. The coordinates of a rectilinear grid are not read: its places are counted.
class XmlGridFile : public GridFile {
public:
    explicit XmlGridFile(const std::filesystem::path& path)
        : XmlGridFile(path, RandomAccessFile::open(path, "read_mesh"))
    {
    }

    DataArray read(const std::string& name, bool of_cells, const GridBox& box) const override;

private:
    struct Piece {
        GridBox points;
        const XmlElement* element;
        std::size_t index;           // among the children of its element
        std::filesystem::path file;  // empty: this one
    };

    XmlGridFile(const std::filesystem::path& path, std::shared_ptr<const RandomAccessFile> reader)
        : path_(path), reader_(std::move(reader)), outline_(outline_of(*reader_, "read_mesh: " + path.string())),
          file_(path, outline_.document)
    {
        where_ = file_.where();
        const bool is_index = is_of_pieces();
        if (!is_index && file_.type() != "ImageData" && file_.type() != "RectilinearGrid")
            file_.fail("holds '" + file_.type() + "', image data (.vti) or a rectilinear grid (.vtr) are expected");
        const auto& image = file_.require_child(file_.root(), file_.type());
        grid_ = image_head(file_, image);
        for (std::size_t i = 0; i < image.children.size(); ++i)
            if (image.children[i].name == "Piece") add_piece(image.children[i], i);
        if (pieces_.empty()) file_.fail("<" + file_.type() + "> has no <Piece>");
        const auto declared = [&](const std::string& group) {
            return read_vtk_arrays(file_, is_index ? image.child("P" + group) : pieces_.front().element->child(group),
                                   [&](const XmlElement& element) { return file_.declared_array(element); });
        };
        grid_.point_data = declared("PointData");
        grid_.cell_data = declared("CellData");
        if (const auto* group = image.child("FieldData")) read_field_data(*group);
    }

    bool is_of_pieces() const { return file_.type() == "PImageData" || file_.type() == "PRectilinearGrid"; }
    void add_piece(const XmlElement& element, std::size_t index);
    void read_field_data(const XmlElement& group);
    std::optional<EncodedArray> encoded(const XmlElement& element, const std::string& name) const;
    void read_piece(const Piece& piece, bool of_cells, const GridBox& shared, const GridBox& box,
                    DataArray& values) const;

    std::filesystem::path path_;
    std::shared_ptr<const RandomAccessFile> reader_;
    XmlOutline outline_;
    VtkXmlFile file_;
    std::vector<Piece> pieces_;
};

void XmlGridFile::add_piece(const XmlElement& element, std::size_t index)
{
    const auto extent = image_extent(file_, element, "Extent");
    Piece piece{{}, &element, index, {}};
    if (is_of_pieces()) {
        const auto* source = element.attribute("Source");
        if (source == nullptr) file_.fail(fmt::format("<Piece> number {} has no Source", pieces_.size()));
        piece.file = listed_file(path_, *source);
    }
    for (int axis = 0; axis < 3; ++axis) {
        piece.points.first[axis] = extent[2 * axis] - grid_.first[axis];
        piece.points.count[axis] = extent[2 * axis + 1] - extent[2 * axis] + 1;
        if (piece.points.first[axis] >= 0 && piece.points.count[axis] >= 1 &&
            piece.points.first[axis] + piece.points.count[axis] <= grid_.num_points[axis])
            continue;
        std::vector<std::int64_t> whole;
        for (int i = 0; i < 3; ++i) {
            whole.push_back(grid_.first[i]);
            whole.push_back(grid_.first[i] + grid_.num_points[i] - 1);
        }
        file_.fail(fmt::format("its piece has the extent '{}', the whole '{}'", fmt::join(extent, " "),
                               fmt::join(whole, " ")));
    }
    pieces_.push_back(piece);
}

/// Reads the numbers about the grid; texts are left out.
void XmlGridFile::read_field_data(const XmlElement& group)
{
    grid_.field_data = read_vtk_arrays(file_, &group, [&](const XmlElement& element) {
        auto array = file_.declared_array(element);
        if (array.type() == ScalarType::String) return array;
        auto values = encoded(element, array.name());
        if (!values) {
            const VtkXmlFile whole(path_);  // the outline leaves long texts out
            const auto& same = whole.require_child(whole.require_child(whole.root(), file_.type()), "FieldData");
            return whole.read_array(same.children[&element - group.children.data()], -1);
        }
        const auto row_size = size_of(array.type()) * static_cast<std::size_t>(array.num_components());
        DataArray read(array.name(), array.type(), static_cast<std::int64_t>(values->size() / row_size),
                       array.num_components());
        values->read(0, read.mutable_bytes());
        return read;
    });
    std::erase_if(grid_.field_data, [](const DataArray& array) { return array.type() == ScalarType::String; });
}

/// Where an array's bytes lie; nothing for one whose values are text, or lie in lines.
std::optional<EncodedArray> XmlGridFile::encoded(const XmlElement& element, const std::string& name) const
{
    const auto* format = element.attribute("format");
    const auto* type = element.attribute("type");
    if (format == nullptr || *format == "ascii" || (type != nullptr && *type == "Bit")) return {};
    std::optional<TextPlace> place;
    bool is_base64 = true;
    if (*format == "appended") {
        const auto appended = outline_.appended.value_or(TextPlace{});
        const auto offset = file_.appended_offset(element, name, appended.length);
        place = {appended.begin + offset, appended.length - offset};
        is_base64 = file_.appends_base64();
    } else {
        place = place_in(element.text);
    }
    if (!place) return {};
    if (is_base64) {
        constexpr std::uint64_t kLine = 4096;  // longer than the lines into which some writers break base64
        const auto text = reader_->text(place->begin, std::min(kLine, place->length));
        const auto begin = std::min(text.find_first_not_of(kXmlBlanks), text.size());
        const auto blank = text.find_first_of(kXmlBlanks, begin);
        if (blank != std::string::npos && text.find_first_not_of(kXmlBlanks, blank) != std::string::npos) return {};
        place->begin += begin;
        place->length -= begin;
    }
    return EncodedArray(reader_, place->begin, place->length, is_base64, file_.encoding(),
                        where_ + ": array '" + name + "'");
}

void XmlGridFile::read_piece(const Piece& piece, bool of_cells, const GridBox& shared, const GridBox& box,
                             DataArray& values) const
{
    const auto of_piece = box_of_piece(piece.points, grid_, of_cells);
    const auto row_size = size_of(values.type()) * static_cast<std::size_t>(values.num_components());
    auto out = values.mutable_bytes();
    const auto copy = [&](const DataArray& array, const GridBox& of_array) {
        for_each_run(shared, of_array, box, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
            std::memcpy(out.data() + static_cast<std::size_t>(to) * row_size,
                        array.bytes().data() + static_cast<std::size_t>(from) * row_size,
                        static_cast<std::size_t>(count) * row_size);
        });
    };
    const auto require_same_form = [&](const DataArray& array) {
        if (array.type() == values.type() && array.num_components() == values.num_components()) return;
        file_.fail(fmt::format("its pieces differ in the array '{}': {} {} and {} {}", values.name(),
                               values.num_components(), to_string(values.type()), array.num_components(),
                               to_string(array.type())));
    };
    if (!piece.file.empty()) {
        const auto other = GridFile::open(piece.file);
        if (const auto* xml = dynamic_cast<const XmlGridFile*>(other.get()); xml && xml->is_of_pieces())
            file_.fail(fmt::format("piece {} names pieces itself", piece.file.string()));
        for (int axis = 0; axis < 3; ++axis) {
            const auto first = other->grid().first[axis], end = first + other->grid().num_points[axis];
            const auto expected = grid_.first[axis] + piece.points.first[axis];
            if (first == expected && end == expected + piece.points.count[axis]) continue;
            file_.fail(fmt::format("piece {} has points {} to {} along {}, and here {} to {}", piece.file.string(),
                                   first, end - 1, "xyz"[axis], expected, expected + piece.points.count[axis] - 1));
        }
        auto of_other = shared;
        for (int axis = 0; axis < 3; ++axis) of_other.first[axis] -= piece.points.first[axis];
        const auto array = other->read(values.name(), of_cells, of_other);
        require_same_form(array);
        copy(array, shared);
        return;
    }
    const char* const group_name = of_cells ? "CellData" : "PointData";
    const auto* group = piece.element->child(group_name);
    const auto index_of = [&](const XmlElement& one) {
        return static_cast<std::size_t>(&one - group->children.data());
    };
    const XmlElement* element = nullptr;
    std::size_t count = 0;
    read_vtk_arrays(file_, group, [&](const XmlElement& one) {
        auto array = file_.declared_array(one);
        const auto found = array.name().empty() ? fmt::format("Array{}", count) : array.name();
        if (found == values.name()) element = &one;
        ++count;
        return array;
    });
    if (element == nullptr)
        file_.fail(fmt::format("its piece {} has no {} array '{}', which others have", &piece - pieces_.data(),
                               of_cells ? "cell" : "point", values.name()));
    require_same_form(file_.declared_array(*element));
    auto bytes = encoded(*element, values.name());
    if (!bytes) {
        const VtkXmlFile whole(path_);
        const auto& same = whole.require_child(whole.root(), file_.type()).children[piece.index];
        const auto array =
            whole.read_array(whole.require_child(same, group_name).children[index_of(*element)], of_piece.num_rows());
        copy(array, of_piece);
        return;
    }
    if (const auto expected = static_cast<std::uint64_t>(of_piece.num_rows()) * row_size; bytes->size() != expected)
        file_.fail(fmt::format("array '{}' should hold {} rows of {} {}, that is {} bytes; found {}. The file is "
                               "damaged",
                               values.name(), of_piece.num_rows(), values.num_components(), to_string(values.type()),
                               expected, bytes->size()));
    for_each_run(shared, of_piece, box, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
        const auto run =
            out.subspan(static_cast<std::size_t>(to) * row_size, static_cast<std::size_t>(count) * row_size);
        bytes->read(static_cast<std::uint64_t>(from) * row_size, run);
        const auto width = size_of(values.type());
        if (!file_.encoding().is_swapped || width < 2) return;
        for (std::size_t i = 0; i < run.size(); i += width) std::reverse(run.data() + i, run.data() + i + width);
    });
}

DataArray XmlGridFile::read(const std::string& name, bool of_cells, const GridBox& box) const
{
    auto values = values_for(name, of_cells, box);
    std::vector<bool> is_read(box.num_rows());
    for (const auto& piece : pieces_) {
        const auto shared = intersection(box, box_of_piece(piece.points, grid_, of_cells));
        if (shared.num_rows() == 0) continue;
        read_piece(piece, of_cells, shared, box, values);
        for_each_run(shared, box, box, [&](std::int64_t first, std::int64_t, std::int64_t count) {
            std::fill_n(is_read.begin() + first, count, true);
        });
    }
    const auto missing = std::ranges::find(is_read, false) - is_read.begin();
    if (missing == std::ssize(is_read)) return values;
    const auto x = missing % box.count[0], y = missing / box.count[0] % box.count[1],
               z = missing / box.count[0] / box.count[1];
    file_.fail(fmt::format("none of its {} pieces has the {} ({}, {}, {}), x first, counted from 0", pieces_.size(),
                           of_cells ? "cell" : "point", box.first[0] + x, box.first[1] + y, box.first[2] + z));
}

}  // namespace

GridBox whole_box(const ImageGrid& grid, bool of_cells)
{
    GridBox box;
    for (int axis = 0; axis < 3; ++axis) box.count[axis] = of_cells ? grid.num_cells(axis) : grid.num_points[axis];
    return box;
}

GridBox intersection(const GridBox& a, const GridBox& b)
{
    GridBox box;
    for (int axis = 0; axis < 3; ++axis) {
        box.first[axis] = std::max(a.first[axis], b.first[axis]);
        const auto end = std::min(a.first[axis] + a.count[axis], b.first[axis] + b.count[axis]);
        box.count[axis] = std::max<std::int64_t>(0, end - box.first[axis]);
    }
    return box;
}

void for_each_run(const GridBox& box, const GridBox& a, const GridBox& b,
                  const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& f)
{
    if (box.num_rows() == 0) return;
    const auto fills = [&](int axis) { return box.count[axis] == a.count[axis] && box.count[axis] == b.count[axis]; };
    const int merged = !fills(0) ? 0 : !fills(1) ? 1 : 2;  // directions before this one lie in one run with it
    std::int64_t length = 1;
    for (int axis = 0; axis <= merged; ++axis) length *= box.count[axis];
    const auto row_in = [&](const GridBox& outer, std::int64_t y, std::int64_t z) {
        return ((box.first[2] + z - outer.first[2]) * outer.count[1] + box.first[1] + y - outer.first[1]) *
                   outer.count[0] +
               box.first[0] - outer.first[0];
    };
    for (std::int64_t z = 0; z < (merged < 2 ? box.count[2] : 1); ++z)
        for (std::int64_t y = 0; y < (merged < 1 ? box.count[1] : 1); ++y) f(row_in(a, y, z), row_in(b, y, z), length);
}

bool is_grid_file(const std::filesystem::path& path)
{
    constexpr std::array<std::string_view, 4> kImages{".vti", ".pvti", ".vtkhdf", ".hdf"};
    return is_array_file(path) || contains(kImages, lower_extension(path));
}

bool is_array_file(const std::filesystem::path& path)
{
    constexpr std::array<std::string_view, 6> kArrays{".vtr", ".pvtr", ".h5", ".hdf5", ".nc", ".zarr"};
    return contains(kArrays, lower_extension(path));
}

std::unique_ptr<GridFile> GridFile::open(const std::filesystem::path& path, std::optional<double> time)
{
    const auto extension = lower_extension(path);
    if (extension == ".vtkhdf" || extension == ".hdf") return open_vtkhdf_grid(path);
    if (extension == ".h5" || extension == ".hdf5" || extension == ".nc") return open_hdf5_grid(path, time);
    if (extension == ".zarr") return open_zarr_grid(path, time);
    return std::make_unique<XmlGridFile>(path);
}

ImageGrid read_whole_grid(const std::filesystem::path& path, std::optional<double> time)
{
    const auto file = GridFile::open(path, time);
    auto grid = file->grid();
    if (const auto num_points = whole_box(grid, false).num_rows();
        num_points > std::numeric_limits<std::int32_t>::max())
        throw IoError("read_mesh: {}: the grid has {} points; a mesh has at most 2147483647.", path.string(),
                      num_points);
    for (auto* arrays : {&grid.point_data, &grid.cell_data}) {
        const bool of_cells = arrays == &grid.cell_data;
        for (auto& array : *arrays) {
            if (array.type() == ScalarType::String) {
                grid.left_out[array.name()] = "holds texts";
                continue;
            }
            array = file->read(array.name(), of_cells, whole_box(grid, of_cells));
        }
        std::erase_if(*arrays, [](const DataArray& array) { return array.type() == ScalarType::String; });
    }
    return grid;
}

DataArray GridFile::values_for(const std::string& name, bool of_cells, const GridBox& box) const
{
    const auto& declared = require_array(grid_, of_cells, name, where_);
    if (declared.type() == ScalarType::String)
        throw InvalidInput("{}: the array '{}' holds texts; expected numbers.", where_, name);
    if (declared.num_components() > kMostComponents)
        throw IoError("{}: the array '{}' has {} components, expected {} at most. The file is damaged.", where_, name,
                      declared.num_components(), kMostComponents);
    DataArray values(name, declared.type(), box.num_rows(), declared.num_components());
    describe_as(values, declared);
    return values;
}

}  // namespace meshard
