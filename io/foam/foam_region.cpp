// SPDX-License-Identifier: Apache-2.0
#include "io/foam/foam_region.h"

#include "io/bytes/ascii_numbers.h"
#include "io/foam/face_cells.h"
#include "io/foam/foam_field.h"
#include "io/foam/foam_file.h"
#include "io/foam/patch_condition.h"
#include "io/vtk/vtk_xml_reader.h"
#include "partition/lists.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <regex.h>
#include <utility>

namespace meshard {

namespace {

namespace fs = std::filesystem;

DataArray as_type(const DataArray& array, ScalarType type)
{
    if (array.type() == type) return array;
    if (type == ScalarType::Float64) return DataArray::from("", array.to_doubles(), array.num_components());
    const auto values = array.to_doubles();
    return DataArray::from("", std::vector<float>(values.begin(), values.end()), array.num_components());
}

/// Whether an extended regular expression of POSIX, or one that begins with `(?i)`, matches all of a name.
bool matches(std::string_view pattern, const std::string& name)
{
    const bool ignores_case = pattern.starts_with("(?i)");
    if (ignores_case) pattern.remove_prefix(4);
    regex_t compiled;
    const auto whole = "^(" + std::string(pattern) + ")$";
    if (regcomp(&compiled, whole.c_str(), REG_EXTENDED | REG_NOSUB | (ignores_case ? REG_ICASE : 0)) != 0) return false;
    const bool is_match = regexec(&compiled, name.c_str(), 0, nullptr, 0) == 0;
    regfree(&compiled);
    return is_match;
}

/// The entry of a patch: the last with its name, else the last with one of its groups, else, but for patches of type
/// `empty`, the last pattern that matches.
const FoamEntry* condition_of(const FoamEntry& boundary, const FoamPatch& patch)
{
    const auto last = [&](const auto& fits) {
        const auto entry = std::ranges::find_if(boundary.entries.rbegin(), boundary.entries.rend(), fits);
        return entry == boundary.entries.rend() ? nullptr : &*entry;
    };
    if (const auto* entry = last([&](const FoamEntry& e) { return !e.is_pattern && e.key == patch.name; }))
        return entry;
    const auto is_group = [&](const FoamEntry& e) { return !e.is_pattern && contains(patch.groups, e.key); };
    if (const auto* entry = last(is_group); entry != nullptr || patch.type == "empty") return entry;
    return last([&](const FoamEntry& e) { return e.is_pattern && matches(e.key, patch.name); });
}

std::string join_words(const std::vector<std::string>& words)
{
    return fmt::format("{}", fmt::join(words, " ")).substr(0, 60);
}

}  // namespace

FoamRegion::FoamRegion(fs::path folder, std::string region, std::vector<FoamTime> times, const ReadOptions& options)
    : folder_(std::move(folder)), region_(std::move(region)),
      inner_name_(region_.empty() ? "internalMesh" : region_ + "/internalMesh"), times_(std::move(times)),
      options_(options)
{
}

std::vector<MeshBlock> FoamRegion::read()
{
    read_poly_mesh();
    const bool wants_cells = is_wanted_or_default(inner_name_, true);
    Mesh cells;
    if (wants_cells) cells = make_cells();
    read_fields(cells, wants_cells);

    std::vector<MeshBlock> blocks;
    if (wants_cells) blocks.push_back({inner_name_, std::move(cells)});
    for (std::size_t i = 0; i < patches_.size(); ++i)
        if (const std::string name = name_of(patches_[i].name); is_wanted_or_default(name, false))
            blocks.push_back({name, std::move(patch_meshes_[i])});
    return blocks;
}

void FoamRegion::name_points(std::vector<MeshBlock>& blocks, std::span<const std::int64_t> ids) const
{
    std::size_t patch = 0;
    for (MeshBlock& block : blocks) {
        std::vector<std::int64_t> names(ids.begin(), ids.end());
        if (block.name != inner_name_) {
            while (name_of(patches_[patch].name) != block.name) ++patch;
            names.clear();
            for (const std::int32_t point : patch_points_[patch]) names.push_back(ids[point]);
            ++patch;
        }
        block.mesh.point_data.push_back(DataArray::from("GlobalPointIds", std::move(names)));
    }
}

void FoamRegion::name_cells(std::vector<MeshBlock>& blocks, const FoamAddressing& addressing) const
{
    std::size_t patch = 0;
    for (MeshBlock& block : blocks) {
        std::vector<std::int64_t> names = addressing.cells;
        if (block.name != inner_name_) {
            while (name_of(patches_[patch].name) != block.name) ++patch;
            const auto first = addressing.faces.begin() + patches_[patch].start;
            names.assign(first, first + patches_[patch].num_faces);
            ++patch;
        }
        block.mesh.cell_data.push_back(DataArray::from("GlobalCellIds", std::move(names)));
    }
}

std::vector<std::string> FoamRegion::block_names() const
{
    std::vector<std::string> names{inner_name_};
    for (const FoamPatch& patch : patches_) names.push_back(name_of(patch.name));
    return names;
}

FoamAddressing FoamRegion::addressing() const
{
    FoamAddressing result{read_addressing("pointProcAddressing", num_points()),
                          read_addressing("faceProcAddressing", num_faces()),
                          read_addressing("cellProcAddressing", num_cells())};
    // Faces are numbered from 1; a negative number means a reversed face.
    for (std::int64_t& face : result.faces) face = std::abs(face) - 1;
    return result;
}

std::vector<std::int64_t> FoamRegion::read_addressing(const std::string& name, std::int64_t num_rows) const
{
    const fs::path path = file_of_faces(name);
    if (!FoamFile::exists(path)) return {};
    FoamFile file(path);
    const std::vector<std::int32_t> labels = file.read_labels();
    if (std::ssize(labels) != num_rows)
        file.fail(fmt::format("has {} rows, the mesh beside it {}. Decompose the case again, or remove the file",
                              labels.size(), num_rows));
    return {labels.begin(), labels.end()};
}

bool FoamRegion::is_wanted_or_default(const std::string& name, bool by_default) const
{
    return options_.blocks.empty() ? by_default : is_wanted_block(name, options_.blocks);
}

std::string FoamRegion::name_of(const std::string& patch) const
{
    return (region_.empty() ? "" : region_ + "/") + "boundary/" + patch;
}

void FoamRegion::warn(const std::string& text) const
{
    if (options_.warnings != nullptr) options_.warnings->push_back(text);
}

fs::path FoamRegion::mesh_file(const std::string& name) const
{
    for (auto time = times_.rbegin(); time != times_.rend(); ++time)
        if (const fs::path path = time->path / region_ / "polyMesh" / name; FoamFile::exists(path)) return path;
    return folder_ / "constant" / region_ / "polyMesh" / name;
}

fs::path FoamRegion::file_of_faces(const std::string& name) const
{
    const fs::path path = mesh_file(name);
    for (auto time = times_.rbegin(); time != times_.rend(); ++time) {
        const fs::path folder = time->path / region_ / "polyMesh";
        if (path.parent_path() == folder) break;
        if (FoamFile::exists(folder / "faces")) return folder / name;
    }
    return path;
}

void FoamRegion::read_poly_mesh()
{
    FoamFile points_file(mesh_file("points"));
    points_ = points_file.read_vectors();
    points_.rename("Points");
    FoamFile faces_file(mesh_file("faces"));
    faces_ = faces_file.read_faces();
    for (std::int64_t face = 0; face < faces_.num_rows(); ++face) {
        if (faces_.row(face).size() < 3)
            faces_file.fail(fmt::format("face {} has {} points, expected 3 or more", face, faces_.row(face).size()));
        for (const std::int32_t point : faces_.row(face))
            if (point < 0 || point >= points_.num_rows())
                faces_file.fail(
                    fmt::format("face {} uses point {}, expected 0 to {}. It is damaged, or belongs to other points",
                                face, point, points_.num_rows() - 1));
    }
    FoamFile owner_file(mesh_file("owner"));
    owner_ = owner_file.read_labels();
    if (std::ssize(owner_) != faces_.num_rows())
        owner_file.fail(fmt::format("has {} rows for {} faces", owner_.size(), faces_.num_rows()));
    FoamFile neighbour_file(mesh_file("neighbour"));
    neighbour_ = neighbour_file.read_labels();
    // Files of older versions have -1 for the faces of the boundary.
    neighbour_.erase(std::ranges::find(neighbour_, -1), neighbour_.end());
    if (neighbour_.size() > owner_.size())
        neighbour_file.fail(fmt::format("has {} rows for {} faces", neighbour_.size(), owner_.size()));
    check_cells(owner_file, neighbour_file);
    read_patches();
}

void FoamRegion::check_cells(const FoamFile& owner_file, const FoamFile& neighbour_file)
{
    std::int32_t last = -1;
    for (std::size_t face = 0; face < owner_.size(); ++face) {
        if (owner_[face] < 0)
            owner_file.fail(fmt::format("face {} belongs to cell {}. It is damaged", face, owner_[face]));
        last = std::max(last, owner_[face]);
        if (face >= neighbour_.size()) continue;
        if (neighbour_[face] < 0 || neighbour_[face] == owner_[face])
            neighbour_file.fail(
                fmt::format("face {} has cell {} on its other side. It is damaged", face, neighbour_[face]));
        last = std::max(last, neighbour_[face]);
    }
    num_cells_ = last + std::int64_t{1};
    // Each cell has at least four faces: a file that claims more cells is refused before memory is allocated.
    const auto num_sides = static_cast<std::int64_t>(owner_.size() + neighbour_.size());
    if (num_cells_ > num_sides)
        owner_file.fail(
            fmt::format("names cell {}, but there are only {} sides of faces. It is damaged", last, num_sides));
    std::vector<std::uint8_t> num_faces(num_cells_, 0);
    const auto count = [&](std::int32_t cell) {
        num_faces[cell] = static_cast<std::uint8_t>(std::min(4, num_faces[cell] + 1));
    };
    std::ranges::for_each(owner_, count);
    std::ranges::for_each(neighbour_, count);
    const auto open = std::ranges::find_if(num_faces, [](std::uint8_t faces) { return faces < 4; });
    if (open != num_faces.end())
        owner_file.fail(
            fmt::format("cell {} has {} faces, expected 4 or more. It is damaged, or belongs to another mesh",
                        open - num_faces.begin(), *open));
}

void FoamRegion::read_patches()
{
    FoamFile file(mesh_file("boundary"));
    const auto first = std::ssize(neighbour_);
    const auto number = [&](const FoamEntry& entry, const char* key) {
        const auto value = parse_number<std::int64_t>(entry.word(key));
        if (!value || *value < 0) file.fail("the patch '" + entry.key + "' has no valid " + key);
        return *value;
    };
    for (const FoamEntry& entry : file.read_named_entries()) {
        FoamPatch patch{entry.key, entry.word("type"), number(entry, "startFace"), number(entry, "nFaces"), {}};
        if (const FoamEntry* groups = entry.find("inGroups")) patch.groups = groups->words;
        if (patch.num_faces > 0 && (patch.start < first || patch.start > faces_.num_rows() ||
                                    patch.num_faces > faces_.num_rows() - patch.start))
            file.fail(fmt::format("the patch '{}' has the faces {} to {}, the boundary has {} to {}", patch.name,
                                  patch.start, patch.start + patch.num_faces - 1, first, faces_.num_rows() - 1));
        if (!patch.type.starts_with("processor")) {
            patches_.push_back(std::move(patch));
            continue;
        }
        patch.neighbor = static_cast<std::int32_t>(
            std::min<std::int64_t>(number(entry, "neighbProcNo"), std::numeric_limits<std::int32_t>::max()));
        if (patch.type == "processorCyclic" && patch.num_faces > 0 &&
            is_wanted_or_default(name_of(entry.word("referPatch")), false))
            warn(fmt::format("the patch '{}' lacks {} faces whose two sides are on different processors; reconstruct "
                             "the case to have them",
                             entry.word("referPatch"), patch.num_faces));
        processor_patches_.push_back(std::move(patch));
    }
    patch_meshes_.resize(patches_.size());
    for (std::size_t i = 0; i < patches_.size(); ++i)
        if (is_wanted_or_default(name_of(patches_[i].name), false)) patch_meshes_[i] = make_patch(i);
}

void FoamRegion::add_case_data(Mesh& mesh) const
{
    if (!times_.empty())
        mesh.field_data.push_back(DataArray::from("TimeValue", std::vector<double>{times_.back().value}));
    if (patches_.empty()) return;
    std::vector<std::string> names, types;
    std::vector<std::int32_t> sizes;
    for (const FoamPatch& patch : patches_) {
        names.push_back(patch.name);
        types.push_back(patch.type);
        sizes.push_back(static_cast<std::int32_t>(patch.num_faces));
    }
    mesh.field_data.push_back(DataArray::from_strings("PatchName", std::move(names)));
    mesh.field_data.push_back(DataArray::from_strings("PatchType", std::move(types)));
    mesh.field_data.push_back(DataArray::from("PatchNumFaces", std::move(sizes)));
}

Mesh FoamRegion::make_cells()
{
    Mesh mesh;
    mesh.points = points_;
    FaceCells cells = cells_from_faces(faces_, owner_, neighbour_, num_cells_);
    mesh.cells = std::move(cells.cells);
    mesh.cell_types = std::move(cells.types);
    mesh.face_streams = std::move(cells.face_streams);
    add_case_data(mesh);
    add_zones(mesh);
    return mesh;
}

void FoamRegion::add_zones(Mesh& mesh) const
{
    const fs::path path = file_of_faces("cellZones");
    if (!FoamFile::exists(path)) return;
    FoamFile file(path);
    std::vector<std::int32_t> zone_of(num_cells_, -1);
    std::vector<std::string> names;
    for (const FoamEntry& entry : file.read_named_entries()) {
        const auto zone = static_cast<std::int32_t>(names.size());
        names.push_back(entry.key);
        const FoamEntry* labels = entry.find("cellLabels");
        if (labels == nullptr || !labels->list) continue;
        with_scalar_type(labels->list->type(), [&]<class T>() {
            for (const T cell : labels->list->values<T>()) {
                if (static_cast<std::int64_t>(cell) < 0 || static_cast<std::int64_t>(cell) >= num_cells_)
                    file.fail(
                        fmt::format("the zone '{}' holds cell {}, expected 0 to {}", entry.key, cell, num_cells_ - 1));
                zone_of[cell] = zone;
            }
        });
    }
    if (names.empty()) return;
    mesh.cell_data.push_back(DataArray::from("CellZoneId", std::move(zone_of)));
    mesh.field_data.push_back(DataArray::from_strings("CellZoneName", std::move(names)));
}

Mesh FoamRegion::make_patch(std::size_t index)
{
    const FoamPatch& patch = patches_[index];
    Mesh mesh;
    mesh.kind = MeshKind::Surface;
    local_points_.resize(points_.num_rows(), -1);
    std::vector<std::int32_t> points;
    for (std::int64_t face = patch.start; face < patch.start + patch.num_faces; ++face) {
        const auto row = faces_.row(face);
        for (const std::int32_t point : row) {
            if (local_points_[point] < 0) {
                local_points_[point] = static_cast<std::int32_t>(points.size());
                points.push_back(point);
            }
            mesh.cells.indices.push_back(local_points_[point]);
        }
        mesh.cells.offsets.push_back(mesh.cells.num_entries());
        mesh.cell_types.push_back(polydata_cell_type(2, std::ssize(row)));
    }
    for (const std::int32_t point : points) local_points_[point] = -1;
    mesh.points = points_.gather(points);
    patch_points_.resize(patches_.size());
    patch_points_[index] = std::move(points);
    mesh.cell_data.push_back(
        DataArray::from("PatchId", std::vector<std::int32_t>(patch.num_faces, static_cast<std::int32_t>(index))));
    add_case_data(mesh);
    return mesh;
}

void FoamRegion::read_fields(Mesh& cells, bool wants_cells)
{
    if (times_.empty()) return;
    const fs::path folder = times_.back().path / region_;
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored))
        warn(fmt::format("the region '{}' has no time {}: its rows lack that time's fields, or have NaN beside regions "
                         "that have them",
                         region_, times_.back().path.filename().string()));
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
        if (!entry.is_regular_file()) continue;
        fs::path path = entry.path();
        if (path.extension() == ".gz") path.replace_extension();
        paths.push_back(path);
    }
    sort_unique(paths);
    for (const fs::path& path : paths)
        if (auto file = FoamFile::open_if_foam(path); file && foam_field_class(file->class_name()).num_components > 0)
            read_field(*file, path.filename().string(), cells, wants_cells);
}

