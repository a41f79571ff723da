// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/case_sums.h"

#include "apps/learning/cases/case_tensors.h"
#include "io/shards/manifest.h"
#include "io/shards/subdomain_io.h"
#include "partition/mesh/cell_geometry.h"
#include "partition/mesh/surface_geometry.h"
#include "partition/mesh/vector_algebra.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace meshard {
namespace {

constexpr const char* kGeometry = "meshard:geometry";  // array with the rows of `row_geometry`
constexpr std::int64_t kRowsAtOnce = 1 << 18;          // few enough that their copies in double take little memory

/// Area vector, centroid and size of each cell.
struct CellNumbers {
    std::vector<Vector3> vectors, centroids;
    std::vector<double> sizes;
};

CellNumbers cell_numbers(const Mesh& mesh)
{
    const bool has_solids = std::ranges::any_of(mesh.cell_types, [](auto type) { return cell_dimension(type) == 3; });
    if (has_solids) {
        auto measures = cell_measures(mesh);
        for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
            if (cell_dimension(mesh.cell_types[cell]) != 3) measures.sizes[cell] = 0;  // walls have no volume
        }
        return {std::vector<Vector3>(mesh.num_cells()), std::move(measures.centroids), std::move(measures.sizes)};
    }
    require_single_polygons(mesh);
    CellNumbers numbers{area_vectors(mesh), surface_centroids(mesh), {}};
    for (const auto& vector : numbers.vectors) numbers.sizes.push_back(std::hypot(vector[0], vector[1], vector[2]));
    return numbers;
}

std::array<double*, ForceSums::kNumbers> places_of(ForceSums& sums)
{
    std::array<double*, ForceSums::kNumbers> places{};
    std::size_t next = 0;
    for (auto* vector : {&sums.true_pressure, &sums.true_shear, &sums.predicted_pressure, &sums.predicted_shear,
                         &sums.area_vector, &sums.place, &sums.true_pressure_moment, &sums.true_shear_moment,
                         &sums.predicted_pressure_moment, &sums.predicted_shear_moment, &sums.area_moment}) {
        for (auto& number : *vector) places[next++] = &number;
    }
    places[next++] = &sums.outward;
    places[next++] = &sums.area;
    return places;
}

static_assert(sizeof(ChannelSums) == ChannelSums::kNumbers * sizeof(double));
static_assert(sizeof(MagnitudeSums) == 2 * sizeof(double));

/// Returns the sums of each channel over some rows, (C, 12), in the order of `ChannelSums`.
at::Tensor channel_sums(const at::Tensor& y, const at::Tensor& t, const at::Tensor& measure, const at::Tensor& guess)
{
    const auto d = y - t, missed = guess - t;
    const auto weight = measure.defined() ? measure.unsqueeze(1) : torch::zeros({t.size(0), 1}, t.options());
    const auto count = torch::full({t.size(1)}, static_cast<double>(t.size(0)), t.options());
    return torch::stack({count, (d * d).sum(0), d.abs().sum(0), (t * t).sum(0), t.abs().sum(0), t.sum(0),
                         (weight * d * d).sum(0), (weight * t * t).sum(0), (missed * missed).sum(0),
                         missed.abs().sum(0), d.abs().amax(0), t.abs().amax(0)},
                        1);
}

/// Returns the force sums over some rows, (kNumbers), in the order of `places_of`.
at::Tensor force_sums(const at::Tensor& y, const at::Tensor& t, const at::Tensor& geometry, const JudgedFields& layout)
{
    const auto a = geometry.narrow(1, 0, 3), x = geometry.narrow(1, 3, 3);
    const auto x_cross_a = geometry.narrow(1, 7, 3), x_by_area = geometry.narrow(1, 10, 3);
    const auto area = geometry.narrow(1, 13, 1);
    const auto none = torch::zeros({3}, t.options());
    const auto pressure = [&](const at::Tensor& field, const at::Tensor& vectors) {
        return layout.pressure < 0 ? none : (field.narrow(1, layout.pressure, 1) * vectors).sum(0);
    };
    const auto shear = [&](const at::Tensor& field) {
        return layout.shear < 0 ? none : (field.narrow(1, layout.shear, 3) * area).sum(0);
    };
    const auto shear_moment = [&](const at::Tensor& field) {
        return layout.shear < 0 ? none : torch::linalg_cross(x_by_area, field.narrow(1, layout.shear, 3)).sum(0);
    };
    return torch::cat({pressure(t, a), shear(t), pressure(y, a), shear(y), a.sum(0), (x * area).sum(0),
                       pressure(t, x_cross_a), shear_moment(t), pressure(y, x_cross_a), shear_moment(y),
                       x_cross_a.sum(0), (x * a).sum().reshape({1}), area.sum().reshape({1})});
}

