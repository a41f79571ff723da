// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/cases/computed_inputs.h"
#include "apps/learning/cases/shard_cache.h"
#include "io/mesh_io.h"
#include "ops/surface/surface_search.h"
#include "ops/surface/triangle_surface.h"
#include "partition/error.h"
#include "partition/mesh/surface_triangles.h"
#include "sharding/exchange/row_routes.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/apps/learning/store/stored_tensors.h"
#include "tests/support/expect_error.h"
#include "tests/support/foam_case.h"
#include "tests/support/run_ranks.h"
#include "tests/support/sample_meshes.h"
#include "tests/support/stored_case.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace meshard {
namespace {

#define NEEDS_EMBREE()                                                                                                 \
    if (!has_surface_search()) GTEST_SKIP() << "built without Embree"

std::vector<std::int64_t> first_rows(std::int64_t n)
{
    std::vector<std::int64_t> rows(n);
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
}

std::vector<double> numbers(const std::vector<DataArray>& arrays, const char* name)
{
    return require_array(arrays, name, "test", "").to_doubles();
}

/// The skin of a box with one corner at `low`, its triangles turned outwards.
Wall box(const Vector3& low, const Vector3& high)
{
    Wall wall;
    for (int i = 0; i < 8; ++i) {
        for (int c = 0; c < 3; ++c) wall.vertices.push_back(i >> c & 1 ? high[c] : low[c]);
    }
    for (int c = 0; c < 3; ++c) {
        const int u = 1 << (c + 1) % 3, v = 1 << (c + 2) % 3;
        for (const int side : {0, 1}) {
            const std::int64_t at = side << c;
            const auto a = at, b = at + u, d = at + u + v, e = at + v;
            if (side == 1)
                wall.triangles.insert(wall.triangles.end(), {a, b, d, a, d, e});
            else
                wall.triangles.insert(wall.triangles.end(), {a, d, b, a, e, d});
        }
    }
    return wall;
}

Wall wall_of(const Mesh& skin)
{
    auto surface = surface_triangles(skin);
    return {std::move(surface.points), std::move(surface.triangles)};
}

double distance_to_box(const double* x, const Vector3& low, const Vector3& high)
{
    double outside = 0, inside = -1e9;
    for (int c = 0; c < 3; ++c) {
        const auto q = std::max(low[c] - x[c], x[c] - high[c]);
        outside += std::max(q, 0.0) * std::max(q, 0.0);
        inside = std::max(inside, q);
    }
    return std::sqrt(outside) + std::min(inside, 0.0);
}

void write_skin(const std::filesystem::path& path, const Wall& wall)
{
    Mesh mesh;
    mesh.kind = MeshKind::Surface;
    mesh.points = DataArray::from("Points", wall.vertices, 3);
    for (std::size_t i = 0; i < wall.triangles.size(); i += 3) {
        const std::array<std::int32_t, 3> corners{static_cast<std::int32_t>(wall.triangles[i]),
                                                  static_cast<std::int32_t>(wall.triangles[i + 1]),
                                                  static_cast<std::int32_t>(wall.triangles[i + 2])};
        mesh.cells.push_row(corners);
        mesh.cell_types.push_back(5);
    }
    write_mesh(path, mesh);
}

const Vector3 kLow{0.2, 0.3, 0.25}, kHigh{0.7, 0.6, 0.8};

TEST(Distances, AreThoseToABox)
{
    NEEDS_EMBREE();
    for (const bool on_cells : {true, false}) {
        auto mesh = cube(6);
        add_distances(mesh, on_cells, box(kLow, kHigh), "cube");

        const auto found = numbers(on_cells ? mesh.cell_data : mesh.point_data, kDistances);
        const auto rows = first_rows(on_cells ? mesh.num_cells() : mesh.num_points());
        const auto places = row_places(mesh, rows, on_cells, "cube");
        int num_inside = 0;
        for (std::size_t i = 0; i < rows.size(); ++i) {
            EXPECT_NEAR(found[i], distance_to_box(&places[3 * i], kLow, kHigh), 1e-12) << i;
            num_inside += found[i] < 0;
        }
        EXPECT_GT(num_inside, 0);
    }
}

TEST(Distances, AreThoseOfLookingAtEveryTriangleOfASphere)
{
    NEEDS_EMBREE();
    const auto skin = sphere(20);
    const auto wall = wall_of(skin);
    const TriangleSurface surface(wall.vertices, wall.triangles);
    auto cloud = random_cloud(200, 3);
    add_distances(cloud, false, wall, "cloud");

    const auto found = numbers(cloud.point_data, kDistances), places = cloud.points.to_doubles();
    for (std::int64_t i = 0; i < cloud.num_points(); ++i) {
        const Vector3 place{places[3 * i], places[3 * i + 1], places[3 * i + 2]};
        double least = 1e9;
        for (std::int64_t face = 0; face < surface.num_faces(); ++face)
            least = std::min(least, surface.nearest(face, place).distance_squared);
        EXPECT_NEAR(std::abs(found[i]), std::sqrt(least), 1e-12);
        EXPECT_NEAR(found[i], std::hypot(place[0], place[1], place[2]) - 1, 0.02);
    }
}

/// A prism of height 1 over the letter L, the square from 0 to 2 without the one from 1 to 2, whose caps are polygons
/// of six corners that begin at `first`.
Mesh prism_of_l(int first, bool is_inward)
{
    constexpr std::array<std::array<double, 2>, 6> kCorners{{{0, 0}, {2, 0}, {2, 1}, {1, 1}, {1, 2}, {0, 2}}};
    Mesh mesh;
    mesh.kind = MeshKind::Surface;
    std::vector<double> points;
    for (const double z : {0.0, 1.0})
        for (const auto& [x, y] : kCorners) points.insert(points.end(), {x, y, z});
    mesh.points = DataArray::from("Points", points, 3);
    const auto add = [&](std::vector<std::int32_t> corners) {
        if (is_inward) std::ranges::reverse(corners);
        mesh.cells.push_row(corners);
        mesh.cell_types.push_back(7);
    };
    std::vector<std::int32_t> top, bottom;
    for (int k = 0; k < 6; ++k) {
        top.push_back(6 + (first + k) % 6);
        bottom.push_back((first + 6 - k) % 6);
    }
    add(top);
    add(bottom);
    for (std::int32_t k = 0; k < 6; ++k) add({k, (k + 1) % 6, 6 + (k + 1) % 6, 6 + k});
    return mesh;
}

TEST(Distances, ToConcavePolygonsDoNotFollowTheirFirstCorner)
{
    NEEDS_EMBREE();
    const TemporaryFolder folder;
    Mesh cloud;
    cloud.points = DataArray::from(
        "Points", std::vector<double>{1.75, 1.5, 1, 1.25, 1.75, 0.5, 1.5, 0.5, 0.75, 0.5, 1.25, 1.5}, 3);
    const std::vector<double> expected{0.5, 0.25, -0.25, 0.5};
    for (int first = 0; first < 6; ++first) {
        for (const bool is_inward : {false, true}) {
            SCOPED_TRACE(testing::Message() << first << (is_inward ? " inward" : ""));
            const auto file = folder / "l.vtp";
            write_mesh(file, prism_of_l(first, is_inward));
            auto mesh = cloud;
            add_distances(mesh, false, read_wall(file, {}, {}, Orient::Outward), "cloud");
            const auto found = numbers(mesh.point_data, kDistances);
            for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12) << i;
        }
    }
}

