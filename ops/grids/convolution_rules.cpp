// SPDX-License-Identifier: Apache-2.0
// Convolutions in one, two and three dimensions, plain and transposed. Along a cut spatial dimension every rank
// receives the inputs that its own outputs read and convolves them without padding; cut samples stay on their rank; cut
// channels and weights are gathered.
#include "ops/grids/grid_cuts.h"
#include "ops/rules/placement_algebra.h"

#include <ATen/ATen.h>
#include <ATen/native/ConvUtils.h>

#include <algorithm>

namespace meshard {
namespace {

/// A convolution of values of this rank.
struct LocalConvolution {
    std::vector<std::int64_t> stride, padding, dilation;
    bool transposed = false;
    std::vector<std::int64_t> output_padding;
    std::int64_t groups = 1;

    /// Returns whether LibTorch leaves this convolution to loops of its own although oneDNN, up to ten times faster,
    /// has it: so it does with volumes of one sample and few cells, as ranks have them.
    bool is_for_one_dnn(const at::Tensor& input, const at::Tensor& weight) const;

    at::Tensor forward(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) const;
    std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& gradient, const at::Tensor& input,
                                                            const at::Tensor& weight, std::array<bool, 3> wanted) const;
};

bool LocalConvolution::is_for_one_dnn(const at::Tensor& input, const at::Tensor& weight) const
{
    if (input.dim() != 5 || !input.device().is_cpu() || input.scalar_type() != at::kFloat || !input.is_contiguous() ||
        !at::hasMKLDNN() || !at::globalContext().userEnabledMkldnn() ||
        c10::multiply_integers(weight.sizes().slice(2)) == 1 ||
        !std::equal(output_padding.begin(), output_padding.end(), stride.begin(), stride.end(), std::less<>()))
        return false;
    const auto backend = at::native::select_conv_backend(
        input, weight, {}, c10::fromIntArrayRefSlow(stride), c10::fromIntArrayRefSlow(padding),
        c10::fromIntArrayRefSlow(dilation), transposed, c10::fromIntArrayRefSlow(output_padding), groups, {});
    using at::native::ConvBackend;
    return backend == ConvBackend::Slow3d || backend == ConvBackend::SlowDilated3d ||
           backend == ConvBackend::SlowTranspose3d;
}

at::Tensor LocalConvolution::forward(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) const
{
    if (!is_for_one_dnn(input, weight))
        return at::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
    if (!transposed) return at::mkldnn_convolution(input, weight.contiguous(), bias, padding, stride, dilation, groups);
    // An input in oneDNN's own form is never left to the loops.
    return at::convolution(input.to_mkldnn(), weight, bias, stride, padding, dilation, true, output_padding, groups)
        .to_dense();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> LocalConvolution::backward(const at::Tensor& gradient,
                                                                          const at::Tensor& input,
                                                                          const at::Tensor& weight,
                                                                          std::array<bool, 3> wanted) const
{
    return at::convolution_backward(gradient, is_for_one_dnn(input, weight) ? input.to_mkldnn() : input, weight, {},
                                    stride, padding, dilation, transposed, output_padding, groups, wanted);
}

/// The convolution that a call asks for.
/// @param first      index of the argument `stride`, which padding, dilation, transposed, output_padding and groups
///                   follow
/// @param num_dims   number of spatial dimensions
LocalConvolution asked_for(const RuleCall& call, std::int64_t first, std::int64_t num_dims)
{
    const auto list = [&](std::int64_t i) { return one_a_dim(call.arg(first + i), num_dims); };
    const bool transposed = call.arg(first + 3).toBool();
    return {list(0),
            list(1),
            list(2),
            transposed,
            transposed ? list(4) : std::vector<std::int64_t>(num_dims, 0),
            call.arg(first + 5).toInt()};
}

/// This rank's share of a cut spatial dimension.
struct ConvolvedDim {
    std::int64_t dim;  ///< dimension of the tensors
    AxisLayout in, out;
    RangeExchange exchange;              ///< receives the inputs
    Range outputs;                       ///< outputs of this rank
    std::int64_t before = 0, after = 0;  ///< zeros around the received inputs, where windows reach beyond the input
    /// For a transposed convolution: position in the output of the first entry that the local operator computes.
    std::int64_t shift = 0;
};

class Convolution {
public:
    /// @param first   index of the argument `stride`, which padding, dilation, transposed, output_padding and groups
    /// follow
    Convolution(const RuleCall& call, at::Tensor input, at::Tensor weight, std::int64_t first);

    /// Returns whether the layout is supported. If not, no other function may be called.
    bool possible() const { return possible_; }

    /// Layouts to which the rule converts the input: channels whole.
    const AxisLayouts& input_layouts() const { return input_layouts_; }
    const AxisLayouts& output_layouts() const { return output_layouts_; }
    std::vector<std::int64_t> local_output_shape(const at::Tensor& local_input) const;

    /// The layouts of the gradients of weight and bias: pending if samples or space are cut.
    AxisLayouts sum_layouts() const;

    at::Tensor forward(const at::Tensor& local_input, const at::Tensor& weight, const at::Tensor& bias) const;
    std::tuple<at::Tensor, at::Tensor> backward(const at::Tensor& gradient, const at::Tensor& local_input,
                                                const at::Tensor& weight, bool wants_input, bool wants_weight) const;

private:
    void plan(const RuleCall& call, const std::vector<std::int64_t>& axis_of_dim);
    at::Tensor borrow(at::Tensor local) const;
    std::vector<std::int64_t> borrowed_shape(const at::Tensor& local) const;
    std::vector<std::int64_t> computed_padding() const;

    bool possible_ = false;
    std::int64_t n_ = 0, out_channels_ = 0;
    LocalConvolution local_;  // as called, but without paddings along cut dimensions
    // For a transposed convolution: windows of its adjoint, from the output to the input.
    std::vector<SlidingWindow> windows_;
    AxisLayouts input_layouts_, output_layouts_;
    std::vector<ConvolvedDim> cuts_;
};

Convolution::Convolution(const RuleCall& call, at::Tensor input, at::Tensor weight, std::int64_t first)
{
    n_ = weight.dim() - 2;
    if (n_ < 1 || input.dim() != weight.dim()) return;
    local_ = asked_for(call, first, n_);
    for (const auto* list : {&local_.stride, &local_.padding, &local_.dilation, &local_.output_padding}) {
        if (std::ssize(*list) != n_) return;
    }
    // Arguments that the operator refuses are passed to the general rule, in which it throws the same error on every
    // rank.
    const auto at_least = [](const std::vector<std::int64_t>& list, std::int64_t least) {
        return std::ranges::all_of(list, [&](std::int64_t value) { return value >= least; });
    };
    if (!at_least(local_.stride, 1) || !at_least(local_.padding, 0) || !at_least(local_.dilation, 1) ||
        !at_least(local_.output_padding, 0) || local_.groups < 1)
        return;
    out_channels_ = local_.transposed ? weight.size(1) * local_.groups : weight.size(0);
    const auto in_channels = local_.transposed ? weight.size(0) : weight.size(1) * local_.groups;
    if (input.size(1) != in_channels || weight.size(0) % local_.groups != 0) return;

    for (std::int64_t i = 0; i < n_; ++i) {
        SlidingWindow window{input.size(i + 2), 0, weight.size(i + 2), local_.stride[i], local_.padding[i],
                             local_.dilation[i]};
        if (window.kernel < 1 || window.in < 1) return;
        if (local_.transposed) {
            if (local_.output_padding[i] >= std::max(local_.stride[i], local_.dilation[i])) return;
            window.out = window.in;
            window.in =
                (window.out - 1) * window.stride - 2 * window.padding + window.reach() + local_.output_padding[i] + 1;
            if (window.in < 1) return;
        } else {
            window.out = window.count_outputs();
            if (window.out < 1) return;
        }
        windows_.push_back(window);
    }

    input_layouts_ = layouts_of(call, input);
    for (auto& layout : input_layouts_) {
        if (layout.is_partial() || (layout.is_shard() && layout.placement.dim == 1)) layout = {};
    }
    const auto axes = cut_axes(input_layouts_, input.dim(), 2);
    if (!axes) return;
    plan(call, *axes);
    possible_ = true;
}

void Convolution::plan(const RuleCall& call, const std::vector<std::int64_t>& axis_of_dim)
{
    output_layouts_ = input_layouts_;
    for (std::int64_t i = 0; i < n_; ++i) {
        const auto dim = i + 2, axis = axis_of_dim[dim];
        const auto& window = windows_[i];
        const auto in_size = local_.transposed ? window.out : window.in;
        const auto out_size = local_.transposed ? window.in : window.out;
        if (is_whole(call, axis)) {
            if (axis >= 0) output_layouts_[axis] = cut_layout(input_layouts_[axis], dim, {out_size});
            continue;
        }
        const auto& in = input_layouts_[axis];

        // The inputs that an output range reads. Transposed: input i reaches outputs i * stride - padding, ..., +
        // reach.
        const auto read = [&](const Range& outputs) -> Range {
            if (outputs.size() == 0) return {};
            if (!local_.transposed) return window.window(outputs);
            const auto begin = ceil_div(outputs.begin + window.padding - window.reach(), window.stride);
            return {begin, std::max(begin, floor_div(outputs.end - 1 + window.padding, window.stride) + 1)};
        };
        const auto extents = local_.transposed
                                 ? extents_by_boundary(*in.extents, out_size,
                                                       [&](std::int64_t a) {
                                                           return a * window.stride - window.padding +
                                                                  ceil_div(window.reach() + 1 - window.stride, 2);
                                                       })
                                 : window.out_extents(*in.extents);
        const auto outputs = ranges_of(extents);
        std::vector<Range> needed;
        for (const auto& range : outputs) needed.push_back(clip(read(range), in_size).inside);

        const auto me = call.coordinate(axis);
        ConvolvedDim cut{dim, in, cut_layout(in, dim, extents),
                         RangeExchange(call.device_mesh()->group(axis), in, std::move(needed)), outputs[me]};
        if (local_.transposed) {
            cut.shift = cut.exchange.needed().begin * window.stride - window.padding;
        } else {
            const auto clipped = clip(read(outputs[me]), in_size);
            cut.before = clipped.before;
            cut.after = clipped.after;
        }
        output_layouts_[axis] = cut.out;
        local_.padding[i] = 0;
        local_.output_padding[i] = 0;
        cuts_.push_back(std::move(cut));
    }
}

std::vector<std::int64_t> Convolution::local_output_shape(const at::Tensor& local_input) const
{
    std::vector<std::int64_t> shape{local_input.size(0), out_channels_};
    for (const auto& window : windows_) shape.push_back(local_.transposed ? window.in : window.out);
    for (const auto& cut : cuts_) shape[cut.dim] = cut.outputs.size();
    return shape;
}

AxisLayouts Convolution::sum_layouts() const
{
    auto layouts = input_layouts_;
    for (auto& layout : layouts) {
        if (layout.is_shard()) layout = {Partial(), nullptr, 1};
    }
    return layouts;
}

at::Tensor Convolution::borrow(at::Tensor local) const
{
    for (const auto& cut : cuts_) local = cut.exchange.borrow(local, cut.before, cut.after);
    return local;
}

std::vector<std::int64_t> Convolution::borrowed_shape(const at::Tensor& local) const
{
    auto shape = local.sizes().vec();
    for (const auto& cut : cuts_) shape[cut.dim] = cut.before + cut.exchange.needed().size() + cut.after;
    return shape;
}

/// Arguments of at::constant_pad_nd that turn the local result of a transposed convolution into this rank's outputs:
/// entries that no input reaches become zero, those of other ranks are cut off.
std::vector<std::int64_t> Convolution::computed_padding() const
{
    std::vector<std::int64_t> pad(2 * n_, 0);
    for (const auto& cut : cuts_) {
        const auto& window = windows_[cut.dim - 2];
        const auto computed = (cut.exchange.needed().size() - 1) * window.stride + window.reach() + 1;
        const auto place = 2 * (n_ - 1 - (cut.dim - 2));
        pad[place] = cut.shift - cut.outputs.begin;
        pad[place + 1] = cut.outputs.end - (cut.shift + computed);
    }
    return pad;
}

at::Tensor Convolution::forward(const at::Tensor& local_input, const at::Tensor& weight, const at::Tensor& bias) const
{
    const auto piece = borrow(local_input);
    const auto shape = local_output_shape(local_input);
    if (c10::multiply_integers(shape) == 0) return at::empty(shape, local_input.options());
    if (!local_.transposed || cuts_.empty()) return local_.forward(piece, weight, bias);

    auto result = piece.numel() == 0
                      ? at::zeros(shape, local_input.options())  // outputs between the inputs get only the bias
                      : at::constant_pad_nd(local_.forward(piece, weight, {}), computed_padding());
    if (bias.defined()) {
        std::vector<std::int64_t> channels(n_ + 1, 1);
        channels[0] = -1;
        result = result.add_(bias.view(channels));
    }
    return result;
}

std::tuple<at::Tensor, at::Tensor> Convolution::backward(const at::Tensor& gradient, const at::Tensor& local_input,
                                                         const at::Tensor& weight, bool wants_input,
                                                         bool wants_weight) const
{
    // The input's gradient does not depend on the input's values, so that no inputs of other ranks are needed.
    const auto piece_shape = borrowed_shape(local_input);
    const auto piece =
        wants_weight || cuts_.empty() ? borrow(local_input) : at::empty(piece_shape, local_input.options());
    at::Tensor of_piece, of_weight;
    if (gradient.numel() == 0 || piece.numel() == 0) {
        if (wants_input) of_piece = at::zeros(piece_shape, local_input.options());
        if (wants_weight) of_weight = at::zeros(weight.sizes(), weight.options());
    } else {
        auto of_computed = gradient;
        if (local_.transposed && !cuts_.empty()) {
            auto pad = computed_padding();
            for (auto& amount : pad) amount = -amount;
            of_computed = at::constant_pad_nd(gradient, pad);
        }
        std::tie(of_piece, of_weight, std::ignore) =
            local_.backward(of_computed, piece, weight, {wants_input, wants_weight, false});
    }
    if (wants_input) {
        for (auto cut = cuts_.rbegin(); cut != cuts_.rend(); ++cut) {
            of_piece = cut->exchange.give_back(of_piece.narrow(cut->dim, cut->before, cut->exchange.needed().size()));
        }
    }
    return {of_piece, of_weight};
}

/// Returns whether weights are whole and at most samples are cut (an axis of one rank cuts nothing, whatever its
/// layout): the operator itself then computes everything, with the same shapes on every rank except for the number of
/// samples.
bool is_cut_by_samples_only(const RuleCall& call, const at::Tensor& input, std::initializer_list<std::int64_t> weights)
{
    if (!is_sharded(input) || spec_of(input)->has_partial()) return false;
    for (const auto axis : call.axes()) {
        const auto& layout = call.layout(input, axis);
        if (!layout.is_shard() || is_whole(call, axis)) continue;
        const auto& extents = *layout.extents;
        if (layout.placement.dim != 0 || std::ranges::find(extents, 0) != extents.end()) return false;
    }
    for (const auto i : weights) {
        if (!call.arg(i).isTensor()) continue;
        const auto& weight = call.arg(i).toTensor();
        if (is_sharded(weight) && (spec_of(weight)->has_shard() || spec_of(weight)->has_partial())) return false;
    }
    return true;
}

/// The spec of the output for such an input; it has the same number of samples. Only a dimension that an axis of one
/// rank cuts may have another length.
SpecPtr output_spec(const RuleCall& call, const SpecPtr& input, const at::Tensor& local_output)
{
    AxisLayouts axes;
    for (const auto axis : call.axes()) {
        const auto& layout = input->axes[axis];
        if (!layout.is_shard() || !is_whole(call, axis) ||
            layout.extents->front() == local_output.size(layout.placement.dim))
            continue;
        if (axes.empty()) axes = input->axes;
        axes[axis] = cut_layout(layout, layout.placement.dim, {local_output.size(layout.placement.dim)});
    }
    return axes.empty() ? input : call.spec(axes);
}

/// LibTorch's kernels check the channels, but not where a rank has no rows.
void check_channels(const RuleCall& call, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias)
{
    const bool transposed = call.arg(6).toBool();
    const auto groups = call.arg(8).toInt();
    const auto num_inputs = transposed ? weight.size(0) : weight.size(1) * groups;
    const auto num_outputs = transposed ? weight.size(1) * groups : weight.size(0);
    TORCH_CHECK(input.size(1) == num_inputs, call.name(), ": weights of shape ", weight.sizes(), " in ", groups,
                " groups take ", num_inputs, " channels, found an input of shape ", input.sizes(), ".");
    TORCH_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == num_outputs), call.name(), ": weights of shape ",
                weight.sizes(), " expect a bias of shape [", num_outputs, "], found ",
                bias.defined() ? bias.sizes() : c10::IntArrayRef(), ".");
}

