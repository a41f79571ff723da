// SPDX-License-Identifier: Apache-2.0
// Operators whose result at an index depends on their operands at that index only, after broadcasting.
#include "ops/rules/pointwise_rule.h"
#include "ops/rules/rank_parts.h"
#include "ops/rules/whole_vectors.h"
#include "sharding/tensor/direct_kernel.h"
#include "sharding/tensor/exact_mode.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>

namespace meshard {
namespace {

/// Checks whether all tensor operands are scalars or have exactly the same layout, without a Partial: then no
/// conversion is needed.
class CommonLayout {
public:
    void add(const at::Tensor& tensor)
    {
        if (!tensor.defined()) return;
        if (!is_sharded(tensor)) {
            differ_ |= tensor.dim() > 0;
            return;
        }
        const auto& own = spec_of(tensor);
        differ_ |= spec_ ? tensor.dim() != num_dims_ || !(own == *spec_ || *own == **spec_) : own->has_partial();
        spec_ = &own;
        num_dims_ = tensor.dim();
    }

    /// Null if layouts differ, or no operand is sharded.
    const SpecPtr* spec() const { return differ_ ? nullptr : spec_; }

private:
    const SpecPtr* spec_ = nullptr;
    std::int64_t num_dims_ = -1;
    bool differ_ = false;
};

SpecPtr common_spec(const RuleCall& call)
{
    CommonLayout layout;
    for (std::int64_t i = 0; i < call.num_args(); ++i) {
        if (call.arg(i).isTensor()) layout.add(call.arg(i).toTensor());
    }
    return layout.spec() ? *layout.spec() : nullptr;
}

enum class Linearity {
    None,
    Sum,      // f(x, y) = x + a y; pending operands are added
    Scale,    // f(x, y): linear in x; the factor y must be complete
    Product,  // linear in either operand, the other one complete
    Map,      // f(x): linear in its one tensor operand
    Choice    // where(condition, x, y): linear in x and y together, the condition complete
};

Linearity linearity(const std::string& name)
{
    static constexpr std::array kSum{"aten::add", "aten::add_", "aten::sub", "aten::sub_"};
    static constexpr std::array kScale{"aten::div", "aten::div_"};
    static constexpr std::array kProduct{"aten::mul", "aten::mul_"};
    static constexpr std::array kMap{"aten::neg", "aten::neg_", "aten::clone", "aten::positive"};
    if (name == "aten::where") return Linearity::Choice;
    const auto in = [&](const auto& names) { return std::ranges::find(names, name) != names.end(); };
    return in(kSum)       ? Linearity::Sum
           : in(kScale)   ? Linearity::Scale
           : in(kProduct) ? Linearity::Product
           : in(kMap)     ? Linearity::Map
                          : Linearity::None;
}

bool is_pending_sum(const AxisLayout& layout)
{
    return layout.is_partial() && layout.placement.reduction == Reduction::Sum;
}

bool has_rounding(const RuleCall& call)  // div with a rounding mode
{
    return call.name().starts_with("aten::div") && call.schema().overload_name().ends_with("_mode") &&
           !call.arg(2).isNone();
}

/// Returns whether the pending sums among the operands can stay pending on `axis`: the operator is linear in them and
/// no operand is sharded there.
bool stays_pending(const RuleCall& call, Linearity kind, const std::vector<at::Tensor>& tensors, std::int64_t axis)
{
    if (kind == Linearity::Choice) {
        return tensors.size() == 3 && call.layout(tensors[0], axis).is_replicate() &&
               stays_pending(call, Linearity::Sum, {tensors[1], tensors[2]}, axis);
    }
    if (tensors.size() > 2) return false;
    const auto& first = tensors[0];
    const auto second = tensors.size() > 1 ? tensors[1] : at::Tensor();
    const auto& a = call.layout(first, axis);
    const auto& b = call.layout(second, axis);  // an undefined second operand is Replicate
    if (a.is_shard() || b.is_shard()) return false;
    const auto wraps = [](const at::Tensor& tensor) {
        return tensor.defined() && at::isIntegralType(tensor.scalar_type(), true);
    };
    if (wraps(first) || (b.is_partial() && wraps(second))) return false;
    switch (kind) {
    case Linearity::None:
    case Linearity::Choice:
        return false;
    case Linearity::Map:
        return is_pending_sum(a);
    case Linearity::Scale:
        return is_pending_sum(a) && b.is_replicate() && !has_rounding(call) && distributes(second, true);
    case Linearity::Product:
        return (is_pending_sum(a) && b.is_replicate() && distributes(second, false)) ||
               (a.is_replicate() && is_pending_sum(b) && distributes(first, false));
    case Linearity::Sum:
        // An operand that is not pending is added on the first rank only; it must then have the shape of the result.
        return second.defined() && (is_pending_sum(a) || a.is_replicate()) && (is_pending_sum(b) || b.is_replicate()) &&
               (is_pending_sum(a) || is_pending_sum(b));
    }
    return false;
}

/// Autograd adds the gradients of one tensor in place or not, depending on use counts, which may differ between ranks.
/// In place, the whole of a sharded gradient is added to a plain one. Out of place the rule does the same, so that
/// messages match and the result is plain in both cases.
bool adds_to_plain_gradient(const RuleCall& call, const std::vector<at::Tensor>& tensors)
{
    return (call.name() == "aten::add" || call.name() == "aten::add_") && tensors.size() == 2 &&
           !is_sharded(tensors[0]) && tensors[0].sizes() == tensors[1].sizes() &&
           torch::autograd::get_current_graph_task_id() >= 0 && !at::GradMode::is_enabled();
}

void add_to_plain_gradient(RuleCall& call)
{
    const auto gradient = call.tensor(0);
    const auto whole = local_of(with_layouts(call, call.tensor(1), AxisLayouts(call.num_axes())));
    const auto factor = call.arg(2).toScalar();
    call.finish({call.mutated_arg() == 0 ? gradient.add_(whole, factor) : at::add(gradient, whole, factor)});
}

bool lies_partly_in(const at::Tensor& operand, const at::Tensor& target)
{
    return at::get_overlap_status(operand, target) == at::MemOverlapStatus::Partial;
}

/// Copies operands that lie partly where the result goes. LibTorch refuses such calls, but only on ranks that hold
/// entries of both, and the others would wait for these.
void read_before_writing(RuleCall& call)
{
    const auto target = call.tensor(call.mutated_arg());
    for (std::int64_t i = 0; i < call.num_args(); ++i) {
        if (i == call.mutated_arg() || !call.is_tensor(i)) continue;
        const auto operand = call.tensor(i);
        if (operand.defined() && lies_partly_in(operand, target)) call.set_local(i, operand.clone());
    }
}

void run_on_parts(RuleCall& call, const SpecPtr& spec)
{
    if (call.mutated_arg() >= 0) read_before_writing(call);
    if (exact_mode())
        run_in_whole_vectors(call, spec);
    else
        call.run({spec});
}

std::int64_t result_dims(const std::vector<at::Tensor>& tensors)
{
    std::int64_t num_dims = 0;
    for (const auto& tensor : tensors) num_dims = std::max(num_dims, tensor.dim());
    return num_dims;
}

}  // namespace

void pointwise_rule(RuleCall& call)
{
    if (call.is_random()) {
        bool cut = false;
        for (const auto& tensor : call.tensors()) cut |= is_sharded(tensor) && spec_of(tensor)->has_shard();
        if (cut) call.refuse("it draws random numbers, which would depend on the partition");
    }
    if (call.mutated_arg() < 0) call.keep_strides();
    if (auto spec = common_spec(call)) {
        call.make_local();
        return run_on_parts(call, spec);
    }

    const auto tensors = call.tensors();
    if (adds_to_plain_gradient(call, tensors)) return add_to_plain_gradient(call);
    const auto num_dims = result_dims(tensors);
    const auto kind = linearity(call.name());
    const auto written = call.mutated_arg();
    const auto first = tensors[0];
    // A plain tensor is equal on every rank: the whole is written to it.
    if (written == 0 && !is_sharded(first)) return gathered_rule(call);

    // On every axis with pending operands those that may stay pending are kept; all others are reduced in one message.
    bool pending = kind != Linearity::None;
    bool any_pending = false;
    for (const auto axis : call.axes()) {
        bool here = false;
        for (const auto& tensor : tensors) here |= call.layout(tensor, axis).is_partial();
        any_pending |= here;
        if (here) pending = pending && stays_pending(call, kind, tensors, axis);
    }
    if (written >= 0 && is_sharded(first) && any_pending && pending) {
        // In place, the operand written to must already be pending where the result is.
        for (const auto axis : call.axes()) {
            if (call.layout(tensors.back(), axis).is_partial() && !call.layout(first, axis).is_partial())
                pending = false;
        }
    }
    if (any_pending && !pending) call.reduce(tensors);

    // The result is sharded wherever an operand is sharded along a dimension that is not broadcast.
    AxisLayouts result(call.num_axes());
    for (const auto axis : call.axes()) {
        for (const auto& tensor : tensors) {
            const auto& layout = call.layout(tensor, axis);
            if (layout.is_shard() && !result[axis].is_shard()) {
                const auto dim = layout.placement.dim + num_dims - tensor.dim();
                bool broadcast = false;
                for (const auto& other : tensors) {
                    const auto there = dim - (num_dims - other.dim());
                    broadcast |= there >= 0 && other.size(there) != tensor.size(layout.placement.dim) &&
                                 tensor.size(layout.placement.dim) == 1;
                }
                if (broadcast) continue;
                result[axis] = layout;
                result[axis].placement.dim = dim;
            } else if (layout.is_partial()) {
                result[axis] = layout;
            }
        }
    }
    // The tensor that is written to keeps its layout, since others may share its memory.
    if (written == 0) result = layouts_of(call, first);
    // A dimension may be sharded on one axis only: the first one.
    for (const auto axis : call.axes()) {
        for (std::int64_t other = 0; other < axis; ++other) {
            if (result[axis].is_shard() && result[other].is_shard() &&
                result[axis].placement.dim == result[other].placement.dim)
                result[axis] = {};
        }
    }

    for (std::int64_t i = 0; i < call.num_args(); ++i) {
        auto tensor = call.tensor(i);
        if (!tensor.defined()) continue;
        at::Tensor local;
        auto axes = layouts_of(call, tensor);
        for (const auto axis : call.axes()) {
            if (!axes[axis].is_shard()) continue;
            // Converted if it is sharded differently, or along a dimension that is broadcast.
            auto there = result[axis];
            there.placement.dim -= num_dims - tensor.dim();
            const bool meets = there.is_shard() && there.placement.dim >= 0 && tensor.size(there.placement.dim) != 1;
            if (!(axes[axis] == there)) axes[axis] = meets ? there : AxisLayout{};
        }
        if (is_sharded(tensor)) tensor = with_layouts(call, tensor, axes);
        local = local_of(tensor);
        for (const auto axis : call.axes()) {
            const auto& target = result[axis];
            if (target.is_shard() && call.layout(tensor, axis).is_replicate()) {
                local = narrow_operand(call, local, target, axis, target.placement.dim - (num_dims - tensor.dim()));
            }
            // A summand that is not pending is added to a pending sum on the first rank only.
            const bool summand = kind == Linearity::Sum || (kind == Linearity::Choice && i > 0);
            if (target.is_partial() && call.layout(tensor, axis).is_replicate() && summand &&
                call.coordinate(axis) != 0) {
                local = at::zeros_like(local);
            }
        }
        call.set_local(i, local);
    }
    run_on_parts(call, call.spec(result));
}

namespace {

void to_copy(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    if (!call.arg(1).isNone() && !keeps_sums(tensor.scalar_type(), call.arg(1).toScalarType())) call.reduce({tensor});
    call.keep_strides();
    const auto spec = spec_of(tensor);
    call.make_local();
    call.run({spec});
}

/// log_sigmoid_forward(self) -> output, buffer. CPUs keep the buffer for backward; on GPUs it is empty.
void log_sigmoid(RuleCall& call)
{
    const auto x = call.tensor(0);
    if (x.is_cpu()) return pointwise_rule(call);
    constexpr double kLinear = 40;  // beyond it exp(-x) is below the last bit of x, even in double precision
    call.finish(
        {at::softplus(x.neg(), 1, kLinear).neg(), wrap(at::empty({0}, local_of(x).options()), call.replicated())});
}

/// log_sigmoid_backward(grad_output, self, buffer)
void log_sigmoid_backward(RuleCall& call)
{
    const auto x = call.tensor(1);
    if (call.tensor(2).sizes() == x.sizes()) return pointwise_rule(call);
    call.finish({call.tensor(0) * x.neg().sigmoid()});
}

/// detach and others: the same value in the same layout.
void same_value(RuleCall& call)
{
    if (!call.tensor(0).is_contiguous()) call.keep_strides();
    const auto spec = spec_of(call.tensor(0));
    call.make_local();
    call.run({spec});
}

/// What programs of torch.export check of a tensor: its shape and strides as the caller sees them, all else of the
/// local part.
void check_metadata(RuleCall& call)
{
    const auto x = call.tensor(0);
    const auto require = [&](std::int64_t arg, c10::IntArrayRef found, const char* what) {
        if (call.arg(arg).isNone()) return;
        const auto expected = call.arg(arg).toIntVector();
        TORCH_CHECK(expected == found, call.name(), ": expected ", what, " ", c10::IntArrayRef(expected), ", found ",
                    found, ".");
    };
    require(1, x.sizes(), "the shape");
    require(2, x.strides(), "the strides");
    call.arg(1) = call.arg(2) = c10::IValue();
    call.make_local();
    call.push(call.run_local());
}

/// equal(self, other) -> bool: false for tensors of two shapes; the same answer on every rank.
void equal(RuleCall& call)
{
    const auto a = call.tensor(0), b = call.tensor(1);
    if (a.sizes() != b.sizes()) return call.finish({false});
    call.finish({at::eq(a, b).all().item<bool>()});
}

/// Asked by forward derivatives. The memory of parts differs between ranks.
void has_same_storage_numel(RuleCall& call)
{
    call.finish({call.tensor(0).sizes() == call.tensor(1).sizes()});
}

/// copy_(self, source): self takes the source's value.
void copy(RuleCall& call)
{
    const auto self = call.tensor(0), source = call.tensor(1);
    if (!is_sharded(self)) return gathered_rule(call);  // a plain tensor is equal on every rank: it gets the whole
    if (is_sharded(source) && *spec_of(self) == *spec_of(source) && self.sizes() == source.sizes() &&
        self.scalar_type() == source.scalar_type()) {
        // Copied part by part, pending sums too. Autograd keeps a gradient itself, or a copy if the caller on a rank
        // holds it too; both must have the same layout on all ranks.
        const auto& part = local_of(source);
        local_of(self).copy_(lies_partly_in(part, local_of(self)) ? part.clone() : part);
        return call.finish({self});
    }
    call.reduce({self, source});
    pointwise_rule(call);
}

// --- direct kernels of the usual operators on operands that need no conversion ---------------------------------------

/// Operands of a direct kernel: sharded tensors of one layout, and besides them numbers, and plain tensors that every
/// rank needs whole, since they are broadcast along the cut rows.
class DirectOperands {
public:
    void add(const at::Tensor& tensor)
    {
        if (!tensor.defined()) return;
        contiguous_ &= tensor.is_contiguous();
        if (!is_sharded(tensor)) {
            (tensor.dim() > 0 ? plain_ : number_) = &tensor;
            num_plain_ += tensor.dim() > 0;
            return;
        }
        alike_ &= !first_ || (tensor.sizes() == first_->sizes() && tensor.strides() == first_->strides());
        if (!first_) first_ = &tensor;
        ready_ &= is_ready(tensor);
        layout_.add(tensor);
    }
    void add(const std::optional<at::Tensor>& tensor)
    {
        if (tensor) add(*tensor);
    }
    template <class T>
    void add(const T&)  // not a tensor
    {
    }

