// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/atomic_file.h"
#include "io/bytes/hdf5_file.h"
#include "io/bytes/read_warnings.h"
#include "io/vtk/vtk_xml_reader.h"
#include "io/vtk/vtkhdf.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

namespace meshard {

namespace {

using Pieces = std::span<const Mesh>;
using Counts = std::vector<std::int64_t>;

void check_name(const DataArray& array)
{
    if (array.name().empty() || array.name() == "." || array.name().find('/') != std::string::npos ||
        array.name().find('\n') != std::string::npos)
        throw InvalidInput(
            "write_mesh: the array name '{}' cannot stand in an HDF5 file (empty, '.', or with '/'). Rename it.",
            array.name());
}

/// Says in which order a group's arrays stood, and which have roles.
void set_order_and_roles(const Hdf5Group& group, const std::vector<DataArray>& arrays)
{
    std::string order;
    for (const DataArray& array : arrays) {
        order += (order.empty() ? "" : "\n") + array.name();
        for (const std::string_view role : attribute_roles())
            if (has_role(array, role)) group.set_attribute(std::string(role), array.name());
    }
    if (!order.empty()) group.set_attribute("ArrayOrder", order);
}

class VtkHdfWriter {
public:
    VtkHdfWriter(Pieces pieces, const WriteOptions& options) : pieces_(pieces), compression_(options.compression) {}

    void write(const Hdf5Group& file)
    {
        const Hdf5Group root = write_cells(file, {1, 0});
        std::vector<const DataArray*> points;
        for (const Mesh& mesh : pieces_) points.push_back(&mesh.points);
        root.write("Points", points, compression_);
        write_group(root, "PointData", &Mesh::point_data);
        write_group(root, "CellData", &Mesh::cell_data);
        write_field_data(root);
    }

    /// Writes all but points and data. @param least   the version, if the content needs no later one
    Hdf5Group write_cells(const Hdf5Group& file, const Counts& least) const
    {
        Hdf5Group root = file.create_group("VTKHDF");
        const bool is_surface = pieces_.front().kind == MeshKind::Surface;
        const bool has_polyhedra = std::ranges::any_of(pieces_, &Mesh::has_polyhedra);
        root.set_attribute("Version", is_surface ? Counts{2, 0} : has_polyhedra ? Counts{2, 5} : least);
        root.set_attribute("Type", is_surface ? "PolyData" : "UnstructuredGrid");
        write_counts(root, "NumberOfPoints", [](const Mesh& mesh) { return mesh.num_points(); });
        if (is_surface)
            write_polygonal(root);
        else
            write_unstructured(root, has_polyhedra);
        return root;
    }

private:
    void write_integers(const Hdf5Group& group, const std::string& name, Counts values) const
    {
        const DataArray array = DataArray::from(name, std::move(values));
        group.write(name, {&array}, compression_);
    }

    template <class F>
    void write_counts(const Hdf5Group& group, const std::string& name, F&& count) const
    {
        Counts values;
        for (const Mesh& mesh : pieces_) values.push_back(count(mesh));
        const DataArray array = DataArray::from(name, std::move(values));
        group.write(name, {&array}, Compression::None);
    }

    /// Writes the rows `first(mesh)` ... `first(mesh) + count(mesh) - 1` of the pieces' cells.
    template <class First, class Count>
    void write_cell_rows(const Hdf5Group& group, First&& first, Count&& count) const
    {
        Counts offsets, entries, num_entries;
        for (const Mesh& mesh : pieces_) {
            const std::int64_t begin = first(mesh), end = begin + count(mesh);
            for (std::int64_t i = begin; i <= end; ++i)
                offsets.push_back(mesh.cells.offsets[i] - mesh.cells.offsets[begin]);
            entries.insert(entries.end(), mesh.cells.indices.begin() + mesh.cells.offsets[begin],
                           mesh.cells.indices.begin() + mesh.cells.offsets[end]);
            num_entries.push_back(mesh.cells.offsets[end] - mesh.cells.offsets[begin]);
        }
        write_counts(group, "NumberOfCells", count);
        write_integers(group, "NumberOfConnectivityIds", std::move(num_entries));
        write_integers(group, "Offsets", std::move(offsets));
        write_integers(group, "Connectivity", std::move(entries));
    }

