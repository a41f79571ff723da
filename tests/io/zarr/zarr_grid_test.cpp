// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/grid_file.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/stored_arrays.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace meshard {
namespace {

TEST(ZarrGrid, ReadsBoxesOfWhatThePackageZarrWritesInManyForms)
{
    const TemporaryFolder folder;
    unpack_arrays("forms.zip", folder / "forms.zarr");
    const auto file = GridFile::open(folder / "forms.zarr/");  // with a slash behind it
    const auto& grid = file->grid();
    EXPECT_EQ(grid.num_points, (std::array<std::int64_t, 3>{7, 6, 5}));
    EXPECT_EQ(grid.spacing, (std::array<double, 3>{1, 1, 0.5}));
    EXPECT_EQ(grid.origin, (std::array<double, 3>{0, 0, 0.75}));
    const auto whole = whole_box(grid, true);
    std::mt19937 random(3);
    std::size_t num_left = 0;
    for (const auto& array : grid.cell_data) {
        const auto& name = array.name();
        const std::int64_t num_components = name.starts_with("inner/components") ? 3 : 1;
        for (int draw = 0; draw < 8; ++draw) {
            GridBox box;
            std::vector<double> expected;
            for (int axis = 0; axis < 3; ++axis) {
                box.first[axis] = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(whole.count[axis]));
                box.count[axis] = 1 + static_cast<std::int64_t>(
                                          random() % static_cast<std::uint64_t>(whole.count[axis] - box.first[axis]));
            }
            for (auto z = box.first[2]; z < box.first[2] + box.count[2]; ++z)
                for (auto y = box.first[1]; y < box.first[1] + box.count[1]; ++y)
                    for (auto x = box.first[0]; x < box.first[0] + box.count[0]; ++x)
                        for (std::int64_t c = 0; c < num_components; ++c)
                            expected.push_back(
                                name == "absent" && z == 3 ? 7.5 : static_cast<double>(30 * z + 6 * y + x + 1000 * c));
            const auto read = file->read(name, true, box);
            EXPECT_EQ(read.type(), array.type());
            ASSERT_EQ(read.to_doubles(), expected) << name;
        }
        ++num_left;
    }
    EXPECT_EQ(num_left, 12U);
    EXPECT_EQ(find_array(grid.cell_data, "gzip")->type(), ScalarType::Int16);
    EXPECT_NE(grid.left_out.at("half").find("has the data type float16, which is not read"), std::string::npos);
    EXPECT_NE(grid.left_out.at("table").find("has the shape [10, 2] (row, column), and the grid, that of 12 arrays, is "
                                             "[4, 5, 6] (z, y, x)"),
              std::string::npos);
}

/// A group of uncompressed float32 arrays that is written without a library: (name, shape, dimension names as JSON).
void write_group(const std::filesystem::path& folder,
                 const std::vector<std::tuple<std::string, std::vector<int>, std::string>>& arrays)
{
    const auto text = [](const std::vector<int>& sizes) {
        std::string joined;
        for (const auto size : sizes) joined += (joined.empty() ? "" : ", ") + std::to_string(size);
        return "[" + joined + "]";
    };
    std::filesystem::create_directories(folder);
    write_bytes(folder / "zarr.json", R"({"zarr_format": 3, "node_type": "group"})");
    for (const auto& [name, shape, names] : arrays) {
        std::filesystem::create_directories(folder / name);
        write_bytes(
            folder / name / "zarr.json",
            R"({"zarr_format": 3, "node_type": "array", "data_type": "float32", "fill_value": "NaN", "shape": )" +
                text(shape) + R"(, "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": )" + text(shape) +
                R"(}}, "chunk_key_encoding": {"name": "v2"}, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "dimension_names": )" +
                names + "}");
        std::vector<float> values;
        std::string key;
        int count = 1;
        for (const auto size : shape) {
            count *= size;
            key += key.empty() ? "0" : ".0";
        }
        for (int i = 0; i < count; ++i) values.push_back(static_cast<float>(i));
        write_bytes(folder / name / key, {reinterpret_cast<const char*>(values.data()), sizeof(float) * values.size()});
    }
}

