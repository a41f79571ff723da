// SPDX-License-Identifier: Apache-2.0
#include "models/domino/domino.h"

#include "models/layers/option_checks.h"
#include "sharding/memory/recompute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/CPUGeneratorImpl.h>

#include <numbers>

namespace meshard {
namespace {

constexpr double kStencilRadius = 1.0 / 50, kNeighborShift = 1e-6, kAreaScale = 10;
constexpr std::int64_t kCombinedFilters = 8;

/// Gathers a tensor to every rank if it is sharded.
torch::Tensor gathered(const torch::Tensor& tensor)
{
    if (!is_sharded(tensor)) return tensor;
    return redistribute(tensor, std::vector<Placement>(spec_of(tensor)->axes.size(), Replicate()));
}

/// Repeats `vectors`, (B, C), at each of the points (B, N, 3): (B, N, C).
torch::Tensor at_points(const torch::Tensor& vectors, const torch::Tensor& points)
{
    return torch::ones_like(points.narrow(-1, 0, 1)) * vectors.unsqueeze(1);
}

/// Converts uniform numbers in [0, 1) to normal ones (Box and Muller 1958).
torch::Tensor normal_numbers(const torch::Tensor& first, const torch::Tensor& second)
{
    return torch::sqrt(-2 * torch::log1p(-first)) * torch::cos(2 * std::numbers::pi * second);
}

std::uint64_t initial_seed()
{
    return at::detail::getDefaultCPUGenerator().current_seed();
}

}  // namespace

DominoImpl::DominoImpl(DominoOptions options) : options_(std::move(options)), noise_(initial_seed())
{
    options_.validate();
    const bool has_volume = options_.output_features_vol > 0, has_surface = options_.output_features_surf > 0;
    const auto& geometry = options_.geometry;
    const auto surface_channels = options_.encoding_channels(geometry.surface.radii.size()),
               volume_channels = options_.encoding_channels(geometry.volume.radii.size());
    if (options_.combine_volume_surface && has_volume && has_surface) {
        const auto joined = surface_channels + volume_channels;
        combined_surface_ =
            register_module("combined_unet_surf", domino_unet(joined, surface_channels, kCombinedFilters,
                                                              geometry.processor_activation, true));
        combined_volume_ = register_module("combined_unet_vol", domino_unet(joined, volume_channels, kCombinedFilters,
                                                                            geometry.processor_activation, true));
    }
    if (options_.encode_parameters)
        parameter_model_ =
            register_module("parameter_model", point_network(options_.global_features, options_.parameters));
    geometry_volume_ = register_module("geo_rep_volume", GeometryEncoding(options_, true));
    geometry_surface_ = register_module("geo_rep_surface", GeometryEncoding(options_, false));
    for (std::int64_t i = 0; i < options_.output_features_surf; ++i)
        basis_surface_->push_back(point_network(options_.surface_inputs(), options_.basis));
    if (has_surface) register_module("nn_basis_surf", basis_surface_);
    for (std::int64_t i = 0; i < options_.output_features_vol; ++i)
        basis_volume_->push_back(point_network(3, options_.basis));
    if (has_volume) register_module("nn_basis_vol", basis_volume_);
    if (has_volume) {
        const auto inputs = options_.use_sdf_in_basis_func ? 7 + std::ssize(geometry.volume_sdf_scales) : 3;
        position_volume_ = register_module("fc_p_vol", point_network(inputs, options_.position));
    }
    if (has_surface) position_surface_ = register_module("fc_p_surf", point_network(3, options_.position));
    local_surface_ =
        register_module("surface_local_geo_encodings",
                        LocalEncoding(options_.surface_local, surface_channels, options_.local_activation));
    local_volume_ = register_module("volume_local_geo_encodings",
                                    LocalEncoding(options_.volume_local, volume_channels, options_.local_activation));

    const auto known = [&](const BallQueries& local) {
        auto inputs = options_.position.width + options_.basis.width +
                      (options_.encode_parameters ? options_.parameters.width : 0);
        for (const auto count : local.neighbors) inputs += count;
        return inputs;
    };
    for (std::int64_t i = 0; i < options_.output_features_surf; ++i)
        aggregation_surface_->push_back(
            Aggregation(known(options_.surface_local), options_.aggregation_width, options_.aggregation_activation));
    if (has_surface) register_module("agg_model_surf", aggregation_surface_);
    for (std::int64_t i = 0; i < options_.output_features_vol; ++i)
        aggregation_volume_->push_back(
            Aggregation(known(options_.volume_local), options_.aggregation_width, options_.aggregation_activation));
    if (has_volume) register_module("agg_model_vol", aggregation_volume_);
}

void DominoImpl::set_memory(MemoryMode mode)
{
    memory_ = unless_streamed("DoMINO", mode);
}

void DominoImpl::seed_noise(std::uint64_t seed)
{
    noise_.reseed(seed);
}

void DominoImpl::check_inputs(const DominoInputs& inputs) const
{
    const OptionChecks checks("DoMINO");
    if (!inputs.geometry.defined() || inputs.geometry.dim() != 3 || inputs.geometry.size(2) != 3)
        checks.refuse("the geometry must be (batch, points, 3).");
    const auto batch = inputs.geometry.size(0);
    const auto require = [&](const char* name, const torch::Tensor& tensor, const std::vector<std::int64_t>& shape) {
        bool fits = tensor.defined() && tensor.dim() == std::ssize(shape);
        for (std::size_t i = 0; fits && i < shape.size(); ++i)
            fits = shape[i] < 0 || tensor.size(static_cast<std::int64_t>(i)) == shape[i];
        if (fits) return;
        std::string expected;
        for (const auto size : shape)
            expected += (expected.empty() ? "" : ", ") + (size < 0 ? "points" : std::to_string(size));
        checks.refuse("{} must be ({}), and {}.", name, expected,
                      tensor.defined() ? "has the shape " + c10::str(tensor.sizes()) : "is missing");
    };
    const auto& size = options_.grid;
    if (options_.encode_parameters) {
        require("global_values", inputs.global_values, {batch, options_.global_features, 1});
        require("global_reference", inputs.global_reference, {batch, options_.global_features, 1});
    }
    for (const auto& [name, box] :
         {std::pair("volume_min_max", &inputs.volume_min_max), std::pair("surface_min_max", &inputs.surface_min_max)}) {
        if (box->defined()) require(name, *box, {batch, 2, 3});
    }
    const bool has_volume_points = inputs.volume.centers.defined(),
               has_surface_points = inputs.surface.centers.defined();
    if ((has_volume_points && options_.output_features_vol == 0) ||
        (has_surface_points && options_.output_features_surf == 0))
        checks.refuse(std::string("there are centers of the ") +
                      (has_volume_points && options_.output_features_vol == 0 ? "volume" : "surface") +
                      ", of which the model has no output.");
    if (!has_volume_points && !has_surface_points)
        require(options_.output_features_vol > 0 ? "the centers of the volume" : "the centers of the surface", {},
                {batch, -1, 3});
    if (has_volume_points || combined_volume_) {
        require("grid", inputs.grid, {batch, size[0], size[1], size[2], 3});
        require("sdf_grid", inputs.sdf_grid, {batch, size[0], size[1], size[2]});
    }
    if (has_volume_points) {
        require("the centers of the volume", inputs.volume.centers, {batch, -1, 3});
        const auto points = inputs.volume.centers.size(1);
        if (options_.use_sdf_in_basis_func) {
            require("the sdf of the volume", inputs.volume.sdf, {batch, points, 1});
            require("from_closest of the volume", inputs.volume.from_closest, {batch, points, 3});
        }
        require("from_center of the volume", inputs.volume.from_center, {batch, points, 3});
    }
    if (has_surface_points || combined_surface_) {
        require("surf_grid", inputs.surf_grid, {batch, size[0], size[1], size[2], 3});
        require("sdf_surf_grid", inputs.sdf_surf_grid, {batch, size[0], size[1], size[2]});
    }
    if (!has_surface_points) return;
    const auto& surface = inputs.surface;
    require("the centers of the surface", surface.centers, {batch, -1, 3});
    const auto points = surface.centers.size(1);
    require("from_center of the surface", surface.from_center, {batch, points, 3});
    if (options_.use_surface_normals) require("the normals of the surface", surface.normals, {batch, points, 3});
    if (options_.use_surface_area) require("the areas of the surface", surface.areas, {batch, points});
    if (options_.num_neighbors_surface == 1) return;
    const auto found = surface.neighbors.defined() && surface.neighbors.dim() == 4 ? surface.neighbors.size(2) : 0;
    if (found < options_.num_neighbors_surface - 1)
        checks.refuse("the surface must have {} neighbors of each point at least, and has {}.",
                      options_.num_neighbors_surface - 1, found);
    require("neighbors of the surface", surface.neighbors, {batch, points, found, 3});
    if (options_.use_surface_normals)
        require("neighbor_normals of the surface", surface.neighbor_normals, {batch, points, found, 3});
    if (options_.use_surface_area)
        require("neighbor_areas of the surface", surface.neighbor_areas, {batch, points, found});
}

torch::Tensor DominoImpl::normalised(const torch::Tensor& geometry, const torch::Tensor& min_max) const
{
    if (!min_max.defined()) return geometry;
    const auto least = min_max.narrow(1, 0, 1), most = min_max.narrow(1, 1, 1);
    return 2 * (geometry - least) / (most - least) - 1;
}

torch::Tensor DominoImpl::parameters_at(const DominoInputs& inputs, const torch::Tensor& points)
{
    return at_points(parameter_model_((inputs.global_values / inputs.global_reference).squeeze(-1)), points);
}

/// Random neighbours of each point: at the distance cube root of u, coordinate by coordinate, in the direction of a
/// normal vector. (B, N, K, 3)
torch::Tensor DominoImpl::volume_stencil(const torch::Tensor& centers)
{
    const auto count = options_.num_neighbors_volume;
    torch::Tensor direction, uniform;
    if (draws_) {
        std::tie(direction, uniform) = draws_();
    } else {
        const torch::NoGradGuard no_grad;
        noise_.set_rows(centers);
        const auto like = centers.detach().repeat({1, 1, count});  // (B, N, 3 K)
        const auto draw = [&] { return noise_.draw(like).unflatten(-1, {count, 3}); };
        const auto first = draw(), second = draw();
        direction = normal_numbers(first, second);
        uniform = draw();
    }
    const auto length = torch::linalg_vector_norm(direction, 2, at::IntArrayRef{-1}, true);
    return centers.unsqueeze(2) + direction / length * (torch::pow(uniform, 1.0 / 3) * kStencilRadius);
}

std::vector<torch::Tensor>
DominoImpl::run(const std::function<std::vector<torch::Tensor>(const std::vector<torch::Tensor>&)>& work,
                const std::vector<torch::Tensor>& inputs) const
{
    return memory_ == MemoryMode::Recomputed ? checkpoint(work, inputs) : work(inputs);
}

/// @param centers    (B, N, d): inputs of the basis networks for each point
/// @param stencil    (B, N, K, d): the same inputs for its neighbours
/// @param averages   whether the stencil contributes
/// @param known      (B, N, ...): encodings of the point, used for its whole stencil
torch::Tensor DominoImpl::solution(torch::nn::ModuleList& basis, torch::nn::ModuleList& aggregation,
                                   const torch::Tensor& centers, const torch::Tensor& stencil, bool averages,
                                   const torch::Tensor& known)
{
    std::vector<torch::Tensor> channels;
    for (std::size_t f = 0; f < basis->size(); ++f) {
        auto& network = *basis[f]->as<FourierMlp>();
        auto& last = *aggregation[f]->as<Aggregation>();
        const auto work = [&network, &last, averages](const std::vector<torch::Tensor>& given) {
            const auto &x = given[0], &encodings = given[1];
            const auto center = last.forward(torch::cat({network.forward(x), encodings}, -1));  // (B, N, 1)
            if (!averages) return std::vector<torch::Tensor>{center};
            const auto& around = given[2];
            const auto spread = torch::ones_like(around.narrow(-1, 0, 1)) * encodings.unsqueeze(2);  // (B, N, K, ...)
            const auto values = last.forward(torch::cat({network.forward(around), spread}, -1));     // (B, N, K, 1)
            const auto weights =
                1 / torch::linalg_vector_norm(x.unsqueeze(2) - around, 2, at::IntArrayRef{-1}, true);  // (B, N, K, 1)
            return std::vector<torch::Tensor>{0.5 * center + 0.5 * (weights * values).sum(2) / weights.sum(2)};
        };
        std::vector<torch::Tensor> inputs{centers, known};
        if (averages) inputs.push_back(stencil);
        channels.push_back(run(work, inputs)[0]);
    }
    return torch::cat(channels, -1);
}

DominoOutputs DominoImpl::forward(const DominoInputs& inputs)
{
    check_inputs(inputs);
    const bool has_volume = inputs.volume.centers.defined(), has_surface = inputs.surface.centers.defined();
    const bool is_joined = !combined_surface_.is_empty();  // each part then uses the encodings of both grids

    const auto encoded = [&](GeometryEncoding& encoding, const torch::Tensor& min_max, const torch::Tensor& grid,
                             const torch::Tensor& sdf) {
        const auto geometry = normalised(inputs.geometry, min_max);
        return run(
            [&](const std::vector<torch::Tensor>& given) {
                return std::vector<torch::Tensor>{encoding->forward(given[0], given[1], given[2])};
            },
            {geometry, grid, sdf})[0];
    };
    torch::Tensor volume, surface;
    if (has_volume || is_joined)
        volume = encoded(geometry_volume_, inputs.volume_min_max, inputs.grid, inputs.sdf_grid);
    if (has_surface || is_joined)
        surface = encoded(geometry_surface_, inputs.surface_min_max, inputs.surf_grid, inputs.sdf_surf_grid);
    if (is_joined) {
        const auto joined = torch::cat({volume, surface}, 1);
        if (has_surface) surface = combined_surface_->forward(joined);
        if (has_volume) volume = combined_volume_->forward(joined);
    }
    // The only message for points: gathers the encodings with the positions of the cells.
    const auto told = [&](LocalEncoding& local, const torch::Tensor& encoding, const torch::Tensor& grid,
                          const torch::Tensor& points) {
        const auto whole = gathered(torch::cat({encoding, grid.permute({0, 4, 1, 2, 3}).detach()}, 1))
                               .flatten(2);  // (B, c + 3, cells)
        const auto channels = encoding.size(1);
        return local->forward(whole.narrow(1, 0, channels), whole.narrow(1, channels, 3).transpose(1, 2).detach(),
                              points);
    };

    DominoOutputs outputs;
    if (has_volume) {
        const auto& points = inputs.volume;
        std::vector<torch::Tensor> position;
        if (options_.use_sdf_in_basis_func) {
            position.push_back(points.sdf);
            for (const auto scale : options_.geometry.volume_sdf_scales)
                position.push_back(points.sdf / (scale + points.sdf.abs()));
            position.push_back(points.from_closest);
        }
        position.push_back(points.from_center);
        std::vector<torch::Tensor> known{position_volume_(torch::cat(position, -1)),
                                         told(local_volume_, volume, inputs.grid, points.centers)};
        if (parameter_model_) known.push_back(parameters_at(inputs, points.centers));
        outputs.volume = solution(basis_volume_, aggregation_volume_, points.centers, volume_stencil(points.centers),
                                  options_.num_neighbors_volume > 1, torch::cat(known, -1));
    }
    if (has_surface) {
        const auto& points = inputs.surface;
        std::vector<torch::Tensor> known{position_surface_(points.from_center),
                                         told(local_surface_, surface, inputs.surf_grid, points.centers)};
        if (parameter_model_) known.push_back(parameters_at(inputs, points.centers));
        std::vector<torch::Tensor> center{points.centers}, around;
        const auto count = options_.num_neighbors_surface - 1;
        if (count > 0) around.push_back(points.neighbors.narrow(2, 0, count) + kNeighborShift);
        if (options_.use_surface_normals) {
            center.push_back(points.normals);
            if (count > 0) around.push_back(points.neighbor_normals.narrow(2, 0, count) + kNeighborShift);
        }
        if (options_.use_surface_area) {
            center.push_back(points.areas.unsqueeze(-1).log() / kAreaScale);
            if (count > 0)
                around.push_back(points.neighbor_areas.narrow(2, 0, count).unsqueeze(-1).log() / kAreaScale +
                                 kNeighborShift);
        }
        outputs.surface =
            solution(basis_surface_, aggregation_surface_, torch::cat(center, -1),
                     count > 0 ? torch::cat(around, -1) : torch::Tensor(), count > 0, torch::cat(known, -1));
    }
    return outputs;
}

}  // namespace meshard
