// SPDX-License-Identifier: Apache-2.0
#include "ops/slices/slice_ops.h"

#include "ops/rules/rank_parts.h"
#include "ops/slices/slice_layout.h"
#include "partition/error.h"
#include "sharding/tensor/exact_mode.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace meshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::string shape_text(const at::Tensor& tensor)
{
    std::string text = "(";
    for (std::int64_t i = 0; i < tensor.dim(); ++i) text += (i ? ", " : "") + std::to_string(tensor.size(i));
    return text + ")";
}

/// A guard that turns autocast off while sums over points are computed.
struct NoAutocast {
    c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

/// Type in which both operands are summed over points: float or wider.
at::ScalarType common_sum_type(const at::Tensor& a, const at::Tensor& b)
{
    return sum_type(at::promote_types(a.scalar_type(), b.scalar_type()));
}

/// (B, N, H, X) to (B, H, N, X), a view.
at::Tensor heads_first(const at::Tensor& x)
{
    return x.permute({0, 2, 1, 3});
}

/// The same layout with Shards of slices as Shards of rows: a dimension that one rank alone holds (a cloud of one
/// point) fits both descriptions.
SpecPtr with_rows_cut(const char* where, const SpecPtr& spec, std::int64_t num_rows)
{
    auto axes = spec->axes;
    bool changed = false;
    const bool rows_are_cut = spec->axis_of_dim(1) >= 0;
    for (auto& axis : axes) {
        if (!axis.is_shard() || axis.placement.dim != 3) continue;
        auto extents = *axis.extents;
        if (rows_are_cut ||
            std::count(extents.begin(), extents.end(), 0) + 1 != static_cast<std::ptrdiff_t>(extents.size())) {
            throw InvalidInput("{}: the slices are cut ({}). Cut rows, batches or heads.", where, to_string(*spec));
        }
        for (auto& extent : extents) extent = extent > 0 ? num_rows : 0;
        axis = {Shard(1), std::make_shared<const Extents>(std::move(extents)), 1};
        changed = true;
    }
    return changed ? make_spec(spec->device_mesh, axes) : spec;
}

SpecPtr spec_or_null(const at::Tensor& tensor)
{
    return is_sharded(tensor) ? spec_of(tensor) : nullptr;
}

bool exactly(const at::Tensor& factor)
{
    return exact_mode() && factor.scalar_type() != at::kDouble;
}

/// A matrix product whose sums run along the rows of `left`, which are not sharded.
at::Tensor product_by_row(const at::Tensor& left, const at::Tensor& right)
{
    return exactly(left) ? exact_product(left, right, left.size(-1), {}) : at::matmul(left, right);
}

/// The layout to which both operands are converted: the first one's (pending sums reduced), or the second's if only
/// that one is sharded.
SpecPtr row_spec(const char* where, const at::Tensor& first, const at::Tensor& second)
{
    reduce_partials({first, second});
    auto spec = spec_or_null(first);
    if (!spec || !spec->has_shard()) {
        if (auto other = spec_or_null(second); other && other->has_shard()) spec = other;
    }
    return spec ? with_rows_cut(where, spec, first.size(1)) : nullptr;
}

struct SliceTokens : torch::autograd::Function<SliceTokens> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& weights, const at::Tensor& features,
                              double epsilon)
    {
        const NoAutocast no_autocast;
        const auto rows = row_spec("slice_tokens", weights, features);
        const auto type = common_sum_type(weights, features);
        const auto w = local_in(weights, rows).to(type),
                   f = local_in(features, rows).to(type);  // (B, N, H, S), (B, N, H, D)
        const auto num_features = f.size(3);

        // Sums of weighted features and of weights share one buffer, for one all-reduce.
        auto buffer = at::empty({w.size(0), w.size(2), w.size(3), num_features + 1}, f.options().dtype(type));
        if (exactly(f)) {
            const auto groups = row_groups(rows);
            buffer.narrow(3, 0, num_features)
                .copy_(exact_product(heads_first(w).transpose(2, 3), heads_first(f), weights.size(1), groups));
            buffer.select(3, num_features)
                .copy_(exact_sum(w.to(type), {1}, false, std::max<std::int64_t>(1, weights.size(1)), groups));
        } else {
            buffer.narrow(3, 0, num_features)
                .copy_(at::matmul(heads_first(w).transpose(2, 3), heads_first(f)));  // (B, H, S, D)
            buffer.select(3, num_features).copy_(at::sum(w, {1}, false, type));      // (B, H, S)
            sum_over_rows(buffer, rows);
        }

        const auto norm = buffer.narrow(3, num_features, 1) + epsilon;    // (B, H, S, 1)
        const auto tokens = buffer.narrow(3, 0, num_features).div(norm);  // (B, H, S, D)
        const auto spec = rows ? token_spec(*rows) : nullptr;
        context->save_for_backward({weights, features, tokens, norm});
        return wrapped(tokens.to(features.scalar_type()), spec);
    }

    static variable_list backward(AutogradContext* context, variable_list gradients)
    {
        refuse_second_derivative("slice_tokens");
        const auto saved = context->get_saved_variables();
        const auto &weights = saved[0], &features = saved[1], &tokens = saved[2], &norm = saved[3];
        const NoAutocast no_autocast;
        const auto rows = row_spec("slice_tokens", weights, features);
        const auto w = local_in(weights, rows).to(tokens.scalar_type()),
                   f = local_in(features, rows).to(tokens.scalar_type());
        const auto spec = rows ? token_spec(*rows) : nullptr;
        reduce_partials(gradients);
        const auto gradient = local_in(gradients[0], spec).to(tokens.scalar_type());

        const auto sums_gradient = gradient.div(norm);                               // (B, H, S, D)
        const auto weight_sums_gradient = sums_gradient.mul(tokens).sum(-1).neg_();  // (B, H, S)
        at::Tensor weights_gradient, features_gradient;
        if (context->needs_input_grad(0)) {
            weights_gradient = product_by_row(heads_first(f), sums_gradient.transpose(2, 3));  // (B, H, N, S)
            weights_gradient.add_(weight_sums_gradient.unsqueeze(2));
            weights_gradient = wrapped(heads_first(weights_gradient).to(weights.scalar_type()), rows);  // (B, N, H, S)
        }
        if (context->needs_input_grad(1))
            features_gradient =
                wrapped(heads_first(product_by_row(heads_first(w), sums_gradient)).to(features.scalar_type()),
                        rows);  // (B, N, H, D)
        return {weights_gradient, features_gradient, at::Tensor()};
    }
};