    /// Null if an operand must be converted.
    const SpecPtr* spec() const
    {
        return ready_ && (num_plain_ == 0 || (num_plain_ == 1 && is_repeated(*plain_))) ? layout_.spec() : nullptr;
    }

    /// Strides of the result as LibTorch gives them; nothing if they are not obvious.
    std::optional<c10::IntArrayRef> strides() const
    {
        if (contiguous_) return c10::IntArrayRef();
        // The order of dimensions of size one is not defined, and may change in combination with a number.
        const bool keeps_order =
            alike_ && num_plain_ == 0 && first_->is_non_overlapping_and_dense() &&
            (!number_ || std::find(first_->sizes().begin(), first_->sizes().end(), 1) == first_->sizes().end());
        return keeps_order ? std::make_optional(first_->strides()) : std::nullopt;
    }

private:
    /// Returns whether `plain` is broadcast along all cut dimensions. False if it has the shape of the others: added to
    /// it in backward, the result is plain.
    bool is_repeated(const at::Tensor& plain) const
    {
        if (!layout_.spec() || plain.dim() > first_->dim() || plain.sizes() == first_->sizes()) return false;
        const auto& axes = (*layout_.spec())->axes;
        return std::ranges::all_of(axes, [&](const AxisLayout& axis) {
            const auto dim = axis.placement.dim - (first_->dim() - plain.dim());
            return !axis.is_shard() || dim < 0 || (plain.size(dim) == 1 && first_->size(axis.placement.dim) != 1);
        });
    }