TEST(ZarrGrid, FindsTheComponentsOfArraysWithoutNamesByTheOtherArrays)
{
    const TemporaryFolder folder;
    write_group(folder / "a.zarr", {{"last", {2, 3, 2}, "null"}, {"first", {2, 2, 3}, "null"}, {"p", {2, 3}, "null"}});
    const auto file = GridFile::open(folder / "a.zarr");
    EXPECT_EQ(file->grid().num_points, (std::array<std::int64_t, 3>{4, 3, 1}));
    const GridBox box{{1, 0, 0}, {2, 2, 1}};
    EXPECT_EQ(file->read("p", true, box).to_doubles(), (std::vector<double>{1, 2, 4, 5}));
    EXPECT_EQ(file->read("last", true, box).to_doubles(), (std::vector<double>{2, 3, 4, 5, 8, 9, 10, 11}));
    EXPECT_EQ(file->read("first", true, box).to_doubles(), (std::vector<double>{1, 7, 2, 8, 4, 10, 5, 11}));

    write_group(folder / "b.zarr", {{"u", {4, 3, 2, 3}, "null"}});
    EXPECT_EQ(GridFile::open(folder / "b.zarr")->grid().cell_data.front().num_components(), 3);

    // As CF writes images: bounds of x and y are as many arrays of two dimensions as the images.
    write_group(folder / "bounds.zarr", {{"x_bounds", {12, 2}, R"(["x", "bound"])"},
                                         {"y_bounds", {5, 2}, R"(["y", "bound"])"},
                                         {"p", {5, 12}, R"(["y", "x"])"}});
    const auto images = GridFile::open(folder / "bounds.zarr");
    EXPECT_EQ(images->grid().num_points, (std::array<std::int64_t, 3>{13, 6, 1}));
    EXPECT_EQ(images->grid().cell_data.size(), 1U);

    write_group(folder / "c.zarr", {{"u", {4, 3, 2}, R"(["time", "y", "x"])"}});
    EXPECT_TRUE(throws_with<IoError>("Of its 1 arrays 'u' has the dimension 'time', and there is no array 'time'",
                                     [&] { GridFile::open(folder / "c.zarr"); }));
}

TEST(ZarrGrid, NamesWhatIsDamaged)
{
    const TemporaryFolder folder;
    const auto group = folder / "forms.zarr";
    unpack_arrays("forms.zip", group);
    const auto refusal = [&](const std::string& file, const std::string& array,
                             const std::function<std::string(std::string)>& damaged, const std::string& text) {
        const auto whole = read_bytes(group / file);
        write_bytes(group / file, damaged(whole));
        const auto read = [&] { GridFile::open(group)->read(array, true, {{0, 0, 0}, {6, 5, 4}}); };
        EXPECT_TRUE(throws_with<IoError>(text, read)) << file;
        EXPECT_TRUE(throws_with<IoError>("forms.zarr: " + (array.empty() ? "" : "array '" + array + "': "), read));
        write_bytes(group / file, whole);
    };
    const auto cut = [](const std::string& whole) { return whole.substr(0, whole.size() / 2); };
    const auto flipped = [](std::string whole) {
        whole[whole.size() / 2] = static_cast<char>(whole[whole.size() / 2] ^ 64);
        return whole;
    };
    const auto changed = [](const std::string& from, const std::string& to) {
        return [=](std::string whole) {
            const auto at = whole.find(from);
            EXPECT_NE(at, std::string::npos) << from;
            return whole.replace(at, from.size(), to);
        };
    };
    refusal("big/c.0.0.0", "big", cut,
            "chunk c.0.0.0 is damaged or cut short: it should hold 144 bytes once it is "
            "decoded, found 72. Copy or write it again.");
    refusal("zstd/c/0/0/0", "zstd", cut, "chunk c/0/0/0 is damaged or cut short: zstd cannot inflate it");
    refusal("gzip/c/0/1/0", "gzip", cut, "chunk c/0/1/0 ends too early");
    refusal("blosc/c/1/0/0", "blosc", cut, "chunk c/1/0/0 is damaged or cut short: blosc cannot inflate it");
    refusal("checked/c/0/0/0", "checked", flipped, "chunk c/0/0/0 is damaged: its bytes have another checksum");
    refusal(
        "shards/c/0/0/0", "shards", [](const std::string&) { return "short"; }, "its shard has an index of 4 chunks");
    refusal("shards/c/0/0/0", "shards", cut, "the index of its shard is damaged");
    refusal("big/zarr.json", "big", changed("3,\n        3,\n        4", "3,\n        3,\n        5"),
            "it should hold 180 bytes once it is decoded, found 144");
    refusal("big/zarr.json", "big", changed("3,\n        3,\n        4", "3,\n        -3,\n        4"),
            "zarr.json has the chunk_shape [3, -3, 4], which is none. It is damaged");
    refusal("big/zarr.json", "big", changed("\"chunk_shape\"", "\"shape_of_chunks\""),
            "zarr.json is not that of an array");
    refusal("zarr.json", "", cut, "zarr.json is no JSON object");
    refusal("zarr.json", "", changed("3", "2"), "zarr.json has zarr_format 2, expected 3. Write it with zarr_format=3");
    refusal("zarr.json", "", changed("\"group\"", "\"array\""), "has the node_type \"array\", expected \"group\"");

    std::filesystem::rename(group / "zarr.json", group / ".zgroup");
    EXPECT_TRUE(throws_with<IoError>("is of Zarr's version 2", [&] { GridFile::open(group); }));
    EXPECT_TRUE(throws_with<IoError>("none.zarr does not exist", [&] { GridFile::open(folder / "none.zarr"); }));
}

}  // namespace
}  // namespace meshard