void FoamRegion::read_field(FoamFile& file, const std::string& name, Mesh& cells, bool wants_cells)
{
    const FoamFieldClass kind = foam_field_class(file.class_name());
    const FoamEntry field = file.read_dictionary(std::max(num_cells_, points_.num_rows()) + faces_.num_rows());
    const FoamEntry* inside = field.find("internalField");
    if (inside == nullptr) inside = field.find("value");
    if (inside == nullptr) file.fail("has no internalField");
    auto values =
        foam_field_values(file, *inside, kind.on_points ? points_.num_rows() : num_cells_, kind.num_components);
    if (!values) {
        warn("the field '" + name + "' is left out: its internalField is '" + join_words(inside->words) +
             "', which only OpenFOAM can evaluate");
        return;
    }
    const auto add = [&](Mesh& mesh, DataArray array) {
        array.rename(name);
        array.unit = foam_unit(field);
        reorder_symmetric_tensors(array);
        add_array(kind.on_points ? mesh.point_data : mesh.cell_data, std::move(array), file.where());
    };
    for (std::size_t i = 0; i < patches_.size(); ++i) {
        if (!is_wanted_or_default(name_of(patches_[i].name), false)) continue;
        if (kind.on_points)
            add(patch_meshes_[i], values->gather(patch_points_[i]));
        else
            add(patch_meshes_[i], values_on(patches_[i], file, name, field, *values));
    }
    if (wants_cells) add(cells, std::move(*values));
}

