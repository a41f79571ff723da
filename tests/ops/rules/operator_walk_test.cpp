// SPDX-License-Identifier: Apache-2.0
// Every aten operator with a rule of its own, found in the table and not by someone who thought of it: arguments by its
// schema, every dimension cut 7:3, 7:0:3, in blocks and by two axes at once; values and gradients are the plain
// operator's.
#include "sharding/tensor/boxed_arguments.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/rule_table.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/rule_property.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <mutex>
#include <regex>
#include <set>

namespace meshard {
namespace {

/// A call of an operator: whole tensors, and what is done with them.
struct Sample {
    std::string name;
    Tensors inputs;
    OperatorFunction function;
    bool has_gradients = true;
};

/// Numbers between -1.5 and 1.5 without order, positive and small whole ones, or truths.
at::Tensor values(c10::IntArrayRef shape, at::ScalarType type, std::int64_t number)
{
    const auto x = at::arange(1, c10::multiply_integers(shape) + 1, at::kDouble)
                       .mul(0.7310585 + static_cast<double>(number))
                       .sin()
                       .mul(1.5)
                       .view(shape);
    if (type == at::kLong) return x.mul(2).add(4).to(at::kLong);
    return type == at::kBool ? x > 0 : x.contiguous();
}

// --- arguments by schema ---------------------------------------------------------------------------------------------

struct Recipe {
    std::vector<std::int64_t> shape;
    at::ScalarType type = at::kDouble;
    std::int64_t dim = 0;
    bool fill_optionals = false;
};

/// An argument of this type, or nothing if none comes to mind. Tensors are numbered.
std::optional<c10::IValue> argument_for(const c10::Argument& argument, const c10::Type& type, const Recipe& recipe,
                                        std::int64_t& num_tensors)
{
    const auto& name = argument.name();
    switch (type.kind()) {
    case c10::TypeKind::OptionalType:
        if (!recipe.fill_optionals || name == "generator" || name == "dtype" || name == "memory_format")
            return c10::IValue();
        return argument_for(argument, *type.castRaw<c10::OptionalType>()->getElementType(), recipe, num_tensors);
    case c10::TypeKind::TensorType:
        return values(recipe.shape, recipe.type, num_tensors++);
    case c10::TypeKind::NumberType:
        return recipe.type == at::kDouble ? c10::IValue(1.5) : c10::IValue(2);
    case c10::TypeKind::FloatType:
        return 0.5;
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::IntType:
        if (name.ends_with("dtype")) return static_cast<std::int64_t>(recipe.type);
        return name == "dim" ? recipe.dim : std::int64_t{1};
    case c10::TypeKind::BoolType:
        return false;
    case c10::TypeKind::ListType: {
        const auto& element = *type.castRaw<c10::ListType>()->getElementType();
        if (element.kind() == c10::TypeKind::TensorType) {
            c10::List<at::Tensor> list;
            for (int i = 0; i < 2; ++i) list.push_back(values(recipe.shape, recipe.type, num_tensors++));
            return list;
        }
        if (element.kind() != c10::TypeKind::IntType && element.kind() != c10::TypeKind::SymIntType)
            return std::nullopt;
        return c10::List<std::int64_t>{name.find("size") != std::string::npos ? recipe.shape[recipe.dim] : recipe.dim};
    }
    default:
        return std::nullopt;
    }
}

void seed_ranks()
{
    auto generator = rank_generator();
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(7);
}

/// Calls the operator with these tensors in the places of the arguments' tensors. What is written to is a copy.
Tensors call(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments, const Tensors& inputs)
{
    torch::jit::Stack stack;
    std::size_t k = 0;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        stack.push_back(arguments[i]);
        const auto* alias = op.schema().arguments()[i].alias_info();
        map_tensors(stack.back(), [&](const at::Tensor&) {
            const auto& input = inputs[k++];
            return alias && alias->isWrite() ? input.clone() : input;
        });
    }
    seed_ranks();
    op.callBoxed(&stack);
    Tensors results;
    for (const auto& value : stack) {
        if (value.isTensor())
            results.push_back(value.toTensor());
        else
            for_each_tensor(value, [&](const at::Tensor& tensor) { results.push_back(tensor); });
    }
    return results;
}

at::Tensor leaf(const at::Tensor& tensor, bool has_gradients)
{
    return has_gradients && tensor.is_floating_point() ? tensor.detach().clone().requires_grad_() : tensor.clone();
}

/// Weights that differ by entry, and lie as the result does, so that its gradient does, too.
at::Tensor weights_of(const at::Tensor& result)
{
    const auto weights = values(result.sizes(), at::kDouble, 5).to(result.scalar_type());
    if (!is_sharded(result) || !spec_of(result)->has_shard() || spec_of(result)->has_partial()) return weights;
    return from_local(own_part(weights, *spec_of(result)).clone(), spec_of(result));
}

/// Outputs, then the gradients of the inputs where there are any: of sums with weights that differ by entry.
Tensors results_of(const Sample& sample, const Tensors& inputs)
{
    auto results = sample.function(inputs);
    at::Tensor total;
    for (auto& result : results) {
        if (!result.defined()) continue;
        if (sample.has_gradients && result.requires_grad() && result.is_floating_point()) {
            const auto term = (result * weights_of(result)).sum();
            total = total.defined() ? total + term : term;
        }
        result = result.detach();
    }
    if (total.defined()) total.backward();
    for (const auto& input : inputs) results.push_back(total.defined() ? input.grad() : at::Tensor());
    return results;
}

Tensors plain_results(const Sample& sample)
{
    Tensors inputs;
    for (const auto& input : sample.inputs) inputs.push_back(leaf(input, sample.has_gradients));
    return results_of(sample, inputs);
}

bool runs(const Sample& sample)
{
    try {
        plain_results(sample);
        return true;
    } catch (const std::exception&) {
        return false;
    }
}

/// Samples of an operator, one a type and dimension that it takes.
std::vector<Sample> samples_by_schema(const c10::OperatorHandle& op)
{
    static const std::vector<std::vector<std::int64_t>> kShapes{{10, 6}, {10}, {4, 10, 6}};
    std::vector<Sample> samples;
    const auto& schema = op.schema();
    bool has_dim = false;
    for (const auto& argument : schema.arguments()) has_dim |= argument.name().starts_with("dim");
    const bool is_backward =
        schema.name().find("_backward") != std::string::npos;  // of whole numbers it may end the process
    for (const auto type : {at::kDouble, at::kLong, at::kBool}) {
        if (is_backward && type != at::kDouble) continue;
        for (const std::int64_t dim : {0, 1}) {
            if (dim > 0 && !has_dim) continue;
            bool found = false;
            for (const auto& shape : kShapes) {
                for (const bool fill : {false, true}) {
                    if (found || dim >= static_cast<std::int64_t>(shape.size())) continue;
                    const Recipe recipe{shape, type, dim, fill};
                    std::vector<c10::IValue> arguments;
                    std::int64_t num_tensors = 0;
                    for (const auto& argument : schema.arguments()) {
                        if (argument.default_value() && !fill)
                            arguments.push_back(*argument.default_value());
                        else if (auto value = argument_for(argument, *argument.type(), recipe, num_tensors))
                            arguments.push_back(std::move(*value));
                    }
                    if (arguments.size() != schema.arguments().size()) continue;
                    const auto name = full_name_of(op.operator_name()) + " of " + c10::toString(type) + ", dim " +
                                      std::to_string(dim);
                    Sample sample{name, {}, {}, type == at::kDouble};
                    for (const auto& value : arguments) {
                        for_each_tensor(value, [&](const at::Tensor& tensor) { sample.inputs.push_back(tensor); });
                    }
                    sample.function = [op, arguments](const Tensors& x) { return call(op, arguments, x); };
                    found = runs(sample);
                    if (!found && sample.has_gradients) {
                        sample.has_gradients = false;
                        found = runs(sample);
                    }
                    if (found) samples.push_back(sample);
                }
            }
        }
        if (type == at::kLong && !samples.empty()) break;  // truths only for those that take nothing else
    }
    return samples;
}

// --- samples by hand -------------------------------------------------------------------------------------------------

/// For operators whose arguments must fit each other.
std::vector<Sample> samples_by_hand()
{
    std::vector<Sample> all;
    const auto add = [&](const char* name, const std::vector<std::vector<std::int64_t>>& shapes,
                         OperatorFunction function) {
        Sample sample{name, {}, std::move(function)};
        for (const auto& shape : shapes)
            sample.inputs.push_back(values(shape, at::kDouble, static_cast<std::int64_t>(sample.inputs.size())));
        all.push_back(std::move(sample));
    };
    const std::vector<std::int64_t> line{2, 4, 10}, image{2, 4, 10, 6}, volume{2, 4, 10, 6, 4};
    add("attention", {{2, 2, 10, 4}, {2, 2, 10, 4}, {2, 2, 10, 4}},
        [](auto& x) { return Tensors{at::scaled_dot_product_attention(x[0], x[1], x[2])}; });
    add("convolution of lines", {line, {6, 4, 3}, {6}},
        [](auto& x) { return Tensors{at::conv1d(x[0], x[1], x[2], 1, 1)}; });
    add("convolution of images", {image, {6, 2, 3, 3}, {6}},
        [](auto& x) { return Tensors{at::conv2d(x[0], x[1], x[2], 2, 1, 1, 2)}; });
    add("convolution of volumes", {volume, {2, 4, 3, 3, 3}},
        [](auto& x) { return Tensors{at::conv3d(x[0], x[1], {}, 1, 1)}; });
    add("transposed convolution", {image, {4, 2, 3, 3}, {2}},
        [](auto& x) { return Tensors{at::conv_transpose2d(x[0], x[1], x[2], 2, 1, 1)}; });
    add("traced convolution", {image, {6, 4, 3, 3}}, [](auto& x) {
        return Tensors{
            at::_convolution(x[0], x[1], {}, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1, false, false, true, true)};
    });
    add("distances", {{2, 10, 3}, {2, 6, 3}}, [](auto& x) {
        return Tensors{at::cdist(x[0], x[1], 2, 2), at::cdist(x[0], x[1] + 3, 2, 1), at::cdist(x[0], x[1], 1)};
    });
    add("nearest", {line}, [](auto& x) {
        return Tensors{at::upsample_nearest1d(x[0], {15}), at::_upsample_nearest_exact1d(x[0], {15}),
                       at::upsample_linear1d(x[0], {15}, false)};
    });
    add("interpolated images", {image}, [](auto& x) {
        return Tensors{at::upsample_nearest2d(x[0], {5, 9}), at::_upsample_nearest_exact2d(x[0], {5, 9}),
                       at::upsample_bilinear2d(x[0], {17, 4}, true), at::upsample_bicubic2d(x[0], {13, 6}, false)};
    });
    add("interpolated volumes", {volume}, [](auto& x) {
        return Tensors{at::upsample_nearest3d(x[0], {5, 9, 4}), at::_upsample_nearest_exact3d(x[0], {5, 9, 4}),
                       at::upsample_trilinear3d(x[0], {12, 5, 6}, false)};
    });
    add("sampled image", {image, {2, 10, 3, 2}},
        [](auto& x) { return Tensors{at::grid_sampler(x[0], x[1] * 0.6, 0, 0, false)}; });
    add("sampled volume", {volume, {2, 10, 3, 2, 3}},
        [](auto& x) { return Tensors{at::grid_sampler(x[0], x[1] * 0.6, 0, 1, true)}; });
    add("batch norm", {image, {4}, {4}}, [](auto& x) {
        const auto mean = at::zeros({4}, at::kDouble), variance = at::ones({4}, at::kDouble);
        return Tensors{at::batch_norm(x[0], x[1], x[2], {}, {}, true, 0.1, 1e-3, false),
                       at::batch_norm(x[0], x[1], x[2], mean, variance, false, 0.1, 1e-3, false)};
    });
    add("batch norm by its other names", {image, {4}, {4}}, [](auto& x) {
        const auto mean = at::zeros({4}, at::kDouble), variance = at::ones({4}, at::kDouble);
        auto a = mean.clone(), b = variance.clone();
        return Tensors{std::get<0>(at::_native_batch_norm_legit(x[0], x[1], x[2], true, 0.1, 1e-3)),
                       std::get<0>(at::_native_batch_norm_legit(x[0], x[1], x[2], a, b, true, 0.1, 1e-3))};
    });
    add("packed sequences", {{10, 4, 3}, {4, 10, 3}}, [](auto& x) {
        const auto lengths = at::tensor({10, 7, 7, 2}, at::kLong);
        return Tensors{std::get<0>(at::_pack_padded_sequence(x[0], lengths, false)),
                       std::get<0>(at::_pack_padded_sequence(x[1], lengths, true))};
    });
    add("instance norm", {image},
        [](auto& x) { return Tensors{at::instance_norm(x[0], {}, {}, {}, {}, true, 0.1, 1e-3, false)}; });
    add("group norm", {image, {4}, {4}}, [](auto& x) { return Tensors{at::group_norm(x[0], 2, x[1], x[2], 1e-3)}; });
    add("layer norm", {{2, 10, 6}, {6}, {6}}, [](auto& x) {
        return Tensors{at::layer_norm(x[0], {6}, x[1], x[2], 1e-3), at::layer_norm(x[0], {10, 6}, {}, {}, 1e-3)};
    });
    add("padded lines", {line}, [](auto& x) {
        return Tensors{at::reflection_pad1d(x[0], {2, 3}), at::replication_pad1d(x[0], {2, 3}),
                       at::constant_pad_nd(x[0], {1, 2}, 0.5)};
    });
    add("padded images", {image}, [](auto& x) {
        return Tensors{at::reflection_pad2d(x[0], {2, 3, 1, 4}), at::replication_pad2d(x[0], {2, 3, 1, 4}),
                       at::constant_pad_nd(x[0], {1, -1, 0, 2}, 0.5)};
    });
    add("padded volumes", {volume}, [](auto& x) {
        return Tensors{at::reflection_pad3d(x[0], {1, 2, 1, 2, 3, 1}), at::replication_pad3d(x[0], {1, 2, 1, 2, 3, 1})};
    });
    add("pooled images", {image}, [](auto& x) {
        const auto [largest, places] = at::max_pool2d_with_indices(x[0], {3, 2}, {2, 2}, {1, 0});
        return Tensors{largest, places, at::avg_pool2d(x[0], {3, 2}, {2, 1}, {1, 0})};
    });
    add("pooled volumes", {volume}, [](auto& x) {
        const auto [largest, places] = at::max_pool3d_with_indices(x[0], {3, 2, 2}, {2, 2, 1});
        return Tensors{largest, places, at::avg_pool3d(x[0], {3, 2, 2}, {2, 1, 2})};
    });
    add("images pooled to a size", {image}, [](auto& x) {
        const auto [largest, places] = at::adaptive_max_pool2d(x[0], {7, 4});
        return Tensors{largest, places, at::adaptive_avg_pool2d(x[0], {3, 4})};
    });
    add("volumes pooled to a size", {volume}, [](auto& x) {
        const auto [largest, places] = at::adaptive_max_pool3d(x[0], {7, 4, 2});
        return Tensors{largest, places, at::adaptive_avg_pool3d(x[0], {3, 4, 2})};
    });
    add("pixels", {image}, [](auto& x) {
        return Tensors{at::pixel_shuffle(x[0], 2), at::pixel_unshuffle(x[0], 2), at::channel_shuffle(x[0], 2),
                       at::native_channel_shuffle(x[0].detach(), 2), at::im2col(x[0], {3, 2}, {1, 1}, {1, 0}, {2, 1})};
    });
    add("columns", {{2, 24, 35}},
        [](auto& x) { return Tensors{at::col2im(x[0], {9, 6}, {3, 2}, {1, 1}, {0, 0}, {1, 1}).narrow(1, 0, 4)}; });
    add("small matrices", {{2, 10, 3, 3}, {2, 10, 3, 3}}, [](auto& x) {
        const auto a = x[0] + at::eye(3, at::kDouble) * 5;
        const auto [factors, pivots] = at::linalg_lu_factor(a);
        return Tensors{at::linalg_det(a),
                       std::get<1>(at::linalg_slogdet(a)),
                       at::linalg_inv(a),
                       at::linalg_solve(a, x[1]),
                       at::linalg_lu_solve(factors, pivots, x[1]),
                       at::linalg_cholesky(at::matmul(a, a.transpose(2, 3))),
                       at::linalg_svdvals(a),
                       at::linalg_eigvalsh(a + a.transpose(2, 3)),
                       std::get<1>(at::linalg_qr(a)),
                       at::linalg_matrix_exp(x[0]),
                       at::linalg_solve_triangular(a.tril(), x[1], false),
                       std::get<2>(at::linalg_lu(a)),
                       std::get<0>(at::linalg_eig(a)).abs()};
    });
    add("products", {{10, 6}, {6, 4}, {10, 4}, {6}, {10}}, [](auto& x) {
        return Tensors{at::mm(x[0], x[1]), at::addmm(x[2], x[0], x[1], 0.5, 2), at::mv(x[0], x[3]),
                       at::addmv(x[4], x[0], x[3]), at::addr(x[0], x[4], x[3])};
    });
    add("products of batches", {{4, 10, 6}, {4, 6, 8}, {4, 10, 8}},
        [](auto& x) { return Tensors{at::bmm(x[0], x[1]), at::baddbmm(x[2], x[0], x[1], 0.5, 2)}; });
    const auto classes = at::arange(10, at::kLong).remainder(6), marks = at::tensor({7, 0, 9, 2}, at::kLong);
    add("class losses", {{10, 6}, {6}}, [=](auto& x) {
        return Tensors{at::nll_loss(x[0], classes, x[1].detach().abs(), at::Reduction::Mean, 2),
                       at::nll_loss(x[0], classes, {}, at::Reduction::None),
                       at::nll_loss2d(x[0].t().unsqueeze(0).unsqueeze(3).contiguous(), classes.view({1, 10, 1}))};
    });
    add("losses of probabilities", {{10, 6}, {10, 6}}, [](auto& x) {
        return Tensors{at::binary_cross_entropy(x[0].sigmoid(), x[1].detach().sigmoid()),
                       at::binary_cross_entropy(x[0].sigmoid(), x[1].detach().sigmoid(), {}, at::Reduction::None)};
    });
    add("rows by index", {{10, 6}, {4, 6}}, [=](auto& x) {
        const c10::List<std::optional<at::Tensor>> at_rows{std::optional<at::Tensor>(marks)};
        return Tensors{at::index(x[0], at_rows),
                       at::index_put(x[0], at_rows, x[1]),
                       at::index_put(x[0], at_rows, x[1], true),
                       at::index_add(x[0], 0, marks, x[1]),
                       at::index_copy(x[0], 0, marks, x[1]),
                       at::index_fill(x[0], 0, marks, 0.5),
                       at::index_reduce(x[0].detach(), 0, marks, x[1].detach(), "amax"),
                       at::index_select(x[0], 0, marks),
                       at::scatter_reduce(x[0], 0, marks.view({4, 1}).expand({4, 6}), x[1], "sum"),
                       at::embedding(x[0], marks)};
    });
    add("parts", {{10, 6}}, [](auto& x) {
        return Tensors{x[0].select(0, 8),    x[0].select(1, 2),    x[0].slice(0, 1, 9, 3), x[0].slice(1, 2),
                       x[0].unfold(0, 4, 3), x[0].unfold(1, 2, 2), x[0].diagonal(),        x[0].diagonal(-1)};
    });
    add("products in place", {{10, 6}, {6, 4}, {10, 4}, {6}, {10}}, [](auto& x) {
        auto a = x[2] * 1, b = x[4] * 1, c = x[0] * 1;
        return Tensors{a.addmm_(x[0], x[1]), b.addmv_(x[0], x[3]), c.addr_(x[4], x[3])};
    });
    add("products of batches in place", {{10, 6}, {4, 10, 5}, {4, 5, 6}, {4, 10, 6}}, [](auto& x) {
        auto a = x[0] * 1, b = x[3] * 1;
        return Tensors{at::addbmm(x[0], x[1], x[2]), a.addbmm_(x[1], x[2]), b.baddbmm_(x[1], x[2])};
    });
    add("rows written by index", {{10, 6}, {4, 6}}, [=](auto& x) {
        const c10::List<std::optional<at::Tensor>> at_rows{std::optional<at::Tensor>(marks)};
        auto a = x[0] * 1, b = x[0] * 1, c = x[0].detach() * 1, d = x[0] * 1, e = x[0] * 1, f = x[0] * 1;
        const auto number = x[1].select(0, 0).select(0, 0);
        return Tensors{at::index_put_(a, at_rows, x[1]),
                       at::_index_put_impl_(b, at_rows, x[1], true),
                       c.index_reduce_(0, marks, x[1].detach(), "amax"),
                       d.scatter_reduce_(0, marks.view({4, 1}).expand({4, 6}), x[1], "sum"),
                       e.index_fill_(0, marks, number),
                       at::index_fill(x[0], 0, marks, number),
                       at::masked_fill(x[0], x[0] > 0.5, number),
                       f.fill_(number),
                       at::select_scatter(x[0], x[1].select(0, 1), 0, 8),
                       at::slice_scatter(x[0], x[1], 0, 3, 7)};
    });
    add("pairs as complex numbers", {{10, 6, 2}},
        [](auto& x) { return Tensors{at::view_as_real(at::view_as_complex(x[0]) * 2)}; });
    add("cross products", {{10, 3}, {10, 3}}, [](auto& x) { return Tensors{at::linalg_cross(x[0], x[1])}; });
    add("transforms", {{4, 10, 6}}, [](auto& x) {
        const auto half = at::fft_rfft(x[0], std::nullopt, 1);
        return Tensors{at::view_as_real(half), at::fft_irfft(half * half, 10, 1),
                       at::view_as_real(at::fft_fft2(at::complex(x[0], x[0] * 2)))};
    });
    return all;
}

// --- layouts ---------------------------------------------------------------------------------------------------------

/// Dimension `dim` of the longest input cut over `num_ranks` by 7 to 3, or 7 to 0 to 3, in `blocks` blocks; shorter
/// inputs' dimensions count from the back. Replicate where `input` has no such dimension.
AxisLayout cut_along(const at::Tensor& input, std::int64_t dim, std::int64_t num_dims, std::int64_t num_ranks,
                     std::int64_t blocks)
{
    dim -= num_dims - input.dim();
    if (dim < 0 || input.size(dim) % blocks != 0) return {};
    const auto n = input.size(dim) / blocks, last = n * 3 / 10;
    Extents extents(num_ranks, 0);
    extents.front() = n - last;
    extents.back() = num_ranks > 1 ? last : n;
    return {Shard(dim), std::make_shared<Extents>(extents), blocks};
}

std::int64_t most_dims(const Sample& sample)
{
    std::int64_t most = 0;
    for (const auto& input : sample.inputs) most = std::max(most, input.dim());
    return most;
}

at::Tensor laid_out(const at::Tensor& whole, const std::shared_ptr<const DeviceMesh>& mesh,
                    const std::vector<AxisLayout>& axes)
{
    const auto spec = make_spec(mesh, axes);
    return from_local(own_part(whole, *spec).clone(), spec);
}

/// What the walk has seen of each operator: shared by all ranks.
struct Seen {
    std::mutex mutex;
    std::set<std::string> called;                 // with a cut tensor
    std::map<std::string, std::string> gathered;  // where all tensors are cut alike along their rows: how its own lay
};

class Watch : public RuleObserver {
public:
    Watch(Seen& seen, bool rows_only) : seen_(seen), rows_only_(rows_only) { set_rule_observer(this); }
    ~Watch() override { set_rule_observer(nullptr); }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    void called(const RuleEvent& event) override
    {
        if (event.inputs.find("Shard") == std::string::npos) return;
        const std::lock_guard lock(seen_.mutex);
        seen_.called.insert(event.op);
        if (rows_only_ && event.gathered) seen_.gathered.emplace(event.op, event.inputs);
    }
    void refused(const std::string&, const std::string&) override {}

private:
    Seen& seen_;
    bool rows_only_;
};

struct Walked {
    Sample sample;
    Tensors expected;
};

/// One way to cut the inputs.
struct Layout {
    std::string name;
    std::vector<std::int64_t> mesh;
    std::function<std::vector<AxisLayout>(const Sample&, std::size_t)> of_input;
};

std::vector<Layout> layouts(std::int64_t num_dims)
{
    std::vector<Layout> all;
    for (std::int64_t dim = 0; dim < num_dims; ++dim) {
        const auto along = [&](const char* name, std::int64_t num_ranks, std::int64_t blocks, bool first, bool others) {
            all.push_back(
                {name + (" dimension " + std::to_string(dim)), {num_ranks}, [=](const Sample& sample, std::size_t i) {
                     return std::vector{(i == 0 ? first : others)
                                            ? cut_along(sample.inputs[i], dim, num_dims, num_ranks, blocks)
                                            : AxisLayout{}};
                 }});
        };
        along("7:3 of", 2, 1, true, true);
        along("7:3 of the first input's", 2, 1, true, false);
        along("7:3 of the other inputs'", 2, 1, false, true);
        along("7:0:3 of", 3, 1, true, true);
        along("blocks of 7:3 of", 2, 2, true, true);
        for (std::int64_t other = 0; other < num_dims; ++other) {
            if (other == dim) continue;
            all.push_back({"7:3 of dimensions " + std::to_string(dim) + " and " + std::to_string(other),
                           {2, 2},
                           [=](const Sample& sample, std::size_t i) {
                               return std::vector{cut_along(sample.inputs[i], dim, num_dims, 2, 1),
                                                  cut_along(sample.inputs[i], other, num_dims, 2, 1)};
                           }});
        }
    }
    return all;
}

/// Expects the results of the sample, cut in every way, to be those of the plain operator.
void walk(const Sample& sample, Seen& seen)
{
    const auto expected = plain_results(sample);
    const auto num_dims = most_dims(sample);
    for (const auto& layout : layouts(num_dims)) {
        bool cut = false;
        for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
            for (const auto& axis : layout.of_input(sample, i)) cut |= axis.is_shard();
        }
        if (!cut) continue;
        const auto where = sample.name + ", " + layout.name;
        const auto names =
            layout.mesh.size() == 2 ? std::vector<std::string>{"first", "second"} : std::vector<std::string>{"domain"};
        try {
            run_ranks(layout.mesh, names, [&](const auto& mesh) {
                set_gather_policy(GatherPolicy::Silent);
                const Watch watch(seen, layout.name == "7:3 of dimension 0");
                Tensors inputs;
                for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
                    inputs.push_back(
                        leaf(laid_out(sample.inputs[i], mesh, layout.of_input(sample, i)), sample.has_gradients));
                }
                const auto found = results_of(sample, inputs);
                ASSERT_EQ(found.size(), expected.size()) << where;
                for (std::size_t k = 0; k < found.size(); ++k) {
                    const auto whole = found[k].defined() ? full_tensor(found[k]).detach() : at::Tensor();
                    // Functions of whole numbers are floats, whose vector and scalar code round differently.
                    const auto tolerance =
                        expected[k].defined() && expected[k].scalar_type() == at::kFloat ? 1e-6 : 1e-11;
                    EXPECT_TRUE(tensors_near(whole, expected[k], tolerance)) << where << ", result " << k;
                }
            });
        } catch (const std::exception& error) {
            ADD_FAILURE() << where << ": " << std::string(error.what()).substr(0, 600);
        }
    }
}

