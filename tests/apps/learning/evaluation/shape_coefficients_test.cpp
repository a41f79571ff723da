// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/shape_coefficients.h"
#include "tests/support/run_ranks.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace meshard {
namespace {

/// A box of length 4, width 3 and height 2 on legs of 0.5, whose upper rear edge is cut off by a plane at 30 degrees
/// that begins 1 below the top.
struct CutBox {
    ShapeSums shape;
    ForceSums forces;
    std::array<double, 6> bounds{0, 4, -1.5, 1.5, 0.5, 2.5};

    /// @param places   coordinates in the order of axes, e.g. {1, 0, 2} for a flow along y
    /// @param turned   by which sign each coordinate is multiplied
    explicit CutBox(std::array<int, 3> places = {0, 1, 2}, Vector3 turned = {1, 1, 1}, double outward = 1)
    {
        const auto run = std::sqrt(3.0);  // of the slant, along x, for a drop of 1
        add({-6, 0, 0}, {0, 0, 1.5});
        add({3, 0, 0}, {4, 0, 1});
        add({3, 0, 3 * run}, {4 - run / 2, 0, 2});
        add({0, 0, 3 * (4 - run)}, {(4 - run) / 2, 0, 2.5});
        add({0, 0, -12}, {2, 0, 0.5});
        for (const double side : {-1.0, 1.0}) add({0, side * (8 - run / 2), 0}, {1.9, side * 1.5, 1.4});
        auto moved = bounds;
        for (int c = 0; c < 3; ++c) {
            const auto low = turned[c] * bounds[2 * c], high = turned[c] * bounds[2 * c + 1];
            moved[2 * places[c]] = std::min(low, high);
            moved[2 * places[c] + 1] = std::max(low, high);
        }
        bounds = moved;
        for (const auto& [vector, place] : cells_) {
            Vector3 a{}, x{};
            for (int c = 0; c < 3; ++c) {
                a[places[c]] = outward * turned[c] * vector[c];
                x[places[c]] = turned[c] * place[c];
            }
            shape.add(a, x);
            const auto area = std::hypot(a[0], a[1], a[2]);
            forces.area += area;
            for (int c = 0; c < 3; ++c) {
                forces.area_vector[c] += a[c];
                forces.place[c] += x[c] * area;
                forces.outward += x[c] * a[c];
            }
        }
    }

private:
    void add(const Vector3& vector, const Vector3& place) { cells_.emplace_back(vector, place); }
    std::vector<std::pair<Vector3, Vector3>> cells_;
};

void expect_numbers_of_cut_box(const std::optional<std::vector<double>>& found)
{
    const auto run = std::sqrt(3.0), surface = 6 + 3 + 6 + 3 * (4 - run) + 12 + 2 * (8 - run / 2);
    const std::vector<double> expected{1,
                                       0,
                                       0,
                                       0,  // the front is a plane
                                       (3 + 3 * 0.5) / 6,
                                       3 * run / 2 / 6,
                                       0,
                                       run / 4 / 2,  // half of the rear is a plane, half the slant
                                       2,
                                       1.5,
                                       0.25,
                                       surface / 6};
    ASSERT_TRUE(found);
    ASSERT_EQ(found->size(), kShapeNumbers);
    for (std::size_t k = 0; k < expected.size(); ++k) EXPECT_NEAR((*found)[k], expected[k], 1e-12) << k;
}

TEST(ShapeNumbers, AreThoseOfABoxWithASlant)
{
    const CutBox box;
    expect_numbers_of_cut_box(shape_numbers(box.shape, box.forces, box.bounds, {{1, 0, 0}, {0, 0, 1}, 1}));
    expect_numbers_of_cut_box(
        shape_numbers(box.shape, box.forces, box.bounds, {{std::cos(0.2), std::sin(0.2), 0}, {0, 0, 1}, 1}));
}

TEST(ShapeNumbers, GoWithTheFlowAndNotWithTheAxesOrTheOrderOfPoints)
{
    const CutBox inward({0, 1, 2}, {1, 1, 1}, -1), backwards({0, 1, 2}, {-1, 1, 1}), aside({1, 2, 0}, {1, 1, 1});
    expect_numbers_of_cut_box(shape_numbers(inward.shape, inward.forces, inward.bounds, {{1, 0, 0}, {0, 0, 1}, 1}));
    expect_numbers_of_cut_box(
        shape_numbers(backwards.shape, backwards.forces, backwards.bounds, {{-1, 0, 0}, {0, 0, 1}, 1}));
    expect_numbers_of_cut_box(shape_numbers(aside.shape, aside.forces, aside.bounds, {{0, 1, 0}, {1, 0, 0}, 1}));
    const CutBox on_its_head({0, 1, 2}, {1, 1, -1});
    expect_numbers_of_cut_box(
        shape_numbers(on_its_head.shape, on_its_head.forces, on_its_head.bounds, {{1, 0, 0}, {0, 0, -1}, 1}));
}

TEST(ShapeNumbers, AreNoneWithoutARear)
{
    ShapeSums shape;
    shape.add({-1, 0, 0}, {0, 0, 0});
    EXPECT_FALSE(shape_numbers(shape, {}, {0, 1, 0, 1, 0, 1}, {}));
}

TEST(ShapeSums, AreThoseOfTheMeshesOfAllRanks)
{
    const auto mesh = sphere(40);
    for (const int num_ranks : {1, 2, 3}) {
        run_ranks(num_ranks, [&](std::shared_ptr<const DeviceMesh> device_mesh) {
            const auto& ranks = device_mesh->all();
            const auto found = shape_sums(ranks.rank() == 0 ? mesh : Mesh(), ranks).numbers;
            // Of a unit sphere, seen along an axis: sum w = pi, sum w |n| along it = 2 pi / 3 = sum w x, sum w |n|
            // across it 4 / 3.
            for (int facing = 0; facing < 6; ++facing) {
                const auto* sums = found.data() + facing * ShapeSums::kOfFacing;
                const int axis = facing / 2;
                const auto sign = facing % 2 ? 1.0 : -1.0;
                EXPECT_NEAR(sums[0], std::numbers::pi, 0.03) << facing;
                for (int c = 0; c < 3; ++c) {
                    EXPECT_NEAR(sums[1 + c], c == axis ? sign * 2 * std::numbers::pi / 3 : 0, 0.03) << facing << c;
                    EXPECT_NEAR(sums[4 + c], c == axis ? 2 * std::numbers::pi / 3 : 4.0 / 3, 0.03) << facing << c;
                }
                EXPECT_NEAR(sums[7], sign * 2 * std::numbers::pi / 3, 0.03) << facing;
            }
        });
    }
}

/// Fourteen cases of four numbers, the last the same in all, and values that are a function of the first two.
struct FewCases {
    std::vector<std::vector<double>> numbers;
    std::vector<double> values;

