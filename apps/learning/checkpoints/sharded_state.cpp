// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/checkpoints/sharded_state.h"

#include "apps/learning/checkpoints/tensor_file.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/hashed_json.h"
#include "io/bytes/mapped_file.h"
#include "io/checkpoints/safetensors.h"
#include "partition/error.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <set>
#include <span>
#include <sstream>
#include <unistd.h>

namespace meshard {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char *kFormat = "meshard sharded state ", *kVersion = "1";
constexpr const char* kPartPrefix = "part-";

/// Entries `first` to `first + count` of a dimension of the whole.
struct Run {
    std::int64_t first, count;
};

/// Which entries of each dimension a rank holds, in the order in which it holds them.
using Region = std::vector<std::vector<Run>>;

std::string rows_name(const std::string& name, std::size_t dim)
{
    return name + "#rows" + std::to_string(dim);
}

std::vector<Run> runs_of(std::span<const std::int64_t> ids)
{
    std::vector<Run> runs;
    for (const auto id : ids) {
        if (!runs.empty() && runs.back().first + runs.back().count == id)
            ++runs.back().count;
        else
            runs.push_back({id, 1});
    }
    return runs;
}

const IndexMap* map_of(const NamedState& one)
{
    if (!is_sharded(one.tensor)) return nullptr;
    return one.index_map ? one.index_map.get() : spec_of(one.tensor)->index_map.get();
}

/// Whether the rows of the axis `domain` are those that the map says, as far as this rank can see.
bool map_fits(const NamedState& one)
{
    const auto* map = map_of(one);
    if (!map || !spec_of(one.tensor)->device_mesh->has_axis("domain")) return true;
    const auto& spec = *spec_of(one.tensor);
    const auto domain = spec.device_mesh->axis("domain");
    const auto& layout = spec.axes[domain];
    return !layout.is_shard() ||
           (layout.blocks == 1 && layout.total() == map->num_global && (*layout.extents)[spec.device_mesh->coordinate(domain)] == map->num_owned);
}

/// What this rank holds of the whole.
Region region_of(const NamedState& one)
{
    Region region;
    for (const auto size : one.tensor.sizes()) region.push_back({{0, size}});
    if (!is_sharded(one.tensor)) return region;
    const auto& spec = *spec_of(one.tensor);
    for (std::size_t a = 0; a < spec.axes.size(); ++a) {
        const auto& layout = spec.axes[a];
        if (!layout.is_shard()) continue;
        auto& runs = region[layout.placement.dim];
        runs.clear();
        if (const auto* map = map_of(one); map && spec.device_mesh->axis_names()[a] == "domain") {
            runs = runs_of(map->owned());
            continue;
        }
        const auto coordinate = spec.device_mesh->coordinate(a);
        for (std::int64_t b = 0; b < layout.blocks; ++b) {
            const auto extent = (*layout.extents)[coordinate];
            if (extent > 0) runs.push_back({b * layout.total() + layout.offset(coordinate), extent});
        }
    }
    return region;
}

/// One of the ranks that hold the same writes it.
bool writes(const at::Tensor& tensor, const DeviceMesh& mesh)
{
    if (local_of(tensor).numel() == 0 && tensor.dim() > 0) return false;
    if (!is_sharded(tensor)) return mesh.all().rank() == 0;
    const auto& spec = *spec_of(tensor);
    for (std::size_t a = 0; a < spec.axes.size(); ++a) {
        if (spec.axes[a].is_replicate() && spec.device_mesh->coordinate(a) != 0) return false;
    }
    // A mesh of fewer axes, e.g. `domain` of a grid: the other lines hold it too.
    if (spec.device_mesh->num_axes() < mesh.num_axes()) {
        for (std::int64_t a = 0; a < mesh.num_axes(); ++a) {
            if (!spec.device_mesh->has_axis(mesh.axis_names()[a]) && mesh.coordinate(a) != 0) return false;
        }
    }
    return true;
}

NamedArray rows_array(const std::string& name, const std::vector<Run>& runs)
{
    const auto kept = std::make_shared<const std::vector<Run>>(runs);
    return {name, ArrayType::I64, {static_cast<std::int64_t>(runs.size()), 2}, reinterpret_cast<const std::byte*>(kept->data()), kept};
}

/// All ranks learn whether one has failed: that one throws its own error, the others say so.
void agree(const DeviceMesh& mesh, const std::function<void()>& step, const std::string& what)
{
    std::exception_ptr error;
    try {
        step();
    } catch (const json::exception& damaged) {
        error = std::make_exception_ptr(IoError(what + ": index.json is damaged (" + damaged.what() + "). Save the state again."));
    } catch (...) {
        error = std::current_exception();
    }
    const bool all = mesh.all().all_agree(!error);
    if (error) std::rethrow_exception(error);
    if (!all) throw IoError(what + " failed on another rank; its message says why.");
}

void check_state(const std::vector<NamedState>& state, const DeviceMesh& mesh)
{
    std::string problem, description;
    std::set<std::string> names;
    for (const auto& one : state) {
        if (!one.tensor.defined() || one.name.empty())
            problem = "'" + one.name + "' is no tensor";
        else if (!names.insert(one.name).second)
            problem = "'" + one.name + "' occurs twice";
        else if (one.name.find('#') != std::string::npos)
            problem = "'" + one.name + "' has a '#' in its name";
        else if (!array_type_of(one.tensor.scalar_type()))
            problem = "'" + one.name + "' is of a type that safetensors files cannot hold";
        else if (!map_fits(one))
            problem = "the index map of '" + one.name + "' does not say how it is cut (" + to_string(*spec_of(one.tensor)) + ")";
        if (!problem.empty()) break;
        std::ostringstream text;
        text << one.name << one.tensor.sizes() << one.tensor.scalar_type() << ';';
        description += text.str();
    }
    const auto digest = static_cast<std::int64_t>(std::hash<std::string>{}(description));
    const auto all = mesh.all().all_gather_integers(std::vector<std::int64_t>{digest, problem.empty()});
    if (!problem.empty()) throw InvalidInput("sharded state: " + problem + ".");
    for (std::size_t r = 0; r < all.size(); ++r) {
        if (all[r] != all[0] || !all[r][1]) {
            throw InvalidInput("sharded state: rank " + std::to_string(r) +
                               " has other names, shapes or types than rank 0, or one of them refuses its own. Pass the same list on every rank.");
        }
    }
}

json read_index(const fs::path& folder)
{
    const auto path = folder / "index.json";
    if (!fs::exists(path)) throw IoError(path.string() + " is missing: " + folder.string() + " holds no complete sharded state.");
    const auto file = MappedFile::open(path, "load_sharded");
    auto index = json::parse(file->text(), nullptr, false);
    const std::string format = index.is_object() ? index.value("format", "") : "";
    if (!format.starts_with(kFormat)) throw IoError(path.string() + " is no index of a sharded state.");
    if (const auto version = format.substr(std::string_view(kFormat).size()); version != kVersion)
        throw UnknownVersion(path.string() + ", an index of a sharded state,", version, kVersion);
    require_hash(index, path.string(), "Save the state again.");
    return index;
}

/// Copies what two regions share; returns how many values that was. `from` and `to` hold their regions densely.
std::int64_t copy_common(const at::Tensor& to, const Region& to_region, const at::Tensor& from, const Region& from_region, std::size_t dim = 0)
{
    if (dim == to_region.size()) {
        to.copy_(from);
        return to.numel();
    }
    std::int64_t copied = 0, to_offset = 0;
    for (const auto& t : to_region[dim]) {
        std::int64_t from_offset = 0;
        for (const auto& f : from_region[dim]) {
            const auto first = std::max(t.first, f.first), last = std::min(t.first + t.count, f.first + f.count);
            if (first < last) {
                const auto d = static_cast<std::int64_t>(dim);
                copied += copy_common(to.narrow(d, to_offset + first - t.first, last - first), to_region,
                                      from.narrow(d, from_offset + first - f.first, last - first), from_region, dim + 1);
            }
            from_offset += f.count;
        }
        to_offset += t.count;
    }
    return copied;
}

/// Which entries of a whole of the shape `whole` a part's array holds.
Region region_in(const NamedArrays& part, const NamedArray& array, at::IntArrayRef whole, const fs::path& path)
{
    if (array.shape.size() != whole.size()) throw IoError(path.string() + ": '" + array.name + "' has another number of dimensions than index.json says.");
    Region region;
    for (std::size_t d = 0; d < array.shape.size(); ++d) {
        const auto* rows = part.find(rows_name(array.name, d));
        auto& runs = region.emplace_back();
        std::int64_t sum = 0;
        bool is_inside = true;
        const auto add = [&](Run run) {
            is_inside &= run.first >= 0 && run.count >= 0 && run.count <= whole[d] && run.first <= whole[d] - run.count;
            if (is_inside) sum += run.count;
            runs.push_back(run);
        };
        if (rows) {
            const auto* numbers = reinterpret_cast<const std::int64_t*>(rows->data);
            for (std::int64_t i = 0; rows->type == ArrayType::I64 && i < rows->num_values() / 2; ++i) add({numbers[2 * i], numbers[2 * i + 1]});
        } else {
            add({0, array.shape[d]});
        }
        if (!is_inside || sum != array.shape[d]) {
            throw IoError(path.string() + ": '" + rows_name(array.name, d) + "' does not say which rows '" + array.name + "' holds. Save the state again.");
        }
    }
    return region;
}

}  // namespace

