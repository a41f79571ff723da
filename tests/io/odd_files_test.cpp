// SPDX-License-Identifier: Apache-2.0
// Files that are legal or common but unlike what our own writers make. Each is one line of tests/data/odd/README.md,
// which says what is expected.
#include "io/bytes/read_warnings.h"
#include "io/mesh_io.h"
#include "io/vtk/mapped_mesh.h"
#include "partition/error.h"
#include "tests/io/vtk/vtk_oracle.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace meshard {
namespace {

struct OddFile {
    std::string file;
    std::vector<std::string> facts;
};

/// What GoogleTest prints of a parameter.
std::ostream& operator<<(std::ostream& out, const OddFile& odd)
{
    return out << odd.file;
}

std::string trimmed(const std::string& text)
{
    const auto begin = text.find_first_not_of(' ');
    return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

std::vector<std::string> split(const std::string& text, char separator)
{
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);) parts.push_back(trimmed(part));
    return parts;
}

/// The lines `| file | what it is | expected |` whose files have one of the extensions.
std::vector<OddFile> odd_files(const std::vector<std::string>& extensions)
{
    std::vector<OddFile> files;
    std::ifstream table(source_path("tests/data/odd/README.md"));
    for (std::string line; std::getline(table, line);) {
        const auto columns = split(line, '|');
        if (columns.size() != 4 || columns[1].find('.') == std::string::npos) continue;
        const std::string extension = std::filesystem::path(columns[1].substr(0, columns[1].find(' '))).extension();
        if (std::ranges::find(extensions, extension) != extensions.end())
            files.push_back({columns[1], split(columns[3], ';')});
    }
    return files;
}

std::string number(double value)
{
    std::ostringstream text;
    text << std::setprecision(7) << value;
    return text.str();
}

/// `0..5.5`, with ` and 2 nan` if there are any; of one value `10`; of texts the different ones in order, `Tür, °C`.
std::string content_of(const DataArray& array)
{
    if (array.type() == ScalarType::String) {
        std::vector<std::string> texts;
        for (const std::string& text : array.strings())
            if (std::ranges::find(texts, text) == texts.end()) texts.push_back(text);
        std::string joined;
        for (const std::string& text : texts) joined += (joined.empty() ? "" : ", ") + text;
        return joined;
    }
    std::vector<double> values = array.to_doubles();
    const auto num_values = values.size();
    std::erase_if(values, [](double value) { return std::isnan(value); });
    const auto num_nan = num_values - values.size();
    if (values.empty()) return num_nan > 0 ? "nan" : "none";
    const auto [least, most] = std::ranges::minmax(values);
    return number(least) + (least == most ? "" : ".." + number(most)) +
           (num_nan > 0 ? " and " + std::to_string(num_nan) + " nan" : "");
}

/// `Float64 x 3 'µm' (à, b)`: type, components, unit and names of components, as far as there are any.
std::string type_of(const DataArray& array)
{
    std::string text(to_string(array.type()));
    if (array.num_components() > 1) text += " x " + std::to_string(array.num_components());
    if (!array.unit.empty()) text += " '" + array.unit + "'";
    for (std::size_t i = 0; i < array.component_names.size(); ++i)
        text += (i == 0 ? " (" : ", ") + array.component_names[i];
    return text + (array.component_names.empty() ? "" : ")");
}

std::string first_row_of(const DataArray& array)
{
    std::string text;
    for (std::int32_t c = 0; c < array.num_components(); ++c) text += (c == 0 ? "" : " ") + number(array.value(0, c));
    return text;
}

/// What the table may say of a mesh: `12 points`, `2 cells`, `2 hexahedron`, `z 0..1`, `cell p 10..20`, `cell p is
/// Float64`.
std::vector<std::string> facts_of(const Mesh& mesh)
{
    std::vector<std::string> facts{std::to_string(mesh.num_points()) + " points",
                                   std::to_string(mesh.num_cells()) + " cells"};
    std::map<std::string, int> types;
    for (const auto type : mesh.cell_types) ++types[cell_type_name(type)];
    for (const auto& [name, count] : types) facts.push_back(std::to_string(count) + " " + name);
    facts.push_back("points are " + type_of(mesh.points));
    const auto coordinates = mesh.points.to_doubles();
    for (std::size_t axis = 0; axis < 3; ++axis) {
        std::vector<double> along;
        for (std::size_t i = axis; i < coordinates.size(); i += 3) along.push_back(coordinates[i]);
        facts.push_back(std::string(1, "xyz"[axis]) + " " + content_of(DataArray::from("", std::move(along))));
    }
    for (const auto& [group, arrays] : {std::pair("point", &mesh.point_data), std::pair("cell", &mesh.cell_data),
                                        std::pair("field", &mesh.field_data)}) {
        facts.push_back(std::to_string(arrays->size()) + " " + group + " arrays");
        for (const DataArray& array : *arrays) {
            const std::string name = std::string(group) + " " + array.name();
            facts.push_back(name + " " + content_of(array));
            facts.push_back(name + " is " + type_of(array));
            if (array.type() != ScalarType::String && array.num_rows() > 0)
                facts.push_back(name + " begins " + first_row_of(array));
        }
    }
    return facts;
}