DataArray FoamRegion::values_on(const FoamPatch& patch, const FoamFile& file, const std::string& name,
                                const FoamEntry& field, const DataArray& inside)
{
    const FoamEntry* boundary = field.find("boundaryField");
    const FoamEntry* entry = boundary == nullptr ? nullptr : condition_of(*boundary, patch);
    const std::vector<std::int32_t> behind(owner_.begin() + patch.start,
                                           owner_.begin() + patch.start + patch.num_faces);
    // Patch types like `symmetryPlane` and `empty` are conditions themselves.
    PatchCondition condition{.type = entry != nullptr ? entry->word("type") : patch.type,
                             .entry = entry,
                             .behind = inside.gather(behind),
                             .note = {}};
    auto& geometry =
        geometries_.try_emplace(patch.name, points_, faces_, owner_, neighbour_, patch.start, patch.num_faces)
            .first->second;
    DataArray values =
        patch_values(file, condition, geometry, [&](const std::string& flux) { return flux_through(patch, flux); });
    if (!condition.note.empty())
        warn("the field '" + name + "' has the values of the cells behind on the patch '" + patch.name +
             "': " + condition.note);
    return as_type(values, inside.type());
}

std::optional<DataArray> FoamRegion::flux_through(const FoamPatch& patch, const std::string& name)
{
    const auto [found, is_new] = fluxes_.try_emplace(name);
    const fs::path path = times_.back().path / region_ / name;
    if (is_new && FoamFile::exists(path))
        if (auto file = FoamFile::open_if_foam(path); file && file->class_name() == "surfaceScalarField")
            found->second = file->read_dictionary(std::max(num_cells_, points_.num_rows()) + faces_.num_rows());
    const FoamEntry* boundary = found->second ? found->second->find("boundaryField") : nullptr;
    const FoamEntry* entry = boundary == nullptr ? nullptr : condition_of(*boundary, patch);
    const FoamEntry* value = entry == nullptr ? nullptr : entry->find("value");
    return value == nullptr ? std::nullopt : foam_field_values(FoamFile(path), *value, patch.num_faces, 1);
}

}  // namespace meshard
