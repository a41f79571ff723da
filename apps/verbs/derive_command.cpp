// SPDX-License-Identifier: Apache-2.0
// meshard derive: adds gradients, vorticity, distances to walls and other derived fields to a mesh.
#include "apps/console/json_report.h"
#include "apps/console/stage_timer.h"
#include "apps/console/text_table.h"
#include "apps/fields/derived_fields.h"
#include "apps/fields/field_tensors.h"
#include "apps/fields/mesh_fields.h"
#include "apps/fields/wall_surface.h"
#include "apps/learning/cases/mesh_handover.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/output_file.h"
#include "apps/program/rank_program.h"
#include "apps/program/verbs.h"
#include "io/bytes/made_folders.h"
#include "io/mesh_io.h"
#include "ops/surface/surface_distance.h"
#include "partition/error.h"
#include "partition/mesh/cell_geometry.h"
#include "partition/mesh/joined_points.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <limits>
#include <optional>

namespace meshard {
namespace {

constexpr const char* kWallDistance = "Wall Distance";
constexpr const char* kWallDirection = "Wall Direction";

/// A quantity and the words of the command line that name its fields.
struct Wish {
    Quantity quantity;
    std::vector<std::string> words;
};

struct DeriveOptions {
    std::string mesh, output;
    std::vector<Wish> wishes{{Quantity::Gradient, {}},
                             {Quantity::Divergence, {}},
                             {Quantity::Vorticity, {}},
                             {Quantity::QCriterion, {}},
                             {Quantity::Laplacian, {}}};
    std::optional<FieldPlace> from;
    GradientNeighbors neighbors = GradientNeighbors::Vertex;
    std::vector<std::string> walls;
    std::string sign = "none";
    std::optional<Orient> orient;
    bool with_direction = false;
    FieldPlace walls_at = FieldPlace::Points;
    WriteOptions write;
    bool replaces = false;
    InputAsOutput input_as_output{};
    bool json = false;
    LocalRanks ranks;
};

bool parse(std::span<const std::string> arguments, DeriveOptions& options)
{
    std::string from, at = "points", neighbors = "vertex", compress = "none";
    CLI::App app("Writes MESH with further arrays, computed from its fields and geometry: derivatives, at the points "
                 "or cells where the field is given, and distances\n"
                 "to walls. Arrays have the names of ParaView's filter Gradient, after the field's name if there are "
                 "several fields (p Gradient, U "
                 "Gradient).",
                 "derive");
    add_named(app, "mesh", options.mesh, "MESH", "mesh of any format that can be read")->required();
    add_named(app, "-o,--output", options.output, "OUT", fmt::format("file to write ({})", writable_formats()))
        ->required();
    const std::array descriptions{
        "derivatives along x, y and z of each component, one component after the other; `Gradient`",
        "of a vector: sum of du/dx, dv/dy, dw/dz; `Divergence`", "of a velocity: its curl; `Vorticity`",
        "of a velocity: half of the squared rotation rate minus the squared strain rate; `Q Criterion`",
        "of a cell field: fluxes between neighbours divided by the cell's size; `Laplacian`"};
    const std::array names{"--gradient", "--divergence", "--vorticity", "--q", "--laplacian"};
    for (std::size_t i = 0; i < names.size(); ++i)
        add_named(app, names[i], options.wishes[i].words, "FIELD,...", descriptions[i])->allow_extra_args(false);
    add_place_option(app, "--from", from, "fields of points or of cells, if both have fields of that name");
    add_shown(app, "--neighbors", neighbors, "WHICH",
              "for cell fields: neighbours share a point (vertex) or a face (facet: faster, less exact for cells "
              "with few neighbours)")
        ->check(CLI::IsMember({"vertex", "facet"}));
    add_named(
        app, "--wall-distance", options.walls, "SURFACE|PATCH",
        "distance to the nearest surface: a file, or the name of a patch of MESH; may be repeated; `Wall Distance`")
        ->allow_extra_args(false);
    add_shown(app, "--sign", options.sign, "HOW",
              "makes distances inside negative, by the side of the nearest triangle (normals) or by the winding "
              "number (winding)")
        ->check(CLI::IsMember({"none", "normals", "winding"}));
    add_orient_option(app, options.orient, "as-is");
    app.add_flag("--wall-direction", options.with_direction,
                 "also write the unit vector away from the wall, the gradient of the distance; `Wall Direction`");
    add_place_option(app, "--at", at, "where distances to walls are computed")->capture_default_str();
    app.add_flag("--replace", options.replaces, "replace arrays of MESH that have the results' names");
    add_overwrite_option(app, options.input_as_output);
    add_compress_option(app, compress);
    add_rank_options(app, options.ranks, "start this many ranks on this machine");
    add_json_option(app, options.json);
    if (!parse_arguments(app, arguments)) return false;

    options.from = parse_place(from);
    options.walls_at = *parse_place(at);
    options.neighbors = neighbors == "vertex" ? GradientNeighbors::Vertex : GradientNeighbors::Facet;
    options.write.compression = parse_compression(compress);
    const bool has_wish = std::ranges::any_of(options.wishes, [](const Wish& wish) { return !wish.words.empty(); });
    if (!has_wish && options.walls.empty())
        throw UsageError(
            "nothing to derive. Give --gradient, --divergence, --vorticity, --q, --laplacian or --wall-distance.");
    if (options.walls.empty() && (options.sign != "none" || options.with_direction || options.orient))
        throw UsageError("--sign, --wall-direction and --orient need --wall-distance.");
    return true;
}

/// Returns the derivations that the options ask for, with fields found in the mesh. A part of the mesh gives the same
/// ones as the whole mesh.
std::vector<Derivation> derivations_of(const Mesh& mesh, const DeriveOptions& options)
{
    std::vector<Derivation> derivations;
    for (const auto& [quantity, words] : options.wishes) {
        const auto names = field_names(mesh, words);
        for (const auto& name : names) {
            const auto place = find_field(mesh, name, options.from, options.mesh).place;
            derivations.push_back({quantity, place, name, (names.size() > 1 ? name + " " : "") + name_of(quantity)});
        }
    }
    return derivations;
}

void require_free_names(const Mesh& mesh, const std::vector<Derivation>& derivations, const DeriveOptions& options)
{
    for (const auto& derivation : derivations)
        require_free_name(arrays_at(mesh, derivation.place), derivation.result, options.replaces, options.mesh);
    if (options.walls.empty()) return;
    require_free_name(arrays_at(mesh, options.walls_at), kWallDistance, options.replaces, options.mesh);
    if (options.with_direction)
        require_free_name(arrays_at(mesh, options.walls_at), kWallDirection, options.replaces, options.mesh);
}

void warn_of_rows(const Mesh& mesh, const std::vector<Derivation>& derivations, const DeriveOptions& options)
{
    const auto warn_of = [&](std::int64_t count, const std::string& one, const std::string& why) {
        if (count > 0) warn("derive", "{}: {} {}", options.mesh, count_text(count, one), why);
    };
    const auto is_of = [&](FieldPlace place) {
        return std::ranges::any_of(derivations, [&](const auto& derivation) { return derivation.place == place; });
    };
    const auto top = top_dimension(mesh);
    std::vector<bool> is_used(mesh.num_points(), false);
    std::int64_t num_lower = 0;
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        if (cell_dimension(mesh.cell_types[i]) != top) {
            ++num_lower;
        } else {
            for (const auto point : mesh.cells.row(i)) is_used[point] = true;
        }
    }
    const std::string cells = top == 3 ? "solids" : "polygons";
    if (is_of(FieldPlace::Cells)) {
        warn_of(num_lower, "cell", fmt::format("not among the {}; derivatives there are NaN.", cells));
        const auto sizes = cell_measures(mesh).sizes;
        std::int64_t num_flat = 0;
        for (std::int64_t i = 0; i < mesh.num_cells(); ++i)
            num_flat += cell_dimension(mesh.cell_types[i]) == top && !(sizes[i] > 0);
        warn_of(num_flat, "cell", fmt::format("without {}; derivatives there are NaN.", top == 3 ? "volume" : "area"));
    }
    if (is_of(FieldPlace::Points))
        warn_of(std::ranges::count(is_used, false), "point",
                fmt::format("outside all {}; derivatives there are NaN.", cells));
    if (is_of(FieldPlace::Cells)) {
        const bool by_vertex = options.neighbors == GradientNeighbors::Vertex;
        const auto unjoined =
            by_vertex ? find_cells_without_common_points(mesh, top) : find_unjoined_cells(mesh, facet_graph(mesh));
        const auto text = describe(unjoined, options.mesh, by_vertex ? "point" : "face",
                                   unjoined.num_isolated > 0
                                       ? "derivatives of cell fields are NaN where a cell has no neighbour."
                                       : "derivatives of cell fields do not look across from one to the other.");
        if (!text.empty()) warn("derive", options.mesh + ": " + text);
        const bool has_laplacian = std::ranges::any_of(
            derivations, [](const auto& derivation) { return derivation.quantity == Quantity::Laplacian; });
        if (by_vertex && has_laplacian) {
            const auto by_face = find_unjoined_cells(mesh, facet_graph(mesh));
            if (by_face.num_isolated > unjoined.num_isolated)
                warn("derive", options.mesh + ": " +
                                   describe(by_face, options.mesh, "face",
                                            "the Laplacian is NaN where a cell has no neighbour."));
        }
        if (mesh.num_cells() - num_lower == 1)
            warn_of(1, "cell", "without a neighbour; derivatives of cell fields there are NaN.");
    }
    for (const auto& derivation : derivations) {
        warn_of(count_not_finite(*find_array(arrays_at(mesh, derivation.place), derivation.field)), "value",
                fmt::format("of the field '{}' NaN or infinite; '{}' is NaN or infinite there and at neighbours.",
                            derivation.field, derivation.result));
    }
}

/// Copies the mesh with only those arrays from which fields are derived.
Mesh bare_mesh(const Mesh& mesh, const std::vector<Derivation>& derivations)
{
    Mesh bare;
    bare.kind = mesh.kind;
    bare.points = mesh.points;
    bare.cells = mesh.cells;
    bare.cell_types = mesh.cell_types;
    bare.face_streams = mesh.face_streams;
    for (const auto& derivation : derivations)
        put_array(arrays_at(bare, derivation.place), *find_array(arrays_at(mesh, derivation.place), derivation.field));
    return bare;
}

/// Broadcasts rank 0's (rows, 3) tensor. Collective.
at::Tensor on_every_rank(const at::Tensor& tensor, at::ScalarType type, const RankGroup& group)
{
    const auto num_rows = group.all_gather_integers(tensor.defined() ? tensor.size(0) : 0)[0];
    auto whole = group.rank() == 0 ? tensor : at::empty({num_rows, 3}, type);
    group.broadcast(whole, 0);
    return whole;
}

/// This rank's rows of a new array.
struct NewRows {
    FieldPlace place = FieldPlace::Points;
    std::string name;
    ScalarType type = ScalarType::Float64;
    at::Tensor values;  ///< (rows, components), double
};

void add_wall_distances(std::vector<NewRows>& rows, const Mesh& mesh, const at::Tensor& positions,
                        const WallSurface& walls, const DeriveOptions& options)
{
    const auto found =
        signed_distance(walls.vertices, walls.faces, positions,
                        {.sign = options.sign == "winding" ? SurfaceSign::WindingNumber : SurfaceSign::PseudoNormal});
    const bool is_signed = options.sign != "none";
    rows.push_back({options.walls_at, kWallDistance, mesh.points.type(),
                    (is_signed ? found.distances : found.distances.abs()).unsqueeze(1)});
    if (!options.with_direction) return;
    const auto turns = found.distances.lt(0).unsqueeze(1);
    rows.push_back({options.walls_at, kWallDirection, mesh.points.type(),
                    is_signed ? found.directions : at::where(turns, -found.directions, found.directions)});
}

/// Derives all fields on this rank's part. Collective.
std::vector<NewRows> derive_rows(MeshPart part, int top_dimension, const WallSurface& walls,
                                 const DeriveOptions& options, const std::shared_ptr<const DeviceMesh>& device_mesh)
{
    std::vector<NewRows> rows;
    const auto derivations = derivations_of(part.subdomain.mesh, options);
    if (!options.walls.empty()) {
        const auto& subdomain = part.subdomain;
        const auto num_owned =
            options.walls_at == FieldPlace::Points ? subdomain.points.num_owned : subdomain.cells.num_owned;
        add_wall_distances(rows, subdomain.mesh, positions_of(subdomain.mesh, options.walls_at, num_owned), walls,
                           options);
    }
    if (derivations.empty()) return rows;
    const MeshGeometry geometry(std::move(part.subdomain), device_mesh);
    FieldDerivatives derivatives(geometry, top_dimension, options.neighbors);
    for (const auto& derivation : derivations) {
        const auto type = find_array(arrays_at(geometry.mesh(), derivation.place), derivation.field)->type();
        rows.push_back({derivation.place, derivation.result, type, derivatives(derivation)});
    }
    return rows;
}

void report(const Mesh& mesh, const std::vector<std::pair<FieldPlace, std::string>>& results,
            const DeriveOptions& options, const std::vector<std::pair<std::string, double>>& seconds)
{
    const auto bytes = std::filesystem::file_size(options.output);
    Json json{{"mesh", options.mesh},          {"output", options.output},
              {"num_cells", mesh.num_cells()}, {"num_points", mesh.num_points()},
              {"arrays", Json::array()},       {"bytes", bytes}};
    TextTable table("llrrr");
    table.add_row({"array", "at", "components", "lowest", "highest"});
    for (const auto& [place, name] : results) {
        const auto& array = *find_array(arrays_at(mesh, place), name);
        double low = std::numeric_limits<double>::infinity(), high = -low;
        for (const double value : array.to_doubles()) {
            if (!std::isfinite(value)) continue;
            low = std::min(low, value);
            high = std::max(high, value);
        }
        const bool has_value = low <= high;
        const auto number = [&](double value) { return has_value ? Json(value) : Json(nullptr); };
        json["arrays"].push_back({{"name", name},
                                  {"at", to_string(place)},
                                  {"components", array.num_components()},
                                  {"min", number(low)},
                                  {"max", number(high)},
                                  {"not_finite", count_not_finite(array)}});
        table.add_row({name, to_string(place), std::to_string(array.num_components()),
                       has_value ? number_text(low) : "-", has_value ? number_text(high) : "-"});
    }
    for (const auto& [stage, duration] : seconds) json["seconds"][stage] = duration;
    if (options.json) return print_json(json);
    std::cout << options.mesh << ": " << count_text(mesh.num_cells(), "cell") << ", "
              << count_text(mesh.num_points(), "point") << '\n'
              << table << "written to " << options.output << " (" << bytes_text(bytes) << ") in "
              << fixed_text(seconds.back().second, 2) << " s" << std::endl;
}

/// The input of the verb. Empty on ranks other than 0.
struct Input {
    Mesh whole, bare;
    WallSurface walls;
};

Input read_input(const DeriveOptions& options)
{
    Input input;
    input.whole = read_mesh(options.mesh);
    require_positions(input.whole, options.mesh);
    require_writable_format(options.output, input.whole);
    const auto derivations = derivations_of(input.whole, options);
    require_free_names(input.whole, derivations, options);
    require_derivable(input.whole, derivations, options.mesh);
    if (!derivations.empty()) warn_of_rows(input.whole, derivations, options);
    if (!options.walls.empty()) {
        if (options.walls_at == FieldPlace::Cells && input.whole.num_cells() == 0)
            throw InvalidInput("{} has no cells. Leave --at cells out.", options.mesh);
        input.walls = read_walls(options.walls, options.mesh, options.orient.value_or(Orient::AsIs));
        const auto facing = input.walls.facing.facing();
        if (options.sign != "none" && (facing == Facing::Inward || facing == Facing::Mixed))
            warn("derive", "--wall-distance: {}, so that {}. --orient outward turns them.",
                 meshard::describe(input.walls.facing),
                 options.sign == "winding" ? "what is inside counts as outside there" : "signs are exchanged there");
        if (options.sign == "normals" && !input.walls.facing.is_closed)
            warn("derive", "the surface of --wall-distance is open: signs near its edges can be wrong. --sign winding "
                           "tolerates holes.");
    }
    input.bare = bare_mesh(input.whole, derivations);
    return input;
}

int derive(const DeriveOptions& options, World& world)
{
    const auto device_mesh = DeviceMesh::create(world, {world.size()}, {"domain"});
    const auto& group = device_mesh->all();
    const bool is_first = world.rank() == 0;
    StageTimer timer;
    Input input;
    if (is_first) {
        timer.begin("read");
        input = read_input(options);
        timer.begin("derive");
    }
    const bool has_derivations =
        std::ranges::any_of(options.wishes, [](const Wish& wish) { return !wish.words.empty(); });
    const auto dimension = static_cast<int>(group.all_gather_integers(top_dimension(input.bare))[0]);
    if (!options.walls.empty()) {
        input.walls.vertices = on_every_rank(input.walls.vertices, at::kDouble, group);
        input.walls.faces = on_every_rank(input.walls.faces, at::kLong, group);
    }
    auto part = hand_out_mesh(input.bare, has_derivations && world.size() > 1 ? 1 : 0, options.output, *device_mesh);
    input.bare = Mesh{};
    const std::vector<std::int64_t> point_ids(part.subdomain.points.owned().begin(),
                                              part.subdomain.points.owned().end());
    const std::vector<std::int64_t> cell_ids(part.subdomain.cells.owned().begin(), part.subdomain.cells.owned().end());

    std::vector<std::pair<FieldPlace, std::string>> results;
    for (const auto& rows : derive_rows(std::move(part), dimension, input.walls, options, device_mesh)) {
        const auto all =
            rows_on_first_rank(rows.values, rows.place == FieldPlace::Points ? point_ids : cell_ids, group);
        if (!is_first) continue;
        put_array(arrays_at(input.whole, rows.place), array_of(rows.name, all, rows.type));
        results.emplace_back(rows.place, rows.name);
    }
    if (is_first) {
        timer.begin("write");
        const MadeFolders folders(options.output);
        write_mesh(options.output, input.whole, options.write);
        const auto seconds = timer.finish();
        report(input.whole, results, options, seconds);
    }
    group.barrier();
    return exit_code::ok;
}

}  // namespace

int derive_command(std::span<const std::string> arguments)
{
    DeriveOptions options;
    if (!parse(arguments, options)) return exit_code::ok;
    require_writable_format(options.output);
    std::vector<std::filesystem::path> inputs(options.walls.begin(), options.walls.end());
    inputs.emplace_back(options.mesh);
    require_output(options.output, inputs, options.input_as_output);
    return run_on_ranks(
        options.ranks, "derive", arguments, [](int) {}, [&](World& world) { return derive(options, world); });
}

}  // namespace meshard
