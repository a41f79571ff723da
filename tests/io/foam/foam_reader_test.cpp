// SPDX-License-Identifier: Apache-2.0
#include "io/foam/foam_reader.h"
#include "io/mesh_io.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/foam_case.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <vtkCell.h>
#include <vtkCellData.h>
#include <vtkCompositeDataSet.h>
#include <vtkDataArray.h>
#include <vtkInformation.h>
#include <vtkMultiBlockDataSet.h>
#include <vtkNew.h>
#include <vtkOpenFOAMReader.h>
#include <vtkPointData.h>
#include <vtkPolyData.h>
#include <vtkSmartPointer.h>
#include <vtkUnstructuredGrid.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace meshard {
namespace {

using Points = std::multiset<std::array<float, 3>>;  // the precision in which VTK keeps points
using Vec = std::array<double, 3>;

Vec point_of(const Mesh& mesh, std::int32_t point)
{
    return {mesh.points.value(point, 0), mesh.points.value(point, 1), mesh.points.value(point, 2)};
}

Points places(const Mesh& mesh, std::int64_t cell)
{
    Points points;
    for (const std::int32_t point : mesh.cells.row(cell)) {
        const Vec x = point_of(mesh, point);
        points.insert({static_cast<float>(x[0]), static_cast<float>(x[1]), static_cast<float>(x[2])});
    }
    return points;
}

double det(const Vec& a, const Vec& b, const Vec& c, const Vec& d)
{
    Vec u{}, v{}, w{};
    for (int i = 0; i < 3; ++i) {
        u[i] = b[i] - a[i];
        v[i] = c[i] - a[i];
        w[i] = d[i] - a[i];
    }
    return u[0] * (v[1] * w[2] - v[2] * w[1]) - u[1] * (v[0] * w[2] - v[2] * w[0]) + u[2] * (v[0] * w[1] - v[1] * w[0]);
}

/// Six times the signed volume of a cell in VTK's order of points; of a polyhedron with faces that look outwards.
double six_volumes(const Mesh& mesh, std::int64_t cell)
{
    std::vector<Vec> p;
    for (const std::int32_t point : mesh.cells.row(cell)) p.push_back(point_of(mesh, point));
    double sum = 0;
    const auto tet = [&](int a, int b, int c, int d) { sum += det(p[a], p[b], p[c], p[d]); };
    switch (mesh.cell_types[cell]) {
    case 10:
        tet(0, 1, 2, 3);
        break;
    case 14:
        tet(0, 1, 2, 4), tet(0, 2, 3, 4);
        break;
    case 13:
        tet(0, 2, 1, 3), tet(1, 2, 5, 3), tet(1, 5, 4, 3);
        break;  // the triangle 0 1 2 looks outwards
    case 12:
        for (const auto& [b, c] :
             {std::pair(1, 2), std::pair(2, 3), std::pair(3, 7), std::pair(7, 4), std::pair(4, 5), std::pair(5, 1)})
            tet(0, b, c, 6);
        break;
    default: {
        const auto stream = mesh.face_streams.row(cell);
        for (std::size_t at = 1; at < stream.size(); at += 1 + static_cast<std::size_t>(stream[at]))
            for (std::int32_t k = 2; k < stream[at]; ++k)
                sum += det({0, 0, 0}, point_of(mesh, stream[at + 1]), point_of(mesh, stream[at + k]),
                           point_of(mesh, stream[at + 1 + k]));
    }
    }
    return sum;
}

vtkSmartPointer<vtkMultiBlockDataSet> read_with_vtks_reader(const std::filesystem::path& file)
{
    vtkNew<vtkOpenFOAMReader> reader;
    reader->SetFileName(file.c_str());
    reader->UpdateInformation();
    reader->EnableAllPatchArrays();
    reader->EnableAllCellArrays();
    reader->EnableAllPointArrays();
    reader->SetCreateCellToPoint(false);
    reader->SetDecomposePolyhedra(false);
    reader->UpdateTimeStep(0.5);
    return reader->GetOutput();
}

vtkDataSet* find_block(vtkMultiBlockDataSet& tree, const std::string& name)
{
    for (unsigned i = 0; i < tree.GetNumberOfBlocks(); ++i) {
        if (tree.HasMetaData(i) != 0 && name == tree.GetMetaData(i)->Get(vtkCompositeDataSet::NAME()))
            return vtkDataSet::SafeDownCast(tree.GetBlock(i));
        if (auto* inner = vtkMultiBlockDataSet::SafeDownCast(tree.GetBlock(i)))
            if (auto* found = find_block(*inner, name)) return found;
    }
    return nullptr;
}

void expect_as_vtk(vtkDataSet* data, const Mesh& mesh)
{
    ASSERT_NE(data, nullptr);
    ASSERT_EQ(data->GetNumberOfCells(), mesh.num_cells());
    ASSERT_EQ(data->GetNumberOfPoints(), mesh.num_points());
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        EXPECT_EQ(data->GetCellType(i), mesh.cell_types[i]) << i;
        Points points;
        for (vtkIdType k = 0; k < data->GetCell(i)->GetNumberOfPoints(); ++k) {
            Vec x{};
            data->GetPoint(data->GetCell(i)->GetPointId(static_cast<int>(k)), x.data());
            points.insert({static_cast<float>(x[0]), static_cast<float>(x[1]), static_cast<float>(x[2])});
        }
        EXPECT_EQ(points, places(mesh, i)) << i;
    }
    for (const char* name : {"p", "U", "S"}) {
        vtkDataArray* theirs = data->GetCellData()->GetArray(name);
        const DataArray* ours = find_array(mesh.cell_data, name);
        ASSERT_TRUE(theirs != nullptr && ours != nullptr) << name;
        ASSERT_EQ(theirs->GetNumberOfComponents(), ours->num_components()) << name;
        for (std::int64_t i = 0; i < mesh.num_cells(); ++i)
            for (int c = 0; c < ours->num_components(); ++c)
                EXPECT_FLOAT_EQ(theirs->GetComponent(i, c), ours->value(i, c)) << name << " " << i << " " << c;
    }
}