/// Calls `f(y, t, geometry)` with pieces of the rows, in double on the host.
template <class F>
void for_pieces(const at::Tensor& prediction, const at::Tensor& truth, const at::Tensor& geometry, F&& f)
{
    for (std::int64_t first = 0; first < truth.size(0); first += kRowsAtOnce) {
        const auto count = std::min(kRowsAtOnce, truth.size(0) - first);
        const auto piece = [&](const at::Tensor& all) {
            return all.defined() ? all.detach().narrow(0, first, count).to(torch::kCPU).to(torch::kDouble)
                                 : at::Tensor();
        };
        f(piece(prediction), piece(truth), piece(geometry));
    }
}

}  // namespace

std::vector<double> row_geometry(const Mesh& mesh, bool on_cells)
{
    std::vector<double> rows((on_cells ? mesh.num_cells() : mesh.num_points()) * kGeometryColumns, 0.0);
    const auto numbers = cell_numbers(mesh);
    const auto add = [&](std::int64_t row, std::int64_t cell, double share) {
        const auto& vector = numbers.vectors[cell];
        const auto& centroid = numbers.centroids[cell];
        const auto moment = cross(centroid, vector);
        auto* const to = rows.data() + row * kGeometryColumns;
        for (int c = 0; c < 3; ++c) {
            to[c] += share * vector[c];
            to[7 + c] += share * moment[c];
            to[10 + c] += share * norm(vector) * centroid[c];
        }
        to[6] += share * numbers.sizes[cell];
        to[13] += share * norm(vector);
    };
    const auto* const ghosts = find_array(mesh.cell_data, "vtkGhostType");
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
        if (on_cells) std::ranges::copy(numbers.centroids[cell], rows.begin() + cell * kGeometryColumns + 3);
        if (ghosts && ghosts->value(cell) != 0) continue;  // a copy of another piece's cell
        if (on_cells) {
            add(cell, cell, 1);
            continue;
        }
        const auto corners = mesh.cells.row(cell);
        for (const auto corner : corners) add(corner, cell, 1 / static_cast<double>(corners.size()));
    }
    for (std::int64_t point = 0; !on_cells && point < mesh.num_points(); ++point) {
        for (int c = 0; c < 3; ++c) rows[point * kGeometryColumns + 3 + c] = mesh.points.value(point, c);
    }
    return rows;
}

void add_geometry(Mesh& mesh, bool on_cells)
{
    arrays_at(mesh, on_cells)
        .push_back(
            DataArray::from(kGeometry, row_geometry(mesh, on_cells), static_cast<std::int32_t>(kGeometryColumns)));
}

at::Tensor take_geometry(Mesh& mesh, std::int64_t num_rows, bool on_cells)
{
    auto& arrays = arrays_at(mesh, on_cells);
    const auto array = std::ranges::find_if(arrays, [](const auto& one) { return one.name() == kGeometry; });
    auto values = array->to_doubles();
    values.resize(num_rows * kGeometryColumns);
    arrays.erase(array);
    return torch::tensor(values, torch::kDouble).reshape({num_rows, kGeometryColumns});
}

