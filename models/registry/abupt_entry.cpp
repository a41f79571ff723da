// SPDX-License-Identifier: Apache-2.0
#include "models/registry/abupt_entry.h"

#include "models/graph/ab_upt.h"
#include "models/layers/option_checks.h"
#include "models/layers/random_draws.h"
#include "models/registry/case_bodies.h"
#include "models/registry/kept_per_cloud.h"
#include "models/registry/model_box.h"
#include "ops/neighbors/point_clouds.h"
#include "ops/neighbors/point_sampling.h"
#include "ops/surface/surface_distance.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

namespace meshard {
namespace {

using Json = nlohmann::json;

constexpr const char* kAbUpt = "AB-UPT";
constexpr const char* kAnchors = "anchors";
constexpr const char* kAmongPoints = "points";
constexpr const char* kAnchorBox = "volume_box";
constexpr const char* kGeometryPoints = "num_geometry_points";
constexpr const char* kSupernodes = "num_supernodes";
constexpr const char* kSurfaceAnchors = "num_surface_anchors";
constexpr const char* kVolumeAnchors = "num_volume_anchors";
// Longest edge of the box in the model's coordinates, for which its wave lengths are chosen.
constexpr double kLongestEdge = 1000;
constexpr double kShapeNetRadius = 9;  // the authors' value for cars in such a box with some thousand anchors

/// Numbers of points of each kind to draw, with the values for checkpoints that lack them.
const Json& numbers_of_points()
{
    static const Json numbers{
        {kGeometryPoints, 8192}, {kSupernodes, 1024}, {kSurfaceAnchors, 1024}, {kVolumeAnchors, 1024}};
    return numbers;
}

AbUptOptions options_without_points(Json arguments)
{
    arguments.erase(kAnchorBox);
    arguments.erase(kAnchors);
    for (const auto& [name, count] : numbers_of_points().items()) arguments.erase(name);
    return ab_upt_options(arguments);
}

void check_arguments(const Json& arguments)
{
    const OptionChecks checks(kAbUpt);
    options_without_points(arguments).validate();
    ModelBox(arguments.at(kAnchorBox), kAbUpt, kAnchorBox);
    if (const auto& where = arguments.at(kAnchors); where != kAmongPoints && where != "body")
        checks.refuse(std::string(kAnchors) + " is " + where.dump() + "; expected points or body.");
    for (const auto& [name, count] : numbers_of_points().items())
        checks.at_least(1, {{name.c_str(), arguments.at(name).get<std::int64_t>()}});
    if (arguments.at(kSupernodes).get<std::int64_t>() > arguments.at(kGeometryPoints).get<std::int64_t>())
        checks.refuse(std::string(kSupernodes) + " is " + arguments.at(kSupernodes).dump() +
                      "; supernodes are some of the geometry's points, of which " + kGeometryPoints + " says " +
                      arguments.at(kGeometryPoints).dump() + ".");
}

/// Points drawn for a body, (1, n, 3) each, in the coordinates of the points; anchors only if they are requested.
struct BodyPoints {
    at::Tensor geometry, supernodes, surface_anchors, volume_anchors;
};

/// Draws points on a body and around it, with the same random numbers in every run. They follow the corners of the
/// body: the triangle of a point, and its place there, stay.
class PointsOfBody {
public:
    PointsOfBody(const CaseBody& body, std::uint64_t seed)
        : body_(body), numbers_(at::make_generator<at::CPUGeneratorImpl>(seed))
    {
        const auto triangles = triangles_of(body);
        corners_ = triangles.corners;
        areas_ = triangles.areas.detach().cumsum(0);
        if (!(areas_.size(0) > 0 && areas_[-1].item<double>() > 0))
            throw InvalidInput("AB-UPT: the body of a case has no triangle with an area.");
        const auto places = corners_.flatten(0, 1);
        diameter_ = (places.amax(0) - places.amin(0)).norm();
    }

    /// (count, 3): evenly distributed by area.
    at::Tensor on_surface(std::int64_t count)
    {
        const auto shares = (torch::arange(count, torch::kDouble) + uniform({count})) / static_cast<double>(count);
        const auto faces = torch::searchsorted(areas_, shares * areas_[-1]).clamp_max(areas_.size(0) - 1);
        const auto of_faces = corners_.index_select(0, faces);
        const auto along = uniform({count, 1}).sqrt(), across = uniform({count, 1});
        return (1 - along) * of_faces.select(1, 0) + along * (1 - across) * of_faces.select(1, 1) +
               along * across * of_faces.select(1, 2);
    }