class OddFiles : public testing::TestWithParam<OddFile> {};

TEST_P(OddFiles, AreReadAsTheTableSays)
{
    const auto words = split(GetParam().file, ' ');
    std::string error;
    ReadOptions options;
    for (std::size_t i = 1; i + 1 < words.size(); i += 2) {
        ASSERT_TRUE(words[i] == "--time" || words[i] == "--block") << words[i];
        if (words[i] == "--time")
            options.time = std::stod(words[i + 1]);
        else
            options.blocks.push_back(words[i + 1]);
    }
    std::vector<std::string> warnings, facts;
    options.warnings = &warnings;
    const std::filesystem::path path = source_path("tests/data/odd/" + words[0]);
    Mesh mesh;
    try {
        mesh = read_mesh(path, options);
        EXPECT_NO_THROW(mesh.validate());
        facts = facts_of(mesh);
    } catch (const Error& thrown) {
        error = thrown.what();
    }

    bool expects_error = false, expects_warning = false;
    for (const std::string& fact : GetParam().facts) {
        const auto begins = [&](std::string_view word) { return fact.starts_with(word); };
        const auto rest = [&](std::string_view word) { return fact.substr(word.size()); };
        if (begins("error: ")) {
            expects_error = true;
            EXPECT_NE(error.find(rest("error: ")), std::string::npos) << "the error is \"" << error << '"';
        } else if (begins("warning: ")) {
            expects_warning = true;
            EXPECT_TRUE(std::ranges::any_of(
                warnings, [&](const std::string& text) { return text.find(rest("warning: ")) != std::string::npos; }))
                << "expected a warning with \"" << rest("warning: ") << "\"; there are "
                << testing::PrintToString(warnings);
        } else if (fact == "as VTK") {
            EXPECT_EQ(vtk_difference(path, mesh), "");
        } else {
            EXPECT_TRUE(std::ranges::find(facts, fact) != facts.end())
                << "expected " << fact << "; found " << testing::PrintToString(facts);
        }
    }
    // What is cut in windows is read in another way.
    if (error.empty() && words.size() == 1 && can_be_mapped(path)) {
        Mesh mapped = MappedMesh(path).rest(), whole = mesh;
        mapped.cells = whole.cells;
        mapped.cell_types = whole.cell_types;
        mapped.face_streams = whole.face_streams;
        EXPECT_EQ(difference(mapped, whole), "");
    }
    if (!expects_error) {
        EXPECT_EQ(error, "");
    }
    if (!expects_warning) {
        EXPECT_TRUE(warnings.empty()) << testing::PrintToString(warnings);
    }
}

std::string name_of(const testing::TestParamInfo<OddFile>& info)
{
    std::string name = info.param.file;
    std::ranges::replace_if(name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(VtkXml, OddFiles, testing::ValuesIn(odd_files({".vtu", ".vtp", ".pvtu", ".pvtp"})), name_of);

TEST(OddFile, IsMappedToo)
{
    std::vector<std::string> said;
    set_read_warning_handler([&](const std::string& text) { said.push_back(text); });
    EXPECT_TRUE(can_be_mapped(source_path("tests/data/odd/ghosts/mapped.vtu")));
    set_read_warning_handler({});
    ASSERT_EQ(said.size(), 1u);
    EXPECT_NE(said[0].find("are read as Latin-1"), std::string::npos) << said[0];
}

INSTANTIATE_TEST_SUITE_P(Legacy, OddFiles, testing::ValuesIn(odd_files({".vtk"})), name_of);
INSTANTIATE_TEST_SUITE_P(Stl, OddFiles, testing::ValuesIn(odd_files({".stl"})), name_of);
INSTANTIATE_TEST_SUITE_P(Ply, OddFiles, testing::ValuesIn(odd_files({".ply"})), name_of);
INSTANTIATE_TEST_SUITE_P(Foam, OddFiles, testing::ValuesIn(odd_files({".foam"})), name_of);
INSTANTIATE_TEST_SUITE_P(Obj, OddFiles, testing::ValuesIn(odd_files({".obj"})), name_of);

}  // namespace
}  // namespace meshard
