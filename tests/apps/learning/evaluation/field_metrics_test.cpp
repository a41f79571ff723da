// SPDX-License-Identifier: Apache-2.0
#include "apps/console/console.h"
#include "apps/learning/evaluation/case_sums.h"
#include "apps/learning/evaluation/error_region.h"
#include "apps/learning/evaluation/evaluation.h"
#include "apps/learning/evaluation/field_metrics.h"
#include "apps/learning/evaluation/force_metrics.h"
#include "partition/mesh/surface_forces.h"
#include "partition/mesh/vector_algebra.h"
#include "tests/support/run_ranks.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace meshard {
namespace {

double value_of(const Metrics& metrics, const std::string& name)
{
    const auto found = std::ranges::find(metrics, name, &Metrics::value_type::first);
    EXPECT_NE(found, metrics.end()) << name;
    return found == metrics.end() ? 0 : found->second;
}

TEST(FieldMetrics, AreThoseOfAHandMadeVectorField)
{
    const JudgedFields layout({{"p", "p", "kinematic"}, {"u", "u", "vector"}}, {1, 2});
    const auto truth = torch::tensor({{1.0, 3.0, 4.0}, {-2.0, 0.0, 1.0}}),
               prediction = torch::tensor({{2.0, 3.0, 2.0}, {-2.0, 1.0, 1.0}});
    const auto guess = torch::tensor({0.0, 1.0, 1.0});
    auto geometry = torch::zeros({2, kGeometryColumns}, torch::kDouble);
    geometry[0][6] = 2.0;
    geometry[1][6] = 1.0;

    const auto metrics = case_sums(prediction, truth, geometry, layout, guess, RankGroup()).metrics(layout);

    EXPECT_DOUBLE_EQ(value_of(metrics, "p.rel_l2"), std::sqrt(1.0 / 5));
    EXPECT_DOUBLE_EQ(value_of(metrics, "p.rel_l1"), 1.0 / 3);
    EXPECT_DOUBLE_EQ(value_of(metrics, "p.mae"), 0.5);
    EXPECT_DOUBLE_EQ(value_of(metrics, "p.rmse"), std::sqrt(0.5));
    EXPECT_DOUBLE_EQ(value_of(metrics, "p.rmse_over_max"), std::sqrt(0.5) / 2);
    EXPECT_DOUBLE_EQ(value_of(metrics, "p.rel_l2_area"), std::sqrt(2.0 / 6));
    EXPECT_DOUBLE_EQ(value_of(metrics, "p.r2"), 1 - 1.0 / 4.5);
    EXPECT_DOUBLE_EQ(value_of(metrics, "p.guess_rel_l2"), 1.0);
    EXPECT_DOUBLE_EQ(value_of(metrics, "u.rel_l2"), std::sqrt(5.0 / 26));
    EXPECT_DOUBLE_EQ(value_of(metrics, "u.mae"), 3.0 / 4);
    EXPECT_DOUBLE_EQ(value_of(metrics, "u.max_abs"), 2.0);
    EXPECT_DOUBLE_EQ(value_of(metrics, "u.0.rel_l2"), std::sqrt(1.0 / 9));
    EXPECT_DOUBLE_EQ(value_of(metrics, "u.guess_mae"), (2.0 + 3 + 1 + 0) / 4);
    const auto mag = std::sqrt(std::pow(std::sqrt(13.0) - 5, 2) + std::pow(std::sqrt(2.0) - 1, 2)) / std::sqrt(26.0);
    EXPECT_NEAR(value_of(metrics, "u.mag.rel_l2"), mag, 1e-12);
}

TEST(FieldMetrics, OfCoefficientsHaveBiasScatterAndRanks)
{
    const std::vector<double> truth{0.30, 0.32, 0.28}, predicted{0.31, 0.34, 0.26};

    const auto metrics = coefficient_metrics(predicted, truth, 0.30);

    EXPECT_NEAR(value_of(metrics, "mae"), 0.05 / 3, 1e-12);
    EXPECT_NEAR(value_of(metrics, "bias"), 0.01 / 3, 1e-12);
    EXPECT_NEAR(value_of(metrics, "std"), std::sqrt(0.0009 / 3 - std::pow(0.01 / 3, 2)), 1e-12);
    EXPECT_NEAR(value_of(metrics, "r2"), 1 - 0.0009 / 0.0008, 1e-9);
    EXPECT_NEAR(value_of(metrics, "spearman"), 1, 1e-12);
    EXPECT_NEAR(value_of(metrics, "pair_order"), 1, 1e-12);
    EXPECT_NEAR(value_of(metrics, "guess_mae"), 0.04 / 3, 1e-12);
    EXPECT_TRUE(std::isnan(value_of(coefficient_metrics(std::vector{0.3}, std::vector{0.3}, {}), "r2")));
}

TEST(FieldMetrics, HaveNoR2OfAConstantTruth)
{
    const JudgedFields layout({{"p", "p", "kinematic"}}, {1});
    const auto r2_of = [&](const at::Tensor& truth) {
        return value_of(case_sums(truth + 1, truth, {}, layout, torch::zeros({1}), RankGroup()).metrics(layout),
                        "p.r2");
    };
    EXPECT_TRUE(std::isnan(r2_of(torch::full({1000, 1}, 101325.3))));
    EXPECT_TRUE(std::isnan(r2_of(torch::full({1000, 1}, 1e-7))));
    EXPECT_TRUE(std::isnan(r2_of(torch::zeros({1000, 1}))));
    const auto varied = torch::arange(1000, torch::kDouble).unsqueeze(1) * 1e-3 + 101325;  // by one part in 350,000
    EXPECT_NEAR(r2_of(varied), 1 - 1 / ((1e6 - 1) / 12 * 1e-6), 1e-3);
    EXPECT_TRUE(
        std::isnan(value_of(coefficient_metrics(std::vector{0.3, 0.31, 0.4}, std::vector{0.1, 0.1, 0.1}, {}), "r2")));
}

TEST(ErrorRegions, AreTheBoxesWithMostOfEachFieldsError)
{
    const JudgedFields layout({{"p", "p", "kinematic"}, {"u", "u", "vector"}}, {1, 2});
    constexpr std::int64_t n = 1000;
    const auto places = torch::stack({torch::arange(n, torch::kDouble) / (n - 1) * 8, torch::zeros({n}, torch::kDouble),
                                      torch::ones({n}, torch::kDouble)},
                                     1);
    const auto truth = torch::zeros({n, 3});
    auto prediction = torch::full({n, 3}, 0.1);
    prediction.select(1, 0).slice(0, 900) += 0.9;   // the pressure at x of 7.2 and more
    prediction.select(1, 2).slice(0, 0, 125) -= 1;  // the second component at x up to 1
    for (const int num_ranks : {1, 2, 3}) {
        run_ranks(num_ranks, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
            const auto& ranks = device_mesh->all();
            const std::array<std::int64_t, 4> ends{0, num_ranks == 1 ? n : 950, num_ranks == 2 ? n : 950,
                                                   n};  // uneven, one rank without rows
            const auto own = [&](const at::Tensor& all) {
                return all.slice(0, ends[ranks.rank()], ends[ranks.rank() + 1]);
            };
            const auto geometry =
                torch::cat({torch::zeros({n, 3}, torch::kDouble), places, torch::ones({n, 1}, torch::kDouble)}, 1);

            const auto regions =
                error_regions(own(prediction), own(truth), own(geometry), layout, {0, 8, 0, 0, 0, 2}, ranks);

            ASSERT_EQ(regions.size(), 2U);
            EXPECT_EQ(regions[0].bounds, (std::array<double, 6>{6, 8, 0, 0, 1, 1.5}));
            EXPECT_NEAR(regions[0].row_share, 0.25, 1e-12);
            EXPECT_NEAR(regions[0].error_share, (100 * 1.0 + 150 * 0.01) / (100 * 1.0 + 900 * 0.01), 1e-6);
            EXPECT_EQ(regions[1].bounds, (std::array<double, 6>{0, 2, 0, 0, 1, 1.5}));
            EXPECT_NEAR(regions[1].error_share,
                        (250 * 0.01 + 125 * 0.81 + 125 * 0.01) / (1000 * 0.01 + 125 * 0.81 + 875 * 0.01), 1e-6);
        });
    }
    EXPECT_EQ((ErrorRegion{{6, 8, 0, 0, 1, 1.5}, 0.931, 0.25}.text(false)),
              "93 % of its squared error lies in 25 % of its points, x 6 to 8, y 0 to 0, z 1 to 1.5");
}