/// convolution(input, weight, bias?, stride, padding, dilation, transposed, output_padding, groups). _convolution has
/// four more arguments, which choose among ways to compute the same.
void convolution(RuleCall& call)
{
    const auto input = call.tensor(0), weight = call.tensor(1), bias = call.tensor(2);
    check_channels(call, input, weight, bias);
    if (is_cut_by_samples_only(call, input, {1, 2})) {
        call.make_local();
        if (weight.dim() == 5) {
            const auto volumes = asked_for(call, 3, 3);
            if (volumes.is_for_one_dnn(call.tensor(0), call.tensor(1))) {
                auto output = volumes.forward(call.tensor(0), call.tensor(1), call.tensor(2));
                const auto spec = output_spec(call, spec_of(input), output);
                return call.finish({wrap(std::move(output), spec)});
            }
        }
        auto output = call.run_local()[0].toTensor();
        const auto spec = output_spec(call, spec_of(input), output);
        return call.push({wrap(std::move(output), spec)});
    }
    const Convolution rule(call, input, weight, 3);
    if (!rule.possible()) return gathered_rule(call);

    call.reduce(call.tensors());
    const AxisLayouts whole(call.num_axes());
    const auto local_input = local_of(with_layouts(call, input, rule.input_layouts()));
    const auto local_weight = local_of(with_layouts(call, weight, whole));
    const auto local_bias = bias.defined() ? local_of(with_layouts(call, bias, whole)) : at::Tensor();
    call.finish({wrap(rule.forward(local_input, local_weight, local_bias), call.spec(rule.output_layouts()))});
}

