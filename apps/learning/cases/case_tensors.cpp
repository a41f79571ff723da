// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/case_tensors.h"

#include "apps/learning/cases/categories.h"
#include "apps/learning/cases/computed_inputs.h"
#include "io/shards/subdomain_io.h"
#include "partition/error.h"
#include "partition/mesh/surface_geometry.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

namespace meshard {
namespace {

const char* group_of(const DataConfig& data)
{
    return data.on_cells ? "cell" : "point";
}

using RowIds = std::span<const std::int64_t>;

/// Converts the first rows of an array to float32: (rows, components).
at::Tensor rows_of(const DataArray& array, RowIds rows, const std::string& where)
{
    const auto num_rows = std::ssize(rows);
    const auto num_components = array.num_components();
    auto tensor = torch::empty({num_rows, num_components}, torch::kFloat32);
    auto* out = tensor.data_ptr<float>();
    with_scalar_type(array.type(), [&]<class T>() {
        const auto values = array.values<T>();
        for (std::int64_t i = 0; i < num_rows * num_components; ++i) {
            out[i] = static_cast<float>(values[i]);
            if (std::isfinite(out[i])) continue;
            throw InvalidInput("{}: the array '{}' is {} in row {}. Repair the case or leave it out.", where,
                               array.name(), std::isnan(out[i]) ? "NaN" : "infinite", rows[i / num_components]);
        }
    });
    return tensor;
}

at::Tensor unit_normals(const Mesh& mesh, RowIds rows, const DataConfig& data, const std::string& where)
{
    if (const auto* array = find_array(arrays_at(mesh, data.on_cells), data.normals)) {
        if (array->num_components() != 3)
            throw InvalidInput("{}: the array '{}' has {} components; normals have 3.", where, data.normals,
                               array->num_components());
        return rows_of(*array, rows, where);
    }
    if (!data.on_cells) return rows_of(require_array(mesh.point_data, kPointNormals, where, "point"), rows, where);
    const auto has_polygons = std::ranges::all_of(mesh.cell_types, [](auto type) { return cell_dimension(type) == 2; });
    if (!has_polygons) {
        throw InvalidInput("{} has no cell array '{}', and normals can only be computed of polygons. "
                           "Name the array with data.normals, or set data.inputs=[points].",
                           where, data.normals);
    }
    const auto areas = area_vectors(mesh);
    const auto num_rows = std::ssize(rows);
    auto normals = torch::zeros({num_rows, 3}, torch::kFloat32);
    auto* out = normals.data_ptr<float>();
    for (std::int64_t row = 0; row < num_rows; ++row) {
        const auto size = std::hypot(areas[row][0], areas[row][1], areas[row][2]);
        if (size == 0) continue;  // a polygon without area has no normal
        for (int c = 0; c < 3; ++c) out[3 * row + c] = static_cast<float>(areas[row][c] / size);
    }
    return normals;
}

void require_one_length(const CaseFrame& frame, const std::string& where, const std::string& input)
{
    if (frame.lengths[0] == frame.lengths[1] && frame.lengths[0] == frame.lengths[2]) return;
    throw InvalidInput(
        "{}: data.inputs has {}, and the points are divided by three different lengths. Give one length.", where,
        input);
}

/// Computes heights over the ground, divided by the case's length: (rows, 1).
at::Tensor heights(const Mesh& mesh, RowIds rows, const DataConfig& data, const CaseFrame& frame,
                   const std::string& where)
{
    require_one_length(frame, where, "height, a distance");
    const auto places = row_places(mesh, rows, data.on_cells, where);
    auto tensor = torch::empty({std::ssize(rows), 1}, torch::kFloat32);
    auto* out = tensor.data_ptr<float>();
    for (std::int64_t i = 0; i < tensor.size(0); ++i) {
        double along = 0;
        for (int c = 0; c < 3; ++c) along += frame.up[c] * places[3 * i + c];
        out[i] = static_cast<float>((along - frame.ground) / frame.lengths[0]);
    }
    return tensor;
}

/// Computes places in the case's box, -1 to 1 along each axis, 0 along an axis without extent: (rows, 3).
at::Tensor places_in_box(const Mesh& mesh, RowIds rows, const DataConfig& data, const CaseFrame& frame,
                         const std::string& where)
{
    const auto places = row_places(mesh, rows, data.on_cells, where);
    auto tensor = torch::empty({std::ssize(rows), 3}, torch::kFloat32);
    auto* out = tensor.data_ptr<float>();
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
        const auto low = frame.bounds[2 * (i % 3)], high = frame.bounds[2 * (i % 3) + 1];
        out[i] = high > low ? static_cast<float>((2 * places[i] - low - high) / (high - low)) : 0.0F;
    }
    return tensor;
}

/// Reads distances from the mesh's array and divides them by the case's length: (rows, 1).
at::Tensor distances(const Mesh& mesh, RowIds rows, const DataConfig& data, const CaseFrame& frame,
                     const std::string& where)
{
    require_one_length(frame, where, "sdf, a distance");
    const auto& array = require_array(mesh, data.on_cells, data.distances.empty() ? kDistances : data.distances, where);
    if (array.num_components() != 1)
        throw InvalidInput("{}: the array '{}' has {} components; distances have 1.", where, array.name(),
                           array.num_components());
    auto tensor = torch::empty({std::ssize(rows), 1}, torch::kFloat32);
    auto* out = tensor.data_ptr<float>();
    for (std::int64_t i = 0; i < tensor.size(0); ++i) {
        out[i] = static_cast<float>(array.value(i) / frame.lengths[0]);
        if (!std::isfinite(out[i]))
            throw InvalidInput("{}: the array '{}' is not finite in row {}. Repair the case or leave it out.", where,
                               array.name(), rows[i]);
    }
    return tensor;
}

/// Parses numbers separated by commas, with spaces before them; returns none if the text is anything else.
std::vector<double> numbers_in(const std::string& text)
{
    std::vector<double> numbers;
    const char* at = text.data();
    const char* const last = at + text.size();
    while (true) {
        while (at != last && *at == ' ') ++at;
        if (last - at > 1 && at[0] == '+' && at[1] != '-') ++at;
        double number = 0;
        const auto [end, error] = std::from_chars(at, last, number);
        if (error != std::errc()) return {};
        numbers.push_back(number);
        if (end == last) return numbers;
        if (*end != ',') return {};
        at = end + 1;
    }
}

/// Lists the defined tensors of a case.
std::vector<at::Tensor*> tensors_of(CaseTensors& example)
{
    std::vector<at::Tensor*> tensors{&example.inputs.embedding, &example.inputs.positions, &example.inputs.constants,
                                     &example.inputs.time,      &example.target,           &example.measures};
    std::erase_if(tensors, [](const at::Tensor* tensor) { return !tensor->defined(); });
    return tensors;
}

/// Applies `move` to this rank's part of each tensor.
template <class Move>
CaseTensors moved(CaseTensors example, const Move& move)
{
    for (auto* tensor : tensors_of(example))
        *tensor = is_sharded(*tensor) ? from_local(move(to_local(*tensor)), spec_of(*tensor)) : move(*tensor);
    return example;
}

}  // namespace

