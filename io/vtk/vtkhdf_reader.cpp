// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/hdf5_file.h"
#include "io/bytes/read_warnings.h"
#include "io/bytes/time_choice.h"
#include "io/vtk/reading_conventions.h"
#include "io/vtk/vtk_parallel_reader.h"
#include "io/vtk/vtk_xml_reader.h"
#include "io/vtk/vtkhdf.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/mesh/cell_type.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

namespace meshard {

namespace {

constexpr std::array polygonal_groups{"Vertices", "Lines", "Polygons", "Strips"};

using Counts = std::vector<std::int64_t>;

std::int64_t sum_of(const Counts& counts, std::int64_t first, std::int64_t count)
{
    return std::accumulate(counts.begin() + first, counts.begin() + first + count, std::int64_t{0});
}

/// The step of a series to read: first rows of its parts, points, cells and so on.
struct Step {
    std::optional<double> time;
    std::int64_t index = 0, first_part = 0, num_parts = 0;
    std::int64_t first_point = 0;
    std::array<std::int64_t, 4> first_cell{}, first_entry{};  // for an unstructured grid only the first
};

class VtkHdfReader {
public:
    VtkHdfReader(const Hdf5Group& root, std::optional<double> time) : root_(root), has_steps_(root.is_group("Steps"))
    {
        const auto type = root.text_attribute("Type");
        if (!type) root.fail("the group VTKHDF has no attribute Type");
        is_surface_ = *type == "PolyData";
        if (!is_surface_ && *type != "UnstructuredGrid")
            root.fail("holds a data set of type '" + *type +
                      "', expected UnstructuredGrid or PolyData. Images are read where regular grids are (data.grid); "
                      "else convert it in ParaView");
        num_points_ = counts(root, "NumberOfPoints");
        choose_step(time);
    }

    MeshKind kind() const { return is_surface_ ? MeshKind::Surface : MeshKind::Unstructured; }

    std::vector<Mesh> read()
    {
        std::vector<Mesh> pieces;
        Step at = step_;
        for (std::int64_t part = 0; part < step_.num_parts; ++part)
            pieces.push_back(read_part(step_.first_part + part, at));
        if (pieces.empty()) {
            pieces.emplace_back();
            pieces.back().kind = kind();
        }
        pieces.front().field_data = read_field_data();
        return pieces;
    }

    VtkHdfArrays map(const std::shared_ptr<const MappedFile>& file) const
    {
        constexpr const char* advice = "; write the file with `meshard convert FILE whole.vtu` and cut that";
        if (has_steps_ || step_.num_parts != 1)
            root_.fail("has steps in time or not exactly one partition and cannot be mapped" + std::string(advice));
        VtkHdfArrays arrays;
        arrays.kind = kind();
        const auto map_here = [&](const Hdf5Group& group, const std::string& name, std::int64_t num_rows) {
            DataArray array = group.map(name, file);
            if (array.num_rows() != num_rows)
                group.fail(fmt::format("the data set '{}' has {} rows, expected {}. It is damaged", name,
                                       array.num_rows(), num_rows));
            return array;
        };
        const auto num_points = num_points_.front();
        std::int64_t num_cells = 0;
        arrays.points = map_here(root_, "Points", num_points);
        const auto map_cells = [&](const Hdf5Group& group, int number) {
            const auto count = count_of(counts(group, "NumberOfCells"), 0, "NumberOfCells");
            const auto num_entries = count_of(counts(group, "NumberOfConnectivityIds"), 0, "NumberOfConnectivityIds");
            num_cells += count;
            arrays.cells.push_back(
                {number, map_here(group, "Offsets", count + 1), map_here(group, "Connectivity", num_entries)});
        };
        if (is_surface_) {
            for (int number = 0; number < 4; ++number)
                if (const char* const name = polygonal_groups[number]; root_.is_group(name))
                    map_cells(root_.group(name), number);
        } else {
            if (root_.has("FaceConnectivity"))
                root_.fail("has polyhedra, which cannot be mapped in this format" + std::string(advice));
            map_cells(root_, -1);
            arrays.types = map_here(root_, "Types", num_cells);
        }
        const auto map_rows = [&](std::int64_t num_rows) {
            return [&, num_rows](const Hdf5Group& group, const std::string& name, std::int64_t) {
                return map_here(group, name, num_rows);
            };
        };
        arrays.point_data = read_arrays("PointData", 0, 0, map_rows(num_points));
        arrays.cell_data = read_arrays("CellData", 0, 0, map_rows(num_cells));
        arrays.field_data = read_field_data();
        return arrays;
    }

private:
    static Counts counts(const Hdf5Group& group, const std::string& name)
    {
        Counts values = group.read_integers(name);
        for (const std::int64_t value : values)
            if (value < 0 || value > INT32_MAX)
                group.fail(fmt::format("'{}' holds {}, expected 0 to 2147483647. It is damaged", name, value));
        return values;
    }