    FewCases()
    {
        for (int i = 0; i < 14; ++i) {
            const auto a = std::sin(1.0 + i), b = std::cos(2.0 * i);
            numbers.push_back({a, b, 0.5 + 0.1 * std::sin(3.0 * i * i), 7});
            values.push_back(0.3 + 0.02 * a * a + 0.01 * a * b);
        }
    }
};

TEST(ShapeRegression, IsTheStackThatNumpyFinds)
{
    // By a program of its own: inverses in place of eigenvectors, weights by projected gradients in place of Frank's
    // and Wolfe's steps.
    const FewCases cases;
    const ShapeRegression regression(cases.numbers, cases.values);
    EXPECT_NEAR(regression(std::array{0.2, -0.4, 0.55, 7.0}), 0.29992919, 1e-7);
    EXPECT_NEAR(regression(std::array{-0.9, 0.7, 0.45, 7.0}), 0.30957381, 1e-7);
}

TEST(ShapeRegression, KnowsAMeanWhereNothingTellsCasesApart)
{
    const FewCases cases;
    const std::vector<std::vector<double>> alike(cases.values.size(), std::vector<double>{1, 2});
    EXPECT_NEAR(ShapeRegression(alike, cases.values)(std::array{1.0, 2.0}), 0.31128271, 1e-7);
    EXPECT_NEAR(ShapeRegression(cases.numbers, std::vector<double>(cases.values.size(), 0.25))(cases.numbers[3]), 0.25,
                1e-12);
}

TEST(ShapeRegression, TakesSomeOfManyCases)
{
    std::vector<std::vector<double>> numbers;
    std::vector<double> values;
    for (int i = 0; i < 1000; ++i) {
        numbers.push_back({i / 1000.0, std::sin(1.0 * i)});
        values.push_back(i < 500 ? 0.2 : 0.4);
    }
    const ShapeRegression regression(numbers, values);
    EXPECT_NEAR(regression(std::array{0.1, 0.0}), 0.2, 0.02);
    EXPECT_NEAR(regression(std::array{0.9, 0.0}), 0.4, 0.02);
}

/// Twelve boxes of other lengths with a flow of speed 10: Cd 0.2 + 0.01 i, Cl 0.1 of the table.
struct BoxesInAFlow : testing::Test {
    std::vector<CaseSource> cases;
    std::vector<CaseFigures> figures;
    ForceSettings settings;
    DataConfig data;
    JudgedFields layout{{{"p", "p", "kinematic"}}, {1}};

