// SPDX-License-Identifier: Apache-2.0
#include "tests/io/vtk/vtk_oracle.h"

#include <vtkCell.h>
#include <vtkCellArray.h>
#include <vtkCellData.h>
#include <vtkCellSizeFilter.h>
#include <vtkDataArray.h>
#include <vtkDataSetWriter.h>
#include <vtkGenericDataObjectReader.h>
#include <vtkIdList.h>
#include <vtkIdTypeArray.h>
#include <vtkInformation.h>
#include <vtkInformationStringKey.h>
#include <vtkNew.h>
#include <vtkPLYReader.h>
#include <vtkPointData.h>
#include <vtkPoints.h>
#include <vtkPolyData.h>
#include <vtkSTLReader.h>
#include <vtkSmartPointer.h>
#include <vtkStringArray.h>
#include <vtkUnsignedCharArray.h>
#include <vtkUnstructuredGrid.h>
#include <vtkXMLPPolyDataReader.h>
#include <vtkXMLPUnstructuredGridReader.h>
#include <vtkXMLPolyDataReader.h>
#include <vtkXMLPolyDataWriter.h>
#include <vtkXMLUnstructuredGridReader.h>
#include <vtkXMLUnstructuredGridWriter.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

namespace meshard {

namespace {

template <class Reader>
vtkSmartPointer<vtkPointSet> read_as(const std::filesystem::path& path)
{
    vtkNew<Reader> reader;
    reader->SetFileName(path.c_str());
    reader->Update();
    return vtkPointSet::SafeDownCast(reader->GetOutputDataObject(0));
}

vtkSmartPointer<vtkPointSet> read(const std::filesystem::path& path)
{
    const std::string extension = path.extension();
    if (extension == ".vtu") return read_as<vtkXMLUnstructuredGridReader>(path);
    if (extension == ".vtp") return read_as<vtkXMLPolyDataReader>(path);
    if (extension == ".pvtu") return read_as<vtkXMLPUnstructuredGridReader>(path);
    if (extension == ".pvtp") return read_as<vtkXMLPPolyDataReader>(path);
    if (extension == ".stl") return read_as<vtkSTLReader>(path);
    if (extension == ".ply") return read_as<vtkPLYReader>(path);
    return read_as<vtkGenericDataObjectReader>(path);
}

int vtk_type(ScalarType type)
{
    switch (type) {
    case ScalarType::Int8:
        return VTK_SIGNED_CHAR;
    case ScalarType::UInt8:
        return VTK_UNSIGNED_CHAR;
    case ScalarType::Int16:
        return VTK_SHORT;
    case ScalarType::UInt16:
        return VTK_UNSIGNED_SHORT;
    case ScalarType::Int32:
        return VTK_INT;
    case ScalarType::UInt32:
        return VTK_UNSIGNED_INT;
    case ScalarType::Int64:
        return VTK_LONG;
    case ScalarType::UInt64:
        return VTK_UNSIGNED_LONG;
    case ScalarType::Float32:
        return VTK_FLOAT;
    case ScalarType::Float64:
        return VTK_DOUBLE;
    case ScalarType::String:
        return VTK_STRING;
    }
    return 0;
}

bool same_type(int found, ScalarType type)
{
    const int wanted = vtk_type(type);
    if (found == wanted) return true;
    if (wanted == VTK_LONG) return found == VTK_LONG_LONG || found == VTK_ID_TYPE;
    if (wanted == VTK_UNSIGNED_LONG) return found == VTK_UNSIGNED_LONG_LONG;
    return wanted == VTK_SIGNED_CHAR && found == VTK_CHAR;
}

std::string array_difference(vtkAbstractArray* found, const DataArray& array)
{
    const std::string what = "array '" + array.name() + "': ";
    if (found == nullptr) return what + "absent";
    if (!same_type(found->GetDataType(), array.type())) return what + "VTK has type " + found->GetDataTypeAsString();
    if (found->GetNumberOfTuples() != array.num_rows() || found->GetNumberOfComponents() != array.num_components())
        return what + "VTK has " + std::to_string(found->GetNumberOfTuples()) + " rows";
    for (std::size_t i = 0; i < array.component_names.size(); ++i) {
        const char* name = found->GetComponentName(static_cast<vtkIdType>(i));
        if (array.component_names[i] != (name != nullptr ? name : "")) return what + "component names";
    }
    const char* unit = found->HasInformation() ? found->GetInformation()->Get(vtkDataArray::UNITS_LABEL()) : nullptr;
    if (array.unit != (unit != nullptr ? unit : ""))
        return what + "VTK has the unit " + (unit != nullptr ? unit : "(none)");
    if (array.component_names.empty() && found->HasAComponentName()) return what + "VTK has component names";
    if (array.type() == ScalarType::String) {
        auto* strings = vtkStringArray::SafeDownCast(found);
        for (vtkIdType i = 0; i < strings->GetNumberOfValues(); ++i)
            if (strings->GetValue(i) != array.strings()[i]) return what + "string " + std::to_string(i);
        return "";
    }
    if (array.num_values() > 0 &&
        std::memcmp(found->GetVoidPointer(0), array.bytes().data(), array.bytes().size()) != 0)
        return what + "values";
    return "";
}

std::string group_difference(vtkFieldData* found, const std::vector<DataArray>& arrays)
{
    if (found->GetNumberOfArrays() != static_cast<int>(arrays.size()))
        return "VTK has " + std::to_string(found->GetNumberOfArrays()) + " arrays, not " +
               std::to_string(arrays.size());
    auto* attributes = vtkDataSetAttributes::SafeDownCast(found);
    for (int i = 0; i < found->GetNumberOfArrays(); ++i) {
        vtkAbstractArray* array = found->GetAbstractArray(i);
        if (array->GetName() != arrays[i].name()) return "array " + std::to_string(i) + " is " + array->GetName();
        if (auto text = array_difference(array, arrays[i]); !text.empty()) return text;
        std::string roles;
        for (int role = 0; attributes != nullptr && role < vtkDataSetAttributes::NUM_ATTRIBUTES; ++role)
            if (attributes->GetAbstractAttribute(role) == array)
                roles += (roles.empty() ? "" : " ") + std::string(vtkDataSetAttributes::GetAttributeTypeAsString(role));
        if (roles != arrays[i].attribute) return "array '" + arrays[i].name() + "' has the roles '" + roles + "'";
    }
    return "";
}

std::string cells_difference(vtkPointSet& data, const Mesh& mesh)
{
    auto* grid = vtkUnstructuredGrid::SafeDownCast(&data);
    vtkNew<vtkIdList> points;
    for (vtkIdType i = 0; i < data.GetNumberOfCells(); ++i) {
        const std::string what = "cell " + std::to_string(i);
        if (data.GetCellType(i) != mesh.cell_types[i])
            return what + ": VTK has type " + std::to_string(data.GetCellType(i));
        const auto compare = [&](std::span<const std::int32_t> row) {
            bool same = points->GetNumberOfIds() == static_cast<vtkIdType>(row.size());
            for (vtkIdType k = 0; same && k < points->GetNumberOfIds(); ++k) same = points->GetId(k) == row[k];
            return same;
        };
        data.GetCellPoints(i, points);
        if (!compare(mesh.cells.row(i))) return what + ": points";
        if (mesh.cell_types[i] != VTK_POLYHEDRON) continue;
        grid->GetFaceStream(i, points);
        if (!compare(mesh.face_streams.row(i))) return what + ": faces";
    }
    return "";
}

vtkSmartPointer<vtkAbstractArray> to_vtk(const DataArray& array)
{
    auto result = vtkSmartPointer<vtkAbstractArray>::Take(vtkAbstractArray::CreateArray(vtk_type(array.type())));
    result->SetName(array.name().c_str());
    result->SetNumberOfComponents(array.num_components());
    result->SetNumberOfTuples(array.num_rows());
    for (std::size_t i = 0; i < array.component_names.size(); ++i)
        result->SetComponentName(static_cast<vtkIdType>(i), array.component_names[i].c_str());
    if (!array.unit.empty()) result->GetInformation()->Set(vtkDataArray::UNITS_LABEL(), array.unit.c_str());
    if (array.type() == ScalarType::String)
        for (std::size_t i = 0; i < array.strings().size(); ++i)
            vtkStringArray::SafeDownCast(result)->SetValue(static_cast<vtkIdType>(i), array.strings()[i]);
    else if (array.num_values() > 0)
        std::memcpy(result->GetVoidPointer(0), array.bytes().data(), array.bytes().size());
    return result;
}

void add_arrays(vtkFieldData& data, const std::vector<DataArray>& arrays)
{
    auto* attributes = vtkDataSetAttributes::SafeDownCast(&data);
    for (const DataArray& array : arrays) {
        data.AddArray(to_vtk(array));
        for (int role = 0; attributes != nullptr && role < vtkDataSetAttributes::NUM_ATTRIBUTES; ++role)
            if (array.attribute == vtkDataSetAttributes::GetAttributeTypeAsString(role))
                attributes->SetActiveAttribute(array.name().c_str(), role);
    }
}

vtkSmartPointer<vtkPointSet> to_vtk(const Mesh& mesh)
{
    vtkNew<vtkPoints> points;
    points->SetData(vtkDataArray::SafeDownCast(to_vtk(mesh.points)));
    vtkSmartPointer<vtkPointSet> data;
    if (mesh.kind == MeshKind::Surface) {
        vtkNew<vtkPolyData> surface;
        surface->SetPoints(points);
        vtkNew<vtkCellArray> verts, lines, polys, strips;
        for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
            const auto type = mesh.cell_types[i];
            vtkCellArray* group = type <= 2 ? verts : type <= 4 ? lines : type == 6 ? strips : polys;
            group->InsertNextCell(static_cast<int>(mesh.cells.row(i).size()));
            for (const auto point : mesh.cells.row(i)) group->InsertCellPoint(point);
        }
        surface->SetVerts(verts);
        surface->SetLines(lines);
        surface->SetPolys(polys);
        surface->SetStrips(strips);
        data = surface;
    } else {
        vtkNew<vtkUnstructuredGrid> grid;
        grid->SetPoints(points);
        for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
            vtkNew<vtkIdList> ids;
            const auto row = mesh.cell_types[i] == VTK_POLYHEDRON ? mesh.face_streams.row(i) : mesh.cells.row(i);
            for (const auto id : row) ids->InsertNextId(id);
            grid->InsertNextCell(mesh.cell_types[i], ids);
        }
        data = grid;
    }
    add_arrays(*data->GetPointData(), mesh.point_data);
    add_arrays(*data->GetCellData(), mesh.cell_data);
    add_arrays(*data->GetFieldData(), mesh.field_data);
    return data;
}

