// SPDX-License-Identifier: Apache-2.0
// meshard interpolate: interpolates fields of one mesh at the points or cells of another.
#include "apps/console/json_report.h"
#include "apps/console/stage_timer.h"
#include "apps/console/text_table.h"
#include "apps/fields/field_tensors.h"
#include "apps/fields/mesh_fields.h"
#include "apps/learning/cases/mesh_handover.h"
#include "apps/program/command_line.h"
#include "apps/program/options.h"
#include "apps/program/output_file.h"
#include "apps/program/rank_program.h"
#include "apps/program/verbs.h"
#include "io/bytes/made_folders.h"
#include "io/mesh_io.h"
#include "ops/neighbors/cloud_interpolation.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "sharding/tensor/distribute_rows.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
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

struct InterpolateOptions {
    std::string source, target, output;
    std::vector<std::string> fields;
    std::optional<FieldPlace> from;
    FieldPlace at = FieldPlace::Points;
    InterpolationOptions how{.num_neighbors = 4};
    std::optional<double> max_distance, fill;
    WriteOptions write;
    bool replaces = false;
    InputAsOutput input_as_output{};
    bool json = false;
    LocalRanks ranks;

    bool takes_nearest() const { return how.num_neighbors == 1; }
};

std::optional<double> parse_fill(const std::string& word)
{
    if (word.empty()) return std::nullopt;
    if (word == "nan" || word == "NaN") return std::numeric_limits<double>::quiet_NaN();
    return parse_numbers(word, "--fill", 1)[0];
}

bool parse(std::span<const std::string> arguments, InterpolateOptions& options)
{
    std::string from, at = "points", max_distance, fill, compress = "none";
    CLI::App app("Interpolates fields of SOURCE at the points of TARGET and writes TARGET with them: means of the "
                 "nearest values, with weights one over\n"
                 "the distance to a power. A target at the position of a source gets its value. Values of cells are "
                 "taken to be at their centroids.",
                 "interpolate");
    add_named(app, "source", options.source, "SOURCE", "mesh with the fields, of any format that can be read")
        ->required();
    add_named(app, "target", options.target, "TARGET", "mesh or point cloud that gets the fields")->required();
    add_named(app, "-o,--output", options.output, "OUT", fmt::format("file to write ({})", writable_formats()))
        ->required();
    add_named(app, "--fields", options.fields, "NAME,...",
              "which fields, e.g. p,U; may be repeated; default: all of floating type")
        ->allow_extra_args(false);
    add_place_option(app, "--from", from, "fields of points or of cells of SOURCE, if both have fields of that name");
    add_place_option(app, "--at", at, "whether points or cells of TARGET get the fields")->capture_default_str();
    add_shown(app, "--neighbors", options.how.num_neighbors, "K",
              "number of nearest values to average; 1: takes the nearest value, also of integers and texts")
        ->check(CLI::Range(1, 1000));
    add_shown(app, "--power", options.how.power, "P", "p of the weights 1 / distance^p")->check(CLI::PositiveNumber);
    add_named(app, "--max-distance", max_distance, "D",
              "largest distance to the nearest source; a target farther away is an error, unless --fill is given");
    add_named(app, "--fill", fill, "VALUE", "value of targets beyond --max-distance, e.g. 0 or nan");
    app.add_flag("--replace", options.replaces, "replace arrays of TARGET that have the fields' names");
    add_overwrite_option(app, options.input_as_output);
    add_compress_option(app, compress);
    add_rank_options(app, options.ranks, "start this many ranks on this machine");
    add_json_option(app, options.json);
    if (!parse_arguments(app, arguments)) return false;

    options.from = parse_place(from);
    options.at = *parse_place(at);
    options.write.compression = parse_compression(compress);
    options.fill = parse_fill(fill);
    if (!max_distance.empty()) options.max_distance = parse_numbers(max_distance, "--max-distance", 1)[0];
    if (options.max_distance && *options.max_distance < 0)
        throw UsageError("--max-distance is {}; expected 0 or more.", max_distance);
    if (options.fill && !options.max_distance)
        throw UsageError("--fill is for targets beyond --max-distance, which is not given.");
    return true;
}

bool is_floating(const DataArray& array)
{
    return array.type() == ScalarType::Float32 || array.type() == ScalarType::Float64;
}

