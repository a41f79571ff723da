// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/cell_geometry.h"
#include "partition/mesh/vector_algebra.h"
#include "tests/apps/program_test.h"
#include "tests/support/foam_case.h"
#include "tests/support/sample_meshes.h"

#include <vtkDoubleArray.h>
#include <vtkGradientFilter.h>
#include <vtkIdList.h>
#include <vtkNew.h>
#include <vtkPointData.h>
#include <vtkPoints.h>
#include <vtkSmartPointer.h>
#include <vtkUnstructuredGrid.h>

#include <array>
#include <cmath>
#include <functional>
#include <regex>
#include <span>

namespace meshard {
namespace {

class Derive : public ProgramTest {
protected:
    /// Runs the verb, expects that it ends well, and gives what it wrote.
    Mesh derived(std::vector<std::string> words, const std::string& output = "out.vtu")
    {
        words.insert(words.begin(), "derive");
        words.insert(words.end(), {"-o", path(output)});
        const auto result = meshard(words);
        EXPECT_EQ(result.exit_code, 0) << result.err;
        return read_mesh(path(output));
    }
};

using Field = std::function<std::vector<double>(const Vector3&)>;

DataArray sampled(const std::string& name, const std::vector<Vector3>& places, const Field& field)
{
    std::vector<double> values;
    std::size_t width = 1;
    for (const auto& place : places) {
        const auto here = field(place);
        width = here.size();
        values.insert(values.end(), here.begin(), here.end());
    }
    return DataArray::from(name, std::move(values), static_cast<std::int32_t>(width));
}

/// The mesh with `p` and `U`, of points or of cells, and no other arrays.
Mesh with_fields(Mesh mesh, bool on_cells, const Field& p, const Field& u)
{
    mesh.point_data.clear();
    mesh.cell_data.clear();
    const auto places = on_cells ? cell_measures(mesh).centroids : point_positions(mesh);
    auto& arrays = on_cells ? mesh.cell_data : mesh.point_data;
    arrays = {sampled("p", places, p), sampled("U", places, u)};
    return mesh;
}

const DataArray& array(const Mesh& mesh, const std::string& name, bool on_cells)
{
    return require_array(on_cells ? mesh.cell_data : mesh.point_data, name, "the result", on_cells ? "cell" : "point");
}

void expect_rows(const DataArray& found, const std::vector<double>& expected, double tolerance)
{
    ASSERT_EQ(found.num_components(), static_cast<std::int32_t>(expected.size()));
    const auto values = found.to_doubles();
    for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(values[i], expected[i % expected.size()], tolerance)
            << found.name() << " row " << i / expected.size();
}

void expect_equal(const DataArray& found, const DataArray& expected, double tolerance)
{
    ASSERT_EQ(found.num_values(), expected.num_values());
    const auto a = found.to_doubles(), b = expected.to_doubles();
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (std::isnan(b[i])) {
            ASSERT_TRUE(std::isnan(a[i])) << found.name() << " value " << i;
        } else {
            ASSERT_NEAR(a[i], b[i], tolerance) << found.name() << " value " << i;
        }
    }
}

// Row c, column k: derivative of component c of the linear velocity along axis k.
constexpr double J[3][3] = {{1.5, -2, 0.25}, {0.5, -3, 4}, {-1, 0.75, 2.5}};

std::vector<double> linear_p(const Vector3& x)
{
    return {2 * x[0] - 3 * x[1] + 0.5 * x[2] + 7};
}

std::vector<double> linear_u(const Vector3& x)
{
    std::vector<double> u;
    for (const auto& row : J) u.push_back(row[0] * x[0] + row[1] * x[1] + row[2] * x[2] - 4);
    return u;
}

/// Half of |W|^2 - |S|^2, by the definition.
double q_of(const double (&j)[3][3])
{
    double q = 0;
    for (int a = 0; a < 3; ++a) {
        for (int b = 0; b < 3; ++b) q += (std::pow(j[a][b] - j[b][a], 2) - std::pow(j[a][b] + j[b][a], 2)) / 8;
    }
    return q;
}

/// Boxes that are squeezed and sheared, so that nothing is at right angles.
Mesh sheared(Mesh mesh)
{
    auto x = mesh.points.to_doubles();
    for (std::size_t i = 0; i < x.size(); i += 3) {
        x[i] = 1.3 * x[i] * (1 + 0.4 * x[i]) + 0.4 * x[i + 1] - 0.2 * x[i + 2];
        x[i + 1] = 0.5 * x[i + 1] + 0.3 * x[i + 2];
    }
    mesh.points = DataArray::from("Points", std::move(x), 3);
    return mesh;
}

TEST_F(Derive, IsExactForLinearFieldsOnAnyNumberOfRanks)
{
    const std::vector<std::string> words{"--gradient", "p,U", "--divergence", "U", "--vorticity", "U", "--q", "U"};
    for (const auto& [name, mesh] :
         {NamedMesh{"hexahedra", cube(3)}, {"tetrahedra", tet_cube(2)}, {"polyhedra", polyhedral_cube(3)}}) {
        for (const bool on_cells : {false, true}) {
            const std::string file = write("in.vtu", with_fields(sheared(mesh), on_cells, linear_p, linear_u));
            for (const int ranks : {1, 2, 3}) {
                SCOPED_TRACE(name + (on_cells ? ", cells, " : ", points, ") + std::to_string(ranks) + " ranks");
                auto all = words;
                all.insert(all.end(), {file, "--nproc", std::to_string(ranks)});

                const Mesh found = derived(all);

                expect_rows(array(found, "p Gradient", on_cells), {2, -3, 0.5}, 1e-11);
                expect_rows(array(found, "U Gradient", on_cells),
                            {J[0][0], J[0][1], J[0][2], J[1][0], J[1][1], J[1][2], J[2][0], J[2][1], J[2][2]}, 1e-11);
                expect_rows(array(found, "Divergence", on_cells), {J[0][0] + J[1][1] + J[2][2]}, 1e-11);
                expect_rows(array(found, "Vorticity", on_cells),
                            {J[2][1] - J[1][2], J[0][2] - J[2][0], J[1][0] - J[0][1]}, 1e-11);
                expect_rows(array(found, "Q Criterion", on_cells), {q_of(J)}, 1e-10);
                EXPECT_EQ(found.point_data.size() + found.cell_data.size(), 7U);
            }
        }
    }
}

double wave(const Vector3& x)
{
    return std::sin(2 * x[0]) * std::pow(1 + x[1], 2) + std::exp(x[2]);
}

std::vector<double> wavy_u(const Vector3& x)
{
    return {wave(x), wave({x[1], x[2], x[0]}), x[0] * x[1] * x[2]};
}

TEST_F(Derive, ComesNearerToTheTruthOnFinerMeshes)
{
    const Field p = [](const Vector3& x) { return std::vector<double>{wave(x)}; };
    for (const bool on_cells : {false, true}) {
        const auto error = [&](std::int32_t n) {
            const Mesh mesh = tet_cube(n);
            const Mesh found = derived({write("in.vtu", with_fields(mesh, on_cells, p, wavy_u)), "--gradient", "p"});
            const auto places = on_cells ? cell_measures(mesh).centroids : point_positions(mesh);
            const auto& gradient = array(found, "Gradient", on_cells);
            double sum = 0;
            for (std::size_t i = 0; i < places.size(); ++i) {
                const auto& x = places[i];
                const Vector3 truth{2 * std::cos(2 * x[0]) * std::pow(1 + x[1], 2), 2 * std::sin(2 * x[0]) * (1 + x[1]),
                                    std::exp(x[2])};
                for (int k = 0; k < 3; ++k)
                    sum += std::pow(gradient.value(static_cast<std::int64_t>(i), k) - truth[k], 2);
            }
            return std::sqrt(sum / static_cast<double>(places.size()));
        };
        EXPECT_LT(error(8), 0.6 * error(4));
    }
}

vtkSmartPointer<vtkUnstructuredGrid> grid_of(const Mesh& mesh)
{
    const auto grid = vtkSmartPointer<vtkUnstructuredGrid>::New();
    vtkNew<vtkPoints> points;
    points->SetDataTypeToDouble();
    for (const auto& place : point_positions(mesh)) points->InsertNextPoint(place.data());
    grid->SetPoints(points);
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
        vtkNew<vtkIdList> ids;
        for (const auto point : mesh.cells.row(cell)) ids->InsertNextId(point);
        grid->InsertNextCell(mesh.cell_types[cell], ids);
    }
    for (const auto& field : mesh.point_data) {
        vtkNew<vtkDoubleArray> values;
        values->SetName(field.name().c_str());
        values->SetNumberOfComponents(field.num_components());
        for (const double value : field.to_doubles()) values->InsertNextValue(value);
        grid->GetPointData()->AddArray(values);
    }
    return grid;
}

