// SPDX-License-Identifier: Apache-2.0
// The module `meshard._meshes` has meshes, their files and their parts as arrays of numpy. It is free of torch, and
// loaded at its first use.
#include "apps/python/python_error.h"
#include "io/bytes/read_warnings.h"
#include "io/mesh_io.h"
#include "io/shards/manifest.h"
#include "io/shards/shard_check.h"
#include "io/shards/subdomain_io.h"
#include "partition/cut/geometric_partitioner.h"
#include "partition/cut/partitioner.h"
#include "partition/error.h"
#include "partition/ghosts/subdomain.h"
#include "partition/mesh/cell_geometry.h"
#include "partition/mesh/mesh.h"
#include "partition/mesh/mesh_faults.h"
#include "partition/mesh/mesh_graph.h"
#include "partition/mesh/surface_forces.h"
#include "partition/mesh/surface_geometry.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace meshard {
namespace {

using WithoutGil = py::call_guard<py::gil_scoped_release>;
using SharedMesh = std::shared_ptr<Mesh>;
using SharedPart = std::shared_ptr<Subdomain>;

/// Makes a read-only numpy array of values that `owner` keeps alive and that others may share.
template <class T>
py::array view_of(const T* values, std::vector<py::ssize_t> shape, const py::handle& owner)
{
    py::array array(py::dtype::of<T>(), std::move(shape), values, owner);
    array.attr("setflags")(py::arg("write") = false);
    return array;
}

py::object to_numpy(const DataArray& array)
{
    if (array.type() == ScalarType::String)
        return py::cast(std::vector<std::string>(array.strings().begin(), array.strings().end()));
    const auto* kept = new DataArray(array);  // shares the values
    const py::capsule owner(kept, [](void* last) { delete static_cast<DataArray*>(last); });
    std::vector<py::ssize_t> shape{array.num_rows()};
    if (array.num_components() != 1) shape.push_back(array.num_components());
    return with_scalar_type(array.type(),
                            [&]<class T>() -> py::object { return view_of(kept->values<T>().data(), shape, owner); });
}

py::dict to_numpy(const std::vector<DataArray>& arrays)
{
    py::dict named;
    for (const auto& array : arrays) named[py::str(array.name())] = to_numpy(array);
    return named;
}

template <class T>
bool is_type(const py::array& array)
{
    return array.dtype().equal(py::dtype::of<T>());
}

ScalarType type_of(const py::array& array, const std::string& name)
{
    if (is_type<float>(array)) return ScalarType::Float32;
    if (is_type<double>(array)) return ScalarType::Float64;
    if (is_type<std::int8_t>(array)) return ScalarType::Int8;
    if (is_type<std::uint8_t>(array)) return ScalarType::UInt8;
    if (is_type<std::int16_t>(array)) return ScalarType::Int16;
    if (is_type<std::uint16_t>(array)) return ScalarType::UInt16;
    if (is_type<std::int32_t>(array)) return ScalarType::Int32;
    if (is_type<std::uint32_t>(array)) return ScalarType::UInt32;
    if (is_type<std::int64_t>(array)) return ScalarType::Int64;
    if (is_type<std::uint64_t>(array)) return ScalarType::UInt64;
    throw InvalidInput("Mesh: the array '{}' is of type {}; expected integers of 8 to 64 bits, float32 or float64.",
                       name, py::str(array.dtype()).cast<std::string>());
}

/// Shares the memory of an array that lies in C's order; the array lives as long as someone needs it.
DataArray from_numpy(const std::string& name, const py::array& array)
{
    if (array.ndim() < 1 || array.ndim() > 2 || !(array.flags() & py::array::c_style)) {
        throw InvalidInput("Mesh: the array '{}' must have one or two dimensions, in C's order.", name);
    }
    const auto components = array.ndim() == 1 ? 1 : array.shape(1);
    const std::shared_ptr<const void> owner(new py::array(array), [](const void* last) {
        const py::gil_scoped_acquire gil;
        delete static_cast<const py::array*>(last);
    });
    return DataArray::view(name, type_of(array, name), array.shape(0), static_cast<std::int32_t>(components),
                           static_cast<const std::byte*>(array.data()), owner);
}

/// Converts an array of numpy, or a list of texts.
DataArray from_python(const std::string& name, const py::handle& values)
{
    if (py::isinstance<py::list>(values)) return DataArray::from_strings(name, values.cast<std::vector<std::string>>());
    return from_numpy(name, values.cast<py::array>());
}

std::vector<DataArray> from_python(const py::dict& arrays)
{
    std::vector<DataArray> all;
    for (const auto& [name, values] : arrays) all.push_back(from_python(name.cast<std::string>(), values));
    return all;
}

std::vector<DataArray>& arrays_of(Mesh& mesh, const std::string& place)
{
    return place == "point" ? mesh.point_data : place == "cell" ? mesh.cell_data : mesh.field_data;
}

void put_array(Mesh& mesh, const std::string& place, const std::string& name, const py::object& values)
{
    auto array = from_python(name, values);
    const auto expected = place == "point" ? mesh.num_points() : place == "cell" ? mesh.num_cells() : array.num_rows();
    if (array.num_rows() != expected) {
        throw InvalidInput("Mesh: the {} array '{}' has {} rows, expected {}, one a {}.", place, name, array.num_rows(),
                           expected, place);
    }
    auto& arrays = arrays_of(mesh, place);
    const auto found = std::ranges::find_if(arrays, [&](const DataArray& known) { return known.name() == name; });
    if (found == arrays.end())
        arrays.push_back(std::move(array));
    else
        *found = std::move(array);
}

void drop_array(Mesh& mesh, const std::string& place, const std::string& name)
{
    std::erase_if(arrays_of(mesh, place), [&](const DataArray& array) { return array.name() == name; });
}

SharedMesh make_mesh(const py::array& points, const py::array_t<std::int64_t>& offsets,
                     const py::array_t<std::int32_t>& connectivity, const py::array_t<std::uint8_t>& types,
                     const py::array_t<std::int64_t>& stream_offsets, const py::array_t<std::int32_t>& streams,
                     const py::dict& point_data, const py::dict& cell_data, bool is_surface)
{
    auto mesh = std::make_shared<Mesh>();
    mesh->kind = is_surface ? MeshKind::Surface : MeshKind::Unstructured;
    mesh->points = from_numpy("Points", points);
    mesh->cells.offsets.assign(offsets.data(), offsets.data() + offsets.size());
    mesh->cells.indices.assign(connectivity.data(), connectivity.data() + connectivity.size());
    mesh->cell_types.assign(types.data(), types.data() + types.size());
    if (stream_offsets.size() > 1) {
        mesh->face_streams.offsets.assign(stream_offsets.data(), stream_offsets.data() + stream_offsets.size());
        mesh->face_streams.indices.assign(streams.data(), streams.data() + streams.size());
    }
    mesh->point_data = from_python(point_data);
    mesh->cell_data = from_python(cell_data);
    mesh->validate();
    return mesh;
}

std::vector<SharedPart> shared(std::vector<Subdomain> subdomains)
{
    std::vector<SharedPart> parts;
    for (auto& subdomain : subdomains) parts.push_back(std::make_shared<Subdomain>(std::move(subdomain)));
    return parts;
}

struct CutSettings {
    std::int32_t num_parts = 1;
    std::string method;
    std::int32_t ghost_layers = 1;
    double imbalance = 1.03;
    std::uint64_t seed = 0;
    bool thorough = false;
};

Partition cut_mesh(const Mesh& mesh, const Csr& graph, const CutSettings& settings)
{
    const auto& method = partition_method(settings.method);
    std::vector<float> centroids;
    if (method.needs_centroids) centroids = row_centroids(mesh, first_point(mesh));
    PartitionProblem problem;
    problem.graph = &graph;
    problem.centroids = centroids;
    problem.num_parts = settings.num_parts;
    problem.balance.imbalance = settings.imbalance;
    problem.seed = settings.seed;
    CutOptions options;
    options.method = settings.method;
    options.refine = method.refine;
    options.effort = settings.thorough ? RefinementEffort::Thorough : RefinementEffort::Fast;
    return cut_rows(problem, options).partition;
}

std::vector<SharedPart> partition(const SharedMesh& mesh, std::int32_t num_parts, const std::string& method,
                                  std::int32_t ghost_layers, double imbalance, std::uint64_t seed, bool thorough,
                                  const std::optional<std::vector<std::int32_t>>& owners)
{
    const auto graph = mesh_graph(*mesh);
    Partition cut;
    if (owners) {
        cut = {num_parts, *owners};
        cut.validate();
        if (cut.num_rows() != mesh->num_rows()) {
            throw InvalidInput("partition: expected an owner for each of the {} rows, found {}.", mesh->num_rows(),
                               cut.num_rows());
        }
    } else {
        cut = cut_mesh(*mesh, graph, {num_parts, method, ghost_layers, imbalance, seed, thorough});
    }
    return shared(extract_subdomains(*mesh, graph, cut, ghost_layers));
}

std::vector<Subdomain> copied(const std::vector<SharedPart>& parts)
{
    std::vector<Subdomain> subdomains;
    for (const auto& part : parts) {
        if (!part) throw InvalidInput("expected parts of a mesh, found None among them.");
        subdomains.push_back(*part);
    }
    return subdomains;
}

void write_shards(const std::filesystem::path& folder, const std::vector<SharedPart>& parts, const std::string& source)
{
    ShardsInfo info;
    info.source = source;
    info.method = "python";
    save_subdomains(folder, copied(parts), info);
}

SurfaceForces surface_forces(const SharedMesh& mesh, const std::vector<double>& pressures,
                             const std::vector<Vector3>& tractions, const Vector3& centre)
{
    require_single_polygons(*mesh);
    return integrate_forces(area_vectors(*mesh), surface_centroids(*mesh), pressures, tractions, centre);
}

/// Reads from the manifest whether the mesh is a cloud of points, and how many rows each part owns.
std::pair<bool, std::vector<std::int64_t>> rows_of_parts(const std::filesystem::path& folder)
{
    const auto manifest = read_manifest(folder);
    std::vector<std::int64_t> rows;
    for (const auto& part : manifest.parts)
        rows.push_back(manifest.num_cells > 0 ? part.num_owned_cells : part.num_owned_points);
    return {manifest.num_cells == 0, rows};
}

/// Returns the centroids of the cells, (cells, 3).
py::array_t<double> centroids(const SharedMesh& mesh)
{
    std::vector<Vector3> found;
    {
        const py::gil_scoped_release without_gil;
        found = mesh->kind == MeshKind::Surface ? surface_centroids(*mesh) : cell_measures(*mesh).centroids;
    }
    py::array_t<double> array({static_cast<py::ssize_t>(found.size()), py::ssize_t{3}});
    for (std::size_t i = 0; i < found.size(); ++i) std::ranges::copy(found[i], array.mutable_data(i));
    return array;
}

void bind_mesh(py::module_& module)
{
    py::class_<Mesh, SharedMesh>(
        module, "Mesh",
        "Geometry and named arrays, as read-only arrays of numpy. Made by meshard.mesh and meshard.read.")
        .def_property_readonly("points", [](const Mesh& m) { return to_numpy(m.points); })
        .def_property_readonly(
            "offsets",
            [](const SharedMesh& m) { return view_of(m->cells.offsets.data(), {m->num_cells() + 1}, py::cast(m)); })
        .def_property_readonly(
            "connectivity",
            [](const SharedMesh& m) { return view_of(m->cells.indices.data(), {m->cells.num_entries()}, py::cast(m)); })
        .def_property_readonly("cell_types",
                               [](const SharedMesh& m) {
                                   return view_of(m->cell_types.data(),
                                                  {static_cast<py::ssize_t>(m->cell_types.size())}, py::cast(m));
                               })
        .def("_arrays", [](Mesh& m, const std::string& place) { return to_numpy(arrays_of(m, place)); })
        .def("_put_array", &put_array)
        .def("_drop_array", &drop_array)
        .def_property_readonly("n_points", &Mesh::num_points)
        .def_property_readonly("n_cells", &Mesh::num_cells)
        .def_property_readonly("is_surface", [](const Mesh& m) { return m.kind == MeshKind::Surface; })
        .def("difference", [](const Mesh& a, const Mesh& b) { return difference(a, b); })
        .def("__repr__", [](const Mesh& m) { return to_string(m); });
    module.def("make_mesh", &make_mesh);
    set_read_warning_handler([](const std::string& text) {
        const py::gil_scoped_acquire gil;
        if (PyErr_WarnEx(PyExc_UserWarning, (text + ".").c_str(), 1) < 0) throw py::error_already_set();
    });
    module.def(
        "read_mesh", [](const std::filesystem::path& path) { return std::make_shared<Mesh>(read_mesh(path)); },
        WithoutGil());
    module.def(
        "write_mesh", [](const std::filesystem::path& path, const SharedMesh& mesh) { write_mesh(path, *mesh); },
        WithoutGil());
}

void bind_parts(py::module_& module)
{
    const auto ids = [](const IndexMap& map, const SharedPart& part) {
        return view_of(map.global_ids.data(), {map.num_local()}, py::cast(part));
    };
    py::class_<Subdomain, SharedPart>(module, "Part", "One part of a mesh: its own rows first, ghosts after.")
        .def_readonly("part", &Subdomain::part)
        .def_readonly("num_parts", &Subdomain::num_parts)
        .def_readonly("num_ghost_layers", &Subdomain::num_ghost_layers)
        .def_property_readonly("mesh", [](const SharedPart& p) { return SharedMesh(p, &p->mesh); })
        .def_property_readonly("num_owned", [](const Subdomain& p) { return p.rows().num_owned; })
        .def_property_readonly("num_owned_points", [](const Subdomain& p) { return p.points.num_owned; })
        .def_property_readonly("global_ids", [ids](const SharedPart& p) { return ids(p->rows(), p); })
        .def_property_readonly("global_point_ids", [ids](const SharedPart& p) { return ids(p->points, p); })
        .def_property_readonly("ghost_owners",
                               [](const SharedPart& p) {
                                   return view_of(p->rows().ghost_owners.data(), {p->rows().num_ghosts()}, py::cast(p));
                               })
        .def_property_readonly("ghost_levels",
                               [](const SharedPart& p) {
                                   return view_of(p->ghost_levels.data(),
                                                  {static_cast<py::ssize_t>(p->ghost_levels.size())}, py::cast(p));
                               })
        .def("__repr__", [](const Subdomain& p) { return to_string(p); });
    module.def("partition", &partition, WithoutGil());
    module.def(
        "merge",
        [](const std::vector<SharedPart>& parts) { return std::make_shared<Mesh>(merge_subdomains(copied(parts))); },
        WithoutGil());
    module.def("rows_of_parts", &rows_of_parts);
    module.def("centroids", &centroids);
    module.def("check_shards", &check_shards, WithoutGil());
    module.def("check_mesh", [](const SharedMesh& mesh) { return describe(find_faults(*mesh)); }, WithoutGil());
    module.def("write_shards", &write_shards, WithoutGil());
    module.def(
        "read_shards",
        [](const std::filesystem::path& folder, bool verify) {
            return shared(load_subdomains(folder, check_of(verify)));
        },
        WithoutGil());
    module.def(
        "read_part",
        [](const std::filesystem::path& folder, std::int32_t part, bool verify) {
            return std::make_shared<Subdomain>(load_subdomain(folder, part, check_of(verify)));
        },
        WithoutGil());
}

void bind_forces(py::module_& module)
{
    py::class_<SurfaceForces>(module, "SurfaceForces",
                              "What meshard.forces gives, in the units of pressure times area.")
        .def_readonly("area", &SurfaceForces::area)
        .def_readonly("pressure_force", &SurfaceForces::pressure_force)
        .def_readonly("viscous_force", &SurfaceForces::viscous_force)
        .def_readonly("pressure_moment", &SurfaceForces::pressure_moment)
        .def_readonly("viscous_moment", &SurfaceForces::viscous_moment);
    module.def("forces", &surface_forces, WithoutGil());
}

}  // namespace
}  // namespace meshard

PYBIND11_MODULE(_meshes, module)
{
    module.doc() = "Bindings of meshard's C++ libraries for meshes. Use the functions of the package `meshard`.";
    py::register_exception_translator([](std::exception_ptr error) {
        try {
            if (error) std::rethrow_exception(error);
        } catch (const meshard::InvalidInput& invalid) {
            meshard::set_python_error("InvalidInput", invalid.what());
        } catch (const meshard::IoError& failed) {
            meshard::set_python_error("IoError", failed.what());
        }
    });
    meshard::bind_mesh(module);
    meshard::bind_parts(module);
    meshard::bind_forces(module);
}