at::Tensor shard_geometry(const std::filesystem::path& shards, bool on_cells, std::span<const std::int64_t> ids,
                          std::int32_t first_part)
{
    auto geometry = torch::zeros({std::ssize(ids), kGeometryColumns}, torch::kDouble);
    auto* out = geometry.data_ptr<double>();
    const auto manifest = read_manifest(shards);
    std::size_t num_found = 0;
    for (std::int32_t i = 0; i < manifest.num_parts(); ++i) {
        if (on_cells && num_found == ids.size()) break;  // a point adds up its shares of cells in several parts
        const auto subdomain = load_subdomain(shards, manifest, (first_part + i) % manifest.num_parts());
        const auto& map = on_cells ? subdomain.cells : subdomain.points;
        const auto rows = row_geometry(subdomain.mesh, on_cells);
        const auto num_rows = on_cells ? map.owned().size() : map.global_ids.size();
        for (std::size_t row = 0; row < num_rows; ++row) {
            const auto place = std::ranges::lower_bound(ids, map.global_ids[row]);
            if (place == ids.end() || *place != map.global_ids[row]) continue;
            ++num_found;
            auto* const to = out + (place - ids.begin()) * kGeometryColumns;
            for (std::int64_t c = 0; c < kGeometryColumns; ++c) {
                const auto value = rows[row * kGeometryColumns + c];
                to[c] = c >= 3 && c < 6 ? value : to[c] + value;
            }
        }
    }
    return geometry;
}

at::Tensor volume_geometry(const at::Tensor& volumes)
{
    auto geometry = torch::zeros({volumes.size(0), kGeometryColumns}, torch::kDouble);
    geometry.select(1, 6).copy_(volumes);
    return geometry;
}

JudgedFields::JudgedFields(const std::vector<FieldConfig>& fields_, const std::vector<std::int64_t>& channels_)
    : fields(fields_), channels(channels_)
{
    std::int64_t first = 0;
    for (std::size_t f = 0; f < fields.size(); ++f) {
        const auto& kind = fields[f].kind;
        if (pressure < 0 && channels[f] == 1 && (kind == "kinematic" || kind == "static" || kind == "cp")) {
            pressure = first;
            pressure_kind = kind;
        }
        if (shear < 0 && channels[f] == 3 && kind == "stress") shear = first;
        first += channels[f];
    }
}

std::int64_t JudgedFields::num_channels() const
{
    return std::accumulate(channels.begin(), channels.end(), std::int64_t{0});
}

Metrics CaseSums::metrics(const JudgedFields& layout) const
{
    Metrics all;
    std::size_t first = 0;
    for (std::size_t f = 0; f < layout.fields.size(); ++f) {
        const auto count = static_cast<std::size_t>(layout.channels[f]);
        const auto field =
            named_field_metrics(layout.fields[f].name, std::span(channels).subspan(first, count), magnitudes[f]);
        all.insert(all.end(), field.begin(), field.end());
        first += count;
    }
    return all;
}

std::int64_t CaseSums::num_numbers(const JudgedFields& layout)
{
    return layout.num_channels() * ChannelSums::kNumbers + 2 * std::ssize(layout.fields) + ForceSums::kNumbers;
}

std::vector<double> CaseSums::numbers() const
{
    std::vector<double> all(channels.size() * ChannelSums::kNumbers + magnitudes.size() * 2);
    std::memcpy(all.data(), channels.data(), channels.size() * sizeof(ChannelSums));
    std::memcpy(all.data() + channels.size() * ChannelSums::kNumbers, magnitudes.data(),
                magnitudes.size() * sizeof(MagnitudeSums));
    auto copy = forces;
    for (const auto* number : places_of(copy)) all.push_back(*number);
    return all;
}

CaseSums CaseSums::from_numbers(const JudgedFields& layout, std::span<const double> numbers)
{
    CaseSums sums;
    sums.channels.resize(layout.num_channels());
    sums.magnitudes.resize(layout.fields.size());
    const auto* from = numbers.data();
    std::memcpy(static_cast<void*>(sums.channels.data()), from, sums.channels.size() * sizeof(ChannelSums));
    from += sums.channels.size() * ChannelSums::kNumbers;
    std::memcpy(static_cast<void*>(sums.magnitudes.data()), from, sums.magnitudes.size() * sizeof(MagnitudeSums));
    from += sums.magnitudes.size() * 2;
    for (auto* number : places_of(sums.forces)) *number = *from++;
    return sums;
}

