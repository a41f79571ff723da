// SPDX-License-Identifier: Apache-2.0
#include "models/registry/domino_entry.h"

#include "models/domino/domino.h"
#include "models/layers/option_checks.h"
#include "models/registry/case_bodies.h"
#include "models/registry/kept_per_cloud.h"
#include "models/registry/model_box.h"
#include "ops/neighbors/neighbors.h"
#include "ops/neighbors/point_clouds.h"
#include "ops/surface/surface_distance.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/types.h>

#include <array>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

namespace meshard {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kSurfaceInputs = 7;  // position, normal, area
constexpr const char* kModel = "DoMINO";
constexpr const char* kSurfaceBox = "surface_box";
constexpr const char* kVolumeBox = "volume_box";
constexpr const char* kReference = "parameter_reference";

/// An option of configurations, and its path in the reference's `model_parameters`.
struct ShortName {
    OptionInfo info;
    const char* place;
};

const std::vector<ShortName>& short_names()
{
    static const std::vector<ShortName> names{
        {{"interp_res",
          "cells of the grids along x, y and z, multiples of 8 (processor conv) or 4 (unet)",
          {.least = 4}},
         "/interp_res"},
        {{"geometry_encoding_type",
          "what the grids are told: the body's points, the distance to it, or both",
          {.words = {"both", "stl", "sdf"}}},
         "/geometry_encoding_type"},
        {{"combine_volume_surface", "each part is told of both grids; for cases with surface and volume"},
         "/combine_volume_surface"},
        {{"processor_type", "network of the grids", {.words = {"unet", "conv"}}},
         "/geometry_rep/geo_processor/processor_type"},
        {{"base_filters", "its channels on the finest grid", {.least = 1}}, "/geometry_rep/geo_processor/base_filters"},
        {{"self_attention", "attention gates", {}, "processor_type=unet"},
         "/geometry_rep/geo_processor/self_attention"},
        {{"cross_attention", "one more U-Net over all channels of an encoding"},
         "/geometry_rep/geo_processor/cross_attention"},
        {{"base_neurons", "width of the networks of the body's points around a cell", {.least = 2}},
         "/geometry_rep/geo_conv/base_neurons"},
        {{"surface_radii",
          "radii around cells of the surface's grid, in its box of width 2",
          {.least = 0, .above = true}},
         "/geometry_rep/geo_conv/surface_radii"},
        {{"surface_neighbors_in_radius", "body's points that each radius takes at most", {.least = 1}},
         "/geometry_rep/geo_conv/surface_neighbors_in_radius"},
        {{"volume_radii", "the same of the volume's grid", {.least = 0, .above = true}},
         "/geometry_rep/geo_conv/volume_radii"},
        {{"volume_neighbors_in_radius", "the same of the volume's grid", {.least = 1}},
         "/geometry_rep/geo_conv/volume_neighbors_in_radius"},
        {{"surface_sdf_scaling_factor", "scales of the distance in the surface's grid", {.least = 0, .above = true}},
         "/geometry_rep/geo_processor/surface_sdf_scaling_factor"},
        {{"volume_sdf_scaling_factor",
          "scales of the distance in the volume's grid and at its points",
          {.least = 0, .above = true}},
         "/geometry_rep/geo_processor/volume_sdf_scaling_factor"},
        {{"local_surface_radii",
          "radii within which a point of the surface is told of cells",
          {.least = 0, .above = true}},
         "/geometry_local/surface_radii"},
        {{"local_surface_neighbors", "cells that each radius takes at most", {.least = 1}},
         "/geometry_local/surface_neighbors_in_radius"},
        {{"local_volume_radii", "the same of the volume", {.least = 0, .above = true}}, "/geometry_local/volume_radii"},
        {{"local_volume_neighbors", "the same of the volume", {.least = 1}},
         "/geometry_local/volume_neighbors_in_radius"},
        {{"num_neighbors_surface", "points of a stencil of the surface, its centre among them", {.least = 1}},
         "/num_neighbors_surface"},
        {{"num_neighbors_volume", "points drawn around a point of the volume; 1: no stencil", {.least = 1}},
         "/num_neighbors_volume"},
        {{"use_sdf_in_basis_func", "points of the volume are told their distance to the body"},
         "/use_sdf_in_basis_func"},
        {{"use_surface_normals", "points of the surface are told their normals"}, "/use_surface_normals"},
        {{"use_surface_area", "and their areas"}, "/use_surface_area"},
        {{"basis_width", "width of the basis networks, of which each channel has one", {.least = 1}},
         "/nn_basis_functions/base_layer"},
        {{"position_width", "width of the networks of places", {.least = 1}}, "/position_encoder/base_neurons"},
        {{"aggregation_width", "width of the last networks, of which each channel has one", {.least = 1}},
         "/aggregation_model/base_layer"},
        {{"parameter_width", "width of the network of data.constants", {.least = 1}}, "/parameter_model/base_layer"},
    };
    return names;
}

Json default_parameters()
{
    return to_json(DominoOptions()).at("model_parameters");
}

constexpr const char* kEncodeParameters = "encode_parameters";

/// Moves short names into `model_parameters`.
Json with_parameters_inside(Json arguments)
{
    Json given = Json::object();
    for (const auto& name : short_names()) {
        const auto found = arguments.find(name.info.name);
        if (found == arguments.end()) continue;
        if (!found->is_null()) given[name.place] = *found;
        arguments.erase(found);
    }
    if (const auto found = arguments.find(kEncodeParameters); found != arguments.end()) {
        given["/encode_parameters"] = *found;
        arguments.erase(found);
    }
    if (given.empty()) return arguments;
    auto parameters = arguments.value("model_parameters", Json());
    if (parameters.is_null()) parameters = default_parameters();
    for (const auto& [place, value] : given.items()) {
        auto& target = parameters[Json::json_pointer(place)];
        target = target.is_array() && value.is_primitive() ? Json::array({value}) : value;
    }
    arguments["model_parameters"] = std::move(parameters);
    return arguments;
}

/// Converts positions (..., 3) to the frame in which the box is [-1, 1]^3.
at::Tensor normalised(const ModelBox& box, const at::Tensor& places)
{
    const auto low = box.least(places.options());
    return 2 * (places - low) / (box.most(places.options()) - low) - 1;
}

/// An argument that checkpoints lack if it has its default.
Json extra(const Json& arguments, const char* name)
{
    static const Json unit_box = {-1.0, -1.0, -1.0, 1.0, 1.0, 1.0};
    return arguments.value(name, std::string_view(name) == kReference ? Json::array() : unit_box);
}

DominoOptions options_of(Json arguments)
{
    for (const char* of_programs : {kSurfaceBox, kVolumeBox, kReference}) arguments.erase(of_programs);
    return domino_options(arguments);
}

/// Rows of a grid of the box [-1, 1]^3 from `begin` on: (1, count, Y, Z, 3).
at::Tensor grid_rows(const std::array<std::int64_t, 3>& size, std::int64_t begin, std::int64_t count)
{
    std::vector<at::Tensor> axes;
    for (const auto extent : size) axes.push_back(torch::linspace(-1, 1, extent));
    axes[0] = axes[0].narrow(0, begin, count);
    return torch::stack(torch::meshgrid(axes, "ij"), -1).unsqueeze(0);
}

/// Centroid of the triangles, weighted by area: (3).
at::Tensor center_of_mass(const CaseBody& body)
{
    const auto [corners, areas] = triangles_of(body);
    return ((corners.mean(1) * areas.unsqueeze(1)).sum(0) / areas.sum()).to(body.vertices.scalar_type());
}

/// The body's vertices as the network of its points takes them. Where grids are cut, searches add up the gradient of
/// all ranks' cells on each; it is left to each rank as its share, since gradients of a body are added up over the
/// ranks.
at::Tensor geometry_of(const PointInputs& points)
{
    const auto& vertices = points.body->vertices;
    if (!vertices.requires_grad() || !is_sharded(points.positions)) return vertices;
    auto shared = vertices.view_as(vertices);
    const auto num_ranks = spec_of(points.positions)->device_mesh->num_ranks();
    shared.register_hook([num_ranks](const at::Tensor& gradient) { return gradient / num_ranks; });
    return shared;
}

/// Areas over the mean of the case, of which the networks are told the logarithm; a polygon may have none.
at::Tensor areas_of(const at::Tensor& told)
{
    constexpr double least = 1e-12;
    return told.select(-1, 6).clamp_min(least);
}

/// For each query the rows of `told` at its `count` nearest points, (queries, count, numbers). The search has found one
/// more, since the query may be one of them.
at::Tensor around_drawn(const at::Tensor& told, const Neighbors& found, const at::Tensor& ids_of_queries,
                        std::int64_t count)
{
    const auto num_queries = ids_of_queries.size(0), num_found = count + 1;
    const auto rows = gather_neighbors(told, found).view({num_queries, num_found, told.size(-1)});
    // Moves the query itself behind the others, which keep their order.
    const auto is_itself =
        (found.ids.view({num_queries, num_found}) == ids_of_queries.to(found.ids.device()).unsqueeze(1)).to(at::kInt);
    const auto order =
        std::get<1>(is_itself.sort(/*stable=*/true, /*dim=*/1, /*descending=*/false)).narrow(1, 0, count);
    return rows.gather(1, order.to(rows.device()).unsqueeze(-1).expand({-1, -1, rows.size(-1)}));
}

/// Computes DoMINO's inputs from points and bodies. Data that do not change from step to step are cached: those of a
/// body, and the neighbours and distances of points that stay in memory. Those of a surface have derivatives by points
/// and body; neighbours stay.
class DominoOfCases {
public:
    explicit DominoOfCases(const Json& arguments)
        : surface_box_(extra(arguments, kSurfaceBox), kModel, kSurfaceBox),
          volume_box_(extra(arguments, kVolumeBox), kModel, kVolumeBox), model_(options_of(arguments)),
          reference_(extra(arguments, kReference).get<std::vector<double>>())
    {
    }

