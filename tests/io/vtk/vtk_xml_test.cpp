// SPDX-License-Identifier: Apache-2.0
// Both ways against VTK's own readers and writers.
#include "io/mesh_io.h"
#include "partition/error.h"
#include "tests/io/vtk/vtk_oracle.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>

namespace meshard {
namespace {

template <class T>
void add_extremes(std::vector<DataArray>& arrays, std::int64_t num_rows)
{
    std::vector<T> values;
    for (std::int64_t i = 0; i < 2 * num_rows; ++i)
        values.push_back(i % 3 == 0   ? std::numeric_limits<T>::lowest()
                         : i % 3 == 1 ? std::numeric_limits<T>::max()
                                      : static_cast<T>(i));
    const auto type = scalar_type_of<T>();
    arrays.push_back(DataArray::from(std::string(to_string(type)), std::move(values), 2));
}

/// Arrays of every type, of every role that ParaView's users meet, with names that XML must escape.
Mesh with_all_kinds_of_arrays(Mesh mesh)
{
    for (auto* group : {&mesh.point_data, &mesh.cell_data}) {
        const std::int64_t n = group == &mesh.point_data ? mesh.num_points() : mesh.num_cells();
        add_extremes<std::int8_t>(*group, n);
        add_extremes<std::uint8_t>(*group, n);
        add_extremes<std::int16_t>(*group, n);
        add_extremes<std::uint16_t>(*group, n);
        add_extremes<std::int32_t>(*group, n);
        add_extremes<std::uint32_t>(*group, n);
        add_extremes<std::int64_t>(*group, n);
        add_extremes<std::uint64_t>(*group, n);
        add_extremes<float>(*group, n);
        add_extremes<double>(*group, n);
        std::vector<std::string> texts;
        for (std::int64_t i = 0; i < n; ++i) texts.push_back(i % 2 == 0 ? "row " + std::to_string(i) : "");
        group->push_back(DataArray::from_strings("texts", std::move(texts)));
        group->push_back(DataArray("a <b> & \"c\" 'd'", ScalarType::Float32, n));
        group->push_back(DataArray("Normals", ScalarType::Float32, n, 3));
        group->back().attribute = "Normals";
        group->push_back(DataArray("TCoords", ScalarType::Float32, n, 2));
        group->back().attribute = "TCoords";
        group->push_back(DataArray("Tensors", ScalarType::Float64, n, 9));
        group->back().attribute = "Tensors";
        group->push_back(DataArray("ids", ScalarType::Int64, n));
        group->back().attribute = "GlobalIds";
    }
    mesh.field_data.push_back(DataArray::from("matrix", std::vector<float>{1, 2, 3, 4, 5, 6}, 3));
    mesh.field_data.push_back(DataArray::from_strings("patches", {"front & back", "", "<roof>"}));
    return mesh;
}

std::string path_for(const TemporaryFolder& folder, const Mesh& mesh)
{
    return (folder / (std::string("mesh") + extension_of(mesh.kind))).string();
}

TEST(VtkXml, ComesBackBitForBit)
{
    const TemporaryFolder folder;
    for (const auto& [name, sample] : sample_meshes())
        for (const Compression compression : {Compression::None, Compression::Zlib, Compression::Lz4}) {
            const Mesh mesh = with_all_kinds_of_arrays(sample);
            const auto path = path_for(folder, mesh);

            write_mesh(path, mesh, {.compression = compression});

            EXPECT_EQ(difference(read_mesh(path), mesh), "") << name << " " << vtk_compressor_name(compression);
        }
}

TEST(VtkXml, IsReadByVtkAsItWasWritten)
{
    const TemporaryFolder folder;
    for (const auto& [name, sample] : sample_meshes())
        for (const Compression compression : {Compression::None, Compression::Zlib, Compression::Lz4}) {
            const Mesh mesh = with_all_kinds_of_arrays(sample);
            const auto path = path_for(folder, mesh);

            write_mesh(path, mesh, {.compression = compression});

            EXPECT_EQ(vtk_difference(path, mesh), "") << name << " " << vtk_compressor_name(compression);
        }
}

class VtkEncodings : public testing::TestWithParam<VtkEncoding> {};

TEST_P(VtkEncodings, AreReadAsVtkReadsThem)
{
    const TemporaryFolder folder;
    for (const auto& [name, sample] : sample_meshes()) {
        // VTK writes the numbers of text files with too few digits for the extremes.
        Mesh mesh = GetParam().mode == VtkEncoding::Ascii ? sample : with_all_kinds_of_arrays(sample);
        // VTK's writer does not escape what XML reserves.
        for (auto* group : {&mesh.point_data, &mesh.cell_data})
            for (DataArray& array : *group)
                if (array.name().find('<') != std::string::npos) array.rename("plain");
        const auto path = path_for(folder, mesh);

        write_with_vtk(path, mesh, GetParam());

        EXPECT_EQ(vtk_difference(path, read_mesh(path)), "") << name;
        EXPECT_EQ(read_mesh(path).num_cells(), mesh.num_cells()) << name;
    }
}

std::vector<VtkEncoding> all_encodings()
{
    using E = VtkEncoding;
    std::vector<E> encodings{{.mode = E::Ascii}};
    for (const auto mode : {E::Base64, E::AppendedBase64, E::AppendedRaw})
        for (const auto compressor : {E::None, E::Zlib})
            for (const bool wide : {false, true})
                for (const bool big_endian : {false, true}) encodings.push_back({mode, compressor, wide, big_endian});
    encodings.push_back({.compressor = E::Lz4});
    encodings.push_back({.compressor = E::Lzma});
    return encodings;
}

INSTANTIATE_TEST_SUITE_P(All, VtkEncodings, testing::ValuesIn(all_encodings()));

TEST(VtkXml, JoinsThePiecesOfOneFile)
{
    const TemporaryFolder folder;
    write_bytes(folder / "two.vtp", R"(<VTKFile type="PolyData"><PolyData>
      <Piece NumberOfPoints="3" NumberOfVerts="1" NumberOfLines="0" NumberOfStrips="0" NumberOfPolys="1">
        <CellData><DataArray type="Int32" Name="a" format="ascii">1 2</DataArray></CellData>
        <Points><DataArray type="Float32" NumberOfComponents="3" format="ascii">0 0 0 1 0 0 1 1 0</DataArray></Points>
        <Verts><DataArray type="Int32" Name="connectivity" format="ascii">2</DataArray>
          <DataArray type="Int32" Name="offsets" format="ascii">1</DataArray></Verts>
        <Polys><DataArray type="Int32" Name="connectivity" format="ascii">0 1 2</DataArray>
          <DataArray type="Int32" Name="offsets" format="ascii">3</DataArray></Polys>
      </Piece>
      <Piece NumberOfPoints="1" NumberOfVerts="1">
        <CellData><DataArray type="Int32" Name="a" format="ascii">3</DataArray></CellData>
        <Points><DataArray type="Float32" NumberOfComponents="3" format="ascii">5 nan -inf</DataArray></Points>
        <Verts><DataArray type="Int32" Name="connectivity" format="ascii">0</DataArray>
          <DataArray type="Int32" Name="offsets" format="ascii">1</DataArray></Verts>
      </Piece></PolyData></VTKFile>)");

    const Mesh mesh = read_mesh(folder / "two.vtp");

    EXPECT_EQ(mesh.num_points(), 4);
    EXPECT_EQ(mesh.cell_types, (std::vector<std::uint8_t>{1, 1, 5}));
    EXPECT_EQ(mesh.cells.indices, (std::vector<std::int32_t>{2, 3, 0, 1, 2}));
    EXPECT_EQ(mesh.cell_data[0].to_doubles(), (std::vector<double>{1, 3, 2}));
}

TEST(VtkXml, ReadsFacesInTheNewerLayout)
{
    const TemporaryFolder folder;
    // A line and a tetrahedron of four faces, the last stored first.
    const std::string text =
        R"(<VTKFile type="UnstructuredGrid" version="2.3"><UnstructuredGrid><Piece NumberOfPoints="4" NumberOfCells="2">
      <Points><DataArray type="Float32" NumberOfComponents="3" format="ascii">0 0 0 1 0 0 0 1 0 0 0 1</DataArray></Points>
      <Cells><DataArray type="Int64" Name="connectivity" format="ascii">0 1 0 1 2 3</DataArray>
        <DataArray type="Int64" Name="offsets" format="ascii">2 6</DataArray>
        <DataArray type="UInt8" Name="types" format="ascii">3 42</DataArray>
        <DataArray type="Int64" Name="face_connectivity" format="ascii">1 2 3 0 1 2 0 1 3 0 2 3</DataArray>
        <DataArray type="Int64" Name="face_offsets" format="ascii">3 6 9 12</DataArray>
        <DataArray type="Int64" Name="polyhedron_to_faces" format="ascii">1 2 3 0</DataArray>
        <DataArray type="Int64" Name="polyhedron_offsets" format="ascii">0 4</DataArray></Cells>
      </Piece></UnstructuredGrid></VTKFile>)";
    write_bytes(folder / "new.vtu", text);

