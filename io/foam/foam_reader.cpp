// SPDX-License-Identifier: Apache-2.0
#include "io/foam/foam_reader.h"

#include "io/bytes/ascii_numbers.h"
#include "io/bytes/time_choice.h"
#include "io/foam/foam_decomposed.h"
#include "io/foam/foam_file.h"
#include "io/foam/foam_region.h"
#include "io/vtk/vtk_parallel_reader.h"
#include "partition/error.h"
#include "partition/lists.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

namespace meshard {

namespace {

namespace fs = std::filesystem;

constexpr const char* point_names = "GlobalPointIds";

fs::path case_folder(const fs::path& path)
{
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) return path;
    return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

std::vector<FoamTime> time_folders(const fs::path& folder)
{
    std::vector<FoamTime> times;
    for (const auto& entry : fs::directory_iterator(folder)) {
        if (!entry.is_directory()) continue;
        if (const auto value = parse_number<double>(entry.path().filename().string()); value && std::isfinite(*value))
            times.push_back({*value, entry.path()});
    }
    std::ranges::sort(times, {}, &FoamTime::value);
    return times;
}

bool has_mesh(const fs::path& folder)
{
    return FoamFile::exists(folder / "polyMesh" / "faces");
}

/// Names of the regions with meshes in folders of their own.
std::vector<std::string> named_regions(const fs::path& folder)
{
    std::error_code ignored;
    std::vector<std::string> regions;
    for (const auto& entry : fs::directory_iterator(folder / "constant", ignored))
        if (entry.is_directory() && has_mesh(entry.path())) regions.push_back(entry.path().filename().string());
    std::ranges::sort(regions);
    return regions;
}

/// Names of the regions; one empty name for a case with a single mesh, also if it has regions besides.
std::vector<std::string> regions_of(const fs::path& folder)
{
    if (has_mesh(folder / "constant")) return {""};
    const auto regions = named_regions(folder);
    if (regions.empty())
        for (const FoamTime& time : time_folders(folder))
            if (has_mesh(time.path)) return {""};
    return regions;
}

std::vector<double> values_of(const std::vector<FoamTime>& times)
{
    std::vector<double> values;
    for (const FoamTime& time : times) values.push_back(time.value);
    return values;
}

auto find_time(const std::vector<FoamTime>& times, double wanted)
{
    const auto found = index_of_time(values_of(times), wanted);
    return found ? times.begin() + static_cast<std::ptrdiff_t>(*found) : times.end();
}

/// The times up to and including the wanted one.
std::vector<FoamTime> times_until(const fs::path& folder, std::optional<double> wanted, const std::string& where)
{
    auto times = time_folders(folder);
    if (times.empty() && !wanted) return times;
    const auto found = wanted ? find_time(times, *wanted) : times.end() - 1;
    if (found == times.end()) {
        std::string list;
        for (const FoamTime& time : times) list += (list.empty() ? "" : ", ") + time.path.filename().string();
        throw IoError("{} has no such time; there {}.", where, list.empty() ? "are no time folders" : "are " + list);
    }
    const auto twin = std::ranges::find_if(
        times, [&](const FoamTime& time) { return time.value == found->value && time.path != found->path; });
    if (twin != times.end())
        throw IoError("{} has the time {} twice, in the folders {} and {}. Remove one of them.", where, found->value,
                      found->path.filename().string(), twin->path.filename().string());
    times.erase(found + 1, times.end());
    return times;
}

/// Returns whether a processor's mesh was cut from the case's by decomposePar, which notes that, and not generated in
/// parallel.
bool was_decomposed(const fs::path& processor)
{
    for (const std::string& region : regions_of(processor)) {
        const auto has_numbers = [&](const fs::path& folder) {
            return FoamFile::exists(folder / region / "polyMesh" / "cellProcAddressing");
        };
        const auto times = time_folders(processor);
        if (!has_numbers(processor / "constant") && std::ranges::none_of(times, has_numbers, &FoamTime::path))
            return false;
    }
    return true;
}

/// Returns whether the processors' folders have the mesh and the wanted time (or, if none is wanted, a later time) and
/// the case itself does not. Of a mesh that was generated in parallel the case itself may have an early stage, with
/// time 0: then the times that processors have are theirs.
bool is_better_decomposed(const fs::path& folder, const fs::path& processor, std::optional<double> wanted)
{
    if (regions_of(folder).empty()) return true;
    const auto whole = time_folders(folder), decomposed = time_folders(processor);
    const bool is_later = !decomposed.empty() && (whole.empty() || whole.back().value < decomposed.back().value);
    if (!wanted) return is_later;
    if (find_time(decomposed, *wanted) == decomposed.end()) return false;
    return find_time(whole, *wanted) == whole.end() || (is_later && !was_decomposed(processor));
}

/// @throws IoError if the processor lacks one of the times.
void require_times(const std::vector<FoamTime>& times, const fs::path& processor)
{
    const auto here = time_folders(processor);
    for (const FoamTime& time : times)
        if (std::ranges::find(here, time.value, &FoamTime::value) == here.end())
            throw IoError("read_mesh: {} has no time {}, which {} has. Was the run stopped while it wrote? Remove that "
                          "time from all processors, or choose "
                          "another.",
                          processor.string(), time.path.filename().string(),
                          time.path.parent_path().filename().string());
}

/// @throws IoError if one of the processors lacks the latest time of all.
void require_latest_time(const std::vector<fs::path>& processors)
{
    std::vector<FoamTime> latest;
    for (const fs::path& processor : processors)
        if (const auto times = time_folders(processor);
            !times.empty() && (latest.empty() || times.back().value > latest.front().value))
            latest.assign(1, times.back());
    for (const fs::path& processor : processors) require_times(latest, processor);
}

/// Patches and zones of all regions, numbered through and called REGION/NAME as long as several regions are read.
class RegionNumbers {
public:
    /// Adds those of a region, and renumbers the rows of its blocks.
    void add(const std::string& region, std::vector<MeshBlock>& blocks)
    {
        for (Group& group : groups_) {
            const auto has_names = [&](const MeshBlock& block) {
                return find_array(block.mesh.field_data, group.lists.front().name()) != nullptr;
            };
            const auto named = std::ranges::find_if(blocks, has_names);
            if (named == blocks.end()) continue;
            const auto first = static_cast<std::int32_t>(group.lists.front().num_rows());
            for (DataArray& list : group.lists) {
                const DataArray& more = *find_array(named->mesh.field_data, list.name());
                if (more.type() == ScalarType::String) {
                    std::vector<std::string> names(list.strings().begin(), list.strings().end());
                    for (const std::string& name : more.strings())
                        names.push_back(&list == group.lists.data() ? region + "/" + name : name);
                    list = DataArray::from_strings(list.name(), std::move(names));
                } else {
                    std::vector<std::int32_t> sizes(list.values<std::int32_t>().begin(),
                                                    list.values<std::int32_t>().end());
                    std::ranges::copy(more.values<std::int32_t>(), std::back_inserter(sizes));
                    list = DataArray::from(list.name(), std::move(sizes));
                }
            }
            for (MeshBlock& block : blocks)
                if (const auto ids = std::ranges::find(block.mesh.cell_data, group.ids, &DataArray::name);
                    ids != block.mesh.cell_data.end())
                    for (std::int32_t& id : ids->mutable_values<std::int32_t>())
                        if (id >= 0) id += first;
        }
    }