std::vector<MeshField> chosen_fields(const Mesh& source, const InterpolateOptions& options)
{
    std::vector<MeshField> chosen;
    for (const auto& name : field_names(source, options.fields))
        chosen.push_back(find_field(source, name, options.from, options.source));
    if (!options.fields.empty()) return chosen;
    for (const auto place : {FieldPlace::Points, FieldPlace::Cells}) {
        if (options.from && options.from != place) continue;
        for (const auto& array : arrays_at(source, place)) {
            if (is_floating(array)) chosen.push_back(find_field(source, array.name(), options.from, options.source));
        }
    }
    if (chosen.empty()) {
        throw InvalidInput(
            "{} has no fields of floating type{}. {} Other fields need --fields with their names and --neighbors 1.",
            options.source, options.from ? fmt::format(" at its {}", to_string(*options.from)) : "",
            list_of_fields(source));
    }
    return chosen;
}

/// Returns whether the array's type can represent `fill`.
bool holds(const DataArray& array, double fill)
{
    if (array.type() == ScalarType::String) return false;
    return with_scalar_type(array.type(), [&]<class T>() {
        if constexpr (std::is_floating_point_v<T>) return true;
        return fill == std::floor(fill) && fill >= static_cast<double>(std::numeric_limits<T>::lowest()) &&
               fill < std::ldexp(1.0, std::numeric_limits<T>::digits);
    });
}

void require_usable(const DataArray& array, const InterpolateOptions& options)
{
    const std::string where = fmt::format("{}: the field '{}'", options.source, array.name());
    if (!is_floating(array) && !options.takes_nearest()) {
        throw InvalidInput("{} is of type {}, which cannot be averaged. --neighbors 1 takes the nearest value.", where,
                           to_string(array.type()));
    }
    if (options.fill && !holds(array, *options.fill)) {
        throw InvalidInput("{} is of type {}, which cannot hold --fill {}.", where, to_string(array.type()),
                           number_text(*options.fill));
    }
    // A mean with NaN is NaN, even where its weight is zero.
    const auto bad = options.takes_nearest() ? 0 : count_not_finite(array);
    if (bad > 0) {
        throw InvalidInput("{} has {} that {} NaN or infinite, so means with them would be, too. Leave the "
                           "field out with --fields, or take the "
                           "nearest values with --neighbors 1.",
                           where, count_text(bad, "value"), bad == 1 ? "is" : "are");
    }
}

/// The source and the target mesh on rank 0; empty on the others.
struct Meshes {
    Mesh source, target;
    std::vector<MeshField> fields;

    std::vector<const DataArray*> fields_of(FieldPlace place) const
    {
        std::vector<const DataArray*> found;
        for (const auto& field : fields) {
            if (field.place == place) found.push_back(field.array);
        }
        return found;
    }
};

Meshes read_meshes(const InterpolateOptions& options)
{
    Meshes meshes{read_mesh(options.source), read_mesh(options.target), {}};
    require_positions(meshes.source, options.source);
    require_positions(meshes.target, options.target);
    if (options.at == FieldPlace::Cells && meshes.target.num_cells() == 0)
        throw InvalidInput("{} has no cells. Leave --at cells out.", options.target);
    require_writable_format(options.output, meshes.target);
    meshes.fields = chosen_fields(meshes.source, options);
    for (const auto& field : meshes.fields) {
        require_usable(*field.array, options);
        require_free_name(arrays_at(meshes.target, options.at), field.array->name(), options.replaces, options.target);
    }
    return meshes;
}

/// Distributes rank 0's rows over all ranks, in contiguous ranges. Collective.
at::Tensor spread_rows(const at::Tensor& whole, const std::shared_ptr<const DeviceMesh>& device_mesh)
{
    if (device_mesh->num_ranks() == 1) return whole;
    const auto num_rows = device_mesh->all().all_gather_integers(whole.defined() ? whole.size(0) : 0)[0];
    const auto extents = std::make_shared<const Extents>(even_extents(num_rows, device_mesh->num_ranks()));
    return distribute_rows(whole, 0, make_spec(device_mesh, AxisLayout{Shard(0), extents}));
}

/// Gathers the ranges of all ranks on rank 0, in order. Collective.
at::Tensor gather_runs(const at::Tensor& own_rows, const RankGroup& group)
{
    const auto counts = group.all_gather_integers(own_rows.size(0));
    std::int64_t first = 0;
    for (int rank = 0; rank < group.rank(); ++rank) first += counts[rank];
    auto ids = numbers_from<std::int64_t>(first, own_rows.size(0));
    return rows_on_first_rank(own_rows, ids, group);
}

