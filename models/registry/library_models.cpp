// SPDX-License-Identifier: Apache-2.0
#include "models/registry/library_models.h"

#include "models/diffusion/dit.h"
#include "models/diffusion/edm_preconditioner.h"
#include "models/geotransolver/geotransolver.h"
#include "models/graph/mesh_graph_net.h"
#include "models/grids/figconv_unet.h"
#include "models/grids/fno.h"
#include "models/grids/unet.h"
#include "models/grids/unet_3d.h"
#include "models/grids/vision_transformer.h"
#include "models/layers/option_table.h"
#include "models/registry/abupt_entry.h"
#include "models/registry/domino_entry.h"
#include "models/registry/kept_per_cloud.h"
#include "models/transolver/flare.h"
#include "models/transolver/transolver.h"
#include "ops/neighbors/cloud_interpolation.h"
#include "ops/neighbors/multi_scale_graph.h"
#include "ops/neighbors/point_clouds.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace meshard {
namespace {

using Json = nlohmann::json;

/// Describes a model whose arguments are those of `table`, as `read` reads them.
template <class Options>
ModelEntry entry_of(std::string name, std::string class_name, const OptionTable<Options>& table,
                    Options (*read)(const Json&), std::variant<PointModel, BodyModel, GridModel> kind)
{
    return {.name = std::move(name),
            .class_name = std::move(class_name),
            .defaults = table.defaults(),
            .extras = table.extensions(),
            .options = table.infos(),
            .check = [read](const Json& arguments) { read(arguments).validate(); },
            .kind = std::move(kind)};
}

/// The constants of the case at every point, (B, N, G); without constants ones (B, N, 1), or (B, N, 0) for a model with
/// a functional_dim of 0.
at::Tensor constants_of_points(const PointInputs& inputs, std::int64_t functional_dim)
{
    if (functional_dim == 0) return inputs.positions.narrow(-1, 0, 0);
    const auto ones = torch::ones_like(inputs.positions.narrow(-1, 0, 1));
    return inputs.constants.defined() ? ones * inputs.constants.unsqueeze(1) : ones;
}

template <class ModelHolder>
MadeModel transolver_like(const Json& arguments)
{
    ModelHolder model(transolver_options(arguments));
    return {model.ptr(), [model](const PointInputs& inputs) mutable {
                return model->forward(constants_of_points(inputs, model->options().functional_dim), inputs.embedding,
                                      inputs.time);
            }};
}

Json transolver_widths(const PointWidths& widths)
{
    return {{"functional_dim", std::max<std::int64_t>(1, widths.num_constants)},
            {"embedding_dim", widths.embedding_dim},
            {"out_dim", widths.out_dim},
            {"time_input", widths.has_time}};
}

PointWidths transolver_widths_of(const Json& arguments, std::int64_t /*num_constants*/)
{
    const auto options = transolver_options(arguments);
    return {options.embedding_dim, options.functional_dim <= 1 ? 0 : options.functional_dim, options.out_dim,
            options.time_input};  // a single channel contains ones
}

ModelEntry transolver_entry()
{
    return entry_of("transolver", "Transolver", transolver_option_table(), transolver_options,
                    PointModel{.widths = transolver_widths,
                               .widths_of = transolver_widths_of,
                               .make = transolver_like<Transolver>,
                               .last_layer = [](const Json& arguments) {
                                   return fmt::format("blocks.{}.ln_mlp2.1",
                                                      arguments.at("n_layers").get<std::int64_t>() - 1);
                               }});
}

ModelEntry flare_entry()
{
    auto entry = transolver_entry();
    entry.name = "flare";
    entry.class_name = "FLARE";
    std::get<PointModel>(entry.kind).make = transolver_like<Flare>;
    entry.extras.clear();
    for (const char* of_transolver : {"plus", "authors_constants"}) {
        entry.defaults.erase(of_transolver);
        std::erase_if(entry.options, [&](const auto& option) { return option.name == of_transolver; });
    }
    return entry;
}

MadeModel make_geotransolver(const Json& arguments)
{
    GeoTransolver model(geotransolver_options(arguments));
    return {model.ptr(), [model](const PointInputs& inputs) mutable {
                const auto& options = model->options();
                GeoTransolverInputs all{.local_embedding = {inputs.embedding},
                                        .global_embedding = {},
                                        .geometry = {},
                                        .local_positions = {inputs.positions}};
                if (options.global_dim > 0 && inputs.constants.defined())
                    all.global_embedding = inputs.constants.unsqueeze(1);
                if (options.geometry_dim > 0) all.geometry = inputs.positions;
                return model->forward(all).at(0);
            }};
}

ModelEntry geotransolver_entry()
{
    const auto widths = [](const PointWidths& widths) -> Json {
        return {{"functional_dim", widths.embedding_dim},
                {"out_dim", widths.out_dim},
                {"geometry_dim", 3},
                {"global_dim", widths.num_constants > 0 ? Json(widths.num_constants) : Json()}};
    };
    const auto widths_of = [](const Json& arguments, std::int64_t /*num_constants*/) -> PointWidths {
        const auto options = geotransolver_options(arguments);
        return {options.functional_dim.at(0), options.global_dim, options.out_dim.at(0)};
    };
    return entry_of(
        "geotransolver", "GeoTransolver", geotransolver_option_table(), geotransolver_options,
        PointModel{.widths = widths, .widths_of = widths_of, .make = make_geotransolver, .last_layer = [](const Json&) {
                       return "ln_mlp_out.0.1";
                   }});
}

constexpr const char* kNumNeighbors = "num_neighbors";
constexpr const char* kLevels = "levels";
// Number of nodes from which the fields at a point that is no node are interpolated.
constexpr std::int64_t kReadFrom = 3;
constexpr std::int64_t kEdgeChannels = 4;  // vector from target to source and its length, as in PhysicsNeMo's examples

MeshGraphNetOptions graph_options(Json arguments)
{
    arguments.erase(kNumNeighbors);
    arguments.erase(kLevels);
    return mesh_graph_net_options(arguments);
}

/// An argument that checkpoints lack if it has its default.
Json levels_of(const Json& arguments)
{
    return arguments.value(kLevels, Json::array());
}

/// Wraps rows of this rank as a tensor with the given layout.
at::Tensor with_layout(const at::Tensor& rows, const SpecPtr& layout)
{
    return layout ? from_local(rows, layout) : rows;
}

/// The graph of a case: its nodes are all points, or some of them on several scales.
class GraphOfCase {
public:
    /// Has derivatives by the points, as far as fields are interpolated between them.
    GraphOfCase(const at::Tensor& points, const Json& arguments, const MeshGraphNetOptions& options)
    {
        const auto places = points.detach();
        const auto num_neighbors = arguments.at(kNumNeighbors).get<std::int64_t>();
        const auto levels = levels_of(arguments).get<std::vector<std::int64_t>>();
        if (levels.empty()) {
            graph_.emplace(MessageGraph(knn(places, places, num_neighbors, {.exclude_self = true})), options);
            return;
        }
        auto found = multi_scale_graph(places, levels, num_neighbors);
        rows_ = found.rows;
        layout_ = found.layout;
        graph_.emplace(MessageGraph(std::move(found.neighbors)), options);
        if (levels.back() < points.size(0)) {
            const auto nodes = std::min(levels.back(), kReadFrom);
            to_points_.emplace(of_nodes(points), points, InterpolationOptions{.num_neighbors = nodes});
        }
    }

