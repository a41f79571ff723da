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

// How verbs name, find and add fields of meshes.

/// Where a field stands.
enum class FieldPlace : std::uint8_t { Points, Cells };

inline const char* to_string(FieldPlace place)
{
    return place == FieldPlace::Points ? "points" : "cells";
}

/// `points` or `cells`, as an option whose words were checked; nothing for an empty text.
std::optional<FieldPlace> parse_place(const std::string& word);

/// An option `points` or `cells`.
CLI::Option* add_place_option(CLI::App& app, const std::string& name, std::string& word, const std::string& description);

std::vector<DataArray>& arrays_at(Mesh& mesh, FieldPlace place);
const std::vector<DataArray>& arrays_at(const Mesh& mesh, FieldPlace place);

struct MeshField {
    FieldPlace place = FieldPlace::Points;
    const DataArray* array = nullptr;  ///< of the mesh
};

/// `It has 'p', 'U'.`, or that there are none.
std::string list_of_fields(const Mesh& mesh);

/// @throws InvalidInput always: `where` has no field of that name, which there are, and the nearest.
[[noreturn]] void throw_no_field(const Mesh& mesh, const std::string& name, std::string_view where);

/// The field `name`, of `place` only if that is given.
/// @throws InvalidInput, beginning with `where`, if there is none, or if points and cells both have one.
MeshField find_field(const Mesh& mesh, const std::string& name, std::optional<FieldPlace> place, std::string_view where);

/// Names from a command line: each word is one, or, where no field is called so, several with commas between. None twice.
std::vector<std::string> field_names(const Mesh& mesh, std::span<const std::string> words);

/// How many values are NaN or infinite.
std::int64_t count_not_finite(const DataArray& array);

/// @throws InvalidInput, beginning with `where`, if the mesh has no points, or a coordinate that is NaN or infinite.
void require_places(const Mesh& mesh, std::string_view where);

/// Whether `arrays` can take one called `name`. @throws InvalidInput, beginning with `where`, if there is one and it is not to be replaced.
void require_free_name(std::span<const DataArray> arrays, const std::string& name, bool replaces, std::string_view where);

/// Adds an array, in the place of one with the same name.
void put_array(std::vector<DataArray>& arrays, DataArray array);

/// What is known to go wrong with an output before the work is done.
/// @throws IoError if `write_mesh` does not know the extension, the folder is missing or cannot be written, or the path is a folder;
///         InvalidInput if the format cannot hold the cells of `mesh`.
void require_writable(const std::filesystem::path& output, const Mesh& mesh);

}  // namespace meshard
