// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoints/safetensors.h"
#include "partition/mesh/surface_forces.h"
#include "tests/apps/program_test.h"
#include "tests/support/fixture_cases.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/test_paths.h"

#include <cmath>
#include <fstream>

namespace meshard {
namespace {

using Forces = ProgramTest;

/// Unit square in the plane z = 0 with its normal along +z, as a quad or turned round.
Mesh square(bool turned)
{
    Mesh mesh;
    mesh.kind = MeshKind::Surface;
    mesh.points = DataArray::from("Points", std::vector<double>{0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0}, 3);
    const std::vector<std::int32_t> points =
        turned ? std::vector<std::int32_t>{3, 2, 1, 0} : std::vector<std::int32_t>{0, 1, 2, 3};
    mesh.cells.push_row(points);
    mesh.cell_types.push_back(9);
    return mesh;
}

Mesh loaded_square(bool turned = false)
{
    Mesh mesh = square(turned);
    mesh.cell_data = {DataArray::from("p", std::vector<double>{2}),
                      DataArray::from("wallShearStress", std::vector<double>{-3, 0, 0}, 3)};
    return mesh;
}

TEST_F(Forces, AddUpOnASquare)
{
    auto report = meshard_json({"forces", write("square.vtp", loaded_square()), "--rho", "1.5", "--u-inf", "4",
                                "--area", "0.5", "--length", "2", "--center", "0.5,0,0"});

    // p = 2 presses along -z, OpenFOAM's sign makes -3 a pull along +x; both times rho.
    EXPECT_EQ(report["force"]["pressure"], nlohmann::json({0.0, 0.0, -3.0}));
    EXPECT_EQ(report["force"]["viscous"], nlohmann::json({4.5, 0.0, 0.0}));
    EXPECT_EQ(report["drag"], 4.5);
    EXPECT_EQ(report["lift"], -3.0);
    const double unit_force = 0.5 * 1.5 * 16 * 0.5;
    EXPECT_DOUBLE_EQ(report["Cd"].get<double>(), 4.5 / unit_force);
    EXPECT_DOUBLE_EQ(report["Cd_pressure"].get<double>(), 0);
    EXPECT_DOUBLE_EQ(report["Cl_pressure"].get<double>(), -3 / unit_force);
    // The force acts at (0, 0.5, 0) from the centre.
    EXPECT_EQ(report["moment"]["total"], nlohmann::json({-1.5, 0.0, -2.25}));
    EXPECT_DOUBLE_EQ(report["Cm"][0].get<double>(), -1.5 / (2 * unit_force));
    EXPECT_EQ(report["surface_area"], 1.0);
    EXPECT_EQ(report["closed"], false);
}

TEST_F(Forces, FollowTheKindOfTheFields)
{
    const std::string file = write("square.vtp", loaded_square());

    EXPECT_EQ(meshard_json({"forces", file, "--rho", "1.5", "--pressure-kind", "static"})["lift"], -2.0);
    EXPECT_EQ(meshard_json({"forces", file, "--rho", "1.5", "--pressure-kind", "cp", "--u-inf", "4"})["lift"], -24.0);
    EXPECT_EQ(meshard_json({"forces", file, "--shear-sign", "traction"})["drag"], -3.0);
    EXPECT_EQ(meshard_json({"forces", file, "--flip-normals"})["lift"], 2.0);
    EXPECT_EQ(meshard_json({"forces", file, "--shear", "none"})["drag"], 0.0);
    EXPECT_TRUE(meshard_json({"forces", file})["Cd"].is_null());
    EXPECT_TRUE(fails_with(meshard({"forces", file, "--pressure-kind", "cp"}), 2, {"--u-inf"}));
}

TEST_F(Forces, AreOfThePressureAboveThatOfTheFreeStream)
{
    const std::string file = write("square.vtp", loaded_square());

    const auto kinematic = meshard_json({"forces", file, "--rho", "1.5", "--p-inf", "-3", "--center", "0.5,0,0"});
    EXPECT_EQ(kinematic["lift"], -7.5);  // in the units of the field
    EXPECT_EQ(kinematic["moment"]["pressure"], nlohmann::json({-3.75, 0.0, 0.0}));
    EXPECT_EQ(kinematic["reference"]["p_inf"], -3.0);
    EXPECT_EQ(meshard_json({"forces", file, "--pressure-kind", "static", "--p-inf", "5"})["lift"], 3.0);
    const std::string warning = "--p-inf 5: a cp is relative to the free stream already";
    EXPECT_TRUE(
        fails_with(meshard({"forces", file, "--pressure-kind", "cp", "--u-inf", "4", "--p-inf", "5"}), 2, {warning}));
}

TEST_F(Forces, TakeTheirDirectionsFromTheFlow)
{
    const std::string file = write("square.vtp", loaded_square());

    auto climbing = meshard_json({"forces", file, "--u-inf", "3,0,4", "--area", "1"});
    auto named = meshard_json({"forces", file, "--drag-dir", "0,0,-2", "--lift-dir", "1,0,0"});

    EXPECT_NEAR(climbing["drag"].get<double>(), 3 * 0.6 - 2 * 0.8, 1e-14);
    EXPECT_NEAR(climbing["lift"].get<double>(), -3 * 0.8 - 2 * 0.6, 1e-14);
    EXPECT_EQ(climbing["reference"]["u_inf"], 5.0);
    EXPECT_EQ(named["drag"], 2.0);
    EXPECT_EQ(named["lift"], 3.0);
    EXPECT_TRUE(fails_with(meshard({"forces", file, "--u-inf", "0,0,5"}), 2, {"--lift-dir"}));
}

TEST_F(Forces, TurnWithTheArrayNormals)
{
    Mesh mesh = loaded_square(true);
    mesh.cell_data.push_back(DataArray::from("Normals", std::vector<float>{0, 0, 1}, 3));

    auto report = meshard_json({"forces", write("square.vtp", mesh)});

    EXPECT_EQ(report["normals_flipped"], true);
    EXPECT_EQ(report["lift"], -2.0);

    for (const float none : {0.0F, NAN}) {
        mesh.cell_data.back() = DataArray::from("Normals", std::vector<float>{none, none, none}, 3);
        EXPECT_EQ(meshard_json({"forces", write("unsaid.vtp", mesh)})["lift"], 2.0);
    }
}

TEST_F(Forces, LiftABodyByItsVolume)
{
    // Pressure -z on a closed surface: the force is the volume, upwards (Archimedes).
    Mesh mesh = sphere(40);
    std::vector<double> pressure;
    for (std::int64_t i = 0; i < mesh.num_points(); ++i) pressure.push_back(-mesh.points.value(i, 2));
    mesh.point_data = {DataArray::from("p", std::move(pressure))};

    const ProgramResult words = meshard({"forces", write("sphere.vtp", mesh), "--shear", "none"});
    auto report = meshard_json({"forces", path("sphere.vtp"), "--shear", "none"});

    EXPECT_EQ(report["closed"], true);
    EXPECT_NEAR(report["lift"].get<double>(), 4 * M_PI / 3, 0.02);
    EXPECT_NEAR(report["drag"].get<double>(), 0, 1e-12);
    EXPECT_NE(words.out.find("mean of each polygon's points"), std::string::npos) << words.out;

    mesh.cell_data = {DataArray::from("p", std::vector<double>(mesh.num_cells(), 0.0))};
    const auto both = meshard({"forces", write("sphere.vtp", mesh), "--shear", "none"});
    EXPECT_NE(both.out.find("p (also there: p of the points)"), std::string::npos) << both.out;
}

TEST_F(Forces, PushSidewaysByTheGradientOfPressure)
{
    // Pressure g.x on a closed surface: the force is -g times the volume, whatever the directions.
    Mesh mesh = sphere(40);
    std::vector<double> pressure;
    for (std::int64_t i = 0; i < mesh.num_points(); ++i) {
        const auto x = mesh.points.value(i, 0), y = mesh.points.value(i, 1), z = mesh.points.value(i, 2);
        pressure.push_back(x + 2 * y + 3 * z);
    }
    mesh.point_data = {DataArray::from("p", std::move(pressure))};
    const std::string file = write("sphere.vtp", mesh);
    const auto report = [&](const std::vector<std::string>& words) {
        std::vector<std::string> all{"forces", file, "--shear", "none", "--rho", "1.5", "--u-inf", "4", "--area", "2"};
        all.insert(all.end(), words.begin(), words.end());
        return meshard_json(all);
    };

    auto plain = report({}), turned = report({"--drag-dir", "3, 4 ,0"});

    const double unit_force = 0.5 * 1.5 * 16 * 2, force = -1.5 * 4 * M_PI / 3;
    const double tolerance = 0.03 * std::abs(force);
    EXPECT_NEAR(plain["side"].get<double>(), 2 * force, tolerance);
    EXPECT_NEAR(plain["Cs"].get<double>(), 2 * force / unit_force, tolerance / unit_force);
    EXPECT_EQ(plain["Cs_viscous"], 0.0);
    EXPECT_NEAR(turned["drag"].get<double>(), (1 * 0.6 + 2 * 0.8) * force, tolerance);
    EXPECT_NEAR(turned["side"].get<double>(), (-1 * 0.8 + 2 * 0.6) * force, tolerance);
    EXPECT_NEAR(turned["Cl"].get<double>(), 3 * force / unit_force, tolerance / unit_force);
    EXPECT_TRUE(fails_with(meshard({"forces", file, "--lift-dir", "1,0,0"}), 2, {"--lift-dir", "direction of drag"}));
}

TEST_F(Forces, WarnOfAClosedSurfaceTurnedInwards)
{
    Mesh mesh = sphere(8);
    Mesh inward = mesh;
    inward.cells = Csr{};
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        const auto row = mesh.cells.row(i);
        inward.cells.push_row(std::vector<std::int32_t>(row.rbegin(), row.rend()));
    }
    const std::vector<std::string> arguments{"forces", write("inward.vtp", inward), "--pressure", "pressure", "--shear",
                                             "none"};

