// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/data_check.h"
#include "io/shards/subdomain_io.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/ghosts/subdomain.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/run_ranks.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace meshard {
namespace {

/// Pressure 2 x - 3 z + 1 and a shear stress against x, on the rows of a surface.
Mesh body_with_fields(bool on_cells)
{
    Mesh mesh = sphere(6);
    mesh.cell_data.clear();
    mesh.point_data.clear();
    const auto geometry = row_geometry(mesh, on_cells);
    std::vector<double> pressure, shear;
    for (std::size_t row = 0; row < geometry.size(); row += kGeometryColumns) {
        const auto x = geometry[row + 3], y = geometry[row + 4], z = geometry[row + 5];
        pressure.push_back(2 * x - 3 * z + 1);
        shear.insert(shear.end(), {y - 2, 0.5 * x, z});
    }
    auto& arrays = on_cells ? mesh.cell_data : mesh.point_data;
    arrays.push_back(DataArray::from("p", pressure));
    arrays.push_back(DataArray::from("tau", shear, 3));
    return mesh;
}

TEST(CaseFigures, AreSumsOverTheWholeMeshOnAnyNumberOfRanks)
{
    for (const bool on_cells : {true, false}) {
        const auto whole = body_with_fields(on_cells);
        const auto geometry = row_geometry(whole, on_cells);
        const auto& arrays = on_cells ? whole.cell_data : whole.point_data;
        ForceSums expected;
        ShapeSums shape;
        double squares = 0, high = -1e9;
        for (std::int64_t row = 0; row < arrays[0].num_rows(); ++row) {
            const auto* g = geometry.data() + row * kGeometryColumns;
            for (int c = 0; c < 3; ++c) {
                expected.true_pressure[c] += arrays[0].value(row) * g[c];
                expected.true_shear[c] += arrays[1].value(row, c) * g[6];
            }
            expected.area += g[6];
            shape.add({g[0], g[1], g[2]}, {g[3], g[4], g[5]});
            squares += std::pow(arrays[0].value(row), 2);
            high = std::max(high, arrays[0].value(row));
        }
        const TemporaryFolder folder;
        const auto shards = folder.path() / "case";
        const auto graph = mesh_graph(whole);
        save_subdomains(shards, extract_subdomains(whole, graph, partition_with_metis(graph, {.num_parts = 5}), 1), {});
        DataConfig data;
        data.on_cells = on_cells;
        data.fields = {{"pressure", "p", "kinematic"}, {"wss", "tau", "stress"}};
        const JudgedFields layout(data.fields, {1, 3});

        for (const int num_ranks : {1, 2, 3, 7}) {
            run_ranks(num_ranks, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
                const std::vector folders{shards, shards};
                const auto figures = case_figures(folders, data, layout, device_mesh->all());
                ASSERT_EQ(figures.size(), 2);
                for (const auto& one : figures) {
                    EXPECT_TRUE(one.is_surface);
                    EXPECT_EQ(one.num_rows, arrays[0].num_rows());
                    EXPECT_EQ(one.num_cells_without_area, 0);
                    for (int c = 0; c < 3; ++c) {
                        EXPECT_NEAR(one.forces.true_pressure[c], expected.true_pressure[c], 1e-10)
                            << on_cells << num_ranks;
                        EXPECT_NEAR(one.forces.true_shear[c], expected.true_shear[c], 1e-10);
                        EXPECT_NEAR(one.forces.area_vector[c], 0, 1e-12);
                    }
                    EXPECT_NEAR(one.forces.area, expected.area, 1e-10);
                    if (on_cells) {  // a point's area vector is of several cells
                        for (int k = 0; k < ShapeSums::kNumbers; ++k)
                            EXPECT_NEAR(one.shape.numbers[k], shape.numbers[k], 1e-11);
                    }
                    EXPECT_NEAR(one.bounds[1], 1, 1e-6);
                    EXPECT_NEAR(one.channels[0].squares, squares, 1e-9);
                    EXPECT_EQ(one.channels[0].high, high);
                }
            });
        }
    }
}

