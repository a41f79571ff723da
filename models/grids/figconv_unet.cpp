// SPDX-License-Identifier: Apache-2.0
#include "models/grids/figconv_unet.h"

#include "models/layers/option_table.h"
#include "ops/neighbors/point_clouds.h"
#include "sharding/memory/recompute.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"
#include "sharding/tensor/with_backward.h"

#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <numbers>
#include <numeric>
#include <sstream>

namespace meshard {
namespace {

using torch::Tensor;

constexpr double kDistanceRange = 4;           // of the encoding of distances between points and vertices, whatever the box
constexpr double kVarianceFloor = 1e-6;        // under the root of a standard deviation
constexpr std::int64_t kPoolingHeads = 2;      // of attention pooling
constexpr int kLinear = 0, kZerosOutside = 0;  // of grid_sampler_3d
constexpr const char* kPairs = "resolution_memory_format_pairs";
const std::vector<std::string> kFormats{"b_xc_y_z", "b_yc_x_z", "b_zc_x_y"};
const std::vector<std::string> kReductions{"mean", "sum", "max", "min", "var", "std"};

/// cos and sin of 2 pi 2^k s / range for k < width / 2, the cosines of a coordinate first, coordinates one after the other: (..., d) to (..., d width).
Tensor encoded(const Tensor& places, std::int64_t width, double range)
{
    const auto waves = torch::exp2(torch::arange(width / 2, places.options())) * (2 * std::numbers::pi / range);
    const auto phases = places.unsqueeze(-1) * waves;
    return torch::cat({phases.cos(), phases.sin()}, -1).flatten(-2);
}

/// (B, D C, the other two axes in order) to (B, C, X, Y, Z), D along the flat axis, and back.
Tensor unpacked(const Tensor& packed, const GridPlane& plane)
{
    return packed.unflatten(1, {plane.resolution[plane.flat_axis], -1}).movedim(1, plane.flat_axis + 2);
}

Tensor packed(const Tensor& grid, const GridPlane& plane)
{
    return grid.movedim(plane.flat_axis + 2, 1).flatten(1, 2);
}

/// Cut or filled with zeros at the end to the size of `like`, along the last two dimensions.
Tensor fitted(Tensor image, const Tensor& like)
{
    for (std::int64_t dim = 2; dim < 4; ++dim) {
        if (image.size(dim) > like.size(dim)) image = image.narrow(dim, 0, like.size(dim));
    }
    const auto rows = like.size(2) - image.size(2), columns = like.size(3) - image.size(3);
    return rows > 0 || columns > 0 ? torch::constant_pad_nd(image, {0, columns, 0, rows}) : image;
}

/// The norm of the channels of each pixel.
Tensor normed_pixels(torch::nn::LayerNorm norm, const Tensor& image)
{
    return norm(image.movedim(1, -1)).movedim(-1, 1);
}

/// Where a plane of the present sizes reads the other ones: (B, sizes, 3), between -1 and 1, the last number along X.
///
/// The reference samples with the coordinates of its vertices in the order x, y, z where the sampling wants z first: x and z are exchanged. If all sizes divide
/// the plane's resolution its vertices are every second, fourth, ... of the original ones; else they are interpolated by the same sampling, which exchanges x
/// and z once more. Published weights have been trained with it.
Tensor reading_places(const GridPlane& plane, at::IntArrayRef sizes, const Tensor& like)
{
    auto vertices = plane.vertices(like.device()).to(like.scalar_type()).view({plane.resolution[0], plane.resolution[1], plane.resolution[2], 3});
    bool divides = true;
    for (std::size_t a = 0; a < 3; ++a) divides = divides && plane.resolution[a] % sizes[a] == 0;
    if (divides) {
        for (std::size_t a = 0; a < 3; ++a) vertices = vertices.slice(static_cast<std::int64_t>(a), 0, std::nullopt, plane.resolution[a] / sizes[a]);
    } else {
        std::vector<Tensor> lines;
        for (const auto size : sizes) lines.push_back(torch::linspace(-1, 1, size, vertices.options().dtype(torch::kFloat)).to(like.scalar_type()));
        const auto places = torch::stack(torch::meshgrid(lines, "ij"), -1).unsqueeze(0);
        vertices = torch::grid_sampler_3d(vertices.permute({3, 0, 1, 2}).unsqueeze(0), places, kLinear, kZerosOutside, /*align_corners=*/true)[0].permute(
            {1, 2, 3, 0});
    }
    const auto least = vertices.amin({0, 1, 2}), most = vertices.amax({0, 1, 2});
    const auto places = (vertices - least) / (most - least) * 2 - 1;
    return places.expand({like.size(0), sizes[0], sizes[1], sizes[2], 3});
}

bool has_extremes(const std::vector<std::string>& reductions)
{
    return std::any_of(reductions.begin(), reductions.end(), [](const auto& name) { return name == "max" || name == "min"; });
}

bool has_squares(const std::vector<std::string>& reductions)
{
    return std::any_of(reductions.begin(), reductions.end(), [](const auto& name) { return name == "var" || name == "std"; });
}

/// Adds up rows of edges by their targets.
Tensor summed(const Tensor& edges, const Tensor& targets, std::int64_t num_targets)
{
    return torch::zeros({num_targets, edges.size(1)}, edges.options()).index_add(0, targets, edges);
}

/// The largest value of each target's edges and the largest negative value, (targets, 2 C), without gradients; minus infinity without edges.
Tensor extremes(const Tensor& edges, const Tensor& targets, std::int64_t num_targets)
{
    const torch::NoGradGuard no_grad;
    const auto both = torch::cat({edges.detach(), -edges.detach()}, 1);
    const auto least = torch::full({num_targets, both.size(1)}, -std::numeric_limits<double>::infinity(), both.options());
    return at::scatter_reduce(least, 0, targets.unsqueeze(1).expand_as(both), both, "amax");
}

/// What is added up over the edges of all ranks, (targets, width), so that `reduced` has all reductions: values, squares, and, for the extremes, the edges that
/// attain them and their number, so that the gradient of an extreme goes to its edge; the number of edges last.
Tensor sums_for(const std::vector<std::string>& reductions, const Tensor& edges, const Tensor& targets, std::int64_t num_targets, const Tensor& extremes)
{
    std::vector<Tensor> columns{edges};
    if (has_squares(reductions)) columns.push_back(edges.square());
    if (extremes.defined()) {
        const auto attains = torch::cat({edges.detach(), -edges.detach()}, 1).eq(extremes.index_select(0, targets)).to(edges.scalar_type());
        columns.push_back(torch::cat({edges, edges}, 1) * attains);
        columns.push_back(attains);
    }
    columns.push_back(torch::ones({edges.size(0), 1}, edges.options()));
    return summed(torch::cat(columns, 1), targets, num_targets);
}

std::int64_t width_of_sums(const std::vector<std::string>& reductions, std::int64_t channels)
{
    return channels * (1 + (has_squares(reductions) ? 1 : 0) + (has_extremes(reductions) ? 4 : 0)) + 1;
}

/// From these sums, (..., width), to (..., C reductions). Targets without edges get zeros, of a standard deviation the root of its floor.
Tensor reduced(const std::vector<std::string>& reductions, const Tensor& sums, std::int64_t channels)
{
    std::int64_t next = 0;
    const auto take = [&](std::int64_t width) {
        next += width;
        return sums.narrow(-1, next - width, width);
    };
    const auto sum = take(channels);
    const auto squares = has_squares(reductions) ? take(channels) : Tensor();
    Tensor ends, num_ends;
    if (has_extremes(reductions)) {
        ends = take(2 * channels);
        num_ends = take(2 * channels).clamp_min(1);
        ends = ends / num_ends;
    }
    const auto count = take(1).clamp_min(1);
    const auto mean = sum / count;
    std::vector<Tensor> results;
    for (const auto& name : reductions) {
        if (name == "sum") results.push_back(sum);
        if (name == "mean") results.push_back(mean);
        if (name == "max") results.push_back(ends.narrow(-1, 0, channels));
        if (name == "min") results.push_back(ends.narrow(-1, channels, channels));
        if (name == "var" || name == "std") {
            const auto variance = squares / count - mean.square();
            results.push_back(name == "var" ? variance : torch::sqrt(variance + kVarianceFloor));
        }
    }
    return results.size() == 1 ? results[0] : torch::cat(results, -1);
}

// --- between ranks: the points of a rank are plain rows, the planes' features are the same on all ranks ----------------------------------------------

/// Layout in which points are used: cut along samples or points only. Null for plain ones.
SpecPtr rows_spec(const Tensor& points)
{
    if (!is_sharded(points)) return nullptr;
    auto axes = spec_of(points)->axes;
    for (auto& axis : axes) {
        if (axis.is_partial() || (axis.is_shard() && axis.placement.dim > 1)) axis = {};
    }
    return make_spec(spec_of(points)->device_mesh, axes, spec_of(points)->index_map);
}

/// The same with `other` where points are cut.
SpecPtr with_points_as(const SpecPtr& rows, const AxisLayout& other)
{
    auto axes = rows->axes;
    for (auto& axis : axes) {
        if (axis.is_shard() && axis.placement.dim == 1) axis = other;
    }
    return make_spec(rows->device_mesh, axes);
}

/// This rank's rows, plain.
Tensor own_rows(const Tensor& points, const SpecPtr& rows)
{
    return rows ? to_local(redistribute(points, rows)) : points;
}

/// The sum of what the ranks have, (B, ...), on all of them. One all-reduce forward, none backward.
Tensor sum_of_ranks(const Tensor& own, const SpecPtr& rows)
{
    if (!rows) return own;
    return redistribute(from_local(own, with_points_as(rows, {Partial(), nullptr, 1})), with_points_as(rows, {}));
}

/// What all ranks have, (B, ...), as a plain tensor that each rank reads for its own rows: the gradients that these give are added up, by one all-reduce.
Tensor for_own_rows(const Tensor& shared, const SpecPtr& rows)
{
    if (!rows) return shared;
    const auto whole = redistribute(shared, with_points_as(rows, {}));
    return with_backward(local_of(whole).detach(), whole, "for_own_rows", [pending = with_points_as(rows, {Partial(), nullptr, 1})](const Tensor& gradient) {
        auto sum = wrap(gradient.clone(torch::MemoryFormat::Contiguous), pending);
        reduce_partials({sum});
        return sum;
    });
}

/// The largest of what the ranks have. Without gradients.
void largest_of_ranks(Tensor& own, const SpecPtr& rows)
{
    for (std::size_t a = 0; rows && a < rows->axes.size(); ++a) {
        if (rows->axes[a].is_shard() && rows->axes[a].placement.dim == 1)
            rows->device_mesh->group(static_cast<std::int64_t>(a)).all_reduce(own, Reduction::Max);
    }
}

/// GELU(LN(fc2(GELU(LN(fc1 x)))) + shortcut x).
class ShortcutMlp : public torch::nn::Module {
public:
    ShortcutMlp(std::int64_t in, std::int64_t out) : out_(out)
    {
        fc1_ = register_module("fc1", torch::nn::Linear(in, 2 * out));
        norm1_ = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({2 * out})));
        fc2_ = register_module("fc2", torch::nn::Linear(2 * out, out));
        norm2_ = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({out})));
        shortcut_ = register_module("shortcut", torch::nn::Linear(in, out));
    }

    Tensor forward(const Tensor& x) { return finished(fc1_(x), shortcut_(x)); }

    /// The same for edges whose inputs are a row of the source, a row of the target and numbers of their own, one behind the other: rows of sources and targets
    /// meet the first layers before they are gathered, since each has many edges.
    /// @param own   (edges, ...), undefined if edges have no numbers of their own
    Tensor of_edges(const Tensor& sources, const Tensor& from, const Tensor& targets, const Tensor& to, const Tensor& own)
    {
        const auto weight = torch::cat({fc1_->weight, shortcut_->weight}, 0), bias = torch::cat({fc1_->bias, shortcut_->bias}, 0);
        const auto split = sources.size(1), rest = split + targets.size(1);
        auto x = torch::linear(sources, weight.narrow(1, 0, split), bias).index_select(0, from) +
                 torch::linear(targets, weight.narrow(1, split, targets.size(1))).index_select(0, to);
        if (own.defined()) x = x + torch::linear(own, weight.narrow(1, rest, weight.size(1) - rest));
        return finished(x.narrow(1, 0, 2 * out_), x.narrow(1, 2 * out_, out_));
    }