    /// (count, 3): outside the body and inside the box. Half of the candidates are anywhere in the box, half near the
    /// body with logarithmically distributed distances, from a thousandth of the body's diameter to all of it.
    at::Tensor in_volume(std::int64_t count, const ModelBox& box)
    {
        constexpr int kMostTries = 20;
        constexpr double kNearest = 1e-3;
        const auto low = box.least(at::kCPU).to(at::kDouble), high = box.most(at::kCPU).to(at::kDouble);
        const auto vertices = body_.vertices.detach().to(at::kCPU, at::kDouble);
        std::vector<at::Tensor> kept;
        std::int64_t num_kept = 0;
        for (int i = 0; i < kMostTries && num_kept < count; ++i) {
            const auto away = at::randn({count, 3}, numbers_, at::kDouble);
            const auto distances = diameter_ * torch::pow(kNearest, uniform({count, 1}));
            const auto near = on_surface(count) + away / away.norm(2, -1, true) * distances;
            const auto anywhere = low + (high - low) * uniform({count, 3});
            const auto tries = torch::stack({near, anywhere}, 1).flatten(0, 1);
            const auto distance =
                signed_distance(vertices, body_.triangles, tries.detach(), {.sign = SurfaceSign::WindingNumber})
                    .distances;
            const auto is_good = ((tries >= low) & (tries <= high)).all(-1) & (distance > 0);
            kept.push_back(tries.index({is_good}));
            num_kept += kept.back().size(0);
        }
        if (num_kept < count)
            throw InvalidInput(
                "AB-UPT: of {} places in and around volume_box only {} are in it and outside of the body. "
                "Set model.volume_box, in the coordinates of the points, around the body and the volume.",
                2 * kMostTries * count, num_kept);
        return torch::cat(kept).narrow(0, 0, count);
    }

private:
    at::Tensor uniform(at::IntArrayRef shape) { return at::rand(shape, numbers_, at::kDouble); }

    const CaseBody& body_;
    at::Generator numbers_;
    at::Tensor corners_, areas_;  // (F, 3, 3), and cumulative areas of the triangles
    at::Tensor diameter_;         // a number
};

/// The points of a part, divided into anchors and queries.
class SplitPoints {
public:
    /// @param positions    (1, N, 3)
    /// @param num_anchors  number of anchors; all points are anchors if there are no more
    SplitPoints(const at::Tensor& positions, std::int64_t num_anchors, std::uint64_t seed)
        : positions_(positions), anchors_(positions)
    {
        if (num_anchors >= positions.size(1)) return;
        const auto options = to_local(positions).options().dtype(at::kLong);
        const auto chosen =
            random_sample(unbind_clouds(kAbUpt, "positions", positions.detach()).at(0), num_anchors, seed)
                .rows.to(options.device());
        const auto others =
            torch::ones({to_local(positions).size(1)}, options).index_fill(0, chosen, 0).nonzero().squeeze(1);
        places_ = std::get<1>(torch::cat({chosen, others}).sort());
        anchors_ = own_rows(chosen);
        queries_ = own_rows(others);
    }

    const at::Tensor& anchors() const { return anchors_; }
    const at::Tensor& queries() const { return queries_; }  // undefined if all points are anchors

    /// Combines results at anchors and queries, (1, n, channels) each, in the order of the points.
    at::Tensor in_order(const at::Tensor& of_anchors, const at::Tensor& of_queries) const
    {
        if (!queries_.defined()) return of_anchors;
        const auto own = torch::cat({to_local(of_anchors), to_local(of_queries)}, 1).index_select(1, places_);
        return is_sharded(positions_) ? from_local(own, spec_of(positions_)) : own;
    }

private:
    at::Tensor own_rows(const at::Tensor& rows) const
    {
        const auto own = to_local(positions_).index_select(1, rows);
        if (!is_sharded(positions_)) return own;
        std::vector<Placement> placements;
        for (const auto& axis : spec_of(positions_)->axes) placements.push_back(axis.placement);
        return from_local(own, spec_of(positions_)->device_mesh, placements);
    }

    at::Tensor positions_, anchors_, queries_;
    at::Tensor places_;  // for each point of this rank its index among its anchors, followed by its queries
};

/// Random numbers that choose the anchors: in training different ones each time, set by `seed_draws`; otherwise always
/// the same.
class AnchorDrawsImpl : public torch::nn::Module, public DrawsNoise {
public:
    AnchorDrawsImpl() : seed_(at::globalContext().defaultGenerator(at::kCPU).current_seed()) {}

    void seed_noise(std::uint64_t seed) override
    {
        seed_ = seed;
        num_draws_ = 0;
    }

