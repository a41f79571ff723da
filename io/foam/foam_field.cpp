// SPDX-License-Identifier: Apache-2.0
#include "io/foam/foam_field.h"

#include "io/bytes/ascii_numbers.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <utility>
#include <vector>

namespace meshard {

std::string foam_unit(const FoamEntry& field)
{
    constexpr std::array units{"kg", "m", "s", "K", "mol", "A", "cd"};
    const FoamEntry* dimensions = field.find("dimensions");
    if (dimensions == nullptr) return {};
    std::string text;
    std::size_t i = 0;
    for (const std::string& word : dimensions->words) {
        const auto exponent = parse_number<double>(word);
        if (!exponent) continue;
        if (i < units.size() && *exponent != 0)
            text += (text.empty() ? "" : " ") + std::string(units[i]) + (*exponent == 1 ? "" : "^" + word);
        ++i;
    }
    return text;
}

FoamFieldClass foam_field_class(std::string_view name)
{
    FoamFieldClass result;
    if (name.starts_with("vol"))
        name.remove_prefix(3);
    else if (name.starts_with("point")) {
        name.remove_prefix(5);
        result.on_points = true;
    } else {
        return result;
    }
    if (const std::size_t colon = name.find("::Internal"); colon != std::string_view::npos)
        name = name.substr(0, colon);
    if (!name.ends_with("Field")) return result;
    std::string type(name.substr(0, name.size() - 5));
    if (!type.empty()) type[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(type[0])));
    result.num_components = foam_components(type);
    return result;
}

std::optional<DataArray> foam_field_values(const FoamFile& file, const FoamEntry& entry, std::int64_t num_rows,
                                           int num_components)
{
    if (entry.list) {
        if (entry.list->num_rows() != num_rows || entry.list->num_components() != num_components)
            file.fail(
                fmt::format("'{}' has {} values of {} numbers, expected {} of {}. Does the field belong to this mesh?",
                            entry.key, entry.list->num_rows(), entry.list->num_components(), num_rows, num_components));
        return entry.list;
    }
    if (!entry.words.empty() && entry.words.front() == "nonuniform") {
        if (num_rows == 0) return DataArray("", file.scalar_type(), 0, num_components);
        return std::nullopt;
    }
    std::vector<double> values;
    for (const std::string& word : entry.words) {
        if (word == "uniform" || word == "(" || word == ")") continue;
        const auto value = parse_number<double>(word);
        if (!value) return std::nullopt;
        values.push_back(*value);
    }
    if (values.size() != static_cast<std::size_t>(num_components)) return std::nullopt;
    DataArray result("", file.scalar_type(), num_rows, num_components);
    with_scalar_type(file.scalar_type(), [&]<class T>() {
        const auto to = result.mutable_values<T>();
        for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<T>(values[i % values.size()]);
    });
    return result;
}

void reorder_symmetric_tensors(DataArray& array)
{
    if (array.num_components() != 6) return;
    constexpr std::array from{0, 3, 5, 1, 4, 2};
    const auto swap = [&]<class T>(std::span<T> values) {
        for (std::size_t row = 0; row + 6 <= values.size(); row += 6) {
            std::array<T, 6> old;
            std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(row), 6, old.begin());
            for (std::size_t c = 0; c < 6; ++c) values[row + c] = old[from[c]];
        }
    };
    if (array.type() == ScalarType::Float32)
        swap(array.mutable_values<float>());
    else
        swap(array.mutable_values<double>());
    array.component_names = {"XX", "YY", "ZZ", "XY", "YZ", "XZ"};
}

}  // namespace meshard