TEST_F(Derive, EqualsVtksGradientFilterAtThePointsOfTetrahedra)
{
    const Mesh mesh = with_fields(sheared(tet_cube(4)), false, linear_p, wavy_u);
    vtkNew<vtkGradientFilter> filter;
    filter->SetInputData(grid_of(mesh));
    filter->SetInputScalars(vtkDataObject::FIELD_ASSOCIATION_POINTS, "U");
    filter->SetResultArrayName("Gradient");
    filter->ComputeDivergenceOn();
    filter->SetDivergenceArrayName("Divergence");
    filter->ComputeVorticityOn();
    filter->SetVorticityArrayName("Vorticity");
    filter->ComputeQCriterionOn();
    filter->SetQCriterionArrayName("Q Criterion");
    filter->Update();
    auto* const theirs = vtkUnstructuredGrid::SafeDownCast(filter->GetOutput())->GetPointData();

    const Mesh found = derived({write("in.vtu", mesh), "--gradient", "U", "--divergence", "U", "--vorticity", "U",
                                "--q", "U", "--nproc", "2"});

    for (const auto* name : {"Gradient", "Divergence", "Vorticity", "Q Criterion"}) {
        const auto& ours = array(found, name, false);
        auto* const expected = theirs->GetArray(name);
        ASSERT_TRUE(expected) << name;
        ASSERT_EQ(ours.num_components(), expected->GetNumberOfComponents()) << name;
        for (std::int64_t i = 0; i < ours.num_rows(); ++i) {
            for (int c = 0; c < ours.num_components(); ++c)
                ASSERT_NEAR(ours.value(i, c), expected->GetComponent(i, c), 1e-9) << name << ' ' << i;
        }
    }
}