private:
    Tensor finished(const Tensor& hidden, const Tensor& beside) { return torch::gelu(norm2_(fc2_(torch::gelu(norm1_(hidden)))) + beside); }

    std::int64_t out_;
    torch::nn::Linear fc1_{nullptr}, fc2_{nullptr}, shortcut_{nullptr};
    torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
};

/// A module that holds another one under a name: for the names of parameters.
std::shared_ptr<torch::nn::Module> named(const char* name, const std::shared_ptr<torch::nn::Module>& module)
{
    auto outer = std::make_shared<torch::nn::Module>();
    outer->register_module(name, module);
    return outer;
}

}  // namespace

const OptionTable<FigConvUNetOptions>& figconv_unet_option_table()
{
    using O = FigConvUNetOptions;
    static const OptionTable<O> table(
        "FIGConvUNet",
        {
            {"in_channels", &O::in_channels, "channels of each point; without input features hidden_channels[0]", {.least = 1}},
            {"out_channels", &O::out_channels, "channels of the result", {.least = 1}},
            {"kernel_size", &O::kernel_size, "pixels that a convolution reads along each direction, odd", {.least = 1}},
            {"hidden_channels", &O::hidden_channels, "channels of each grid, fine to coarse, num_levels + 1", {.least = 1}},
            {"num_levels", &O::num_levels, "number of times that the grids are halved", {.least = 1, .most = 16}},
            {"num_down_blocks", &O::num_down_blocks, "blocks of each level on the way down", {.least = 1}},
            {"num_up_blocks", &O::num_up_blocks, "blocks of each level on the way up", {.least = 1}},
            {"mlp_channels", &O::mlp_channels, "channels of the layers behind the pooled grids", {.least = 1}},
            {"aabb_max", &O::aabb_max, "upper corner of the box of the grids"},
            {"aabb_min", &O::aabb_min, "lower corner of the box of the grids"},
            {"use_rel_pos", &O::use_rel_pos, "messages know the vector from target to source"},
            {"use_rel_pos_embed", &O::use_rel_pos_embed, "that vector is encoded by waves"},
            {"pos_encode_dim", &O::pos_encode_dim, "waves of each coordinate, even", {.least = 2}},
            {"communication_types", &O::communication_types, "how a grid takes what it reads of the others", {.words = {"sum", "mul"}}},
            {"to_point_sample_method", &O::to_point_sample_method, "how points read the grids", {.words = {"graphconv"}}},
            {"neighbor_search_type", &O::neighbor_search_type, "which points and vertices exchange messages", {.words = {"radius", "knn"}}},
            {"knn_k", &O::knn_k, "sources that each target hears with knn", {.least = 1}},
            {"reductions", &O::reductions, "how a target's messages become one; several are concatenated", {.words = kReductions}},
            {"use_scalar_output", &O::use_scalar_output, "gives one number a case, too"},
            {"has_input_features", &O::has_input_features, "points have features besides their places"},
            {"pooling_type", &O::pooling_type, "how a grid becomes one row for that number", {.words = {"max", "mean", "attention"}}},
            {"pooling_layers", &O::pooling_layers, "levels that it reads; none: the coarsest", {.least = 0}, {.none = "[]", .is_for_programs = true}},
        });
    return table;
}