    CommonLayout layout_;
    const at::Tensor* first_ = nullptr;  // the first sharded operand
    const at::Tensor *plain_ = nullptr, *number_ = nullptr;
    int num_plain_ = 0;
    bool ready_ = true, contiguous_ = true, alike_ = true;
};

const at::Tensor& part_of(const at::Tensor& tensor)
{
    return local_of(tensor);
}
template <class T>
const T& part_of(const T& value)
{
    return value;
}

template <class T>
bool lies_partly_in(const T&, const at::Tensor&)
{
    return false;
}

template <class Op, class Schema = typename Op::schema>
struct DirectPointwise;

template <class Op, class... Args>
struct DirectPointwise<Op, at::Tensor(Args...)> {
    static std::optional<at::Tensor> run(Args... args)
    {
        DirectOperands operands;
        (operands.add(args), ...);
        const auto* spec = operands.spec();
        if (!spec) return std::nullopt;
        const auto strides = operands.strides();
        if (!strides) return std::nullopt;
        return fresh(Op::call(part_of(args)...), *spec, *strides);
    }
};

template <class Op, class... Args>
struct DirectPointwise<Op, at::Tensor&(at::Tensor&, Args...)> {
    static at::Tensor* run(at::Tensor& self, Args... args)
    {
        DirectOperands operands;
        operands.add(self);
        (operands.add(args), ...);
        if (!operands.spec() || !is_sharded(self)) return nullptr;
        auto local = local_of(self);
        if ((lies_partly_in(part_of(args), local) || ...)) return nullptr;
        Op::call(local, part_of(args)...);
        note_write(self);
        return &self;
    }
};

template <class... Op>
std::array<DirectRegistration, sizeof...(Op)> direct_pointwise()
{
    return {direct_kernel<Op, &DirectPointwise<Op>::run>(pointwise_rule)...};
}

template <class Op>
std::optional<at::Tensor> direct_alias(const at::Tensor& self)
{
    if (!is_ready(self) || !self.is_contiguous()) return std::nullopt;
    return view_of(self, Op::call(local_of(self)), spec_of(self));
}

std::optional<at::Tensor> direct_clone(const at::Tensor& self, std::optional<at::MemoryFormat> format)
{
    if (!is_ready(self) || spec_of(self)->has_partial()) return std::nullopt;
    if (format == at::MemoryFormat::Contiguous) return fresh(local_of(self).clone(format), spec_of(self));
    const bool keeps_order = format.value_or(at::MemoryFormat::Preserve) == at::MemoryFormat::Preserve &&
                             self.is_non_overlapping_and_dense();
    return keeps_order ? std::make_optional(fresh(local_of(self).clone(format), spec_of(self), self.strides()))
                       : std::nullopt;
}

namespace op = at::_ops;
const auto direct = direct_pointwise<
    op::add_Tensor, op::sub_Tensor, op::mul_Tensor, op::div_Tensor, op::mul_Scalar, op::div_Scalar, op::rsub_Scalar,
    op::add__Tensor, op::sub__Tensor, op::mul__Tensor, op::div__Tensor, op::neg, op::exp, op::log, op::sqrt, op::rsqrt,
    op::reciprocal, op::abs, op::sin, op::cos, op::pow_Tensor_Scalar, op::clamp, op::maximum, op::minimum, op::tanh,
    op::tanh_backward, op::sigmoid, op::sigmoid_backward, op::relu, op::threshold_backward, op::silu, op::silu_backward,
    op::gelu, op::gelu_backward, op::leaky_relu, op::leaky_relu_backward, op::where_self, op::masked_fill_Scalar,
    op::eq_Scalar, op::ne_Scalar, op::lt_Scalar, op::le_Scalar, op::gt_Scalar, op::ge_Scalar, op::eq_Tensor,
    op::ne_Tensor, op::lt_Tensor, op::le_Tensor, op::gt_Tensor, op::ge_Tensor>();
const DirectRegistration direct_aliases[] = {direct_kernel<op::detach, &direct_alias<op::detach>>(same_value),
                                             direct_kernel<op::alias, &direct_alias<op::alias>>(same_value)};
const DirectRegistration d_clone = direct_kernel<op::clone, &direct_clone>(pointwise_rule);

const PointwiseRegistration all_pointwise(pointwise_rule);
const RuleRegistration pointwise_rules[] = {
    {"pointwise", {"aten::equal"}, equal},
    {"pointwise", {"aten::_has_same_storage_numel"}, has_same_storage_numel},
    {"pointwise",
     {"aten::fill_",
      "aten::zero_",
      "aten::gelu_backward",
      "aten::silu_backward",
      "aten::mish_backward",
      "aten::threshold_backward",
      "aten::masked_fill",
      "aten::masked_fill_",
      "aten::clone",
      "aten::add_",
      "aten::mul_",
      "aten::sub_",
      "aten::div_",
      "aten::leaky_relu_backward",
      "aten::elu_backward",
      "aten::softplus_backward",
      "aten::hardtanh_backward",
      "aten::softshrink_backward",
      "aten::sigmoid_backward",
      "aten::tanh_backward",
      "aten::_prelu_kernel",
      "aten::_prelu_kernel_backward",
      "aten::leaky_relu",
      "aten::leaky_relu_",
      "aten::hardswish",
      "aten::hardswish_",
      "aten::hardswish_backward",
      "aten::hardsigmoid_",
      "aten::hardsigmoid_backward",
      "aten::hardtanh_",
      "aten::hardshrink_backward",
      "aten::elu_",
      "aten::celu_",
      "aten::gelu_",
      "aten::mish_",
      "aten::threshold_",
      "aten::abs_",
      "aten::eq_",
      "aten::ne_",
      "aten::ge_",
      "aten::gt_",
      "aten::le_",
      "aten::lt_",
      "aten::gcd_",
      "aten::lcm_",
      "aten::heaviside_",
      "aten::copysign_",
      "aten::floor_divide",
      "aten::floor_divide_",
      "aten::rsub",
      "aten::__irshift__",
      "aten::complex",
      "aten::polar",
      "aten::fake_quantize_per_tensor_affine_cachemask"},
     pointwise_rule},
    {"pointwise", {"aten::log_sigmoid_forward"}, log_sigmoid},
    {"pointwise", {"aten::log_sigmoid_backward"}, log_sigmoid_backward},
    {"pointwise", {"aten::_to_copy"}, to_copy},
    {"pointwise", {"aten::detach", "aten::alias", "aten::lift_fresh"}, same_value},
    {"pointwise", {"aten::_assert_tensor_metadata"}, check_metadata},
    {"pointwise", {"aten::copy_"}, copy},
};

}  // namespace
}  // namespace meshard