    Domino& model() { return model_; }

    PartFields forward(const PointInputs* surface, const PointInputs* volume)
    {
        const auto& any = surface ? *surface : *volume;
        require_one_body(kModel, any);
        const auto options = to_local(any.positions).options();
        DominoInputs inputs;
        inputs.geometry = geometry_of(any).to(options.device()).unsqueeze(0);
        inputs.volume_min_max = torch::stack({volume_box_.least(options), volume_box_.most(options)}).unsqueeze(0);
        inputs.surface_min_max = torch::stack({surface_box_.least(options), surface_box_.most(options)}).unsqueeze(0);
        const bool is_joined = model_->options().combine_volume_surface && model_->options().output_features_surf > 0 &&
                               model_->options().output_features_vol > 0;
        if (surface || is_joined)
            std::tie(inputs.surf_grid, inputs.sdf_surf_grid) = grid_around(any, surface_box_, true);
        if (volume || is_joined) std::tie(inputs.grid, inputs.sdf_grid) = grid_around(any, volume_box_, false);
        if (model_->options().encode_parameters) {
            if (!any.constants.defined())
                throw InvalidInput("DoMINO: encode_parameters, and the case has no constants.");
            inputs.global_values = any.constants.unsqueeze(-1);
            inputs.global_reference =
                reference_.empty() ? torch::ones_like(inputs.global_values)
                                   : torch::tensor(reference_, torch::kFloat).to(options.device()).view({1, -1, 1});
        }
        if (surface) inputs.surface = surface_points(*surface);
        if (volume) {
            const torch::NoGradGuard no_grad;  // distances and places are data
            inputs.volume = *volumes_.of(volume->positions, {volume->body->vertices, volume->body->triangles},
                                         [&] { return volume_points(*volume); });
        }
        const auto outputs = model_->forward(inputs);
        return {outputs.surface, outputs.volume};
    }

private:
    struct OfBody {
        std::weak_ptr<const CaseBody> body;
        TensorState vertices;
        at::Tensor center;  // centre of mass
        std::map<std::tuple<bool, std::int64_t, std::int64_t>, at::Tensor>
            distances;  // this rank's rows of a grid; key: whether it is the surface's box, first row, number of rows
    };

