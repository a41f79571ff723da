// SPDX-License-Identifier: Apache-2.0
#include "io/foam/foam_decomposed.h"

#include "io/bytes/ascii_numbers.h"
#include "io/vtk/vtk_parallel_reader.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace meshard {

namespace {

namespace fs = std::filesystem;

/// Disjoint sets of points that are merged.
class PointSets {
public:
    explicit PointSets(std::int64_t count) : parent_(static_cast<std::size_t>(count))
    {
        std::iota(parent_.begin(), parent_.end(), 0);
    }

    std::int64_t first_of(std::int64_t point)
    {
        while (parent_[point] != point) point = parent_[point] = parent_[parent_[point]];
        return point;
    }
    void join(std::int64_t a, std::int64_t b)
    {
        a = first_of(a);
        b = first_of(b);
        parent_[std::max(a, b)] = std::min(a, b);
    }

private:
    std::vector<std::int64_t> parent_;
};

std::vector<std::int64_t> counted_from(std::int64_t first, std::int64_t count)
{
    auto numbers = numbers_from<std::int64_t>(first, count);
    return numbers;
}

/// Merges the points of each face between two processors.
void join_across(std::span<const FoamRegion> processors, std::span<const std::int64_t> first_points, PointSets& points,
                 const std::string& where)
{
    const auto between = [](std::size_t a, std::size_t b) { return fmt::format("processor{} and processor{}", a, b); };
    for (std::size_t here = 0; here < processors.size(); ++here)
        for (const FoamPatch& patch : processors[here].processor_patches()) {
            const auto there = static_cast<std::size_t>(patch.neighbor);
            if (patch.type != "processor" || there < here) continue;
            const auto is_back = [&](const FoamPatch& other) {
                return other.type == "processor" && other.neighbor == static_cast<std::int32_t>(here);
            };
            const auto others = processors[there].processor_patches();
            const auto back = std::ranges::find_if(others, is_back);
            if (back == others.end() || back->num_faces != patch.num_faces)
                throw IoError(
                    "{}: {} do not have the same faces between them. Are all processors of one decomposition?", where,
                    between(here, there));
            for (std::int64_t i = 0; i < patch.num_faces; ++i) {
                const auto ours = processors[here].face(patch.start + i),
                           theirs = processors[there].face(back->start + i);
                if (ours.size() != theirs.size())
                    throw IoError("{}: face {} between {} has {} points on one side and {} on the other.", where, i,
                                  between(here, there), ours.size(), theirs.size());
                // OpenFOAM reverses a face without moving its first point.
                for (std::size_t k = 0; k < ours.size(); ++k)
                    points.join(first_points[here] + ours[k],
                                first_points[there] + theirs[k == 0 ? 0 : theirs.size() - k]);
            }
        }
}

/// Numbers the mesh processor after processor if decomposePar has stored no ids, as for a mesh that was generated in
/// parallel.
std::vector<FoamAddressing> number_in_order(std::span<const FoamRegion> processors, const std::string& where)
{
    std::vector<std::int64_t> first_points{0};
    for (const FoamRegion& processor : processors) first_points.push_back(first_points.back() + processor.num_points());
    PointSets sets(first_points.back());
    join_across(processors, first_points, sets, where);

    std::vector<std::int64_t> ids(first_points.back(), -1);
    std::int64_t num_ids = 0, num_faces = 0, num_cells = 0;
    for (std::int64_t point = 0; point < first_points.back(); ++point) {
        const std::int64_t first = sets.first_of(point);
        ids[point] = first == point ? num_ids++ : ids[first];
    }
    std::vector<FoamAddressing> result;
    for (std::size_t i = 0; i < processors.size(); ++i) {
        const FoamRegion& processor = processors[i];
        result.push_back({{ids.begin() + first_points[i], ids.begin() + first_points[i + 1]},
                          counted_from(num_faces, processor.num_faces()),
                          counted_from(num_cells, processor.num_cells())});
        num_faces += processor.num_faces();
        num_cells += processor.num_cells();
    }
    return result;
}

std::vector<FoamAddressing> addressing_of(std::span<const FoamRegion> processors, const std::string& where)
{
    std::vector<FoamAddressing> result;
    for (const FoamRegion& processor : processors) {
        result.push_back(processor.addressing());
        const FoamAddressing& found = result.back();
        const bool is_whole = (!found.points.empty() || processor.num_points() == 0) &&
                              (!found.faces.empty() || processor.num_faces() == 0) &&
                              (!found.cells.empty() || processor.num_cells() == 0);
        if (!is_whole) return number_in_order(processors, where);
        for (const auto* ids : {&found.points, &found.faces, &found.cells})
            if (std::ranges::any_of(*ids, [](std::int64_t id) { return id < 0; }))
                throw IoError("{}: the numbers that decomposePar noted in processor{} are damaged: one is "
                              "below 0. Decompose the case again.",
                              where, result.size() - 1);
    }
    return result;
}

/// Collects the names of all pieces' zones, and renumbers the zone ids.
void unite_zones(std::vector<Mesh>& pieces)
{
    constexpr const char *ids_name = "CellZoneId", *names_name = "CellZoneName";
    std::vector<std::string> all;
    for (const Mesh& piece : pieces)
        if (const DataArray* names = find_array(piece.field_data, names_name))
            for (const std::string& name : names->strings())
                if (!contains(all, name)) all.push_back(name);
    if (all.empty()) return;
    for (Mesh& piece : pieces) {
        const DataArray *names = find_array(piece.field_data, names_name), *ids = find_array(piece.cell_data, ids_name);
        std::vector<std::int32_t> zones(piece.num_cells(), -1);
        for (std::size_t cell = 0; ids != nullptr && cell < zones.size(); ++cell)
            if (const std::int32_t zone = ids->values<std::int32_t>()[cell]; zone >= 0)
                zones[cell] = static_cast<std::int32_t>(std::ranges::find(all, names->strings()[zone]) - all.begin());
        const auto old = std::ranges::find(piece.cell_data, ids_name, &DataArray::name);
        DataArray united = DataArray::from(ids_name, std::move(zones));
        if (old != piece.cell_data.end())
            *old = std::move(united);
        else
            piece.cell_data.insert(piece.cell_data.begin(), std::move(united));
    }
    auto& first = pieces.front().field_data;
    std::erase_if(first, [&](const DataArray& array) { return array.name() == names_name; });
    first.push_back(DataArray::from_strings(names_name, std::move(all)));
}

/// Sets the first piece's `PatchNumFaces` to that of the whole.
void add_up_patches(std::vector<Mesh>& pieces)
{
    constexpr const char* name = "PatchNumFaces";
    const auto first = std::ranges::find(pieces.front().field_data, name, &DataArray::name);
    if (first == pieces.front().field_data.end()) return;
    for (std::size_t i = 1; i < pieces.size(); ++i)
        if (const DataArray* more = find_array(pieces[i].field_data, name);
            more != nullptr && more->num_rows() == first->num_rows())
            std::ranges::transform(first->values<std::int32_t>(), more->values<std::int32_t>(),
                                   first->mutable_values<std::int32_t>().begin(), std::plus<>());
}

}  // namespace