    std::int64_t count_of(const Counts& values, std::int64_t part, const char* name) const
    {
        if (part < 0 || part >= std::ssize(values))
            root_.fail(
                fmt::format("'{}' has {} entries, entry {} is needed. It is damaged", name, values.size(), part));
        return values[part];
    }

    std::int64_t step_value(const Hdf5Group& steps, const std::string& name, std::int64_t column = 0) const
    {
        if (!steps.has(name)) return 0;
        const auto [rows, columns] = steps.shape(name);
        if (step_.index >= rows || column >= columns) return 0;
        return steps.read_integers(name, step_.index, 1)[column];
    }

    void choose_step(std::optional<double> time)
    {
        step_.num_parts = std::ssize(num_points_);
        if (!has_steps_) {
            if (time) root_.fail("has no steps in time to choose from");
            return;
        }
        const Hdf5Group steps = root_.group("Steps");
        const auto values = steps.read("Values").to_doubles();
        if (values.empty()) root_.fail("has a group Steps without values");
        step_.index = std::ssize(values) - 1;
        if (time) {
            const auto found = index_of_time(values, *time);
            if (!found)
                root_.fail(
                    fmt::format("has no step at that time; its times are {} to {}", values.front(), values.back()));
            step_.index = static_cast<std::int64_t>(*found);
        }
        step_.time = values[step_.index];
        step_.first_part = step_value(steps, "PartOffsets");
        step_.num_parts = steps.has("NumberOfParts") ? step_value(steps, "NumberOfParts") : 1;
        if (step_.first_part < 0 || step_.num_parts < 0 || step_.first_part + step_.num_parts > std::ssize(num_points_))
            root_.fail(fmt::format("step {} has parts beyond the last. It is damaged", step_.index));
        step_.first_point = step_value(steps, "PointOffsets");
        for (std::int64_t group = 0; group < (is_surface_ ? 4 : 1); ++group) {
            step_.first_cell[group] = step_value(steps, "CellOffsets", group);
            step_.first_entry[group] = step_value(steps, "ConnectivityIdOffsets", group);
        }
    }

    /// Reads the cells of one part. Each part has one offset more than cells, so that those of part p begin at its
    /// first cell + p.
    Csr read_cells(const Hdf5Group& group, std::int64_t part, std::int64_t first_cell, std::int64_t num_cells,
                   std::int64_t first_entry, std::int64_t num_entries, std::int64_t num_points,
                   const char* offsets_name, const char* entries_name) const
    {
        Csr cells;
        cells.offsets = group.read_integers(offsets_name, first_cell + part, num_cells + 1);
        if (cells.offsets.front() != 0 || !std::ranges::is_sorted(cells.offsets) || cells.offsets.back() != num_entries)
            group.fail(fmt::format("'{}' of part {} does not rise from 0 to {}. It is damaged", offsets_name, part,
                                   num_entries));
        const auto entries = group.read_integers(entries_name, first_entry, num_entries);
        cells.indices.reserve(entries.size());
        for (const std::int64_t point : entries) {
            if (point < 0 || point >= num_points)
                group.fail(fmt::format("'{}' of part {} holds {}, expected 0 to {}. It is damaged", entries_name, part,
                                       point, num_points - 1));
            cells.indices.push_back(static_cast<std::int32_t>(point));
        }
        return cells;
    }