    OfBody& stored_case_of(const std::shared_ptr<const CaseBody>& body)
    {
        std::erase_if(bodies_, [](const auto& item) { return item.second.body.expired(); });
        auto& known = bodies_[body.get()];
        const auto vertices = TensorState::of(body->vertices);
        if (known.body.expired() || known.vertices != vertices || has_derivatives(body->vertices))
            known = {body, vertices, center_of_mass(*body), {}};
        return known;
    }

    /// Positions of the cells, and their distances to the body, both cut along X if the points are cut.
    std::pair<at::Tensor, at::Tensor> grid_around(const PointInputs& points, const ModelBox& box, bool is_surface)
    {
        const auto& size = model_->options().grid;
        std::int64_t begin = 0, count = size[0];
        SpecPtr spec;
        if (is_sharded(points.positions)) {
            const auto& cut = spec_of(points.positions);
            // If every pooling halves a rank's number of rows, poolings need no message.
            const std::int64_t multiple = model_->options().geometry.processor_type == "conv" ? 8 : 4;
            std::vector<AxisLayout> axes(cut->axes.begin(), cut->axes.end());
            for (std::size_t axis = 0; axis < axes.size(); ++axis) {
                if (!axes[axis].is_shard()) continue;
                auto extents = even_extents(size[0] / multiple, std::ssize(*axes[axis].extents));
                for (auto& extent : extents) extent *= multiple;
                const auto own = cut->device_mesh->coordinate(static_cast<std::int64_t>(axis));
                begin = std::accumulate(extents.begin(), extents.begin() + own, std::int64_t{0});
                count = extents[own];
                axes[axis] = {Shard(1), std::make_shared<const Extents>(std::move(extents)), 1};
            }
            spec = make_spec(cut->device_mesh, axes);
        }
        const auto device = to_local(points.positions).device();
        const auto grid = grid_rows(size, begin, count).to(points.body->vertices.scalar_type());
        auto& distances = stored_case_of(points.body).distances[{is_surface, begin, count}];
        if (!distances.defined()) {
            distances = signed_distance(normalised(box, points.body->vertices.cpu()), points.body->triangles,
                                        grid.reshape({-1, 3}), {.sign = SurfaceSign::WindingNumber})
                            .distances.view({1, count, size[1], size[2]})
                            .to(device);
        }
        if (!spec) return {grid.to(device), distances};
        return {from_local(grid.to(device), spec), from_local(distances, spec)};
    }