TEST_F(Derive, StaysWithinASurface)
{
    // The gradient within each triangle is that of space without its part along the normal; at a point the mean around
    // it.
    const Mesh mesh = with_fields(sphere(6), false, linear_p, linear_u);
    const auto areas = area_vectors(mesh);
    std::vector<Vector3> sums(mesh.num_points());
    std::vector<double> counts(mesh.num_points(), 0);
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
        const Vector3 normal = unit(areas[cell]), g{2, -3, 0.5};
        for (const auto point : mesh.cells.row(cell)) {
            add_scaled(sums[point], g - dot(g, normal) * normal, 1);
            ++counts[point];
        }
    }

    const std::string file = write("in.vtp", mesh);
    const Mesh found = derived({file, "--gradient", "p", "--divergence", "U"}, "out.vtp");

    const auto& gradient = array(found, "Gradient", false);
    for (std::int64_t i = 0; i < mesh.num_points(); ++i) {
        for (int k = 0; k < 3; ++k)
            ASSERT_NEAR(gradient.value(i, k), sums[i][k] / counts[i], 1e-5);  // single precision places
    }
    EXPECT_TRUE(
        fails_with(meshard({"derive", file, "--vorticity", "U", "-o", path("x.vtp")}), 3, {"not plane", "Vorticity"}));
    EXPECT_TRUE(
        fails_with(meshard({"derive", file, "--q", "U", "-o", path("x.vtp")}), 3, {"not plane", "Q Criterion"}));
}

TEST_F(Derive, TakesAPlaneMeshForATwoDimensionalFlow)
{
    const Field u = [](const Vector3& x) { return std::vector<double>{x[0] - 3 * x[1], 2 * x[0] - x[1], 5}; };
    for (const bool on_cells : {false, true}) {
        const Mesh found = derived({write("in.vtp", with_fields(with_hole(), on_cells, linear_p, u)), "--vorticity",
                                    "U", "--q", "U", "--divergence", "U"},
                                   "out.vtp");

        expect_rows(array(found, "Vorticity", on_cells), {0, 0, 5}, 1e-5);
        expect_rows(array(found, "Divergence", on_cells), {0}, 1e-5);
        expect_rows(array(found, "Q Criterion", on_cells), {-0.5 * (1 + 1) + 3 * 2}, 1e-4);
    }
}