void write_encoded(vtkXMLWriter& writer, const std::filesystem::path& path, vtkPointSet& data,
                   const VtkEncoding& encoding)
{
    writer.SetFileName(path.c_str());
    writer.SetInputDataObject(&data);
    if (encoding.mode == VtkEncoding::Ascii)
        writer.SetDataModeToAscii();
    else if (encoding.mode == VtkEncoding::Base64)
        writer.SetDataModeToBinary();
    else
        writer.SetDataModeToAppended();
    writer.SetEncodeAppendedData(encoding.mode == VtkEncoding::AppendedBase64);
    switch (encoding.compressor) {
    case VtkEncoding::None:
        writer.SetCompressorTypeToNone();
        break;
    case VtkEncoding::Zlib:
        writer.SetCompressorTypeToZLib();
        break;
    case VtkEncoding::Lz4:
        writer.SetCompressorTypeToLZ4();
        break;
    case VtkEncoding::Lzma:
        writer.SetCompressorTypeToLZMA();
        break;
    }
    writer.SetBlockSize(256);
    if (encoding.wide_header)
        writer.SetHeaderTypeToUInt64();
    else
        writer.SetHeaderTypeToUInt32();
    if (encoding.big_endian) writer.SetByteOrderToBigEndian();
    if (writer.Write() != 1) throw std::runtime_error("VTK could not write " + path.string());
}

