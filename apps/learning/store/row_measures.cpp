// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/store/row_measures.h"

#include "io/shards/subdomain_io.h"
#include "partition/mesh/cell_geometry.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

namespace meshard {
namespace {

/// Returns the sizes of a mesh's cells, with 0 for cells of another dimension.
std::vector<double> sizes_of(const Mesh& mesh, int dimension)
{
    std::vector<double> sizes;
    if (dimension == 3) {
        sizes = cell_measures(mesh).sizes;
        for (std::size_t cell = 0; cell < sizes.size(); ++cell) {
            if (cell_dimension(mesh.cell_types[cell]) != 3) sizes[cell] = 0;
        }
    } else {
        require_single_polygons(mesh);
        for (const auto& vector : area_vectors(mesh)) sizes.push_back(std::hypot(vector[0], vector[1], vector[2]));
    }
    return sizes;
}

/// Collects the shares that points of several parts have of cells, and adds them in the order of the cells' ids, so
/// that each sum equals that of the whole mesh to the last bit.
class SharedPoints {
public:
    void expect(std::int64_t point) { shares_.try_emplace(point); }
    bool has(std::int64_t point) const { return shares_.contains(point); }
    void add(std::int64_t point, std::int64_t cell, double share) { shares_.at(point).emplace_back(cell, share); }

    void put_into(std::vector<double>& measures)
    {
        for (auto& [point, shares] : shares_) {
            std::ranges::sort(shares);
            for (const auto& [cell, share] : shares) measures[point] += share;
        }
    }

private:
    std::map<std::int64_t, std::vector<std::pair<std::int64_t, double>>> shares_;
};

}  // namespace

const char* name_of(MeasureKind kind)
{
    constexpr std::array names{"none", "areas", "volumes"};
    return names[static_cast<std::size_t>(kind)];
}

RowMeasures row_measures(const std::filesystem::path& shards, const Manifest& manifest, bool on_cells)
{
    int dimension = 0;
    SharedPoints shared;
    for (std::int32_t part = 0; part < manifest.num_parts(); ++part) {
        const auto subdomain = load_subdomain(shards, manifest, part);
        for (const auto type : subdomain.mesh.cell_types) dimension = std::max(dimension, cell_dimension(type));
        if (on_cells) continue;
        for (std::size_t row = subdomain.points.owned().size(); row < subdomain.points.global_ids.size(); ++row)
            shared.expect(subdomain.points.global_ids[row]);
    }
    if (dimension < 2) return {};

    std::vector<double> of_cells(manifest.num_cells),
        of_points(on_cells ? 0 : static_cast<std::size_t>(manifest.num_points));
    for (std::int32_t part = 0; part < manifest.num_parts(); ++part) {
        // The first loop checked the pieces.
        const auto subdomain = load_subdomain(shards, manifest, part, PieceCheck::Trust);
        const auto sizes = sizes_of(subdomain.mesh, dimension);
        const auto cells = subdomain.cells.owned();
        for (std::size_t i = 0; i < cells.size(); ++i) {
            of_cells[cells[i]] = sizes[i];
            if (on_cells) continue;
            const auto corners = subdomain.mesh.cells.row(static_cast<std::int64_t>(i));
            for (const auto corner : corners) {
                const auto point = subdomain.points.global_ids[corner];
                const auto share = sizes[i] / static_cast<double>(corners.size());
                if (shared.has(point))
                    shared.add(point, cells[i], share);
                else
                    of_points[point] += share;
            }
        }
    }
    shared.put_into(of_points);

    RowMeasures measures{.kind = dimension == 3 ? MeasureKind::Volumes : MeasureKind::Areas, .mean = 0, .values = {}};
    double total = 0;
    for (const auto size : of_cells) total += size;
    const auto& of_rows = on_cells ? of_cells : of_points;
    measures.mean = total / static_cast<double>(of_rows.size());
    if (!(total > 0) || !std::isfinite(total)) return measures;
    measures.values.reserve(of_rows.size());
    for (const auto measure : of_rows) measures.values.push_back(static_cast<float>(measure / measures.mean));
    return measures;
}

}  // namespace meshard