TEST_F(Derive, SumsFluxesForTheLaplacian)
{
    // On even boxes the differences of x^2 + 2 y^2 - 5 z^2 give its Laplacian, -4, in every cell that has all six
    // neighbours.
    const std::int32_t n = 5;
    const Mesh mesh = with_fields(
        cube(n), true,
        [](const Vector3& x) { return std::vector<double>{x[0] * x[0] + 2 * x[1] * x[1] - 5 * x[2] * x[2]}; },
        linear_u);
    for (const auto* ranks : {"1", "3"}) {
        const Mesh found = derived({write("in.vtu", mesh), "--laplacian", "p", "--nproc", ranks});

        const auto& laplacian = array(found, "Laplacian", true);
        double sum = 0;
        for (std::int32_t cell = 0; cell < n * n * n; ++cell) {
            const std::array place{cell % n, cell / n % n, cell / (n * n)};
            if (std::ranges::all_of(place, [&](auto i) { return i > 0 && i < n - 1; })) {
                EXPECT_NEAR(laplacian.value(cell), -4, 1e-10);
            }
            sum += laplacian.value(cell);
        }
        EXPECT_NEAR(sum, 0, 1e-8);  // nothing leaves the box
    }
}

TEST_F(Derive, KnowsNothingWhereCellsAreApart)
{
    Mesh mesh = exploded(cube(3));
    std::vector<double> p;
    for (const auto& centroid : cell_measures(mesh).centroids) p.push_back(3 * centroid[0]);
    mesh.cell_data.push_back(DataArray::from("p", p));
    const auto apart = write("apart.vtu", mesh);
    ASSERT_EQ(meshard({"convert", apart, path("joined.vtu"), "--join-points", "0"}).exit_code, 0);

    for (const std::string neighbors : {"vertex", "facet"})
        for (const std::string ranks : {"1", "2"}) {
            SCOPED_TRACE(neighbors + ", " + ranks + " ranks");
            const auto derive = [&](const std::string& file) {
                return meshard({"derive", file, "-o", path("out.vtu"), "--gradient", "p", "--laplacian", "p",
                                "--neighbors", neighbors, "--nproc", ranks});
            };
            EXPECT_TRUE(fails_with(
                derive(apart), 0,
                {"27 cells share no " + std::string(neighbors == "vertex" ? "point" : "face"), "--join-points 0"}));
            const Mesh unknown = read_mesh(path("out.vtu"));
            for (const auto* name : {"Gradient", "Laplacian"})
                for (const auto value : array(unknown, name, true).to_doubles()) EXPECT_TRUE(std::isnan(value)) << name;
            EXPECT_EQ(derive(path("joined.vtu")).err, "");
            expect_rows(array(read_mesh(path("out.vtu")), "Gradient", true), {3, 0, 0}, 1e-12);
        }
}

TEST_F(Derive, TellsOfCellsThatOnlyTheLaplacianFindsApart)
{
    Mesh mesh;  // two tetrahedra that share a point
    mesh.points = DataArray::from(
        "Points", std::vector<double>{0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, -1, 0, 0, 0, -1, 0, 0, 0, -1}, 3);
    for (const std::array<std::int32_t, 4>& corners : {std::array{0, 1, 2, 3}, std::array{0, 5, 4, 6}}) {
        mesh.cells.push_row(corners);
        mesh.cell_types.push_back(10);
    }
    mesh.cell_data.push_back(DataArray::from("p", std::vector<double>{1, 2}));
    const auto file = write("in.vtu", mesh);

    EXPECT_EQ(meshard({"derive", file, "-o", path("out.vtu"), "--gradient", "p"}).err, "");
    EXPECT_TRUE(fails_with(meshard({"derive", file, "-o", path("out.vtu"), "--gradient", "p", "--laplacian", "p"}), 0,
                           {"2 cells share no face", "the Laplacian is NaN"}));
}