TEST(FieldMetrics, GiveTiesTheMeanOfTheirRanks)
{
    // Ranks 1.5 1.5 3 4 and 1 2 3.5 3.5: Pearson's correlation of them by hand.
    EXPECT_NEAR(spearman(std::vector<double>{1, 1, 2, 3}, std::vector<double>{5, 6, 7, 7}), 4.0 / 4.5, 1e-12);
    EXPECT_TRUE(std::isnan(spearman(std::vector<double>{1, 1}, std::vector<double>{1, 2})));
}

TEST(ForceMetrics, FindSignsThemselves)
{
    ForceSums sums;
    sums.area = 6;
    sums.outward = -3;  // of a unit cube whose faces look inwards
    sums.true_pressure = {-2, 0, 1};
    sums.predicted_pressure = {-3, 0, 1};
    sums.true_shear = {-0.5, 0, 0};  // OpenFOAM's sign
    sums.predicted_shear = {-0.25, 0, 0};

    const auto found = coefficients(sums, {.drag = {1, 0, 0}, .lift = {0, 0, 1}, .scale = 2});

    EXPECT_DOUBLE_EQ(found.all[0].truth, 2 * (-2 + 0.5));
    EXPECT_DOUBLE_EQ(found.all[0].predicted, 2 * (-3 + 0.25));
    EXPECT_DOUBLE_EQ(found.all[1].truth, 2 * 1);

    sums.outward = -1e-7;  // a flat sheet has none but by rounding
    EXPECT_DOUBLE_EQ(coefficients(sums, {.drag = {1, 0, 0}, .lift = {0, 0, 1}, .scale = 2}).all[1].truth, -2 * 1);
}

