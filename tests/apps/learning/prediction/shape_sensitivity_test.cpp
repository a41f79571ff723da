// SPDX-License-Identifier: Apache-2.0
// Sensitivities of coefficients to the points of a surface: against differences of the whole chain in double precision,
// closed forms, and other numbers of ranks.
#include "apps/console/console.h"
#include "apps/learning/cases/computed_inputs.h"
#include "apps/learning/cases/usable_input.h"
#include "apps/learning/checkpoints/run_checkpoint.h"
#include "apps/learning/prediction/prediction.h"
#include "io/mesh_io.h"
#include "partition/mesh/surface_geometry.h"
#include "partition/mesh/surface_triangles.h"
#include "tests/apps/program_test.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <random>

namespace meshard {
namespace {

using nlohmann::json;

using Coordinates = std::vector<double>;  // of all points: x, y, z, x, ...

/// A closed body of quadrilaterals that are not plane, and triangles at both ends, about as long as 2. No two points
/// are equally far out along an axis.
Mesh body()
{
    constexpr int kRings = 7, kAround = 10;
    std::mt19937 generator(5);
    std::uniform_real_distribution<double> draw(-0.01, 0.01);
    Coordinates points;
    const auto add = [&](double x, double radius, double angle) {
        for (const auto value : {x + 0.1 * radius, 0.5 * radius * std::cos(angle) + 0.05 * x,
                                 0.3 * radius * std::sin(angle) * (1 + 0.3 * x)})
            points.push_back(value + draw(generator));
    };
    add(-1, 0, 0);
    for (int i = 1; i <= kRings; ++i)
        for (int j = 0; j < kAround; ++j) {
            const auto along = std::numbers::pi * i / (kRings + 1);
            add(-std::cos(along), std::sin(along), 2 * std::numbers::pi * j / kAround);
        }
    add(1, 0, 0);
    Mesh mesh;
    mesh.kind = MeshKind::Surface;
    mesh.points = DataArray::from("Points", points, 3);
    const auto at = [&](int ring, int j) { return 1 + (ring - 1) * kAround + j % kAround; };
    const auto last = 1 + kRings * kAround;
    for (int j = 0; j < kAround; ++j) {
        mesh.cells.push_row(std::vector<std::int32_t>{0, at(1, j + 1), at(1, j)});
        for (int i = 1; i < kRings; ++i)
            mesh.cells.push_row(std::vector<std::int32_t>{at(i, j), at(i, j + 1), at(i + 1, j + 1), at(i + 1, j)});
        mesh.cells.push_row(std::vector<std::int32_t>{at(kRings, j), at(kRings, j + 1), last});
    }
    for (std::int64_t cell = 0; cell < mesh.cells.num_rows(); ++cell)
        mesh.cell_types.push_back(mesh.cells.row(cell).size() == 3 ? 5 : 9);
    return mesh;
}

/// The rear of a body, and a plate below it, which is its nearest wall on the inside of triangles, on edges and in
/// corners. The plate stays where it is.
Mesh rear_and_plate(const Mesh& body)
{
    const auto of_body = body.points.to_doubles(), of_plate = two_triangles().points.to_doubles();
    Mesh mesh;
    mesh.kind = MeshKind::Surface;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(body.num_points()), -1);
    Coordinates points;
    for (std::int64_t cell = 0; cell < body.num_cells(); ++cell) {
        const auto row = body.cells.row(cell);
        if (std::ranges::any_of(row, [](auto point) { return point < 41; })) continue;
        std::vector<std::int32_t> corners;
        for (const auto point : row) {
            if (ids[point] < 0) {
                ids[point] = static_cast<std::int32_t>(points.size() / 3);
                points.insert(points.end(), of_body.begin() + 3 * point, of_body.begin() + 3 * point + 3);
            }
            corners.push_back(ids[point]);
        }
        mesh.cells.push_row(corners);
        mesh.cell_types.push_back(body.cell_types[cell]);
    }
    const auto first = static_cast<std::int32_t>(points.size() / 3);
    for (std::size_t i = 0; i < of_plate.size(); i += 3)
        points.insert(points.end(), {of_plate[i], of_plate[i + 1], -0.6 + 0.1 * of_plate[i]});
    const auto triangles = two_triangles();
    for (std::int64_t cell = 0; cell < triangles.num_cells(); ++cell) {
        std::vector<std::int32_t> corners;
        for (const auto point : triangles.cells.row(cell)) corners.push_back(first + point);
        mesh.cells.push_row(corners);
        mesh.cell_types.push_back(triangles.cell_types[cell]);
    }
    mesh.points = DataArray::from("Points", points, 3);
    return mesh;
}

Mesh moved(const Mesh& mesh, const Coordinates& way, double step)
{
    auto copy = mesh;
    auto points = mesh.points.to_doubles();
    for (std::size_t i = 0; i < points.size(); ++i) points[i] += step * way[i];
    copy.points = DataArray::from("Points", points, 3);
    return copy;
}

struct Chain {
    std::string model;
    json arguments;
    std::vector<std::string> inputs{"points", "normals"};
    bool on_cells = true;
    std::function<Mesh(const Mesh&)> wall = {};  ///< around a surface
    double step = 1e-5;                          ///< of differences
    bool has_head = false;
    bool has_volume = false;   ///< the model is told the case's volume
    bool is_measured = false;  ///< distances from the wall are an array of the case
};

constexpr const char* kMeasured = "implicit_distance";

/// Adds the distances from a wall to a surface, as an array of its own.
void add_measured(Mesh& mesh, bool on_cells, const Mesh& wall)
{
    auto triangles = surface_triangles(wall);
    add_distances(mesh, on_cells, {std::move(triangles.points), std::move(triangles.triangles), {}}, "body");
    auto& array = (on_cells ? mesh.cell_data : mesh.point_data).back();
    array = DataArray::from(kMeasured, array.to_doubles());
}

class ShapeSensitivities : public ProgramTest {
protected:
    /// Writes a model with random weights (or none) as training would, and returns its file.
    std::string write_model(const Chain& chain, bool with_weights = true) const
    {
        RunDescription run;
        auto& data = run.parts[0].data;
        data.inputs = chain.inputs;
        data.on_cells = chain.on_cells;
        data.fields = {{"pressure", "p", "kinematic"}, {"wss", "tau", "stress"}};
        data.constants = {"speed"};
        if (chain.is_measured) data.distances = kMeasured;
        run.fields = {{data.fields[0], 1}, {data.fields[1], 3}};
        torch::manual_seed(3);
        constexpr int kOfHead = 2;
        const auto& entry = find_model(chain.model);
        const bool has_volume = entry.of_bodies() && entry.of_bodies()->needs_both_parts;
        auto arguments = entry.arguments_for({.embedding_dim = num_point_channels(data),
                                              .num_constants = 1,
                                              .out_dim = 4 + (chain.has_head ? kOfHead : 0),
                                              .volume_out_dim = has_volume ? 1 : 0});
        arguments.update(chain.arguments);
        auto model = make_model(chain.model, arguments);
        if (chain.has_head) {
            run.head = DescribedHead{{"cd"}, kOfHead, {0.3}, {0.1}};
            add_coefficient_head(model, kOfHead, 1);
        }
        if (has_volume) {
            auto volume = run.parts[0];
            volume.data.fields = {{"p", "p", ""}};
            run.fields.push_back({volume.data.fields[0], 1});
            run.parts.push_back(volume);
        }
        run.model_class = model.class_name;
        run.model_arguments = model.arguments;
        TrainedValues values;
        const torch::NoGradGuard no_grad;
        for (const auto& item : model.module->named_parameters()) {
            auto weights = item.value();
            // What training begins with may close whole branches: the gates of AB-UPT's blocks are zero.
            if (!with_weights)
                weights.zero_();
            else if (weights.count_nonzero().item<std::int64_t>() == 0)
                weights.normal_(0, 0.3);
            values.tensors.emplace_back(item.key(), weights);
        }
        for (const auto& item : model.module->named_buffers()) values.tensors.emplace_back(item.key(), item.value());
        const auto file = path(chain.model + ".safetensors");
        save_checkpoint(file, values,
                        {torch::tensor({3.0F, 2.0F, 0.5F, 0.0F, 0.0F}).narrow(0, 0, has_volume ? 5 : 4),
                         torch::tensor({10.0F, 2.0F, 2.0F, 2.0F, 1.0F}).narrow(0, 0, has_volume ? 5 : 4)},
                        run);
        return file;
    }