void save_sharded(const fs::path& folder, const std::vector<NamedState>& state, const DeviceMesh& mesh, const std::map<std::string, std::string>& metadata)
{
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> tensors;
    for (const auto& one : state) tensors.push_back(one.tensor);
    check_state(state, mesh);
    reduce_partials(tensors);

    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    auto generation = at::tensor({static_cast<std::int64_t>(now ^ (static_cast<std::int64_t>(getpid()) << 40))}, at::kLong);
    mesh.all().broadcast(generation, 0);
    const auto prefix = kPartPrefix + std::to_string(static_cast<std::uint64_t>(generation.item<std::int64_t>())) + "-";
    const auto file_name = [&](std::int64_t rank) { return prefix + std::to_string(rank) + ".safetensors"; };

    agree(
        mesh,
        [&] {
            if (mesh.all().rank() != 0) return;
            std::error_code error;
            fs::create_directories(folder, error);
            if (error) throw IoError(folder.string() + " cannot be made: " + error.message() + ".");
        },
        "save_sharded");
    const auto path = folder / file_name(mesh.all().rank());
    agree(
        mesh,
        [&] {
            NamedArrays part;
            for (const auto& one : state) {
                if (!writes(one.tensor, mesh)) continue;
                part.arrays.push_back(to_named_array(one.name, local_of(one.tensor)));
                const auto region = region_of(one);
                for (std::size_t d = 0; d < region.size(); ++d) {
                    const auto& runs = region[d];
                    const bool whole = runs.size() == 1 && runs[0].first == 0 && runs[0].count == one.tensor.size(static_cast<std::int64_t>(d));
                    if (!whole) part.arrays.push_back(rows_array(rows_name(one.name, d), runs));
                }
            }
            write_safetensors(path, part);
        },
        "save_sharded");

    const auto sizes = mesh.all().all_gather_integers(std::vector<std::int64_t>{static_cast<std::int64_t>(fs::file_size(path))});
    agree(
        mesh,
        [&] {
            if (mesh.all().rank() != 0) return;
            json index = {{"format", std::string(kFormat) + kVersion}, {"metadata", metadata}, {"files", json::array()}, {"tensors", json::object()}};
            for (std::size_t r = 0; r < sizes.size(); ++r)
                index["files"].push_back({{"name", file_name(static_cast<std::int64_t>(r))}, {"bytes", sizes[r][0]}});
            for (const auto& one : state) {
                index["tensors"][one.name] = {{"shape", one.tensor.sizes().vec()}, {"type", to_string(*array_type_of(one.tensor.scalar_type()))}};
            }
            write_file_atomically(folder / "index.json", with_hash(index).dump(1) + "\n");
            // From here on the new state counts; what is left of others is in nobody's way.
            std::error_code ignored;
            for (const auto& entry : fs::directory_iterator(folder, ignored)) {
                const auto name = entry.path().filename().string();
                if (name.starts_with(kPartPrefix) && !name.starts_with(prefix)) fs::remove(entry.path(), ignored);
            }
        },
        "save_sharded");
}

