// SPDX-License-Identifier: Apache-2.0
#include "io/shards/piece_io.h"

#include "io/vtk/vtk_xml_reader.h"
#include "io/vtk/vtk_xml_writer.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>

namespace meshard {

namespace {

constexpr const char* ghost_type = "vtkGhostType";
constexpr const char* cell_ids = "GlobalCellIds";
constexpr const char* point_ids = "GlobalPointIds";
constexpr const char* owner_id = "PartitionId";
constexpr const char* ghost_level = "GhostLevel";

// Names reserved in point and in cell data, so that one rule is sufficient.
constexpr std::array<std::string_view, 5> own_names{ghost_type, cell_ids, point_ids, owner_id, ghost_level};

std::string without_global_ids(const std::string& attribute)
{
    std::istringstream words(attribute);
    std::string kept;
    for (std::string word; words >> word;)
        if (word != "GlobalIds") kept += (kept.empty() ? "" : " ") + word;
    return kept;
}

void describe_group(std::vector<ManifestArray>& described, const std::string& group,
                    const std::vector<DataArray>& arrays)
{
    for (const DataArray& array : arrays) {
        ManifestArray entry{group, array.name(), array.name(), array.type(), array.num_components(), array.attribute};
        if (group != "field" && contains(own_names, array.name())) do
                entry.stored_as += " of source";
            while (find_array(arrays, entry.stored_as) != nullptr);
        described.push_back(std::move(entry));
    }
}

std::vector<DataArray>& group_of(Mesh& mesh, const std::string& group)
{
    return group == "point" ? mesh.point_data : group == "cell" ? mesh.cell_data : mesh.field_data;
}

/// Renames the source's arrays as in a piece; the role GlobalIds is reserved for meshard's own ids.
void rename_for_piece(Mesh& mesh)
{
    const auto described = piece_arrays(mesh);
    auto entry = described.begin();
    for (auto* group : {&mesh.point_data, &mesh.cell_data, &mesh.field_data})
        for (DataArray& array : *group) {
            array.rename((entry++)->stored_as);
            array.attribute = without_global_ids(array.attribute);
        }
}

std::vector<std::int32_t> owners_of(const IndexMap& map, std::int32_t part)
{
    std::vector<std::int32_t> owners(map.num_owned, part);
    append(owners, map.ghost_owners);
    return owners;
}

void add_piece_arrays(std::vector<DataArray>& arrays, const IndexMap& map, std::int32_t part, const char* ids_name)
{
    std::vector<std::uint8_t> flags(map.global_ids.size(), 1);
    std::fill_n(flags.begin(), map.num_owned, std::uint8_t{0});
    arrays.push_back(DataArray::from(ghost_type, std::move(flags)));
    arrays.push_back(DataArray::from(ids_name, map.global_ids));
    arrays.back().attribute = "GlobalIds";
    arrays.push_back(DataArray::from(owner_id, owners_of(map, part)));
}

/// The mesh of a piece as it is written: renamed arrays, meshard's own ones, cells in the file's order.
Mesh piece_mesh(const Subdomain& subdomain)
{
    Mesh mesh = subdomain.mesh;
    rename_for_piece(mesh);
    const bool is_cloud = subdomain.cells.num_global == 0;
    add_piece_arrays(mesh.point_data, subdomain.points, subdomain.part, point_ids);
    if (!is_cloud) add_piece_arrays(mesh.cell_data, subdomain.cells, subdomain.part, cell_ids);
    (is_cloud ? mesh.point_data : mesh.cell_data).push_back(DataArray::from(ghost_level, subdomain.ghost_levels));

    const auto file_group = [&](std::int32_t cell) { return polydata_group(mesh.cell_types[cell]); };
    auto cells = numbers_from<std::int32_t>(0, mesh.num_cells());
    if (mesh.kind == MeshKind::Unstructured || std::ranges::is_sorted(cells, {}, file_group)) return mesh;
    std::ranges::stable_sort(cells, {}, file_group);
    auto points = numbers_from<std::int32_t>(0, mesh.num_points());
    return extract_mesh(mesh, cells, points);
}

class PieceReader {
public:
    PieceReader(const std::filesystem::path& path, const Manifest& manifest, std::int32_t part)
        : where_("load_subdomain: " + path.string()), manifest_(manifest), mesh_(read_mesh(path))
    {
        subdomain_.part = part;
        subdomain_.num_parts = manifest.num_parts();
        subdomain_.num_ghost_layers = manifest.num_ghost_layers;
    }

    Subdomain read()
    {
        if (mesh_.kind != manifest_.kind) fail("is of another kind than the manifest says");
        const bool is_cloud = manifest_.num_cells == 0;
        if (is_cloud && mesh_.num_cells() > 0)
            fail("has cells, but the manifest says that the source is a point cloud");
        const auto levels = take<std::uint8_t>(is_cloud ? mesh_.point_data : mesh_.cell_data, ghost_level);
        subdomain_.ghost_levels.assign(levels.begin(), levels.end());
        if (!is_cloud) restore_cell_order();
        subdomain_.points = take_index_map(mesh_.point_data, point_ids, manifest_.num_points);
        if (!is_cloud) subdomain_.cells = take_index_map(mesh_.cell_data, cell_ids, manifest_.num_cells);
        restore_arrays();
        subdomain_.mesh = std::move(mesh_);
        try {
            subdomain_.points.validate(subdomain_.part);
            subdomain_.cells.validate(subdomain_.part);
        } catch (const InvalidInput& error) {
            fail(std::string("has a wrong numbering: ") + error.what());
        }
        return std::move(subdomain_);
    }

private:
    [[noreturn]] void fail(const std::string& what) const { throw IoError("{} {}.", where_, what); }