    void write_unstructured(const Hdf5Group& root, bool has_polyhedra) const
    {
        write_cell_rows(
            root, [](const Mesh&) { return std::int64_t{0}; }, [](const Mesh& mesh) { return mesh.num_cells(); });
        std::vector<std::uint8_t> types;
        for (const Mesh& mesh : pieces_) append(types, mesh.cell_types);
        const DataArray array = DataArray::from("Types", std::move(types));
        root.write("Types", {&array}, compression_);
        if (has_polyhedra) write_faces(root);
    }

    void write_faces(const Hdf5Group& root) const
    {
        Counts entries, offsets, uses, use_offsets, num_entries, num_faces;
        for (const Mesh& mesh : pieces_) {
            const auto before = std::ssize(entries);
            std::int64_t face_count = 0;
            offsets.push_back(0);
            use_offsets.push_back(0);
            for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
                const auto stream = mesh.has_polyhedra() ? mesh.face_streams.row(i) : std::span<const std::int32_t>();
                for (std::size_t at = 1; at < stream.size();) {
                    const auto face = stream.subspan(at + 1, static_cast<std::size_t>(stream[at]));
                    append(entries, face);
                    offsets.push_back(std::ssize(entries) - before);
                    uses.push_back(face_count++);
                    at += 1 + face.size();
                }
                use_offsets.push_back(face_count);
            }
            num_faces.push_back(face_count);
            num_entries.push_back(std::ssize(entries) - before);
        }
        write_integers(root, "NumberOfFaces", num_faces);
        write_integers(root, "NumberOfFaceConnectivityIds", std::move(num_entries));
        write_integers(root, "NumberOfPolyhedronToFaceIds", std::move(num_faces));
        write_integers(root, "FaceConnectivity", std::move(entries));
        write_integers(root, "FaceOffsets", std::move(offsets));
        write_integers(root, "PolyhedronToFaces", std::move(uses));
        write_integers(root, "PolyhedronOffsets", std::move(use_offsets));
    }

    void write_polygonal(const Hdf5Group& root) const
    {
        constexpr std::array names{"Vertices", "Lines", "Polygons", "Strips"};
        const auto before = [](const Mesh& mesh, int group) {
            return static_cast<std::int64_t>(std::ranges::lower_bound(mesh.cell_types, group, {}, polydata_group) -
                                             mesh.cell_types.begin());
        };
        for (const Mesh& mesh : pieces_) {
            if (!std::ranges::is_sorted(mesh.cell_types, {}, polydata_group) ||
                (mesh.num_cells() > 0 && polydata_group(mesh.cell_types.front()) < 0))
                throw InvalidInput("write_mesh: the cells are not vertices, lines, polygons and strips in this order, "
                                   "which polygonal data keep.");
        }
        for (int group = 0; group < 4; ++group)
            write_cell_rows(
                root.create_group(names[group]), [&](const Mesh& mesh) { return before(mesh, group); },
                [&](const Mesh& mesh) { return before(mesh, group + 1) - before(mesh, group); });
    }

    void write_group(const Hdf5Group& root, const std::string& name, std::vector<DataArray> Mesh::* arrays) const
    {
        const Hdf5Group group = root.create_group(name);
        for (const DataArray& model : pieces_.front().*arrays) {
            check_name(model);
            std::vector<const DataArray*> parts;
            for (const Mesh& mesh : pieces_) {
                const DataArray* part = find_array(mesh.*arrays, model.name());
                if (part == nullptr || part->type() != model.type() || part->num_components() != model.num_components())
                    throw InvalidInput("write_mesh: the pieces differ in the array '{}'; all must have the same ones.",
                                       model.name());
                parts.push_back(part);
            }
            group.write(model.name(), parts, compression_);
        }
        set_order_and_roles(group, pieces_.front().*arrays);
    }

    void write_field_data(const Hdf5Group& root) const
    {
        const Hdf5Group group = root.create_group("FieldData");
        for (const DataArray& array : pieces_.front().field_data) {
            check_name(array);
            group.write(array.name(), {&array}, Compression::None);
        }
        set_order_and_roles(group, pieces_.front().field_data);
    }