std::map<std::string, std::string> load_sharded(const fs::path& folder, const std::vector<NamedState>& state, const DeviceMesh& mesh)
{
    const at::NoGradGuard no_grad;
    check_state(state, mesh);
    std::vector<at::Tensor> tensors;
    for (const auto& one : state) tensors.push_back(one.tensor);
    reduce_partials(tensors);
    std::map<std::string, std::string> metadata;
    agree(
        mesh,
        [&] {
            const auto index = read_index(folder);
            std::vector<std::pair<fs::path, NamedArrays>> parts;
            for (const auto& file : index.at("files")) {
                const auto name = file.at("name").get<std::string>();
                if (!name.starts_with(kPartPrefix) || name.find_first_of("/\\") != std::string::npos) {  // an index must not lead out of its folder
                    throw IoError((folder / "index.json").string() + " names '" + name +
                                  "', expected a file part-...safetensors of this folder. Save the state again.");
                }
                const auto path = folder / name;
                std::error_code error;
                const auto size = fs::file_size(path, error);
                if (error || file.at("bytes") != size) {
                    throw IoError(path.string() + (error ? " is missing." : " has another size than index.json says.") + " Save the state again.");
                }
                parts.emplace_back(path, read_safetensors(path));
            }
            for (const auto& one : state) {
                const auto& saved = index.at("tensors");
                if (!saved.contains(one.name)) throw IoError(folder.string() + " has no '" + one.name + "'.");
                std::ostringstream found;
                found << saved[one.name].at("type").get<std::string>() << ' ' << at::IntArrayRef(saved[one.name].at("shape").get<std::vector<std::int64_t>>());
                std::ostringstream expected;
                expected << to_string(*array_type_of(one.tensor.scalar_type())) << ' ' << one.tensor.sizes();
                if (found.str() != expected.str()) {
                    throw IoError(folder.string() + ": '" + one.name + "' is " + found.str() + ", expected " + expected.str() + ".");
                }
                const auto region = region_of(one);
                const auto local = local_of(one.tensor).detach();
                std::int64_t copied = 0;
                for (const auto& [path, part] : parts) {
                    const auto* array = part.find(one.name);
                    if (!array) continue;
                    const auto saved_region = region_in(part, *array, one.tensor.sizes(), path);
                    if (array->type != *array_type_of(one.tensor.scalar_type()))
                        throw IoError(path.string() + ": '" + one.name + "' is of another type than index.json says.");
                    copied += copy_common(local, region, view_of(*array), saved_region);
                }
                if (copied != local.numel()) {
                    throw IoError(folder.string() + ": the files hold " + std::to_string(copied) + " of the " + std::to_string(local.numel()) + " values of '" +
                                  one.name + "' that this rank needs.");
                }
            }
            metadata = index.at("metadata").get<std::map<std::string, std::string>>();
        },
        "load_sharded");
    return metadata;
}

}  // namespace meshard
