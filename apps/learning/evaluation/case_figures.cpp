// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/case_figures.h"

#include "apps/learning/cases/run_step.h"
#include "apps/learning/evaluation/case_sums.h"
#include "io/bytes/atomic_file.h"
#include "io/bytes/content_hash.h"
#include "io/shards/manifest.h"
#include "io/shards/subdomain_io.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/mesh/vector_algebra.h"

#include <nlohmann/json.hpp>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>

namespace meshard {
namespace {

/// Returns the axis nearest to a direction.
int nearest_axis(const Vector3& direction)
{
    int nearest = 0;
    for (int c = 1; c < 3; ++c) {
        if (std::abs(direction[c]) > std::abs(direction[nearest])) nearest = c;
    }
    return nearest;
}

constexpr int kCaseNumbers = 20 + ShapeSums::kNumbers;  // sums of a case besides those of its channels
constexpr int kBounds = 6;
constexpr int kKeptVersion = 3;  // to be raised by a change that gives the same case other figures

std::array<double*, kCaseNumbers> summed_numbers(CaseFigures& figures, std::array<double, 3>& counts)
{
    std::array<double*, kCaseNumbers> numbers{};
    std::size_t next = 0;
    auto& forces = figures.forces;
    for (auto* vector : {&forces.true_pressure, &forces.true_shear, &forces.area_vector, &forces.place}) {
        for (auto& number : *vector) numbers[next++] = &number;
    }
    for (auto* number :
         {&forces.outward, &forces.area, &figures.shear_size, &figures.normals_along, &figures.normals_length})
        numbers[next++] = number;
    for (auto& count : counts) numbers[next++] = &count;
    for (auto& number : figures.shape.numbers) numbers[next++] = &number;
    return numbers;
}

/// Returns all numbers of a case in one row: sums, bounds, then sum, squares, low and high of each channel.
std::vector<double> numbers_of(CaseFigures figures)
{
    std::array<double, 3> counts{static_cast<double>(figures.num_rows),
                                 static_cast<double>(figures.num_cells_without_area), figures.is_surface ? 1.0 : 0.0};
    std::vector<double> numbers;
    for (const auto* number : summed_numbers(figures, counts)) numbers.push_back(*number);
    append(numbers, figures.bounds);
    for (const auto& channel : figures.channels)
        numbers.insert(numbers.end(), {channel.sum, channel.squares, channel.low, channel.high});
    return numbers;
}

CaseFigures figures_of(std::span<const double> numbers)
{
    CaseFigures figures;
    std::array<double, 3> counts{};
    const auto sums = summed_numbers(figures, counts);
    for (int k = 0; k < kCaseNumbers; ++k) *sums[k] = numbers[k];
    figures.num_rows = static_cast<std::int64_t>(counts[0]);
    figures.num_cells_without_area = static_cast<std::int64_t>(counts[1]);
    figures.is_surface = counts[2] > 0;
    std::ranges::copy(numbers.subspan(kCaseNumbers, kBounds), figures.bounds.begin());
    for (std::size_t at = kCaseNumbers + kBounds; at < numbers.size(); at += 4)
        figures.channels.push_back({numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]});
    return figures;
}

std::filesystem::path kept_file(const std::filesystem::path& stored)
{
    return stored / "figures.json";
}

/// Hashes the folder's name too, so that a file copied from another case is not accepted.
std::string hash_of(const nlohmann::json& numbers, const std::filesystem::path& stored)
{
    return hash_text(xxh64_of_text(stored.filename().string() + " " + numbers.dump()));
}

/// Reads the numbers of a case's figures.json; nothing if the file is missing or damaged.
std::optional<std::vector<double>> read_kept(const std::filesystem::path& stored, std::size_t num_numbers)
{
    std::ifstream file(kept_file(stored), std::ios::binary);
    if (!file) return {};
    const auto json = nlohmann::json::parse(file, nullptr, false);
    if (!json.is_object() || json.value("version", 0) != kKeptVersion || !json.contains("numbers")) return {};
    const auto& numbers = json["numbers"];
    const auto is_number = [](const auto& one) { return one.is_number(); };
    if (!numbers.is_array() || numbers.size() != num_numbers || !std::ranges::all_of(numbers, is_number) ||
        json.value("hash", "") != hash_of(numbers, stored))
        return {};
    return numbers.get<std::vector<double>>();
}

void keep(const std::filesystem::path& stored, const std::vector<double>& numbers)
{
    // A case without rows has no lowest value, and is not kept.
    if (!std::ranges::all_of(numbers, [](double one) { return std::isfinite(one); })) return;
    const nlohmann::json list = numbers;
    const nlohmann::json json{{"format", "meshard case figures"},
                              {"version", kKeptVersion},
                              {"numbers", list},
                              {"hash", hash_of(list, stored)}};
    try {
        write_file_atomically(kept_file(stored), json.dump() + "\n");
    } catch (const IoError&) {
        // The store is read-only: the figures are computed again next time.
    }
}

/// Gives the values of a field at the cells of a part: those of the cells, or the means over their corners.
class ValuesOfCells {
public:
    ValuesOfCells(const Mesh& mesh, const DataArray& array, bool on_cells)
        : mesh_(mesh), values_(array.to_doubles()), width_(array.num_components()), on_cells_(on_cells)
    {
    }

