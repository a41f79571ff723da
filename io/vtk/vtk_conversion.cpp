// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/vtk_conversion.h"

#include "io/vtk/vtk_xml_reader.h"
#include "partition/lists.h"

#include <fmt/core.h>
#include <vtkCellArray.h>
#include <vtkCellData.h>
#include <vtkDataArray.h>
#include <vtkDataObject.h>
#include <vtkDataSetAttributes.h>
#include <vtkFieldData.h>
#include <vtkIdList.h>
#include <vtkInformation.h>
#include <vtkInformationStringKey.h>
#include <vtkNew.h>
#include <vtkPointData.h>
#include <vtkPoints.h>
#include <vtkPolyData.h>
#include <vtkSmartPointer.h>
#include <vtkStringArray.h>
#include <vtkUnstructuredGrid.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace meshard {
namespace {

class VtkConverter {
public:
    explicit VtkConverter(std::string where) : where_(std::move(where)) {}

    Mesh convert(vtkDataObject& object)
    {
        if (auto* surface = vtkPolyData::SafeDownCast(&object)) return convert_surface(*surface);
        if (auto* grid = vtkUnstructuredGrid::SafeDownCast(&object)) return convert_grid(*grid);
        fail(std::string("holds a ") + object.GetClassName() +
             ", expected polygonal data or an unstructured grid. Convert it in ParaView (File, Save Data, .vtu)");
    }

private:
    [[noreturn]] void fail(const std::string& what) const { throw IoError("{} {}.", where_, what); }

    static std::optional<ScalarType> scalar_type(const vtkAbstractArray& array)
    {
        switch (array.GetDataType()) {
            vtkTemplateMacro(return scalar_type_of<VTK_TT>());
        }
        return std::nullopt;
    }

    DataArray convert_array(vtkAbstractArray& array) const
    {
        const std::string name = array.GetName() != nullptr ? array.GetName() : "";
        DataArray result;
        if (auto* strings = vtkStringArray::SafeDownCast(&array)) {
            std::vector<std::string> values;
            for (vtkIdType i = 0; i < strings->GetNumberOfValues(); ++i) values.push_back(strings->GetValue(i));
            result = DataArray::from_strings(name, std::move(values), strings->GetNumberOfComponents());
        } else if (array.GetDataType() == VTK_BIT) {
            auto& bits = *vtkDataArray::SafeDownCast(&array);
            std::vector<std::uint8_t> values;
            for (vtkIdType i = 0; i < bits.GetNumberOfTuples(); ++i)
                for (int c = 0; c < bits.GetNumberOfComponents(); ++c)
                    values.push_back(static_cast<std::uint8_t>(bits.GetComponent(i, c)));
            result = DataArray::from(name, std::move(values), bits.GetNumberOfComponents());
        } else {
            const auto type = scalar_type(array);
            if (!type)
                fail("has the array '" + name + "' of type " + array.GetDataTypeAsString() +
                     ", which is not supported");
            auto keep = std::make_shared<vtkSmartPointer<vtkAbstractArray>>(&array);
            result = DataArray::view(name, *type, array.GetNumberOfTuples(), array.GetNumberOfComponents(),
                                     static_cast<const std::byte*>(array.GetVoidPointer(0)), std::move(keep));
        }
        for (int c = 0; c < array.GetNumberOfComponents(); ++c)
            result.component_names.emplace_back(array.GetComponentName(c) != nullptr ? array.GetComponentName(c) : "");
        if (std::ranges::all_of(result.component_names, &std::string::empty)) result.component_names.clear();
        if (array.HasInformation() && array.GetInformation()->Has(vtkDataArray::UNITS_LABEL()) != 0)
            result.unit = array.GetInformation()->Get(vtkDataArray::UNITS_LABEL());
        return result;
    }

    std::vector<DataArray> convert_arrays(vtkFieldData& data, std::int64_t num_rows) const
    {
        std::vector<DataArray> arrays;
        auto* attributes = vtkDataSetAttributes::SafeDownCast(&data);
        for (int i = 0; i < data.GetNumberOfArrays(); ++i) {
            vtkAbstractArray* from = data.GetAbstractArray(i);
            DataArray array = convert_array(*from);
            if (array.name().empty()) array.rename(fmt::format("Array{}", i));
            if (num_rows >= 0 && array.num_rows() != num_rows)
                fail(fmt::format("has the array '{}' with {} rows, expected {}. It is truncated or damaged",
                                 array.name(), array.num_rows(), num_rows));
            for (int role = 0; attributes != nullptr && role < vtkDataSetAttributes::NUM_ATTRIBUTES; ++role)
                if (attributes->GetAbstractAttribute(role) == from)
                    add_role(array, vtkDataSetAttributes::GetAttributeTypeAsString(role));
            add_array(arrays, std::move(array), where_);
        }
        return arrays;
    }