void FigConvUNetOptions::validate() const
{
    figconv_unet_option_table().check(*this);
    const OptionChecks checks("FIGConvUNet");
    const auto has_entries = [&](const char* name, std::size_t size, std::int64_t wanted, const char* what) {
        if (static_cast<std::int64_t>(size) != wanted)
            checks.refuse(std::string(name) + " must have " + what + " = " + std::to_string(wanted) + " entries, and has " + std::to_string(size) + ".");
    };
    has_entries("hidden_channels", hidden_channels.size(), num_levels + 1, "num_levels + 1");
    has_entries("num_down_blocks", num_down_blocks.size(), num_levels, "num_levels");
    has_entries("num_up_blocks", num_up_blocks.size(), num_levels, "num_levels");
    has_entries("aabb_max", aabb_max.size(), 3, "3");
    has_entries("aabb_min", aabb_min.size(), 3, "3");
    has_entries("communication_types", communication_types.size(), 1, "1");
    if (kernel_size % 2 == 0) checks.refuse("kernel_size must be odd, and is " + std::to_string(kernel_size) + ": even ones would shrink the grids.");
    if (pos_encode_dim % 2 != 0) checks.refuse("pos_encode_dim must be even, and is " + std::to_string(pos_encode_dim) + ".");
    if (mlp_channels.empty()) checks.refuse("mlp_channels must not be empty.");
    if (reductions.empty()) checks.refuse("reductions must not be empty.");
    for (std::size_t a = 0; a < 3; ++a) {
        if (!(aabb_min[a] < aabb_max[a])) checks.refuse("aabb_min must be below aabb_max along each axis.");
    }
    if (!has_input_features && in_channels != hidden_channels[0]) {
        checks.refuse("without has_input_features in_channels must be hidden_channels[0] = " + std::to_string(hidden_channels[0]) + ", and is " +
                      std::to_string(in_channels) + ".");
    }
    if (resolutions.empty() || resolutions.size() != memory_formats.size())
        checks.refuse(std::string(kPairs) + " must have a format and a resolution for each plane.");
    for (std::size_t i = 0; i < resolutions.size(); ++i) {
        checks.one_of("a format of resolution_memory_format_pairs", memory_formats[i], kFormats);
        for (const auto vertices : resolutions[i]) checks.at_least(1, {{"a resolution of resolution_memory_format_pairs", vertices}});
    }
    for (const auto level : pooling_layers) {
        if (level > num_levels)
            checks.refuse("pooling_layers must lie in [0, num_levels = " + std::to_string(num_levels) + "], and one is " + std::to_string(level) + ".");
    }
    if (use_scalar_output && pooling_type == "attention") checks.multiple("mlp_channels[0]", mlp_channels[0], "the number of pooling heads", kPoolingHeads);
}