/// Half a sphere, open below, whose points are moved so that its quadrilaterals are warped.
Mesh open_surface()
{
    auto mesh = sphere(5);
    mesh.cell_data.clear();
    Csr cells;
    std::vector<std::uint8_t> types;
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
        const auto corners = mesh.cells.row(cell);
        if (std::ranges::all_of(corners, [&](auto point) { return mesh.points.value(point, 2) < 0; })) continue;
        cells.push_row(corners);
        types.push_back(mesh.cell_types[cell]);
    }
    mesh.cells = cells;
    mesh.cell_types = types;
    std::vector<double> places;
    for (std::int64_t i = 0; i < 3 * mesh.num_points(); ++i)
        places.push_back(mesh.points.value(i / 3, i % 3) + 0.1 * std::sin(static_cast<double>(i)));
    mesh.points = DataArray::from("points", places, 3);
    return mesh;
}

/// Coefficients of the fields (rows, 4), pressure and stress, on a surface that faces outwards. The pressure is that of
/// the fields, of the prediction twice that, above `ambient`.
std::vector<Coefficient> coefficients_of(const Mesh& mesh, bool on_cells, const at::Tensor& fields,
                                         const FlowReference& flow, double ambient = 0)
{
    const JudgedFields layout({{"p", "p", "kinematic"}, {"tau", "tau", "stress"}}, {1, 3});
    const auto geometry =
        torch::tensor(row_geometry(mesh, on_cells), torch::kDouble).reshape({fields.size(0), kGeometryColumns});
    const auto level = torch::tensor({ambient, 0.0, 0.0, 0.0}, torch::kDouble);
    const auto sums = case_sums(2 * fields + level, fields + level, geometry, layout, torch::zeros({4}), RankGroup());
    return coefficients(sums.forces, flow).all;
}