/// Rows of the whole, of which each must be owned by one piece.
struct OwnedRows {
    OwnedRows(std::string noun_, const char* ids_, vtkDataSetAttributes* expected_, vtkIdType num_rows_)
        : noun(std::move(noun_)), ids(ids_), expected(expected_), num_rows(num_rows_),
          is_owned(static_cast<std::size_t>(num_rows_), false)
    {
    }

    /// Compares row `at` of a piece with the row of its id; `shape_differs(id)` looks at what is no array.
    template <class F>
    std::string difference(vtkDataSetAttributes& found, vtkIdType at, vtkUnsignedCharArray* ghosts, F&& shape_differs)
    {
        const auto array_of = [&](const char* name) {
            return vtkDataArray::SafeDownCast(found.GetAbstractArray(name));
        };
        if (array_of(ids) == nullptr) return std::string("no ") + ids;
        const auto id = static_cast<vtkIdType>(array_of(ids)->GetComponent(at, 0));
        const std::string what = noun + " " + std::to_string(id);
        if (id < 0 || id >= num_rows) return what + " is none of the source";
        if (ghosts == nullptr || (ghosts->GetValue(at) & vtkDataSetAttributes::DUPLICATECELL) == 0) {
            if (is_owned[static_cast<std::size_t>(id)]) return what + " is owned twice";
            is_owned[static_cast<std::size_t>(id)] = true;
            ++num_owned;
        }
        if (shape_differs(id)) return what + " has another place, type or corners";
        for (int i = 0; i < expected->GetNumberOfArrays(); ++i) {
            auto* const array = vtkDataArray::SafeDownCast(expected->GetAbstractArray(i));
            auto* const copy = array_of(array->GetName());
            if (copy == nullptr || copy->GetDataType() != array->GetDataType())
                return std::string(array->GetName()) + " is absent or of another type";
            const auto size = static_cast<std::size_t>(array->GetNumberOfComponents() * array->GetDataTypeSize());
            if (std::memcmp(static_cast<char*>(copy->GetVoidPointer(0)) + static_cast<std::size_t>(at) * size,
                            static_cast<char*>(array->GetVoidPointer(0)) + static_cast<std::size_t>(id) * size,
                            size) != 0)
                return what + " has another value of " + array->GetName();
        }
        return "";
    }

