// SPDX-License-Identifier: Apache-2.0
// Rules that compose an operator of a few others, whose rules support tensors in any layout.
#include "ops/rules/placement_algebra.h"
#include "ops/rules/rank_parts.h"
#include "sharding/tensor/redistribute.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

namespace meshard {
namespace {

std::pair<at::Tensor, at::Tensor> halves(const at::Tensor& tensor, std::int64_t dim)
{
    const auto n = tensor.size(dim) / 2;
    return {tensor.narrow(dim, 0, n), tensor.narrow(dim, n, n)};
}

bool has_halves(const at::Tensor& tensor, std::int64_t dim)
{
    return tensor.dim() > 0 && tensor.size(dim) % 2 == 0;
}

/// glu(self, dim)
void glu(RuleCall& call)
{
    const auto dim = call.arg(1).toInt();
    if (!has_halves(call.tensor(0), dim)) return gathered_rule(call);
    const auto [value, gate] = halves(call.tensor(0), dim);
    call.finish({value * gate.sigmoid()});
}

/// glu_backward(grad_output, self, dim)
void glu_backward(RuleCall& call)
{
    const auto dim = call.arg(2).toInt();
    if (!has_halves(call.tensor(1), dim)) return gathered_rule(call);
    const auto gradient = call.tensor(0);
    const auto [value, gate] = halves(call.tensor(1), dim);
    const auto open = gate.sigmoid();
    call.finish({at::cat({gradient * open, gradient * value * at::sigmoid_backward(at::ones_like(open), open)}, dim)});
}

/// linalg_cross(self, other, dim)
void cross(RuleCall& call)
{
    const auto a = call.tensor(0), b = call.tensor(1);
    const auto dim = call.arg(2).toInt();
    if (a.dim() != b.dim() || a.dim() == 0 || a.size(dim) != 3 || b.size(dim) != 3) return gathered_rule(call);
    const auto component = [&](std::int64_t i, std::int64_t j) {
        return a.select(dim, i) * b.select(dim, j) - a.select(dim, j) * b.select(dim, i);
    };
    call.finish({at::stack({component(1, 2), component(2, 0), component(0, 1)}, dim)});
}

/// beta * self + alpha * product; a term with factor zero is not computed (as in the plain operator).
at::Tensor weighted_sum(const at::Tensor& self, const at::Tensor& product, const at::Scalar& beta,
                        const at::Scalar& alpha)
{
    const auto scaled = product * alpha;
    return beta.toComplexDouble() == 0.0 ? scaled.expand(at::infer_size(self.sizes(), scaled.sizes()))
                                         : self * beta + scaled;
}

/// _pack_padded_sequence(input, lengths, batch_first): the packed rows of the input. The number of sequences in each
/// step depends on the lengths only and is a plain tensor, as operators on packed sequences need it.
void pack_padded_sequence(RuleCall& call)
{
    const bool batch_first = call.arg(2).toBool();
    auto input = call.tensor(0), lengths = call.tensor(1);
    if (input.dim() < 2) return gathered_rule(call);
    if (is_sharded(lengths)) lengths = local_of(convert(lengths, call.replicated()));
    if (batch_first) input = input.transpose(0, 1);
    const auto places = at::arange(input.size(0) * input.size(1)).view({input.size(0), input.size(1), 1});
    const auto [rows, batch_sizes] = at::_pack_padded_sequence(places, lengths, /*batch_first=*/false);
    call.finish({input.flatten(0, 1).index_select(0, rows.flatten().to(input.device())), batch_sizes});
}

/// addr(self, vec1, vec2, beta, alpha)
void addr(RuleCall& call)
{
    const auto left = call.tensor(1), right = call.tensor(2);
    if (left.dim() != 1 || right.dim() != 1) return gathered_rule(call);
    const auto sum = weighted_sum(call.tensor(0), left.unsqueeze(1) * right.unsqueeze(0), call.arg(3).toScalar(),
                                  call.arg(4).toScalar());
    // Multiplied by Scalars, bool becomes int64.
    call.finish({sum.to(at::promote_types(call.tensor(0).scalar_type(), left.scalar_type()))});
}

/// addbmm(self, batch1, batch2, beta, alpha)
void addbmm(RuleCall& call)
{
    const auto products = at::bmm(call.tensor(1), call.tensor(2));
    const auto product = products.sum(0, /*keepdim=*/false, products.scalar_type());  // narrow integers stay so
    call.finish({weighted_sum(call.tensor(0), product, call.arg(3).toScalar(), call.arg(4).toScalar())});
}

/// dist(self, other, p)
void dist(RuleCall& call)
{
    call.finish({at::linalg_vector_norm(call.tensor(0) - call.tensor(1), call.arg(2).toScalar())});
}

void trace(RuleCall& call)
{
    if (call.tensor(0).dim() != 2) return gathered_rule(call);
    call.finish({call.tensor(0).diagonal().sum()});
}

/// isin(elements, test_elements, ...): every element is compared with all test elements.
void isin(RuleCall& call)
{
    const auto elements = call.tensor(0), among = call.tensor(1);
    if (!is_sharded(elements) || !among.defined()) return gathered_rule(call);
    call.reduce({elements, among});
    const auto spec = spec_of(elements);
    call.set_local(0, local_of(elements).contiguous());  // the operator reads both as one-dimensional
    call.set_local(1, local_of(with_layouts(call, among, AxisLayouts(call.num_axes()))).contiguous());
    call.run({spec});
}

/// rot90(self, k, dims)
void rot90(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto dims = call.arg(2).toIntVector();
    const auto num_dims = tensor.dim();
    if (dims.size() != 2 || num_dims < 2 || from_front(dims[0], num_dims) == from_front(dims[1], num_dims))
        return gathered_rule(call);  // which throws the operator's error
    switch (((call.arg(1).toInt() % 4) + 4) % 4) {
    case 1:
        return call.finish({tensor.flip({dims[1]}).transpose_(dims[0], dims[1])});
    case 2:
        return call.finish({tensor.flip(dims)});
    case 3:
        return call.finish({tensor.flip({dims[0]}).transpose_(dims[0], dims[1])});
    default:
        return call.finish({tensor.clone(at::MemoryFormat::Contiguous)});
    }
}

/// searchsorted(sorted_sequence, self, ...): every value is searched in the one sequence.
void searchsorted(RuleCall& call)
{
    const auto sequence = call.tensor(0), values = call.tensor(1);
    if (!is_sharded(values) || sequence.dim() != 1 || call.tensor(5).defined()) return gathered_rule(call);
    call.reduce({sequence, values});
    const auto spec = spec_of(values);
    call.set_local(0, local_of(with_layouts(call, sequence, AxisLayouts(call.num_axes()))).contiguous());
    call.set_local(1, at::Tensor(local_of(values)));
    call.run({spec});
}

/// one_hot(self, num_classes): composed of other operators it would gather the whole.
void one_hot(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    auto num_classes = call.arg(1).toInt();
    if (tensor.scalar_type() != at::kLong || tensor.numel() == 0) return gathered_rule(call);
    const auto most = tensor.max().item<std::int64_t>();
    TORCH_CHECK(tensor.min().item<std::int64_t>() >= 0, "Class values must be non-negative.");
    if (num_classes < 0) num_classes = most + 1;
    TORCH_CHECK(num_classes > most, "Class values must be smaller than num_classes.");
    call.finish({tensor.unsqueeze(-1).eq(at::arange(num_classes, local_of(tensor).options())).to(at::kLong)});
}

/// value_selecting_reduction_backward(grad, dim, indices, sizes, keepdim): the entries that max, sort, topk and others
/// have selected get the gradient. Its composition would make the whole on every rank.
void picked_backward(RuleCall& call)
{
    const auto sizes = call.arg(3).toIntVector();
    auto gradient = call.tensor(0), indices = call.tensor(2);
    call.reduce({gradient, indices});
    const auto dim = sizes.empty() ? 0 : from_front(call.arg(1).toInt(), std::ssize(sizes));
    if (!sizes.empty() && !call.arg(4).toBool()) {
        gradient = gradient.unsqueeze(dim);
        indices = indices.unsqueeze(dim);
    }
    auto axes = replaced(layouts_of(call, gradient), {dim}, {});
    for (const auto& axis : axes) {
        if (axis.is_shard() && gradient.size(axis.placement.dim) != sizes[axis.placement.dim])
            axes = AxisLayouts(call.num_axes());
    }
    const auto spec = call.spec(axes);
    const auto zeros = wrap(at::zeros(spec->local_shape(sizes), local_of(gradient).options()), spec);
    call.finish({zeros.scatter(dim, indices, gradient)});
}

/// cummaxmin_backward(grad, input, indices, dim)
void cummaxmin_backward(RuleCall& call)
{
    const auto input = call.tensor(1);
    if (input.numel() == 0) return gathered_rule(call);
    call.finish({at::zeros_like(input).scatter_add(call.arg(3).toInt(), call.tensor(2), call.tensor(0))});
}

/// addmm_ and others: the operator without the underscore, then a copy to the target.
void write_over(RuleCall& call)
{
    const auto& overload = call.schema().overload_name();
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
        call.name().substr(0, call.name().size() - 1).c_str(), overload.c_str());
    torch::jit::Stack stack;
    for (std::int64_t i = 0; i < call.num_args(); ++i) stack.push_back(call.arg(i));
    op.callBoxed(&stack);
    const auto self = call.tensor(0);
    if (stack[0].toTensor().sizes() != self.sizes()) {
        call.refuse("its result has another shape than the tensor that is written to",
                    "Use the form that returns a new tensor");
    }
    self.copy_(stack[0].toTensor());
    call.finish({self});
}

/// An argument whose rows are whole on every rank, converted to the type in which GPUs compute.
at::Tensor wide_rows(const RuleCall& call, std::int64_t i)
{
    const auto tensor = call.tensor(i);
    if (!tensor.defined()) return tensor;
    const auto wide = tensor.to(at::toOpMathType(tensor.scalar_type()));
    return is_sharded(wide) ? with_whole_lines(call, wide, wide.dim() - 1) : wide;
}

/// Splits each row into `count` parts of equal width.
std::vector<at::Tensor> parts_of_rows(const at::Tensor& rows, std::int64_t count)
{
    const auto width = rows.size(1) / count;
    std::vector<at::Tensor> parts;
    for (std::int64_t i = 0; i < count; ++i) parts.push_back(rows.narrow(1, i * width, width));
    return parts;
}

/// The gates of a cell: products of input or state, with their biases, if any.
std::vector<at::Tensor> gates_of(const at::Tensor& products, const at::Tensor& bias, std::int64_t count)
{
    return parts_of_rows(bias.defined() ? products + bias : products, count);
}

/// _thnn_fused_gru_cell(input_gates, hidden_gates, hx, input_bias?, hidden_bias?) -> hy, workspace. GPUs have one
/// kernel for it.
void gru_cell(RuleCall& call)
{
    call.reduce(call.tensors());
    const auto state = call.tensor(2), hx = wide_rows(call, 2);
    const auto in = gates_of(wide_rows(call, 0), wide_rows(call, 3), 3),
               hidden = gates_of(wide_rows(call, 1), wide_rows(call, 4), 3);
    const auto reset = (in[0] + hidden[0]).sigmoid(), update = (in[1] + hidden[1]).sigmoid(),
               candidate = (in[2] + reset * hidden[2]).tanh();
    call.finish({(candidate + update * (hx - candidate)).to(state.scalar_type()),
                 at::cat({reset, update, candidate, hx, hidden[2]}, 1).to(state.scalar_type())});
}

/// _thnn_fused_gru_cell_backward(grad_hy, workspace, has_bias) -> gradients of input_gates, hidden_gates, hx,
/// input_bias, hidden_bias
void gru_cell_backward(RuleCall& call)
{
    call.reduce(call.tensors());
    const auto type = call.tensor(0).scalar_type();
    const auto gradient = wide_rows(call, 0);
    const auto kept = parts_of_rows(wide_rows(call, 1), 5);
    const auto &reset = kept[0], &update = kept[1], &candidate = kept[2], &hx = kept[3], &hidden = kept[4];
    const auto of_update = gradient * (hx - candidate) * (1 - update) * update,
               of_candidate = gradient * (1 - update) * (1 - candidate * candidate),
               of_reset = of_candidate * hidden * (1 - reset) * reset;
    const auto in = at::cat({of_reset, of_update, of_candidate}, 1).to(type),
               of_hidden = at::cat({of_reset, of_update, of_candidate * reset}, 1).to(type);
    const bool has_bias = call.arg(2).toBool();
    call.finish({in, of_hidden, (gradient * update).to(type), has_bias ? in.sum(0) : at::Tensor(),
                 has_bias ? of_hidden.sum(0) : at::Tensor()});
}

/// _thnn_fused_lstm_cell(input_gates, hidden_gates, cx, input_bias?, hidden_bias?) -> hy, cy, workspace
void lstm_cell(RuleCall& call)
{
    call.reduce(call.tensors());
    const auto type = call.tensor(2).scalar_type();
    const auto in = gates_of(wide_rows(call, 0), wide_rows(call, 3), 4),
               hidden = gates_of(wide_rows(call, 1), wide_rows(call, 4), 4);
    const auto input = (in[0] + hidden[0]).sigmoid(), forget = (in[1] + hidden[1]).sigmoid(),
               cell = (in[2] + hidden[2]).tanh(), output = (in[3] + hidden[3]).sigmoid();
    const auto cy = forget * wide_rows(call, 2) + input * cell;
    call.finish({(output * cy.tanh()).to(type), cy.to(type), at::cat({input, forget, cell, output}, 1).to(type)});
}

/// _thnn_fused_lstm_cell_backward_impl(grad_hy?, grad_cy?, cx, cy, workspace, has_bias) -> gradients of the gates, cx,
/// and both biases
void lstm_cell_backward(RuleCall& call)
{
    if (!call.tensor(0).defined() && !call.tensor(1).defined())
        return call.finish({at::Tensor(), at::Tensor(), at::Tensor()});
    call.reduce(call.tensors());
    const auto type = call.tensor(4).scalar_type();
    const auto cx = wide_rows(call, 2), shown = wide_rows(call, 3).tanh();
    const auto kept = parts_of_rows(wide_rows(call, 4), 4);
    const auto &input = kept[0], &forget = kept[1], &cell = kept[2], &output = kept[3];
    const auto of_hy = call.tensor(0).defined() ? wide_rows(call, 0) : at::zeros_like(cx),
               of_shown = of_hy * output * (1 - shown * shown);
    const auto of_cy = call.tensor(1).defined() ? of_shown + wide_rows(call, 1) : of_shown;
    const auto gates = at::cat({of_cy * cell * (1 - input) * input, of_cy * cx * (1 - forget) * forget,
                                of_cy * input * (1 - cell * cell), of_hy * shown * (1 - output) * output},
                               1)
                           .to(type);
    call.finish({gates, (of_cy * forget).to(type), call.arg(5).toBool() ? gates.sum(0) : at::Tensor()});
}

const RuleRegistration composed_rules[] = {
    {"composed", {"aten::glu"}, glu},
    {"composed", {"aten::glu_backward"}, glu_backward},
    {"composed", {"aten::linalg_cross"}, cross},
    {"composed", {"aten::_pack_padded_sequence"}, pack_padded_sequence},
    {"composed", {"aten::addr"}, addr},
    {"composed", {"aten::addbmm"}, addbmm},
    {"composed", {"aten::dist"}, dist},
    {"composed", {"aten::trace"}, trace},
    {"composed", {"aten::isin.Tensor_Tensor"}, isin},
    {"composed", {"aten::rot90"}, rot90},
    {"composed", {"aten::searchsorted.Tensor"}, searchsorted},
    {"composed", {"aten::_thnn_fused_gru_cell"}, gru_cell},
    {"composed", {"aten::_thnn_fused_gru_cell_backward"}, gru_cell_backward},
    {"composed", {"aten::_thnn_fused_lstm_cell"}, lstm_cell},
    {"composed", {"aten::_thnn_fused_lstm_cell_backward_impl"}, lstm_cell_backward},
    {"shortcuts", {"aten::one_hot"}, one_hot},
    {"shortcuts", {"aten::value_selecting_reduction_backward"}, picked_backward},
    {"shortcuts", {"aten::cummaxmin_backward"}, cummaxmin_backward},
};
const RuleRegistration
    r_rank("shortcuts", {"aten::linalg_matrix_rank.atol_rtol_tensor_out", "aten::linalg_matrix_rank.out_tol_tensor"},
           out_rule);  // the local operator would give `out` another shape
const RuleRegistration r_write_over("composed",
                                    {"aten::addmm_", "aten::addmv_", "aten::addbmm_", "aten::baddbmm_", "aten::addr_",
                                     "aten::cumsum_", "aten::cumprod_"},
                                    write_over);

}  // namespace
}  // namespace meshard