TEST(WallDirections, LeadToTheNearestPlaceOfABox)
{
    NEEDS_EMBREE();
    for (const bool on_cells : {true, false}) {
        auto mesh = cube(6);
        add_distances(mesh, on_cells, box(kLow, kHigh), "cube", true);

        const auto& arrays = on_cells ? mesh.cell_data : mesh.point_data;
        const auto directions = numbers(arrays, kDirections), distances = numbers(arrays, kDistances);
        const auto places = row_places(mesh, first_rows(static_cast<std::int64_t>(distances.size())), on_cells, "cube");
        int num_outside = 0;
        for (std::size_t i = 0; i < distances.size(); ++i) {
            const double* way = &directions[3 * i];
            const bool is_on_wall = std::abs(distances[i]) < 1e-9;  // some centres of cells are
            num_outside += !is_on_wall;
            EXPECT_NEAR(std::hypot(way[0], way[1], way[2]), is_on_wall ? 0 : 1, 1e-12) << i;
            Vector3 reached{};
            for (int c = 0; c < 3; ++c) reached[c] = places[3 * i + c] + std::abs(distances[i]) * way[c];
            EXPECT_NEAR(distance_to_box(reached.data(), kLow, kHigh), 0, 1e-12) << i;
        }
        EXPECT_GT(num_outside, 100);
        remove_computed_inputs(mesh);
        EXPECT_TRUE((on_cells ? mesh.cell_data : mesh.point_data).empty() || !find_array(arrays, kDirections));
    }
}