std::vector<GridPlane> FigConvUNetOptions::planes() const
{
    std::vector<GridPlane> planes;
    for (std::size_t i = 0; i < resolutions.size(); ++i) {
        GridPlane plane{.resolution = resolutions[i]};
        plane.flat_axis = std::find(kFormats.begin(), kFormats.end(), memory_formats[i]) - kFormats.begin();
        std::copy_n(aabb_min.begin(), 3, plane.box_min.begin());
        std::copy_n(aabb_max.begin(), 3, plane.box_max.begin());
        planes.push_back(plane);
    }
    return planes;
}

nlohmann::json with_blocks_of_each_level(nlohmann::json arguments)
{
    const auto given = arguments.find("num_levels");
    const auto levels = given != arguments.end() && given->is_number_integer() ? given->get<std::int64_t>() : FigConvUNetOptions().num_levels;
    if (levels < 1 || levels > 16) return arguments;  // `validate` says so
    for (const char* name : {"num_down_blocks", "num_up_blocks"}) {
        auto& value = arguments[name];
        if (value.is_null()) value = 1;
        if (value.is_array() && value.size() == 1) value = nlohmann::json(value[0]);
        if (value.is_number()) value = std::vector<nlohmann::json>(levels, value);
    }
    return arguments;
}

nlohmann::json with_planes_of_resolutions(nlohmann::json arguments)
{
    const FigConvUNetOptions defaults;
    std::array<std::int64_t, 3> grid{}, flat{};
    for (std::size_t axis = 0; axis < 3; ++axis) {
        flat[axis] = defaults.resolutions[axis][axis];
        grid[axis] = defaults.resolutions[(axis + 1) % 3][axis];
    }
    bool is_given = false;
    for (auto [name, place] : {std::pair("grid_resolution", &grid), std::pair("plane_resolution", &flat)}) {
        const auto found = arguments.find(name);
        if (found == arguments.end()) continue;
        if (!found->is_null()) {
            if (!found->is_array() || found->size() != 3)
                OptionChecks("FIGConvUNet").refuse(std::string(name) + " is " + found->dump() + "; expected three numbers, along x, y and z.");
            *place = found->get<std::array<std::int64_t, 3>>();
            is_given = true;
        }
        arguments.erase(found);
    }
    if (!is_given) return arguments;
    auto pairs = nlohmann::json::array();
    for (std::size_t axis = 0; axis < 3; ++axis) {
        auto resolution = grid;
        resolution[axis] = flat[axis];
        pairs.push_back({defaults.memory_formats[axis], resolution});
    }
    arguments[kPairs] = std::move(pairs);
    return arguments;
}