    /// Wraps `local` (n, ...), rows of this rank's points, with the points' layout: (1, N, ...).
    static at::Tensor as_points(const at::Tensor& local, const at::Tensor& positions)
    {
        const auto rows = local.to(to_local(positions).device()).unsqueeze(0);
        return is_sharded(positions) ? from_local(rows, spec_of(positions)) : rows;
    }

    DominoVolume volume_points(const PointInputs& points)
    {
        const torch::NoGradGuard no_grad;
        const auto& body = *points.body;
        const auto centers = normalised(volume_box_, points.positions.detach());
        const auto local = to_local(centers).squeeze(0).cpu();
        const auto found = signed_distance(normalised(volume_box_, body.vertices), body.triangles, local,
                                           {.sign = SurfaceSign::WindingNumber});
        const auto middle = normalised(volume_box_, stored_case_of(points.body).center);
        return {centers, as_points(found.distances.unsqueeze(-1), points.positions),
                as_points(local - found.points, points.positions), as_points(local - middle, points.positions)};
    }

    DominoSurface surface_points(const PointInputs& points)
    {
        if (points.embedding.size(-1) != kSurfaceInputs)
            throw InvalidInput("DoMINO: points of the surface are told {} numbers; expected {}: place, "
                               "normal and area. Set data.inputs=[points, normals, areas].",
                               points.embedding.size(-1), kSurfaceInputs);
        const auto& positions = points.positions;
        DominoSurface surface;
        surface.centers = normalised(surface_box_, positions);
        surface.normals = points.embedding.narrow(-1, 3, 3);
        surface.areas = areas_of(points.embedding);
        surface.from_center = as_points(to_local(surface.centers).squeeze(0).cpu() -
                                            normalised(surface_box_, stored_case_of(points.body).center),
                                        positions);
        const auto count = model_->options().num_neighbors_surface - 1;
        if (count == 0) return surface;
        const auto* all = points.drawn_from.get();
        const auto& all_positions = all ? all->positions : positions;
        if (all_positions.size(1) <= count)
            throw InvalidInput(
                "DoMINO: the surface has {} points, and a stencil takes {}. Lower model.num_neighbors_surface.",
                all_positions.size(1), count + 1);
        std::vector<at::Tensor> others;
        if (all) others = {all_positions};
        const auto neighbors = [&] {
            const torch::NoGradGuard no_grad;  // ids have no derivatives
            return neighbors_.of(positions, others, [&] {
                const auto places = unbind_clouds("DoMINO", "positions", all_positions.detach()).at(0);
                return all ? knn(places, unbind_clouds("DoMINO", "positions", positions.detach()).at(0), count + 1)
                           : knn(places, places, count, {.exclude_self = true});
            });
        }();
        const auto told = unbind_clouds("DoMINO", "embedding", all ? all->embedding : points.embedding).at(0);
        const auto around = all ? around_drawn(told, *neighbors, all->drawn_ids, count)
                                : gather_neighbors(told, *neighbors).view({-1, count, kSurfaceInputs});
        surface.neighbors = normalised(surface_box_, as_points(around.narrow(-1, 0, 3), positions));
        surface.neighbor_normals = as_points(around.narrow(-1, 3, 3), positions);
        surface.neighbor_areas = as_points(areas_of(around), positions);
        return surface;
    }