TEST(WallDirections, AreZeroOnTheWall)
{
    NEEDS_EMBREE();
    auto skin = sphere(10);
    const auto wall = wall_of(skin);
    add_distances(skin, false, wall, "sphere", true);
    for (const auto value : numbers(skin.point_data, kDirections)) EXPECT_EQ(value, 0);
}

TEST(Heights, AreOverTheGroundAlongUp)
{
    const auto mesh = cube(4);
    DataConfig data;
    data.on_cells = false;
    data.inputs = {"points", "height"};
    const auto rows = first_rows(mesh.num_points());
    const auto places = row_places(mesh, rows, false, "cube");
    const auto heights = [&](const FrameConfig& config) {
        return point_inputs(mesh, rows, data, case_frame(config, point_bounds(mesh), {"1", {}, {}}), "cube")
            .select(1, 3);
    };
    const auto of_z = heights({"bounds", "2", {0, 0, 5}, "bounds"}),
               below = heights({"bounds", "2", {0, 0, 1}, "-0.5"});
    const auto askew = heights({"none", "none", {0, -3, 4}, "bounds"});
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const double* x = &places[3 * i];
        EXPECT_NEAR(of_z[i].item<double>(), x[2] / 2, 1e-7);  // the cube's lowest z is 0
        EXPECT_NEAR(below[i].item<double>(), (x[2] + 0.5) / 2, 1e-7);
        EXPECT_NEAR(askew[i].item<double>(), -0.6 * x[1] + 0.8 * x[2] + 0.6,
                    1e-7);  // the lowest corner is at y = 1, z = 0
    }
    EXPECT_TRUE(
        throws_with<InvalidInput>("three different lengths", [&] { heights({"none", "1,2,3", {0, 0, 1}, "bounds"}); }));
}

TEST(PlacesInTheBox, GoFromSideToSide)
{
    const auto mesh = cube(4);
    DataConfig data;
    data.on_cells = false;
    data.inputs = {"points", "box"};
    const auto rows = first_rows(mesh.num_points());
    const auto places = row_places(mesh, rows, false, "cube");
    const std::array<double, 6> bounds{-1, 3, 0, 1, 2, 2};  // of a case of which the cube is a part, and flat along z
    for (const FrameConfig& config :
         {FrameConfig{"bounds", "bounds"}, FrameConfig{"none", "1,2,3"}}) {  // the frame of the points changes nothing
        const auto found = point_inputs(mesh, rows, data, case_frame(config, bounds, {"1", {}, {}}), "cube");
        ASSERT_EQ(found.size(1), num_point_channels(data));
        for (std::size_t i = 0; i < rows.size(); ++i) {
            const double* x = &places[3 * i];
            EXPECT_NEAR(found[i][3].item<double>(), (x[0] - 1) / 2, 1e-6);
            EXPECT_NEAR(found[i][4].item<double>(), 2 * x[1] - 1, 1e-6);
            EXPECT_EQ(found[i][5].item<double>(), 0);
        }
    }
}