    const MeshGraph& graph() const { return *graph_; }

    /// (points, ...) to (nodes, ...).
    at::Tensor of_nodes(const at::Tensor& of_points) const
    {
        if (!rows_.defined()) return of_points;
        return with_layout(to_local(of_points).index_select(0, rows_), layout_);
    }

    /// (nodes, ...) to (points, ...). The point of a node gets the node's value.
    at::Tensor of_points(const at::Tensor& of_nodes) const { return to_points_ ? (*to_points_)(of_nodes) : of_nodes; }

private:
    std::optional<MeshGraph> graph_;
    at::Tensor rows_;  // this rank's points that are nodes; undefined if all are, in their order
    SpecPtr layout_;
    std::optional<CloudInterpolation> to_points_;  // set if not all points are nodes
};

/// Converts the features of points to the layout of their positions, from which nodes are chosen on each rank.
at::Tensor laid_as(const at::Tensor& positions, at::Tensor features)
{
    if (!is_sharded(positions)) return is_sharded(features) ? full_tensor(features) : features;
    const auto layout = spec_of(positions);
    if (!is_sharded(features)) features = from_local(features, replicated_spec(layout->device_mesh));
    return *spec_of(features) == *layout ? features : redistribute(features, layout);
}

MadeModel make_mesh_graph_net(const Json& arguments)
{
    MeshGraphNet model(graph_options(arguments));
    return {
        model.ptr(),
        [model, arguments, graphs = std::make_shared<KeptPerCloud<GraphOfCase>>()](const PointInputs& inputs) mutable {
            const auto make = [&] {
                const auto clouds = unbind_clouds("MeshGraphNet", "positions", inputs.positions);
                if (clouds.size() != 1)
                    throw InvalidInput(
                        "MeshGraphNet: a batch of {} cases, but a graph has one. Pass the cases one by one.",
                        clouds.size());
                return GraphOfCase(clouds[0], arguments, model->options());
            };
            const auto kept = [&] {  // weights of interpolation have derivatives by the points, and ids none
                const torch::AutoGradMode records(torch::GradMode::is_enabled() && !levels_of(arguments).empty());
                return graphs->of(inputs.positions, {}, make);
            }();
            const auto& of_case = *kept;
            const auto& graph = of_case.graph();
            const auto embedding = laid_as(inputs.positions, inputs.embedding);
            const auto positions = of_case.of_nodes(unbind_clouds("MeshGraphNet", "positions", inputs.positions).at(0));
            const auto offsets = graph.graph().from_sources(positions) - graph.graph().from_targets(positions);
            const auto edges =
                torch::cat({offsets, torch::linalg_vector_norm(offsets, 2, at::IntArrayRef{-1}, true)}, -1);  // (E, 4)
            auto nodes = of_case.of_nodes(unbind_clouds("MeshGraphNet", "embedding", embedding).at(0));
            if (inputs.constants.defined())
                nodes = torch::cat({nodes, torch::ones_like(nodes.narrow(-1, 0, 1)) * inputs.constants}, -1);
            return of_case.of_points(model->forward(nodes, edges, graph)).unsqueeze(0);
        }};
}

void check_mesh_graph_net(const Json& arguments)
{
    const OptionChecks checks("MeshGraphNet");
    checks.at_least(1, {{kNumNeighbors, arguments.at(kNumNeighbors).get<std::int64_t>()}});
    const auto levels = levels_of(arguments);
    std::int64_t before = 1;
    for (const auto& size : levels) {
        if (!size.is_number_integer() || size.get<std::int64_t>() < before)
            checks.refuse("{} is {}; expected numbers of points, each at least as large as the one before, e.g. "
                          "[1000, 4000, 16000].",
                          kLevels, levels.dump());
        before = size.get<std::int64_t>();
    }
    graph_options(arguments).validate();
}

ModelEntry mesh_graph_net_entry()
{
    auto entry = entry_of(
        "meshgraphnet", "MeshGraphNet", mesh_graph_net_option_table(), mesh_graph_net_options,
        PointModel{.widths = [](const PointWidths& widths) -> Json {
                       return {{"input_dim_nodes", widths.embedding_dim + widths.num_constants},
                               {"input_dim_edges", kEdgeChannels},
                               {"output_dim", widths.out_dim}};
                   },
                   .widths_of = [](const Json& arguments, std::int64_t num_constants) -> PointWidths {
                       const auto options = graph_options(arguments);
                       if (options.input_dim_edges != kEdgeChannels) {
                           OptionChecks("MeshGraphNet")
                               .refuse("its edges carry {} numbers; here an edge carries the vector from its target to "
                                       "its source, and its length (4).",
                                       options.input_dim_edges);
                       }
                       return {options.input_dim_nodes - num_constants, num_constants, options.output_dim};
                   },
                   .make = make_mesh_graph_net,
                   .has_edges = true,
                   .last_layer =
                       [](const Json& arguments) {
                           const auto num_hidden = arguments.at("num_layers_node_decoder").get<std::int64_t>();
                           return fmt::format("node_decoder.model.{}", 2 * num_hidden);
                       }});
    entry.defaults.update({{kNumNeighbors, 6}, {kLevels, Json::array()}});
    entry.extras = {kLevels};
    entry.options.push_back({kNumNeighbors, "nearest points from which each point receives messages", {.least = 1}});
    entry.options.push_back(
        {kLevels,
         "numbers of points of graphs on several scales, ascending (X-MeshGraphNet); none: one graph of all points",
         {.least = 1}});
    entry.check = check_mesh_graph_net;
    return entry;
}

template <class ModelHolder, class Options>
std::function<MadeGridModel(const Json&)> on_grids(Options (*read)(const Json&))
{
    return [read](const Json& arguments) -> MadeGridModel {
        ModelHolder model(read(arguments));
        return {model.ptr(), [model](const at::Tensor& grid) mutable { return model->forward(grid); }};
    };
}

Json channels_of_grids(const GridWidths& widths)
{
    return {{"in_channels", widths.in_channels}, {"out_channels", widths.out_channels}};
}

ModelEntry unet_entry()
{
    auto entry = entry_of(
        "unet", "UNet", unet_3d_option_table(), unet_3d_options,
        GridModel{.widths = channels_of_grids,
                  .make = on_grids<UNet3d>(unet_3d_options),
                  .directions = {3},
                  .rows_together =
                      [](const Json& arguments) {
                          return std::int64_t{1} << std::clamp<std::int64_t>(arguments.at("model_depth"), 1, 16) >> 1;
                      },
                  .reads_neighbors = true});
    entry.defaults["normalization_args"] = nullptr;
    entry.nullable = {"normalization"};
    return entry;
}

ModelEntry unet_2d_entry()
{
    return entry_of("unet2d", "UNet2d", unet_option_table(), unet_options,
                    GridModel{.widths = channels_of_grids,
                              .make = on_grids<UNet>(unet_options),
                              .directions = {2},
                              .rows_together =
                                  [](const Json& arguments) {
                                      return std::int64_t{1} << std::clamp<std::int64_t>(arguments.at("depth"), 0, 16);
                                  },
                              .reads_neighbors = true});
}

ModelEntry vision_transformer_entry()
{
    return entry_of(
        "vit", "VisionTransformer", vision_transformer_option_table(), vision_transformer_options,
        GridModel{.widths = [](const GridWidths& widths) -> Json {
                      auto arguments = channels_of_grids(widths);
                      arguments["height"] = widths.extents.at(0);
                      arguments["width"] = widths.extents.at(1);
                      return arguments;
                  },
                  .make = on_grids<VisionTransformer>(vision_transformer_options),
                  .directions = {2},
                  .rows_together =
                      [](const Json& arguments) { return std::max<std::int64_t>(1, arguments.at("patch_size")); }});
}

ModelEntry fno_entry()
{
    auto entry = entry_of("fno", "FNO", fno_option_table(), fno_options,
                          GridModel{.widths = [](const GridWidths& widths) -> Json {
                                        auto arguments = channels_of_grids(widths);
                                        arguments["dimension"] = widths.extents.size();
                                        return arguments;
                                    },
                                    .make = on_grids<Fno>(fno_options),
                                    .directions = {2, 3},
                                    .per_direction = {"num_fno_modes", "padding"}});
    entry.share_parameters = share_modes;
    entry.spelled_out = with_modes_of_each_direction;
    return entry;
}

constexpr const char* kAttentionWindow = "attn_kernel";  // nested in attn_kwargs

/// Moves the window to the arguments of the attention, and says the rows and the columns of patches where they are
/// given as one number.
Json spelled_out_dit(Json arguments)
{
    if (auto size = arguments.find("patch_size"); size != arguments.end()) {
        if (size->is_number()) *size = Json::array({*size});
        if (size->is_array() && size->size() == 1) size->push_back(size->front());
    }
    if (const auto window = arguments.find(kAttentionWindow); window != arguments.end()) {
        if (auto& nested = arguments["attn_kwargs"]; nested.is_null()) nested = Json::object();
        arguments["attn_kwargs"][kAttentionWindow] = *window;
        arguments.erase(kAttentionWindow);
    }
    return arguments;
}

/// A number of rows, and of columns, that is one of whole patches.
std::int64_t rows_of_patches(const Json& arguments)
{
    const auto patch = dit_options(spelled_out_dit(arguments)).patch();
    return std::max<std::int64_t>(1, std::lcm(patch[0], patch[1]));
}

Json edm_arguments(const Json& of_dit)
{
    const Json dit{{"__name__", "DiT"}, {"__args__", of_dit}};
    return {{"model", {{"__name__", "ConcatConditionWrapper"}, {"__args__", {{"model", dit}}}}}};
}

MadeGridModel make_dit(const Json& arguments)
{
    Dit model(dit_options(arguments));
    return {model.ptr(), [model](const at::Tensor& image) mutable {
                const auto batch = image.size(0), numbers = model->options().condition_dim;
                const auto options = image.options().requires_grad(false);
                return model->forward(image, torch::zeros({batch}, options),
                                      numbers > 0 ? torch::zeros({batch, numbers}, options) : at::Tensor());
            }};
}

ModelEntry dit_entry()
{
    const auto widths = [](const GridWidths& widths) -> Json {
        auto arguments = channels_of_grids(widths);
        arguments["input_size"] = widths.extents;
        return arguments;
    };
    const auto denoiser = [](const Json& arguments) -> std::pair<std::string, Json> {
        auto of_edm = edm_arguments(arguments);
        of_edm["sigma_data"] = 1.0;  // what is learnt is normalised
        return {"EDMPreconditioner", of_edm};
    };
    auto entry = entry_of("dit", "DiT", dit_option_table(), dit_options,
                          GridModel{.widths = widths,
                                    .make = make_dit,
                                    .directions = {2},
                                    .per_direction = {"patch_size"},
                                    .rows_together = rows_of_patches,
                                    .denoiser = denoiser});
    entry.defaults = to_json(DitOptions());
    entry.options.push_back({kAttentionWindow,
                             "rows and columns of a token's window",
                             {.least = 1},
                             "attention_backend=natten2d|natten2d_rope"});
    entry.short_names = {{kAttentionWindow, DitAttentionOptions().attn_kernel}};
    entry.spelled_out = spelled_out_dit;
    return entry;
}

/// The grid's channels are the noisy ones, then those of the condition image; the level of the noise is 1.
ModelEntry edm_entry()
{
    return {.name = "edm",
            .class_name = "EDMPreconditioner",
            .defaults = {{"sigma_data", nullptr}, {"model", Json::object()}},
            .options = {},
            .kind = GridModel{
                .widths = [](const GridWidths& widths) -> Json {
                    auto of_dit = channels_of_grids(widths);
                    of_dit["input_size"] = widths.extents;
                    return edm_arguments(of_dit);
                },
                .make = [](Json arguments) -> MadeGridModel {
                    if (arguments.at("sigma_data").is_null()) arguments.erase("sigma_data");
                    auto model = make_edm_preconditioner(arguments);
                    return {model.ptr(), [model](const at::Tensor& grid) mutable {
                                const auto& options = model->options();
                                const auto num_noisy = options.num_outputs(), batch = grid.size(0);
                                const auto like = torch::TensorOptions(grid.device());
                                DenoiserCondition condition;
                                if (options.in_channels > num_noisy)
                                    condition.image = grid.narrow(1, num_noisy, options.in_channels - num_noisy);
                                if (options.condition_dim > 0)
                                    condition.vector = torch::zeros({batch, options.condition_dim}, like);
                                return model->forward(grid.narrow(1, 0, num_noisy), torch::ones({batch}, like),
                                                      condition);
                            }};
                },
                .directions = {2},
                .rows_together =
                    [](const Json& arguments) {
                        return rows_of_patches(arguments.at("model").at("__args__").at("model").at("__args__"));
                    },
                .is_denoiser = true,
            }};
}

MadeModel make_figconv_unet(const Json& arguments)
{
    FigConvUNet model(figconv_unet_options(arguments));
    return {model.ptr(), [model](const PointInputs& inputs) mutable {
                at::Tensor features;
                if (model->options().has_input_features) {
                    features = inputs.embedding;
                    if (inputs.constants.defined())
                        features = torch::cat(
                            {features, torch::ones_like(features.narrow(-1, 0, 1)) * inputs.constants.unsqueeze(1)},
                            -1);
                }
                return model->forward(inputs.positions, features).points;
            }};
}

ModelEntry figconv_unet_entry()
{
    const auto widths = [](const PointWidths& widths) -> Json {
        return {{"in_channels", widths.embedding_dim + widths.num_constants},
                {"out_channels", widths.out_dim},
                {"has_input_features", true},
                {"use_scalar_output", false}};
    };
    const auto widths_of = [](const Json& arguments, std::int64_t num_constants) -> PointWidths {
        const auto options = figconv_unet_options(arguments);
        if (!options.has_input_features) return {3, 0, options.out_channels};
        return {options.in_channels - num_constants, num_constants, options.out_channels};
    };
    auto entry = entry_of("figconvunet", "FIGConvUNet", figconv_unet_option_table(), figconv_unet_options,
                          PointModel{.widths = widths, .widths_of = widths_of, .make = make_figconv_unet});
    entry.defaults = to_json(FigConvUNetOptions());
    entry.defaults["voxel_size"] = nullptr;
    for (const char* of_all_levels : {"num_down_blocks", "num_up_blocks"})
        entry.defaults[of_all_levels] = Json::array({1});
    entry.options.push_back({"grid_resolution", "vertices of the grids along x, y and z", {.least = 2}});
    entry.options.push_back({"plane_resolution",
                             "vertices along x of the grid that is coarse along x, the same of y and of z",
                             {.least = 1}});
    entry.short_names = {{"grid_resolution", {128, 128, 128}}, {"plane_resolution", {2, 2, 2}}};
    entry.spelled_out = [](Json arguments) {
        return with_planes_of_resolutions(with_blocks_of_each_level(std::move(arguments)));
    };
    return entry;
}

}  // namespace

std::vector<ModelEntry> library_models()
{
    return {transolver_entry(),
            flare_entry(),
            geotransolver_entry(),
            mesh_graph_net_entry(),
            figconv_unet_entry(),
            domino_entry(),
            abupt_entry(),
            unet_entry(),
            unet_2d_entry(),
            vision_transformer_entry(),
            fno_entry(),
            dit_entry(),
            edm_entry()};
}

}  // namespace meshard
