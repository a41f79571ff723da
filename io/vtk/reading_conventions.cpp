// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/reading_conventions.h"

#include "io/bytes/text_encoding.h"
#include "io/vtk/vtk_xml_reader.h"
#include "partition/nearest_name.h"

#include <algorithm>
#include <utility>

namespace meshard {

namespace {

constexpr const char* ghost_marks = "vtkGhostType";

class Utf8Texts {
public:
    Utf8Texts(std::string file, std::vector<std::string>& warnings) : file_(std::move(file)), warnings_(warnings) {}

    void convert(std::vector<DataArray>& arrays)
    {
        for (DataArray& array : arrays) {
            if (!is_utf8(array.name())) array.rename(converted(array.name()));
            for (std::string& name : array.component_names)
                if (!is_utf8(name)) name = converted(name);
            if (!is_utf8(array.unit)) array.unit = converted(array.unit);
            if (array.type() == ScalarType::String && !std::ranges::all_of(array.strings(), is_utf8))
                convert_values(array);
        }
    }

private:
    std::string converted(const std::string& text)
    {
        std::string result = utf8_from_latin1(text);
        if (!std::exchange(has_warned_, true))
            warnings_.push_back(file_ + ": its names or texts are no UTF-8, e.g. '" +
                                result.substr(0, result.find('\n')) + "'; they are read as Latin-1");
        return result;
    }

    void convert_values(DataArray& array)
    {
        std::vector<std::string> texts(array.strings().begin(), array.strings().end());
        for (std::string& text : texts)
            if (!is_utf8(text)) text = converted(text);
        DataArray result = DataArray::from_strings(array.name(), std::move(texts), array.num_components());
        describe_as(result, array);
        array = std::move(result);
    }

    std::string file_;
    std::vector<std::string>& warnings_;
    bool has_warned_ = false;
};

/// Converts `array` to the marks of `vtkGhostType`; with `levels` every level above 0 is a duplicate. Returns false if
/// its values are no marks.
bool convert_ghosts(DataArray& array, bool levels)
{
    if (array.type() == ScalarType::String || array.num_components() != 1) return false;
    if (array.type() == ScalarType::UInt8 && !levels) {
        array.rename(ghost_marks);
        return true;
    }
    std::vector<std::uint8_t> marks(array.num_rows());
    const bool are_marks = with_scalar_type(array.type(), [&]<class T>() {
        const auto values = array.values<T>();
        for (std::size_t i = 0; i < marks.size(); ++i) {
            const auto value = static_cast<double>(values[i]);
            if (!(value >= 0 && value <= 255) || value != static_cast<double>(static_cast<std::uint8_t>(value)))
                return false;
            marks[i] = levels ? (value > 0 ? 1 : 0) : static_cast<std::uint8_t>(value);
        }
        return true;
    });
    if (!are_marks) return false;
    DataArray result = DataArray::from(ghost_marks, std::move(marks));
    result.attribute = array.attribute;
    array = std::move(result);
    return true;
}

void settle_ghosts(std::vector<DataArray>& arrays, bool of_cells, const std::string& file,
                   std::vector<std::string>& warnings)
{
    const std::string rows = of_cells ? "cells" : "points";
    const auto has_marks = [&] { return find_array(arrays, ghost_marks) != nullptr; };
    const auto warn = [&](const DataArray& array, const std::string& why) {
        warnings.push_back(file + ": the array '" + array.name() + "' of its " + rows +
                           " is not understood as marks of ghosts: " + why + ". All " + rows + " count as owned");
    };
    for (DataArray& array : arrays) {
        const std::string name = lower_case(array.name());
        const bool are_levels = name == "vtkghostlevels";
        if (!are_levels && name != "vtkghosttype" && name != (of_cells ? "avtghostzones" : "avtghostnodes")) continue;
        if (array.name() != ghost_marks && has_marks()) continue;
        if (!convert_ghosts(array, are_levels)) warn(array, "its values are not single whole numbers from 0 to 255");
    }
    if (has_marks()) return;
    const auto names_none = [](const DataArray& array) {
        if (array.type() == ScalarType::String) return false;
        return with_scalar_type(array.type(), [&]<class T>() {
            return std::ranges::all_of(array.values<T>(), [](T value) { return value == 0; });
        });
    };
    for (const DataArray& array : arrays)
        if (lower_case(array.name()).find("ghost") != std::string::npos && !names_none(array))
            warn(array, "call it vtkGhostType (0 owned, 1 a copy) or vtkGhostLevels");
}

}  // namespace

void apply_reading_conventions(Mesh& mesh, const std::string& file, std::vector<std::string>& warnings)
{
    Utf8Texts texts(file, warnings);
    for (auto* arrays : {&mesh.point_data, &mesh.cell_data, &mesh.field_data}) texts.convert(*arrays);
    settle_ghosts(mesh.point_data, false, file, warnings);
    settle_ghosts(mesh.cell_data, true, file, warnings);
}

}  // namespace meshard