TEST(CaseFigures, AreReadWhereTheyAreKept)
{
    const auto whole = body_with_fields(true);
    const TemporaryFolder folder;
    const auto graph = mesh_graph(whole);
    std::vector<std::filesystem::path> shards, stored;
    for (const char* name : {"a", "b", "c"}) {
        shards.push_back(folder.path() / name);
        save_subdomains(shards.back(),
                        extract_subdomains(whole, graph, partition_with_metis(graph, {.num_parts = 3}), 1), {});
        stored.push_back(folder.path() / (std::string("stored_") + name));
        std::filesystem::create_directory(stored.back());
    }
    DataConfig data;
    data.fields = {{"pressure", "p", "kinematic"}, {"wss", "tau", "stress"}};
    const JudgedFields layout(data.fields, {1, 3});
    const auto expect_same = [](const CaseFigures& one, const CaseFigures& other) {
        EXPECT_EQ(one.num_rows, other.num_rows);
        EXPECT_EQ(one.is_surface, other.is_surface);
        EXPECT_EQ(one.forces.true_pressure, other.forces.true_pressure);
        EXPECT_EQ(one.forces.place, other.forces.place);
        EXPECT_EQ(one.shear_size, other.shear_size);
        EXPECT_EQ(one.shape.numbers, other.shape.numbers);
        EXPECT_EQ(one.bounds, other.bounds);
        ASSERT_EQ(one.channels.size(), other.channels.size());
        for (std::size_t c = 0; c < one.channels.size(); ++c) {
            EXPECT_EQ(one.channels[c].squares, other.channels[c].squares);
            EXPECT_EQ(one.channels[c].low, other.channels[c].low);
            EXPECT_EQ(one.channels[c].high, other.channels[c].high);
        }
    };
    std::vector<CaseFigures> first;
    run_ranks(2, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
        const auto figures = kept_case_figures(stored, shards, data, layout, device_mesh->all());
        const auto computed = case_figures(shards, data, layout, device_mesh->all());
        ASSERT_EQ(figures.size(), 3);
        for (int i = 0; i < 3; ++i) expect_same(figures[i], computed[i]);
        if (device_mesh->all().rank() == 0) first = figures;
    });
    for (const auto& one : stored) EXPECT_TRUE(std::filesystem::exists(one / "figures.json"));

    // A damaged one is computed again; of the others not even the shards are looked for.
    auto text = read_bytes(stored[1] / "figures.json");
    const auto digit = text.find_first_of("123456789", text.find("numbers"));
    text[digit] = text[digit] == '1' ? '2' : '1';
    write_bytes(stored[1] / "figures.json", text);
    std::filesystem::remove_all(shards[0]);
    std::filesystem::remove_all(shards[2]);
    for (const int num_ranks : {1, 2, 3}) {
        run_ranks(num_ranks, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
            const auto figures = kept_case_figures(stored, shards, data, layout, device_mesh->all());
            for (const int i : {0, 2}) expect_same(figures[i], first[i]);
            EXPECT_EQ(figures[1].num_rows, first[1].num_rows);
            EXPECT_NEAR(figures[1].forces.true_pressure[0], first[1].forces.true_pressure[0], 1e-12);
        });
    }
}

/// Four cases of a body of area 4, in a flow of speed 10: two train, one is for validation, one for the test. Cd 0.3,
/// Cl 0.1 with a reference area of 2.
struct DataCheck : testing::Test {
    DataCheck()
    {
        settings.velocity = {"10"};
        settings.density = "1.25";
        settings.area = "2";
        for (int i = 0; i < 4; ++i) {
            CaseFigures one;
            one.num_rows = 100 + i;
            one.is_surface = true;
            one.forces.area = 4;
            one.forces.outward = 2;
            one.forces.true_pressure = {-25, 0, -10};
            one.forces.true_shear = {-5, 0, 0};  // OpenFOAM's sign
            one.shear_size = 6;
            one.channels = {{10.0, 3000.0 + i, -40, 50}, {-80, 100, -3, 1}, {1, 50, -2, 2}, {2, 30, -1, 1}};
            figures.push_back(one);
            CaseSource source{std::to_string(i), {}, {{"Cd", "0.3"}, {"Cl", "0.1"}}};
            (i < 2 ? cases.train : i == 2 ? cases.val : cases.test).push_back(source);
        }
        data.fields = {{"p", "p", "kinematic"}, {"tau", "tau", "stress"}};
    }

    DataFindings findings() const
    {
        return judge_data(cases, figures, data, settings, JudgedFields(data.fields, {1, 3}));
    }

    /// The only contradiction.
    std::string contradiction() const
    {
        const auto found = findings().contradictions;
        EXPECT_EQ(found.size(), 1);
        return found.empty() ? std::string() : found[0];
    }

    CaseLists cases;
    std::vector<CaseFigures> figures;
    DataConfig data;
    ForceSettings settings;
};

TEST_F(DataCheck, LetsDataPassThatClose)
{
    const auto found = findings();

    EXPECT_EQ(found.contradictions, std::vector<std::string>());
    EXPECT_EQ(found.numbers["normals"], 1);
    EXPECT_EQ(found.numbers["shear"], -1);
    EXPECT_EQ(found.numbers["cd_closure"]["n"], 4);
    EXPECT_NEAR(found.numbers["cd_closure"]["max_abs"].get<double>(), 0, 1e-12);
    EXPECT_NEAR(found.numbers["highest_pressure"][0].get<double>(), 1, 1e-12);
}