    Pieces pieces_;
    Compression compression_;
};

/// Upper bound of the bytes of a file without compression, with some for HDF5's own data.
std::uint64_t size_bound(Pieces pieces)
{
    std::uint64_t size = 1 << 16;
    for (const Mesh& mesh : pieces) {
        size += mesh.points.bytes().size() + mesh.cells.indices.size() * 8 + mesh.cells.offsets.size() * 16 +
                mesh.face_streams.indices.size() * 16;
        for (const auto* group : {&mesh.point_data, &mesh.cell_data, &mesh.field_data})
            for (const DataArray& array : *group) {
                size += 2048;
                if (array.type() != ScalarType::String)
                    size += array.bytes().size();
                else
                    for (const std::string& text : array.strings()) size += 64 + text.size();
            }
    }
    return size;
}

/// The rows of an array of a series, of which states with the same values share one copy.
class ArrayOfSteps {
public:
    ArrayOfSteps(const Hdf5Group& group, std::string name) : group_(group), name_(std::move(name)) {}

    /// @param before   the array of the state before, null for the first
    void add(const DataArray& array, const DataArray* before)
    {
        const bool is_same = before && std::ranges::equal(array.bytes(), before->bytes());
        first_rows_.push_back(is_same ? first_rows_.back() : group_.append(name_, array));
    }

    void write_first_rows(const Hdf5Group& offsets, const std::string& name) const
    {
        const auto rows = DataArray::from(name, first_rows_);
        offsets.write(name, {&rows}, Compression::None);
    }

private:
    const Hdf5Group& group_;
    std::string name_;
    Counts first_rows_;
};

/// The arrays of a group, `PointData` or `CellData`, of a series.
class GroupOfSteps {
public:
    GroupOfSteps(const Hdf5Group& root, std::string name, const std::vector<DataArray>& first)
        : name_(std::move(name)), group_(root.create_group(name_))
    {
        for (const DataArray& array : first) {
            check_name(array);
            if (array.type() == ScalarType::String)
                throw InvalidInput(
                    "write_vtkhdf_series: the array '{}' has texts, which steps cannot hold. Leave it out.",
                    array.name());
            names_.push_back(array.name());
            arrays_.emplace_back(group_, array.name());
        }
        set_order_and_roles(group_, first);
    }

    void add(const std::vector<DataArray>& arrays, const std::vector<DataArray>* before)
    {
        for (std::size_t i = 0; i < arrays_.size(); ++i)
            arrays_[i].add(*find_array(arrays, names_[i]), before ? find_array(*before, names_[i]) : nullptr);
    }

    void write_first_rows(const Hdf5Group& steps) const
    {
        const auto offsets = steps.create_group(name_ + "Offsets");
        for (std::size_t i = 0; i < arrays_.size(); ++i) arrays_[i].write_first_rows(offsets, names_[i]);
    }

private:
    std::string name_;
    Hdf5Group group_;
    std::vector<std::string> names_;
    std::vector<ArrayOfSteps> arrays_;
};

/// @throws InvalidInput if a state has other points, cells or arrays than the first
void require_same_layout(const Mesh& first, const Mesh& state, double time)
{
    const auto is_same = [](const std::vector<DataArray>& a, const std::vector<DataArray>& b) {
        return std::ranges::equal(a, b, [](const DataArray& x, const DataArray& y) {
            return x.name() == y.name() && x.type() == y.type() && x.num_components() == y.num_components();
        });
    };
    if (state.num_points() != first.num_points() || state.points.type() != first.points.type() ||
        state.kind != first.kind || state.cells.offsets != first.cells.offsets ||
        state.cells.indices != first.cells.indices || state.cell_types != first.cell_types)
        throw InvalidInput("write_vtkhdf_series: the state at {} has other points or cells than the first.", time);
    if (!is_same(state.point_data, first.point_data) || !is_same(state.cell_data, first.cell_data))
        throw InvalidInput("write_vtkhdf_series: the state at {} has other arrays than the first.", time);
}

/// @throws InvalidInput for texts that VTKHDF files cannot hold
void require_texts(const DataArray& array)
{
    if (array.type() == ScalarType::String &&
        std::ranges::any_of(array.strings(), [](const auto& text) { return text.find('\0') != std::string::npos; }))
        throw InvalidInput(
            "write_mesh: a string of array '{}' contains the character 0, which VTK's files cannot hold. Remove it.",
            array.name());
    if (std::ranges::any_of(array.component_names,
                            [](const auto& name) { return name.find('\n') != std::string::npos; }))
        throw InvalidInput("write_mesh: a component of array '{}' has a line feed in its name, which VTKHDF files "
                           "cannot hold. Give it another name.",
                           array.name());
}

}  // namespace