class FoamCases : public testing::TestWithParam<FoamCaseStyle> {};

TEST_P(FoamCases, AreReadAsTheyWereWritten)
{
    const TemporaryFolder folder;
    for (const Mesh& mesh : {cube(3), tet_cube(2), polyhedral_cube(2), mixed_cells()}) {
        const auto path = folder / ("case" + std::to_string(mesh.num_cells()));
        write_foam_case(path, mesh, GetParam());

        const Mesh read = read_mesh(path);

        read.validate();
        std::vector<std::int64_t> solids;
        for (std::int64_t i = 0; i < mesh.num_cells(); ++i)
            if (cell_dimension(mesh.cell_types[i]) == 3) solids.push_back(i);
        ASSERT_EQ(read.num_cells(), static_cast<std::int64_t>(solids.size()));
        ASSERT_EQ(read.num_points(), mesh.num_points());
        for (std::int64_t i = 0; i < read.num_cells(); ++i) {
            EXPECT_EQ(places(read, i), places(mesh, solids[i])) << i;
            const auto type = mesh.cell_types[solids[i]];
            // Polyhedra with the faces of a hexahedron become hexahedra.
            EXPECT_EQ(read.cell_types[i], type == 42 && read.cells.row(i).size() == 8 ? 12 : type) << i;
            EXPECT_GT(six_volumes(read, i), 0) << i;
            EXPECT_EQ(find_array(read.cell_data, "p")->value(i), 10 + i);
            EXPECT_EQ(find_array(read.cell_data, "U")->value(i, 1), 2 * i);
            EXPECT_EQ(find_array(read.cell_data, "S")->value(i, 1), i + 3);  // YY, the fourth in the file
            EXPECT_EQ(find_array(read.cell_data, "T")->value(i), 300);
            EXPECT_EQ(find_array(read.cell_data, "CellZoneId")->value(i), i % 2 == 0 ? 0 : -1);
        }
        for (std::int64_t i = 0; i < read.num_points(); ++i) EXPECT_EQ(find_array(read.point_data, "D")->value(i), i);
        EXPECT_EQ(find_array(read.cell_data, "p")->unit, "m^2 s^-2");
        EXPECT_EQ(find_array(read.field_data, "TimeValue")->value(0), 0.5);
        EXPECT_EQ(find_array(read.field_data, "PatchName")->strings()[0], "left");
        EXPECT_EQ(find_array(read.field_data, "PatchType")->strings()[1], "patch");
        EXPECT_EQ(find_array(read.field_data, "CellZoneName")->strings()[0], "even");
    }
}

