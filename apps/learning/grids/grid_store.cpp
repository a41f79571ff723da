// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/grids/grid_store.h"

#include "apps/learning/cases/kept_folder.h"
#include "apps/learning/cases/usable_input.h"
#include "apps/learning/grids/grid_case.h"
#include "io/bytes/content_hash.h"
#include "io/shards/shards_writer.h"
#include "io/source_files.h"
#include "io/vtk/array_grid.h"
#include "io/vtk/grid_file.h"
#include "io/zarr/zarr_writer.h"
#include "partition/error.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <string_view>
#include <sys/stat.h>
#include <thread>

namespace meshard {
namespace {

/// This version must be raised when the same arrays would be stored in another way.
constexpr int kStoreVersion = 2;

/// Extents of chunks that differ from each other by a place at most.
std::vector<std::int64_t> chunk_shape_of(const std::vector<std::int64_t>& shape)
{
    constexpr std::int64_t kOfImages = 512, kOfVolumes = 64;
    const auto num_directions = std::ranges::count_if(shape, [](std::int64_t size) { return size > 1; });
    const auto most = num_directions > 2 ? kOfVolumes : kOfImages;
    auto chunk = shape;
    for (auto& size : chunk) {
        const auto num_chunks = (size + most - 1) / most;
        size = (size + num_chunks - 1) / num_chunks;
    }
    return chunk;
}

/// Copies an array in layers of chunks, of which one is in memory.
void copy_array(const GridFile& source, const DataArray& declared, bool of_cells, const std::filesystem::path& folder)
{
    auto box = whole_box(source.grid(), of_cells);
    std::vector<std::int64_t> shape(box.count.rbegin(), box.count.rend());
    auto chunk = chunk_shape_of(shape);
    const auto slowest =
        static_cast<std::size_t>(std::ranges::max_element(shape, {}, [](std::int64_t size) { return size > 1; }) -
                                 shape.begin());  // the first with more than one place
    std::vector<std::string> names{"z", "y", "x"};
    auto count = shape;
    if (declared.num_components() > 1) {
        for (auto* sizes : {&shape, &chunk, &count}) sizes->push_back(declared.num_components());
        names.emplace_back("component");
    }
    const ZarrArrayWriter writer(folder, declared.type(), shape, chunk, names);
    std::vector<std::int64_t> first(shape.size(), 0);
    const auto axis = 2 - slowest;  // of the box, x first
    for (std::int64_t begin = 0; begin < shape[slowest]; begin += chunk[slowest]) {
        first[slowest] = box.first[axis] = begin;
        count[slowest] = box.count[axis] = std::min(chunk[slowest], shape[slowest] - begin);
        writer.write(first, count, source.read(declared.name(), of_cells, box).bytes());
    }
}

std::int64_t bytes_below(const std::filesystem::path& folder)
{
    std::int64_t bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
        if (entry.is_regular_file()) bytes += static_cast<std::int64_t>(entry.file_size());
    return bytes;
}

}  // namespace

GridStore::GridStore(const DataConfig& data)
    : folder_(data.store.empty() ? data.shards / "store" : data.store), is_named_(!data.store.empty()),
      on_cells_(data.on_cells)
{
    const auto told = data.told_arrays();
    std::set<std::string> names(told.begin(), told.end());
    for (const auto& field : data.fields) names.insert(field.from);
    if (!data.mask.empty() && data.mask != kMaskOfNan) names.insert(data.mask);
    arrays_.assign(names.begin(), names.end());
}

std::filesystem::path GridStore::path_of(const CaseSource& source) const
{
    auto text =
        fmt::format("version {}\narrays {}\ncells {}\n", kStoreVersion, nlohmann::json(arrays_).dump(), on_cells_);
    for (const auto& file : source_files(source.file)) {
        struct stat state = {};
        if (::stat(file.c_str(), &state) != 0) throw IoError("store: {} cannot be read.", file.string());
        text += fmt::format("{} {} {}.{}\n", file.filename().string(), state.st_size, state.st_mtim.tv_sec,
                            state.st_mtim.tv_nsec);
    }
    const auto hash = hash_text(xxh64_of_text(text)).substr(std::string_view("xxh64:").size());
    return folder_ / (source.id + "-" + hash + ".zarr");
}

/// Refuses names of arrays that are no paths of their own below a folder.
static void require_paths(const std::set<const DataArray*>& arrays, const std::string& where)
{
    for (const auto* array : arrays) {
        const std::filesystem::path path(array->name());
        const bool is_path = !path.empty() && path.is_relative() && std::ranges::none_of(path, [](const auto& segment) {
            return segment.empty() || segment == "." || segment == ".." || segment == "zarr.json";
        });
        const auto above = std::ranges::find_if(
            arrays, [&](const auto* other) { return array->name().starts_with(other->name() + "/"); });
        if (!is_path || above != arrays.end())
            throw InvalidInput(
                "{}: the array '{}' cannot be a folder of the store{}. Rename it, or train without a store.", where,
                array->name(), is_path ? " below '" + (*above)->name() + "', another array" : "");
    }
}

void GridStore::write_case(const CaseSource& source, const std::filesystem::path& folder) const
{
    PartialFolder partial(folder);
    const auto file = GridFile::open(source.file);
    std::set<const DataArray*> arrays;  // each once, also if several patterns match it
    for (const auto& name : arrays_)
        for (const auto* array : named_arrays(file->grid(), name, on_cells_, file->where())) arrays.insert(array);
    require_paths(arrays, file->where());
    for (const auto* array : arrays) {
        const auto place = partial.path() / array->name();
        copy_array(*file, *array, on_cells_, place);
        for (auto group = place.parent_path(); group != partial.path(); group = group.parent_path())
            if (!std::filesystem::exists(group / "zarr.json")) write_zarr_group(group, {});
    }
    auto attributes = attributes_of_grid(file->grid(), on_cells_);
    attributes["source"] = source.file.string();
    write_zarr_group(partial.path(), attributes);
    partial.commit();
}

std::int64_t GridStore::write(const std::vector<CaseSource>& cases, const RankGroup& ranks) const
{
    const auto me = static_cast<std::size_t>(ranks.rank()), num_ranks = static_cast<std::size_t>(ranks.size());
    std::int64_t bytes = 0;
    read_together(ranks, [&] {
        if (const auto why = why_not_writable(folder_); !why.empty())
            throw IoError("the store {} cannot be written: {}. Set data.store to another folder.", folder_.string(),
                          why);
        for (std::size_t i = me; i < cases.size(); i += num_ranks) {
            const auto path = path_of(cases[i]);
            const auto is_complete = [&] { return std::filesystem::exists(path / "zarr.json"); };
            try {
                while (!try_keep_folder(path, is_complete,
                                        [&](const auto& unfinished) { write_case(cases[i], unfinished); }))
                    std::this_thread::sleep_for(std::chrono::milliseconds(50));
            } catch (const InvalidInput& wrong) {
                throw InvalidInput("case {}: {}", cases[i].id, wrong.what());
            }
            bytes += bytes_below(path);
        }
    });
    std::int64_t sum = 0;
    for (const auto of_rank : ranks.all_gather_integers(bytes)) sum += of_rank;
    return sum;
}

std::map<std::string, std::filesystem::path> GridStore::find(const std::vector<CaseSource>& cases) const
{
    std::map<std::string, std::filesystem::path> found;
    std::error_code error;
    if (!std::filesystem::is_directory(folder_, error)) return found;
    for (const auto& source : cases) {
        const auto path = path_of(source);
        if (std::filesystem::exists(path / "zarr.json", error)) found[source.id] = path;
    }
    return found;
}

std::string GridStore::said_of(const std::vector<CaseSource>& cases,
                               const std::map<std::string, std::filesystem::path>& stored) const
{
    if (stored.size() == cases.size()) return "the cases are read from the store " + folder_.string();
    constexpr auto kEnd = std::string_view("-0123456789abcdef.zarr").size();
    std::set<std::string> ids;  // the cases of which some state is stored
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
        const auto name = entry.path().filename().string();
        if (name.ends_with(".zarr") && name.size() > kEnd) ids.insert(name.substr(0, name.size() - kEnd));
    }
    const auto other = std::ranges::find_if(
        cases, [&](const auto& source) { return !stored.contains(source.id) && ids.contains(source.id); });
    if (other == cases.end() && stored.empty() && !is_named_) return {};
    return fmt::format(
        "warning: the store {} has {} of {} cases as they are now{}; the others are read from their files. meshard "
        "prepare stores them",
        folder_.string(), stored.size(), cases.size(),
        other == cases.end() ? ""
                             : fmt::format(", and case {} with other arrays or of another state of {}", other->id,
                                           other->file.string()));
}

}  // namespace meshard