    Mesh read_part(std::int64_t part, Step& at) const
    {
        Mesh mesh;
        mesh.kind = kind();
        const std::int64_t num_points = count_of(num_points_, part, "NumberOfPoints");
        mesh.points = root_.read("Points", at.first_point, num_points);
        if (mesh.points.num_components() != 3 || mesh.points.type() == ScalarType::String)
            root_.fail(fmt::format("the points are {} x {}, expected 3 x Float32 or Float64",
                                   mesh.points.num_components(), to_string(mesh.points.type())));
        if (mesh.points.type() != ScalarType::Float32 && mesh.points.type() != ScalarType::Float64)
            mesh.points = DataArray::from("Points", mesh.points.to_doubles(), 3);
        std::int64_t first_cell = at.first_cell[0];
        if (is_surface_) {
            first_cell = std::accumulate(at.first_cell.begin(), at.first_cell.end(), std::int64_t{0});
            for (int group = 0; group < 4; ++group) read_polygonal_group(mesh, group, part, at);
        } else {
            const auto num_cells = count_of(counts(root_, "NumberOfCells"), part, "NumberOfCells");
            const auto num_entries =
                count_of(counts(root_, "NumberOfConnectivityIds"), part, "NumberOfConnectivityIds");
            mesh.cells = read_cells(root_, part, at.first_cell[0], num_cells, at.first_entry[0], num_entries,
                                    num_points, "Offsets", "Connectivity");
            for (const std::int64_t type : root_.read_integers("Types", at.first_cell[0], num_cells)) {
                if (type < 0 || type > 255)
                    root_.fail(fmt::format("a cell has type {}, expected 0 to 255. It is damaged", type));
                mesh.cell_types.push_back(static_cast<std::uint8_t>(type));
            }
            if (contains(mesh.cell_types, kPolyhedron)) mesh.face_streams = read_faces(mesh, part, at);
            at.first_cell[0] += num_cells;
            at.first_entry[0] += num_entries;
        }
        const auto read_rows = [](std::int64_t num_rows) {
            return [num_rows](const Hdf5Group& group, const std::string& name, std::int64_t begin) {
                return group.read(name, begin, num_rows);
            };
        };
        mesh.point_data =
            read_arrays("PointData", at.first_point, at.first_point - step_.first_point, read_rows(num_points));
        mesh.cell_data =
            read_arrays("CellData", first_cell,
                        first_cell - std::accumulate(step_.first_cell.begin(), step_.first_cell.end(), std::int64_t{0}),
                        read_rows(mesh.num_cells()));
        at.first_point += num_points;
        return mesh;
    }

    void read_polygonal_group(Mesh& mesh, int number, std::int64_t part, Step& at) const
    {
        const char* const name = polygonal_groups[number];
        if (!root_.is_group(name)) return;
        const Hdf5Group group = root_.group(name);
        const auto num_cells = count_of(counts(group, "NumberOfCells"), part, "NumberOfCells");
        const auto num_entries = count_of(counts(group, "NumberOfConnectivityIds"), part, "NumberOfConnectivityIds");
        const Csr cells = read_cells(group, part, at.first_cell[number], num_cells, at.first_entry[number], num_entries,
                                     mesh.num_points(), "Offsets", "Connectivity");
        for (std::int64_t i = 0; i < num_cells; ++i) {
            mesh.cells.push_row(cells.row(i));
            mesh.cell_types.push_back(polydata_cell_type(number, std::ssize(cells.row(i))));
        }
        at.first_cell[number] += num_cells;
        at.first_entry[number] += num_entries;
    }

    Csr read_faces(const Mesh& mesh, std::int64_t part, const Step& at) const
    {
        if (!root_.has("FaceConnectivity")) root_.fail("has polyhedra, but no data set FaceConnectivity (VTKHDF 2.5)");
        const Counts num_faces = counts(root_, "NumberOfFaces"),
                     num_entries = counts(root_, "NumberOfFaceConnectivityIds"),
                     num_uses = counts(root_, "NumberOfPolyhedronToFaceIds");
        const auto faces_here = count_of(num_faces, part, "NumberOfFaces");
        const auto uses_here = count_of(num_uses, part, "NumberOfPolyhedronToFaceIds");
        const Csr faces = read_cells(root_, part, sum_of(num_faces, 0, part), faces_here, sum_of(num_entries, 0, part),
                                     count_of(num_entries, part, "NumberOfFaceConnectivityIds"), mesh.num_points(),
                                     "FaceOffsets", "FaceConnectivity");
        const Csr uses = read_cells(root_, part, at.first_cell[0], mesh.num_cells(), sum_of(num_uses, 0, part),
                                    uses_here, faces_here, "PolyhedronOffsets", "PolyhedronToFaces");
        return face_streams_of(faces, uses, mesh.cell_types);
    }