TEST_P(FoamCases, HavePatchesAsSurfaces)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case", cube(3), GetParam());
    ReadOptions options;
    options.blocks = {"boundary"};

    const auto blocks = read_blocks(folder / "case" / "case.foam", options);
    const Mesh skin = read_mesh(folder / "case", options);

    ASSERT_EQ(blocks.size(), 2);
    EXPECT_EQ(blocks[0].name, "boundary/left");
    EXPECT_EQ(blocks[0].mesh.num_cells(), 9);
    EXPECT_EQ(blocks[0].mesh.num_points(), 16);
    EXPECT_EQ(blocks[1].mesh.num_cells(), 45);
    for (std::int64_t i = 0; i < 9; ++i) {
        EXPECT_EQ(find_array(blocks[0].mesh.cell_data, "p")->value(i), 1000 + i);
        EXPECT_EQ(find_array(blocks[0].mesh.cell_data, "T")->value(i), 400);
    }
    for (std::int64_t i = 0; i < 45; ++i) EXPECT_EQ(find_array(blocks[1].mesh.cell_data, "T")->value(i), 300);
    EXPECT_EQ(skin.kind, MeshKind::Surface);
    EXPECT_EQ(skin.num_cells(), 54);
    EXPECT_EQ(skin.num_points(), 56);  // 4^3 without the inner 2^3: the patches share their common points
    EXPECT_EQ(find_array(skin.point_data, "GlobalPointIds"), nullptr);
    EXPECT_EQ(find_array(skin.cell_data, "PatchId")->value(0), 0);
    EXPECT_EQ(find_array(skin.cell_data, "PatchId")->value(53), 1);
}

INSTANTIATE_TEST_SUITE_P(
    All, FoamCases,
    testing::Values(FoamCaseStyle{}, FoamCaseStyle{.binary = true}, FoamCaseStyle{.compressed = true},
                    FoamCaseStyle{.binary = true, .compressed = true}, FoamCaseStyle{.binary = true, .label_bits = 64},
                    FoamCaseStyle{.binary = true, .scalar_bits = 32},
                    FoamCaseStyle{.binary = true, .compressed = true, .label_bits = 64, .scalar_bits = 32}));

TEST(FoamReader, AgreesWithVtk)
{
    const TemporaryFolder folder;
    for (const bool binary : {false, true})
        for (const Mesh& mesh : {cube(3), tet_cube(2), mixed_cells()}) {
            const auto path = folder / ((binary ? "binary" : "ascii") + std::to_string(mesh.num_cells()));
            write_foam_case(path, mesh, {.binary = binary});
            std::filesystem::remove(path / "0.5/T");  // VTK follows neither `$hot` nor patterns of names
            const auto theirs = read_with_vtks_reader(path / "case.foam");
            ReadOptions options;
            options.blocks = {"internalMesh", "boundary"};

            const auto blocks = read_blocks(path, options);

            ASSERT_EQ(blocks.size(), 3);
            expect_as_vtk(find_block(*theirs, "internalMesh"), blocks[0].mesh);
            EXPECT_EQ(find_block(*theirs, "left")->GetNumberOfCells(), blocks[1].mesh.num_cells());
            EXPECT_EQ(find_block(*theirs, "rest")->GetNumberOfCells(), blocks[2].mesh.num_cells());
        }
}

TEST(FoamReader, ReadsTheTimeThatIsAskedFor)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case", cube(2));
    ReadOptions options;
    options.time = 0;

    const Mesh mesh = read_mesh(folder / "case", options);

    EXPECT_EQ(mesh.cell_data.size(), 2);  // T and the zone
    EXPECT_EQ(find_array(mesh.cell_data, "T")->value(3), 1);
    options.time = 0.25;
    EXPECT_TRUE(throws_with<IoError>("there are 0, 0.5", [&] { read_mesh(folder / "case", options); }));
}

TEST(FoamReader, TakesNoZonesOfAnOlderMesh)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case", cube(2));
    ASSERT_NE(find_array(read_mesh(folder / "case").cell_data, "CellZoneId"), nullptr);
    std::filesystem::create_directories(folder / "case/0.5/polyMesh");
    for (const char* name : {"points", "faces", "owner", "neighbour", "boundary"})
        std::filesystem::copy(folder / "case/constant/polyMesh" / name, folder / "case/0.5/polyMesh" / name);

    EXPECT_EQ(find_array(read_mesh(folder / "case").cell_data, "CellZoneId"), nullptr);

    std::filesystem::remove(folder / "case/0.5/polyMesh/faces");  // points that move have the zones of the faces
    EXPECT_NE(find_array(read_mesh(folder / "case").cell_data, "CellZoneId"), nullptr);
}

TEST(FoamReader, JoinsCellsAndPatches)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case", cube(2));
    ReadOptions options;
    options.blocks = {"internalMesh", "boundary/left"};

    const Mesh mesh = read_mesh(folder / "case", options);

    EXPECT_EQ(mesh.num_cells(), 8 + 4);
    EXPECT_EQ(mesh.num_points(), 27);
    EXPECT_EQ(mesh.cell_types[8], 9);
    EXPECT_EQ(find_array(mesh.cell_data, "PatchId")->value(7), -1);
    EXPECT_EQ(find_array(mesh.cell_data, "PatchId")->value(8), 0);
    options.blocks = {"boundary/lefd"};
    EXPECT_TRUE(
        throws_with<InvalidInput>("Did you mean 'boundary/left'?", [&] { read_mesh(folder / "case", options); }));
}