/// Families whose arguments must fit each other: schemas do not say how.
const std::set<std::string>& families_by_hand()
{
    static const std::set<std::string> families{"attention",     "convolution",  "distances",     "Fourier transforms",
                                                "interpolation", "matrices",     "normalisation", "padding",
                                                "pooling",       "rearrangement"};
    return families;
}

/// Operators with a rule that the walk does not call, and why: a regular expression for each.
const std::map<std::string, const char*>& not_walked()
{
    static const std::map<std::string, const char*> operators{
        {"aten::(empty_like|new_empty|new_empty_strided)", "their values are not defined"},
        {"aten::_reshape_alias", "called by LibTorch only, with the strides of a reshape"},
        {"aten::(mm|bmm|addmm|baddbmm)[.]dtype", "on GPUs only"},
        {"aten::(cudnn_.*|_thnn_fused_.*)", "on GPUs only; cells of recurrent networks: composed_test"},
        {"aten::(bernoulli_?([.]Tensor)?|multinomial|poisson|normal[.].*|randint_like[.].*)",
         "random draws: random_test"},
    };
    return operators;
}

/// Operators that gather although all tensors are cut alike along their rows, and why.
const std::map<std::string, const char*>& known_to_gather()
{
    static const std::map<std::string, const char*> operators{
        {"aten::(_sample_dirichlet|_standard_gamma|_standard_gamma_grad|bernoulli[.]p|binomial|normal[.]Tensor_float|"
         "rrelu_with_noise_?|rrelu_with_noise_"
         "backward)",
         "random draws of the whole field, and what goes with them"},
        {"aten::as_strided", "strides of the memory of the whole"},
        {"aten::copy_", "into a plain tensor"},
        {"aten::logsumexp", "of whole numbers"},
        {"aten::masked_scatter_?", "how many entries the ranks before take is known to all only afterwards"},
        {"aten::(repeat|roll|unfold|diagonal_backward)",
         "rows that meet others' in an order of their own: no rule yet"},
        {"aten::searchsorted[.]Tensor", "a sorted sequence for each row"},
        {"aten::unbind[.]int", "every row for itself, on every rank"},
    };
    return operators;
}