    double operator()(std::int64_t cell, std::int64_t component) const
    {
        if (on_cells_) return values_[cell * width_ + component];
        const auto corners = mesh_.cells.row(cell);
        double sum = 0;
        for (const auto corner : corners) sum += values_[corner * width_ + component];
        return sum / static_cast<double>(corners.size());
    }

private:
    const Mesh& mesh_;
    std::vector<double> values_;
    std::int64_t width_;
    bool on_cells_;
};

/// Turns what is learnt of each field in a step of a simulation into the state after the step, whose forces count.
void put_states(Mesh& mesh, const DataConfig& data, const std::string& where)
{
    if (!data.series.learns_changes()) return;
    auto& arrays = arrays_at(mesh, data.on_cells);
    const auto& told = require_array(mesh, data.on_cells, kTold, where);
    const auto states = told.to_doubles();
    const auto num_told = static_cast<std::size_t>(told.num_components());
    std::size_t first = 0;  // the last state is told first, the time to the next one last
    for (const auto& field : data.fields) {
        require_array(mesh, data.on_cells, field.from, where);
        auto& learnt = *std::ranges::find(arrays, field.from, &DataArray::name);
        auto values = learnt.to_doubles();
        const auto width = static_cast<std::size_t>(learnt.num_components());
        for (std::size_t i = 0; i < values.size(); ++i) {
            const auto* const row = states.data() + i / width * num_told;
            const auto step = data.series.learnt == LearntState::Rate ? row[num_told - 1] : 1;
            values[i] = row[first + i % width] + step * values[i];
        }
        first += width;
        learnt = DataArray::from(field.from, values, static_cast<std::int32_t>(width));
    }
}

void add_forces_of_part(CaseFigures& figures, const Subdomain& part, const DataConfig& data, const JudgedFields& layout,
                        const std::string& where)
{
    const auto& mesh = part.mesh;
    const auto& arrays = arrays_at(mesh, data.on_cells);
    const auto geometry = row_geometry(mesh, true);
    const auto field_at = [&](std::int64_t channel) -> const FieldConfig& {
        std::size_t field = 0;
        for (; channel >= layout.channels[field]; ++field) channel -= layout.channels[field];
        return layout.fields[field];
    };
    const auto values_of = [&](std::int64_t channel) {
        return ValuesOfCells(mesh, require_array(mesh, data.on_cells, field_at(channel).from, where), data.on_cells);
    };
    std::optional<ValuesOfCells> pressure, shear, normals;
    if (layout.pressure >= 0) pressure.emplace(values_of(layout.pressure));
    if (layout.shear >= 0) shear.emplace(values_of(layout.shear));
    const auto* array = find_array(arrays, data.normals);
    if (array && array->num_components() == 3) normals.emplace(mesh, *array, data.on_cells);

    auto& forces = figures.forces;
    for (std::int64_t cell = 0; cell < part.cells.num_owned; ++cell) {
        const auto* row = geometry.data() + cell * kGeometryColumns;
        const Vector3 vector{row[0], row[1], row[2]}, place{row[3], row[4], row[5]};
        const auto area = row[6];
        figures.num_cells_without_area += !(area > 0);
        figures.shape.add(vector, place);
        forces.area += area;
        forces.outward += dot(place, vector);
        for (int c = 0; c < 3; ++c) {
            forces.area_vector[c] += vector[c];
            forces.place[c] += place[c] * area;
            if (pressure) forces.true_pressure[c] += (*pressure)(cell, 0) * vector[c];
        }
        const auto three = [&](const ValuesOfCells& values) {
            return Vector3{values(cell, 0), values(cell, 1), values(cell, 2)};
        };
        if (shear) {
            const auto tau = three(*shear);
            for (int c = 0; c < 3; ++c) forces.true_shear[c] += tau[c] * area;
            figures.shear_size += norm(tau) * area;
        }
        if (normals) {
            const auto n = three(*normals);
            figures.normals_along += dot(n, vector);
            figures.normals_length += norm(n) * area;
        }
    }
}

void add_channels_of_part(CaseFigures& figures, const Subdomain& part, const DataConfig& data,
                          const JudgedFields& layout, const std::string& where)
{
    const auto num_rows = static_cast<std::int64_t>(data.on_cells ? part.cells.num_owned : part.points.num_owned);
    figures.num_rows += num_rows;
    std::size_t first = 0;
    for (std::size_t f = 0; f < layout.fields.size(); ++f) {
        const auto& array = require_array(part.mesh, data.on_cells, layout.fields[f].from, where);
        const auto values = array.to_doubles();
        const auto width = static_cast<std::size_t>(layout.channels[f]);
        if (array.num_components() != layout.channels[f]) {
            throw InvalidInput("{}: the array '{}' has {} components; expected {}, as in the first training case.",
                               where, array.name(), array.num_components(), width);
        }
        for (std::size_t i = 0; i < static_cast<std::size_t>(num_rows) * width; ++i) {
            auto& channel = figures.channels[first + i % width];
            channel.sum += values[i];
            channel.squares += values[i] * values[i];
            channel.low = std::min(channel.low, values[i]);
            channel.high = std::max(channel.high, values[i]);
        }
        first += width;
    }
}

}  // namespace