TEST(FoamReader, LeavesOutWhatOnlyOpenFoamCanEvaluate)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case", cube(2));
    write_bytes(folder / "case/0.5/T",
                "FoamFile { version 2.0; format ascii; class volScalarField; object T; }\n"
                "dimensions [0 0 0 1 0 0 0];\ninternalField uniform #calc \"1 + 2\";\nboundaryField { }\n");
    std::vector<std::string> warnings;
    ReadOptions options;
    options.warnings = &warnings;

    const Mesh mesh = read_mesh(folder / "case", options);

    EXPECT_EQ(find_array(mesh.cell_data, "T"), nullptr);
    ASSERT_EQ(warnings.size(), 1);
    EXPECT_NE(warnings[0].find("the field 'T' is left out"), std::string::npos) << warnings[0];
}

TEST(FoamReader, IncludesFilesOfTheCaseAndRefusesConditions)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case", cube(2));
    const auto write_field = [&](const std::string& entries) {
        write_bytes(folder / "case/0.5/T", "FoamFile { version 2.0; format ascii; class volScalarField; object T; }\n"
                                           "dimensions [0 0 0 1 0 0 0];\n" +
                                               entries + "internalField uniform $warm;\nboundaryField { }\n");
    };
    std::filesystem::create_directories(folder / "case/system");
    write_bytes(folder / "case/system/values", "warm 7;\n");
    for (const std::string name : {"$FOAM_CASE/system/values", "<case>/system/values", "../system/values"}) {
        write_field("#include \"" + name + "\"\n");
        EXPECT_EQ(find_array(read_mesh(folder / "case").cell_data, "T")->value(0), 7) << name;
    }
    write_field("#includeEtc \"caseDicts/none\"\nwarm 8;\n");
    EXPECT_EQ(find_array(read_mesh(folder / "case").cell_data, "T")->value(0), 8);
    write_field("#ifeq 1 1\nwarm 1;\n#else\nwarm 2;\n#endif\n");
    EXPECT_TRUE(throws_with<IoError>("the directive '#ifeq'", [&] { read_mesh(folder / "case"); }));
}

TEST(FoamReader, LooksForReferencesInTheNearestDictionaryFirst)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case", cube(2));
    write_bytes(folder / "case/0.5/T",
                "FoamFile { version 2.0; format ascii; class volScalarField; object T; }\n"
                "dimensions [0 0 0 1 0 0 0];\nwarm 1;\ngroup { warm 7; }\ninternalField uniform ${group.warm};\n"
                "boundaryField { left { type fixedValue; warm 5; value uniform $warm; }\n"
                "rest { $left; outer 1; value uniform $:warm; } }\n");
    ReadOptions options;
    options.blocks = {"internalMesh", "boundary"};

    const auto blocks = read_blocks(folder / "case", options);

    const auto value = [&](int block) { return find_array(blocks.at(block).mesh.cell_data, "T")->value(0); };
    EXPECT_EQ(value(0), 7);
    EXPECT_EQ(value(1), 5);
    EXPECT_EQ(value(2), 1);
}

TEST(FoamReader, MergesDictionariesThatStandTwice)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case", cube(2));
    const std::string header = "FoamFile { version 2.0; format ascii; class volScalarField; object T; }\n"
                               "dimensions [0 0 0 1 0 0 0];\n";
    write_bytes(folder / "case/0.5/bc",
                "left { type fixedValue; value uniform 1; } rest { type fixedValue; value uniform 2; }\n");
    ReadOptions options;
    options.blocks = {"internalMesh", "boundary"};
    const auto values = [&](const std::string& entries) {
        write_bytes(folder / "case/0.5/T", header + entries);
        std::vector<double> found;
        for (const auto& block : read_blocks(folder / "case", options))
            found.push_back(find_array(block.mesh.cell_data, "T")->value(0));
        return found;
    };
    const std::string inside = "internalField uniform 7;\n";
    EXPECT_EQ(values(inside + "boundaryField { #include \"bc\"\n left { phi phiAir; } }"),
              (std::vector<double>{7, 1, 2}));
    EXPECT_EQ(values(inside + "boundaryField { #include \"bc\"\n left { value uniform 3; } }"),
              (std::vector<double>{7, 3, 2}));
    EXPECT_EQ(values(inside + "boundaryField { #include \"bc\"\n } boundaryField { rest { value uniform 4; } }"),
              (std::vector<double>{7, 1, 4}));
    EXPECT_EQ(
        values(inside + "boundaryField { left { type zeroGradient; } #include \"bc\"\n left { type zeroGradient; } }"),
        (std::vector<double>{7, 7, 2}));
    EXPECT_EQ(values("#inputMode merge\n" + inside + "boundaryField { #include \"bc\"\n }"),
              (std::vector<double>{7, 1, 2}));
    EXPECT_TRUE(throws_with<IoError>("#inputMode protect", [&] { values("#inputMode protect\n" + inside); }));
}