    const Mesh mesh = read_mesh(folder / "new.vtu");

    EXPECT_NO_THROW(mesh.validate());
    EXPECT_TRUE(mesh.face_streams.row(0).empty());
    EXPECT_EQ(mesh.face_streams.indices,
              (std::vector<std::int32_t>{4, 3, 0, 1, 2, 3, 0, 1, 3, 3, 0, 2, 3, 3, 1, 2, 3}));
    write_bytes(folder / "new.vtu", std::string(text).replace(text.find("1 2 3 0</"), 7, "1 2 3 4"));
    EXPECT_THROW(read_mesh(folder / "new.vtu"), IoError);
}

TEST(VtkXml, KeepsArraysOfSeveralRoles)
{
    const TemporaryFolder folder;
    Mesh mesh = two_triangles();
    mesh.point_data.push_back(DataArray("n", ScalarType::Float32, 4, 3));
    mesh.point_data.back().attribute = "Normals Tangents";

    write_mesh(folder / "roles.vtp", mesh);

    EXPECT_EQ(read_mesh(folder / "roles.vtp").point_data.back().attribute, "Normals Tangents");
    EXPECT_EQ(vtk_difference(folder / "roles.vtp", mesh), "");
}

/// Bytes of this process that no file stands behind.
std::int64_t anonymous_bytes()
{
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
    return -1;
}

TEST(VtkXml, TakesNoMemoryForUncompressedArrays)
{
    const TemporaryFolder folder;
    constexpr std::int64_t num_points = 400'000, num_bytes = num_points * 100;
    {
        Mesh cloud;
        cloud.points = DataArray::from("Points", std::vector<float>(3 * num_points, 1.5f), 3);
        for (const char* name : {"a", "b", "c"})
            cloud.point_data.push_back(DataArray::from(name, std::vector<double>(3 * num_points, 0.25), 3));
        cloud.point_data.push_back(DataArray::from("d", std::vector<double>(2 * num_points, 0.5), 2));
        write_mesh(folder / "cloud.vtu", cloud, {.sync = false});
    }
    ASSERT_GT(std::filesystem::file_size(folder / "cloud.vtu"), num_bytes);
    const std::int64_t before = anonymous_bytes();

    const Mesh mesh = read_mesh(folder / "cloud.vtu");
    double sum = 0;
    for (const DataArray& array : mesh.point_data) sum += array.value(num_points - 1);

    EXPECT_EQ(sum, 1.25);
    EXPECT_LT(anonymous_bytes() - before, num_bytes / 20);
}

TEST(VtkXml, ViewsUncompressedArraysInTheFile)
{
    const TemporaryFolder folder;
    Mesh mesh = random_cloud(1000, 1);
    mesh.kind = MeshKind::Unstructured;
    write_mesh(folder / "cloud.vtu", mesh);

    const Mesh first = read_mesh(folder / "cloud.vtu");
    write_mesh(folder / "cloud.vtu", cube(1));  // the old file lives on under the mapping

    EXPECT_EQ(difference(first, mesh), "");
}

}  // namespace
}  // namespace meshard
