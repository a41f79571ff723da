// SPDX-License-Identifier: Apache-2.0
#include "apps/fields/force_fields.h"

#include "apps/console/text_table.h"
#include "apps/fields/mesh_fields.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace meshard {

namespace {

// Solvers and data sets use these names, in order of preference: OpenFOAM's, its time means, DrivAerML's, plain words.
constexpr std::array pressure_names{"p", "pMean", "pMeanTrim", "pressure", "Pressure"};
constexpr std::array shear_names{"wallShearStress", "wallShearStressMean", "wallShearStressMeanTrim", "wss",
                                 "WallShearStress"};

const DataArray* find_anywhere(const Mesh& mesh, std::string_view name)
{
    const DataArray* array = find_array(mesh.cell_data, name);
    return array ? array : find_array(mesh.point_data, name);
}

/// Returns the named array, or throws with the nearest name if there is none.
const DataArray& require_anywhere(const Mesh& mesh, const std::string& name, std::string_view where)
{
    if (const DataArray* array = find_anywhere(mesh, name)) return *array;
    throw_no_field(mesh, name, where);
}

/// Returns the values of `array` at cells; for point data the mean over each cell's points.
CellField cell_field(const Mesh& mesh, const DataArray& array, std::int32_t num_components, std::string_view where)
{
    if (array.type() == ScalarType::String || array.num_components() != num_components) {
        throw InvalidInput("{}: the field '{}' has {} components of type {}; expected {}", where, array.name(),
                           array.num_components(), to_string(array.type()),
                           num_components == 1 ? "one number for each cell."
                                               : "a vector of three numbers for each cell.");
    }
    CellField field;
    field.name = array.name();
    field.values = array.to_doubles();
    field.averaged = find_array(mesh.cell_data, array.name()) != &array;
    if (field.averaged) {
        std::vector<double> means(mesh.num_cells() * num_components, 0);
        for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
            const auto points = mesh.cells.row(i);
            for (const std::int32_t point : points) {
                for (std::int32_t k = 0; k < num_components; ++k) {
                    means[i * num_components + k] +=
                        field.values[std::int64_t{point} * num_components + k] / static_cast<double>(points.size());
                }
            }
        }
        field.values = std::move(means);
    } else if (find_array(mesh.point_data, array.name())) {
        field.also_there.push_back(array.name() + " of the points");
    }

    std::int64_t num_bad = 0;  // polygons; a point of none may have any value
    for (auto at = field.values.begin(); at != field.values.end(); at += num_components)
        num_bad += !std::all_of(at, at + num_components, [](double x) { return std::isfinite(x); });
    if (num_bad > 0) {
        throw InvalidInput("{}: the field '{}' is NaN or infinite at {}, so a force cannot be computed from it.", where,
                           array.name(), count_text(num_bad, "polygon"));
    }
    return field;
}

/// Returns the first of `names` that the mesh has, and in `also_there` the others that it has.
CellField first_field(const Mesh& mesh, std::span<const std::string> names, std::int32_t num_components,
                      std::string_view where, const std::string& what, const std::string& remedy)
{
    std::vector<std::string> there;
    for (const std::string& name : names) {
        if (find_anywhere(mesh, name) && !contains(there, name)) there.push_back(name);
    }
    if (there.empty()) {
        throw InvalidInput("{} has no {} under a usual name ('{}'). {} {}", where, what, fmt::join(names, "', '"),
                           list_of_fields(mesh), remedy);
    }
    CellField field = cell_field(mesh, *find_anywhere(mesh, there.front()), num_components, where);
    field.also_there.insert(field.also_there.end(), there.begin() + 1, there.end());
    return field;
}

}  // namespace

CellField pressure_field(const Mesh& mesh, const std::string& name, std::string_view where)
{
    if (!name.empty()) return cell_field(mesh, require_anywhere(mesh, name, where), 1, where);
    return first_field(mesh, std::vector<std::string>(pressure_names.begin(), pressure_names.end()), 1, where,
                       "pressure", "Name it with --pressure.");
}

CellField shear_field(const Mesh& mesh, const std::string& name, const std::string& pressure, std::string_view where)
{
    if (!name.empty()) return cell_field(mesh, require_anywhere(mesh, name, where), 3, where);
    std::vector<std::string> names;
    // pMean goes with wallShearStressMean, p_pred with wallShearStress_pred, pred_p with pred_wallShearStress.
    if (pressure.starts_with("p") && pressure.size() > 1) names.push_back("wallShearStress" + pressure.substr(1));
    if (pressure.ends_with("_p")) names.push_back(pressure.substr(0, pressure.size() - 1) + "wallShearStress");
    append(names, shear_names);
    return first_field(mesh, names, 3, where, "wall shear stress",
                       "Name it with --shear, or leave the viscous force out with --shear none.");
}

double normals_agreement(const Mesh& mesh, const std::vector<Vector3>& areas)
{
    const DataArray* normals = find_array(mesh.cell_data, "Normals");
    if (!normals || normals->type() == ScalarType::String || normals->num_components() != 3) return -1;
    double same = 0;
    double all = 0;
    for (std::size_t i = 0; i < areas.size(); ++i) {
        double product = 0;
        for (int d = 0; d < 3; ++d) product += normals->value(static_cast<std::int64_t>(i), d) * areas[i][d];
        const double area = std::hypot(areas[i][0], areas[i][1], areas[i][2]);
        if (product == 0 || std::isnan(product)) continue;  // a normal of zeros or NaN says nothing
        all += area;
        if (product > 0) same += area;
    }
    return all > 0 ? same / all : -1;
}

}  // namespace meshard