TEST_F(Derive, LeavesOutWhatIsNoSolid)
{
    const std::string file = write("in.vtu", with_fields(mixed_cells(), true, linear_p, linear_u));

    const auto result = meshard({"derive", file, "--gradient", "p", "-o", path("out.vtu")});

    EXPECT_TRUE(fails_with(result, 0, {"warning", "1 cell not among the solids", "NaN"}));
    const Mesh mesh = read_mesh(path("out.vtu"));
    EXPECT_TRUE(std::isnan(array(mesh, "Gradient", true).value(5)));
    EXPECT_NEAR(array(mesh, "Gradient", true).value(0, 2), 0.5, 1e-12);
    EXPECT_NEAR(array(mesh, "Gradient", true).value(0, 1), 0, 1e-12);  // all centroids have one y
    EXPECT_EQ(meshard_json({"derive", file, "--gradient", "p", "-o", path("out.vtu")})["arrays"][0]["not_finite"], 3);
    // At points the quad does not count; the point that nothing uses has no gradient.
    Mesh loose = with_fields(mixed_cells(), false, linear_p, linear_u);
    auto places = loose.points.to_doubles();
    places.insert(places.end(), {9, 9, 9});
    loose.points = DataArray::from("Points", places, 3);
    loose = with_fields(loose, false, linear_p, linear_u);
    const Mesh found = derived({write("loose.vtu", loose), "--gradient", "p"});
    const auto& gradient = array(found, "Gradient", false);
    EXPECT_TRUE(std::isnan(gradient.value(gradient.num_rows() - 1)));
    for (std::int64_t i = 0; i + 1 < gradient.num_rows(); ++i) ASSERT_NEAR(gradient.value(i, 0), 2, 1e-12) << i;
}

TEST_F(Derive, GivesTheSameOnAnyNumberOfRanks)
{
    const std::string wall = write("wall.vtp", sphere(8));
    for (const bool on_cells : {false, true}) {
        const std::string file =
            write("in.vtu", with_fields(
                                sheared(tet_cube(3)), on_cells,
                                [](const Vector3& x) { return std::vector<double>{wave(x)}; }, wavy_u));
        for (const auto* neighbors : {"vertex", "facet"}) {
            const std::vector<std::string> words{file,      "--gradient",
                                                 "p,U",     "--vorticity",
                                                 "U",       "--q",
                                                 "U",       "--neighbors",
                                                 neighbors, "--wall-distance",
                                                 wall,      "--wall-direction",
                                                 "--at",    on_cells ? "cells" : "points",
                                                 "--sign",  "normals"};
            const Mesh serial = derived(words, "serial.vtu");
            for (const auto* ranks : {"2", "3"}) {
                SCOPED_TRACE(std::string(neighbors) + ' ' + ranks);
                auto more = words;
                more.insert(more.end(), {"--nproc", ranks});
                const Mesh found = derived(more);
                const auto& theirs = on_cells ? serial.cell_data : serial.point_data;
                ASSERT_EQ(theirs.size(), 8U);
                for (const auto& expected : theirs)
                    expect_equal(array(found, expected.name(), on_cells), expected, 1e-10);
            }
        }
    }
}

/// The skin of the unit cube, its points in this order round each side seen from outside.
Mesh cube_skin()
{
    Mesh skin;
    skin.kind = MeshKind::Surface;
    std::vector<double> corners;
    for (int corner = 0; corner < 8; ++corner) {
        for (int d = 0; d < 3; ++d) corners.push_back(corner >> d & 1);
    }
    skin.points = DataArray::from("Points", std::move(corners), 3);
    for (const auto& side :
         {std::array{0, 2, 3, 1}, {4, 5, 7, 6}, {0, 1, 5, 4}, {2, 6, 7, 3}, {0, 4, 6, 2}, {1, 3, 7, 5}}) {
        skin.cells.push_row(side);
        skin.cell_types.push_back(9);
    }
    return skin;
}

double distance_to_cube(const Vector3& x)
{
    double outside = 0, inside = -1;
    for (const double value : x) {
        const double beyond = std::abs(value - 0.5) - 0.5;
        outside += std::pow(std::max(0.0, beyond), 2);
        inside = std::max(inside, beyond);
    }
    return inside > 0 ? std::sqrt(outside) : inside;
}

