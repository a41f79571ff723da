// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/categories.h"

#include "partition/error.h"
#include "partition/lists.h"
#include "sharding/tensor/host_values.h"

#include <ATen/ATen.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

namespace meshard {

CategoryChannels category_channels(const DataConfig& data, std::span<const std::int64_t> channels)
{
    auto first = first_channel(data, {});
    if (data.series.is_on)
        first += data.series.history * std::accumulate(channels.begin(), channels.end(), std::int64_t{0});
    return {first, data.categories.values};
}

void require_categories(const DataArray& array, const CategorySettings& categories, std::size_t index,
                        const std::string& where, const std::function<std::string(std::int64_t)>& place,
                        const std::function<bool(std::int64_t)>& counts)
{
    constexpr double most = 1 << 24;  // up to which single precision has all whole numbers
    if (array.num_components() != 1)
        throw InvalidInput("{}: the array '{}' has {} components; data.categories takes arrays with one.", where,
                           array.name(), array.num_components());
    const auto* known = categories.values.empty() ? nullptr : &categories.values[index];
    for (std::int64_t row = 0; row < array.num_rows(); ++row) {
        const auto value = array.value(row);
        if (counts && !counts(row)) continue;
        if (value != std::round(value) || std::abs(value) > most)
            throw InvalidInput(
                "{}: the array '{}' is {} in {}; categories (data.categories) are whole "
                "numbers up to {:.0f}. Tell it as numbers: by data.inputs, of grids and series by data.arrays.",
                where, array.name(), value, place(row), most);
        if (!known || std::ranges::binary_search(*known, value)) continue;
        throw InvalidInput("{}: the array '{}' is {} in {}, and the training cases have {}. The model does "
                           "not know this category (data.categories): repair the case, or train with it.",
                           where, array.name(), value, place(row), fmt::join(*known, ", "));
    }
}

void merge_categories(std::vector<std::vector<double>>& known, const std::vector<std::vector<double>>& more,
                      const CategorySettings& categories, const std::string& where)
{
    known.resize(categories.names.size());
    for (std::size_t i = 0; i < known.size(); ++i) {
        std::vector<double> both;
        std::ranges::set_union(known[i], more[i], std::back_inserter(both));
        known[i] = std::move(both);
        if (known[i].size() <= kMostCategories) continue;
        throw InvalidInput("{}: the array '{}' has {} different values; data.categories takes arrays with "
                           "at most {}. Tell it as numbers: by data.inputs, of grids and series by data.arrays.",
                           where, categories.names[i], known[i].size(), kMostCategories);
    }
}

void add_categories(std::vector<std::vector<double>>& known, const at::Tensor& told, std::int64_t first,
                    const CategorySettings& categories, const std::string& where)
{
    std::vector<std::vector<double>> found;
    for (std::size_t i = 0; i < categories.names.size(); ++i) {
        const auto numbers = told.select(1, first + static_cast<std::int64_t>(i));
        sort_unique(found.emplace_back(values_on_host<double>(numbers)));
    }
    merge_categories(known, found, categories, where);
}

}  // namespace meshard