FigConvUNetOptions figconv_unet_options(const nlohmann::json& arguments)
{
    auto known = with_blocks_of_each_level(arguments);
    known.erase("voxel_size");
    nlohmann::json pairs;
    if (const auto given = known.find(kPairs); given != known.end()) {
        pairs = *given;
        known.erase(given);
    }
    auto options = figconv_unet_option_table().read(known);
    if (pairs.is_null()) return options;
    options.memory_formats.clear();
    options.resolutions.clear();
    const auto refuse = [&](const nlohmann::json& found) {
        OptionChecks("FIGConvUNet")
            .refuse(std::string(kPairs) + " must be a list of a format and three resolutions each, as [\"b_xc_y_z\", [2, 128, 128]]; found " + found.dump() +
                    ".");
    };
    if (!pairs.is_array()) refuse(pairs);
    for (const auto& pair : pairs) {
        const bool fits = pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_array() && pair[1].size() == 3 &&
                          std::all_of(pair[1].begin(), pair[1].end(), [](const auto& number) { return number.is_number_integer(); });
        if (!fits) refuse(pair);
        options.memory_formats.push_back(pair[0].get<std::string>());
        options.resolutions.push_back(pair[1].get<std::array<std::int64_t, 3>>());
    }
    return options;
}

nlohmann::json to_json(const FigConvUNetOptions& options)
{
    auto arguments = figconv_unet_option_table().write(options);
    auto pairs = nlohmann::json::array();
    for (std::size_t i = 0; i < options.resolutions.size(); ++i) pairs.push_back({options.memory_formats[i], options.resolutions[i]});
    arguments[kPairs] = std::move(pairs);
    return arguments;
}

/// Messages along the pairs of points and vertices, in one direction.
class FigConvUNetImpl::MessageLayer : public torch::nn::Module {
public:
    MessageLayer(std::int64_t sources, std::int64_t targets, std::int64_t channels, const FigConvUNetOptions& options) : options_(options), channels_(channels)
    {
        const auto of_place = options.use_rel_pos_embed ? 3 * options.pos_encode_dim : options.use_rel_pos ? 3 : 0;
        edges_ = register_module("edge_transform_mlp", std::make_shared<ShortcutMlp>(sources + targets + of_place, channels));
        out_ = register_module("out_transform_mlp", std::make_shared<ShortcutMlp>(channels * static_cast<std::int64_t>(options.reductions.size()), channels));
    }

    /// (edges, C) @param offsets   places of sources less those of targets, (edges, 3)
    Tensor messages(const Tensor& sources, const Tensor& from, const Tensor& targets, const Tensor& to, const Tensor& offsets) const
    {
        Tensor own;
        if (options_.use_rel_pos_embed)
            own = encoded(offsets, options_.pos_encode_dim, kDistanceRange);
        else if (options_.use_rel_pos)
            own = offsets;
        return edges_->of_edges(sources, from, targets, to, own);
    }

    /// (..., width of sums) to (..., C)
    Tensor finished(const Tensor& sums) const { return out_->forward(reduced(options_.reductions, sums, channels_)); }

private:
    const FigConvUNetOptions options_;
    std::int64_t channels_;
    std::shared_ptr<ShortcutMlp> edges_, out_;
};

/// Two convolutions beside a shortcut, on one plane.
class FigConvUNetImpl::PlaneBlock : public torch::nn::Module {
public:
    enum class Step { Halves, Keeps, Doubles, KeepsTransposed };