    BoxesInAFlow()
    {
        settings.velocity = {"10"};
        settings.area = "2";
        for (int i = 0; i < 12; ++i) {
            CutBox box;
            box.bounds[1] += 0.2 * i;
            box.forces.true_pressure = {-20.0 - i, 0, -10};
            CaseFigures one;
            one.is_surface = true;
            one.shape = box.shape;
            one.forces = box.forces;
            one.bounds = box.bounds;
            figures.push_back(one);
            cases.push_back({std::to_string(i),
                             {},
                             {{"Cd", std::to_string(0.25 + 0.02 * i)}, {"Cl", "0.1"}, {"yaw", std::to_string(i % 3)}}});
        }
    }

    std::optional<ShapeCoefficients> found(std::size_t count = 12) const
    {
        return ShapeCoefficients::of_cases(std::span(cases).first(count), std::span(figures).first(count), data,
                                           settings, layout);
    }

    double drag_of(const ShapeCoefficients& shapes, int i) const
    {
        std::string why;
        const auto flow = flow_reference(settings, cases[i], "kinematic", why);
        return shapes
            .of(figures[i].shape, figures[i].forces, figures[i].bounds, *flow, constants_of_case(data, cases[i]))
            ->drag;
    }
};

TEST_F(BoxesInAFlow, HaveTheDragOfTheTableElseOfTheFields)
{
    const auto by_table = found();
    ASSERT_TRUE(by_table);
    for (const int i : {2, 6, 9}) EXPECT_NEAR(drag_of(*by_table, i), 0.25 + 0.02 * i, 0.01);
    cases[4].columns.erase("Cl");  // then the fields' own: (20 + i) / (0.5 100 2)
    const auto by_fields = found();
    ASSERT_TRUE(by_fields);
    for (const int i : {2, 6, 9}) EXPECT_NEAR(drag_of(*by_fields, i), 0.2 + 0.01 * i, 0.005);
}

TEST_F(BoxesInAFlow, AreTheSameAfterACheckpoint)
{
    data.constants = {"yaw"};
    const auto before = found();
    ASSERT_TRUE(before);
    const auto json = before->to_json();
    EXPECT_EQ(json["numbers"][0].size(), kShapeNumbers + 1);
    const auto after = ShapeCoefficients::from_json(nlohmann::json::parse(json.dump()));
    for (int i = 0; i < 12; ++i) EXPECT_EQ(drag_of(after, i), drag_of(*before, i));
    data.constants.clear();  // numbers that the checkpoint's cases have not
    std::string why;
    const auto flow = flow_reference(settings, cases[0], "kinematic", why);
    EXPECT_FALSE(after.of(figures[0].shape, figures[0].forces, figures[0].bounds, *flow, {}));
}

TEST_F(BoxesInAFlow, SayHowFarAShapeLiesFromThoseOfTraining)
{
    const auto shapes = found();
    ASSERT_TRUE(shapes);
    const auto of = [&](double longer) {
        auto bounds = figures.back().bounds;
        bounds[1] += longer;
        std::string why;
        return *shapes->of(figures.back().shape, figures.back().forces, bounds,
                           *flow_reference(settings, cases.back(), "kinematic", why), {});
    };
    const auto isolation_of = [&](double longer) { return of(longer).isolation; };
    // The boxes differ in their length alone, by 0.2 each, so that their numbers lie evenly on a line.
    EXPECT_NEAR(isolation_of(0), 0, 1e-9);
    EXPECT_NEAR(isolation_of(0.1), 0.5, 1e-6);
    EXPECT_NEAR(isolation_of(0.2), 1, 1e-6);
    EXPECT_NEAR(isolation_of(2), 10, 1e-5);
    EXPECT_NEAR(isolation_of(-0.1), 0.5, 1e-6);
    for (const auto longer : {0.0, 0.1, -0.1, 0.19}) EXPECT_FALSE(of(longer).is_outside) << longer;
    for (const auto longer : {0.21, 2.0}) EXPECT_TRUE(of(longer).is_outside) << longer;
}

TEST_F(BoxesInAFlow, LieFarAwayWhereAllThoseOfTrainingAreAlike)
{
    data.constants = {"yaw"};
    for (auto& source : cases) source.columns["yaw"] = "5";
    const auto shapes = found();
    ASSERT_TRUE(shapes);
    std::string why;
    const auto flow = *flow_reference(settings, cases.back(), "kinematic", why);
    const auto of = [&](double yaw) {
        return *shapes->of(figures.back().shape, figures.back().forces, figures.back().bounds, flow, {yaw});
    };
    EXPECT_NEAR(of(5).isolation, 0, 1e-9);
    EXPECT_TRUE(of(7).is_outside);  // 40 times 1 % of 5
}

TEST_F(BoxesInAFlow, SayNothingWhereTheyCannot)
{
    EXPECT_FALSE(found(9)) << "too few";
    EXPECT_TRUE(found(10));
    auto kept = figures[3];
    figures[3].is_surface = false;
    EXPECT_FALSE(found());
    figures[3] = kept;
    settings.area.clear();
    EXPECT_FALSE(found());
}

}  // namespace
}  // namespace meshard