CaseSums case_sums(const at::Tensor& prediction, const at::Tensor& truth, const at::Tensor& geometry,
                   const JudgedFields& layout, const at::Tensor& guess, const RankGroup& group)
{
    const auto num_channels = layout.num_channels();
    auto added = torch::zeros({num_channels * ChannelSums::kSums + 2 * std::ssize(layout.fields) + ForceSums::kNumbers},
                              torch::kDouble);
    auto largest = torch::zeros({num_channels, ChannelSums::kNumbers - ChannelSums::kSums}, torch::kDouble);
    const auto mean = guess.to(torch::kCPU).to(torch::kDouble);
    for_pieces(prediction, truth, geometry, [&](at::Tensor y, at::Tensor t, at::Tensor shape) {
        if (const auto counts = counted_rows(t); !counts.all().item<bool>()) {
            for (auto* rows : {&y, &t, &shape})
                if (rows->defined()) *rows = rows->index({counts});
            if (t.size(0) == 0) return;
        }
        const auto channels = channel_sums(y, t, shape.defined() ? shape.select(1, 6) : at::Tensor(), mean);
        largest = torch::maximum(largest, channels.narrow(1, ChannelSums::kSums, 2));
        std::vector<at::Tensor> all{channels.narrow(1, 0, ChannelSums::kSums).reshape({-1})};
        std::int64_t first = 0;
        for (const auto count : layout.channels) {
            const auto length = t.narrow(1, first, count).norm(2, 1),
                       missed = y.narrow(1, first, count).norm(2, 1) - length;
            all.push_back(torch::stack({(missed * missed).sum(), (length * length).sum()}));
            first += count;
        }
        all.push_back(shape.defined() ? force_sums(y, t, shape, layout)
                                      : torch::zeros({ForceSums::kNumbers}, torch::kDouble));
        added += torch::cat(all);
    });
    group.all_reduce(added);
    group.all_reduce(largest, Reduction::Max);

    const auto rest = num_channels * ChannelSums::kSums;
    const auto numbers =
        torch::cat({torch::cat({added.narrow(0, 0, rest).reshape({num_channels, ChannelSums::kSums}), largest}, 1)
                        .reshape({-1}),
                    added.narrow(0, rest, added.size(0) - rest)})
            .contiguous();
    return CaseSums::from_numbers(layout,
                                  std::span(numbers.data_ptr<double>(), static_cast<std::size_t>(numbers.size(0))));
}

std::vector<std::vector<double>> drag_along_x(const at::Tensor& prediction, const at::Tensor& truth,
                                              const at::Tensor& geometry, const JudgedFields& layout,
                                              const ForceSums& sums, const FlowReference& flow, double low, double high,
                                              std::int64_t num_bins, const RankGroup& group)
{
    const auto signs = signs_of(sums, flow.drag);
    const auto direction =
        torch::tensor(std::vector<double>(flow.drag.begin(), flow.drag.end()), torch::kDouble).unsqueeze(1);
    auto bins = torch::zeros({2, num_bins}, torch::kDouble);
    for_pieces(prediction, truth, geometry, [&](const at::Tensor& y, const at::Tensor& t, const at::Tensor& shape) {
        const auto bin = ((shape.select(1, 3) - low) / std::max(high - low, 1e-300) * static_cast<double>(num_bins))
                             .floor()
                             .clamp(0, num_bins - 1);
        const auto drag = [&](const at::Tensor& field) {
            auto force = torch::zeros({field.size(0)}, torch::kDouble);
            const auto along = shape.narrow(1, 0, 3).matmul(direction).squeeze(1);
            if (layout.pressure >= 0) force -= signs.normal * (field.select(1, layout.pressure) - flow.ambient) * along;
            if (layout.shear >= 0)
                force +=
                    signs.shear * field.narrow(1, layout.shear, 3).matmul(direction).squeeze(1) * shape.select(1, 6);
            return force * flow.scale;
        };
        bins[0].index_add_(0, bin.to(torch::kLong), drag(t));
        bins[1].index_add_(0, bin.to(torch::kLong), drag(y));
    });
    group.all_reduce(bins);
    std::vector<std::vector<double>> numbers;
    for (int k = 0; k < 2; ++k) numbers.emplace_back(bins[k].data_ptr<double>(), bins[k].data_ptr<double>() + num_bins);
    return numbers;
}

}  // namespace meshard