TEST(FoamReader, PassesOverCode)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case", cube(2));
    ReadOptions options;
    options.blocks = {"boundary/left"};
    for (const std::string code : {"operator==(min(10, 0.1*t));", "if (a < b) { x = foo(a, b); }",
                                   "vectorField f(patch().size(), Zero);\n#include \"x.H\"", "char c = '\"';"}) {
        write_bytes(folder / "case/0.5/T",
                    "FoamFile { version 2.0; format ascii; class volScalarField; object T; }\n"
                    "dimensions [0 0 0 1 0 0 0];\ninternalField uniform 7;\nboundaryField { left { type "
                    "codedFixedValue; name x; code #{ " +
                        code + " #}; value uniform 4; } }\n");
        EXPECT_EQ(find_array(read_mesh(folder / "case", options).cell_data, "T")->value(0), 4) << code;
    }
}

TEST(FoamReader, TakesTheLastPatternThatMatchesAPatchWithoutAnEntry)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case", cube(2));
    ReadOptions options;
    options.blocks = {"boundary"};
    const auto values = [&](const std::string& conditions) {
        write_bytes(folder / "case/0.5/T", "FoamFile { version 2.0; format ascii; class volScalarField; object T; }\n"
                                           "dimensions [0 0 0 1 0 0 0];\ninternalField uniform 7;\nboundaryField { " +
                                               conditions + " }\n");
        std::vector<double> found;
        for (const auto& block : read_blocks(folder / "case", options))
            found.push_back(find_array(block.mesh.cell_data, "T")->value(0));
        return found;
    };
    const std::string all = "\".*\" { type fixedValue; value uniform 9; }";

    EXPECT_EQ(values(all), (std::vector<double>{9, 9}));
    EXPECT_EQ(values(all + " \"l\\w+\" { type fixedValue; value uniform 4; }"), (std::vector<double>{4, 9}));
    EXPECT_EQ(values(all + " \"(?i)LEFT|no\" { type fixedValue; value uniform 4; }"), (std::vector<double>{4, 9}));
    EXPECT_EQ(values("left { type fixedValue; value uniform 4; } " + all), (std::vector<double>{4, 9}));
    auto patches = read_bytes(folder / "case/constant/polyMesh/boundary");
    const auto type = patches.find("type", patches.find("left"));
    patches.replace(type, patches.find(';', type) - type, "type empty");
    write_bytes(folder / "case/constant/polyMesh/boundary", patches);
    EXPECT_EQ(values(all), (std::vector<double>{7, 9}));
}

TEST(FoamReader, RefusesTwoFoldersOfTheTimeThatIsRead)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case", cube(2));
    std::filesystem::copy(folder / "case/0.5", folder / "case/0.50");
    ReadOptions options;
    for (const auto time : {std::optional<double>(), std::optional<double>(0.5)}) {
        options.time = time;
        EXPECT_TRUE(throws_with<IoError>("has the time 0.5 twice", [&] { read_mesh(folder / "case", options); }));
    }
    std::filesystem::copy(folder / "case/0.5", folder / "case/0.75");
    EXPECT_EQ(read_mesh(folder / "case").num_cells(), 8);
}

TEST(FoamReader, SaysWhatIsMissing)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case", cube(2));
    std::filesystem::remove(folder / "case/constant/polyMesh/owner");
    EXPECT_TRUE(throws_with<IoError>("owner does not exist", [&] { read_mesh(folder / "case"); }));
    std::filesystem::remove_all(folder / "case/constant/polyMesh");
    EXPECT_TRUE(throws_with<IoError>("the case has no mesh", [&] { read_mesh(folder / "case"); }));
    std::filesystem::create_directory(folder / "case/processor0");
    EXPECT_TRUE(throws_with<IoError>("the case has no mesh", [&] { read_mesh(folder / "case"); }));
    EXPECT_TRUE(throws_with<IoError>("does not exist", [&] { read_mesh(folder / "absent.foam"); }));
}

std::vector<std::int32_t> owners_by_turns(std::int32_t num_cells, std::int32_t num_parts)
{
    std::vector<std::int32_t> owners;
    for (std::int32_t i = 0; i < num_cells; ++i) owners.push_back(i / 2 % num_parts);
    return owners;
}