    std::string noun;
    const char* ids;
    vtkDataSetAttributes* expected;
    vtkIdType num_rows, num_owned = 0;
    std::vector<bool> is_owned;
};

/// Whether a cell's points, or the stream of its faces, are the expected ones once `global_ids` has translated them.
bool same_points(vtkIdList& found, vtkIdList& expected, vtkDataArray& global_ids, bool is_stream)
{
    if (found.GetNumberOfIds() != expected.GetNumberOfIds()) return false;
    vtkIdType left = 0;  // still to come of a face in a stream
    for (vtkIdType k = 0; k < found.GetNumberOfIds(); ++k) {
        const bool is_count = is_stream && left == 0;
        const vtkIdType id =
            is_count ? found.GetId(k) : static_cast<vtkIdType>(global_ids.GetComponent(found.GetId(k), 0));
        if (id != expected.GetId(k)) return false;
        if (is_count)
            left = k == 0 ? 0 : id;
        else
            --left;
    }
    return true;
}

}  // namespace

std::string vtk_difference(const std::filesystem::path& path, const Mesh& mesh)
{
    const auto data = read(path);
    if (data == nullptr) return "VTK reads nothing";
    if ((vtkPolyData::SafeDownCast(data) != nullptr) != (mesh.kind == MeshKind::Surface)) return "kind";
    if (data->GetNumberOfPoints() != mesh.num_points())
        return "VTK has " + std::to_string(data->GetNumberOfPoints()) + " points";
    if (data->GetNumberOfCells() != mesh.num_cells())
        return "VTK has " + std::to_string(data->GetNumberOfCells()) + " cells";
    if (mesh.num_points() > 0)
        if (auto text = array_difference(data->GetPoints()->GetData(), mesh.points); !text.empty()) return text;
    if (auto text = cells_difference(*data, mesh); !text.empty()) return text;
    if (auto text = group_difference(data->GetPointData(), mesh.point_data); !text.empty()) return "point " + text;
    if (auto text = group_difference(data->GetCellData(), mesh.cell_data); !text.empty()) return "cell " + text;
    if (auto text = group_difference(data->GetFieldData(), mesh.field_data); !text.empty()) return "field " + text;
    return "";
}