    ModelBox surface_box_, volume_box_;
    Domino model_;
    std::vector<double> reference_;
    KeptPerCloud<Neighbors> neighbors_;  // on the surface
    KeptPerCloud<DominoVolume> volumes_;
    std::map<const CaseBody*, OfBody> bodies_;
};

MadePartModel make_domino(const Json& arguments)
{
    auto cases = std::make_shared<DominoOfCases>(arguments);
    const auto& options = cases->model()->options();
    const bool has_surface = options.output_features_surf > 0, has_volume = options.output_features_vol > 0;
    return {.module = cases->model().ptr(),
            .forward =
                [cases, has_surface, has_volume](const PointInputs& inputs) {
                    if (has_surface && has_volume)
                        throw InvalidInput(
                            "DoMINO: a model of surface and volume takes the points of one or both by name.");
                    const auto fields = cases->forward(has_surface ? &inputs : nullptr, has_volume ? &inputs : nullptr);
                    return has_surface ? fields.surface : fields.volume;
                },
            .forward_parts = [cases](const PointInputs* surface,
                                     const PointInputs* volume) { return cases->forward(surface, volume); }};
}

}  // namespace

ModelEntry domino_entry()
{
    const auto parameters = default_parameters();
    Json shorts = Json::object();
    std::vector<OptionInfo> infos;
    for (const auto& name : short_names()) {
        shorts[name.info.name] = parameters.at(Json::json_pointer(name.place));
        infos.push_back(name.info);
    }
    auto defaults = to_json(DominoOptions());
    for (const char* of_programs : {kSurfaceBox, kVolumeBox, kReference})
        defaults[of_programs] = extra(Json::object(), of_programs);
    infos.push_back(
        {kSurfaceBox, "box of the surface's grid, lowest x, y, z, then highest, in the coordinates of the points"});
    infos.push_back({kVolumeBox, "the same of the volume's grid; abupt: box of the volume's anchors"});
    infos.push_back({kReference, "what data.constants are divided by; empty: nothing"});
    return {.name = "domino",
            .class_name = "DoMINO",
            .defaults = std::move(defaults),
            .extras = {kSurfaceBox, kVolumeBox, kReference},
            .nullable = {"output_features_vol", "output_features_surf"},
            .options = std::move(infos),
            .short_names = std::move(shorts),
            .check =
                [](const Json& arguments) {
                    const auto options = options_of(arguments);
                    options.validate();
                    ModelBox(extra(arguments, kSurfaceBox), kModel, kSurfaceBox);
                    ModelBox(extra(arguments, kVolumeBox), kModel, kVolumeBox);
                    const auto count = std::ssize(extra(arguments, kReference));
                    if (count > 0 && count != options.global_features)
                        OptionChecks("DoMINO").refuse("{} has {} numbers for {} constants.", kReference, count,
                                                      options.global_features);
                },
            .spelled_out = with_parameters_inside,
            .kind = BodyModel{
                .widths = [](const PointWidths& widths) -> Json {
                    const auto or_none = [](std::int64_t count) { return count > 0 ? Json(count) : Json(); };
                    return {{"output_features_surf", or_none(widths.in_volume ? 0 : widths.out_dim)},
                            {"output_features_vol", or_none(widths.in_volume ? widths.out_dim : widths.volume_out_dim)},
                            {"global_features", std::max<std::int64_t>(1, widths.num_constants)},
                            {kEncodeParameters, widths.num_constants > 0}};
                },
                .make = make_domino,
                .inputs_on_surface = {"points", "normals", "areas"},
                .needs_surface_neighbors = true,
            }};
}

}  // namespace meshard