/// The result of interpolating the fields of the source's points, or those of its cells.
struct Transfer {
    FieldPlace from = FieldPlace::Points;
    std::vector<std::string> fields{};
    std::int64_t num_sources = 0;
    double mean_distance = 0, max_distance = 0;  ///< distances to the nearest source
    std::int64_t num_filled = 0;
};

/// Returns the targets beyond --max-distance, which get the fill value, and measures the distances.
/// @throws InvalidInput if there are any and no fill value
at::Tensor far_targets(const at::Tensor& distances, const at::Tensor& positions, Transfer& transfer,
                       const InterpolateOptions& options)
{
    transfer.mean_distance = distances.mean().item<double>();
    transfer.max_distance = distances.max().item<double>();
    const auto far =
        distances.gt(options.max_distance.value_or(std::numeric_limits<double>::infinity())).nonzero().view({-1});
    transfer.num_filled = far.numel();
    if (far.numel() == 0 || options.fill) return far;
    const auto farthest = distances.argmax().item<std::int64_t>();
    const auto* place = positions.const_data_ptr<double>() + 3 * farthest;
    const std::string one = options.at == FieldPlace::Points ? "point" : "cell",
                      of_source = transfer.from == FieldPlace::Points ? "point" : "cell";
    throw InvalidInput("{} of {} {} farther than {} from the nearest {} of {}; {} {} at ({} {} {}) is {} "
                       "away. Give such targets a value with "
                       "--fill (e.g. nan), or allow more with --max-distance.",
                       count_text(far.numel(), one), options.target, far.numel() == 1 ? "is" : "are",
                       number_text(*options.max_distance), of_source, options.source, one, farthest,
                       number_text(place[0]), number_text(place[1]), number_text(place[2]),
                       number_text(transfer.max_distance));
}

void fill_rows(DataArray& array, const at::Tensor& rows, double fill)
{
    with_scalar_type(array.type(), [&]<class T>() {
        const auto values = array.mutable_values<T>();
        const auto width = array.num_components();
        for (std::int64_t i = 0; i < rows.numel(); ++i)
            std::fill_n(values.begin() + rows.const_data_ptr<std::int64_t>()[i] * width, width, static_cast<T>(fill));
    });
}

/// Completes a result: it gets the source field's component names and unit, but not its attribute (scalars, normals,
/// ...), which an array of the target may have.
void finish(DataArray& array, const DataArray& field, const at::Tensor& far, const InterpolateOptions& options)
{
    array.component_names = field.component_names;
    array.unit = field.unit;
    array.attribute.clear();
    if (far.numel() > 0) fill_rows(array, far, *options.fill);
}

/// Gathers for each target the field's row at the nearest source.
DataArray nearest_values(const DataArray& field, const at::Tensor& nearest)
{
    const auto* ids = nearest.const_data_ptr<std::int64_t>();
    return field.gather(std::vector<std::int32_t>(ids, ids + nearest.numel()));
}

/// Suppresses a warning of the search that advises smaller radii and other cuts: users of this verb cannot choose them.
class NoWarnings : public c10::WarningHandler {
public:
    void process(const c10::Warning&) override {}
};

/// Interpolates the fields of the source's points, or of its cells. Collective; rank 0 has the meshes.
std::optional<Transfer> transfer_fields(Meshes& meshes, FieldPlace from, const InterpolateOptions& options,
                                        const std::shared_ptr<const DeviceMesh>& device_mesh)
{
    NoWarnings no_warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&no_warnings);
    const auto& group = device_mesh->all();
    const bool is_first = group.rank() == 0;
    const auto fields = meshes.fields_of(from);
    const auto num_fields = group.all_gather_integers(std::ssize(fields))[0];
    if (num_fields == 0) return std::nullopt;

    at::Tensor sources, targets;
    if (is_first) {
        sources = positions_of(meshes.source, from);
        targets = positions_of(meshes.target, options.at);
    }
    const CloudInterpolation interpolation(spread_rows(sources, device_mesh), spread_rows(targets, device_mesh),
                                           options.how);
    const auto& neighbors = interpolation.neighbors();
    // Each target's first neighbour is the nearest.
    const auto nearest = neighbors.offsets.narrow(0, 0, neighbors.offsets.numel() - 1);
    const auto distances = gather_runs(neighbors.distances.index_select(0, nearest), group);
    const auto ids = gather_runs(neighbors.ids.index_select(0, nearest), group);

    Transfer transfer{.from = from};
    at::Tensor far;
    if (is_first) {
        transfer.num_sources = sources.size(0);
        far = far_targets(distances, targets, transfer, options);
    }
    for (std::int64_t f = 0; f < num_fields; ++f) {
        DataArray array;
        if (options.takes_nearest()) {
            if (is_first) array = nearest_values(*fields[f], ids);
        } else {
            const auto values = spread_rows(is_first ? tensor_of(*fields[f]) : at::Tensor(), device_mesh);
            const auto found = gather_runs(to_local(interpolation(values)), group);
            if (is_first) array = array_of(fields[f]->name(), found, fields[f]->type());
        }
        if (!is_first) continue;
        finish(array, *fields[f], far, options);
        put_array(arrays_at(meshes.target, options.at), std::move(array));
        transfer.fields.push_back(fields[f]->name());
    }
    return transfer;
}