struct DesliceTokens : torch::autograd::Function<DesliceTokens> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& weights, const at::Tensor& tokens)
    {
        const NoAutocast no_autocast;
        reduce_partials({weights, tokens});
        const auto rows = row_spec("deslice_tokens", weights, at::Tensor());
        const auto type = at::promote_types(weights.scalar_type(), tokens.scalar_type());
        const auto w = local_in(weights, rows).to(type);                               // (B, N, H, S)
        const auto t = local_in(tokens, rows ? token_spec(*rows) : nullptr).to(type);  // (B, H, S, D)
        context->save_for_backward({weights, tokens});
        return wrapped(heads_first(product_by_row(heads_first(w), t)).contiguous(), rows);  // (B, N, H, D)
    }

    static variable_list backward(AutogradContext* context, variable_list gradients)
    {
        refuse_second_derivative("deslice_tokens");
        const NoAutocast no_autocast;
        const auto saved = context->get_saved_variables();
        const auto rows = row_spec("deslice_tokens", saved[0], at::Tensor());
        const auto spec = rows ? token_spec(*rows) : nullptr;
        const auto type = common_sum_type(saved[0], saved[1]);
        const auto w = local_in(saved[0], rows).to(type), t = local_in(saved[1], spec).to(type);
        reduce_partials(gradients);
        const auto gradient = local_in(gradients[0], rows).to(type);  // (B, N, H, D)

        at::Tensor weights_gradient, tokens_gradient;
        if (context->needs_input_grad(0)) {
            weights_gradient = wrapped(
                heads_first(product_by_row(heads_first(gradient), t.transpose(2, 3))).to(saved[0].scalar_type()), rows);
        }
        if (context->needs_input_grad(1)) {
            const auto by_slice = heads_first(w).transpose(2, 3), by_row = heads_first(gradient);
            auto sums = exactly(w) ? exact_product(by_slice, by_row, saved[0].size(1), row_groups(rows))
                                   : at::matmul(by_slice, by_row).contiguous();
            if (!exactly(w)) sum_over_rows(sums, rows);  // (B, H, S, D)
            tokens_gradient = wrapped(sums.to(saved[1].scalar_type()), spec);
        }
        return {weights_gradient, tokens_gradient};
    }
};

}  // namespace

at::Tensor slice_tokens(const at::Tensor& weights, const at::Tensor& features, double epsilon)
{
    const bool fit =
        weights.dim() == 4 && features.dim() == 4 && weights.sizes().slice(0, 3) == features.sizes().slice(0, 3);
    if (!fit) {
        throw InvalidInput("slice_tokens: weights {} and features {}, expected (B, N, H, S) and (B, N, H, D) with the "
                           "same B, N and H.",
                           shape_text(weights), shape_text(features));
    }
    return SliceTokens::apply(weights, features, epsilon);
}

at::Tensor deslice_tokens(const at::Tensor& weights, const at::Tensor& tokens)
{
    const bool fit = weights.dim() == 4 && tokens.dim() == 4 && weights.size(0) == tokens.size(0) &&
                     weights.size(2) == tokens.size(1) && weights.size(3) == tokens.size(2);
    if (!fit) {
        throw InvalidInput("deslice_tokens: weights {} and tokens {}, expected (B, N, H, S) and (B, H, S, D) with the "
                           "same B, H and S.",
                           shape_text(weights), shape_text(tokens));
    }
    return DesliceTokens::apply(weights, tokens);
}

}  // namespace meshard
