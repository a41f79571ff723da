// SPDX-License-Identifier: Apache-2.0
#include "apps/fields/mesh_fields.h"

#include "apps/console/text_table.h"
#include "io/mesh_io.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>

namespace meshard {

namespace {

std::vector<std::string> all_names(const Mesh& mesh)
{
    std::vector<std::string> names;
    for (const auto* group : {&mesh.cell_data, &mesh.point_data}) {
        for (const DataArray& array : *group) names.push_back(array.name());
    }
    return names;
}

}  // namespace

std::optional<FieldPlace> parse_place(const std::string& word)
{
    if (word.empty()) return std::nullopt;
    return word == "points" ? FieldPlace::Points : FieldPlace::Cells;
}

CLI::Option* add_place_option(CLI::App& app, const std::string& name, std::string& word, const std::string& description)
{
    return app.add_option(name, word, description)->type_name("PLACE")->check(CLI::IsMember({"points", "cells"}));
}

std::vector<DataArray>& arrays_at(Mesh& mesh, FieldPlace place)
{
    return place == FieldPlace::Points ? mesh.point_data : mesh.cell_data;
}

const std::vector<DataArray>& arrays_at(const Mesh& mesh, FieldPlace place)
{
    return place == FieldPlace::Points ? mesh.point_data : mesh.cell_data;
}

std::string list_of_fields(const Mesh& mesh)
{
    std::string list;
    for (const auto& name : all_names(mesh)) list += (list.empty() ? "'" : ", '") + name + "'";
    return list.empty() ? "It has no fields." : "It has " + list + ".";
}

void throw_no_field(const Mesh& mesh, const std::string& name, std::string_view where)
{
    throw InvalidInput("{} has no field '{}'. {}{}", where, name, list_of_fields(mesh),
                       suggestion(name, all_names(mesh)));
}

MeshField find_field(const Mesh& mesh, const std::string& name, std::optional<FieldPlace> place, std::string_view where)
{
    const DataArray* const of_points = find_array(mesh.point_data, name);
    const DataArray* const of_cells = find_array(mesh.cell_data, name);
    if (!of_points && !of_cells) throw_no_field(mesh, name, where);
    if (!place && of_points && of_cells) {
        throw InvalidInput(
            "{} has a field '{}' of its points and one of its cells. Choose with --from points or --from cells.", where,
            name);
    }
    const auto there = place.value_or(of_points ? FieldPlace::Points : FieldPlace::Cells);
    const DataArray* const array = there == FieldPlace::Points ? of_points : of_cells;
    if (!array) {
        const auto other = there == FieldPlace::Points ? FieldPlace::Cells : FieldPlace::Points;
        throw InvalidInput("{} has the field '{}' at its {}, and --from is {}.", where, name, to_string(other),
                           to_string(there));
    }
    return {there, array};
}

std::vector<std::string> field_names(const Mesh& mesh, std::span<const std::string> words)
{
    std::vector<std::string> names;
    const auto add = [&](const std::string& name) {
        if (!contains(names, name)) names.push_back(name);
    };
    for (const auto& word : words) {
        if (find_array(mesh.point_data, word) || find_array(mesh.cell_data, word)) {
            add(word);
            continue;
        }
        for (std::size_t begin = 0; begin <= word.size();) {
            const auto end = std::min(word.find(',', begin), word.size());
            add(word.substr(begin, end - begin));
            begin = end + 1;
        }
    }
    return names;
}

std::int64_t count_not_finite(const DataArray& array)
{
    if (array.type() == ScalarType::String) return 0;
    return with_scalar_type(array.type(), [&]<class T>() -> std::int64_t {
        if constexpr (std::is_floating_point_v<T>)
            return std::ranges::count_if(array.values<T>(), [](T x) { return !std::isfinite(x); });
        return 0;
    });
}

void require_positions(const Mesh& mesh, std::string_view where)
{
    if (mesh.num_points() == 0) throw InvalidInput("{} has no points.", where);
    const auto bad = count_not_finite(mesh.points);
    if (bad > 0) {
        throw InvalidInput("{} has {} that {} NaN or infinite; every point needs a position. Repair the mesh.", where,
                           count_text(bad, "coordinate"), bad == 1 ? "is" : "are");
    }
}

void require_free_name(std::span<const DataArray> arrays, const std::string& name, bool replaces,
                       std::string_view where)
{
    if (replaces || !find_array(arrays, name)) return;
    throw InvalidInput("{} has an array '{}' already. Use --replace to replace it.", where, name);
}

void put_array(std::vector<DataArray>& arrays, DataArray array)
{
    const auto same = std::ranges::find(arrays, array.name(), &DataArray::name);
    if (same == arrays.end())
        arrays.push_back(std::move(array));
    else
        *same = std::move(array);
}

}  // namespace meshard