void ShapeSums::add(const Vector3& vector, const Vector3& place)
{
    const auto area = norm(vector);
    if (!(area > 0)) return;
    for (int axis = 0; axis < 3; ++axis) {
        const auto seen = std::abs(vector[axis]);
        auto* const to = numbers.data() + (2 * axis + (vector[axis] > 0)) * kOfFacing;
        to[0] += seen;
        for (int c = 0; c < 3; ++c) {
            to[1 + c] += seen * vector[c] / area;
            to[4 + c] += seen * std::abs(vector[c]) / area;
        }
        to[7] += seen * place[axis];
    }
}

ShapeSums shape_sums(const Mesh& mesh, const RankGroup& group)
{
    ShapeSums sums;
    const auto rows = row_geometry(mesh, true);
    for (std::size_t at = 0; at < rows.size(); at += kGeometryColumns) {
        const auto* row = rows.data() + at;
        sums.add({row[0], row[1], row[2]}, {row[3], row[4], row[5]});
    }
    auto all = torch::from_blob(sums.numbers.data(), {ShapeSums::kNumbers}, torch::kDouble).clone();
    group.all_reduce(all);
    std::copy_n(all.const_data_ptr<double>(), ShapeSums::kNumbers, sums.numbers.begin());
    return sums;
}

std::optional<std::vector<double>> shape_numbers(const ShapeSums& shape, const ForceSums& forces,
                                                 const std::array<double, 6>& bounds, const FlowReference& flow)
{
    const auto along = nearest_axis(flow.drag), up = nearest_axis(flow.lift), aside = 3 - along - up;
    if (along == up) return std::nullopt;
    const auto outward = signs_of(forces, flow.drag).normal;  // sign of the area vectors
    const bool flows_up_the_axis = flow.drag[along] > 0;
    const auto sign_of_lift = flow.lift[up] > 0 ? 1.0 : -1.0;
    const auto extent = [&](int axis) { return bounds[2 * axis + 1] - bounds[2 * axis]; };
    const auto height = extent(up);

    std::vector<double> numbers;
    double seen = 0;
    for (const bool is_rear : {false, true}) {
        const bool points_up_the_axis = is_rear == flows_up_the_axis;
        const auto* const sums =
            shape.numbers.data() + (2 * along + (points_up_the_axis == (outward > 0))) * ShapeSums::kOfFacing;
        if (!(sums[0] > 0) || !(height > 0)) return std::nullopt;
        seen += sums[0] / 2;
        const auto end = points_up_the_axis ? bounds[2 * along + 1] : bounds[2 * along];
        numbers.insert(numbers.end(), {sums[4 + along] / sums[0], outward * sign_of_lift * sums[1 + up] / sums[0],
                                       sums[4 + aside] / sums[0], std::abs(end - sums[7] / sums[0]) / height});
    }
    const auto lowest = sign_of_lift > 0 ? bounds[2 * up] : -bounds[2 * up + 1];
    numbers.insert(numbers.end(),
                   {extent(along) / height, extent(aside) / height, lowest / height, forces.area / seen});
    return numbers;
}