    template <class T>
    std::vector<T> take(std::vector<DataArray>& arrays, const char* name)
    {
        const auto found = std::ranges::find(arrays, name, &DataArray::name);
        if (found == arrays.end())
            fail(std::string("has no array '") + name + "', which every piece of a shards folder has");
        if (found->type() != scalar_type_of<T>() || found->num_components() != 1)
            fail(std::string("has an array '") + name + "' of " + std::string(to_string(found->type())) +
                 ", expected " + std::string(to_string(scalar_type_of<T>())));
        const auto values = found->values<T>();
        std::vector<T> taken(values.begin(), values.end());
        arrays.erase(found);
        return taken;
    }

    /// A .vtp stores its cells by kind; the local order is owned first, then by owner and global id.
    void restore_cell_order()
    {
        if (mesh_.kind == MeshKind::Unstructured) return;
        const std::array<const DataArray*, 3> arrays{find_array(mesh_.cell_data, ghost_type),
                                                     find_array(mesh_.cell_data, owner_id),
                                                     find_array(mesh_.cell_data, cell_ids)};
        if (contains(arrays, nullptr)) return;  // reported when the arrays are taken
        const auto key = [&](std::int32_t cell) {
            const bool is_ghost = arrays[0]->value(cell) != 0;
            return std::tuple(is_ghost, is_ghost ? arrays[1]->value(cell) : 0.0, arrays[2]->value(cell));
        };
        auto cells = numbers_from<std::int32_t>(0, mesh_.num_cells());
        if (std::ranges::is_sorted(cells, {}, key)) return;
        std::ranges::stable_sort(cells, {}, key);
        auto points = numbers_from<std::int32_t>(0, mesh_.num_points());
        mesh_ = extract_mesh(mesh_, cells, points);
        std::vector<std::uint8_t> levels;
        for (const std::int32_t cell : cells) levels.push_back(subdomain_.ghost_levels[cell]);
        subdomain_.ghost_levels = std::move(levels);
    }

    IndexMap take_index_map(std::vector<DataArray>& arrays, const char* ids_name, std::int64_t num_global)
    {
        const auto flags = take<std::uint8_t>(arrays, ghost_type);
        const auto owners = take<std::int32_t>(arrays, owner_id);
        IndexMap map;
        map.num_global = num_global;
        map.global_ids = take<std::int64_t>(arrays, ids_name);
        map.num_owned = static_cast<std::int32_t>(std::ranges::find(flags, 1) - flags.begin());
        if (std::ranges::any_of(flags.begin() + map.num_owned, flags.end(),
                                [](std::uint8_t flag) { return flag != 1; }) ||
            std::ranges::any_of(flags.begin(), flags.begin() + map.num_owned,
                                [](std::uint8_t flag) { return flag != 0; }))
            fail("does not have its owned rows first and its ghosts after them in vtkGhostType");
        for (std::int32_t i = 0; i < map.num_owned; ++i)
            if (owners[i] != subdomain_.part)
                fail(fmt::format("owns the row {} of {}, but PartitionId says {}", map.global_ids[i], ids_name,
                                 owners[i]));
        map.ghost_owners.assign(owners.begin() + map.num_owned, owners.end());
        return map;
    }

    void restore_arrays()
    {
        Mesh source_like;
        for (const ManifestArray& wanted : manifest_.arrays) {
            auto& stored = group_of(mesh_, wanted.group);
            const auto found = std::ranges::find(stored, wanted.stored_as, &DataArray::name);
            if (found == stored.end())
                fail("has no " + wanted.group + " array '" + wanted.stored_as + "', which the manifest lists");
            if (found->type() != wanted.type || found->num_components() != wanted.num_components)
                fail(fmt::format("has the {} array '{}' as {} x {}, the manifest as {} x {}", wanted.group,
                                 wanted.stored_as, found->num_components(), to_string(found->type()),
                                 wanted.num_components, to_string(wanted.type)));
            DataArray array = std::move(*found);
            stored.erase(found);
            array.rename(wanted.name);
            array.attribute = wanted.attribute;
            group_of(source_like, wanted.group).push_back(std::move(array));
        }
        for (const char* group : {"point", "cell", "field"})
            if (const auto& left = group_of(mesh_, group); !left.empty())
                fail(std::string("has the ") + group + " array '" + left.front().name() +
                     "', which the manifest does not list");
        mesh_.point_data = std::move(source_like.point_data);
        mesh_.cell_data = std::move(source_like.cell_data);
        mesh_.field_data = std::move(source_like.field_data);
    }

    std::string where_;
    const Manifest& manifest_;
    Mesh mesh_;
    Subdomain subdomain_;
};

}  // namespace

std::vector<ManifestArray> piece_arrays(const Mesh& mesh)
{
    std::vector<ManifestArray> described;
    describe_group(described, "point", mesh.point_data);
    describe_group(described, "cell", mesh.cell_data);
    describe_group(described, "field", mesh.field_data);
    return described;
}

void write_piece(const std::filesystem::path& path, const Subdomain& subdomain, const WriteOptions& options)
{
    const Mesh mesh = piece_mesh(subdomain);
    write_vtk_xml(path, mesh, mesh.kind, options);
}

void write_piece_index(const std::filesystem::path& path, const Subdomain& like, std::span<const std::string> sources,
                       std::span<const std::string> hashes)
{
    // An index has no rows, only names and types of arrays.
    write_vtk_index(path, piece_mesh(like), sources, like.num_ghost_layers, hashes);
}

Subdomain read_piece(const std::filesystem::path& path, const Manifest& manifest, std::int32_t part)
{
    return PieceReader(path, manifest, part).read();
}

}  // namespace meshard
