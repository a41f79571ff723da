// SPDX-License-Identifier: Apache-2.0
#include "apps/fields/series_summary.h"

#include "io/mesh_io.h"

#include <algorithm>
#include <utility>

namespace meshard {

namespace {

bool have_same_cells(const Mesh& a, const Mesh& b)
{
    return a.cells == b.cells && a.cell_types == b.cell_types && a.face_streams == b.face_streams;
}

}  // namespace

SeriesTimes summarize(std::span<const SeriesState> states)
{
    SeriesTimes times{states.front().time, states.back().time};
    for (std::size_t i = 1; i < states.size(); ++i) {
        const double step = states[i].time - states[i - 1].time;
        times.least_step = i == 1 ? step : std::min(times.least_step, step);
        times.most_step = std::max(times.most_step, step);
    }
    return times;
}

SeriesChanges compare_states(std::span<const SeriesState> states, const std::function<void(std::size_t)>& progress)
{
    SeriesChanges changes;
    std::vector<DataArray> earliest;  // of each of `changes.arrays`
    Mesh first;
    const auto compare = [&](const std::vector<DataArray>& arrays, const char* association) {
        for (const DataArray& array : arrays) {
            const auto found = std::ranges::find_if(changes.arrays, [&](const ArrayOverTime& known) {
                return known.name == array.name() && known.association == association;
            });
            if (found == changes.arrays.end()) {
                changes.arrays.push_back({association, array.name(), 1});
                earliest.push_back(array);
                continue;
            }
            ++found->num_states;
            found->changes = found->changes || !earliest[found - changes.arrays.begin()].same_bits(array);
        }
    };
    for (std::size_t i = 0; i < states.size(); ++i) {
        ReadOptions options;
        options.time = states[i].time_in_file;
        Mesh mesh = read_mesh(states[i].file, options);
        compare(mesh.point_data, "point");
        compare(mesh.cell_data, "cell");
        compare(mesh.field_data, "field");
        if (i == 0) {
            for (auto* arrays : {&mesh.point_data, &mesh.cell_data, &mesh.field_data}) arrays->clear();
            first = std::move(mesh);
        } else {
            changes.points = changes.points || !first.points.same_bits(mesh.points);
            changes.cells = changes.cells || !have_same_cells(first, mesh);
        }
        progress(i + 1);
    }
    return changes;
}

}  // namespace meshard