    /// In a series each array has its own offset of the step's rows.
    template <class Read>
    std::vector<DataArray> read_arrays(const std::string& name, std::int64_t first, std::int64_t rows_before,
                                       Read&& read) const
    {
        std::vector<DataArray> arrays;
        if (!root_.is_group(name)) return arrays;
        const Hdf5Group group = root_.group(name);
        for (const std::string& member : group.names()) {
            if (group.is_group(member)) continue;
            std::int64_t begin = first;
            if (has_steps_ && root_.group("Steps").is_group(name + "Offsets"))
                if (const Hdf5Group offsets = root_.group("Steps").group(name + "Offsets"); offsets.has(member))
                    begin = step_value(offsets, member.c_str()) + rows_before;
            DataArray array = read(group, member, begin);
            for (const std::string_view role : attribute_roles())
                if (const auto named = group.text_attribute(std::string(role)); named && *named == member)
                    add_role(array, role);
            arrays.push_back(std::move(array));
        }
        restore_order(arrays, group);
        return arrays;
    }

    /// HDF5 lists members by name; the original order is stored separately.
    static void restore_order(std::vector<DataArray>& arrays, const Hdf5Group& group)
    {
        if (const auto order = group.text_attribute("ArrayOrder"))
            std::ranges::stable_sort(arrays, {}, [&](const DataArray& array) {
                return ("\n" + *order + "\n").find("\n" + array.name() + "\n");
            });
    }

    /// The rows of the step that is read, where the file says which these are.
    DataArray read_field(const Hdf5Group& group, const std::string& name) const
    {
        if (!has_steps_) return group.read(name);
        const Hdf5Group steps = root_.group("Steps");
        for (const char* table : {"FieldDataOffsets", "FieldDataSizes"})
            if (!steps.is_group(table) || !steps.group(table).has(name)) return group.read(name);
        const auto first = step_value(steps.group("FieldDataOffsets"), name);
        const Hdf5Group sizes = steps.group("FieldDataSizes");  // components and rows of each step
        return group.read(name, first, step_value(sizes, name, sizes.shape(name).second - 1));
    }

    std::vector<DataArray> read_field_data() const
    {
        std::vector<DataArray> arrays;
        if (root_.is_group("FieldData")) {
            const Hdf5Group group = root_.group("FieldData");
            for (const std::string& member : group.names())
                if (!group.is_group(member)) arrays.push_back(read_field(group, member));
            restore_order(arrays, group);
        }
        if (step_.time) add_time(arrays, *step_.time);
        return arrays;
    }