TEST(ForceMetrics, AreThoseOfIntegrateForcesAboutAnyPoint)
{
    auto mesh = sphere(5);
    mesh.cell_data.clear();
    std::vector<double> places;
    for (std::int64_t i = 0; i < mesh.num_points(); ++i) {
        for (int c = 0; c < 3; ++c) places.push_back((1 + 0.3 * c) * mesh.points.value(i, c) + 2 - c);
    }
    mesh.points = DataArray::from("points", places, 3);
    const FlowReference flow{.drag = unit(Vector3{2, 1, 0}), .scale = 0.7, .length = 1.3, .center = {0.5, -2, 3}};
    torch::manual_seed(1);
    for (const bool on_cells : {true, false}) {
        auto fields = torch::randn({on_cells ? mesh.num_cells() : mesh.num_points(), 4}, torch::kDouble);
        fields.select(1, 1).add_(3);  // along the free stream, so that it is the stress on the body
        std::vector<double> pressures;
        std::vector<Vector3> tractions;
        for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
            const auto corners = mesh.cells.row(cell);
            const std::vector<std::int64_t> rows =
                on_cells ? std::vector{cell} : std::vector<std::int64_t>(corners.begin(), corners.end());
            const auto mean = fields.index_select(0, torch::tensor(rows)).mean(0);
            const auto* value = mean.const_data_ptr<double>();
            pressures.push_back(value[0]);
            tractions.push_back({value[1], value[2], value[3]});
        }
        const auto expected =
            integrate_forces(area_vectors(mesh), surface_centroids(mesh), pressures, tractions, flow.center);
        const auto force = expected.pressure_force + expected.viscous_force,
                   moment = expected.pressure_moment + expected.viscous_moment;
        const auto side = cross(flow.lift, flow.drag);

        const auto found = coefficients_of(mesh, on_cells, fields, flow);

        const std::array values{dot(force, flow.drag), dot(force, flow.lift), dot(force, side),
                                moment[0] / 1.3,       moment[1] / 1.3,       moment[2] / 1.3};
        ASSERT_EQ(found.size(), kForceCoefficients.size());
        for (std::size_t k = 0; k < values.size(); ++k) {
            EXPECT_STREQ(found[k].name, kForceCoefficients[k]);
            EXPECT_NEAR(found[k].truth, 0.7 * values[k], 1e-11) << found[k].name;
            EXPECT_NEAR(found[k].predicted, 2 * 0.7 * values[k], 1e-11) << found[k].name;
        }
    }
}

TEST(CoefficientMetrics, OfAPredictionThatIsNotFiniteEnd)
{
    const auto metrics = coefficient_metrics(std::vector<double>{1, NAN, 2}, std::vector<double>{1, 2, 3}, {});
    EXPECT_TRUE(std::isnan(value_of(metrics, "spearman")));
    EXPECT_TRUE(std::isnan(value_of(metrics, "mae")));
}

TEST(ForceMetrics, HaveTheShearOfAPlateWithoutThickness)
{
    Mesh plate;  // upper and lower side share their points, whose area vectors are 0
    plate.points = DataArray::from("points", std::vector<double>{0, 0, 0, 2, 0, 0, 0, 3, 0}, 3);
    plate.cell_types = {5, 5};
    for (const auto& corners : {std::vector<std::int32_t>{0, 1, 2}, std::vector<std::int32_t>{0, 2, 1}})
        plate.cells.push_row(corners);
    for (const bool on_cells : {true, false}) {
        auto fields = torch::zeros({on_cells ? 2 : 3, 4}, torch::kDouble);
        fields.select(1, 0).fill_(7);
        fields.select(1, 1).fill_(5);
        EXPECT_NEAR(coefficients_of(plate, on_cells, fields, FlowReference{})[0].truth, 2 * 3 * 5, 1e-12);
    }
}