    Mesh convert_common(vtkPointSet& data) const
    {
        Mesh mesh;
        if (data.GetNumberOfPoints() > std::numeric_limits<std::int32_t>::max())
            fail("has more than 2147483647 points, which a mesh cannot number");
        if (data.GetPoints() != nullptr) {
            mesh.points = convert_array(*data.GetPoints()->GetData());
            mesh.points.rename("Points");
            if (mesh.points.type() != ScalarType::Float32 && mesh.points.type() != ScalarType::Float64)
                mesh.points = DataArray::from("Points", mesh.points.to_doubles(), 3);
        }
        mesh.point_data = convert_arrays(*data.GetPointData(), data.GetNumberOfPoints());
        mesh.cell_data = convert_arrays(*data.GetCellData(), data.GetNumberOfCells());
        mesh.field_data = convert_arrays(*data.GetFieldData(), -1);
        return mesh;
    }

    void append_cell(Csr& cells, vtkIdList& points, std::int64_t num_points) const
    {
        for (vtkIdType k = 0; k < points.GetNumberOfIds(); ++k) {
            const vtkIdType point = points.GetId(k);
            if (point < 0 || point >= num_points)
                fail(fmt::format("has cell {} with point {}, expected 0 to {}. It is damaged", cells.num_rows(), point,
                                 num_points - 1));
            cells.indices.push_back(static_cast<std::int32_t>(point));
        }
        cells.offsets.push_back(std::ssize(cells.indices));
    }

    Mesh convert_surface(vtkPolyData& data) const
    {
        Mesh mesh = convert_common(data);
        mesh.kind = MeshKind::Surface;
        vtkNew<vtkIdList> points;
        vtkCellArray* const groups[] = {data.GetVerts(), data.GetLines(), data.GetPolys(), data.GetStrips()};
        for (int group = 0; group < 4; ++group)
            for (vtkIdType i = 0; i < groups[group]->GetNumberOfCells(); ++i) {
                groups[group]->GetCellAtId(i, points);
                append_cell(mesh.cells, *points, mesh.num_points());
                mesh.cell_types.push_back(polydata_cell_type(group, points->GetNumberOfIds()));
            }
        return mesh;
    }

    Mesh convert_grid(vtkUnstructuredGrid& data) const
    {
        Mesh mesh = convert_common(data);
        const vtkIdType num_cells = data.GetNumberOfCells();
        for (vtkIdType i = 0; i < num_cells; ++i)
            mesh.cell_types.push_back(static_cast<std::uint8_t>(data.GetCellType(i)));
        const bool has_polyhedra = contains(mesh.cell_types, VTK_POLYHEDRON);
        vtkNew<vtkIdList> points;
        for (vtkIdType i = 0; i < num_cells; ++i) {
            data.GetCells()->GetCellAtId(i, points);
            append_cell(mesh.cells, *points, mesh.num_points());
            if (!has_polyhedra) continue;
            if (mesh.cell_types[i] == VTK_POLYHEDRON) {
                data.GetFaceStream(i, points);
                for (vtkIdType k = 0; k < points->GetNumberOfIds(); ++k)
                    mesh.face_streams.indices.push_back(static_cast<std::int32_t>(points->GetId(k)));
            }
            mesh.face_streams.offsets.push_back(std::ssize(mesh.face_streams.indices));
        }
        return mesh;
    }

    std::string where_;
};

}  // namespace

std::string essence(const std::string& message)
{
    const std::size_t colon = message.find("): ");
    std::string text = message.substr(colon == std::string::npos ? 0 : colon + 3);
    text = text.substr(0, text.find('\n'));
    while (!text.empty() && (text.back() == '.' || text.back() == ' ')) text.pop_back();
    return text;
}

Mesh mesh_from_vtk(vtkDataObject* object, const std::string& where)
{
    if (object == nullptr) throw IoError("{} holds no data set that VTK knows.", where);
    Mesh mesh = VtkConverter(where).convert(*object);
    try {
        mesh.validate();
    } catch (const InvalidInput& error) {
        throw IoError("{} is damaged: {}", where, error.what());
    }
    return mesh;
}

}  // namespace meshard