TEST_F(Derive, MeasuresDistancesToASurface)
{
    Mesh cloud = random_cloud(400, 3);
    auto places = cloud.points.to_doubles();
    for (auto& x : places) x = 3 * x - 1;
    cloud.points = DataArray::from("Points", places, 3);
    const std::string file = write("cloud.vtu", cloud), wall = write("wall.vtp", cube_skin());
    for (const auto* sign : {"none", "normals", "winding"}) {
        for (const auto* ranks : {"1", "2"}) {
            SCOPED_TRACE(std::string(sign) + ' ' + ranks);
            const Mesh found =
                derived({file, "--wall-distance", wall, "--sign", sign, "--wall-direction", "--nproc", ranks});

            const auto& distances = array(found, "Wall Distance", false);
            const auto& directions = array(found, "Wall Direction", false);
            int num_inside = 0;
            for (std::int64_t i = 0; i < cloud.num_points(); ++i) {
                const Vector3 place{places[3 * i], places[3 * i + 1], places[3 * i + 2]},
                    way{directions.value(i, 0), directions.value(i, 1), directions.value(i, 2)};
                const double signed_distance = distance_to_cube(place),
                             expected = std::string(sign) == "none" ? std::abs(signed_distance) : signed_distance;
                num_inside += signed_distance < 0;
                ASSERT_NEAR(distances.value(i), expected, 1e-12);
                ASSERT_NEAR(norm(way), 1, 1e-12);
                ASSERT_NEAR(distance_to_cube(place - distances.value(i) * way), 0,
                            1e-12);  // that far along it lies the surface
            }
            EXPECT_GT(num_inside, 5);
        }
    }
    // Of two walls the nearer one counts.
    Mesh moved = cube_skin();
    auto corners = moved.points.to_doubles();
    for (std::size_t i = 0; i < corners.size(); i += 3) corners[i] += 1.5;
    moved.points = DataArray::from("Points", corners, 3);
    const Mesh found = derived({file, "--wall-distance", wall, "--wall-distance", write("moved.vtp", moved)});
    for (std::int64_t i = 0; i < cloud.num_points(); ++i) {
        const Vector3 place{places[3 * i], places[3 * i + 1], places[3 * i + 2]};
        ASSERT_NEAR(array(found, "Wall Distance", false).value(i),
                    std::min(std::abs(distance_to_cube(place)),
                             std::abs(distance_to_cube({place[0] - 1.5, place[1], place[2]}))),
                    1e-12);
    }
}

TEST_F(Derive, MeasuresDistancesToAPatch)
{
    write_foam_case(path("case"), cube(3));
    for (const auto* patch : {"left", "boundary/left"}) {
        const Mesh found = derived({path("case"), "--wall-distance", patch, "--at", "cells", "--gradient", "p"});

        const auto centroids = cell_measures(found).centroids;
        for (std::int64_t i = 0; i < found.num_cells(); ++i)
            ASSERT_NEAR(array(found, "Wall Distance", true).value(i), centroids[i][0], 1e-12);
        EXPECT_EQ(array(found, "Gradient", true).num_components(), 3);
    }
    EXPECT_TRUE(fails_with(meshard({"derive", path("case"), "--wall-distance", "lefd", "-o", path("x.vtu")}), 3,
                           {"--wall-distance lefd", "no such file", "patch"}));
}

TEST_F(Derive, TellsOfCellsWithoutVolumeOrPoints)
{
    Mesh mesh = with_fields(cube(2), true, linear_p, linear_u);
    const std::array<std::int32_t, 4> in_a_plane{0, 1, 3, 4};
    mesh.cells.push_row(in_a_plane);
    mesh.cell_types.push_back(10);
    for (auto& array : mesh.cell_data)
        array =
            DataArray::from(array.name(), std::vector<double>(9 * array.num_components(), 1), array.num_components());

    EXPECT_TRUE(fails_with(meshard({"derive", write("flat.vtu", mesh), "--gradient", "p", "-o", path("out.vtu")}), 0,
                           {"warning", "1 cell without volume; derivatives there are NaN"}));
    EXPECT_TRUE(std::isnan(array(read_mesh(path("out.vtu")), "Gradient", true).value(8)));

    mesh.cells = Csr();
    mesh.cell_types = {7, 9};
    mesh.cells.push_row(std::span<const std::int32_t>());
    mesh.cells.push_row(std::array<std::int32_t, 4>{0, 1, 4, 3});
    mesh.cell_data.clear();
    const auto wall = write("wall.vtp", two_triangles());
    EXPECT_TRUE(fails_with(meshard({"derive", write("none.vtu", mesh), "--wall-distance", wall, "--at", "cells", "-o",
                                    path("none_out.vtu")}),
                           3, {"Cell 0 has no points, and so no place"}));
    EXPECT_FALSE(std::filesystem::exists(path("none_out.vtu")));
}