at::Tensor counted_rows(const at::Tensor& rows)
{
    return rows.select(1, 0).isnan().logical_not();
}

CaseTensors on_device(const CaseTensors& example, const at::Device& device)
{
    if (example.target.device() == device) return example;
    return moved(example, [&](const at::Tensor& tensor) { return tensor.to(device, /*non_blocking=*/true); });
}

CaseTensors page_locked(const CaseTensors& example)
{
    return moved(example, [](const at::Tensor& tensor) { return tensor.pin_memory(); });
}

CaseFrame case_frame(const FrameConfig& config, const std::array<double, 6>& bounds, const CaseSource& source)
{
    CaseFrame frame;
    frame.bounds = bounds;
    if (config.center == "bounds") {
        for (int c = 0; c < 3; ++c) frame.center[c] = 0.5 * (bounds[2 * c] + bounds[2 * c + 1]);
    } else if (const auto place = numbers_in(config.center); place.size() == 3) {
        std::ranges::copy(place, frame.center.begin());
    } else if (config.center != "none") {
        throw InvalidInput("the center is '{}'; expected bounds, none, or a place x,y,z.", config.center);
    }
    const auto& text = config.length;
    const auto numbers = numbers_in(text);
    if (text == "bounds") {
        frame.lengths.fill(std::max({bounds[1] - bounds[0], bounds[3] - bounds[2], bounds[5] - bounds[4]}));
    } else if (numbers.size() == 3) {
        std::ranges::copy(numbers, frame.lengths.begin());
    } else if (text != "none") {
        frame.lengths.fill(numbers.size() == 1 ? numbers[0] : source.number(text));
    }
    const auto size = std::hypot(config.up[0], config.up[1], config.up[2]);
    for (int c = 0; c < 3; ++c) {
        frame.up[c] = config.up[c] / size;
        // The box's corner that is lowest along `up` gives the ground.
        frame.ground += std::min(frame.up[c] * bounds[2 * c], frame.up[c] * bounds[2 * c + 1]);
    }
    if (const auto ground = numbers_in(config.ground); ground.size() == 1) frame.ground = ground[0];
    for (const auto length : frame.lengths) {
        if (length > 0 && std::isfinite(length)) continue;
        throw InvalidInput("case {}: data.length is {}; the points are divided by it.", source.id, length);
    }
    return frame;
}

