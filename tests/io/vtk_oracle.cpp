// SPDX-License-Identifier: Apache-2.0
#include "tests/io/vtk_oracle.h"

#include <vtkCell.h>
#include <vtkCellArray.h>
#include <vtkCellData.h>
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

#include <cstring>
#include <stdexcept>

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
    case ScalarType::Int8: return VTK_SIGNED_CHAR;
    case ScalarType::UInt8: return VTK_UNSIGNED_CHAR;
    case ScalarType::Int16: return VTK_SHORT;
    case ScalarType::UInt16: return VTK_UNSIGNED_SHORT;
    case ScalarType::Int32: return VTK_INT;
    case ScalarType::UInt32: return VTK_UNSIGNED_INT;
    case ScalarType::Int64: return VTK_LONG;
    case ScalarType::UInt64: return VTK_UNSIGNED_LONG;
    case ScalarType::Float32: return VTK_FLOAT;
    case ScalarType::Float64: return VTK_DOUBLE;
    case ScalarType::String: return VTK_STRING;
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
    if (array.unit != (unit != nullptr ? unit : "")) return what + "VTK has the unit " + (unit != nullptr ? unit : "(none)");
    if (array.component_names.empty() && found->HasAComponentName()) return what + "VTK has component names";
    if (array.type() == ScalarType::String) {
        auto* strings = vtkStringArray::SafeDownCast(found);
        for (vtkIdType i = 0; i < strings->GetNumberOfValues(); ++i)
            if (strings->GetValue(i) != array.strings()[i]) return what + "string " + std::to_string(i);
        return "";
    }
    if (array.num_values() > 0 && std::memcmp(found->GetVoidPointer(0), array.bytes().data(), array.bytes().size()) != 0)
        return what + "values";
    return "";
}

std::string group_difference(vtkFieldData* found, const std::vector<DataArray>& arrays)
{
    if (found->GetNumberOfArrays() != static_cast<int>(arrays.size()))
        return "VTK has " + std::to_string(found->GetNumberOfArrays()) + " arrays, not " + std::to_string(arrays.size());
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
        if (data.GetCellType(i) != mesh.cell_types[i]) return what + ": VTK has type " + std::to_string(data.GetCellType(i));
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

void write_encoded(vtkXMLWriter& writer, const std::filesystem::path& path, vtkPointSet& data, const VtkEncoding& encoding)
{
    writer.SetFileName(path.c_str());
    writer.SetInputDataObject(&data);
    if (encoding.mode == VtkEncoding::Ascii) writer.SetDataModeToAscii();
    else if (encoding.mode == VtkEncoding::Base64) writer.SetDataModeToBinary();
    else writer.SetDataModeToAppended();
    writer.SetEncodeAppendedData(encoding.mode == VtkEncoding::AppendedBase64);
    switch (encoding.compressor) {
    case VtkEncoding::None: writer.SetCompressorTypeToNone(); break;
    case VtkEncoding::Zlib: writer.SetCompressorTypeToZLib(); break;
    case VtkEncoding::Lz4: writer.SetCompressorTypeToLZ4(); break;
    case VtkEncoding::Lzma: writer.SetCompressorTypeToLZMA(); break;
    }
    writer.SetBlockSize(256);
    if (encoding.wide_header) writer.SetHeaderTypeToUInt64();
    else writer.SetHeaderTypeToUInt32();
    if (encoding.big_endian) writer.SetByteOrderToBigEndian();
    if (writer.Write() != 1) throw std::runtime_error("VTK could not write " + path.string());
}

}  // namespace

std::string vtk_difference(const std::filesystem::path& path, const Mesh& mesh)
{
    const auto data = read(path);
    if (data == nullptr) return "VTK reads nothing";
    if ((vtkPolyData::SafeDownCast(data) != nullptr) != (mesh.kind == MeshKind::Surface)) return "kind";
    if (data->GetNumberOfPoints() != mesh.num_points()) return "VTK has " + std::to_string(data->GetNumberOfPoints()) + " points";
    if (data->GetNumberOfCells() != mesh.num_cells()) return "VTK has " + std::to_string(data->GetNumberOfCells()) + " cells";
    if (mesh.num_points() > 0)
        if (auto text = array_difference(data->GetPoints()->GetData(), mesh.points); !text.empty()) return text;
    if (auto text = cells_difference(*data, mesh); !text.empty()) return text;
    if (auto text = group_difference(data->GetPointData(), mesh.point_data); !text.empty()) return "point " + text;
    if (auto text = group_difference(data->GetCellData(), mesh.cell_data); !text.empty()) return "cell " + text;
    if (auto text = group_difference(data->GetFieldData(), mesh.field_data); !text.empty()) return "field " + text;
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
        return attributes->GetGlobalIds() != nullptr ? std::string(attributes->GetGlobalIds()->GetName()) : std::string();
    };
    return {.num_points = data->GetNumberOfPoints(),
            .num_cells = data->GetNumberOfCells(),
            .num_ghost_points = count(data->GetPointGhostArray()),
            .num_ghost_cells = count(data->GetCellGhostArray()),
            .cell_global_ids = name_of_ids(data->GetCellData()),
            .point_global_ids = name_of_ids(data->GetPointData())};
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
