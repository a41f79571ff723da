// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/cell_geometry.h"
#include "tests/apps/program_test.h"
#include "tests/support/sample_meshes.h"

#include <cmath>
#include <numeric>

namespace meshard {
namespace {

class Interpolate : public ProgramTest {
protected:
    /// Runs the verb, expects that it ends well, and gives what it wrote.
    Mesh interpolated(std::vector<std::string> words, const std::string& output = "out.vtu")
    {
        words.insert(words.begin(), "interpolate");
        words.insert(words.end(), {"-o", path(output)});
        const auto result = meshard(words);
        EXPECT_EQ(result.exit_code, 0) << result.err;
        return read_mesh(path(output));
    }
};

/// Points with a scalar `p` and a vector `U` that are no simple functions of the place.
Mesh cloud_with_fields(std::int32_t n, std::uint32_t seed)
{
    Mesh mesh = random_cloud(n, seed);
    std::vector<float> p;
    std::vector<double> u;
    for (std::int32_t i = 0; i < n; ++i) {
        p.push_back(std::sin(7.0f * static_cast<float>(i)));
        for (int c = 0; c < 3; ++c) u.push_back(std::cos(3.0 * i + c));
    }
    mesh.point_data = {DataArray::from("p", std::move(p)), DataArray::from("U", std::move(u), 3)};
    mesh.point_data[1].unit = "m/s";
    mesh.point_data[1].component_names = {"x", "y", "z"};
    mesh.point_data[1].attribute = "Vectors";
    return mesh;
}

double distance(const Vector3& a, const Vector3& b)
{
    return std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
}

/// Rows of the sources in the order of their distance to a place, of equal ones the first.
std::vector<std::int32_t> by_distance(const std::vector<Vector3>& sources, const Vector3& place)
{
    std::vector<std::int32_t> order(sources.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](auto row) { return distance(sources[row], place); });
    return order;
}

/// Looks at every source.
std::vector<double> brute_force(const std::vector<Vector3>& sources, const DataArray& values,
                                const std::vector<Vector3>& targets, int k, double power)
{
    std::vector<double> result;
    for (const auto& target : targets) {
        auto near = by_distance(sources, target);
        near.resize(std::min<std::size_t>(near.size(), k));
        const bool is_there = distance(sources[near[0]], target) == 0;
        for (int c = 0; c < values.num_components(); ++c) {
            double sum = 0, weights = 0;
            for (const auto row : near) {
                const double d = distance(sources[row], target);
                const double weight = is_there ? (d == 0 ? 1.0 : 0.0) : std::pow(d, -power);
                sum += weight * values.value(row, c);
                weights += weight;
            }
            result.push_back(sum / weights);
        }
    }
    return result;
}

void expect_near(const DataArray& found, const std::vector<double>& expected, double tolerance)
{
    ASSERT_EQ(found.num_values(), static_cast<std::int64_t>(expected.size()));
    const auto values = found.to_doubles();
    for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(values[i], expected[i], tolerance) << found.name() << " value " << i;
}

TEST_F(Interpolate, GivesWhatLookingAtEveryPointGivesOnAnyNumberOfRanks)
{
    const Mesh source = cloud_with_fields(300, 1), target = random_cloud(97, 2);
    const std::string a = write("a.vtu", source), b = write("b.vtu", target);
    for (const auto& [k, power] : {std::pair(4, 2.0), {1, 2.0}, {7, 3.5}}) {
        for (const int ranks : {1, 2, 3}) {
            SCOPED_TRACE(std::to_string(k) + " neighbours, " + std::to_string(ranks) + " ranks");

            const Mesh found = interpolated({a, b, "--fields", "p,U", "--neighbors", std::to_string(k), "--power",
                                             std::to_string(power), "--nproc", std::to_string(ranks)});

            for (const auto& [name, tolerance] : {std::pair("p", 1e-7), {"U", 1e-14}}) {
                const auto& field = *find_array(source.point_data, name);
                const auto& array = *find_array(found.point_data, name);
                EXPECT_EQ(array.type(), field.type());
                EXPECT_EQ(array.unit, field.unit);
                EXPECT_EQ(array.component_names, field.component_names);
                expect_near(array, brute_force(point_positions(source), field, point_positions(target), k, power),
                            tolerance);
            }
            EXPECT_EQ(found.point_data.size(), target.point_data.size() + 2);
        }
    }
}

TEST_F(Interpolate, TakesCellsAtTheirCentroids)
{
    Mesh source = mixed_cells();
    const auto centroids = cell_measures(source).centroids;
    std::vector<double> x;
    for (const auto& centroid : centroids) x.push_back(centroid[0] + 10 * centroid[1] + 100 * centroid[2]);
    source.cell_data = {DataArray::from("x", std::move(x))};
    const std::string a = write("a.vtu", source);
    // Centroids themselves: each takes its own cell's value, whatever the number of neighbours.
    const Mesh here = interpolated({a, a, "--at", "cells", "--fields", "x", "--replace"});
    EXPECT_TRUE(find_array(here.cell_data, "x")->same_bits(source.cell_data[0]));
    // Elsewhere the mean of the nearest centroids.
    const Mesh target = random_cloud(40, 3);

    const Mesh there = interpolated({a, write("b.vtp", target), "--fields", "x", "--neighbors", "3"}, "there.vtp");

    expect_near(*find_array(there.point_data, "x"),
                brute_force(centroids, source.cell_data[0], point_positions(target), 3, 2), 1e-12);
}

TEST_F(Interpolate, KeepsTheNearestValuesBitForBit)
{
    Mesh source = random_cloud(50, 4);
    std::vector<std::int64_t> ids;
    std::vector<std::uint8_t> flags;
    std::vector<std::string> names;
    for (int i = 0; i < 50; ++i) {
        ids.push_back((std::int64_t{1} << 60) + i);
        flags.push_back(static_cast<std::uint8_t>(5 * i));
        names.push_back("n" + std::to_string(i));
    }
    std::vector<double> holed(50, 2.5);
    holed[7] = NAN;
    source.point_data = {DataArray::from("ids", std::move(ids)), DataArray::from("flags", std::move(flags)),
                         DataArray::from_strings("names", std::move(names)),
                         DataArray::from("holed", std::move(holed))};
    const Mesh target = random_cloud(30, 5);
    const std::string a = write("a.vtu", source), b = write("b.vtu", target);
    std::vector<std::int32_t> nearest;
    for (const auto& place : point_positions(target)) nearest.push_back(by_distance(point_positions(source), place)[0]);
    for (const auto* ranks : {"1", "3"}) {
        const Mesh found = interpolated(
            {a, b, "--fields", "ids", "--fields", "flags,names,holed", "--neighbors", "1", "--nproc", ranks});

        for (const auto& array : source.point_data)
            EXPECT_TRUE(find_array(found.point_data, array.name())->same_bits(array.gather(nearest))) << array.name();
    }
    EXPECT_TRUE(fails_with(meshard({"interpolate", a, b, "--fields", "ids", "-o", path("x.vtu")}), 3,
                           {"'ids'", "Int64", "--neighbors 1"}));
    EXPECT_TRUE(fails_with(meshard({"interpolate", a, b, "--fields", "holed", "-o", path("x.vtu")}), 3,
                           {"'holed'", "1 value that is NaN", "--neighbors 1"}));
    EXPECT_TRUE(fails_with(meshard({"interpolate", a, b, "--fields", "flags", "--neighbors", "1", "--max-distance", "0",
                                    "--fill", "-1", "-o", path("x.vtu")}),
                           3, {"'flags'", "UInt8", "--fill -1"}));
}

TEST_F(Interpolate, TakesAllFieldsOfFloatingNumbersUnlessToldOtherwise)
{
    Mesh source = cube(2);
    source.cell_data.push_back(DataArray::from("volume", std::vector<double>(8, 0.125)));
    Mesh target = random_cloud(9, 6);
    target.point_data.clear();
    const std::string a = write("a.vtu", source), b = write("b.vtu", target);
    const auto report = meshard_json({"interpolate", a, b, "-o", path("out.vtu")});
    const Mesh found = read_mesh(path("out.vtu"));

    EXPECT_TRUE(find_array(found.point_data, "volume"));
    EXPECT_FALSE(find_array(found.point_data, "label"));
    EXPECT_EQ(report["transfers"][0]["from"], "points");
    EXPECT_EQ(report["transfers"][0]["fields"], nlohmann::json({"pressure", "velocity"}));
    EXPECT_EQ(report["transfers"][0]["num_sources"], 27);
    EXPECT_EQ(report["transfers"][1]["from"], "cells");
    EXPECT_EQ(report["num_targets"], 9);
    EXPECT_EQ(report["neighbors"], 4);
    EXPECT_EQ(meshard_json({"interpolate", a, b, "--from", "cells", "-o", path("out.vtu")})["transfers"].size(), 1U);
}

TEST_F(Interpolate, RefusesOrFillsWhatIsFarAway)
{
    Mesh source = cloud_with_fields(1, 1), target = random_cloud(3, 1);
    source.points = DataArray::from("Points", std::vector<double>{0, 0, 0}, 3);
    target.points = DataArray::from("Points", std::vector<double>{1, 0, 0, 0, 2, 0, 0, 0, 3}, 3);
    const std::string a = write("a.vtu", source), b = write("b.vtu", target);

    EXPECT_TRUE(
        fails_with(meshard({"interpolate", a, b, "--fields", "p", "--max-distance", "1", "-o", path("out.vtu")}), 3,
                   {"2 points of " + b + " are farther than 1", "point 2 at (0 0 3)", "--fill"}));
    EXPECT_EQ(entries(), (std::vector<std::string>{"a.vtu", "b.vtu"}));
    for (const auto* k : {"1", "4"}) {
        const Mesh filled =
            interpolated({a, b, "--fields", "p,U", "--max-distance", "1", "--fill", "-7.5", "--neighbors", k});
        expect_near(*find_array(filled.point_data, "p"), {source.point_data[0].value(0), -7.5, -7.5}, 0);
        EXPECT_EQ(find_array(filled.point_data, "U")->value(2, 2), -7.5);
    }
    const Mesh holed = interpolated({a, b, "--fields", "p", "--max-distance", "2.5", "--fill", "nan"});
    EXPECT_EQ(find_array(holed.point_data, "p")->value(1), source.point_data[0].value(0));
    EXPECT_TRUE(std::isnan(find_array(holed.point_data, "p")->value(2)));
    EXPECT_EQ(meshard_json({"interpolate", a, b, "--max-distance", "1", "--fill", "0", "-o",
                            path("out.vtu")})["transfers"][0]["num_filled"],
              2);
}

TEST_F(Interpolate, ReplacesArraysOnlyIfAskedTo)
{
    const std::string a = write("a.vtu", cloud_with_fields(20, 1));
    Mesh target = random_cloud(5, 2);
    target.point_data = {DataArray::from("before", std::vector<float>(5, 1)),
                         DataArray::from("p", std::vector<std::int32_t>(5, 3)),
                         DataArray::from("after", std::vector<float>(5, 2))};
    const std::string b = write("b.vtu", target);

    EXPECT_TRUE(fails_with(meshard({"interpolate", a, b, "--fields", "p", "-o", path("out.vtu")}), 3,
                           {b + " has an array 'p' already", "--replace"}));
    const Mesh found = interpolated({a, b, "--fields", "p", "--replace"});

    ASSERT_EQ(found.point_data.size(), 3U);
    EXPECT_EQ(found.point_data[1].name(), "p");
    EXPECT_EQ(found.point_data[1].type(), ScalarType::Float32);
    EXPECT_TRUE(found.point_data[2].same_bits(target.point_data[2]));
}

TEST_F(Interpolate, WritesEveryFormatAndMayWriteOverItsInput)
{
    const Mesh source = cloud_with_fields(60, 1), target = strip(4);
    const std::string a = write("a.vtu", source), b = write("b.vtp", target);
    const auto expected = brute_force(point_positions(source), source.point_data[0], point_positions(target), 4, 2);

    EXPECT_TRUE(fails_with(meshard({"interpolate", a, b, "--fields", "p", "-o", b}), 2, {b, "--overwrite"}));
    for (const auto* output : {"o.vtp", "o.vtu", "o.pvtp", "o.vtkhdf", "b.vtp"}) {
        const Mesh found = interpolated({a, b, "--fields", "p", "--compress", "none", "--overwrite"}, output);
        EXPECT_EQ(found.num_cells(), target.num_cells()) << output;
        expect_near(*find_array(found.point_data, "p"), expected, 1e-6);
    }
}

TEST_F(Interpolate, NamesWhatIsWrong)
{
    Mesh both = cube(1), broken = random_cloud(5, 1);
    both.cell_data.push_back(DataArray::from("pressure", std::vector<double>{1}));
    with_scalar_type(broken.points.type(), [&]<class T>() {
        if constexpr (std::is_floating_point_v<T>) broken.points.mutable_values<T>()[4] = NAN;
    });
    const std::string a = write("a.vtu", cloud_with_fields(9, 1)), b = write("b.vtu", random_cloud(5, 2)),
                      cells = write("both.vtu", both), nan = write("nan.vtu", broken),
                      empty = write("empty.vtu", empty_mesh()), text = write_text("text.vtu", "no mesh"),
                      solids = write("solids.vtu", cube(1));
    const auto before = entries();
    const auto run = [&](std::vector<std::string> words, const std::string& output = "out.vtu") {
        words.insert(words.begin(), "interpolate");
        words.insert(words.end(), {"-o", path(output)});
        return meshard(words);
    };
    EXPECT_TRUE(fails_with(run({a, b, "--fields", "pp"}), 3, {a + " has no field 'pp'", "'U'", "Did you mean 'p'?"}));
    EXPECT_TRUE(fails_with(run({a, b, "--fields", "p,"}), 3, {"no field ''"}));
    EXPECT_TRUE(fails_with(run({cells, b, "--fields", "pressure"}), 3,
                           {"'pressure' of its points and one of its cells", "--from"}));
    EXPECT_TRUE(fails_with(run({cells, b, "--fields", "velocity", "--from", "cells"}), 3,
                           {"'velocity' at its points", "--from is cells"}));
    EXPECT_TRUE(fails_with(run({a, b, "--from", "cells"}), 3, {"no fields of floating type at its cells", "'p'"}));
    EXPECT_TRUE(fails_with(run({nan, b}), 3, {nan + " has 1 coordinate that is NaN"}));
    EXPECT_TRUE(fails_with(run({a, nan}), 3, {nan + " has 1 coordinate that is NaN"}));
    EXPECT_TRUE(fails_with(run({empty, b}), 3, {empty + " has no points"}));
    EXPECT_TRUE(fails_with(run({a, empty}), 3, {empty + " has no points"}));
    EXPECT_TRUE(fails_with(run({a, b, "--at", "cells"}), 3, {b + " has no cells"}));
    EXPECT_TRUE(fails_with(run({text, b}), 3, {"text.vtu"}));
    EXPECT_TRUE(fails_with(run({a, "nowhere.vtu"}), 3, {"nowhere.vtu"}));
    EXPECT_TRUE(fails_with(run({a, b}, "out.stl"), 3, {"out.stl", ".stl"}));
    EXPECT_TRUE(fails_with(run({a, b}, "text.vtu/out.vtu"), 3, {"text.vtu", "cannot be made"}));
    EXPECT_TRUE(fails_with(run({a, solids}, "out.vtp"), 3, {"cell 0 is a hexahedron", ".vtp"}));
    EXPECT_TRUE(fails_with(run({a, b, "--neighbors", "0"}), 2, {"--neighbors"}));
    EXPECT_TRUE(fails_with(run({a, b, "--power", "0"}), 2, {"--power"}));
    EXPECT_TRUE(fails_with(run({a, b, "--max-distance", "-1"}), 2, {"--max-distance is -1"}));
    EXPECT_TRUE(fails_with(run({a, b, "--fill", "0"}), 2, {"--fill", "--max-distance"}));
    EXPECT_TRUE(fails_with(run({a, b, "--at", "faces"}), 2, {"faces"}));
    EXPECT_TRUE(fails_with(run({a, b, "--nproc", "2", "--fields", "pp"}), 3, {"no field 'pp'"}));
    EXPECT_TRUE(fails_with(run({a}), 2, {"target is required"}));
    EXPECT_EQ(entries(), before);
}

TEST_F(Interpolate, LeavesNothingOnAFullDisk)
{
    const std::string a = write("a.vtu", cloud_with_fields(20, 1)), b = write("b.vtu", random_cloud(3000, 2));

    EXPECT_TRUE(fails_with(meshard({"interpolate", a, b, "-o", path("out.vtu")}, full_disk()), 3, {"cannot write"}));
    EXPECT_EQ(entries(), (std::vector<std::string>{"a.vtu", "b.vtu"}));
}

}  // namespace
}  // namespace meshard