    PlaneBlock(std::int64_t in, std::int64_t out, std::int64_t kernel, Step step)
    {
        const auto add = [this](const char* name, auto conv) {
            register_module(name, named("conv", conv.ptr()));
            return torch::nn::AnyModule(conv);
        };
        const auto plain = [](std::int64_t from, std::int64_t to, std::int64_t size, std::int64_t stride, std::int64_t padding) {
            return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, size).stride(stride).padding(padding));
        };
        const auto transposed = [&](std::int64_t factor) {
            return torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(in, out, factor).stride(factor));
        };
        const bool is_up = step == Step::Doubles || step == Step::KeepsTransposed;
        const std::int64_t factor = step == Step::Halves || step == Step::Doubles ? 2 : 1;
        if (is_up)
            conv1_ = add("conv1", transposed(factor));
        else
            conv1_ = add("conv1", plain(in, out, kernel, factor, (kernel - 1) / 2));
        conv2_ = add("conv2", plain(out, out, kernel, 1, (kernel - 1) / 2));
        for (auto* norm : {&norm1_, &norm2_}) *norm = torch::nn::LayerNorm(torch::nn::LayerNormOptions({out}));
        register_module("norm1", named("feature_transform", norm1_.ptr()));
        register_module("norm2", named("feature_transform", norm2_.ptr()));
        if (is_up)
            shortcut_ = add("shortcut", transposed(factor));
        else if (factor == 2 || in != out)
            shortcut_ = add("shortcut", plain(in, out, factor, factor, 0));
    }

    Tensor forward(const Tensor& image)
    {
        const auto x = torch::gelu(normed_pixels(norm1_, conv1_.forward(image)));
        const auto y = normed_pixels(norm2_, conv2_.forward(x));
        return y + fitted(shortcut_.is_empty() ? image : shortcut_.forward(image), y);
    }

private:
    torch::nn::AnyModule conv1_, conv2_, shortcut_;
    torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
};

/// A plane as one row.
class FigConvUNetImpl::PlanePool : public torch::nn::Module {
public:
    PlanePool(std::int64_t in, std::int64_t out, std::string type) : type_(std::move(type))
    {
        conv_ = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 1)));
        if (type_ == "attention") {
            auto pool = register_module("pool", std::make_shared<torch::nn::Module>());
            qkv_ = pool->register_module("qkv", torch::nn::Linear(out, 3 * out));
            out_ = pool->register_module("out", torch::nn::Linear(out, out));
        }
        norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({out})));
    }

    Tensor forward(const Tensor& image)
    {
        const auto pixels = conv_(image).flatten(2);  // (B, C, pixels)
        if (type_ == "max") return norm_(std::get<0>(pixels.max(2)));
        if (type_ == "mean") return norm_(pixels.mean(2));
        const auto batch = pixels.size(0), channels = pixels.size(1);
        const auto heads = qkv_(pixels.transpose(1, 2)).view({batch, -1, 3, kPoolingHeads, channels / kPoolingHeads}).permute({2, 0, 3, 1, 4});
        const auto query = heads.select(0, 0).amax(2, true);  // (B, heads, 1, C / heads)
        const auto logits = torch::matmul(query, heads.select(0, 1).transpose(2, 3)) / std::sqrt(static_cast<double>(channels / kPoolingHeads));
        return norm_(out_(torch::matmul(torch::softmax(logits, -1), heads.select(0, 2)).transpose(1, 2).reshape({batch, channels})));
    }

private:
    std::string type_;
    torch::nn::Conv2d conv_{nullptr};
    torch::nn::Linear qkv_{nullptr}, out_{nullptr};
    torch::nn::LayerNorm norm_{nullptr};
};

/// GELU(LN(linear x)) without a bias.
class FigConvUNetImpl::LinearBlock : public torch::nn::Module {
public:
    LinearBlock(std::int64_t in, std::int64_t out)
    {
        torch::nn::ModuleList block;
        block->push_back(linear_ = torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)));
        block->push_back(norm_ = torch::nn::LayerNorm(torch::nn::LayerNormOptions({out})));
        register_module("block", block);
    }

    Tensor forward(const Tensor& x) { return torch::gelu(norm_(linear_(x))); }

private:
    torch::nn::Linear linear_{nullptr};
    torch::nn::LayerNorm norm_{nullptr};
};

/// GELU(LN(linear(GELU(LN(linear x)))) + shortcut x).
class FigConvUNetImpl::ResidualLinearBlock : public torch::nn::Module {
public:
    ResidualLinearBlock(std::int64_t in, std::int64_t out)
    {
        torch::nn::ModuleList blocks;
        blocks->push_back(first_ = torch::nn::Linear(in, in));
        blocks->push_back(first_norm_ = torch::nn::LayerNorm(torch::nn::LayerNormOptions({in})));
        blocks->push_back(torch::nn::GELU());
        blocks->push_back(second_ = torch::nn::Linear(in, out));
        blocks->push_back(second_norm_ = torch::nn::LayerNorm(torch::nn::LayerNormOptions({out})));
        register_module("blocks", blocks);
        if (in != out) shortcut_ = register_module("shortcut", torch::nn::Linear(in, out));
    }

    Tensor forward(const Tensor& x) { return torch::gelu(second_norm_(second_(torch::gelu(first_norm_(first_(x))))) + (shortcut_ ? shortcut_(x) : x)); }

private:
    torch::nn::Linear first_{nullptr}, second_{nullptr}, shortcut_{nullptr};
    torch::nn::LayerNorm first_norm_{nullptr}, second_norm_{nullptr};
};

