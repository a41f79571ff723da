// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace meshard {

// Verbs name, find and add fields of meshes by these functions.

/// Whether a field has values at points or at cells.
enum class FieldPlace : std::uint8_t { Points, Cells };

inline const char* to_string(FieldPlace place)
{
    return place == FieldPlace::Points ? "points" : "cells";
}

/// Converts the value of an option of `add_place_option`; an empty text gives nothing.
std::optional<FieldPlace> parse_place(const std::string& word);

/// Adds an option with the values `points` and `cells`.
CLI::Option* add_place_option(CLI::App& app, const std::string& name, std::string& word,
                              const std::string& description);

std::vector<DataArray>& arrays_at(Mesh& mesh, FieldPlace place);
const std::vector<DataArray>& arrays_at(const Mesh& mesh, FieldPlace place);

struct MeshField {
    FieldPlace place = FieldPlace::Points;
    const DataArray* array = nullptr;  ///< one of the mesh's arrays
};

/// Returns `It has 'p', 'U'.` or `It has no fields.`
std::string list_of_fields(const Mesh& mesh);

/// @throws InvalidInput always: `where` has no field of that name. The message lists the fields and the nearest name.
[[noreturn]] void throw_no_field(const Mesh& mesh, const std::string& name, std::string_view where);

/// Returns the field `name`, at `place` if that is given.
/// @throws InvalidInput, beginning with `where`, if there is none, or if points and cells both have one.
MeshField find_field(const Mesh& mesh, const std::string& name, std::optional<FieldPlace> place,
                     std::string_view where);

/// Splits the field names of a command line and drops duplicates: each word is a name, or, if no field has it, a list
/// of names separated by commas.
std::vector<std::string> field_names(const Mesh& mesh, std::span<const std::string> words);

/// Returns the number of values that are NaN or infinite.
std::int64_t count_not_finite(const DataArray& array);

/// @throws InvalidInput, beginning with `where`, if the mesh has no points, or a coordinate that is NaN or infinite.
void require_positions(const Mesh& mesh, std::string_view where);

/// @throws InvalidInput, beginning with `where`, if `arrays` has one called `name`, unless it may be replaced.
void require_free_name(std::span<const DataArray> arrays, const std::string& name, bool replaces,
                       std::string_view where);

/// Adds an array, or replaces one with the same name.
void put_array(std::vector<DataArray>& arrays, DataArray array);

}  // namespace meshard