TEST(FoamReader, ReadsDecomposedCasesAsTheyWereBefore)
{
    const TemporaryFolder folder;
    for (const bool binary : {false, true})
        for (const Mesh& mesh : {cube(3), tet_cube(2), mixed_cells()}) {
            const std::string name = (binary ? "binary" : "ascii") + std::to_string(mesh.num_cells());
            write_foam_case(folder / name, mesh, {.binary = binary});
            const auto num_solids = static_cast<std::int32_t>(
                std::ranges::count_if(mesh.cell_types, [](std::uint8_t type) { return cell_dimension(type) == 3; }));
            write_decomposed_foam_case(folder / (name + "d"), mesh, owners_by_turns(num_solids, 3), true,
                                       {.binary = binary});
            for (const bool with_patches : {false, true}) {
                ReadOptions options;
                if (with_patches) options.blocks = {"internalMesh", "boundary"};
                const Mesh whole = read_mesh(folder / name, options),
                           decomposed = read_mesh(folder / (name + "d"), options);
                ASSERT_EQ(decomposed.num_cells(), whole.num_cells()) << name;
                EXPECT_TRUE(decomposed.points.same_bits(whole.points)) << name;
                EXPECT_EQ(decomposed.cell_types, whole.cell_types) << name;
                for (std::int64_t i = 0; i < whole.num_cells(); ++i) {  // a cell may begin at another of its corners
                    EXPECT_EQ(places(decomposed, i), places(whole, i)) << name << " cell " << i;
                    if (cell_dimension(whole.cell_types[i]) == 3) {
                        EXPECT_DOUBLE_EQ(six_volumes(decomposed, i), six_volumes(whole, i)) << name << " cell " << i;
                    }
                }
                for (const auto group : {&Mesh::point_data, &Mesh::cell_data, &Mesh::field_data}) {
                    ASSERT_EQ((decomposed.*group).size(), (whole.*group).size()) << name;
                    for (const DataArray& array : whole.*group)
                        EXPECT_TRUE(require_array(decomposed.*group, array.name(), name, "").same_bits(array))
                            << name << " " << array.name();
                }
            }
        }
}

TEST(FoamReader, JoinsDecomposedCasesThatHaveNoAddressing)
{
    const TemporaryFolder folder;
    write_decomposed_foam_case(folder / "case", cube(3), owners_by_turns(27, 4), false);

    const Mesh mesh = read_mesh(folder / "case");

    mesh.validate();
    EXPECT_EQ(mesh.num_points(), 64);
    std::multiset<Points> expected, found;
    for (std::int64_t i = 0; i < 27; ++i) {
        expected.insert(places(cube(3), i));
        found.insert(places(mesh, i));
        const double x = find_array(mesh.cell_data, "p")->value(i) - 10;  // the cell's number in the whole
        EXPECT_EQ(places(mesh, i), places(cube(3), static_cast<std::int64_t>(x)));
    }
    EXPECT_EQ(found, expected);
    for (std::int64_t i = 0; i < 64; ++i)
        EXPECT_EQ(point_of(mesh, static_cast<std::int32_t>(i)),
                  point_of(cube(3), static_cast<std::int32_t>(find_array(mesh.point_data, "D")->value(i, 0))));
}

TEST(FoamReader, TakesTheProcessorsWhereTheyAreFurther)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case", cube(2));
    write_decomposed_foam_case(folder / "case", cube(2), owners_by_turns(8, 2), true);
    EXPECT_EQ(find_array(read_mesh(folder / "case").field_data, "PatchNumFaces")->value(1), 20);
    for (const char* processor : {"case/processor0", "case/processor1"})
        std::filesystem::rename(folder / processor / "0.5", folder / processor / "0.75");

    EXPECT_EQ(find_array(read_mesh(folder / "case").field_data, "TimeValue")->value(0), 0.75);
    ReadOptions options;
    options.time = 0.5;
    EXPECT_EQ(find_array(read_mesh(folder / "case", options).field_data, "TimeValue")->value(0), 0.5);
    options.time = 3;
    EXPECT_TRUE(throws_with<IoError>("has no such time", [&] { read_mesh(folder / "case", options); }));
}