    /// Predicts on a mesh, in double precision.
    MeshPrediction predicted(const Chain& chain, const std::string& file, const Mesh& mesh,
                             const std::shared_ptr<const DeviceMesh>& ranks = DeviceMesh::single(),
                             const std::vector<std::string>& coefficients = {"Cd", "Cmx", "Cmy", "Cmz"}) const
    {
        std::vector<Predictor> models{Predictor::from_file(file, {})};
        const auto rank = ranks->all().rank();
        auto given = mesh;
        if (chain.is_measured && chain.wall && mesh.cell_data.empty())
            add_measured(given, chain.on_cells, chain.wall(mesh));
        PredictionOptions options{.values = {{"U_inf", 1.5},
                                             {"area", 0.4},
                                             {"speed", 1.5},
                                             {"moment_length", 0.7},
                                             {"moment_x", 0.3},
                                             {"moment_z", -0.2}},
                                  .with_forces = true,
                                  .sensitivities = coefficients,
                                  .in_double = true};
        if (chain.wall) {
            options.wall = path("wall.vtp");
            if (rank == 0) write_mesh(options.wall, chain.wall(mesh));
            ranks->all().barrier();
        }
        if (chain.has_volume) {
            options.other_part = path("volume.vtp");
            if (rank == 0) write_mesh(options.other_part, body());
            ranks->all().barrier();
        }
        const MeshInput input{"body", {}, [&] { return given; }, {}, path("out.vtp")};
        return predict_mesh(models, input, options, ranks, at::kCPU);
    }