TEST(Distances, OfPatchesArePositiveInTheVolume)
{
    NEEDS_EMBREE();
    const TemporaryFolder folder;
    auto mesh = cube(4);
    write_foam_case(folder / "case", mesh);

    add_distances(mesh, true, read_wall({}, folder / "case", {"boundary/left", "boundary/rest"}), "case");
    const auto whole = numbers(mesh.cell_data, kDistances);
    remove_computed_inputs(mesh);
    add_distances(mesh, true, read_wall({}, folder / "case", {"boundary/left"}), "case");
    const auto left = numbers(mesh.cell_data, kDistances);

    const auto places = row_places(mesh, first_rows(64), true, "case");
    for (int i = 0; i < 64; ++i) {
        double nearest = 1;
        for (int c = 0; c < 3; ++c) nearest = std::min({nearest, places[3 * i + c], 1 - places[3 * i + c]});
        EXPECT_NEAR(whole[i], nearest, 1e-12);
        EXPECT_NEAR(left[i], places[3 * i], 1e-12);
    }
}

TEST(Distances, RefuseWhatIsNoSurface)
{
    const TemporaryFolder folder;
    write_mesh(folder / "solid.vtu", cube(2));

    EXPECT_TRUE(throws_with<InvalidInput>("solid.vtu: there are no polygons",
                                          [&] { read_wall(folder / "solid.vtu", "case.vtu", {}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("case.vtu: the model is told distances to a surface, and there is none",
                                          [&] { read_wall({}, "case.vtu", {}); }));
    EXPECT_THROW(read_wall({}, folder / "solid.vtu", {"boundary/car"}), InvalidInput);
}

TEST(Areas, AreOverTheirMean)
{
    auto squares = strip(3);
    add_areas(squares, true, "strip");
    EXPECT_EQ(numbers(squares.cell_data, kAreas), (std::vector<double>{1, 1, 1}));

    add_areas(squares, false, "strip");  // three squares among eight points: 3/8 on average, 1/4 at the ends
    const auto shares = numbers(squares.point_data, kAreas), places = squares.points.to_doubles();
    for (int i = 0; i < 8; ++i)
        EXPECT_NEAR(shares[i], places[3 * i] == 0 || places[3 * i] == 3 ? 2.0 / 3 : 4.0 / 3, 1e-15);

    remove_computed_inputs(squares);
    EXPECT_EQ(find_array(squares.cell_data, kAreas), nullptr);
    EXPECT_EQ(find_array(squares.point_data, kAreas), nullptr);
}

TEST(Areas, OfASphereAreOverItsSurface)
{
    auto mesh = sphere(200);
    add_areas(mesh, true, "sphere");

    const auto areas = numbers(mesh.cell_data, kAreas);
    const auto mean = 4 * M_PI / static_cast<double>(mesh.num_cells());
    const auto vectors = area_vectors(mesh);
    double sum = 0;
    for (std::size_t i = 0; i < areas.size(); ++i) {
        EXPECT_NEAR(areas[i] * mean, std::hypot(vectors[i][0], vectors[i][1], vectors[i][2]), 1e-3 * mean);
        sum += areas[i];
    }
    EXPECT_NEAR(sum / static_cast<double>(areas.size()), 1, 1e-12);
}

TEST(Areas, RefuseSolidsAndClouds)
{
    auto solid = cube(2), cloud = random_cloud(5, 1);

    EXPECT_TRUE(throws_with<InvalidInput>("case 1 has solid cells, and data.inputs has areas",
                                          [&] { add_areas(solid, true, "case 1"); }));
    EXPECT_TRUE(throws_with<InvalidInput>("case 1 has no cells, and data.inputs has areas",
                                          [&] { add_areas(cloud, false, "case 1"); }));
}

TEST(PointNormals, OfASphereLeadAwayFromItsCentre)
{
    auto mesh = sphere(40);
    add_point_normals(mesh, "Normals", "sphere");

    const auto normals = numbers(mesh.point_data, kPointNormals), places = mesh.points.to_doubles();
    for (std::size_t i = 0; i < normals.size(); i += 3) {
        const auto size = std::hypot(places[i], places[i + 1], places[i + 2]);
        for (int c = 0; c < 3; ++c) EXPECT_NEAR(normals[i + c], places[i + c] / size, 0.02);
        EXPECT_NEAR(std::hypot(normals[i], normals[i + 1], normals[i + 2]), 1, 1e-12);
    }
    remove_computed_inputs(mesh);
    EXPECT_EQ(find_array(mesh.point_data, kPointNormals), nullptr);
}

TEST(PointNormals, CountLargePolygonsMore)
{
    // A square of side 2 in the plane z = 0 and one of 2 x 1 that stands on its edge y = 0: area vectors 4 z and 2 y.
    Mesh mesh;
    mesh.kind = MeshKind::Surface;
    mesh.points = DataArray::from(
        "Points", std::vector<double>{0, 0, 0, 2, 0, 0, 2, 2, 0, 0, 2, 0, 0, 0, 1, 2, 0, 1, 9, 9, 9}, 3);
    for (const auto& corners : {std::array<std::int32_t, 4>{0, 1, 2, 3}, std::array<std::int32_t, 4>{0, 4, 5, 1}}) {
        mesh.cells.push_row(corners);
        mesh.cell_types.push_back(9);
    }
    auto other = mesh;
    add_point_normals(mesh, "Normals", "corner");

    const auto normals = numbers(mesh.point_data, kPointNormals);
    const auto expect = [&](int point, double x, double y, double z) {
        EXPECT_NEAR(normals[3 * point], x, 1e-12);
        EXPECT_NEAR(normals[3 * point + 1], y, 1e-12);
        EXPECT_NEAR(normals[3 * point + 2], z, 1e-12);
    };
    for (const int point : {0, 1}) expect(point, 0, 2 / std::sqrt(20.0), 4 / std::sqrt(20.0));
    for (const int point : {2, 3}) expect(point, 0, 0, 1);
    for (const int point : {4, 5}) expect(point, 0, 1, 0);
    expect(6, 0, 0, 0);  // of no polygon

    other.point_data.push_back(DataArray::from("n", std::vector<double>(21, 0.5), 3));
    add_point_normals(other, "n", "corner");
    EXPECT_EQ(find_array(other.point_data, kPointNormals), nullptr) << "the mesh has its own";
}

TEST(PointNormals, RefuseSolidsAndClouds)
{
    auto solid = cube(2), cloud = random_cloud(5, 1);

    EXPECT_TRUE(
        throws_with<InvalidInput>("case 1 has no point array 'Normals', and normals can only be computed of polygons",
                                  [&] { add_point_normals(solid, "Normals", "case 1"); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("data.inputs=[points]", [&] { add_point_normals(cloud, "Normals", "case 1"); }));
}

/// Cut for any number of ranks a model is told the numbers of the whole.
void expect_told_as_whole(const CaseSource& source, const DataConfig& data, const std::filesystem::path& cache)
{
    auto whole = read_mesh(source.file);
    add_computed_inputs(whole, computed_inputs(data), source.wall, source.file, "whole");
    const auto num_rows = data.on_cells ? whole.num_cells() : whole.num_points();
    const auto expected =
        point_inputs(whole, first_rows(num_rows), data, case_frame(data.frame, point_bounds(whole), source), "whole");
    ASSERT_EQ(expected.size(1), num_point_channels(data));
    for (const int num_ranks : {1, 2, 3}) {
        const auto shards =
            prepare_shards(source, {.folder = cache, .num_parts = 5, .computed = computed_inputs(data)});
        run_ranks(num_ranks, [&](const auto& domain) {
            const at::NoGradGuard no_grad;
            for (const auto order : {RowOrder::Parts, RowOrder::Ids}) {
                const auto tensors = stored_tensors(source, shards, data, domain, order);
                EXPECT_TRUE(torch::equal(full_tensor_in_global_order(tensors.inputs.embedding).squeeze(0), expected))
                    << num_ranks << " ranks";
                if (order == RowOrder::Ids) {
                    EXPECT_TRUE(torch::equal(full_tensor(tensors.inputs.embedding).squeeze(0), expected));
                }
            }
        });
    }
}

TEST(ComputedInputs, AreThoseOfTheWholeOnAnyNumberOfRanks)
{
    NEEDS_EMBREE();
    const TemporaryFolder folder;
    auto volume = cube(5);
    volume.cell_data = {DataArray::from("p", std::vector<float>(125, 1))};
    volume.point_data = {DataArray::from("p", std::vector<float>(216, 1))};
    write_mesh(folder / "volume.vtu", volume);
    write_skin(folder / "body.vtp", box(kLow, kHigh));
    auto surface = sphere(7);
    surface.cell_data = {DataArray::from("p", std::vector<float>(surface.num_cells(), 1))};
    surface.point_data = {DataArray::from("p", std::vector<float>(surface.num_points(), 1))};
    write_mesh(folder / "surface.vtp", surface);

    for (const bool on_cells : {true, false}) {
        DataConfig data;
        data.on_cells = on_cells;
        data.fields = {{"p", "p", ""}};
        data.normals = "Normals";
        data.frame = {"bounds", "2"};
        data.inputs = {"points", "sdf"};
        expect_told_as_whole({"1", folder / "volume.vtu", {}, folder / "body.vtp"}, data, folder / "shards");
        data.inputs = {"points", "areas", "normals"};
        expect_told_as_whole({"2", folder / "surface.vtp", {}}, data, folder / "shards");
    }
}

TEST(ComputedInputs, HaveShardsOfTheirOwn)
{
    NEEDS_EMBREE();
    const TemporaryFolder folder;
    write_mesh(folder / "volume.vtu", cube(3));
    write_skin(folder / "body.vtp", box(kLow, kHigh));
    const CaseSource source{"1", folder / "volume.vtu", {}, folder / "body.vtp"},
        without{"1", folder / "volume.vtu", {}};
    const ShardCache plain{.folder = folder / "shards", .num_parts = 2},
        with{.folder = folder / "shards", .num_parts = 2, .computed = {.distances = true}};
    const auto has_distances = [](const std::filesystem::path& shards) {
        const auto arrays = read_manifest(shards).arrays;
        return std::any_of(arrays.begin(), arrays.end(), [](const auto& array) { return array.name == kDistances; });
    };

    const auto a = prepare_shards(without, plain), b = prepare_shards(source, with);
    EXPECT_FALSE(has_distances(a));
    EXPECT_TRUE(has_distances(b));
    EXPECT_EQ(prepare_shards(source, with), b);
    EXPECT_EQ(read_manifest(b).info.source_hash, read_manifest(a).info.source_hash) << "the hash of the volume's file";

    write_skin(folder / "body.vtp", box(kLow, {0.9, 0.9, 0.9}));
    const auto c = prepare_shards(source, with);
    EXPECT_NE(c, b) << "the wall is another";
    auto patches = with;
    patches.computed.wall_patches = {"boundary/car"};
    EXPECT_NE(shards_path(source, 1, patches), shards_path(source, 1, with));
}

}  // namespace
}  // namespace meshard
