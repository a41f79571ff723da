// SPDX-License-Identifier: Apache-2.0
#include "sharding/windows/window_weights.h"

#include "partition/cut/row_weights.h"

#include <algorithm>
#include <cmath>

namespace meshard {

namespace {

// The number of points that each cell owns, for this rank's cells by number in the file.
std::vector<std::int32_t> owned_points(const CurveWindows& windows, RankMessages& messages)
{
    constexpr std::int64_t run = std::int64_t{1} << 20;
    std::vector<std::int32_t> counts(windows.cells().size(messages.rank()), 0);
    std::int64_t longest = 0;
    for (int r = 0; r < messages.size(); ++r) longest = std::max(longest, windows.points().size(r));
    const auto first_cells = windows.first_cells();
    for (std::int64_t done = 0; done < longest; done += run) {
        std::vector<std::vector<std::int32_t>> to(messages.size());
        for (auto i = done; i < std::min<std::int64_t>(done + run, std::ssize(first_cells)); ++i)
            if (first_cells[i] >= 0) to[windows.cells().rank_of(first_cells[i])].push_back(first_cells[i]);
        for (const auto& part : exchange(messages, std::move(to)))
            for (const auto cell : part) ++counts[cell - windows.cells().begin(messages.rank())];
    }
    return counts;
}

std::vector<double> values_of(const CurveWindows& windows, RankMessages& messages, const std::string& name)
{
    std::vector<double> values(windows.ids().size(), 1);
    if (name == "cells") return values;
    const auto begin = windows.positions().begin(messages.rank());
    if (name == "points") {
        if (windows.is_point_cloud()) return values;  // each cell is one point
        const auto counts = owned_points(windows, messages);
        for (std::int32_t round = 0; round < windows.num_rounds(); ++round) {
            const auto window = windows.first_window() + round;
            const auto ids = window < windows.end_window() ? windows.ids(window) : std::span<const std::int32_t>{};
            const auto found = fetch<std::int32_t>(messages, windows.cells(), counts, ids);
            if (!ids.empty()) std::ranges::copy(found, values.begin() + (windows.begin(window) - begin));
        }
    } else if (name == "faces") {
        for (auto window = windows.first_window(); window < windows.end_window(); ++window) {
            const auto graph = windows.graph(window);
            for (std::int32_t cell = 0; cell < graph.num_cells; ++cell)
                values[windows.begin(window) - begin + cell] = 1 + static_cast<double>(graph.graph.row(cell).size());
        }
    } else if (name.starts_with("array:")) {
        const auto& array = windows.is_point_cloud()
                                ? require_weight_array(windows.mesh().rest().point_data, name.substr(6), "point")
                                : require_weight_array(windows.mesh().rest().cell_data, name.substr(6), "cell");
        for (auto window = windows.first_window(); window < windows.end_window(); ++window) {
            const auto ids = windows.ids(window);
            for (std::size_t i = 0; i < ids.size(); ++i)
                values[windows.begin(window) - begin + static_cast<std::int64_t>(i)] = require_weight(array, ids[i]);
            windows.mesh().release_pages();
        }
    } else {
        throw InvalidInput("row_weights: unknown weight '{}'; known are cells, points, faces and array:NAME.", name);
    }
    return values;
}

}  // namespace

std::vector<std::int32_t> window_weights(const CurveWindows& windows, RankMessages& messages,
                                         std::span<const std::string> names)
{
    std::vector<std::int32_t> weights(windows.ids().size() * names.size());
    for (std::size_t w = 0; w < names.size(); ++w) {
        const auto values = values_of(windows, messages, names[w]);
        // Sums are added window by window, so that they do not depend on the number of ranks.
        std::vector<double> sums;
        double are_integers = 1;
        const auto begin = windows.positions().begin(messages.rank());
        for (auto window = windows.first_window(); window < windows.end_window(); ++window) {
            double sum = 0;
            for (auto i = windows.begin(window) - begin; i < windows.begin(window) - begin + windows.size(window);
                 ++i) {
                sum += values[i];
                if (values[i] != std::floor(values[i])) are_integers = 0;
            }
            sums.push_back(sum);
        }
        double total = 0;
        for (const auto sum : gather_everywhere(messages, sums)) total += sum;
        const auto num_with_integers = sum_everywhere(messages, std::vector{are_integers}).front();
        const WeightScale scale(total, num_with_integers == messages.size());
        for (std::size_t i = 0; i < values.size(); ++i) weights[i * names.size() + w] = scale(values[i]);
    }
    const auto num_positive = std::ranges::count_if(weights, [](auto weight) { return weight > 0; });
    const auto sums = sum_everywhere(messages, std::vector<std::int64_t>{std::ssize(weights), num_positive});
    require_some_weight(names, sums[0] == 0 || sums[1] > 0);
    return weights;
}

}  // namespace meshard