std::array<double, 6> frame_bounds(const Manifest& manifest)
{
    auto bounds = manifest.bounds;
    const auto& options = manifest.info.options;
    const auto found = std::ranges::find(options, kFrameBounds, &NamedTexts::value_type::first);
    if (found == options.end()) return bounds;
    std::istringstream text(found->second);
    for (auto& bound : bounds) text >> bound;
    return bounds;
}

std::array<double, 6> point_bounds(const Mesh& mesh)
{
    std::array<double, 6> bounds{};
    for (std::int64_t i = 0; i < mesh.num_points(); ++i) {
        for (int c = 0; c < 3; ++c) {
            const auto x = mesh.points.value(i, c);
            bounds[2 * c] = i == 0 ? x : std::min(bounds[2 * c], x);
            bounds[2 * c + 1] = i == 0 ? x : std::max(bounds[2 * c + 1], x);
        }
    }
    return bounds;
}

at::Tensor point_inputs(const Mesh& mesh, RowIds rows, const DataConfig& data, const CaseFrame& frame,
                        const std::string& where)
{
    const auto num_rows = std::ssize(rows);
    std::vector<at::Tensor> inputs;
    for (const auto& name : data.inputs) {
        if (name == "points") {
            const auto absolute = row_places(mesh, rows, data.on_cells, where);
            auto& places = inputs.emplace_back(torch::empty({num_rows, 3}, torch::kFloat32));
            auto* out = places.data_ptr<float>();
            for (std::int64_t i = 0; i < 3 * num_rows; ++i)
                out[i] = static_cast<float>((absolute[i] - frame.center[i % 3]) / frame.lengths[i % 3]);
        } else if (name == "normals") {
            inputs.push_back(unit_normals(mesh, rows, data, where));
        } else if (name == "sdf") {
            inputs.push_back(distances(mesh, rows, data, frame, where));
        } else if (name == "wall_direction") {
            require_one_length(frame, where, "wall_direction, a direction");
            inputs.push_back(rows_of(require_array(mesh, data.on_cells, kDirections, where), rows, where));
        } else if (name == "height") {
            inputs.push_back(heights(mesh, rows, data, frame, where));
        } else if (name == "box") {
            inputs.push_back(places_in_box(mesh, rows, data, frame, where));
        } else {
            inputs.push_back(rows_of(require_array(mesh, data.on_cells, kAreas, where), rows, where));
        }
    }
    if (data.series.is_on) {
        inputs.push_back(rows_of(require_array(mesh, data.on_cells, kTold, where), rows, where));
        return torch::cat(inputs, 1);
    }
    for (std::size_t i = 0; i < data.categories.names.size(); ++i) {
        const auto& array = require_array(mesh, data.on_cells, data.categories.names[i], where);
        inputs.push_back(rows_of(array, rows, where));
        require_categories(
            array, data.categories, i, where, [&](std::int64_t row) { return fmt::format("row {}", rows[row]); },
            [&](std::int64_t row) { return row < num_rows; });
    }
    return torch::cat(inputs, 1);
}

PointInputs sharded_inputs(const at::Tensor& rows, RowIds ids, const std::shared_ptr<const DeviceMesh>& device_mesh)
{
    IndexMap map{.num_global = 0,
                 .num_owned = static_cast<std::int32_t>(ids.size()),
                 .global_ids = {ids.begin(), ids.end()},
                 .ghost_owners = {}};
    for (const auto count : device_mesh->group(device_mesh->axis("domain")).all_gather_integers(rows.size(0)))
        map.num_global += count;
    return sharded_inputs(rows, shard_spec(std::make_shared<const IndexMap>(std::move(map)), device_mesh, 1));
}

PointInputs sharded_inputs(const at::Tensor& rows, const SpecPtr& spec)
{
    const auto batch = rows.unsqueeze(0);
    auto places = batch.narrow(-1, 0, 3);
    if (!places.is_contiguous())  // of page-locked memory another such, which devices copy beside their work
        places = at::empty(places.sizes(), places.options().pinned_memory(rows.is_pinned())).copy_(places);
    return {.embedding = from_local(batch, spec), .positions = from_local(places, spec), .constants = {}, .time = {}};
}