std::vector<CaseFigures> case_figures(std::span<const std::filesystem::path> shards, const DataConfig& data,
                                      const JudgedFields& layout, const RankGroup& ranks)
{
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const auto num_channels = layout.num_channels();
    const auto num_cases = std::ssize(shards);
    auto sums = torch::zeros({num_cases, kCaseNumbers + 2 * num_channels}, torch::kDouble);
    // The bounds are -low and high, so that one maximum over the ranks finds both.
    auto bounds = torch::full({num_cases, 2 * num_channels}, -infinity, torch::kDouble);
    std::int64_t turn = 0;
    std::vector<CaseFigures> all(shards.size());
    for (std::int64_t i = 0; i < num_cases; ++i) {
        auto& figures = all[i];
        figures.channels.assign(num_channels, {.low = infinity, .high = -infinity});
        const auto manifest = read_manifest(shards[i]);
        figures.bounds = manifest.bounds;
        const auto where = shards[i].string();
        std::array<double, 3> counts{};  // rows, cells without area, parts with polygons
        for (std::int32_t part = 0; part < manifest.num_parts(); ++part) {
            if (turn++ % ranks.size() != ranks.rank()) continue;
            auto subdomain = load_subdomain(shards[i], manifest, part);
            const auto& types = subdomain.mesh.cell_types;
            counts[2] += std::ranges::any_of(types, [](auto type) { return cell_dimension(type) == 2; }) &&
                         std::ranges::none_of(types, [](auto type) { return cell_dimension(type) == 3; });
            add_channels_of_part(figures, subdomain, data, layout, where);
            if (subdomain.mesh.num_cells() == 0) continue;
            put_states(subdomain.mesh, data, where);
            add_forces_of_part(figures, subdomain, data, layout, where);
        }
        counts[0] = static_cast<double>(figures.num_rows);
        counts[1] = static_cast<double>(figures.num_cells_without_area);
        auto* const row = sums[i].data_ptr<double>();
        auto* const bound = bounds[i].data_ptr<double>();
        const auto numbers = summed_numbers(figures, counts);
        for (int k = 0; k < kCaseNumbers; ++k) row[k] = *numbers[k];
        for (std::int64_t c = 0; c < num_channels; ++c) {
            row[kCaseNumbers + 2 * c] = figures.channels[c].sum;
            row[kCaseNumbers + 2 * c + 1] = figures.channels[c].squares;
            bound[2 * c] = -figures.channels[c].low;
            bound[2 * c + 1] = figures.channels[c].high;
        }
    }
    ranks.all_reduce(sums);
    ranks.all_reduce(bounds, Reduction::Max);
    for (std::int64_t i = 0; i < num_cases; ++i) {
        const auto* row = sums[i].data_ptr<double>();
        const auto* bound = bounds[i].data_ptr<double>();
        std::vector<double> numbers(row, row + kCaseNumbers);
        append(numbers, all[i].bounds);
        for (std::int64_t c = 0; c < num_channels; ++c)
            numbers.insert(numbers.end(),
                           {row[kCaseNumbers + 2 * c], row[kCaseNumbers + 2 * c + 1], -bound[2 * c], bound[2 * c + 1]});
        all[i] = figures_of(numbers);
    }
    return all;
}

std::vector<CaseFigures> kept_case_figures(std::span<const std::filesystem::path> stored,
                                           std::span<const std::filesystem::path> shards, const DataConfig& data,
                                           const JudgedFields& layout, const RankGroup& ranks)
{
    const auto num_cases = std::ssize(stored), num_numbers = kCaseNumbers + kBounds + 4 * layout.num_channels();
    // Ranks share out the reading and agree on what was found, since a file may appear between two reads. The first
    // number of a row says whether the case was found.
    auto found = torch::zeros({num_cases, 1 + num_numbers}, torch::kDouble);
    const auto row_of = [&](std::int64_t i) {
        return std::span(found.data_ptr<double>() + i * (1 + num_numbers), static_cast<std::size_t>(1 + num_numbers));
    };
    for (std::int64_t i = ranks.rank(); i < num_cases; i += ranks.size()) {
        const auto numbers = read_kept(stored[i], static_cast<std::size_t>(num_numbers));
        if (!numbers) continue;
        row_of(i)[0] = 1;
        std::ranges::copy(*numbers, row_of(i).begin() + 1);
    }
    ranks.all_reduce(found);

    std::vector<std::filesystem::path> missing;
    for (std::int64_t i = 0; i < num_cases; ++i) {
        if (row_of(i)[0] == 0) missing.push_back(shards[i]);
    }
    const auto computed = case_figures(missing, data, layout, ranks);
    std::vector<CaseFigures> all;
    std::size_t next = 0;
    for (std::int64_t i = 0; i < num_cases; ++i) {
        if (row_of(i)[0] != 0) {
            all.push_back(figures_of(row_of(i).subspan(1)));
            continue;
        }
        all.push_back(computed[next++]);
        if (i % ranks.size() == ranks.rank()) keep(stored[i], numbers_of(all.back()));
    }
    return all;
}

}  // namespace meshard