    const Hdf5Group& root_;
    bool has_steps_ = false, is_surface_ = false;
    Counts num_points_;
    Step step_;
};

/// One partition is the mesh as it was written; several are merged by their global ids.
Mesh whole(VtkHdfReader& reader, const std::filesystem::path& path, const ReadOptions& options)
{
    const std::string where = "read_mesh: " + path.string();
    std::vector<Mesh> pieces = reader.read();
    std::vector<std::string> warnings;
    for (Mesh& piece : pieces) apply_reading_conventions(piece, path.string(), warnings);
    deliver_read_warnings(warnings, options);
    Mesh mesh =
        pieces.size() == 1 ? std::move(pieces.front()) : merge_pieces(std::move(pieces), reader.kind(), where, options);
    try {
        mesh.validate();
    } catch (const InvalidInput& error) {
        throw IoError("{} is damaged: {}", where, error.what());
    }
    return mesh;
}

bool is_collection(const Hdf5Group& group)
{
    const auto type = group.text_attribute("Type");
    return type && (*type == "PartitionedDataSetCollection" || *type == "MultiBlockDataSet");
}

void require_depth(const Hdf5Group& group, int depth)
{
    if (depth > 16) group.fail("its collections are nested more than 16 deep");
}

/// A member of a collection: its name, and where it is in the collection's group.
struct Member {
    std::string name, path;
};

/// Blocks of a MultiBlockDataSet have the names and folders of its Assembly, whose leaves link to them.
void add_named(const Hdf5Group& group, const std::string& prefix, int depth, std::vector<Member>& members)
{
    require_depth(group, depth);
    for (const std::string& name : group.names()) {
        if (!group.is_group(name)) continue;
        const Hdf5Group member = group.group(name);
        if (member.text_attribute("Type"))
            members.push_back({prefix + name, "Assembly/" + prefix + name});
        else
            add_named(member, prefix + name + "/", depth + 1, members);
    }
}

/// A collection's members: those that its Assembly names in the order of their names, others in that of the collection.
std::vector<Member> members_of(const Hdf5Group& group)
{
    std::vector<Member> members;
    if (group.text_attribute("Type") == "MultiBlockDataSet" && group.is_group("Assembly"))
        add_named(group.group("Assembly"), "", 0, members);
    if (!members.empty()) return members;
    std::vector<std::pair<std::int64_t, std::string>> numbered;
    for (const std::string& name : group.names()) {
        if (name == "Assembly" || !group.is_group(name)) continue;
        const Hdf5Group member = group.group(name);
        if (!member.text_attribute("Type")) continue;
        const auto index = member.integer_attribute("Index");
        numbered.emplace_back(index.empty() ? INT32_MAX : index.front(), name);
    }
    std::ranges::sort(numbered);
    for (const auto& [index, name] : numbered) members.push_back({name, name});
    return members;
}

std::vector<double> times_of(const Hdf5Group& group, int depth)
{
    require_depth(group, depth);
    if (!is_collection(group)) {
        if (group.is_group("Steps")) return group.group("Steps").read("Values").to_doubles();
        if (!group.is_group("FieldData")) return {};
        const Hdf5Group arrays = group.group("FieldData");
        if (!arrays.has("TimeValue")) return {};
        const DataArray time = arrays.read("TimeValue");
        return time.type() != ScalarType::String && time.num_values() == 1 ? time.to_doubles() : std::vector<double>();
    }
    std::optional<std::vector<double>> times;
    for (const auto& [name, path] : members_of(group)) {
        auto of_member = times_of(group.group(path), depth + 1);
        if (times && *times != of_member)
            group.fail(fmt::format("its members have different times: '{}' has {}, the members before it {}. Write "
                                   "every member with the same steps",
                                   name, of_member.size(), times->size()));
        times = std::move(of_member);
    }
    return times.value_or(std::vector<double>());
}

void collect_blocks(const Hdf5Group& group, const std::string& prefix, const ReadOptions& options,
                    const std::filesystem::path& path, int depth, std::vector<MeshBlock>& blocks)
{
    require_depth(group, depth);
    for (const auto& [name, place] : members_of(group)) {
        const Hdf5Group member = group.group(place);
        const std::string full = prefix + name;
        if (is_collection(member)) {
            collect_blocks(member, full + "/", options, path, depth + 1, blocks);
            continue;
        }
        VtkHdfReader reader(member, options.time);
        blocks.push_back({full, whole(reader, path, options)});
    }
}

}  // namespace

std::vector<MeshBlock> read_vtkhdf(const std::filesystem::path& path, const ReadOptions& options)
{
    const std::string where = "read_mesh: " + path.string();
    const Hdf5Group file = Hdf5Group::open_file(path, where);
    if (!file.is_group("VTKHDF")) file.fail("is an HDF5 file, but has no group VTKHDF");
    const Hdf5Group root = file.group("VTKHDF");
    std::vector<MeshBlock> blocks;
    if (is_collection(root)) {
        collect_blocks(root, "", options, path, 0, blocks);
        return choose_blocks(std::move(blocks), options.blocks, where);
    }
    VtkHdfReader reader(root, options.time);
    blocks.push_back({"", whole(reader, path, options)});
    return blocks;
}

std::vector<double> vtkhdf_times(const std::filesystem::path& path)
{
    const Hdf5Group file = Hdf5Group::open_file(path, "read_mesh: " + path.string());
    if (!file.is_group("VTKHDF")) file.fail("is an HDF5 file, but has no group VTKHDF");
    return times_of(file.group("VTKHDF"), 0);
}

VtkHdfArrays map_vtkhdf(const std::filesystem::path& path, const std::shared_ptr<const MappedFile>& file,
                        const std::string& where)
{
    const Hdf5Group hdf5 = Hdf5Group::open_file(path, where);
    if (!hdf5.is_group("VTKHDF")) hdf5.fail("is an HDF5 file, but has no group VTKHDF");
    const Hdf5Group root = hdf5.group("VTKHDF");
    if (is_collection(root))
        root.fail("holds several blocks and cannot be mapped; cut a single mesh, or write it with `meshard convert "
                  "FILE whole.vtu`");
    return VtkHdfReader(root, std::nullopt).map(file);
}

}  // namespace meshard