    /// Of a derivative along a way.
    static double tolerance(double difference, const at::Tensor& gradient, const at::Tensor& along)
    {
        const auto size = gradient.norm().item<double>() * along.norm().item<double>();
        return 1e-6 * std::max(std::abs(difference), 1e-2 * size);
    }

    /// Compares with central differences along some ways: of all points, of the outermost one along x, and of another.
    void expect_derivatives(const Chain& chain) const
    {
        const auto file = write_model(chain);
        const auto mesh = body();
        const auto points = mesh.points.to_doubles();
        const auto found = predicted(chain, file, mesh);
        for (const auto& one : found.sensitivities)
            EXPECT_NEAR(one.value, found.forces.of_fields.at(one.coefficient).at(0), 1e-4 * std::abs(one.value));

        std::mt19937 generator(9);
        std::normal_distribution<double> draw;
        std::vector<Coordinates> ways(2, Coordinates(points.size(), 0.0));
        for (auto& x : ways[0]) x = draw(generator);
        std::size_t outermost = 0;
        for (std::size_t i = 0; i < points.size(); i += 3)
            if (points[i] > points[outermost]) outermost = i;
        ways[1][outermost] = 1;
        ways.emplace_back(points.size(), 0.0);
        for (int c = 0; c < 3; ++c) ways[2][3 * 23 + c] = draw(generator);
        for (const auto& way : ways) {
            const auto along = torch::tensor(way, torch::kDouble);
            const auto ahead = predicted(chain, file, moved(mesh, way, chain.step)).sensitivities;
            const auto back = predicted(chain, file, moved(mesh, way, -chain.step)).sensitivities;
            for (std::size_t k = 0; k < ahead.size(); ++k) {
                const auto& gradient = found.sensitivities.at(k).gradient;
                const auto difference = (ahead[k].value - back[k].value) / (2 * chain.step);
                const auto derivative = gradient.flatten().dot(along).item<double>();
                EXPECT_NEAR(derivative, difference, tolerance(difference, gradient, along)) << ahead[k].coefficient;
            }
        }
        if (find_model(chain.model).of_bodies()) expect_to_hear_the_body(chain, file, ways[0]);
        for (const int num_ranks : {2, 3}) expect_same_on_ranks(chain, file, mesh, found.sensitivities, num_ranks);
    }