TEST(FoamReader, RefusesProcessorsThatDoNotFitTogether)
{
    const TemporaryFolder folder;
    const auto write = [&](bool with_addressing) {
        std::filesystem::remove_all(folder / "case");
        write_decomposed_foam_case(folder / "case", cube(2), owners_by_turns(8, 3), with_addressing);
    };
    const auto refuses = [&](const std::string& text) {
        return throws_with<IoError>(text, [&] { read_mesh(folder / "case"); });
    };
    write(true);
    std::filesystem::rename(folder / "case/processor1", folder / "case/processor7");
    EXPECT_TRUE(refuses("but no processor1"));
    write(true);
    write_bytes(folder / "case/processor1/constant/polyMesh/cellProcAddressing",
                "FoamFile { format ascii; class labelList; } 1(0)");
    EXPECT_TRUE(refuses("has 1 rows, the mesh beside it"));
    write(true);
    write_bytes(folder / "case/processor1/constant/polyMesh/cellProcAddressing",
                read_bytes(folder / "case/processor0/constant/polyMesh/cellProcAddressing"));
    EXPECT_THROW(read_mesh(folder / "case"), IoError);
    for (const bool with_addressing : {false, true}) {
        write(with_addressing);
        std::filesystem::remove_all(folder / "case/processor2");
        EXPECT_TRUE(refuses("leads to processor2, whose folder is missing"));
    }
    write(false);
    std::filesystem::remove_all(folder / "case/processor2");
    std::filesystem::copy(folder / "case/processor0", folder / "case/processor2",
                          std::filesystem::copy_options::recursive);
    EXPECT_TRUE(refuses("do not have the same faces between them"));
    write(false);
    std::filesystem::create_directories(folder / "case/processors3/constant");
    EXPECT_TRUE(refuses("collated form"));
}

TEST(FoamReader, RefusesALatestTimeThatAProcessorLacks)
{
    for (const std::string lacking : {"processor0", "processor1"}) {
        const TemporaryFolder folder;
        write_decomposed_foam_case(folder / "case", cube(2), owners_by_turns(8, 2), true);
        std::filesystem::remove_all(folder / "case" / lacking / "0.5");
        ReadOptions options;

        EXPECT_TRUE(
            throws_with<IoError>(lacking + " has no time 0.5, which", [&] { read_mesh(folder / "case", options); }));
        options.time = 0;
        EXPECT_EQ(find_array(read_mesh(folder / "case", options).cell_data, "T")->value(7), 1);
    }
}

TEST(FoamReader, ReadsRegionsBesideAMeshThatWasSplitIfTheyAreChosen)
{
    const TemporaryFolder folder;
    write_foam_case(folder / "case", cube(3));
    write_foam_case(folder / "heater", cube(1));
    std::filesystem::create_directory(folder / "case/constant/heater");
    std::filesystem::rename(folder / "heater/constant/polyMesh", folder / "case/constant/heater/polyMesh");
    std::filesystem::rename(folder / "heater/0.5", folder / "case/0.5/heater");
    std::vector<std::string> warnings;
    ReadOptions options;
    options.warnings = &warnings;

    EXPECT_EQ(read_mesh(folder / "case", options).num_cells(), 27);
    ASSERT_EQ(warnings.size(), 1U);
    EXPECT_NE(warnings[0].find("regions, which are not: heater"), std::string::npos) << warnings[0];
    options.blocks = {"heater/internalMesh"};
    const Mesh heater = read_mesh(folder / "case", options);
    EXPECT_EQ(heater.num_cells(), 1);
    EXPECT_EQ(find_array(heater.cell_data, "T")->value(0), 300);
    EXPECT_EQ(warnings.size(), 1U);
}

TEST(FoamReader, NumbersPatchesAndZonesOverAllRegions)
{
    const TemporaryFolder folder;
    for (const std::string region : {"air", "heater"}) {
        write_foam_case(folder / region, cube(region == "air" ? 2 : 1));
        for (const char* parent : {"constant", "0.5"}) std::filesystem::create_directories(folder / "case" / parent);
        std::filesystem::create_directory(folder / "case/constant" / region);
        std::filesystem::rename(folder / region / "constant/polyMesh", folder / "case/constant" / region / "polyMesh");
        std::filesystem::rename(folder / region / "0.5", folder / "case/0.5" / region);
    }
    write_bytes(folder / "case/case.foam", "");
    std::vector<std::string> warnings;
    ReadOptions options;
    options.warnings = &warnings;
    const auto texts = [](const Mesh& mesh, const char* name) {
        const auto found = require_array(mesh.field_data, name, "", "").strings();
        return std::vector<std::string>(found.begin(), found.end());
    };

    options.blocks = {"air/boundary", "heater/boundary"};
    const Mesh patches = read_mesh(folder / "case/case.foam", options);
    options.blocks = {};
    const Mesh cells = read_mesh(folder / "case/case.foam", options);

    EXPECT_TRUE(warnings.empty());
    EXPECT_EQ(texts(patches, "PatchName"),
              (std::vector<std::string>{"air/left", "air/rest", "heater/left", "heater/rest"}));
    EXPECT_EQ(texts(patches, "PatchType").size(), 4U);
    const auto* faces = find_array(patches.field_data, "PatchNumFaces");
    ASSERT_EQ(faces->num_rows(), 4);
    std::vector<std::int32_t> found(4, 0);
    for (const std::int32_t id : find_array(patches.cell_data, "PatchId")->values<std::int32_t>()) ++found.at(id);
    EXPECT_EQ(found, (std::vector<std::int32_t>{4, 20, 1, 5}));
    for (int patch = 0; patch < 4; ++patch) EXPECT_EQ(faces->value(patch), found[patch]);
    EXPECT_EQ(texts(cells, "CellZoneName"), (std::vector<std::string>{"air/even", "heater/even"}));
    EXPECT_EQ(find_array(cells.cell_data, "CellZoneId")->value(0), 0);
    EXPECT_EQ(find_array(cells.cell_data, "CellZoneId")->value(1), -1);
    EXPECT_EQ(find_array(cells.cell_data, "CellZoneId")->value(8), 1);

    std::filesystem::remove_all(folder / "case/0.5/heater");
    read_mesh(folder / "case/case.foam", options);
    ASSERT_EQ(warnings.size(), 1U);
    EXPECT_NE(warnings[0].find("the region 'heater' has no time 0.5"), std::string::npos) << warnings[0];
}

