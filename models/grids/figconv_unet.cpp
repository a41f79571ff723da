// SPDX-License-Identifier: Apache-2.0
#include "models/grids/figconv_unet.h"

#include "models/grids/edge_reductions.h"
#include "models/grids/figconv_layers.h"
#include "models/layers/option_checks.h"
#include "ops/neighbors/point_clouds.h"
#include "sharding/memory/recompute.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"
#include "sharding/tensor/with_backward.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>

namespace meshard {
namespace {

using torch::Tensor;

constexpr int kLinear = 0, kZerosOutside = 0;  // arguments of grid_sampler_3d

/// (B, D C, the other two axes in order) to (B, C, X, Y, Z), where D is the extent of the flat axis; and the inverse.
Tensor unpacked(const Tensor& packed, const GridPlane& plane)
{
    return packed.unflatten(1, {plane.resolution[plane.flat_axis], -1}).movedim(1, plane.flat_axis + 2);
}

Tensor packed(const Tensor& grid, const GridPlane& plane)
{
    return grid.movedim(plane.flat_axis + 2, 1).flatten(1, 2);
}

/// The positions at which a plane of these sizes reads the other ones: (B, sizes, 3), between -1 and 1, the last number
/// along X.
///
/// The reference samples with the coordinates of its vertices in the order x, y, z although the sampling expects z
/// first: x and z are exchanged. If all sizes divide the plane's resolution, its vertices are every second, fourth, ...
/// of the original ones; otherwise they are interpolated by the same sampling, which exchanges x and z once more.
/// Published weights have been trained with this.
Tensor reading_places(const GridPlane& plane, at::IntArrayRef sizes, const Tensor& like)
{
    auto vertices = plane.vertices(like.device())
                        .to(like.scalar_type())
                        .view({plane.resolution[0], plane.resolution[1], plane.resolution[2], 3});
    bool divides = true;
    for (std::size_t a = 0; a < 3; ++a) divides = divides && plane.resolution[a] % sizes[a] == 0;
    if (divides) {
        for (std::size_t a = 0; a < 3; ++a)
            vertices = vertices.slice(static_cast<std::int64_t>(a), 0, std::nullopt, plane.resolution[a] / sizes[a]);
    } else {
        std::vector<Tensor> lines;
        for (const auto size : sizes)
            lines.push_back(
                torch::linspace(-1, 1, size, vertices.options().dtype(torch::kFloat)).to(like.scalar_type()));
        const auto places = torch::stack(torch::meshgrid(lines, "ij"), -1).unsqueeze(0);
        vertices = torch::grid_sampler_3d(vertices.permute({3, 0, 1, 2}).unsqueeze(0), places, kLinear, kZerosOutside,
                                          /*align_corners=*/true)[0]
                       .permute({1, 2, 3, 0});
    }
    const auto least = vertices.amin({0, 1, 2}), most = vertices.amax({0, 1, 2});
    const auto places = (vertices - least) / (most - least) * 2 - 1;
    return places.expand({like.size(0), sizes[0], sizes[1], sizes[2], 3});
}

// --- communication: the points of a rank are plain rows, the planes' features are equal on all ranks -----------------

/// The layout in which points are used: sharded along samples or points only. Null for plain ones.
SpecPtr rows_spec(const Tensor& points)
{
    if (!is_sharded(points)) return nullptr;
    auto axes = spec_of(points)->axes;
    for (auto& axis : axes) {
        if (axis.is_partial() || (axis.is_shard() && axis.placement.dim > 1)) axis = {};
    }
    return make_spec(spec_of(points)->device_mesh, axes, spec_of(points)->index_map);
}

/// `rows` with `other` instead of the Shard of points.
SpecPtr with_points_as(const SpecPtr& rows, const AxisLayout& other)
{
    auto axes = rows->axes;
    for (auto& axis : axes) {
        if (axis.is_shard() && axis.placement.dim == 1) axis = other;
    }
    return make_spec(rows->device_mesh, axes);
}

/// This rank's rows, as a plain tensor.
Tensor own_rows(const Tensor& points, const SpecPtr& rows)
{
    return rows ? to_local(redistribute(points, rows)) : points;
}

/// Adds the tensors of all ranks, (B, ...), on all of them. One all-reduce in forward, none in backward.
Tensor sum_of_ranks(const Tensor& own, const SpecPtr& rows)
{
    if (!rows) return own;
    return redistribute(from_local(own, with_points_as(rows, {Partial(), nullptr, 1})), with_points_as(rows, {}));
}

/// Marks a tensor (B, ...) that is equal on all ranks and that each reads for its own rows: one all-reduce adds the
/// ranks' gradients.
Tensor for_own_rows(const Tensor& shared, const SpecPtr& rows)
{
    if (!rows) return shared;
    const auto whole = redistribute(shared, with_points_as(rows, {}));
    return with_backward(local_of(whole).detach(), whole, "for_own_rows",
                         [pending = with_points_as(rows, {Partial(), nullptr, 1})](const Tensor& gradient) {
                             auto sum = wrap(gradient.clone(torch::MemoryFormat::Contiguous), pending);
                             reduce_partials({sum});
                             return sum;
                         });
}

/// The element-wise maximum over all ranks, without gradients.
void largest_of_ranks(Tensor& own, const SpecPtr& rows)
{
    for (std::size_t a = 0; rows && a < rows->axes.size(); ++a) {
        if (rows->axes[a].is_shard() && rows->axes[a].placement.dim == 1)
            rows->device_mesh->group(static_cast<std::int64_t>(a)).all_reduce(own, Reduction::Max);
    }
}

}  // namespace

/// The points of this rank.
struct FigConvUNetImpl::Cloud {
    SpecPtr rows;  ///< null for plain points
    std::int64_t batch = 0, count = 0;
    Tensor places;    ///< (B N, 3)
    Tensor features;  ///< (B N, C)
    /// For each plane the pairs for messages from vertices to points; rows b N + i and b M + v.
    std::vector<PlanePairs> hears;
    std::vector<PlanePairs> speaks;  ///< for each plane the pairs for messages from points to vertices
};

FigConvUNetImpl::FigConvUNetImpl(FigConvUNetOptions options) : options_(std::move(options))
{
    options_.validate();
    planes_ = options_.planes();
    const auto& o = options_;
    const auto num_planes = planes_.size();
    const auto of_place = 3 * o.pos_encode_dim;

    torch::nn::ModuleList to_vertices;
    for (std::size_t i = 0; i < num_planes; ++i) {
        to_vertices_.push_back(std::make_shared<FigConvMessages>(o.in_channels, of_place, o.hidden_channels[0], o));
        to_vertices->push_back(torch::nn::ModuleList(holder("conv", to_vertices_.back())).ptr());
    }
    register_module("point_feature_to_grids", to_vertices);

    const auto level_of_blocks = [&](std::int64_t in, std::int64_t out, std::int64_t count, bool up, auto& blocks) {
        torch::nn::ModuleList level;
        blocks.emplace_back();
        for (std::int64_t k = 0; k < count; ++k) {
            torch::nn::ModuleList planes;
            blocks.back().emplace_back();
            for (const auto& plane : planes_) {
                using Step = FigConvPlaneBlock::Step;
                const auto flat = plane.resolution[plane.flat_axis];
                const auto step =
                    up ? (k == 0 ? Step::Doubles : Step::KeepsTransposed) : (k == 0 ? Step::Halves : Step::Keeps);
                blocks.back().back().push_back(
                    std::make_shared<FigConvPlaneBlock>(flat * (k == 0 ? in : out), flat * out, o.kernel_size, step));
                planes->push_back(blocks.back().back().back());
            }
            level->push_back(holder("convs", planes.ptr()));
        }
        return level;
    };
    torch::nn::ModuleList down, up;
    for (std::int64_t l = 0; l < o.num_levels; ++l) {
        down->push_back(
            level_of_blocks(o.hidden_channels[l], o.hidden_channels[l + 1], o.num_down_blocks[l], false, down_));
        up->push_back(level_of_blocks(o.hidden_channels[l + 1], o.hidden_channels[l], o.num_up_blocks[l], true, up_));
    }
    register_module("down_blocks", down);
    register_module("up_blocks", up);

    if (o.use_scalar_output) {
        if (options_.pooling_layers.empty()) options_.pooling_layers = {o.num_levels};
        torch::nn::ModuleList pools, scalar_layers;
        for (const auto layer : o.pooling_layers) {
            torch::nn::ModuleList planes;
            pools_.emplace_back();
            for (const auto& plane : planes_) {
                pools_.back().push_back(std::make_shared<FigConvPlanePool>(
                    plane.resolution[plane.flat_axis] * o.hidden_channels[layer], o.mlp_channels[0], o.pooling_type));
                planes->push_back(pools_.back().back());
            }
            pools->push_back(holder("pools", planes.ptr()));
        }
        register_module("grid_pools", pools);
        auto in = o.mlp_channels[0] * static_cast<std::int64_t>(num_planes * o.pooling_layers.size());
        for (const auto out : o.mlp_channels) {
            scalar_blocks_.push_back(std::make_shared<FigConvResidualBlock>(in, out));
            scalar_layers->push_back(scalar_blocks_.back());
            in = out;
        }
        scalar_last_ = std::make_shared<FigConvLinearBlock>(in, in);
        scalar_layers->push_back(scalar_last_);
        register_module("mlp", holder("layers", scalar_layers.ptr()));
        scalar_projection_ = register_module("mlp_projection", torch::nn::Linear(in, 1));
    }

    const auto channels = o.hidden_channels[0];
    torch::nn::ModuleList to_points;
    for (std::size_t i = 0; i < num_planes; ++i) {
        to_points_.push_back(std::make_shared<FigConvMessages>(channels, o.in_channels, channels, o));
        to_points->push_back(holder("conv", holder("conv", to_points_.back())));
    }
    register_module("to_point", holder("conv_list", to_points.ptr()));

    torch::nn::ModuleList projection;
    projection->push_back(projection_first_ = torch::nn::Linear(2 * channels, 2 * channels));
    projection->push_back(projection_norm_ = torch::nn::LayerNorm(torch::nn::LayerNormOptions({2 * channels})));
    projection->push_back(torch::nn::GELU());
    projection->push_back(projection_last_ = torch::nn::Linear(2 * channels, o.out_channels));
    register_module("projection", holder("feature_transform", projection.ptr()));
    if (!o.has_input_features) {
        point_lift_ = std::make_shared<FigConvLinearBlock>(of_place, channels);
        register_module("vertex_to_point_features",
                        holder("mlp", holder("layers", torch::nn::ModuleList(point_lift_).ptr())));
    }
}

void FigConvUNetImpl::set_memory(MemoryMode mode)
{
    memory_ = unless_streamed("FIGConvUNet", mode);
}

std::vector<Tensor>
FigConvUNetImpl::run_with_memory_mode(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& step,
                                      const std::vector<Tensor>& inputs) const
{
    return memory_ == MemoryMode::Recomputed ? checkpoint(step, inputs) : step(inputs);
}

void FigConvUNetImpl::require_shapes(const Tensor& vertices, const Tensor& features) const
{
    const OptionChecks checks("FIGConvUNet");
    if (vertices.dim() != 3 || vertices.size(2) != 3)
        checks.refuse("the vertices must be (batch, points, 3), and have the shape {}.", c10::str(vertices.sizes()));
    if (features.defined() != options_.has_input_features)
        checks.refuse(features.defined() ? "features were given, and the model has no has_input_features."
                                         : "the model has has_input_features, and no features were given.");
    if (features.defined() && (features.dim() != 3 || features.size(0) != vertices.size(0) ||
                               features.size(1) != vertices.size(1) || features.size(2) != options_.in_channels))
        checks.refuse("the features must be ({}, {}, {}), and have the shape {}.", vertices.size(0), vertices.size(1),
                      options_.in_channels, c10::str(features.sizes()));
}

FigConvUNetImpl::Planes FigConvUNetImpl::features_of_vertices(const Cloud& cloud)
{
    const auto& o = options_;
    const auto channels = o.hidden_channels[0], width = width_of_edge_sums(o.reductions, channels);
    const auto range = o.aabb_max[0] - o.aabb_min[0];
    Planes edges(planes_.size());
    std::vector<Tensor> largest;
    for (std::size_t i = 0; i < planes_.size(); ++i) {
        const auto& pairs = cloud.speaks[i];
        const auto m = planes_[i].num_vertices();
        const auto places = planes_[i].vertices(cloud.places.device());
        const auto vertex_of_edge = pairs.vertices.remainder(m);
        // In single precision for points of any type, as in the reference.
        const auto encodings = wave_encoding(places, o.pos_encode_dim, range).to(cloud.places.scalar_type());
        const auto vertex_places = places.to(cloud.places.scalar_type());
        edges[i] = run_with_memory_mode(
            [&layer = *to_vertices_[i], pairs, vertex_of_edge, encodings,
             vertex_places](const std::vector<Tensor>& given) -> std::vector<Tensor> {
                const auto offsets =
                    given[1].index_select(0, pairs.points) - vertex_places.index_select(0, vertex_of_edge);
                return {layer.messages(given[0], pairs.points, encodings, vertex_of_edge, offsets)};
            },
            {cloud.features, cloud.places})[0];
        if (has_extremes(o.reductions))
            largest.push_back(edge_extremes(edges[i], pairs.vertices, cloud.batch * m).flatten());
    }
    Tensor all_largest;
    if (!largest.empty()) {
        all_largest = torch::cat(largest);
        largest_of_ranks(all_largest, cloud.rows);
    }
    std::vector<Tensor> sums;
    std::int64_t next = 0;
    for (std::size_t i = 0; i < planes_.size(); ++i) {
        const auto num_rows = cloud.batch * planes_[i].num_vertices();
        Tensor ends;
        if (all_largest.defined()) {
            ends = all_largest.narrow(0, next, num_rows * 2 * channels).view({num_rows, 2 * channels});
            next += ends.numel();
        }
        sums.push_back(edge_sums(o.reductions, edges[i], cloud.speaks[i].vertices, num_rows, ends)
                           .view({cloud.batch, planes_[i].num_vertices() * width}));
    }
    const auto total = sum_of_ranks(torch::cat(sums, 1), cloud.rows);
    Planes planes;
    next = 0;
    for (std::size_t i = 0; i < planes_.size(); ++i) {
        const auto size = planes_[i].num_vertices() * width;
        const auto rows = to_vertices_[i]->finished(
            total.narrow(1, next, size).unflatten(1, {planes_[i].num_vertices(), width}));  // (B, M, C)
        next += size;
        planes.push_back(packed(rows.transpose(1, 2).unflatten(2, planes_[i].resolution), planes_[i]));
    }
    return planes;
}

FigConvUNetImpl::Planes FigConvUNetImpl::communicated(const Planes& images) const
{
    Planes grids;
    for (std::size_t i = 0; i < images.size(); ++i) grids.push_back(unpacked(images[i], planes_[i]));
    Planes results;
    for (std::size_t i = 0; i < grids.size(); ++i) {
        const auto sizes = grids[i].sizes().slice(2);
        // The reference divides 0 by 0.
        const bool is_degenerate = std::ranges::any_of(sizes, [](auto size) { return size == 1; });
        const auto places = is_degenerate ? Tensor() : reading_places(planes_[i], sizes, grids[i]);
        auto result = grids[i];
        for (std::size_t j = 0; j < grids.size(); ++j) {
            if (j == i) continue;
            const auto read = is_degenerate ? torch::zeros_like(grids[i])
                                            : torch::grid_sampler_3d(grids[j], places, kLinear, kZerosOutside,
                                                                     /*align_corners=*/true);
            result = options_.communication_types[0] == "sum" ? result + read : result * read;
        }
        results.push_back(torch::gelu(packed(result, planes_[i])));
    }
    return results;
}

FigConvUNetImpl::Planes FigConvUNetImpl::run_block(std::size_t level, bool up, std::size_t block,
                                                   const Planes& images) const
{
    const auto& planes = (up ? up_ : down_)[level][block];
    return run_with_memory_mode(
        [this, &planes](const Planes& given) {
            Planes results;
            for (std::size_t i = 0; i < given.size(); ++i) results.push_back(planes[i]->forward(given[i]));
            return communicated(results);
        },
        images);
}

Tensor FigConvUNetImpl::scalar_of(const std::vector<Planes>& levels)
{
    std::vector<Tensor> rows;
    for (std::size_t p = 0; p < pools_.size(); ++p) {
        const auto& planes = levels[options_.pooling_layers[p]];
        for (std::size_t i = 0; i < planes.size(); ++i) rows.push_back(pools_[p][i]->forward(planes[i]));
    }
    auto x = torch::cat(rows, 1);
    for (const auto& block : scalar_blocks_) x = block->forward(x);
    return scalar_projection_(scalar_last_->forward(x));
}

Tensor FigConvUNetImpl::features_of_points(const Cloud& cloud, const Planes& images)
{
    const auto& o = options_;
    const auto channels = o.hidden_channels[0];
    std::vector<Tensor> rows;
    for (std::size_t i = 0; i < images.size(); ++i) {
        auto grid = unpacked(images[i], planes_[i]);
        for (std::size_t a = 0; a < 3; ++a)
            grid = grid.narrow(static_cast<std::int64_t>(a) + 2, 0, planes_[i].resolution[a]);
        rows.push_back(grid.flatten(2).transpose(1, 2).flatten(1));  // (B, M C)
    }
    const auto all = for_own_rows(torch::cat(rows, 1), cloud.rows);
    Tensor sum, product;
    std::int64_t next = 0;
    for (std::size_t i = 0; i < images.size(); ++i) {
        const auto m = planes_[i].num_vertices();
        const auto& pairs = cloud.hears[i];
        const auto features = all.narrow(1, next, m * channels).reshape({cloud.batch * m, channels});
        next += m * channels;
        const auto places = planes_[i].vertices(cloud.places.device()).to(cloud.places.scalar_type());
        const auto heard = run_with_memory_mode(
            [&layer = *to_points_[i], &reductions = o.reductions, pairs, places, m,
             num_points = cloud.batch * cloud.count](const std::vector<Tensor>& given) -> std::vector<Tensor> {
                const auto offsets =
                    places.index_select(0, pairs.vertices.remainder(m)) - given[2].index_select(0, pairs.points);
                const auto edges = layer.messages(given[0], pairs.vertices, given[1], pairs.points, offsets);
                const auto ends = has_extremes(reductions) ? edge_extremes(edges, pairs.points, num_points) : Tensor();
                return {layer.finished(edge_sums(reductions, edges, pairs.points, num_points, ends))};
            },
            {features, cloud.features, cloud.places})[0];
        sum = sum.defined() ? sum + heard : heard;
        product = product.defined() ? product * heard : heard;
    }
    const auto x = torch::gelu(projection_norm_(projection_first_(torch::cat({sum, product}, 1))));
    return projection_last_(x).view({cloud.batch, cloud.count, o.out_channels});
}

FigConvUNetResult FigConvUNetImpl::forward(const Tensor& vertices, const Tensor& features)
{
    require_shapes(vertices, features);
    const auto& o = options_;
    Cloud cloud;
    cloud.rows = rows_spec(vertices);
    const auto own = own_rows(vertices, cloud.rows);
    cloud.batch = own.size(0);
    cloud.count = own.size(1);
    cloud.places = own.reshape({-1, 3});
    const auto clouds =
        o.neighbor_search_type == "knn"
            ? unbind_clouds("FIGConvUNet", "vertices",
                            cloud.rows ? redistribute(vertices.detach(), cloud.rows) : vertices.detach())
            : std::vector<Tensor>();
    for (const auto& plane : planes_) {
        std::vector<Tensor> hearing[2], speaking[2];
        for (std::int64_t b = 0; b < cloud.batch; ++b) {
            const auto add = [&](std::vector<Tensor>(&lists)[2], const PlanePairs& pairs) {
                lists[0].push_back(pairs.points + b * cloud.count);
                lists[1].push_back(pairs.vertices + b * plane.num_vertices());
            };
            if (o.neighbor_search_type == "radius") {
                const auto pairs = pairs_in_reach(own[b], plane);
                add(hearing, pairs);
                add(speaking, pairs);
            } else {
                if (plane.num_vertices() <= o.knn_k)
                    OptionChecks("FIGConvUNet").refuse("knn_k must be below the number of vertices of each plane.");
                add(hearing, nearest_vertices(own[b], plane, o.knn_k));
                add(speaking, nearest_points(clouds.at(b), plane, o.knn_k));
            }
        }
        if (cloud.batch == 0) {  // this rank has no cloud
            const auto none = at::empty({0}, own.options().dtype(at::kLong));
            for (auto* lists : {&hearing, &speaking}) (*lists)[0] = (*lists)[1] = {none};
        }
        cloud.hears.push_back({torch::cat(hearing[0]), torch::cat(hearing[1])});
        cloud.speaks.push_back({torch::cat(speaking[0]), torch::cat(speaking[1])});
    }
    cloud.features =
        o.has_input_features
            ? own_rows(features, cloud.rows).reshape({-1, o.in_channels})
            : point_lift_->forward(wave_encoding(cloud.places, o.pos_encode_dim, o.aabb_max[0] - o.aabb_min[0]));

    std::vector<Planes> levels{features_of_vertices(cloud)};
    for (std::size_t l = 0; l < down_.size(); ++l) {
        auto planes = levels.back();
        for (std::size_t k = 0; k < down_[l].size(); ++k) planes = run_block(l, false, k, planes);
        levels.push_back(std::move(planes));
    }
    FigConvUNetResult result;
    if (o.use_scalar_output) result.scalar = scalar_of(levels);
    auto planes = levels.back();
    for (auto l = up_.size(); l-- > 0;) {
        for (std::size_t k = 0; k < up_[l].size(); ++k) planes = run_block(l, true, k, planes);
        for (std::size_t i = 0; i < planes.size(); ++i) planes[i] = planes[i] + fitted(levels[l][i], planes[i]);
    }
    const auto rows = features_of_points(cloud, planes);
    result.points = cloud.rows ? from_local(rows, cloud.rows) : rows;
    return result;
}

}  // namespace meshard