TEST(ForceMetrics, FollowFromGauss)
{
    // A constant pressure neither pushes nor turns a closed body, a constant stress acts at the centre of its surface,
    // and a pressure that grows along x pushes it by its volume.
    const auto mesh = sphere(6);
    const auto centers = surface_centroids(mesh);
    const auto rows = mesh.num_cells();
    const FlowReference flow{.length = 2, .center = {0, 0, -1}};
    auto fields = torch::zeros({rows, 4}, torch::kDouble);
    fields.select(1, 0).fill_(5);
    double area = 0, volume = 0, height = 0, width = 0;
    const auto vectors = area_vectors(mesh);
    for (std::int64_t cell = 0; cell < rows; ++cell) {
        area += norm(vectors[cell]);
        height += norm(vectors[cell]) * (centers[cell][2] + 1);  // above the point
        width += norm(vectors[cell]) * centers[cell][1];
        volume += dot(centers[cell], vectors[cell]) / 3;
    }

    for (const auto& one : coefficients_of(mesh, true, fields, flow)) EXPECT_NEAR(one.truth, 0, 1e-12) << one.name;
    fields.select(1, 1).fill_(3);
    const auto dragged = coefficients_of(mesh, true, fields, flow);
    for (std::int64_t cell = 0; cell < rows; ++cell) fields[cell][0] = 4 * centers[cell][0];
    fields.select(1, 1).fill_(0);
    const auto pushed = coefficients_of(mesh, true, fields, flow);

    EXPECT_NEAR(dragged[0].truth, 3 * area, 1e-12);
    EXPECT_NEAR(dragged[3].truth, 0, 1e-12);
    EXPECT_NEAR(dragged[4].truth, 3 * height / 2, 1e-12);
    EXPECT_NEAR(dragged[5].truth, -3 * width / 2, 1e-12);
    EXPECT_GT(height, 10);
    EXPECT_NEAR(pushed[0].truth, -4 * volume, 1e-12);
    EXPECT_NEAR(pushed[1].truth, 0, 1e-12);
    EXPECT_NEAR(pushed[2].truth, 0, 1e-12);
}

TEST(ForceMetrics, AreOfThePressureAboveThatOfTheFreeStream)
{
    // An open surface of warped quadrilaterals: what a constant pressure does to it is no force of the flow.
    auto mesh = open_surface();
    const FlowReference relative{.drag = unit(Vector3{2, 1, 0}), .scale = 0.7, .length = 1.3, .center = {0.5, -2, 3}};
    auto absolute = relative;
    absolute.ambient = 1e5;
    torch::manual_seed(1);
    for (const bool on_cells : {true, false}) {
        auto fields = torch::randn({on_cells ? mesh.num_cells() : mesh.num_points(), 4}, torch::kDouble);
        fields.select(1, 1).add_(3);
        const auto expected = coefficients_of(mesh, on_cells, fields, relative, 0);
        const auto found = coefficients_of(mesh, on_cells, fields, absolute, 1e5);

        ASSERT_EQ(found.size(), kForceCoefficients.size());
        for (std::size_t k = 0; k < found.size(); ++k) {
            EXPECT_NEAR(found[k].truth, expected[k].truth, 1e-8) << found[k].name;
            EXPECT_NEAR(found[k].predicted, expected[k].predicted, 1e-8) << found[k].name;
        }
        const JudgedFields layout({{"p", "p", "kinematic"}, {"tau", "tau", "stress"}}, {1, 3});
        const auto geometry =
            torch::tensor(row_geometry(mesh, on_cells), torch::kDouble).reshape({fields.size(0), kGeometryColumns});
        fields.select(1, 0).add_(1e5);
        const auto sums = case_sums(fields, fields, geometry, layout, torch::zeros({4}), RankGroup());
        const auto pieces =
            drag_along_x(fields, fields, geometry, layout, sums.forces, absolute, -3, 4, 5, RankGroup());
        EXPECT_NEAR(std::accumulate(pieces[0].begin(), pieces[0].end(), 0.0), expected[0].truth, 1e-8);
    }
}