TEST_F(Derive, NamesWhatIsWrong)
{
    Mesh both = with_fields(cube(2), false, linear_p, linear_u), holed = both, broken = both, texts = both,
         mixed = vertex_cells(3);
    mixed.cells.push_row(std::array<std::int32_t, 2>{0, 1});
    mixed.cells.push_row(std::array<std::int32_t, 1>{2});
    mixed.cell_types.insert(mixed.cell_types.end(), {3, 1});
    mixed.cell_data.clear();
    both.cell_data = {DataArray::from("p", std::vector<double>(8, 1))};
    holed.point_data[0].mutable_values<double>()[3] = NAN;
    broken.points.mutable_values<double>()[4] = INFINITY;
    texts.point_data.push_back(DataArray::from_strings("t", std::vector<std::string>(27, "a")));
    const std::string file = write("in.vtu", with_fields(cube(2), false, linear_p, linear_u)),
                      two = write("both.vtu", both), nan = write("holed.vtu", holed),
                      infinite = write("broken.vtu", broken), text = write("texts.vtu", texts),
                      cloud = write("cloud.vtu", random_cloud(9, 1)), empty = write("empty.vtu", empty_mesh()),
                      strips = write("strips.vtp", surface_of_all_kinds()), lines = write("lines.vtu", vertex_cells(3)),
                      unsorted = write("unsorted.vtu", mixed), damaged = write_text("text.vtu", "no mesh");
    const auto before = entries();
    const auto run = [&](std::vector<std::string> words, const std::string& output = "out.vtu") {
        words.insert(words.begin(), "derive");
        words.insert(words.end(), {"-o", path(output)});
        return meshard(words);
    };
    EXPECT_TRUE(fails_with(run({file}), 2, {"nothing to derive", "--gradient"}));
    EXPECT_TRUE(fails_with(run({file, "--gradient", "q"}), 3, {file + " has no field 'q'", "'p'"}));
    EXPECT_TRUE(fails_with(run({file, "--gradient", "u"}), 3, {"Did you mean 'U'?"}));
    EXPECT_TRUE(fails_with(run({file, "--vorticity", "p"}), 3, {"'p' has 1 component;", "Vorticity", "three"}));
    EXPECT_TRUE(fails_with(run({file, "--divergence", "p", "--nproc", "2"}), 3, {"'p' has 1 component;"}));
    EXPECT_TRUE(fails_with(run({file, "--laplacian", "p"}), 3, {"'p' is of points", "Laplacian"}));
    EXPECT_TRUE(fails_with(run({two, "--gradient", "p"}), 3, {"'p' of its points and one of its cells", "--from"}));
    EXPECT_TRUE(fails_with(run({text, "--gradient", "t"}), 3, {"'t' holds texts"}));
    EXPECT_TRUE(
        fails_with(run({infinite, "--gradient", "p"}), 3, {infinite + " has 1 coordinate that is NaN or infinite"}));
    EXPECT_TRUE(
        fails_with(run({cloud, "--gradient", "pressure"}), 3, {cloud + " is a point cloud", "--wall-distance"}));
    EXPECT_TRUE(fails_with(run({lines, "--gradient", "pressure"}), 3, {"vertices and lines only"}));
    EXPECT_TRUE(fails_with(run({strips, "--gradient", "pressure"}, "out.vtp"), 3, {"cell 7 is a strip of triangles"}));
    EXPECT_TRUE(fails_with(run({empty, "--wall-distance", file}), 3, {empty + " has no points"}));
    EXPECT_TRUE(fails_with(run({damaged, "--gradient", "p"}), 3, {"text.vtu"}));
    EXPECT_TRUE(
        fails_with(run({file, "--wall-distance", "nowhere.stl"}), 3, {"--wall-distance nowhere.stl", "no such file"}));
    EXPECT_TRUE(fails_with(run({file, "--wall-distance", two}), 3, {two + " has solid cells"}));
    EXPECT_TRUE(fails_with(run({file, "--wall-distance", cloud}), 3, {cloud + " has no polygons"}));
    EXPECT_TRUE(fails_with(run({cloud, "--wall-distance", strips, "--at", "cells"}), 3, {cloud + " has no cells"}));
    EXPECT_TRUE(fails_with(run({file, "--gradient", "p", "--sign", "normals"}), 2, {"--sign", "--wall-distance"}));
    EXPECT_TRUE(fails_with(run({file, "--gradient", "p"}, "out.vtp"), 3, {"cell 0 is a hexahedron", ".vtp"}));
    EXPECT_TRUE(fails_with(run({file, "--gradient", "p"}, "out.xyz"), 3, {"out.xyz"}));
    EXPECT_TRUE(fails_with(run({unsorted, "--wall-distance", strips}, "out.vtp"), 3,
                           {"cell 4 (vertex) comes after Lines", "meshard convert sorts"}));
    EXPECT_EQ(entries(), before);
    // What is suspicious goes on with a warning.
    EXPECT_TRUE(fails_with(run({nan, "--gradient", "p"}), 0, {"warning", "1 value of the field 'p' NaN"}));
    EXPECT_TRUE(fails_with(run({file, "--wall-distance", strips, "--sign", "normals"}), 0,
                           {"warning", "open", "--sign winding"}));
    EXPECT_EQ(run({two, "--gradient", "p", "--from", "cells"}).exit_code, 0);
}