std::string vtk_gathered_difference(std::span<const std::filesystem::path> paths, const std::filesystem::path& source)
{
    const auto whole = read(source);
    if (whole == nullptr) return "VTK reads nothing of the source";
    OwnedRows points{"point", "GlobalPointIds", whole->GetPointData(), whole->GetNumberOfPoints()};
    OwnedRows cells{"cell", "GlobalCellIds", whole->GetCellData(), whole->GetNumberOfCells()};
    for (const auto& path : paths) {
        const auto piece = read(path);
        if (piece == nullptr) return "VTK reads nothing of " + path.string();
        auto* const point_ids = vtkDataArray::SafeDownCast(piece->GetPointData()->GetAbstractArray("GlobalPointIds"));
        vtkIdType at = 0;
        const auto place_differs = [&](vtkIdType id) {
            double a[3], b[3];
            piece->GetPoint(at, a);
            whole->GetPoint(id, b);
            return !std::equal(a, a + 3, b);
        };
        for (at = 0; at < piece->GetNumberOfPoints(); ++at)
            if (auto text = points.difference(*piece->GetPointData(), at, piece->GetPointGhostArray(), place_differs);
                !text.empty())
                return text;
        vtkNew<vtkIdList> found, expected;
        const auto cell_differs = [&](vtkIdType id) {
            if (piece->GetCellType(at) != whole->GetCellType(id)) return true;
            piece->GetCellPoints(at, found);
            whole->GetCellPoints(id, expected);
            if (!same_points(*found, *expected, *point_ids, false)) return true;
            if (whole->GetCellType(id) != VTK_POLYHEDRON) return false;
            vtkUnstructuredGrid::SafeDownCast(piece)->GetFaceStream(at, found);
            vtkUnstructuredGrid::SafeDownCast(whole)->GetFaceStream(id, expected);
            return !same_points(*found, *expected, *point_ids, true);
        };
        for (at = 0; at < piece->GetNumberOfCells(); ++at)
            if (auto text = cells.difference(*piece->GetCellData(), at, piece->GetCellGhostArray(), cell_differs);
                !text.empty())
                return text;
    }
    if (points.num_owned != points.num_rows)
        return std::to_string(points.num_rows - points.num_owned) + " points are owned by nobody";
    if (cells.num_owned != cells.num_rows)
        return std::to_string(cells.num_rows - cells.num_owned) + " cells are owned by nobody";
    return "";
}

VtkSummary vtk_summary(const std::filesystem::path& path)
{
    const auto data = read(path);
    if (data == nullptr) throw std::runtime_error("VTK reads nothing from " + path.string());
    const auto count = [](vtkUnsignedCharArray* ghosts) {
        std::int64_t number = 0;
        for (vtkIdType i = 0; ghosts != nullptr && i < ghosts->GetNumberOfTuples(); ++i)
            number += (ghosts->GetValue(i) & vtkDataSetAttributes::DUPLICATECELL) != 0;
        return number;
    };
    const auto name_of_ids = [](vtkDataSetAttributes* attributes) {
        return attributes->GetGlobalIds() != nullptr ? std::string(attributes->GetGlobalIds()->GetName())
                                                     : std::string();
    };
    return {.num_points = data->GetNumberOfPoints(),
            .num_cells = data->GetNumberOfCells(),
            .num_ghost_points = count(data->GetPointGhostArray()),
            .num_ghost_cells = count(data->GetCellGhostArray()),
            .cell_global_ids = name_of_ids(data->GetCellData()),
            .point_global_ids = name_of_ids(data->GetPointData())};
}

std::vector<double> vtk_cell_sizes(const Mesh& mesh)
{
    vtkNew<vtkCellSizeFilter> filter;
    filter->SetInputData(to_vtk(mesh));
    filter->Update();
    auto& data = *vtkDataSet::SafeDownCast(filter->GetOutput())->GetCellData();
    const char* names[] = {nullptr, "Length", "Area", "Volume"};
    std::vector<double> sizes;
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        const int dimension = cell_dimension(mesh.cell_types[i]);
        sizes.push_back(dimension > 0 ? data.GetArray(names[dimension])->GetTuple1(i) : 0);
    }
    return sizes;
}

void write_with_vtk(const std::filesystem::path& path, const Mesh& mesh, const VtkEncoding& encoding)
{
    const auto data = to_vtk(mesh);
    if (mesh.kind == MeshKind::Surface) {
        vtkNew<vtkXMLPolyDataWriter> writer;
        write_encoded(*writer, path, *data, encoding);
    } else {
        vtkNew<vtkXMLUnstructuredGridWriter> writer;
        write_encoded(*writer, path, *data, encoding);
    }
}

void write_legacy_with_vtk(const std::filesystem::path& path, const Mesh& mesh, bool binary)
{
    vtkNew<vtkDataSetWriter> writer;
    writer->SetFileName(path.c_str());
    writer->SetInputData(to_vtk(mesh));
    if (binary) writer->SetFileTypeToBinary();
    if (writer->Write() != 1) throw std::runtime_error("VTK could not write " + path.string());
}

}  // namespace meshard
