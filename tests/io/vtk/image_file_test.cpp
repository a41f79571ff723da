// SPDX-License-Identifier: Apache-2.0
#include "io/mesh_io.h"
#include "io/vtk/image_file.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <vtkCellData.h>
#include <vtkDataArray.h>
#include <vtkDoubleArray.h>
#include <vtkFloatArray.h>
#include <vtkImageData.h>
#include <vtkNew.h>
#include <vtkPointData.h>
#include <vtkXMLImageDataReader.h>
#include <vtkXMLImageDataWriter.h>

#include <numeric>

namespace meshard {
namespace {

ImageGrid small_image()
{
    ImageGrid grid;
    grid.first = {2, 0, -1};
    grid.num_points = {4, 3, 1};
    grid.origin = {0.1, -2, 1e-7};
    grid.spacing = {0.5, 0.25, 3};
    std::vector<float> values(24);
    std::iota(values.begin(), values.end(), 0.5F);
    grid.point_data.push_back(DataArray::from("u", std::vector<float>(values.begin(), values.begin() + 12)));
    grid.point_data.push_back(DataArray::from("vector", values, 2));
    grid.cell_data.push_back(DataArray::from("c", std::vector<double>{1, 2, 3, 4, 5, 6}));
    return grid;
}

TEST(ImageFile, IsReadByVtk)
{
    const TemporaryFolder folder;
    const auto grid = small_image();

    write_image(folder / "a.vti", grid);

    vtkNew<vtkXMLImageDataReader> reader;
    reader->SetFileName((folder / "a.vti").c_str());
    reader->Update();
    auto* image = reader->GetOutput();
    int extent[6];
    image->GetExtent(extent);
    EXPECT_EQ(std::vector<int>(extent, extent + 6), (std::vector<int>{2, 5, 0, 2, -1, -1}));
    EXPECT_EQ(image->GetOrigin()[0], 0.1);
    EXPECT_EQ(image->GetOrigin()[2], 1e-7);
    EXPECT_EQ(image->GetSpacing()[1], 0.25);
    ASSERT_EQ(image->GetPointData()->GetNumberOfArrays(), 2);
    for (int i = 0; i < 12; ++i) {
        EXPECT_EQ(image->GetPointData()->GetArray("u")->GetTuple1(i), grid.point_data[0].value(i));
        EXPECT_EQ(image->GetPointData()->GetArray("vector")->GetTuple2(i)[1], grid.point_data[1].value(i, 1));
    }
    EXPECT_EQ(image->GetCellData()->GetArray("c")->GetTuple1(5), 6);
}

TEST(ImageFile, ReadsWhatVtkWrites)
{
    const TemporaryFolder folder;
    vtkNew<vtkImageData> image;
    image->SetExtent(0, 3, 1, 3, 0, 0);
    image->SetSpacing(2, 3, 4);
    image->SetOrigin(-1, 0, 5);
    vtkNew<vtkDoubleArray> values;
    values->SetName("p");
    for (int i = 0; i < 12; ++i) values->InsertNextValue(i * i);
    image->GetPointData()->AddArray(values);
    for (const bool appended : {false, true}) {
        for (const bool compressed : {false, true}) {
            vtkNew<vtkXMLImageDataWriter> writer;
            writer->SetFileName((folder / "b.vti").c_str());
            writer->SetInputData(image);
            appended ? writer->SetDataModeToAppended() : writer->SetDataModeToAscii();
            compressed ? writer->SetCompressorTypeToZLib() : writer->SetCompressorTypeToNone();
            ASSERT_TRUE(writer->Write());

            const auto grid = read_image(folder / "b.vti");

            EXPECT_EQ(grid.first, (std::array<std::int64_t, 3>{0, 1, 0}));
            EXPECT_EQ(grid.num_points, (std::array<std::int64_t, 3>{4, 3, 1}));
            EXPECT_EQ(grid.spacing, (std::array<double, 3>{2, 3, 4}));
            EXPECT_EQ(grid.origin, (std::array<double, 3>{-1, 0, 5}));
            ASSERT_EQ(grid.point_data.size(), 1U);
            for (int i = 0; i < 12; ++i) EXPECT_EQ(grid.point_data[0].value(i), i * i);
        }
    }
}

TEST(ImageFile, IsTheSameWrittenAndRead)
{
    const TemporaryFolder folder;
    auto grid = small_image();
    grid.direction = {0, 1, 0, 1, 0, 0, 0, 0, -1};
    grid.field_data.push_back(DataArray::from("time", std::vector<double>{3.25}));

    write_image(folder / "a.vti", grid);
    const auto found = read_image(folder / "a.vti");

    EXPECT_EQ(found.first, grid.first);
    EXPECT_EQ(found.origin, grid.origin);
    EXPECT_EQ(found.spacing, grid.spacing);
    EXPECT_EQ(found.direction, grid.direction);
    EXPECT_TRUE(found.point_data.at(1).same_bits(grid.point_data[1]));
    EXPECT_TRUE(found.cell_data.at(0).same_bits(grid.cell_data[0]));
    EXPECT_TRUE(found.field_data.at(0).same_bits(grid.field_data[0]));
}

TEST(ImageFile, AsAMeshFarFromZeroHasItsPointsApart)
{
    ImageGrid grid;
    grid.num_points = {4, 4, 3};
    grid.origin = {500000, 5.4e6, 0};
    grid.spacing = {0.01, 0.01, 0.01};

    const auto mesh = image_mesh(grid);

    EXPECT_DOUBLE_EQ(mesh.points.value(47, 0), 500000.03);
    EXPECT_DOUBLE_EQ(mesh.points.value(47, 1), 5400000.03);
}

TEST(ImageFile, AsAMeshHasItsPointsAndCellsInOrder)
{
    ImageGrid grid;
    grid.first = {1, 0, 0};
    grid.num_points = {3, 2, 2};
    grid.origin = {10, 0, 0};
    grid.spacing = {2, 1, 5};

    const auto mesh = image_mesh(grid);

    mesh.validate();
    ASSERT_EQ(mesh.num_points(), 12);
    ASSERT_EQ(mesh.num_cells(), 2);
    EXPECT_EQ(mesh.points.value(0, 0), 12);
    EXPECT_EQ(mesh.points.value(11, 0), 16);
    EXPECT_EQ(mesh.points.value(11, 2), 5);
    const auto cell = mesh.cells.row(1);
    EXPECT_EQ(std::vector<std::int32_t>(cell.begin(), cell.end()),
              (std::vector<std::int32_t>{1, 2, 5, 4, 7, 8, 11, 10}));
    EXPECT_EQ(mesh.cell_types[1], 12);

    grid.num_points = {3, 1, 2};
    grid.direction = {0, 0, 1, 0, 1, 0, 1, 0, 0};  // x and z change places
    const auto plane = image_mesh(grid);
    plane.validate();
    ASSERT_EQ(plane.num_cells(), 2);
    EXPECT_EQ(plane.cell_types[0], 9);
    EXPECT_EQ(plane.points.value(5, 0), 15);  // 10 + one step of 5
    EXPECT_EQ(plane.points.value(5, 2), 6);   // three steps of 2
    const auto square = plane.cells.row(1);
    EXPECT_EQ(std::vector<std::int32_t>(square.begin(), square.end()), (std::vector<std::int32_t>{1, 2, 5, 4}));

    grid.num_points = {3, 1, 1};
    EXPECT_TRUE(throws_with<InvalidInput>("3 1 1 points has no cells", [&] { image_mesh(grid); }));
}

TEST(ImageFile, IsAMeshToThoseWhoReadMeshes)
{
    const TemporaryFolder folder;
    const auto grid = small_image();
    write_image(folder / "a.vti", grid);

    const auto mesh = read_mesh(folder / "a.vti");

    mesh.validate();
    EXPECT_EQ(mesh.num_points(), 12);
    EXPECT_EQ(mesh.num_cells(), 6);
    EXPECT_NEAR(mesh.points.value(11, 0), 0.1 + 5 * 0.5, 1e-6);
    EXPECT_NEAR(mesh.points.value(11, 1), -2 + 2 * 0.25, 1e-6);
    EXPECT_EQ(find_array(mesh.point_data, "vector")->to_doubles(), grid.point_data[1].to_doubles());
    EXPECT_EQ(find_array(mesh.cell_data, "c")->to_doubles(), grid.cell_data[0].to_doubles());
}

TEST(ImageFile, RefusesWhatItCannotRead)
{
    const TemporaryFolder folder;
    const auto refusal = [&](const std::string& text, const std::string& content) {
        write_bytes(folder / "bad.vti", content);
        EXPECT_TRUE(throws_with<IoError>(text, [&] { read_image(folder / "bad.vti"); }));
    };
    const std::string head = "<VTKFile type=\"ImageData\" version=\"1.0\" byte_order=\"LittleEndian\">",
                      end = "</ImageData></VTKFile>";
    refusal("image data (.vti) are expected",
            "<VTKFile type=\"PolyData\" version=\"1.0\" byte_order=\"LittleEndian\"><PolyData/></VTKFile>");
    refusal("its WholeExtent is '0 1 0', 6 numbers are expected",
            head + "<ImageData WholeExtent=\"0 1 0\"><Piece/>" + end);
    refusal("which is no grid that fits memory", head + "<ImageData WholeExtent=\"0 -1 0 0 0 0\"><Piece/>" + end);
    refusal("which is no grid that fits memory",
            head + "<ImageData WholeExtent=\"0 2000000000 0 2000000000 0 9\"><Piece/>" + end);
    refusal("its piece has the extent '0 0 0 1 0 0', the whole '0 1 0 1 0 0'",
            head + "<ImageData WholeExtent=\"0 1 0 1 0 0\"><Piece Extent=\"0 0 0 1 0 0\"/>" + end);
    EXPECT_TRUE(throws_with<IoError>("none.vti", [&] { read_image(folder / "none.vti"); }));
    auto grid = small_image();
    grid.num_points[0] = 5;
    EXPECT_TRUE(throws_with<InvalidInput>("array 'u' of the points has 12 rows, expected 15",
                                          [&] { write_image(folder / "a.vti", grid); }));
    EXPECT_FALSE(std::filesystem::exists(folder / "a.vti"));
}

}  // namespace
}  // namespace meshard