    /// By differences where the body alone moves, and the surface's points stay: its part of the drag's derivative is
    /// more than the comparison above would pass over.
    void expect_to_hear_the_body(const Chain& chain, const std::string& file, const Coordinates& way) const
    {
        const auto mesh = body();
        const auto drag = [&](double step) {
            auto held = chain;
            held.wall = [&](const Mesh& surface) { return chain.wall(moved(surface, way, step)); };
            return predicted(held, file, mesh, DeviceMesh::single(), {"Cd"}).sensitivities.at(0);
        };
        const auto ahead = drag(chain.step), back = drag(-chain.step);
        const auto along = torch::tensor(way, torch::kDouble);
        const auto of_all = ahead.gradient.flatten().dot(along).item<double>();
        EXPECT_GT(std::abs(ahead.value - back.value) / (2 * chain.step), 5 * tolerance(of_all, ahead.gradient, along));
    }

    void expect_same_on_ranks(const Chain& chain, const std::string& file, const Mesh& mesh,
                              const std::vector<ShapeSensitivity>& all, int num_ranks) const
    {
        run_ranks(num_ranks, [&](const std::shared_ptr<const DeviceMesh>& ranks) {
            const auto found = predicted(chain, file, mesh, ranks).sensitivities;
            for (std::size_t k = 0; k < all.size(); ++k) {
                const auto& one = found.at(k);
                const auto& expected = all[k];
                const auto size = expected.gradient.abs().max().item<double>();
                EXPECT_NEAR(one.value, expected.value, 1e-9 * std::abs(expected.value));
                EXPECT_LT((one.gradient - expected.gradient).abs().max().item<double>(), 1e-9 * size) << num_ranks;
                EXPECT_LT((one.normal - expected.normal).abs().max().item<double>(),
                          1e-9 * expected.normal.abs().max().item<double>());
            }
        });
    }
};

const json kSmallModel = {{"n_layers", 2}, {"n_hidden", 16}, {"n_head", 2}, {"mlp_ratio", 2}, {"slice_num", 5}};

TEST_F(ShapeSensitivities, OfTransolverAreDerivativesByAllInputs)
{
    expect_derivatives({"transolver",
                        kSmallModel,
                        {"points", "normals", "areas", "height", "box", "sdf", "wall_direction"},
                        true,
                        rear_and_plate});
}

TEST_F(ShapeSensitivities, OfFieldsAtPointsAreDerivativesByMeasuredDistancesToo)
{
    expect_derivatives({.model = "transolver",
                        .arguments = kSmallModel,
                        .inputs = {"points", "normals", "areas", "sdf"},
                        .on_cells = false,
                        .wall = rear_and_plate,
                        .is_measured = true});
}

TEST_F(ShapeSensitivities, OfFlareAreDerivatives)
{
    expect_derivatives({.model = "flare", .arguments = kSmallModel, .has_head = true});
}

TEST_F(ShapeSensitivities, OfGeoTransolverWithLocalFeaturesAreDerivatives)
{
    auto arguments = kSmallModel;
    arguments.update({{"include_local_features", true},
                      {"radii", {0.2, 0.4}},
                      {"neighbors_in_radius", {3, 6}},
                      {"n_hidden_local", 6}});
    expect_derivatives({"geotransolver", arguments});
}

/// The arguments of a small MeshGraphNet, on levels if there are some.
json small_graph(const std::vector<int>& levels)
{
    return {{"processor_size", 2},
            {"hidden_dim_processor", 16},
            {"hidden_dim_node_encoder", 16},
            {"hidden_dim_edge_encoder", 16},
            {"hidden_dim_node_decoder", 16},
            {"mlp_activation_fn", "silu"},
            {"levels", levels}};
}

TEST_F(ShapeSensitivities, OfMeshGraphNetAreDerivatives)
{
    expect_derivatives({"meshgraphnet", small_graph({})});
}

TEST_F(ShapeSensitivities, OfMeshGraphNetOnLevelsAreDerivatives)
{
    expect_derivatives({"meshgraphnet", small_graph({20, 60})});
}

TEST_F(ShapeSensitivities, OfFigConvUNetAreDerivatives)
{
    expect_derivatives({.model = "figconvunet",
                        .arguments = {{"grid_resolution", {8, 8, 8}},
                                      {"plane_resolution", {2, 2, 2}},
                                      {"hidden_channels", {4, 4}},
                                      {"num_levels", 1},
                                      {"pos_encode_dim", 4},
                                      {"aabb_min", {-1.2, -1, -1}},
                                      {"aabb_max", {1.2, 1, 1}},
                                      {"reductions", {"mean", "max", "std"}}},
                        .step = 1e-7});  // points come within reach of other vertices
}

TEST_F(ShapeSensitivities, OfDominoAreDerivativesByTheBodyToo)
{
    expect_derivatives({"domino",
                        {{"interp_res", {16, 8, 8}},
                         {"base_filters", 2},
                         {"base_neurons", 4},
                         {"surface_box", {-1, -0.6, -0.6, 1, 0.6, 0.6}},
                         {"surface_radii", {0.3}},
                         {"surface_neighbors_in_radius", {8}},
                         {"local_surface_radii", {0.5}},
                         {"local_surface_neighbors", {8}},
                         {"num_neighbors_surface", 3},
                         {"basis_width", 8},
                         {"position_width", 8},
                         {"parameter_width", 8},
                         {"aggregation_width", 8}},
                        {"points", "normals", "areas"},
                        true,
                        std::identity(),
                        1e-7});  // ReLUs on its grid have kinks everywhere
}

/// AB-UPT, told of a body.
Chain ab_upt(const std::string& anchors)
{
    return {.model = "abupt",
            .arguments = {{"hidden_dim", 12},
                          {"num_heads", 2},
                          {"mlp_ratio", 2},
                          {"geometry_depth", 1},
                          {"physics_blocks", {"perceiver", "cross"}},
                          {"num_surface_blocks", 1},
                          {"num_volume_blocks", 0},
                          {"radius", 150},
                          {"max_degree", 8},
                          {"anchors", anchors},
                          {"num_geometry_points", 48},
                          {"num_supernodes", 12},
                          {"num_surface_anchors", 12},
                          {"num_volume_anchors", 8},
                          {"volume_box", {-2, -2, -2, 2, 2, 2}}},
            .inputs = {"points"},
            .wall = std::identity(),
            .step = 1e-7};  // points drawn on the body come to other triangles
}

TEST_F(ShapeSensitivities, OfAbUptAreDerivativesByTheBodyToo)
{
    expect_derivatives(ab_upt("body"));
}

TEST_F(ShapeSensitivities, OfAbUptWithAnchorsAmongPointsAreDerivatives)
{
    auto chain = ab_upt("points");
    chain.has_volume = true;
    expect_derivatives(chain);
}

TEST_F(ShapeSensitivities, OfConstantFieldsAreThoseOfTheArea)
{
    const Chain chain{"transolver", kSmallModel};
    const auto file = write_model(chain, false);  // predicts p = 3 and a shear stress of (2, 0.5, 0) everywhere
    const auto mesh = body();

    const auto found = predicted(chain, file, mesh, DeviceMesh::single(), {"Cd", "Cl", "Cs"}).sensitivities;

    const auto area = [](const Mesh& surface) {
        double sum = 0;
        for (const auto& a : area_vectors(surface)) sum += std::hypot(a[0], a[1], a[2]);
        return sum;
    };
    const auto scale = 1 / (0.5 * 1.5 * 1.5 * 0.4);
    ASSERT_EQ(found.size(), 3);
    EXPECT_NEAR(found[0].value, 2 * scale * area(mesh), 1e-12);
    EXPECT_NEAR(found[2].value, 0.5 * scale * area(mesh), 1e-12);    // lift times drag is y
    EXPECT_LT(found[1].gradient.abs().max().item<double>(), 1e-12);  // pressures of a closed surface cancel
    for (const std::int64_t i : {0, 40, 211}) {
        Coordinates way(3 * mesh.num_points(), 0.0);
        way[i] = 1;
        const double difference = (area(moved(mesh, way, 1e-5)) - area(moved(mesh, way, -1e-5))) / 2e-5;
        EXPECT_NEAR(found[0].gradient.flatten()[i].item<double>(), 2 * scale * difference, 1e-8);
        EXPECT_NEAR(found[2].gradient.flatten()[i].item<double>(), 0.5 * scale * difference, 1e-8);
    }
}

TEST_F(ShapeSensitivities, NormalPartOfAVolumeIsOneAndKeepsItsIntegral)
{
    const auto mesh = sphere(24);
    const MovableSurface surface(mesh, RankGroup(), at::kCPU);
    const torch::NoGradGuard no_grad;
    const auto vectors = surface.area_vectors();
    const auto gradient = surface.sums_at_points(vectors) / 3;  // of the volume

    const auto normal = normal_part(gradient, surface, 1), inward = normal_part(gradient, surface, -1);

    const auto shares = surface.shares_at_points(vectors.norm(2, 1));
    const auto normals = surface.points() / surface.points().norm(2, 1, true);
    EXPECT_NEAR((normal * shares).sum().item<double>(), (gradient * normals).sum().item<double>(), 1e-2);
    EXPECT_GT(normal.min().item<double>(), 0.95);
    EXPECT_LT(normal.max().item<double>(), 1 + 1e-12);
    EXPECT_TRUE(torch::equal(normal, -inward));
}

TEST_F(ShapeSensitivities, NameWhatHasNone)
{
    const Chain chain{"transolver", kSmallModel};
    const auto file = write_model(chain);
    auto mesh = body();

    EXPECT_TRUE(throws_with<UsageError>("no sensitivity of 'Cx'; there are those of Cd, Cl, Cs, Cmx, Cmy, Cmz.",
                                        [&] { predicted(chain, file, mesh, DeviceMesh::single(), {"Cx"}); }));
    mesh.cell_data = {DataArray::from("Normals", std::vector<double>(3 * mesh.num_cells(), 0.6), 3)};
    EXPECT_TRUE(throws_with<UnusableInput>("no sensitivity: the input 'normals' differs by up to",
                                           [&] { predicted(chain, file, mesh); }));
    Chain measured{.model = "transolver", .arguments = kSmallModel, .inputs = {"points", "sdf"}, .is_measured = true};
    const auto told = write_model(measured);
    mesh.cell_data = {DataArray::from(kMeasured, std::vector<double>(mesh.num_cells(), 0.6))};
    EXPECT_TRUE(throws_with<UnusableInput>("the input 'sdf' is the array 'implicit_distance' of the case "
                                           "(data.distances), and from which surface is not known. Give its file with "
                                           "--wall.",
                                           [&] { predicted(measured, told, mesh); }));
    measured.wall = rear_and_plate;
    EXPECT_TRUE(throws_with<UnusableInput>("'implicit_distance' is not the distance from this wall",
                                           [&] { predicted(measured, told, mesh); }));
}

}  // namespace
}  // namespace meshard