TEST_F(DataCheck, TakesFreeStreamAndDensityFromTheTable)
{
    settings.velocity = {"Ux", "0", "Uz"};
    settings.density = "density";
    settings.area = "A";
    data.fields[0].kind = "static";
    for (auto* sources : {&cases.train, &cases.val, &cases.test}) {
        for (auto& source : *sources)
            source.columns.insert({{"Ux", "8"}, {"Uz", "6"}, {"density", "1.25"}, {"A", "2"}});
    }
    // q = 1.25 * 100 / 2 on an area of 2; the force (25 + 5, 0, 10) along (0.8, 0, 0.6), and along (-0.6, 0, 0.8), the
    // rest of z.
    for (auto* sources : {&cases.train, &cases.val, &cases.test}) {
        for (auto& source : *sources) {
            source.columns["Cd"] = "0.24";
            source.columns["Cl"] = "-0.08";
        }
    }
    const auto found = findings();

    EXPECT_EQ(found.contradictions, std::vector<std::string>());
    EXPECT_NEAR(found.numbers["cd_closure"]["max_abs"].get<double>(), 0, 1e-12);
    EXPECT_NEAR(found.numbers["cl_closure"]["max_abs"].get<double>(), 0, 1e-12);
}

TEST_F(DataCheck, WantsTheDensityOfPressuresInPa)
{
    settings.density = "rho";
    data.fields[0].kind = "static";
    std::string why;
    EXPECT_FALSE(flow_reference(settings, cases.train[0], "static", why));
    EXPECT_EQ(why, "the density is not said (data.reference.rho), and pressures are in Pa (static)");
    cases.train[0].columns["rho"] = "1.25";
    EXPECT_NEAR(flow_reference(settings, cases.train[0], "static", why)->scale, 1 / (0.5 * 1.25 * 100 * 2), 1e-15);
    cases.train[0].columns["rho"] = "0";
    EXPECT_FALSE(flow_reference(settings, cases.train[0], "static", why));
    EXPECT_EQ(why, "case 0 has no number above 0 in the column 'rho' of its table (data.reference.rho)");
}

TEST_F(DataCheck, ClosesTheForcesOfOpenBodiesWithAbsolutePressures)
{
    data.fields[0].kind = "static";
    settings.density = "1";
    settings.ambient = "1000";
    for (auto& one : figures) {
        one.forces.area_vector = {0.1, 0, 0.3};
        one.forces.true_pressure = {75, 0, 290};
        one.channels[0].high += 1000;
    }
    const auto found = findings();

    EXPECT_EQ(found.contradictions, std::vector<std::string>());
    EXPECT_EQ(found.numbers["cl_closure"]["n"], 4);
    EXPECT_NEAR(found.numbers["highest_pressure"][0].get<double>(), 1, 1e-12);
}

TEST_F(DataCheck, NamesTheCaseThatDoesNotClose)
{
    figures[2].forces.true_pressure[0] = -40;

    const auto text = contradiction();

    EXPECT_NE(text.find("apart in 1 of 4 cases: 2 (0.4500 and 0.3000)"), std::string::npos) << text;
    EXPECT_NE(text.find("The others close"), std::string::npos) << text;
}

TEST_F(DataCheck, NamesTheKindThatCloses)
{
    for (auto* list : {&cases.train, &cases.val, &cases.test}) {
        for (auto& source : *list) source.columns = {{"Cd", "0.24"}, {"Cl", "0.08"}};
    }

    const auto found = findings().contradictions;

    ASSERT_EQ(found.size(), 2);  // Cd and Cl
    for (const auto& text : found)
        EXPECT_NE(text.find("With data.fields.p.kind=static they close"), std::string::npos) << text;
}

TEST_F(DataCheck, NamesNoChangeThatTheOpenCasesDoNotNeed)
{
    // Nineteen of twenty cases close, and close with the shear stress times the density, too.
    settings.velocity = {"10"};
    settings.density = "1.02";
    for (int i = 4; i < 20; ++i) {
        figures.push_back(figures.front());
        auto& one = figures.back();
        one.num_rows = 100 + i;
        one.channels[0].squares = 3000.0 + i;
        cases.test.push_back(cases.test.front());
        cases.test.back().id = std::to_string(i);
    }
    cases.test.back().columns["Cd"] = "0.8";

    const auto text = contradiction();

    EXPECT_NE(text.find("apart in 1 of 20 cases: 19 (0.3000 and 0.8000). The others close"), std::string::npos) << text;

    // With twice the area this case closes, and no other.
    cases.test.back().columns["Cd"] = "0.15";
    EXPECT_NE(contradiction().find("The others close"), std::string::npos) << contradiction();

    // All are apart, and one for another reason.
    for (auto* list : {&cases.train, &cases.val, &cases.test})
        for (auto& source : *list) source.columns = {{"Cd", "0.15"}};
    cases.test.back().columns["Cd"] = "0.9";
    EXPECT_NE(contradiction().find("With twice the reference area they close: correct data.forces.area (half bodies "
                                   "have half the area). Not so 19."),
              std::string::npos)
        << contradiction();
}