    /// Gives every block the lists of all regions.
    void name(std::vector<MeshBlock>& blocks) const
    {
        for (MeshBlock& block : blocks)
            for (const Group& group : groups_)
                for (const DataArray& list : group.lists)
                    for (DataArray& array : block.mesh.field_data)
                        if (array.name() == list.name()) array = list;
    }

private:
    struct Group {
        std::string ids;               // the cell array that numbers rows of the lists
        std::vector<DataArray> lists;  // field arrays, names first
    };

    std::vector<Group> groups_{{"PatchId",
                                {DataArray::from_strings("PatchName", {}), DataArray::from_strings("PatchType", {}),
                                 DataArray::from("PatchNumFaces", std::vector<std::int32_t>())}},
                               {"CellZoneId", {DataArray::from_strings("CellZoneName", {})}}};
};

std::vector<MeshBlock> read_case(const fs::path& path, const ReadOptions& options, bool with_point_names)
{
    const std::string where = "read_mesh: " + path.string();
    if (!fs::exists(path)) throw IoError("{} does not exist. Check the path.", where);
    const fs::path folder = case_folder(path);
    const std::vector<fs::path> processors = processor_folders(folder);
    const bool is_decomposed = !processors.empty() && is_better_decomposed(folder, processors.front(), options.time);
    const auto& mesh_folder = is_decomposed ? processors.front() : folder;
    auto regions = regions_of(mesh_folder);
    if (const auto others = named_regions(mesh_folder); regions == std::vector<std::string>{""} && !others.empty()) {
        // The mesh that splitMeshRegions was given stays where it was.
        const auto is_of_another = [&](const std::string& block) {
            return contains(others, block.substr(0, block.find('/')));
        };
        if (std::ranges::any_of(options.blocks, is_of_another))
            regions = others;
        else if (options.warnings != nullptr)
            options.warnings->push_back(fmt::format("{} has a mesh of its own, which is read, and regions, which are "
                                                    "not: {}. Choose one as a block, e.g. {}",
                                                    folder.string(), fmt::join(others, ", "), others.front()));
    }
    if (regions.empty())
        throw IoError(
            "{}: the case has no mesh (constant/polyMesh/faces). Make one with blockMesh or another mesher first.",
            where);
    if (is_decomposed && !options.time) require_latest_time(processors);
    std::vector<MeshBlock> blocks, all_names;
    RegionNumbers numbers;
    std::int64_t first_point = 0;
    for (const std::string& region : regions) {
        FoamBlocks read;
        if (is_decomposed) {
            std::vector<FoamRegion> readers;
            for (const fs::path& processor : processors)
                readers.emplace_back(processor, region,
                                     times_until(processor, options.time, "read_mesh: " + processor.string()), options);
            read = read_decomposed(readers, where, options);
        } else {
            FoamRegion reader(folder, region, times_until(folder, options.time, where), options);
            read.blocks = reader.read();
            read.num_points = reader.num_points();
            read.all_names = reader.block_names();
            auto ids = numbers_from<std::int64_t>(0, read.num_points);
            if (with_point_names) reader.name_points(read.blocks, ids);
        }
        for (MeshBlock& block : read.blocks) {
            auto& arrays = block.mesh.point_data;
            if (with_point_names)
                for (std::int64_t& id :
                     std::ranges::find(arrays, point_names, &DataArray::name)->mutable_values<std::int64_t>())
                    id += first_point;
            else
                std::erase_if(arrays, [](const DataArray& array) { return array.name() == point_names; });
        }
        first_point += read.num_points;
        if (regions.size() > 1) numbers.add(region, read.blocks);
        std::ranges::move(read.blocks, std::back_inserter(blocks));
        for (const std::string& name : read.all_names) all_names.push_back({name, {}});
    }
    choose_blocks(std::move(all_names), options.blocks, where);  // throws if there is no such block
    if (regions.size() > 1) numbers.name(blocks);
    return blocks;
}

}  // namespace

bool is_foam_case(const std::filesystem::path& path)
{
    std::error_code ignored;
    if (path.extension() == ".foam" || path.extension() == ".OpenFOAM") return true;
    return fs::is_directory(path / "constant" / "polyMesh", ignored) ||
           fs::is_directory(path / "processor0", ignored) ||
           fs::is_regular_file(path / "system" / "controlDict", ignored);
}

std::vector<double> foam_times(const std::filesystem::path& path)
{
    if (!fs::exists(path)) throw IoError("read_mesh: {} does not exist. Check the path.", path.string());
    const fs::path folder = case_folder(path);
    const std::vector<fs::path> processors = processor_folders(folder);
    if (processors.empty()) return values_of(time_folders(folder));
    const auto decomposed = time_folders(processors.front());
    for (const fs::path& processor : processors) require_times(decomposed, processor);
    std::vector<double> times = values_of(decomposed);
    const bool has_own_mesh =
        !was_decomposed(processors.front()) && is_better_decomposed(folder, processors.front(), std::nullopt);
    if (has_own_mesh || regions_of(folder).empty()) return times;
    for (const FoamTime& time : time_folders(folder))
        if (find_time(decomposed, time.value) == decomposed.end()) times.push_back(time.value);
    std::ranges::sort(times);
    return times;
}

std::vector<MeshBlock> read_foam_case(const std::filesystem::path& path, const ReadOptions& options)
{
    return read_case(path, options, false);
}

Mesh read_foam_mesh(const std::filesystem::path& path, const ReadOptions& options)
{
    const std::string where = "read_mesh: " + path.string();
    std::vector<MeshBlock> blocks = read_case(path, options, !options.blocks.empty());
    const bool number_blocks = options.blocks.empty();  // number only regions; patches have their own ids
    Mesh mesh = join_blocks(std::move(blocks), number_blocks, where);
    if (find_array(mesh.point_data, point_names) == nullptr) return mesh;
    const MeshKind kind = mesh.kind;
    std::vector<Mesh> pieces;
    pieces.push_back(std::move(mesh));
    mesh = merge_pieces(std::move(pieces), kind, where, options);
    std::erase_if(mesh.point_data, [](const DataArray& array) { return array.name() == point_names; });
    return mesh;
}

}  // namespace meshard