void report(const std::vector<Transfer>& transfers, std::int64_t num_targets, const InterpolateOptions& options,
            const std::vector<std::pair<std::string, double>>& seconds)
{
    const auto bytes = std::filesystem::file_size(options.output);
    if (options.json) {
        Json json{{"source", options.source},    {"target", options.target},   {"output", options.output},
                  {"at", to_string(options.at)}, {"num_targets", num_targets}, {"neighbors", options.how.num_neighbors},
                  {"power", options.how.power},  {"transfers", Json::array()}};
        for (const auto& transfer : transfers) {
            json["transfers"].push_back({{"from", to_string(transfer.from)},
                                         {"num_sources", transfer.num_sources},
                                         {"fields", transfer.fields},
                                         {"mean_distance", transfer.mean_distance},
                                         {"max_distance", transfer.max_distance},
                                         {"num_filled", transfer.num_filled}});
        }
        json["bytes"] = bytes;
        for (const auto& [stage, duration] : seconds) json["seconds"][stage] = duration;
        print_json(json);
        return;
    }
    const auto count_of = [](std::int64_t count, FieldPlace place) {
        return count_text(count, place == FieldPlace::Points ? "point" : "cell");
    };
    for (const auto& transfer : transfers) {
        std::cout << options.source << ": " << c10::Join(", ", transfer.fields) << " of "
                  << count_of(transfer.num_sources, transfer.from) << " at " << count_of(num_targets, options.at)
                  << " of " << options.target << "\n  distance to the nearest: " << number_text(transfer.mean_distance)
                  << " in the mean, " << number_text(transfer.max_distance) << " at most";
        if (transfer.num_filled > 0)
            std::cout << "; " << count_of(transfer.num_filled, options.at) << " beyond --max-distance";
        std::cout << '\n';
    }
    std::cout << "written to " << options.output << " (" << bytes_text(bytes) << ") in "
              << fixed_text(seconds.back().second, 2) << " s" << std::endl;
}

int interpolate(const InterpolateOptions& options, World& world)
{
    const auto device_mesh = DeviceMesh::create(world, {world.size()}, {"domain"});
    const bool is_first = world.rank() == 0;
    StageTimer timer;
    Meshes meshes;
    if (is_first) {
        timer.begin("read");
        meshes = read_meshes(options);
        timer.begin("interpolate");
    }
    std::vector<Transfer> transfers;
    for (const auto from : {FieldPlace::Points, FieldPlace::Cells}) {
        if (auto transfer = transfer_fields(meshes, from, options, device_mesh))
            transfers.push_back(std::move(*transfer));
    }
    if (is_first) {
        timer.begin("write");
        const MadeFolders folders(options.output);
        write_mesh(options.output, meshes.target, options.write);
        const auto seconds = timer.finish();
        report(transfers, options.at == FieldPlace::Points ? meshes.target.num_points() : meshes.target.num_cells(),
               options, seconds);
    }
    device_mesh->all().barrier();
    return exit_code::ok;
}

}  // namespace

int interpolate_command(std::span<const std::string> arguments)
{
    InterpolateOptions options;
    if (!parse(arguments, options)) return exit_code::ok;
    require_writable_format(options.output);
    require_output(options.output, {options.source, options.target}, options.input_as_output);
    return run_on_ranks(
        options.ranks, "interpolate", arguments, [](int) {}, [&](World& world) { return interpolate(options, world); });
}

}  // namespace meshard
