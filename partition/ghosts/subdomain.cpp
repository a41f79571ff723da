// SPDX-License-Identifier: Apache-2.0
#include "partition/ghosts/subdomain.h"

#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

namespace meshard {

namespace {

void require_partition(const char* where, const Mesh& mesh, const Partition& partition)
{
    if (partition.num_rows() != mesh.num_rows())
        throw InvalidInput("{}: the partition has {} rows, the mesh {}{}", where, partition.num_rows(), mesh.num_rows(),
                           mesh.is_point_cloud() ? " points." : " cells.");
    partition.validate();
}

IndexMap index_map(std::span<const std::int32_t> rows, std::size_t num_owned, const Partition& owners)
{
    IndexMap map;
    map.num_global = owners.num_rows();
    map.num_owned = static_cast<std::int32_t>(num_owned);
    map.global_ids.assign(rows.begin(), rows.end());
    for (const auto row : rows.subspan(num_owned)) map.ghost_owners.push_back(owners.owners[row]);
    return map;
}

// --- merging ---------------------------------------------------------------------------------------------------------

void require_cells_as_numbered(const Subdomain& subdomain)
{
    const auto num_types = std::ssize(subdomain.mesh.cell_types);
    if (num_types != subdomain.cells.num_local() || subdomain.mesh.num_cells() != subdomain.cells.num_local())
        throw InvalidInput("merge_subdomains: part {} has {} cell types and {} cells, its numbering {}.",
                           subdomain.part, num_types, subdomain.mesh.num_cells(), subdomain.cells.num_local());
}

// The subdomain and local row of a row of the whole.
struct Source {
    std::int32_t subdomain = -1;
    std::int32_t row = -1;
};

std::vector<Source> sources_of(std::span<const Subdomain> subdomains, const IndexMap Subdomain::* index_map,
                               const char* noun)
{
    const auto num_global = (subdomains[0].*index_map).num_global;
    std::vector<Source> sources(num_global);
    for (std::size_t s = 0; s < subdomains.size(); ++s) {
        const auto& map = subdomains[s].*index_map;
        if (map.num_global != num_global)
            throw InvalidInput("merge_subdomains: part {} counts {} {}s in the whole, part {} {}.", subdomains[s].part,
                               map.num_global, noun, subdomains[0].part, num_global);
        for (std::int32_t row = 0; row < map.num_owned; ++row) {
            const auto id = map.global_ids[row];
            if (id < 0 || id >= num_global)
                throw InvalidInput("merge_subdomains: part {} owns {} {}, but the whole has {}.", subdomains[s].part,
                                   noun, id, num_global);
            auto& source = sources[id];
            if (source.subdomain >= 0)
                throw InvalidInput("merge_subdomains: {} {} is owned by part {} and by part {}.", noun, id,
                                   subdomains[source.subdomain].part, subdomains[s].part);
            source = {static_cast<std::int32_t>(s), row};
        }
    }
    const auto missing = std::ranges::find(sources, -1, &Source::subdomain);
    if (missing != sources.end())
        throw InvalidInput("merge_subdomains: {} {} is owned by no part; are all parts given?", noun,
                           missing - sources.begin());
    return sources;
}

// Writes the owned rows of `arrays` (one for each subdomain) to their positions in the whole.
DataArray merge_arrays(std::span<const DataArray* const> arrays, std::span<const Subdomain> subdomains,
                       const IndexMap Subdomain::* index_map)
{
    const auto& first = *arrays[0];
    for (std::size_t s = 0; s < arrays.size(); ++s) {
        const auto& map = subdomains[s].*index_map;
        if (arrays[s]->type() != first.type() || arrays[s]->num_components() != first.num_components() ||
            arrays[s]->name() != first.name() || arrays[s]->num_rows() != map.num_local())
            throw InvalidInput(
                "merge_subdomains: array '{}' of part {} has another name, type or shape than '{}' of part {}.",
                arrays[s]->name(), subdomains[s].part, first.name(), subdomains[0].part);
    }
    const auto num_rows = (subdomains[0].*index_map).num_global;
    const auto num_components = first.num_components();
    DataArray merged;
    if (first.type() == ScalarType::String) {
        std::vector<std::string> values(num_rows * num_components);
        for (std::size_t s = 0; s < arrays.size(); ++s) {
            const auto from = arrays[s]->strings();
            const auto ids = (subdomains[s].*index_map).owned();
            for (std::size_t i = 0; i < ids.size(); ++i)
                std::copy_n(from.begin() + i * num_components, num_components,
                            values.begin() + ids[i] * num_components);
        }
        merged = DataArray::from_strings(first.name(), std::move(values), num_components);
    } else {
        merged = DataArray(first.name(), first.type(), num_rows, num_components);
        const auto row_bytes = num_components * size_of(first.type());
        auto* to = merged.mutable_bytes().data();
        for (std::size_t s = 0; s < arrays.size(); ++s) {
            const auto* from = arrays[s]->bytes().data();
            const auto ids = (subdomains[s].*index_map).owned();
            for (std::size_t i = 0; i < ids.size(); ++i)
                std::memcpy(to + ids[i] * row_bytes, from + i * row_bytes, row_bytes);
        }
    }
    merged.component_names = first.component_names;
    merged.unit = first.unit;
    merged.attribute = first.attribute;
    return merged;
}

std::vector<DataArray> merge_groups(std::span<const Subdomain> subdomains, std::vector<DataArray> Mesh::* group,
                                    const IndexMap Subdomain::* index_map)
{
    std::vector<DataArray> merged;
    const auto num_arrays = (subdomains[0].mesh.*group).size();
    for (const auto& subdomain : subdomains)
        if ((subdomain.mesh.*group).size() != num_arrays)
            throw InvalidInput("merge_subdomains: part {} has {} arrays where part {} has {}.", subdomain.part,
                               (subdomain.mesh.*group).size(), subdomains[0].part, num_arrays);
    for (std::size_t a = 0; a < num_arrays; ++a) {
        std::vector<const DataArray*> arrays;
        for (const auto& subdomain : subdomains) arrays.push_back(&(subdomain.mesh.*group)[a]);
        merged.push_back(merge_arrays(arrays, subdomains, index_map));
    }
    return merged;
}

// Collects the rows of each cell's own part, with local point numbers.
Csr merge_rows(std::span<const Subdomain> subdomains, std::span<const Source> sources, const Csr Mesh::* rows)
{
    Csr merged;
    merged.offsets.reserve(sources.size() + 1);
    for (const auto& source : sources) {
        const auto& from = subdomains[source.subdomain].mesh.*rows;
        // A part without polyhedra has no face streams at all.
        if (source.row < from.num_rows())
            merged.push_row(from.row(source.row));
        else
            merged.push_row({});
    }
    return merged;
}

}  // namespace

SubdomainCutter::SubdomainCutter(const Mesh& mesh, const Partition& partition, std::int32_t num_ghost_layers)
    : mesh_(mesh), partition_(partition), num_ghost_layers_(num_ghost_layers)
{
    require_partition("extract_subdomains", mesh, partition);
    rows_of_part_ = rows_by_part(partition);
    if (mesh.is_point_cloud()) return;
    point_partition_ = {partition.num_parts, point_owners(mesh, partition)};
    points_of_part_ = rows_by_part(point_partition_);
}

// The buffer that is kept between parts is as long as the mesh, but only the entries of the part's rows are written, so
// that the cost is proportional to the part's rows.
Subdomain SubdomainCutter::cut(std::int32_t part, const GhostLayer& ghosts,
                               std::vector<std::int32_t>& local_index) const
{
    local_index.resize(mesh_.num_points(), -1);
    const auto owned_rows = rows_of_part_.row(part);
    Subdomain result;
    result.part = part;
    result.num_parts = partition_.num_parts;
    result.num_ghost_layers = num_ghost_layers_;
    const auto rows = local_rows(owned_rows, ghosts, result.ghost_levels);
    auto& row_map = mesh_.is_point_cloud() ? result.points : result.cells;
    row_map = index_map(rows, owned_rows.size(), partition_);
    if (mesh_.is_point_cloud()) {
        result.mesh = extract_mesh(mesh_, {}, rows, local_index);
        return result;
    }
    const auto owned_points = points_of_part_.row(part);
    const auto points = local_points(owned_points, rows, local_index);
    result.points = index_map(points, owned_points.size(), point_partition_);
    for (std::size_t i = 0; i < points.size(); ++i) local_index[points[i]] = static_cast<std::int32_t>(i);
    result.mesh = extract_mesh(mesh_, rows, points, local_index);
    for (const auto point : points) local_index[point] = -1;
    return result;
}

// Owned rows, then ghosts by (owner, row); their layers go to `levels`.
std::vector<std::int32_t> SubdomainCutter::local_rows(std::span<const std::int32_t> owned, const GhostLayer& ghosts,
                                                      std::vector<std::uint8_t>& levels) const
{
    std::vector<std::int32_t> order(ghosts.rows.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
    std::ranges::stable_sort(order, {}, [&](std::int32_t i) { return partition_.owners[ghosts.rows[i]]; });

    std::vector<std::int32_t> rows(owned.begin(), owned.end());
    levels.assign(owned.size(), 0);
    for (const auto i : order) {
        rows.push_back(ghosts.rows[i]);
        levels.push_back(ghosts.levels[i]);
    }
    return rows;
}

// Owned points, then the other points of the cells by (owner, point).
std::vector<std::int32_t> SubdomainCutter::local_points(std::span<const std::int32_t> owned,
                                                        std::span<const std::int32_t> cells,
                                                        std::vector<std::int32_t>& local_index) const
{
    std::vector<std::int32_t> points(owned.begin(), owned.end());
    for (const auto point : owned) local_index[point] = 0;
    for (const auto cell : cells)
        for (const auto point : mesh_.cells.row(cell)) {
            if (local_index[point] >= 0) continue;
            local_index[point] = 0;
            points.push_back(point);
        }
    std::ranges::sort(points.begin() + static_cast<std::ptrdiff_t>(owned.size()), points.end(), {},
                      [&](std::int32_t point) { return std::pair(point_partition_.owners[point], point); });
    return points;
}

std::vector<std::int32_t> point_owners(const Mesh& mesh, const Partition& partition)
{
    require_partition("point_owners", mesh, partition);
    if (mesh.is_point_cloud()) return partition.owners;
    std::vector<std::int32_t> owners(mesh.num_points(), -1);
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell)
        for (const auto point : mesh.cells.row(cell))
            if (owners[point] < 0) owners[point] = partition.owners[cell];
    std::ranges::replace(owners, -1, 0);
    return owners;
}

std::vector<Subdomain> extract_subdomains(const Mesh& mesh, const Csr& graph, const Partition& partition,
                                          std::int32_t num_ghost_layers)
{
    require_partition("extract_subdomains", mesh, partition);
    // Without ghosts the graph is not needed.
    const auto ghosts = num_ghost_layers == 0 ? std::vector<GhostLayer>(partition.num_parts)
                                              : ghost_layers(graph, partition, num_ghost_layers);
    return extract_subdomains(mesh, partition, ghosts, num_ghost_layers);
}

std::vector<Subdomain> extract_subdomains(const Mesh& mesh, const Partition& partition,
                                          std::span<const GhostLayer> ghosts, std::int32_t num_ghost_layers)
{
    require_partition("extract_subdomains", mesh, partition);
    if (static_cast<std::int32_t>(ghosts.size()) != partition.num_parts)
        throw InvalidInput("extract_subdomains: there are ghosts for {} parts, the partition has {}.", ghosts.size(),
                           partition.num_parts);
    const SubdomainCutter cutter(mesh, partition, num_ghost_layers);
    std::vector<std::int32_t> local_index;
    std::vector<Subdomain> subdomains;
    subdomains.reserve(partition.num_parts);
    for (std::int32_t part = 0; part < partition.num_parts; ++part)
        subdomains.push_back(cutter.cut(part, ghosts[part], local_index));
    return subdomains;
}

Subdomain extract_subdomain(const Mesh& mesh, const Csr& graph, const Partition& partition, std::int32_t part,
                            std::int32_t num_ghost_layers)
{
    require_partition("extract_subdomain", mesh, partition);
    if (part < 0 || part >= partition.num_parts)
        throw InvalidInput("extract_subdomain: part is {}, expected 0 to {}.", part, partition.num_parts - 1);
    const auto ghosts = num_ghost_layers == 0 ? GhostLayer{} : ghost_layer(graph, partition, part, num_ghost_layers);
    std::vector<std::int32_t> local_index;
    return SubdomainCutter(mesh, partition, num_ghost_layers).cut(part, ghosts, local_index);
}

Mesh merge_subdomains(std::span<const Subdomain> subdomains)
{
    if (subdomains.empty()) throw InvalidInput("merge_subdomains: there are no subdomains to merge.");
    std::ranges::for_each(subdomains, require_cells_as_numbered);
    const auto cell_sources = sources_of(subdomains, &Subdomain::cells, "cell");
    const auto point_sources = sources_of(subdomains, &Subdomain::points, "point");
    const auto first_part = std::ranges::find(subdomains, 0, &Subdomain::part);
    const auto& field_source = first_part == subdomains.end() ? subdomains.front() : *first_part;

    Mesh merged;
    merged.kind = field_source.mesh.kind;
    std::vector<const DataArray*> points;
    for (const auto& subdomain : subdomains) points.push_back(&subdomain.mesh.points);
    merged.points = merge_arrays(points, subdomains, &Subdomain::points);

    const auto to_global = [&](std::int64_t cell, std::int32_t& point) {
        const auto& map = subdomains[cell_sources[cell].subdomain].points;
        if (point < 0 || point >= map.num_local())
            throw InvalidInput("merge_subdomains: cell {} uses local point {} of {}.", cell, point, map.num_local());
        point = static_cast<std::int32_t>(map.global_ids[point]);
    };
    merged.cells = merge_rows(subdomains, cell_sources, &Mesh::cells);
    for (std::int64_t cell = 0; cell < merged.num_cells(); ++cell)
        for (auto at = merged.cells.offsets[cell]; at < merged.cells.offsets[cell + 1]; ++at)
            to_global(cell, merged.cells.indices[at]);
    merged.cell_types.reserve(cell_sources.size());
    for (const auto& source : cell_sources)
        merged.cell_types.push_back(subdomains[source.subdomain].mesh.cell_types[source.row]);
    if (std::ranges::any_of(subdomains, [](const Subdomain& subdomain) { return subdomain.mesh.has_polyhedra(); })) {
        merged.face_streams = merge_rows(subdomains, cell_sources, &Mesh::face_streams);
        for_each_face_point(merged.face_streams, to_global);
    }
    merged.point_data = merge_groups(subdomains, &Mesh::point_data, &Subdomain::points);
    merged.cell_data = merge_groups(subdomains, &Mesh::cell_data, &Subdomain::cells);
    merged.field_data = field_source.mesh.field_data;
    return merged;
}

void Subdomain::validate() const
{
    const auto fail = [&](const std::string& what) {
        throw InvalidInput("Subdomain {} of {}: {}", part, num_parts, what);
    };
    const auto require_size = [&](const std::string& what, std::int64_t found, std::int64_t expected) {
        if (found != expected) fail(fmt::format("there are {} {}, expected {}.", found, what, expected));
    };
    if (part < 0 || part >= num_parts) fail(fmt::format("the part is outside 0 to {}.", num_parts - 1));
    if (num_ghost_layers < 0 || num_ghost_layers > 255)
        fail(fmt::format("num_ghost_layers is {}, expected 0 to 255.", num_ghost_layers));
    try {
        mesh.validate();
        cells.validate(part);
        points.validate(part);
    } catch (const InvalidInput& error) {
        fail(error.what());
    }
    require_size("cells in the numbering", cells.num_local(), mesh.num_cells());
    require_size("points in the numbering", points.num_local(), mesh.num_points());
    require_size("ghost levels", std::ssize(ghost_levels), rows().num_local());
    for (const auto* map : {&cells, &points})
        for (const auto owner : map->ghost_owners)
            if (owner >= num_parts) fail(fmt::format("a ghost has owner {}.", owner));
    for (std::int32_t row = 0; row < rows().num_local(); ++row) {
        const bool owned = row < rows().num_owned;
        if (owned ? ghost_levels[row] != 0 : ghost_levels[row] == 0 || ghost_levels[row] > num_ghost_layers)
            fail(fmt::format("local row {} has ghost level {}, expected {}", row, ghost_levels[row],
                             owned ? "0, for it is owned." : fmt::format("1 to {}.", num_ghost_layers)));
    }
    if (cells.num_global == 0) return;
    std::vector<bool> used(mesh.num_points(), false);
    for (const auto point : mesh.cells.indices) used[point] = true;
    for (std::int32_t point = points.num_owned; point < points.num_local(); ++point)
        if (!used[point]) fail(fmt::format("ghost point {} belongs to no local cell.", points.global_ids[point]));
}

std::string to_string(const Subdomain& subdomain)
{
    const auto counts = [](const IndexMap& map) { return fmt::format("{} + {}", map.num_owned, map.num_ghosts()); };
    const auto counts_of_rows =
        fmt::format("{} owned + {} ghost ", subdomain.rows().num_owned, subdomain.rows().num_ghosts());
    const auto text = fmt::format("Subdomain {} of {}: {}", subdomain.part, subdomain.num_parts, counts_of_rows);
    if (subdomain.cells.num_global == 0) return text + "points";
    return text + "cells, " + counts(subdomain.points) + " points";
}

}  // namespace meshard
