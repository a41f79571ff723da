// SPDX-License-Identifier: Apache-2.0
// einsum and matmul of sharded tensors. LibTorch composes them of one product and several views that mostly change
// nothing, and a view of a sharded tensor costs more than one of a plain tensor. Here the usual contractions of two
// tensors are composed of the product and only those views that change something.
#include <ATen/ATen.h>
#include <ATen/ops/einsum_native.h>
#include <ATen/ops/matmul_native.h>
#include <torch/library.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <string_view>

namespace meshard {
namespace {

bool has_label(std::string_view labels, char label)
{
    return labels.find(label) != std::string_view::npos;
}

bool has_repeats(std::string_view labels)
{
    return std::ranges::any_of(labels, [&](char label) { return std::ranges::count(labels, label) > 1; });
}

/// A contraction of two tensors over `summed`, with `batch` in both and in the result. Each label is one dimension.
struct Contraction {
    std::string left, right, out;
    std::string batch, rows, columns, summed;
};

/// Returns nothing for an equation of another form.
std::optional<Contraction> contraction_of(std::string_view equation)
{
    std::string text(equation);
    std::erase(text, ' ');
    const auto comma = text.find(','), arrow = text.find("->");
    if (comma == std::string::npos || arrow == std::string::npos || comma > arrow) return std::nullopt;
    Contraction c{
        text.substr(0, comma), text.substr(comma + 1, arrow - comma - 1), text.substr(arrow + 2), {}, {}, {}, {}};
    for (const auto* labels : {&c.left, &c.right, &c.out}) {
        const bool letters =
            std::all_of(labels->begin(), labels->end(), [](unsigned char label) { return std::isalpha(label); });
        if (!letters || has_repeats(*labels)) return std::nullopt;
    }
    for (const auto label : c.out) {
        const bool in_left = has_label(c.left, label), in_right = has_label(c.right, label);
        if (!in_left && !in_right) return std::nullopt;
        (in_left && in_right ? c.batch : in_left ? c.rows : c.columns) += label;
    }
    for (const auto label : c.left) {
        if (has_label(c.out, label)) continue;
        if (!has_label(c.right, label)) return std::nullopt;
        c.summed += label;
    }
    const bool all_right =
        std::ranges::all_of(c.right, [&](char label) { return has_label(c.out, label) || has_label(c.summed, label); });
    if (!all_right || c.summed.empty()) return std::nullopt;
    std::ranges::sort(c.summed);
    return c;
}

/// Permutes the dimensions of `tensor`, named by `labels`, to the order of `to`.
at::Tensor in_order(const at::Tensor& tensor, std::string_view labels, std::string_view to)
{
    if (labels == to) return tensor;
    at::DimVector order;
    for (const auto label : to) order.push_back(static_cast<std::int64_t>(labels.find(label)));
    return tensor.permute(order);
}

std::optional<at::Tensor> contracted(const Contraction& c, const at::Tensor& left, const at::Tensor& right)
{
    if (left.dim() != std::ssize(c.left) || right.dim() != std::ssize(c.right)) return std::nullopt;
    const auto size = [&](char label) {
        return has_label(c.left, label) ? left.size(c.left.find(label)) : right.size(c.right.find(label));
    };
    for (std::size_t d = 0; d < c.right.size(); ++d) {
        if (right.size(d) != size(c.right[d])) return std::nullopt;  // a size of one is broadcast, or is an error
    }
    const auto count = [&](std::string_view labels) {
        std::int64_t product = 1;
        for (const auto label : labels) product *= size(label);
        return product;
    };
    // Both operands are reshaped to one batch, one row or column and one summed dimension.
    const auto b = count(c.batch), m = count(c.rows), n = count(c.columns), k = count(c.summed);
    const auto in_three = [&](const at::Tensor& tensor, std::int64_t first, std::int64_t second) {
        const auto shape = c.batch.empty() ? at::DimVector{first, second} : at::DimVector{b, first, second};
        return tensor.sizes() == c10::IntArrayRef(shape) ? tensor : tensor.reshape(shape);
    };
    const auto l = in_three(in_order(left, c.left, c.batch + c.rows + c.summed), m, k);
    const auto r = in_three(in_order(right, c.right, c.batch + c.summed + c.columns), k, n);
    auto product = c.batch.empty() ? at::mm(l, r) : at::bmm(l, r);
    const auto found = c.batch + c.rows + c.columns;
    at::DimVector shape;
    for (const auto label : found) shape.push_back(size(label));
    if (product.sizes() != c10::IntArrayRef(shape)) product = at::_unsafe_view(product, shape);
    return in_order(product, found, c.out);
}

at::Tensor einsum(std::string_view equation, at::TensorList operands, at::OptionalIntArrayRef path)
{
    if (operands.size() == 2 && operands[0].scalar_type() == operands[1].scalar_type()) {
        if (const auto contraction = contraction_of(equation)) {
            if (auto result = contracted(*contraction, operands[0], operands[1])) return *std::move(result);
        }
    }
    return at::native::einsum(equation, operands, path);
}

/// matmul without the expansion of batches, which is not needed if they have equal shapes.
at::Tensor matmul(const at::Tensor& left, const at::Tensor& right)
{
    const auto num_dims = left.dim();
    if (num_dims < 3 || right.dim() != num_dims ||
        left.sizes().slice(0, num_dims - 2) != right.sizes().slice(0, num_dims - 2)) {
        return at::native::matmul(left, right);
    }
    if (num_dims == 3) return at::bmm(left, right);
    const auto batch = left.sizes().slice(0, num_dims - 2);
    const auto in_three = [&, b = c10::multiply_integers(batch)](const at::Tensor& x) {
        return x.reshape({b, x.size(-2), x.size(-1)});
    };
    at::DimVector shape(batch);
    shape.append({left.size(-2), right.size(-1)});
    return at::_unsafe_view(at::bmm(in_three(left), in_three(right)), shape);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse2, library)
{
    library.impl("einsum", TORCH_FN(einsum));
    library.impl("matmul", TORCH_FN(matmul));
}

}  // namespace
}  // namespace meshard