    std::uint64_t next()
    {
        constexpr std::uint64_t kStride = 0x9E3779B97F4A7C15;
        return is_training() ? seed_ + kStride * ++num_draws_ : 0;
    }

private:
    std::uint64_t seed_, num_draws_ = 0;
};
TORCH_MODULE(AnchorDraws);

/// AB-UPT with the inputs that are derived from each body.
class AbUptOfCases {
public:
    explicit AbUptOfCases(const Json& arguments)
        : arguments_(arguments), box_(arguments.at(kAnchorBox), kAbUpt, kAnchorBox),
          model_(options_without_points(arguments))
    {
        model_->register_module("anchor_draws", draws_);
    }

    AbUpt& model() { return model_; }

    PartFields forward(const PointInputs* surface, const PointInputs* volume)
    {
        const auto& any = surface ? *surface : *volume;
        require_one_body(kAbUpt, any);
        auto& drawn = points_of(any.body);
        AbUptInputs inputs;
        inputs.geometry = seen(cut_as(drawn.geometry, any.positions));
        inputs.supernodes = seen(cut_as(drawn.supernodes, any.positions));
        const auto of_surface = split(surface ? surface : volume->other_part.get(), kSurfaceAnchors);
        const auto of_volume = split(volume ? volume : surface->other_part.get(), kVolumeAnchors);
        inputs.surface_anchors =
            seen(of_surface ? of_surface->anchors() : cut_as(surface_anchors_of(drawn, *any.body), any.positions));
        inputs.volume_anchors =
            seen(of_volume ? of_volume->anchors() : cut_as(volume_anchors_of(drawn, *any.body), any.positions));
        if (surface) inputs.surface_queries = queries_of(*surface, of_surface);
        if (volume) inputs.volume_queries = queries_of(*volume, of_volume);
        if (model_->options().condition_dim > 0) inputs.condition = any.constants;
        const auto outputs = model_->forward(inputs);
        const auto fields = [](const std::optional<SplitPoints>& points, const at::Tensor& of_anchors,
                               const at::Tensor& of_queries) {
            return points ? points->in_order(of_anchors, of_queries) : of_queries;
        };
        PartFields found;
        if (surface) found.surface = fields(of_surface, outputs.surface_anchors, outputs.surface_queries);
        if (volume) found.volume = fields(of_volume, outputs.volume_anchors, outputs.volume_queries);
        return found;
    }

private:
    std::int64_t count(const char* name) const { return arguments_.at(name).get<std::int64_t>(); }

    /// Returns nothing if anchors are not chosen among a part's points.
    std::optional<SplitPoints> split(const PointInputs* points, const char* num_anchors)
    {
        if (!points || arguments_.at(kAnchors) != kAmongPoints) return std::nullopt;
        return SplitPoints(points->positions, count(num_anchors), draws_->next());
    }

    at::Tensor queries_of(const PointInputs& points, const std::optional<SplitPoints>& of_part) const
    {
        if (!of_part) return seen(points.positions);
        return of_part->queries().defined() ? seen(of_part->queries()) : at::Tensor();
    }

    BodyPoints& points_of(const std::shared_ptr<const CaseBody>& body)
    {
        std::erase_if(bodies_, [](const auto& item) { return std::get<0>(item.second).expired(); });
        auto& [owner, drawn_from, points] = bodies_[body.get()];
        if (owner.expired() || drawn_from != TensorState::of(body->vertices) || has_derivatives(body->vertices)) {
            const auto low = box_.least(at::kCPU).to(at::kFloat), high = box_.most(at::kCPU).to(at::kFloat);
            const auto vertices = body->vertices.detach().cpu();
            if (!((vertices >= low) & (vertices <= high)).all(-1).any().item<bool>())
                throw InvalidInput("AB-UPT: no corner of the body lies in volume_box. Set model.volume_box, in the "
                                   "coordinates of the points, around the body.");
            const auto geometry = as_cloud(PointsOfBody(*body, 0).on_surface(count(kGeometryPoints)), *body);
            const auto every =
                torch::arange(count(kSupernodes), torch::kLong) * count(kGeometryPoints) / count(kSupernodes);
            points = {geometry, geometry.index_select(1, every.to(torch::kLong)), {}, {}};
            owner = body;
            drawn_from = TensorState::of(body->vertices);
        }
        return points;
    }

    const at::Tensor& surface_anchors_of(BodyPoints& drawn, const CaseBody& body) const
    {
        if (!drawn.surface_anchors.defined())
            drawn.surface_anchors = as_cloud(PointsOfBody(body, 1).on_surface(count(kSurfaceAnchors)), body);
        return drawn.surface_anchors;
    }