TEST_F(DataCheck, NamesTheAreaOfHalfBodies)
{
    settings.area = "1";

    const auto found = findings().contradictions;

    ASSERT_EQ(found.size(), 2);
    EXPECT_NE(found[0].find("With twice the reference area they close"), std::string::npos) << found[0];
}

TEST_F(DataCheck, TellsTheKindByTheHighestPressureWhereNoTableDoes)
{
    for (auto* list : {&cases.train, &cases.val, &cases.test}) {
        for (auto& source : *list) source.columns.clear();
    }
    EXPECT_EQ(findings().contradictions, std::vector<std::string>());
    for (auto& one : figures) one.channels[0].high = 62.5;  // 0.5 * 1.25 * 10^2

    const auto text = contradiction();

    EXPECT_NE(text.find("Set data.fields.p.kind=static"), std::string::npos) << text;
}

TEST_F(DataCheck, RefusesSignsThatDiffer)
{
    figures[1].forces.outward = -2;
    figures[1].forces.true_pressure = {25, 0, 10};  // forces are the same: signs are found
    EXPECT_NE(contradiction().find("normals point into the body in 1 case (1)"), std::string::npos) << contradiction();

    figures[1] = figures[0];
    figures[1].num_rows = 101;
    figures[3].forces.true_shear[0] = 5;
    EXPECT_NE(contradiction().find("the shear stress is that on the body in 1 case (3)"), std::string::npos)
        << contradiction();

    figures[3].forces.true_shear[0] = 0.01;  // no mean shear that would say a sign
    figures[3].forces.true_pressure[0] = -30;
    EXPECT_EQ(findings().contradictions, std::vector<std::string>());
}

TEST_F(DataCheck, FindsRepeatedAndMirroredCasesOfTwoSplits)
{
    figures[3].num_rows = figures[0].num_rows;
    figures[3].channels[0].squares = figures[0].channels[0].squares * (1 + 1e-13);
    for (auto* one : {&figures[0], &figures[3]}) {
        one->forces.true_pressure[1] = 3;
        one->forces.place[1] = 0.5;
    }
    EXPECT_NE(contradiction().find("0 (train) and 3 (test)"), std::string::npos) << contradiction();
    figures[3].forces.true_pressure[1] = -3;
    figures[3].forces.place[1] = -0.5;
    EXPECT_NE(contradiction().find("0 (train) and 3 (test)"), std::string::npos) << contradiction();
    figures[3].forces.true_pressure[1] = -3.01;
    EXPECT_EQ(findings().contradictions, std::vector<std::string>());
}

TEST_F(DataCheck, WarnsOfOutliersAndConstants)
{
    EXPECT_EQ(findings().warnings, std::vector<std::string>());
    figures[2].channels[3].high = 30;
    figures[0].num_cells_without_area = 2;
    data.constants = {"Cd"};

    const auto found = findings().warnings;

    ASSERT_EQ(found.size(), 3);
    EXPECT_EQ(found[0], "cells have no area in case 0 (2)");
    EXPECT_NE(found[1].find("tau.z has values more than 20 standard deviations"), std::string::npos) << found[1];
    EXPECT_NE(found[1].find("2 (30)"), std::string::npos) << found[1];
    EXPECT_NE(found[2].find("data.constants has Cd, which is 0.3 in all cases"), std::string::npos) << found[2];
}

TEST_F(DataCheck, WarnsOfLevelsBesideWhichSinglePrecisionLosesTheField)
{
    for (auto& one : figures) {
        const auto count = static_cast<double>(one.num_rows);
        one.channels[0] = {count * 1e4, count * (1e8 + 1e-6), 1e4 - 1e-3, 1e4 + 1e-3};
    }
    const auto found = findings().warnings;
    ASSERT_EQ(found.size(), 1);
    EXPECT_NE(found[0].find("from 10000, of which single precision tells 0.0012: subtract a level"), std::string::npos)
        << found[0];
}

TEST_F(DataCheck, RefusesWhatIsNotFinite)
{
    figures[1].channels[2].sum = figures[1].channels[2].squares = std::nan("");
    EXPECT_NE(contradiction().find("not finite in 1"), std::string::npos) << contradiction();
}

}  // namespace
}  // namespace meshard