bool is_among(const std::map<std::string, const char*>& patterns, const std::string& op)
{
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const auto& entry) { return std::regex_match(op, std::regex(entry.first)); });
}

TEST(OperatorWalk, EveryRuleEqualsThePlainOperator)
{
    const char* only = std::getenv("MESHARD_WALK");
    install_rules();
    Seen seen;
    for (const auto& sample : samples_by_hand()) {
        if (!only || sample.name.find(only) != std::string::npos) walk(sample, seen);
    }
    std::set<std::string> with_rule;
    for (const auto& entry : list_rules()) {
        if (entry.family == "gathered" || entry.family == "composite" || entry.family == "refused") continue;
        const auto dot = entry.op.find('.');
        const auto overload = dot == std::string::npos ? std::string() : entry.op.substr(dot + 1);
        const auto op =
            c10::Dispatcher::singleton().findSchemaOrThrow(entry.op.substr(0, dot).c_str(), overload.c_str());
        const auto& arguments = op.schema().arguments();
        if (std::any_of(arguments.begin(), arguments.end(), [](const auto& argument) { return argument.is_out(); }))
            continue;
        // What is composed of others comes to the table as those, where gradients are wanted or always.
        if (!op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) with_rule.insert(entry.op);
        if (families_by_hand().contains(entry.family) || is_among(not_walked(), entry.op) ||
            (only && entry.op.find(only) == std::string::npos))
            continue;
        if (std::getenv("MESHARD_WALK_TRACE")) std::cout << "WALK " << entry.op << std::endl;
        for (const auto& sample : samples_by_schema(op)) walk(sample, seen);
    }
    if (only) return;
    for (const auto& op : with_rule) {
        EXPECT_TRUE(seen.called.contains(op) || is_among(not_walked(), op)) << op << " is not walked: add a sample";
    }
    for (const auto& [op, inputs] : seen.gathered) {
        EXPECT_TRUE(is_among(known_to_gather(), op))
            << op << " of " << inputs << " gathers: mend its rule, or add it to known_to_gather() with the reason";
    }
    for (const auto& [pattern, reason] : known_to_gather()) {
        const bool is_seen =
            std::any_of(seen.gathered.begin(), seen.gathered.end(), [&, &pattern = pattern](const auto& entry) {
                return std::regex_match(entry.first, std::regex(pattern));
            });
        EXPECT_TRUE(is_seen) << pattern << " does not gather: take it out of known_to_gather()";
    }
}

}  // namespace
}  // namespace meshard