std::vector<fs::path> processor_folders(const fs::path& case_folder)
{
    std::vector<std::pair<std::int64_t, fs::path>> found;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(case_folder, ignored)) {
        const std::string name = entry.path().filename().string();
        constexpr std::string_view start = "processor", collated = "processors";
        if (!name.starts_with(start) || !entry.is_directory()) continue;
        if (const auto number = parse_number<std::int64_t>(std::string_view(name).substr(start.size())))
            found.emplace_back(*number, entry.path());
        else if (name.starts_with(collated) && fs::is_directory(entry.path() / "constant"))
            throw IoError("read_mesh: {} is a decomposition in the collated form, which is not read. Reconstruct the "
                          "case, or write "
                          "it again with "
                          "`-fileHandler uncollated`.",
                          entry.path().string());
    }
    std::ranges::sort(found);
    std::vector<fs::path> folders;
    for (const auto& [number, path] : found) {
        if (number != std::ssize(folders))
            throw IoError("read_mesh: {} has the folder {}, but no processor{}.", case_folder.string(),
                          path.filename().string(), folders.size());
        folders.push_back(path);
    }
    return folders;
}

FoamBlocks read_decomposed(std::span<FoamRegion> processors, const std::string& where, const ReadOptions& options)
{
    std::vector<std::vector<MeshBlock>> read;
    for (FoamRegion& processor : processors) read.push_back(processor.read());
    for (std::size_t i = 0; i < processors.size(); ++i)
        for (const FoamPatch& patch : processors[i].processor_patches())
            if (patch.neighbor >= std::ssize(processors))
                throw IoError("{}: the patch '{}' of processor{} leads to processor{}, whose folder is "
                              "missing. Copy it, too, or reconstruct the case.",
                              where, patch.name, i, patch.neighbor);
    const std::vector<FoamAddressing> addressing = addressing_of(processors, where);
    FoamBlocks result;
    for (std::size_t i = 0; i < processors.size(); ++i) {
        processors[i].name_points(read[i], addressing[i].points);
        processors[i].name_cells(read[i], addressing[i]);
        for (const std::int64_t id : addressing[i].points) result.num_points = std::max(result.num_points, id + 1);
        for (const std::string& name : processors[i].block_names())
            if (!contains(result.all_names, name)) result.all_names.push_back(name);
    }
    for (const std::string& name : result.all_names) {
        std::vector<Mesh> pieces;
        for (std::vector<MeshBlock>& blocks : read)
            if (const auto block = std::ranges::find(blocks, name, &MeshBlock::name); block != blocks.end())
                pieces.push_back(std::move(block->mesh));
        if (pieces.empty()) continue;
        if (name == processors.front().inner_name()) unite_zones(pieces);
        add_up_patches(pieces);
        const MeshKind kind = pieces.front().kind;
        Mesh mesh = merge_pieces(std::move(pieces), kind, where, options);
        std::erase_if(mesh.cell_data, [](const DataArray& array) { return array.name() == "GlobalCellIds"; });
        result.blocks.push_back({name, std::move(mesh)});
    }
    return result;
}

}  // namespace meshard