TEST(ForceMetrics, TakeThePressureOfTheFreeStreamByItsKind)
{
    ForceSettings settings;
    settings.velocity = {"30"};
    settings.area = "2";
    settings.density = "1.2";
    CaseSource source{"7", {}, {}};
    source.columns = {{"p_inf", "101325"}, {"patm", "500"}, {"none", ""}};
    std::string why;
    const auto ambient = [&](const char* kind) { return flow_reference(settings, source, kind, why).value().ambient; };

    EXPECT_EQ(ambient("static"), 101325);
    EXPECT_EQ(ambient("kinematic"), 0);  // a column in Pa says nothing of the solver's zero
    for (const auto& [entry, value] : {std::pair("patm", 500), std::pair("7", 7)}) {
        settings.ambient = entry;
        EXPECT_EQ(ambient("static"), value);
        EXPECT_EQ(ambient("kinematic"), value);
        EXPECT_EQ(ambient("cp"), 0);
    }
    settings.ambient = "none";
    EXPECT_FALSE(flow_reference(settings, source, "static", why));
    EXPECT_EQ(why, "case 7 has no number in the column 'none' of its table (data.reference.p_inf)");
    settings.ambient.clear();
    source.columns.clear();
    EXPECT_EQ(ambient("static"), 0);

    settings.velocity = {"U_inf", "0", "0"};
    EXPECT_FALSE(flow_reference(settings, source, "static", why));
    EXPECT_EQ(why, "the speed of the free stream is not said (data.reference.U_inf)");
    source.columns = {{"U_inf", "40 m/s"}};
    EXPECT_FALSE(flow_reference(settings, source, "static", why));
    EXPECT_EQ(why, "case 7 has no number above 0 in the column 'U_inf' of its table (data.reference.U_inf)");
}

TEST(ForceMetrics, HaveMomentsOnlyWhereLengthAndPointAreKnown)
{
    ForceSettings settings;
    settings.velocity = {"30"};
    settings.area = "2";
    CaseSource source{"7", {}, {}};
    source.columns = {{"wheelbase", "2.5"}, {"axle", "1.5"}};
    std::string why;
    const auto flow = [&] { return flow_reference(settings, source, "kinematic", why).value(); };

    EXPECT_FALSE(flow().length);
    EXPECT_EQ(flow().why_no_moments, "");
    settings.length = "wheelbase";
    settings.center = {"axle", "0", "-1"};
    EXPECT_EQ(flow().length, 2.5);
    EXPECT_EQ(flow().center, (Vector3{1.5, 0, -1}));
    source.columns["axle"] = "";
    EXPECT_FALSE(flow().length);
    EXPECT_EQ(flow().why_no_moments, "case 7 has no number in the column 'axle' of its table (data.forces.center)");
    source.columns["wheelbase"] = "-1";
    EXPECT_FALSE(flow().length);
    EXPECT_EQ(flow().why_no_moments,
              "case 7 has no number above 0 in the column 'wheelbase' of its table (data.forces.length)");
    EXPECT_EQ(why, "");
}

TEST(Threshold, RefusesWhatIsNoBoundAndNumbersThatAreNotThere)
{
    const auto numbers = nlohmann::ordered_json::parse(
        R"({"splits": {"test": {"fields": {"p": {"rel_l2": {"mean": 0.5, "max": 0.7}}}, "cd": {"mae": 0.02}}}})");

    EXPECT_DOUBLE_EQ(Threshold("test.p.rel_l2>0.4").value_in(numbers), 0.5);
    EXPECT_DOUBLE_EQ(Threshold("test.p.rel_l2.max>0.4").value_in(numbers), 0.7);
    EXPECT_TRUE(Threshold("test.cd.mae>=0.02").is_broken_by(0.02));
    EXPECT_DOUBLE_EQ(Threshold("test.p.rel_l2 > 0.4").value_in(numbers), 0.5);
    EXPECT_TRUE(Threshold("test.cd.mae < 0.03 ").is_broken_by(0.02));
    EXPECT_FALSE(Threshold("test.cd.mae>0.02").is_broken_by(0.02));
    EXPECT_THROW(Threshold("test.cd.mae"), UsageError);
    EXPECT_THROW(Threshold("test.cl.mae>1").value_in(numbers), UsageError);
}

}  // namespace
}  // namespace meshard