    const at::Tensor& volume_anchors_of(BodyPoints& drawn, const CaseBody& body) const
    {
        if (!drawn.volume_anchors.defined())
            drawn.volume_anchors = as_cloud(PointsOfBody(body, 2).in_volume(count(kVolumeAnchors), box_), body);
        return drawn.volume_anchors;
    }

    static at::Tensor as_cloud(const at::Tensor& places, const CaseBody& body)
    {
        return places.to(body.vertices.scalar_type()).unsqueeze(0);
    }

    /// Converts rows (1, n, 3) that every rank has to the type of `points`, and cuts them into equal parts if `points`
    /// are cut.
    static at::Tensor cut_as(const at::Tensor& of_all, const at::Tensor& points)
    {
        const auto whole = of_all.to(to_local(points).options());
        if (!is_sharded(points)) return whole;
        const auto& cut = spec_of(points);
        auto own = whole;
        std::vector<AxisLayout> axes(cut->axes.begin(), cut->axes.end());
        for (std::size_t axis = 0; axis < axes.size(); ++axis) {
            if (!axes[axis].is_shard()) continue;
            const auto extents = even_extents(whole.size(1), std::ssize(*axes[axis].extents));
            const auto rank = cut->device_mesh->coordinate(static_cast<std::int64_t>(axis));
            own = whole.narrow(1, std::accumulate(extents.begin(), extents.begin() + rank, std::int64_t{0}),
                               extents[rank]);
            axes[axis] = {Shard(1), std::make_shared<const Extents>(extents), 1};
        }
        return from_local(own.clone(), make_spec(cut->device_mesh, axes));
    }

    /// Converts positions to the model's coordinates.
    at::Tensor seen(const at::Tensor& places) const
    {
        const auto low = box_.least(to_local(places).options()), edges = box_.most(to_local(places).options()) - low;
        return (places - low) * (kLongestEdge / edges.max());
    }

    Json arguments_;
    ModelBox box_;
    AbUpt model_;
    AnchorDraws draws_;
    std::map<const CaseBody*, std::tuple<std::weak_ptr<const CaseBody>, TensorState, BodyPoints>> bodies_;
};

MadePartModel make_abupt(const Json& arguments)
{
    auto cases = std::make_shared<AbUptOfCases>(arguments);
    return {.module = cases->model().ptr(),
            .forward = [](const PointInputs& /*inputs*/) -> at::Tensor {
                throw InvalidInput("AB-UPT: a model of surface and volume takes the points of one or both by name.");
            },
            .forward_parts = [cases](const PointInputs* surface,
                                     const PointInputs* volume) { return cases->forward(surface, volume); }};
}

}  // namespace

ModelEntry abupt_entry()
{
    auto defaults = to_json(AbUptOptions());
    defaults["radius"] = kShapeNetRadius;
    defaults[kAnchors] = kAmongPoints;
    defaults[kAnchorBox] = {-1.0, -1.0, -1.0, 1.0, 1.0, 1.0};
    defaults.update(numbers_of_points());
    auto infos = ab_upt_option_infos();
    const OptionBounds positive{.least = 1};
    infos.push_back({kAnchors,
                     "where anchors lie: some of the case's points, others in each step, or places on the body and "
                     "around it, always the same",
                     {.words = {kAmongPoints, "body"}}});
    infos.push_back(
        {kAnchorBox, "box of the volume's anchors, lowest x, y, z, then highest, in the coordinates of the points"});
    infos.push_back({kGeometryPoints, "points drawn on the body, of which supernodes are told", positive});
    infos.push_back({kSupernodes, "of these points, those to which anchors and points listen", positive});
    infos.push_back({kSurfaceAnchors, "points of the surface to which all others listen", positive});
    infos.push_back({kVolumeAnchors, "the same of the volume", positive});
    return {.name = "abupt",
            .class_name = "AbUpt",
            .defaults = std::move(defaults),
            .options = std::move(infos),
            .check = check_arguments,
            .kind = BodyModel{
                .widths = [](const PointWidths& widths) -> Json {
                    return {{"surface_dim", widths.in_volume ? 0 : widths.out_dim},
                            {"volume_dim", widths.in_volume ? widths.out_dim : widths.volume_out_dim},
                            {"condition_dim", widths.num_constants}};
                },
                .make = make_abupt,
                .inputs_on_surface = {"points"},
                .needs_both_parts = true,
            }};
}

}  // namespace meshard
