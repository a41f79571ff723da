// SPDX-License-Identifier: Apache-2.0
#include "io/mesh_io.h"
#include "io/surface_files/ply_reader.h"
#include "partition/error.h"
#include "tests/io/vtk/vtk_oracle.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace meshard {
namespace {

const std::string ascii_header =
    "ply\nformat ascii 1.0\ncomment made by hand\nelement vertex 5\nproperty float x\nproperty float y\n"
    "property float z\nproperty uchar red\nproperty uchar green\nproperty uchar blue\n"
    "property double t\nelement face 2\nproperty list uchar int vertex_indices\nproperty short patch\nend_header\n";
const std::string ascii_body =
    "0 0 0 255 0 0 0.125\n1 0 0 0 255 0 1\n1 1 0 0 0 255 2\n0 1 0 1 2 3 3\n0.5 0.5 1 9 9 9 -4\n"
    "4 0 1 2 3 -7\n3 0 1 4 8\n";

template <class T>
void put(std::string& bytes, T value, bool swap)
{
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    if (swap) std::reverse(raw, raw + sizeof(T));
    bytes.append(raw, sizeof(T));
}

std::string binary_ply(bool big_endian)
{
    std::string bytes = std::string("ply\nformat binary_") + (big_endian ? "big" : "little") +
                        "_endian 1.0\nelement vertex 3\nproperty float x\nproperty float y\nproperty float z\n"
                        "element face 1\nproperty list uchar int vertex_indices\nend_header\n";
    for (const float value : {0.F, 0.F, 0.F, 1.F, 0.F, 0.F, 0.F, 1.F, 0.5F}) put(bytes, value, big_endian);
    bytes += '\3';
    for (const std::int32_t point : {2, 0, 1}) put(bytes, point, big_endian);
    return bytes;
}

TEST(Ply, ReadsPropertiesAsArrays)
{
    const TemporaryFolder folder;
    write_bytes(folder / "a.ply", ascii_header + ascii_body);

    const Mesh mesh = read_mesh(folder / "a.ply");

    EXPECT_NO_THROW(mesh.validate());
    EXPECT_EQ(mesh.cell_types, (std::vector<std::uint8_t>{9, 5}));
    EXPECT_EQ(mesh.cells.indices, (std::vector<std::int32_t>{0, 1, 2, 3, 0, 1, 4}));
    EXPECT_EQ(mesh.points.value(4, 2), 1);
    ASSERT_EQ(mesh.point_data.size(), 2U);
    EXPECT_EQ(mesh.point_data[0].name(), "RGB");
    EXPECT_EQ(mesh.point_data[0].value(2, 2), 255);
    EXPECT_EQ(mesh.point_data[1].type(), ScalarType::Float64);
    EXPECT_EQ(mesh.point_data[1].value(4), -4);
    EXPECT_EQ(mesh.cell_data.at(0).to_doubles(), (std::vector<double>{-7, 8}));
    EXPECT_EQ(mesh.cell_data[0].type(), ScalarType::Int16);
}

TEST(Ply, ReadsBinaryAsVtkDoes)
{
    const TemporaryFolder folder;
    for (const bool big_endian : {false, true}) {
        write_bytes(folder / "a.ply", binary_ply(big_endian));
        EXPECT_EQ(vtk_difference(folder / "a.ply", read_mesh(folder / "a.ply")), "");
    }
}

TEST(Ply, RefusesDamage)
{
    const TemporaryFolder folder;
    const auto path = folder / "a.ply";
    const auto expect_message = [&](std::string bytes, const std::string& replace, const std::string& by,
                                    const char* message) {
        bytes.replace(bytes.find(replace), replace.size(), by);
        write_bytes(path, bytes);
        EXPECT_TRUE(throws_with<IoError>(message, [&] { read_mesh(path); }));
    };
    const std::string good = ascii_header + ascii_body;

    expect_message(good, "format ascii", "format utf8", "has format 'utf8'");
    expect_message(good, "property float x", "property real x", "unknown type 'real'");
    expect_message(good, "property float x", "property float u", "has no x, y and z");
    expect_message(good, "list uchar int vertex_indices", "list uchar int corners", "without the list vertex_indices");
    expect_message(good, "list uchar", "list uncle", "whose length has an unknown type");
    expect_message(good, "element vertex 5", "element vertex five", "does not say how many");
    expect_message(good, "comment made", "remark made", "unknown word 'remark'");
    expect_message(good, "element vertex 5\n", "", "a property before any element");
    expect_message(good, "4 0 1 2 3", "4 0 1 2 9", "with point 9, expected 0 to 4");
    expect_message(good, "255 0 0 0.125", "256 0 0 0.125", "has '256' in vertex 0");
    write_bytes(path, good);
    for (std::size_t size = good.size() - 3; size > 0; --size) {
        std::filesystem::resize_file(path, size);
        EXPECT_THROW(read_mesh(path), IoError) << size;
    }
    const std::string binary = binary_ply(false);
    write_bytes(path, binary);
    for (std::size_t size = binary.size() - 1; size > 0; --size) {
        std::filesystem::resize_file(path, size);
        EXPECT_THROW(read_mesh(path), IoError) << size;
    }
}

}  // namespace
}  // namespace meshard