void write_vtkhdf(const std::filesystem::path& path, Pieces pieces, const WriteOptions& options)
{
    if (pieces.empty()) throw InvalidInput("write_mesh: there is no piece to write.");
    if (options.compression == Compression::Lz4)
        throw InvalidInput("write_mesh: VTKHDF files are compressed with zlib only. Use --compress zlib, or none.");
    std::vector<std::string> warnings;
    for (const auto* arrays : {&pieces.front().point_data, &pieces.front().cell_data})
        for (const DataArray& array : *arrays)
            if (array.type() == ScalarType::String)
                warnings.push_back(
                    fmt::format("{}: the array '{}' has texts, at which VTK 9.7's reader of VTKHDF stops: "
                                "ParaView lacks it and arrays after it; meshard reads all",
                                path.string(), array.name()));
    for (const Mesh& piece : pieces)
        for (const auto* arrays : {&piece.point_data, &piece.cell_data, &piece.field_data})
            for (const DataArray& array : *arrays) require_texts(array);
    deliver_read_warnings(warnings, {});
    AtomicFile finished(path);
    finished.reserve(size_bound(pieces));
    Hdf5Group file = Hdf5Group::create_file(finished.temporary(), "write_mesh: " + path.string());
    VtkHdfWriter(pieces, options).write(file);
    file.close();
    finished.commit(options.sync);
}

void write_vtkhdf_series(const std::filesystem::path& path, std::span<const double> times,
                         const std::function<Mesh(std::size_t)>& state)
{
    if (times.empty()) throw InvalidInput("write_vtkhdf_series: there is no state to write.");
    const Mesh first = state(0);
    const Pieces piece(&first, 1);
    AtomicFile finished(path);
    finished.reserve(size_bound(piece) * times.size());
    Hdf5Group file = Hdf5Group::create_file(finished.temporary(), "write_vtkhdf_series: " + path.string());
    {
        const auto root = VtkHdfWriter(piece, {}).write_cells(file, {2, 0});
        ArrayOfSteps points(root, "Points");
        GroupOfSteps point_data(root, "PointData", first.point_data), cell_data(root, "CellData", first.cell_data);
        Mesh before;
        for (std::size_t i = 0; i < times.size(); ++i) {
            Mesh now = i == 0 ? first : state(i);
            require_same_layout(first, now, times[i]);
            points.add(now.points, i > 0 ? &before.points : nullptr);
            point_data.add(now.point_data, i > 0 ? &before.point_data : nullptr);
            cell_data.add(now.cell_data, i > 0 ? &before.cell_data : nullptr);
            before = std::move(now);
        }
        const auto num_steps = std::ssize(times);
        const auto steps = root.create_group("Steps");
        steps.set_attribute("NSteps", Counts{num_steps});
        const auto write = [&](const DataArray& array) { steps.write(array.name(), {&array}, Compression::None); };
        write(DataArray::from("Values", std::vector<double>(times.begin(), times.end())));
        write(DataArray::from("NumberOfParts", Counts(times.size(), 1)));
        write(DataArray::from("PartOffsets", Counts(times.size(), 0)));
        const std::int32_t groups = first.kind == MeshKind::Surface ? 4 : 1;
        for (const char* name : {"CellOffsets", "ConnectivityIdOffsets"})
            write(DataArray::from(name, Counts(times.size() * static_cast<std::size_t>(groups), 0), groups));
        points.write_first_rows(steps, "PointOffsets");
        point_data.write_first_rows(steps);
        cell_data.write_first_rows(steps);
    }
    file.close();
    finished.commit();
}

}  // namespace meshard