/// The points of this rank.
struct FigConvUNetImpl::Cloud {
    SpecPtr rows;  ///< null for plain points
    std::int64_t batch = 0, count = 0;
    Tensor places;                   ///< (B N, 3)
    Tensor features;                 ///< (B N, C)
    std::vector<PlanePairs> hears;   ///< of each plane: pairs in which points are the targets; rows b N + i and b M + v
    std::vector<PlanePairs> speaks;  ///< and those in which vertices are
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
        to_vertices_.push_back(std::make_shared<MessageLayer>(o.in_channels, of_place, o.hidden_channels[0], o));
        to_vertices->push_back(torch::nn::ModuleList(named("conv", to_vertices_.back())).ptr());
    }
    register_module("point_feature_to_grids", to_vertices);

    const auto level_of_blocks = [&](std::int64_t in, std::int64_t out, std::int64_t count, bool up, auto& blocks) {
        torch::nn::ModuleList level;
        blocks.emplace_back();
        for (std::int64_t k = 0; k < count; ++k) {
            torch::nn::ModuleList planes;
            blocks.back().emplace_back();
            for (const auto& plane : planes_) {
                using Step = PlaneBlock::Step;
                const auto flat = plane.resolution[plane.flat_axis];
                const auto step = up ? (k == 0 ? Step::Doubles : Step::KeepsTransposed) : (k == 0 ? Step::Halves : Step::Keeps);
                blocks.back().back().push_back(std::make_shared<PlaneBlock>(flat * (k == 0 ? in : out), flat * out, o.kernel_size, step));
                planes->push_back(blocks.back().back().back());
            }
            level->push_back(named("convs", planes.ptr()));
        }
        return level;
    };
    torch::nn::ModuleList down, up;
    for (std::int64_t l = 0; l < o.num_levels; ++l) {
        down->push_back(level_of_blocks(o.hidden_channels[l], o.hidden_channels[l + 1], o.num_down_blocks[l], false, down_));
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
                pools_.back().push_back(
                    std::make_shared<PlanePool>(plane.resolution[plane.flat_axis] * o.hidden_channels[layer], o.mlp_channels[0], o.pooling_type));
                planes->push_back(pools_.back().back());
            }
            pools->push_back(named("pools", planes.ptr()));
        }
        register_module("grid_pools", pools);
        auto in = o.mlp_channels[0] * static_cast<std::int64_t>(num_planes * o.pooling_layers.size());
        for (const auto out : o.mlp_channels) {
            scalar_blocks_.push_back(std::make_shared<ResidualLinearBlock>(in, out));
            scalar_layers->push_back(scalar_blocks_.back());
            in = out;
        }
        scalar_last_ = std::make_shared<LinearBlock>(in, in);
        scalar_layers->push_back(scalar_last_);
        register_module("mlp", named("layers", scalar_layers.ptr()));
        scalar_projection_ = register_module("mlp_projection", torch::nn::Linear(in, 1));
    }

    const auto channels = o.hidden_channels[0];
    torch::nn::ModuleList to_points;
    for (std::size_t i = 0; i < num_planes; ++i) {
        to_points_.push_back(std::make_shared<MessageLayer>(channels, o.in_channels, channels, o));
        to_points->push_back(named("conv", named("conv", to_points_.back())));
    }
    register_module("to_point", named("conv_list", to_points.ptr()));

    torch::nn::ModuleList projection;
    projection->push_back(projection_first_ = torch::nn::Linear(2 * channels, 2 * channels));
    projection->push_back(projection_norm_ = torch::nn::LayerNorm(torch::nn::LayerNormOptions({2 * channels})));
    projection->push_back(torch::nn::GELU());
    projection->push_back(projection_last_ = torch::nn::Linear(2 * channels, o.out_channels));
    register_module("projection", named("feature_transform", projection.ptr()));
    if (!o.has_input_features) {
        point_lift_ = std::make_shared<LinearBlock>(of_place, channels);
        register_module("vertex_to_point_features", named("mlp", named("layers", torch::nn::ModuleList(point_lift_).ptr())));
    }
}

void FigConvUNetImpl::set_memory(MemoryMode mode)
{
    if (mode == MemoryMode::Streamed) throw InvalidInput("FIGConvUNet: only Transolver has the memory mode `streamed`. Use `recomputed`.");
    memory_ = mode;
}

std::vector<Tensor> FigConvUNetImpl::kept_or_again(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& step,
                                                   const std::vector<Tensor>& inputs) const
{
    return memory_ == MemoryMode::Recomputed ? checkpoint(step, inputs) : step(inputs);
}

void FigConvUNetImpl::require_shapes(const Tensor& vertices, const Tensor& features) const
{
    const OptionChecks checks("FIGConvUNet");
    std::ostringstream message;
    if (vertices.dim() != 3 || vertices.size(2) != 3) {
        message << "the vertices must be (batch, points, 3), and have the shape " << vertices.sizes() << '.';
    } else if (features.defined() != options_.has_input_features) {
        message << (features.defined() ? "features were given, and the model has no has_input_features."
                                       : "the model has has_input_features, and no features were given.");
    } else if (features.defined() && (features.dim() != 3 || features.size(0) != vertices.size(0) || features.size(1) != vertices.size(1) ||
                                      features.size(2) != options_.in_channels)) {
        message << "the features must be (" << vertices.size(0) << ", " << vertices.size(1) << ", " << options_.in_channels << "), and have the shape "
                << features.sizes() << '.';
    }
    if (!message.str().empty()) checks.refuse(message.str());
}

