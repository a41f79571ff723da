// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/image_file.h"

#include "io/bytes/xml.h"
#include "io/vtk/vtk_xml_file.h"
#include "io/vtk/vtk_xml_reader.h"
#include "io/vtk/vtk_xml_writer.h"
#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>

namespace meshard {
namespace {

/// Parses `count` numbers of an attribute; returns `fallback` if it is absent.
template <class T>
std::vector<T> numbers_of(const VtkXmlFile& file, const XmlElement& element, const char* name, std::size_t count,
                          const std::vector<T>& fallback)
{
    const auto* text = element.attribute(name);
    if (!text && !fallback.empty()) return fallback;
    std::vector<T> numbers;
    std::istringstream stream(text ? *text : "");
    for (T number; stream >> number;) numbers.push_back(number);
    if (numbers.size() != count || !stream.eof())
        file.fail(fmt::format("its {} is '{}', {} numbers are expected", name, text ? *text : "", count));
    return numbers;
}

template <class T>
std::string joined(const std::vector<T>& numbers)
{
    std::ostringstream text;
    text.precision(17);
    for (std::size_t i = 0; i < numbers.size(); ++i) text << (i ? " " : "") << numbers[i];
    return text.str();
}

std::int64_t product(const ImageGrid& grid, bool of_cells)
{
    std::int64_t count = 1;
    for (int axis = 0; axis < 3; ++axis) count *= of_cells ? grid.num_cells(axis) : grid.num_points[axis];
    return count;
}

}  // namespace

std::vector<std::int64_t> image_extent(const VtkXmlFile& file, const XmlElement& element, const char* name)
{
    auto extent = numbers_of<std::int64_t>(file, element, name, 6, {});
    for (const auto index : extent)
        if (index < -kFarthestPoint || index > kFarthestPoint)
            file.fail(fmt::format("its {} is '{}', which is no grid that fits memory", name, joined(extent)));
    return extent;
}

ImageGrid image_head(const VtkXmlFile& file, const XmlElement& image)
{
    const auto extent = image_extent(file, image, "WholeExtent");
    ImageGrid grid;
    const auto origin = numbers_of<double>(file, image, "Origin", 3, {0, 0, 0}),
               spacing = numbers_of<double>(file, image, "Spacing", 3, {1, 1, 1});
    constexpr std::int64_t kMostPoints = std::int64_t{1} << 31;  // along an axis, so that products can be checked
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    std::int64_t total = 1;
    for (int axis = 0; axis < 3; ++axis) {
        grid.first[axis] = extent[2 * axis];
        const auto count = extent[2 * axis + 1] - extent[2 * axis] + 1;
        if (std::abs(extent[2 * axis]) > kMostPoints || count < 1 || count > kMostPoints || count > kMost / total)
            file.fail("its WholeExtent is '" + joined(extent) + "', which is no grid that fits memory");
        total *= count;
        grid.num_points[axis] = count;
        grid.origin[axis] = origin[axis];
        grid.spacing[axis] = spacing[axis];
    }
    if (image.attribute("Direction")) grid.direction = numbers_of<double>(file, image, "Direction", 9, {});
    return grid;
}

ImageGrid read_image(const std::filesystem::path& path)
{
    if (auto grid = read_image_of_one_piece(path)) return std::move(*grid);
    throw IoError("read_image: {} has several pieces. `meshard convert` makes one of them.", path.string());
}

std::optional<ImageGrid> read_image_of_one_piece(const std::filesystem::path& path)
{
    const VtkXmlFile file(path);
    if (file.type() != "ImageData") file.fail("holds '" + file.type() + "', image data (.vti) are expected");
    const auto& image = file.require_child(file.root(), "ImageData");
    if (std::ranges::count(image.children, "Piece", &XmlElement::name) > 1) return {};
    const auto& piece = file.require_child(image, "Piece");
    const auto extent = image_extent(file, image, "WholeExtent");
    if (const auto of_piece = numbers_of(file, piece, "Extent", 6, extent); of_piece != extent)
        file.fail("its piece has the extent '" + joined(of_piece) + "', the whole '" + joined(extent) + "'");
    auto grid = image_head(file, image);
    if (product(grid, false) > std::int64_t{1} << 31)
        file.fail("its WholeExtent is '" + joined(extent) + "', which is no grid that fits memory");
    grid.point_data = read_vtk_arrays(file, piece.child("PointData"), product(grid, false));
    grid.cell_data = read_vtk_arrays(file, piece.child("CellData"), product(grid, true));
    grid.field_data = read_vtk_arrays(file, image.child("FieldData"), -1);
    return grid;
}

void write_image(const std::filesystem::path& path, const ImageGrid& grid)
{
    for (const bool of_cells : {false, true}) {
        for (const auto& array : arrays_at(grid, of_cells)) {
            if (array.type() == ScalarType::String || array.num_rows() == product(grid, of_cells)) continue;
            throw InvalidInput("write_image: array '{}' of the {} has {} rows, expected {}.", array.name(),
                               of_cells ? "cells" : "points", array.num_rows(), product(grid, of_cells));
        }
    }
    ImageWriter writer(path, grid);
    for (const auto* arrays : {&grid.field_data, &grid.point_data, &grid.cell_data})
        for (const auto& array : *arrays)
            if (array.type() != ScalarType::String) writer.write(array.bytes());
    writer.commit();
}

ImageWriter::ImageWriter(const std::filesystem::path& path, const ImageGrid& grid) : file_(path)
{
    std::vector<std::int64_t> extent;
    for (int axis = 0; axis < 3; ++axis) {
        extent.push_back(grid.first[axis]);
        extent.push_back(grid.first[axis] + grid.num_points[axis] - 1);
    }
    std::uint64_t offset = 0;
    std::string text = "<?xml version=\"1.0\"?>\n<VTKFile type=\"ImageData\" version=\"1.0\" "
                       "byte_order=\"LittleEndian\" header_type=\"UInt64\">\n  <ImageData";
    text += " WholeExtent=\"" + joined(extent) + "\" Origin=\"" +
            joined(std::vector<double>(grid.origin.begin(), grid.origin.end())) + "\" Spacing=\"" +
            joined(std::vector<double>(grid.spacing.begin(), grid.spacing.end())) + "\"";
    if (!grid.direction.empty()) text += " Direction=\"" + joined(grid.direction) + "\"";
    text += ">\n";
    const auto add_group = [&](const char* tag, const std::vector<DataArray>& arrays, std::int64_t num_rows) {
        if (num_rows < 0 && arrays.empty()) return;
        text += std::string("    <") + tag + ">\n";
        for (const auto& array : arrays) {
            if (array.type() == ScalarType::String) continue;  // texts about the grid
            text += fmt::format("      <DataArray{}{} format=\"appended\" offset=\"{}\"/>\n", vtk_declaration(array),
                                num_rows < 0 ? fmt::format(" NumberOfTuples=\"{}\"", array.num_rows()) : "", offset);
            sizes_.push_back(static_cast<std::uint64_t>(num_rows < 0 ? array.num_rows() : num_rows) *
                             static_cast<std::uint64_t>(array.num_components()) * size_of(array.type()));
            offset += 8 + (sizes_.back() + 7) / 8 * 8;
        }
        text += std::string("    </") + tag + ">\n";
    };
    add_group("FieldData", grid.field_data, -1);
    text += "    <Piece Extent=\"" + joined(extent) + "\">\n";
    add_group("PointData", grid.point_data, product(grid, false));
    add_group("CellData", grid.cell_data, product(grid, true));
    text += "    </Piece>\n  </ImageData>\n  <AppendedData encoding=\"raw\">\n";
    text.append((8 - (text.size() + 1) % 8) % 8, ' ');
    text += '_';
    file_.write(text);
}

void ImageWriter::begin_array()
{
    if (next_ == sizes_.size()) throw InvalidInput("ImageWriter: there are more values than the arrays have.");
    left_ = sizes_[next_++];
    file_.write(std::as_bytes(std::span(&left_, 1)));
}

void ImageWriter::write(std::span<const std::byte> values)
{
    while (!values.empty()) {
        if (left_ == 0) begin_array();
        const auto some = values.first(std::min<std::uint64_t>(values.size(), left_));
        file_.write(some);
        values = values.subspan(some.size());
        left_ -= some.size();
        constexpr std::array<std::byte, 8> zeros{};
        if (left_ == 0) file_.write(std::span(zeros).first((8 - sizes_[next_ - 1] % 8) % 8));
    }
}

void ImageWriter::commit()
{
    while (left_ == 0 && next_ < sizes_.size() && sizes_[next_] == 0) begin_array();
    if (left_ > 0 || next_ < sizes_.size()) throw InvalidInput("ImageWriter: values of arrays are missing.");
    file_.write("\n  </AppendedData>\n</VTKFile>\n");
    file_.commit();
}

Mesh image_mesh(const ImageGrid& grid)
{
    std::vector<int> axes;  // axes with more than one point, the fastest first
    for (int axis = 0; axis < 3; ++axis)
        if (grid.num_points[axis] > 1) axes.push_back(axis);
    const auto [nx, ny, nz] = grid.num_points;
    if (axes.size() < 2)
        throw InvalidInput("image_mesh: a grid of {} points has no cells of two or three directions.",
                           joined(std::vector{nx, ny, nz}));
    const auto num_points = product(grid, false);
    if (num_points > std::numeric_limits<std::int32_t>::max())
        throw InvalidInput("image_mesh: the grid has {} points; 2147483647 are possible.", num_points);

    Mesh mesh;
    std::vector<double> points;  // single precision cannot tell points of fine grids far from 0 apart
    points.reserve(3 * static_cast<std::size_t>(num_points));
    for (std::int64_t k = 0; k < nz; ++k)
        for (std::int64_t j = 0; j < ny; ++j)
            for (std::int64_t i = 0; i < nx; ++i) {
                const std::array<double, 3> along{static_cast<double>(grid.first[0] + i) * grid.spacing[0],
                                                  static_cast<double>(grid.first[1] + j) * grid.spacing[1],
                                                  static_cast<double>(grid.first[2] + k) * grid.spacing[2]};
                for (int row = 0; row < 3; ++row) {
                    double at = grid.origin[row];
                    for (int axis = 0; axis < 3; ++axis)
                        at += along[axis] *
                              (grid.direction.empty() ? (row == axis ? 1 : 0) : grid.direction[3 * row + axis]);
                    points.push_back(at);
                }
            }
    mesh.points = DataArray::from("Points", std::move(points), 3);

    const std::array<std::int32_t, 3> step{1, static_cast<std::int32_t>(nx), static_cast<std::int32_t>(nx * ny)};
    const auto u = step[axes[0]], v = step[axes[1]];
    std::vector<std::int32_t> corners{0, u, u + v, v};  // a quadrilateral; a hexahedron has it twice
    if (axes.size() == 3)
        for (int i = 0; i < 4; ++i) corners.push_back(corners[i] + step[2]);
    std::vector<std::int32_t> cell(corners.size());
    for (std::int64_t k = 0; k < grid.num_cells(2); ++k)
        for (std::int64_t j = 0; j < grid.num_cells(1); ++j)
            for (std::int64_t i = 0; i < grid.num_cells(0); ++i) {
                const auto first = static_cast<std::int32_t>(i + j * nx + k * nx * ny);
                for (std::size_t c = 0; c < cell.size(); ++c) cell[c] = first + corners[c];
                mesh.cells.push_row(cell);
            }
    mesh.cell_types.assign(static_cast<std::size_t>(product(grid, true)), axes.size() == 3 ? 12 : 9);
    return mesh;
}

}  // namespace meshard
