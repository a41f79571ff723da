// SPDX-License-Identifier: Apache-2.0
// Interpolation by size or factor: nearest, linear and cubic, in one to three dimensions. Every mode works dimension by
// dimension, so that a cut dimension becomes a map of few taps whose source indices follow from the sizes of the whole,
// and the operator itself computes the others.
#include "ops/grids/grid_cuts.h"
#include "ops/grids/tap_map.h"
#include "ops/rules/placement_algebra.h"

#include <ATen/ATen.h>
#include <ATen/native/UpSample.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace meshard {
namespace {

enum class Mode : std::uint8_t { Nearest, NearestExact, Linear, Cubic };

Mode mode_of(std::string_view name)
{
    if (name.find("nearest_exact") != std::string_view::npos) return Mode::NearestExact;
    if (name.find("nearest") != std::string_view::npos) return Mode::Nearest;
    return name.find("cubic") != std::string_view::npos ? Mode::Cubic : Mode::Linear;
}

/// The input entry that each output of the operator takes along a dimension of `in` entries, with size one in the other
/// dimensions. Found by calling the operator, since its rounding depends on type and device.
std::vector<std::int64_t> nearest_sources(Mode mode, std::int64_t n, std::int64_t i, std::int64_t in, std::int64_t out,
                                          std::optional<double> scale, const at::TensorOptions& options)
{
    // Numbers below 128 are exact in every floating type: an index is interpolated digit by digit.
    constexpr std::int64_t kBase = 128;
    std::vector<std::int64_t> shape{1, 1}, size(n, 1);
    shape.resize(2 + n, 1);
    shape[2 + i] = in;
    size[i] = out;
    std::vector<at::Tensor> digits;
    const auto index = at::arange(in, at::kLong);
    for (std::int64_t unit = 1; unit == 1 || unit < in; unit *= kBase)
        digits.push_back(index.floor_divide(unit).remainder(kBase).view(shape));
    const auto probe = at::cat(digits, 1).to(options);
    std::vector<std::optional<double>> scales(n);
    scales[i] = scale;
    const bool exact = mode == Mode::NearestExact;
    at::Tensor taken;
    if (n == 1)
        taken = exact ? at::_upsample_nearest_exact1d(probe, size, scales[0])
                      : at::upsample_nearest1d(probe, size, scales[0]);
    if (n == 2) {
        taken = exact ? at::_upsample_nearest_exact2d(probe, size, scales[0], scales[1])
                      : at::upsample_nearest2d(probe, size, scales[0], scales[1]);
    }
    if (n == 3) {
        taken = exact ? at::_upsample_nearest_exact3d(probe, size, scales[0], scales[1], scales[2])
                      : at::upsample_nearest3d(probe, size, scales[0], scales[1], scales[2]);
    }
    const auto numbers = taken.to(at::TensorOptions(at::kCPU).dtype(at::kLong)).reshape({std::ssize(digits), out});
    std::vector<std::int64_t> sources(out, 0);
    std::int64_t unit = 1;
    for (std::size_t d = 0; d < digits.size(); ++d, unit *= kBase) {
        const auto* row = numbers[static_cast<std::int64_t>(d)].const_data_ptr<std::int64_t>();
        for (std::int64_t o = 0; o < out; ++o) sources[o] += unit * row[o];
    }
    return sources;
}

/// `nearest_sources`, cached for each device: the host waits for the result.
std::vector<std::int64_t> known_sources(Mode mode, std::int64_t n, std::int64_t i, std::int64_t in, std::int64_t out,
                                        std::optional<double> scale, const at::TensorOptions& options)
{
    using Question =
        std::tuple<Mode, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::optional<double>, std::string>;
    static std::mutex mutex;
    static std::map<Question, std::vector<std::int64_t>> known;
    const Question question{
        mode, n, i, in, out, scale, options.device().str() + c10::toString(c10::typeMetaToScalarType(options.dtype()))};
    {
        const std::lock_guard lock(mutex);
        if (const auto found = known.find(question); found != known.end()) return found->second;
    }
    auto sources = nearest_sources(mode, n, i, in, out, scale, options);
    const std::lock_guard lock(mutex);
    return known.emplace(question, std::move(sources)).first->second;
}

/// Indices and weights as LibTorch computes them, in the same type T.
template <class T>
Taps weighted_taps(Mode mode, std::int64_t in, std::int64_t out, bool align_corners, std::optional<double> scale)
{
    const auto num_taps = mode == Mode::Cubic ? 4 : 2;
    Taps taps{in, out, {}, {}};
    taps.index.assign(num_taps, std::vector<std::int64_t>(out));
    taps.weight.assign(num_taps, std::vector<double>(out));
    const auto ratio = at::native::area_pixel_compute_scale<T>(in, out, align_corners, scale);
    for (std::int64_t o = 0; o < out; ++o) {
        if (mode == Mode::Linear) {
            T first, second;
            at::native::compute_source_index_and_lambda(taps.index[0][o], taps.index[1][o], first, second, ratio, o, in,
                                                        out, align_corners);
            taps.weight[0][o] = first;
            taps.weight[1][o] = second;
            continue;
        }
        const auto position = at::native::area_pixel_compute_source_index<T>(ratio, o, align_corners, /*cubic=*/true);
        std::int64_t source = 0;
        T fraction, coefficients[4];
        at::native::guard_index_and_lambda(position, in, source, fraction);
        at::native::get_cubic_upsample_coefficients(coefficients, fraction);
        for (int t = 0; t < 4; ++t) {
            taps.index[t][o] = std::clamp<std::int64_t>(source + t - 1, 0, in - 1);
            taps.weight[t][o] = coefficients[t];
        }
    }
    return taps;
}

struct Interpolation {
    std::vector<TapMap> cut;
    AxisLayouts input_layouts, output_layouts;
    bool has_uncut = false;
};

/// `layouts` are those of the input. Returns nothing if they, or the arguments, are left to the general rule.
std::optional<Interpolation> plan(const RuleCall& call, c10::IntArrayRef in, c10::IntArrayRef out,
                                  const AxisLayouts& layouts, bool align_corners,
                                  const std::vector<std::optional<double>>& scales, const at::TensorOptions& options,
                                  bool backward)
{
    const auto n = std::ssize(out);
    if (std::ssize(in) != n + 2 || n < 1 || n > 3) return std::nullopt;
    for (std::int64_t i = 0; i < n; ++i) {
        if (in[i + 2] < 1 || out[i] < 1) return std::nullopt;
    }
    if (in[0] * in[1] == 0) return std::nullopt;
    const auto axes = cut_axes(layouts, n + 2, 2);
    if (!axes) return std::nullopt;

    Interpolation plan;
    plan.input_layouts = plan.output_layouts = layouts;
    const auto mode = mode_of(call.name());
    for (std::int64_t i = 0; i < n; ++i) {
        const auto axis = (*axes)[i + 2], from = in[i + 2], to = out[i];
        if (is_whole(call, axis)) {
            plan.has_uncut = true;
            if (axis >= 0) plan.output_layouts[axis] = cut_layout(layouts[axis], i + 2, {to});
            continue;
        }
        Taps taps;
        if (mode == Mode::Linear || mode == Mode::Cubic) {
            taps = options.dtype() == at::kDouble ? weighted_taps<double>(mode, from, to, align_corners, scales[i])
                                                  : weighted_taps<float>(mode, from, to, align_corners, scales[i]);
        } else if (backward && options.device().is_cpu()) {
            // On CPUs the backward operator rounds differently.
            taps = {from, to, {{}}, {}};
            const auto index = mode == Mode::Nearest ? at::native::nearest_idx : at::native::nearest_exact_idx;
            for (std::int64_t o = 0; o < to; ++o) taps.index[0].push_back(index(o, from, to, scales[i]));
        } else {
            taps = {from, to, {known_sources(mode, n, i, from, to, scales[i], options)}, {}};
        }
        plan.cut.emplace_back(call, axis, layouts[axis], std::move(taps),
                              [=](std::int64_t a) { return (2 * a * to + from) / (2 * from); });
        plan.output_layouts[axis] = plan.cut.back().output_layout();
    }
    return plan;
}

/// The arguments after the sizes: align_corners if the operator has it, then one scale for each dimension.
struct Options {
    bool align_corners = false;
    std::int64_t first_scale = 0;
    std::vector<std::optional<double>> scales;
};

Options options_of(const RuleCall& call, std::int64_t next, std::int64_t n)
{
    Options options;
    if (call.arg(next).isBool()) options.align_corners = call.arg(next++).toBool();
    options.first_scale = next;
    for (std::int64_t i = 0; i < n; ++i) options.scales.push_back(call.arg(next + i).toOptional<double>());
    return options;
}

/// Sets arguments with which the operator copies along cut dimensions: as many outputs as inputs, no factor.
void forget_scales(RuleCall& call, const Interpolation& plan, const Options& options)
{
    for (const auto& map : plan.cut) call.arg(options.first_scale + map.dim() - 2) = c10::IValue();
}

/// upsample_*(self, output_size, [align_corners], scales...)
void interpolate(RuleCall& call)
{
    const auto input = call.tensor(0);
    const auto size = call.arg(1).toIntVector();
    const auto n = std::ssize(size);
    if (!input.is_floating_point() || call.num_args() < 2 + n) return gathered_rule(call);
    const auto options = options_of(call, 2, n);
    const auto way = plan(call, input.sizes(), size, without_pending(layouts_of(call, input)), options.align_corners,
                          options.scales, input.options(), false);
    if (!way) return gathered_rule(call);

    call.reduce({input});
    auto local = local_of(input);
    for (const auto& map : way->cut) local = map.apply(local);
    const auto spec = call.spec(way->output_layouts);
    if (!way->has_uncut) return call.finish({wrap(local, spec)});
    auto shape = input.sizes().vec();
    std::ranges::copy(size, shape.begin() + 2);
    shape = spec->local_shape(shape);
    if (c10::multiply_integers(shape) == 0) return call.finish({wrap(at::empty(shape, local.options()), spec)});
    forget_scales(call, *way, options);
    call.arg(0) = local;
    call.arg(1) = std::vector<std::int64_t>(shape.begin() + 2, shape.end());
    call.run({spec});
}

/// The layout of the input's gradient for an output's gradient with layout `out`: boundaries between ranks are scaled
/// by the ratio of sizes.
AxisLayouts input_layouts_of(const AxisLayouts& out, c10::IntArrayRef input_size, c10::IntArrayRef output_size)
{
    auto layouts = without_pending(out);
    for (auto& layout : layouts) {
        if (!layout.is_shard() || layout.placement.dim < 2) continue;
        const auto dim = layout.placement.dim, from = output_size[dim - 2], to = input_size[dim];
        layout = {Shard(dim),
                  std::make_shared<Extents>(extents_by_boundary(
                      *layout.extents, to, [=](std::int64_t a) { return (2 * a * to + from) / (2 * from); })),
                  1};
    }
    return layouts;
}

/// upsample_*_backward(grad_output, output_size, input_size, [align_corners], scales...)
///
/// The arguments do not give the input's layout: the gradient's layout is scaled from that of grad_output, which is
/// then converted to the layout that forward's result would have for it.
void interpolate_backward(RuleCall& call)
{
    const auto gradient = call.tensor(0);
    const auto out = call.arg(1).toIntVector(), in = call.arg(2).toIntVector();
    const auto n = std::ssize(out);
    if (!gradient.is_floating_point() || gradient.dim() != n + 2 || std::ssize(in) != n + 2) return gathered_rule(call);
    const auto options = options_of(call, 3, n);
    const auto arriving = layouts_of(call, gradient);
    if (gradient.numel() == 0 || !cut_axes(arriving, n + 2, 2)) return gathered_rule(call);
    const auto way = plan(call, in, out, input_layouts_of(arriving, in, out), options.align_corners, options.scales,
                          gradient.options(), true);
    if (!way) return gathered_rule(call);

    call.reduce({gradient});
    auto local = local_of(with_layouts(call, gradient, way->output_layouts));
    const auto spec = call.spec(way->input_layouts);
    if (way->has_uncut) {
        auto shape = spec->local_shape(in);
        for (const auto& map : way->cut) shape[map.dim()] = map.num_outputs();
        if (c10::multiply_integers(shape) == 0) {
            local = at::empty(shape, local.options());
        } else {
            forget_scales(call, *way, options);
            call.arg(0) = local;
            call.arg(1) = local.sizes().slice(2).vec();
            call.arg(2) = shape;
            local = call.run_local()[0].toTensor();
            for (auto map = way->cut.rbegin(); map != way->cut.rend(); ++map) local = map->apply_adjoint(local);
            return call.push({wrap(local, spec)});
        }
    }
    for (auto map = way->cut.rbegin(); map != way->cut.rend(); ++map) local = map->apply_adjoint(local);
    call.finish({wrap(local, spec)});
}

const RuleRegistration interpolation_rules[] = {
    {"interpolation",
     {"aten::upsample_nearest1d", "aten::upsample_nearest2d", "aten::upsample_nearest3d",
      "aten::_upsample_nearest_exact1d", "aten::_upsample_nearest_exact2d", "aten::_upsample_nearest_exact3d",
      "aten::upsample_linear1d", "aten::upsample_bilinear2d", "aten::upsample_trilinear3d", "aten::upsample_bicubic2d"},
     interpolate},
    {"interpolation",
     {"aten::upsample_nearest1d_backward", "aten::upsample_nearest2d_backward", "aten::upsample_nearest3d_backward",
      "aten::_upsample_nearest_exact1d_backward", "aten::_upsample_nearest_exact2d_backward",
      "aten::_upsample_nearest_exact3d_backward", "aten::upsample_linear1d_backward",
      "aten::upsample_bilinear2d_backward", "aten::upsample_trilinear3d_backward", "aten::upsample_bicubic2d_backward"},
     interpolate_backward},
};

}  // namespace
}  // namespace meshard