/// convolution_backward(grad_output, input, weight, bias_sizes?, stride, padding, dilation, transposed, output_padding,
/// groups, output_mask)
///   -> grad_input with the input's layout; grad_weight and grad_bias are sums over samples and space, pending if those
///      are cut.
void convolution_backward(RuleCall& call)
{
    const auto gradient = call.tensor(0), input = call.tensor(1), weight = call.tensor(2);
    const auto mask = call.arg(10).toBoolList();
    const bool wants_input = mask.get(0), wants_weight = mask.get(1), wants_bias = mask.get(2);
    const Convolution rule(call, input, weight, 4);
    if (!rule.possible()) return gathered_rule(call);

    call.reduce(call.tensors());
    const auto local_input = local_of(with_layouts(call, input, rule.input_layouts()));
    const auto local_weight = local_of(with_layouts(call, weight, AxisLayouts(call.num_axes())));
    const auto local_gradient = local_of(with_layouts(call, gradient, rule.output_layouts()));
    const auto [of_input, of_weight] =
        rule.backward(local_gradient, local_input, local_weight, wants_input, wants_weight);

    torch::jit::Stack results(3, at::Tensor());
    const auto sums = call.spec(rule.sum_layouts());
    if (wants_input) results[0] = wrap(of_input, call.spec(rule.input_layouts()));
    if (wants_weight) results[1] = wrap(of_weight, sums);
    if (wants_bias) {
        std::vector<std::int64_t> dims{0};
        for (std::int64_t dim = 2; dim < local_gradient.dim(); ++dim) dims.push_back(dim);
        results[2] = wrap(local_gradient.sum(dims), sums);
    }
    call.finish(std::move(results));
}

const RuleRegistration convolution_rules[] = {
    {"convolution", {"aten::convolution", "aten::_convolution"}, convolution},
    {"convolution", {"aten::convolution_backward"}, convolution_backward},
};

}  // namespace
}  // namespace meshard