struct Damage {
    const char* file;
    const char* replace;
    const char* by;
    const char* message;
};

TEST(FoamReader, NamesDamage)
{
    const Damage cases[] = {
        {"constant/polyMesh/points", "27\n(", "28\n(", "expected '('"},
        {"constant/polyMesh/points", "27\n(", "2000000000\n(", "more than the"},
        {"constant/polyMesh/points", "27\n(", "-27\n(", "negative length"},
        {"constant/polyMesh/points", "(0 0 0)", "(0 zero 0)", "expected a number"},
        {"constant/polyMesh/points", "format      ascii", "format      asci", "expected ascii or binary"},
        {"constant/polyMesh/points", "FoamFile", "FoomFile", "expected the header"},
        {"constant/polyMesh/faces", "\n4(0 ", "\n4(77 ", "uses point 77, expected 0 to 26"},
        {"constant/polyMesh/owner", "36(0 ", "36(-1 ", "belongs to cell -1"},
        {"constant/polyMesh/owner", "36(0 ", "36(99 ", "names cell 99"},
        {"constant/polyMesh/neighbour", "12(1 ", "12(0 ", "has cell 0 on its other side"},
        {"constant/polyMesh/boundary", "nFaces 4", "nFaces 4000", "has the faces 12 to 4011"},
        {"constant/polyMesh/boundary", "nFaces 4", "nFaces four", "no valid nFaces"},
        {"constant/polyMesh/cellZones", "4(0 2 4 6)", "4(0 2 4 66)", "holds cell 66"},
        {"0.5/p", "8\n(", "7\n(", "expected ')'"},
        {"0.5/U", "noSlip;", "noSlip);", "expected ';'"},
        {"0.5/U", "rest {", "rest { {", "expected a name"},
    };
    for (const Damage& damage : cases) {
        const TemporaryFolder folder;
        write_foam_case(folder / "case", cube(2));
        const auto path = folder / "case" / damage.file;
        std::string text = read_bytes(path);
        const std::size_t at = text.find(damage.replace);
        ASSERT_NE(at, std::string::npos) << damage.file << " " << damage.replace << "\n" << text.substr(0, 600);
        text.replace(at, std::string_view(damage.replace).size(), damage.by);
        write_bytes(path, text);
        ReadOptions options;
        options.blocks = {"internalMesh", "boundary"};
        EXPECT_TRUE(throws_with<IoError>(damage.message, [&] { read_mesh(folder / "case", options); }))
            << damage.file << " " << damage.by;
    }
}

TEST(FoamReader, RefusesCutFiles)
{
    for (const FoamCaseStyle& style :
         {FoamCaseStyle{}, FoamCaseStyle{.binary = true}, FoamCaseStyle{.compressed = true}}) {
        const TemporaryFolder folder;
        write_foam_case(folder / "case", tet_cube(1), style);
        for (const char* name : {"points", "faces", "owner", "neighbour", "boundary", "cellZones"}) {
            const auto path =
                folder / (std::string("case/constant/polyMesh/") + name + (style.compressed ? ".gz" : ""));
            std::string bytes = read_bytes(path);
            const std::string whole = bytes;
            while (!style.compressed && bytes.back() == '\n') bytes.pop_back();
            for (std::size_t size = 0; size < bytes.size(); size += 3) {
                write_bytes(path, std::string_view(bytes).substr(0, size));
                EXPECT_THROW(read_mesh(folder / "case"), IoError) << path << " cut at " << size;
            }
            write_bytes(path, whole);
        }
        EXPECT_EQ(read_mesh(folder / "case").num_cells(), 6);
    }
}

}  // namespace
}  // namespace meshard