FigConvUNetImpl::Planes FigConvUNetImpl::features_of_vertices(const Cloud& cloud)
{
    const auto& o = options_;
    const auto channels = o.hidden_channels[0], width = width_of_sums(o.reductions, channels);
    const auto range = o.aabb_max[0] - o.aabb_min[0];
    Planes edges(planes_.size());
    std::vector<Tensor> largest;
    for (std::size_t i = 0; i < planes_.size(); ++i) {
        const auto& pairs = cloud.speaks[i];
        const auto m = planes_[i].num_vertices();
        const auto places = planes_[i].vertices(cloud.places.device());
        const auto vertex_of_edge = pairs.vertices.remainder(m);
        // In single precision, whatever the points', as in the reference.
        const auto encodings = encoded(places, o.pos_encode_dim, range).to(cloud.places.scalar_type());
        const auto vertex_places = places.to(cloud.places.scalar_type());
        edges[i] = kept_or_again(
            [&layer = *to_vertices_[i], pairs, vertex_of_edge, encodings, vertex_places](const std::vector<Tensor>& given) -> std::vector<Tensor> {
                const auto offsets = given[1].index_select(0, pairs.points) - vertex_places.index_select(0, vertex_of_edge);
                return {layer.messages(given[0], pairs.points, encodings, vertex_of_edge, offsets)};
            },
            {cloud.features, cloud.places})[0];
        if (has_extremes(o.reductions)) largest.push_back(extremes(edges[i], pairs.vertices, cloud.batch * m).flatten());
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
        sums.push_back(sums_for(o.reductions, edges[i], cloud.speaks[i].vertices, num_rows, ends).view({cloud.batch, planes_[i].num_vertices() * width}));
    }
    const auto total = sum_of_ranks(torch::cat(sums, 1), cloud.rows);
    Planes planes;
    next = 0;
    for (std::size_t i = 0; i < planes_.size(); ++i) {
        const auto size = planes_[i].num_vertices() * width;
        const auto rows = to_vertices_[i]->finished(total.narrow(1, next, size).unflatten(1, {planes_[i].num_vertices(), width}));  // (B, M, C)
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
        const bool is_degenerate = std::any_of(sizes.begin(), sizes.end(), [](auto size) { return size == 1; });  // the reference divides 0 by 0
        const auto places = is_degenerate ? Tensor() : reading_places(planes_[i], sizes, grids[i]);
        auto result = grids[i];
        for (std::size_t j = 0; j < grids.size(); ++j) {
            if (j == i) continue;
            const auto read =
                is_degenerate ? torch::zeros_like(grids[i]) : torch::grid_sampler_3d(grids[j], places, kLinear, kZerosOutside, /*align_corners=*/true);
            result = options_.communication_types[0] == "sum" ? result + read : result * read;
        }
        results.push_back(torch::gelu(packed(result, planes_[i])));
    }
    return results;
}

FigConvUNetImpl::Planes FigConvUNetImpl::run_block(std::size_t level, bool up, std::size_t block, const Planes& images) const
{
    const auto& planes = (up ? up_ : down_)[level][block];
    return kept_or_again(
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
        for (std::size_t a = 0; a < 3; ++a) grid = grid.narrow(static_cast<std::int64_t>(a) + 2, 0, planes_[i].resolution[a]);
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
        const auto heard = kept_or_again(
            [&layer = *to_points_[i], &reductions = o.reductions, pairs, places, m,
             num_points = cloud.batch * cloud.count](const std::vector<Tensor>& given) -> std::vector<Tensor> {
                const auto offsets = places.index_select(0, pairs.vertices.remainder(m)) - given[2].index_select(0, pairs.points);
                const auto edges = layer.messages(given[0], pairs.vertices, given[1], pairs.points, offsets);
                const auto ends = has_extremes(reductions) ? extremes(edges, pairs.points, num_points) : Tensor();
                return {layer.finished(sums_for(reductions, edges, pairs.points, num_points, ends))};
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
    const auto clouds = o.neighbor_search_type == "knn"
                            ? unbind_clouds("FIGConvUNet", "vertices", cloud.rows ? redistribute(vertices.detach(), cloud.rows) : vertices.detach())
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
                if (plane.num_vertices() <= o.knn_k) OptionChecks("FIGConvUNet").refuse("knn_k must be below the number of vertices of each plane.");
                add(hearing, nearest_vertices(own[b], plane, o.knn_k));
                add(speaking, nearest_points(clouds.at(b), plane, o.knn_k));
            }
        }
        cloud.hears.push_back({torch::cat(hearing[0]), torch::cat(hearing[1])});
        cloud.speaks.push_back({torch::cat(speaking[0]), torch::cat(speaking[1])});
    }
    cloud.features = o.has_input_features ? own_rows(features, cloud.rows).reshape({-1, o.in_channels})
                                          : point_lift_->forward(encoded(cloud.places, o.pos_encode_dim, o.aabb_max[0] - o.aabb_min[0]));

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
