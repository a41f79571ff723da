// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/device_block.h"

#include "ops/fused/tile_tensors.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

constexpr double kGumbelEpsilon = 1e-8;

std::int64_t count_of(const std::vector<Tile>& ranges)
{
    std::int64_t count = 0;
    for (const auto& range : ranges) count += range.count;
    return count;
}

/// Adds the sums of the ranges' samples (ranges, ...) to those of all samples (B, ...), whose memory is their own: a
/// piece's sums are used again. With a single piece, the sums are those of all.
void add_sums(at::Tensor& all, const at::Tensor& sums, const std::vector<Tile>& ranges, std::int64_t batch,
              bool is_whole)
{
    if (is_whole) {
        all = sums;
        return;
    }
    if (!all.defined()) {
        auto shape = sums.sizes().vec();
        shape[0] = batch;
        all = at::zeros(shape, sums.options());
    }
    for (std::size_t i = 0; i < ranges.size(); ++i) all[ranges[i].sample].add_(sums[static_cast<std::int64_t>(i)]);
}

}  // namespace

std::vector<std::vector<Tile>> device_ranges(std::int64_t batch, std::int64_t num_points, std::int64_t most)
{
    std::vector<std::vector<Tile>> pieces;
    if (batch == 0) pieces.emplace_back();
    const bool together = batch * num_points <= most;
    for (std::int64_t sample = 0; sample < batch; ++sample) {
        for (std::int64_t begin = 0; begin == 0 || begin < num_points; begin += most) {
            if (!together || pieces.empty()) pieces.emplace_back();
            pieces.back().push_back({sample, sample * num_points + begin, std::min(most, num_points - begin)});
        }
    }
    return pieces;
}

at::Tensor device_noise(const FusedBlock& block, const RowDraw& draw, const at::Tensor& x)
{
    if (!block.noise) return {};
    const auto& shape = block.shape;
    auto noise = draw.numbers({x.size(0), x.size(1), shape.heads, shape.slices}, x.options().dtype(at::kFloat));
    noise.add_(kGumbelEpsilon).log_().neg_().add_(kGumbelEpsilon).log_().neg_();
    return noise.flatten(0, 1);
}

DeviceBlockPasses::DeviceBlockPasses(BlockCall& call, const at::Tensor& x)
    : call_(call), x_(x.defined() ? x.contiguous() : x), layer_(*call.layer)
{
}

at::Tensor DeviceBlockPasses::rows(const at::Tensor& points, const std::vector<Tile>& ranges) const
{
    return points.flatten(0, 1).narrow(0, ranges.empty() ? 0 : ranges.front().first, count_of(ranges));
}

LayerPoints DeviceBlockPasses::projected(const std::vector<Tile>& ranges, bool record) const
{
    auto own = ranges;
    for (auto& range : own) range.first -= ranges.front().first;
    return layer_.project(rows(x_, ranges), own, noise_.defined() ? rows(noise_.unsqueeze(0), ranges) : at::Tensor(),
                          record);
}

at::Tensor DeviceBlockPasses::forward(const std::vector<at::Tensor>& attend_weights)
{
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const bool record = call_.recorded && call_.options.keep_activations, is_whole = call_.pieces.size() == 1;
    noise_ = device_noise(call_.block, call_.noise, x_);
    std::vector<LayerPoints> pieces;
    at::Tensor sums;
    for (const auto& ranges : call_.pieces) {
        auto points = projected(ranges, record);
        add_sums(sums, layer_.feature_sums(points), ranges, x_.size(0), is_whole);
        if (!is_whole) points.projected.reset();
        pieces.push_back(std::move(points));
    }
    const auto type = call_.block.weights.norm1.weight.scalar_type();
    call_.slices = std::make_unique<SliceStates>(sums, type, call_.block.epsilon, call_.block.attend, attend_weights,
                                                 call_.rows, call_.recorded);

    at::Tensor result;
    for (std::size_t i = 0; i < call_.pieces.size(); ++i) {
        const auto& ranges = call_.pieces[i];
        auto& points = pieces[i];
        if (!is_whole) {
            auto again = projected(ranges, false);
            again.log_sums = std::move(points.log_sums);
            points = std::move(again);
        }
        const auto found = layer_.second_half(points, rows(x_, ranges), call_.slices->states(), record);
        if (is_whole) {
            result = found.view({x_.size(0), x_.size(1), found.size(1)});
        } else {
            if (!result.defined()) result = at::empty({x_.size(0), x_.size(1), found.size(1)}, found.options());
            rows(result, ranges).copy_(found);
            points = LayerPoints();
        }
    }
    if (record) call_.kept = std::move(pieces.front());
    return result;
}

BlockPassGradients DeviceBlockPasses::backward(const at::Tensor& result_gradient)
{
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto head_dim = call_.block.shape.head_dim;
    const auto& states = call_.slices->states();
    const bool is_kept = !x_.defined(), is_whole = call_.pieces.size() == 1;
    const auto batch = result_gradient.size(0), num_points = result_gradient.size(1);
    if (!is_kept) noise_ = device_noise(call_.block, call_.noise, x_);

    std::vector<LayerPoints> pieces;
    std::vector<DeviceLayer::Second> seconds;
    std::vector<at::Tensor> piece_sums;
    at::Tensor state_sums;
    const auto gradient = result_gradient.contiguous();
    for (const auto& ranges : call_.pieces) {
        LayerPoints points;
        if (is_kept) {
            points = call_.kept;
        } else {
            points = projected(ranges, true);
            layer_.second_half(points, rows(x_, ranges), states, /*record=*/true, /*finish=*/false);
        }
        seconds.push_back(layer_.second_backward(points, rows(gradient, ranges)));
        piece_sums.push_back(layer_.sums_of(points, seconds.back().mixed));
        add_sums(state_sums, piece_sums.back(), ranges, batch, is_whole);
        if (!is_whole) {
            LayerPoints left;
            left.log_sums = std::move(points.log_sums);
            points = std::move(left);
        }
        pieces.push_back(std::move(points));
    }
    auto of_slices = call_.slices->backward(state_sums.narrow(3, 0, head_dim));
    round_totals(call_.type, states, call_.slices->sums(), of_slices.states, of_slices.sums);

    at::Tensor x_gradient;
    for (std::size_t i = 0; i < call_.pieces.size(); ++i) {
        const auto& ranges = call_.pieces[i];
        if (!is_whole) {
            auto again = projected(ranges, true);
            again.log_sums = std::move(pieces[i].log_sums);
            pieces[i] = std::move(again);
        }
        const auto found = layer_.first_backward(pieces[i], states, of_slices.sums, piece_sums[i], seconds[i]);
        if (is_whole) {
            x_gradient = found.view({batch, num_points, found.size(1)});
        } else {
            if (!x_gradient.defined()) x_gradient = at::empty({batch, num_points, found.size(1)}, found.options());
            rows(x_gradient, ranges).copy_(found);
            pieces[i] = LayerPoints();
            seconds[i] = {};
        }
    }
    return {x_gradient, list_of(layer_.weight_gradients()), std::move(of_slices.weights)};
}

}  // namespace meshard