PointInputs thinned_inputs(const PointInputs& inputs, std::int64_t most)
{
    const auto spec = spec_of(inputs.positions);
    const auto& ids = spec->index_map->global_ids;
    const auto stride = (spec->index_map->num_global + most - 1) / most;
    if (stride <= 1) return inputs;
    IndexMap map{.num_global = (spec->index_map->num_global + stride - 1) / stride,
                 .num_owned = 0,
                 .global_ids = {},
                 .ghost_owners = {}};
    std::vector<std::int64_t> rows;
    for (std::size_t row = 0; row < ids.size(); ++row) {
        if (ids[row] % stride != 0) continue;
        rows.push_back(static_cast<std::int64_t>(row));
        map.global_ids.push_back(ids[row] / stride);
    }
    map.num_owned = static_cast<std::int32_t>(rows.size());
    const auto thinned = shard_spec(std::make_shared<const IndexMap>(std::move(map)), spec->device_mesh, 1);
    const auto index = torch::tensor(rows, torch::kLong).to(to_local(inputs.positions).device());
    auto result = inputs;
    for (auto* whole : {&result.embedding, &result.positions})
        *whole = from_local(to_local(*whole).index_select(1, index), thinned);
    return result;
}

void add_case_constants(PointInputs& inputs, const DataConfig& data, const CaseSource& source)
{
    if (!data.constants.empty()) {
        std::vector<float> values;
        for (const auto& column : data.constants) values.push_back(static_cast<float>(source.number(column)));
        inputs.constants = torch::tensor(values).unsqueeze(0);
    }
    if (!data.time.empty()) inputs.time = torch::tensor({static_cast<float>(source.number(data.time))});
}

at::Tensor float_rows(const DataArray& array)
{
    const auto values = array.values<float>();
    return at::from_blob(const_cast<float*>(values.data()), {array.num_rows(), array.num_components()}, at::kFloat)
        .clone();
}

at::Tensor field_values(const Mesh& mesh, RowIds rows, const DataConfig& data, const std::string& where)
{
    std::vector<at::Tensor> fields;
    for (const auto& field : data.fields) {
        fields.push_back(rows_of(require_array(mesh, data.on_cells, field.from, where), rows, where));
    }
    return torch::cat(fields, 1);
}

std::vector<std::int32_t> part_runs(const Manifest& manifest, bool on_cells, std::int64_t num_ranks)
{
    std::vector<std::int64_t> rows;
    for (const auto& part : manifest.parts) rows.push_back(on_cells ? part.num_owned_cells : part.num_owned_points);
    return part_runs(rows, Shares(num_ranks, 1));
}

std::vector<std::int32_t> part_runs(std::span<const std::int64_t> rows_of_parts, const Shares& shares)
{
    const auto num_ranks = std::ssize(shares);
    const auto whole = std::accumulate(shares.begin(), shares.end(), 0.0);
    const auto num_parts = static_cast<std::int32_t>(rows_of_parts.size());
    std::vector<std::int64_t> ends;  // number of rows up to the end of each part
    std::int64_t total = 0;
    for (const auto rows : rows_of_parts) ends.push_back(total += rows);
    std::vector<std::int32_t> firsts(num_ranks + 1, num_parts);
    firsts[0] = 0;
    double before = 0;  // shares of the ranks before
    for (std::int64_t rank = 1; rank < num_ranks; ++rank) {
        // A run ends at the boundary that is nearest to its share, but each rank gets a part if there are enough.
        before += shares[rank - 1];
        const auto share = static_cast<std::int64_t>(static_cast<double>(total) * before / whole);
        auto first = firsts[rank - 1];
        const auto spare = static_cast<std::int32_t>(num_ranks - rank);
        if (num_parts >= num_ranks) ++first;
        while (first < num_parts - (num_parts >= num_ranks ? spare : 0) &&
               std::abs(ends[first] - share) < std::abs((first == 0 ? 0 : ends[first - 1]) - share)) {
            ++first;
        }
        firsts[rank] = first;
    }
    return firsts;
}

std::vector<std::int64_t> field_channels(const Manifest& manifest, const std::filesystem::path& shards,
                                         const DataConfig& data, const std::string& where)
{
    std::vector<std::int64_t> channels;
    for (const auto& field : data.fields) {
        const auto found = std::ranges::find_if(manifest.arrays, [&](const auto& array) {
            return array.name == field.from && array.group == group_of(data);
        });
        if (found == manifest.arrays.end()) {
            const auto subdomain = load_subdomain(shards, manifest, 0);
            // This throws and names the nearest array.
            require_array(subdomain.mesh, data.on_cells, field.from, where);
            throw InvalidInput("{} has no {} array '{}'.", where, group_of(data), field.from);
        }
        channels.push_back(found->num_components);
    }
    return channels;
}

}  // namespace meshard