    const ProgramResult result = meshard(arguments);

    EXPECT_TRUE(fails_with(result, 0, {"warning", "inwards", "--flip-normals"}));
}

TEST_F(Forces, LeaveGhostsOutUnderAnyNameAndType)
{
    for (const char* file : {"levels", "levels_Int64", "level_two", "type_Float64", "type_Int32", "type_Int8",
                             "type_UInt64", "visit_zones", "both"}) {
        SCOPED_TRACE(file);
        auto report = meshard_json({"forces", source_path("tests/data/odd/ghosts/" + std::string(file) + ".vtp"),
                                    "--pressure-kind", "static", "--shear", "none"});

        EXPECT_EQ(report["num_cells"], 6);
        EXPECT_NEAR(report["force"]["total"][0].get<double>(), -1, 1e-12);
    }
    const ProgramResult other = meshard({"forces", source_path("tests/data/odd/ghosts/other_name.vtp"),
                                         "--pressure-kind", "static", "--shear", "none"});
    EXPECT_EQ(other.exit_code, 0);
    EXPECT_NE(other.err.find("'is_ghost' of its cells is not understood as marks of ghosts"), std::string::npos)
        << other.err;
    EXPECT_NE(other.err.find("the surface is closed, but its areas do not cancel"), std::string::npos)
        << other.err;  // the ghost is there twice
}

TEST_F(Forces, LeaveLinesOut)
{
    Mesh mesh = square(false);
    mesh.cells = {};
    mesh.cells.push_row(std::vector<std::int32_t>{0, 1, 2});  // a polyline, whose three points are no triangle
    mesh.cells.push_row(std::vector<std::int32_t>{0, 1, 2, 3});
    mesh.cell_types = {4, 9};
    mesh.cell_data = {DataArray::from("p", std::vector<double>{100, 2})};
    const auto report = meshard_json({"forces", write("edged.vtp", mesh), "--shear", "none"});
    EXPECT_EQ(report["lift"], -2.0);
    EXPECT_EQ(report["num_cells"], 1);
    EXPECT_EQ(report["surface_area"], 1.0);
}

TEST_F(Forces, TableSeveralFiles)
{
    const std::string a = write("a.vtp", loaded_square());
    const std::string b = write("b.vtp", loaded_square(true));

    auto report = meshard_json({"forces", a, b});
    const ProgramResult words = meshard({"forces", a, b});

    ASSERT_TRUE(report.is_array());
    EXPECT_EQ(report[0]["lift"], -2.0);
    EXPECT_EQ(report[1]["lift"], 2.0);
    EXPECT_NE(words.out.find("drag"), std::string::npos);
}

TEST_F(Forces, SayWhichFieldsTheyTook)
{
    Mesh mesh = loaded_square();
    mesh.cell_data.push_back(DataArray::from("pMean", std::vector<double>{7}));
    mesh.cell_data.push_back(DataArray::from("wallShearStressMean", std::vector<double>{1, 0, 0}, 3));
    const std::string file = write("square.vtp", mesh);

    auto mean = meshard_json({"forces", file, "--pressure", "pMean"});
    const ProgramResult words = meshard({"forces", file});

    EXPECT_EQ(mean["shear_field"], "wallShearStressMean");
    EXPECT_EQ(mean["lift"], -7.0);
    EXPECT_NE(words.out.find("p (also there: pMean)"), std::string::npos) << words.out;
}

TEST_F(Forces, OfCurvedPolygonsAreThoseBetweenTheirCorners)
{
    Mesh mesh;  // a triangle whose long side bulges
    mesh.points =
        DataArray::from("points", std::vector<double>{0, 0, 0, 1, 0, 0, 0, 1, 0, 0.5, 0, 0, 0.7, 0.7, 0, 0, 0.5, 0}, 3);
    mesh.cells.push_row(std::vector<std::int32_t>{0, 1, 2, 3, 4, 5});
    mesh.cell_types = {22};
    mesh.cell_data = {DataArray::from("p", std::vector<double>{2})};

    const ProgramResult result = meshard({"forces", write("curved.vtu", mesh), "--shear", "none", "--json"});

    EXPECT_TRUE(fails_with(result, 0, {"warning", "1 polygon of higher order", "between their corners"}));
    EXPECT_DOUBLE_EQ(nlohmann::json::parse(result.out)["surface_area"].get<double>(), 0.5);
}

TEST_F(Forces, RefuseWhatTheyCannotSum)
{
    const std::string file = write("square.vtp", loaded_square());
    Mesh holed = loaded_square();
    holed.cell_data[0].mutable_values<double>()[0] = NAN;

    EXPECT_TRUE(fails_with(meshard({"forces", file, "--pressure", "pp"}), 3,
                           {"no field 'pp'", "'wallShearStress'", "Did you mean 'p'?"}));
    EXPECT_TRUE(fails_with(meshard({"forces", file, "--shear", "p"}), 3, {"'p'", "vector"}));
    EXPECT_TRUE(fails_with(meshard({"forces", write("bare.vtp", square(false))}), 3, {"pressure", "--pressure"}));
    EXPECT_TRUE(fails_with(meshard({"forces", write("holed.vtp", holed)}), 3, {"'p'", "NaN"}));
    EXPECT_TRUE(
        fails_with(meshard({"forces", write("cube.vtu", cube(2))}), 3, {"cube.vtu has solid cells", "surface"}));
    EXPECT_TRUE(fails_with(meshard({"forces", write("cloud.vtp", random_cloud(9, 1))}), 3, {"no polygons"}));
    EXPECT_TRUE(fails_with(meshard({"forces", file, "--rho", "0"}), 2, {"--rho is 0"}));
    EXPECT_TRUE(fails_with(meshard({"forces", file, "--u-inf", "1,2"}), 2, {"--u-inf is '1,2'"}));
    EXPECT_TRUE(fails_with(meshard({"forces", file, "--drag-dir", "1,0"}), 2, {"--drag-dir is '1,0'", "3 numbers"}));
    EXPECT_TRUE(fails_with(meshard({"forces", file, "--drag-dir", "0,0,0"}), 2, {"--drag-dir has no length"}));
    EXPECT_TRUE(fails_with(meshard({"forces", file, "--shear-sign", "plus"}), 2, {"plus"}));
}

class ForceFixtures : public testing::TestWithParam<test::FixtureCase> {};

TEST_P(ForceFixtures, EqualTheReferenceImplementation)
{
    const NamedArrays fixture = read_safetensors(GetParam().arrays_path());
    const double coefficient = GetParam().description()["coeff"];
    const auto num_faces = fixture.find("input.area")->num_values();
    ASSERT_GT(num_faces, 0);
    const auto at = [&](const char* name, std::size_t i) {
        return reinterpret_cast<const float*>(fixture.find(name)->data)[i];
    };
    const auto expected = [&](const char* name, std::size_t i) {
        return reinterpret_cast<const double*>(fixture.find(name)->data)[i];
    };
    std::vector<Vector3> areas, tractions;
    std::vector<double> pressures;
    for (std::int64_t i = 0; i < num_faces; ++i) {
        Vector3 area, traction;
        for (std::size_t d = 0; d < 3; ++d) {
            area[d] = double{at("input.normals", 3 * i + d)} * at("input.area", i);
            // The reference subtracts the shear and adds the pressure: the other sign of the normal.
            traction[d] = double{at("input.wss", 3 * i + d)};
        }
        areas.push_back(area);
        tractions.push_back(traction);
        pressures.push_back(at("input.p", i));
    }

    const SurfaceForces forces = integrate_forces(areas, areas, pressures, tractions);

    for (const auto& [name, d] : {std::pair("drag", 0), std::pair("lift", 2)}) {
        const double pressure = -coefficient * forces.pressure_force[d];
        const double friction = -coefficient * forces.viscous_force[d];
        EXPECT_NEAR(pressure + friction, expected(name, 0), 1e-6 * std::abs(expected(name, 0))) << name;
        EXPECT_NEAR(pressure, expected(name, 1), 1e-6 * std::abs(expected(name, 1))) << name;
        EXPECT_NEAR(friction, expected(name, 2), 1e-6 * std::abs(expected(name, 2))) << name;
    }
}

INSTANTIATE_TEST_SUITE_P(All, ForceFixtures, testing::ValuesIn(test::fixture_cases({"compute_force_coefficients"})),
                         test::NameOfFixture());

TEST_F(Forces, EqualTheSolverOnEverySampleBody)
{
    const std::string folder = source_path("apps/sample");
    const auto cases = nlohmann::json::parse(std::ifstream(folder + "/cases.json"))["cases"];
    ASSERT_FALSE(cases.empty());
    for (const auto& entry : cases) {
        const auto found =
            meshard_json({"forces", folder + "/boundary_" + entry["id"].get<std::string>() + ".vtp", "--pressure",
                          "pMean", "--shear", "wallShearStressMean", "--rho", entry["rho"].dump(), "--u-inf",
                          entry["U_inf"].dump(), "--area", entry["Aref_half"].dump()});
        const auto drag = entry["Cd"].get<double>();
        EXPECT_NEAR(found["Cd"].get<double>(), drag, 1e-5 * drag) << entry["id"];
        EXPECT_EQ(found["normals_flipped"], false) << entry["id"];
    }
}

TEST_F(Forces, EqualTheSolverOnEveryAhmedBody)
{
    const std::string folder = source_path("../shared/data/ahmed_mini");
    if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no data: " << folder;
    const auto cases = nlohmann::json::parse(std::ifstream(folder + "/cases.json"))["cases"];
    for (const auto& entry : cases) {
        const std::string file = folder + "/boundary_" + entry["id"].get<std::string>() + ".vtp";
        const auto with = [&](const std::string& pressure) {
            return meshard_json({"forces", file, "--pressure", pressure, "--rho", entry["rho"].dump(), "--u-inf",
                                 entry["U_inf"].dump(), "--area", entry["Aref_half"].dump()});
        };
        auto last = with("p");
        auto mean = with("pMean");
        const auto near = [&](nlohmann::json& found, const char* key, const char* column) {
            EXPECT_NEAR(found[key].get<double>(), entry[column].get<double>(),
                        1e-5 * std::abs(entry[column].get<double>()))
                << entry["id"] << ' ' << column;
        };
        near(last, "Cd", "Cd_integrated_last");
        near(last, "Cl", "Cl_integrated_last");
        near(mean, "Cd", "Cd_integrated_mean");
        near(mean, "Cl", "Cl_integrated_mean");
        near(mean, "Cd", "Cd");
        near(mean, "Cd_pressure", "Cd_pressure");
        near(mean, "Cd_viscous", "Cd_viscous");
        EXPECT_GT(mean["normals_agreement"].get<double>(), 0.999);
        EXPECT_EQ(mean["normals_flipped"], false);
    }
    EXPECT_EQ(cases.size(), 40u);
}

}  // namespace
}  // namespace meshard