TEST_F(Derive, ReplacesArraysOnlyIfAskedTo)
{
    const std::string file = write("in.vtu", with_fields(cube(2), false, linear_p, linear_u));
    const Mesh first = derived({file, "--gradient", "p"}, "first.vtu");
    EXPECT_EQ(array(first, "Gradient", false).num_components(), 3);

    EXPECT_TRUE(fails_with(meshard({"derive", path("first.vtu"), "--gradient", "U", "-o", path("x.vtu")}), 3,
                           {"'Gradient' already", "--replace"}));
    const Mesh second = derived({path("first.vtu"), "--gradient", "U", "--replace", "--overwrite"}, "first.vtu");

    EXPECT_EQ(second.point_data.size(), 3U);
    EXPECT_EQ(array(second, "Gradient", false).num_components(), 9);
}

TEST_F(Derive, AndInterpolateHaveAllTheirOptionsInTheDocumentation)
{
    const std::string documentation = content_of(source_path("docs/commands.md"));
    for (const std::string verb : {"derive", "interpolate"}) {
        const auto begin = documentation.find("\n## meshard " + verb);
        ASSERT_NE(begin, std::string::npos) << verb;
        const std::string chapter = documentation.substr(begin, documentation.find("\n## ", begin + 1) - begin);
        const std::string help = meshard({verb, "--help"}).out;
        EXPECT_NE(help.find("Usage: meshard " + verb + " "), std::string::npos) << help;
        const std::regex option("\n  [^ ].*?(--[a-z-]+)");
        for (auto it = std::sregex_iterator(help.begin(), help.end(), option); it != std::sregex_iterator(); ++it) {
            EXPECT_NE((chapter + "`--help").find("`" + it->str(1)), std::string::npos) << verb << ' ' << it->str(1);
        }
    }
}

TEST_F(Derive, LeavesNothingOnAFullDisk)
{
    const std::string file = write("in.vtu", with_fields(cube(8), true, linear_p, linear_u));

    EXPECT_TRUE(fails_with(meshard({"derive", file, "--gradient", "U", "-o", path("out.vtu")}, full_disk()), 3,
                           {"cannot write"}));
    EXPECT_EQ(entries(), std::vector<std::string>{"in.vtu"});
}

}  // namespace
}  // namespace meshard
