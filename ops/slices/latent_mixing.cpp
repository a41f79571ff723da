// SPDX-License-Identifier: Apache-2.0
#include "ops/slices/latent_mixing.h"

#include "ops/rows/on_gpu.h"
#include "ops/rules/rank_parts.h"
#include "ops/slices/slice_kernels.h"
#include "ops/slices/slice_layout.h"
#include "ops/slices/slice_ops.h"
#include "partition/error.h"
#include "sharding/tensor/exact_mode.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace meshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The steps of the operator for the points of one sample on this rank: keys, values, results and their gradients (N, H,
// D), queries and states of latents (H, M, D). The means of the points' values for each latent and the logarithm of its
// sum of exponentials are (H, M, D + 1).

/// By kernels.
class KernelMixing {
public:
    KernelMixing(const at::Tensor& keys, const at::Tensor& queries, const at::Tensor& log_sums)
        : points_(rows(keys), queries, at::zeros(queries.sizes().slice(0, 2), queries.options()), {}, {}, log_sums)
    {
    }

    at::Tensor means(const at::Tensor& values) { return points_.point_means(rows(values)); }

    const at::Tensor& log_sums() { return points_.log_sums(); }

    void mix(const at::Tensor& states, const at::Tensor& result)
    {
        auto to = rows(result);
        points_.deslice(states, to);
    }

    at::Tensor states_gradient(const at::Tensor& result_gradient)
    {
        const auto sums = points_.sums(rows(result_gradient));
        return sums.narrow(2, 0, sums.size(2) - 1);
    }

    /// The gradient of the logarithms of sums, for all samples: what makes that of the logits zero on average over the
    /// points, also where products round `states_gradient`.
    static at::Tensor log_sums_gradient(at::ScalarType type, const at::Tensor& means, const at::Tensor& states_gradient)
    {
        const auto D = states_gradient.size(3);
        auto both = at::cat({states_gradient, (means.narrow(3, 0, D) * states_gradient).sum(3, true).neg_()}, 3);
        auto of_one = means.clone();
        of_one.select(3, D).fill_(1);
        const auto zeros = at::zeros_like(states_gradient);
        round_totals(type, zeros, of_one, zeros, both);
        return both;
    }

    at::Tensor gradients(const at::Tensor& values, const at::Tensor& states, const at::Tensor& means,
                         const at::Tensor& means_gradient, const at::Tensor& result_gradient,
                         const at::Tensor& keys_gradient, const at::Tensor& values_gradient)
    {
        auto of_keys = rows(keys_gradient), of_values = rows(values_gradient);
        return points_
            .backward(rows(values), states, means_gradient, rows(result_gradient), of_keys, of_values,
                      means.contiguous())
            .slices;
    }

private:
    static at::Tensor rows(const at::Tensor& points) { return points.flatten(1); }

    SlicePoints points_;
};

/// By LibTorch's operators for tiles of points, whose temporary tensors stay in the caches.
class TileMixing {
public:
    TileMixing(const at::Tensor& keys, const at::Tensor& queries, const at::Tensor&)
        : keys_(keys.transpose(0, 1)), queries_(queries), transposed_(queries.transpose(1, 2).contiguous())
    {
    }

    at::Tensor means(const at::Tensor& values)
    {
        const auto H = queries_.size(0), M = queries_.size(1);
        auto sums = at::zeros_like(queries_), total = at::zeros({H, 1, M}, queries_.options()),
             largest = at::full({H, 1, M}, kNever, queries_.options());
        for_each_tile([&](std::int64_t n, std::int64_t count) {
            const auto l = logits(n, count), now = at::maximum(largest, l.amax(1, true)),
                       factor = largest.sub_(now).exp_();
            l.sub_(now).exp_();
            total.mul_(factor).add_(l.sum(1, true));
            sums.mul_(factor.transpose(1, 2)).baddbmm_(l.transpose(1, 2), tile(values, n, count));
            largest = now;
        });
        total.clamp_min_(1);  // less without points only: the largest logit adds 1
        return at::cat({sums / total.transpose(1, 2), (largest + total.log()).transpose(1, 2)}, 2);
    }

    at::Tensor log_sums() { return {}; }

    void mix(const at::Tensor& states, const at::Tensor& result)
    {
        for_each_tile([&](std::int64_t n, std::int64_t count) {
            result.narrow(0, n, count).copy_(at::bmm(at::softmax(logits(n, count), -1), states).transpose(0, 1));
        });
    }

    at::Tensor states_gradient(const at::Tensor& result_gradient)
    {
        auto sums = at::zeros_like(queries_);
        for_each_tile([&](std::int64_t n, std::int64_t count) {
            sums.baddbmm_(at::softmax(logits(n, count), -1).transpose(1, 2), tile(result_gradient, n, count));
        });
        return sums;
    }

    static at::Tensor log_sums_gradient(at::ScalarType, const at::Tensor& means, const at::Tensor& states_gradient)
    {
        const auto of_states = means.narrow(3, 0, states_gradient.size(3)) * states_gradient;
        return at::cat({states_gradient, of_states.sum(3, true).neg_()}, 3);
    }

    at::Tensor gradients(const at::Tensor& values, const at::Tensor& states, const at::Tensor& means,
                         const at::Tensor& means_gradient, const at::Tensor& result_gradient,
                         const at::Tensor& keys_gradient, const at::Tensor& values_gradient)
    {
        const auto D = states.size(2);
        const auto of_means = means_gradient.narrow(2, 0, D).contiguous();
        const auto columns = [](const at::Tensor& of_latents) { return of_latents.transpose(1, 2).contiguous(); };
        const auto states_columns = columns(states), means_columns = columns(of_means),
                   of_logs = columns(means_gradient.narrow(2, D, 1)), logs = columns(means.narrow(2, D, 1));
        auto of_queries = at::zeros_like(queries_);
        for_each_tile([&](std::int64_t n, std::int64_t count) {
            const auto l = logits(n, count), by_point = at::softmax(l, -1), by_latent = l.sub_(logs).exp_();
            values_gradient.narrow(0, n, count).copy_(at::bmm(by_latent, of_means).transpose(0, 1));
            const auto of_weights = at::bmm(tile(result_gradient, n, count), states_columns);
            const auto of_logits = at::_softmax_backward_data(of_weights, by_point, -1, by_point.scalar_type());
            of_logits.addcmul_(by_latent, at::baddbmm(of_logs, tile(values, n, count), means_columns));
            keys_gradient.narrow(0, n, count).copy_(at::bmm(of_logits, queries_).transpose(0, 1));
            of_queries.baddbmm_(of_logits.transpose(1, 2), tile(keys_.transpose(0, 1), n, count));
        });
        return of_queries;
    }

private:
    static constexpr std::int64_t kTilePoints = 512;  // a megabyte of weights of 64 latents and 8 heads
    static constexpr double kNever = -1e30;

    template <class Work>
    void for_each_tile(const Work& work) const
    {
        const auto size = kTilePoints * at::get_num_threads();
        for (std::int64_t n = 0; n < keys_.size(1); n += size) work(n, std::min(size, keys_.size(1) - n));
    }

    /// (H, count, D)
    at::Tensor tile(const at::Tensor& points, std::int64_t n, std::int64_t count) const
    {
        return points.narrow(0, n, count).transpose(0, 1).to(queries_.scalar_type());
    }

    /// (H, count, M)
    at::Tensor logits(std::int64_t n, std::int64_t count) const
    {
        return at::bmm(tile(keys_.transpose(0, 1), n, count), transposed_);
    }

    at::Tensor keys_, queries_, transposed_;
};

bool have_kernels(const at::Tensor& points)
{
    return !points.is_cpu() && has_kernels(points.device()) && points.size(3) <= kMaxTileHead;
}

/// The layout to which keys and values are converted: that of the first that is cut, else of any sharded operand; null
/// if none is sharded.
SpecPtr row_layout(const at::Tensor& keys, const at::Tensor& queries, const at::Tensor& values)
{
    SpecPtr found;
    for (const auto* tensor : {&queries, &values, &keys}) {
        if (!is_sharded(*tensor)) continue;
        const auto spec = spec_of(*tensor);
        if (!found || (tensor != &queries && spec->has_shard())) found = spec;
    }
    return found && !found->has_shard() ? replicated_spec(found->device_mesh) : found;
}

/// Merges the means of all ranks, (B, H, M, D + 1), by the logarithms of sums.
void merge_over_rows(at::Tensor& means, const SpecPtr& rows)
{
    const auto D = means.size(3) - 1;
    for (const auto* group : row_groups(rows)) {
        if (group->size() == 1) continue;
        auto shape = means.sizes().vec();
        const std::vector<std::int64_t> counts(static_cast<std::size_t>(group->size()), shape[0]);
        shape.insert(shape.begin(), group->size());
        const auto parts = group->all_gather_rows(means, counts).view(shape);
        const auto logs = parts.narrow(4, D, 1), largest = logs.amax(0), shares = (logs - largest).exp_(),
                   total = shares.sum(0);
        means = at::cat({(parts.narrow(4, 0, D) * shares).sum(0) / total, largest + total.log()}, 3);
    }
}

at::Tensor stacked(const std::vector<at::Tensor>& samples, c10::IntArrayRef shape, const at::TensorOptions& options)
{
    if (!samples.empty()) return samples.size() == 1 ? samples[0].unsqueeze(0) : at::stack(samples);
    auto empty = shape.vec();
    empty.insert(empty.begin(), 0);
    return at::zeros(empty, options);
}

/// The operands on this rank: keys and values of one type, contiguous; queries (H, M, D) of a type for sums.
struct LocalOperands {
    SpecPtr rows;
    at::Tensor keys, queries, values;

    LocalOperands(const at::Tensor& k, const at::Tensor& q, const at::Tensor& v) : rows(row_layout(k, q, v))
    {
        const auto type = at::promote_types(k.scalar_type(), v.scalar_type());
        keys = for_kernels(local_in(k, rows).to(type));
        values = for_kernels(local_in(v, rows).to(type));
        // A copy, since a parameter that ranks store in parts (fully_shard) is gathered where an operator reads it.
        queries = local_in(q.clone(), rows ? replicated_spec(rows->device_mesh) : nullptr)
                      .to(sum_type(type))
                      .squeeze(0)
                      .contiguous();
    }

    std::int64_t samples() const { return keys.size(0); }
};

/// @tparam Steps   KernelMixing or TileMixing
template <class Steps>
struct LatentMixing : torch::autograd::Function<LatentMixing<Steps>> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& keys, const at::Tensor& queries,
                              const at::Tensor& values)
    {
        const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
        reduce_partials({keys, queries, values});
        const LocalOperands of(keys, queries, values);
        const auto H = of.queries.size(0), M = of.queries.size(1), D = of.queries.size(2);
        auto result = at::empty_like(of.keys);
        std::vector<Steps> samples;
        std::vector<at::Tensor> means;
        for (std::int64_t b = 0; b < of.samples(); ++b) {
            samples.emplace_back(of.keys[b], of.queries, at::Tensor());
            means.push_back(samples[b].means(of.values[b]));
        }
        auto all = stacked(means, {H, M, D + 1}, of.queries.options());
        merge_over_rows(all, of.rows);
        variable_list saved{keys, queries, values, all};
        for (std::int64_t b = 0; b < of.samples(); ++b) {
            samples[b].mix(all[b].narrow(2, 0, D), result[b]);
            saved.push_back(samples[b].log_sums());
        }
        context->save_for_backward(saved);
        return wrapped(result, of.rows);
    }

    static variable_list backward(AutogradContext* context, variable_list gradients)
    {
        refuse_second_derivative("mix_through_latents");
        const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
        const auto saved = context->get_saved_variables();
        const auto &keys = saved[0], &queries = saved[1], &values = saved[2], &means = saved[3];
        const LocalOperands of(keys, queries, values);
        reduce_partials(gradients);
        const auto gradient = for_kernels(local_in(gradients[0], of.rows).to(of.keys.scalar_type()));
        const auto D = of.queries.size(2);
        auto of_keys = at::empty_like(of.keys), of_values = at::empty_like(of.values),
             of_queries = at::zeros_like(of.queries);
        std::vector<Steps> samples;
        std::vector<at::Tensor> of_states;
        for (std::int64_t b = 0; b < of.samples(); ++b) {
            samples.emplace_back(of.keys[b], of.queries, saved[4 + b]);
            of_states.push_back(samples[b].states_gradient(gradient[b]));
        }
        auto states_gradient = stacked(of_states, of.queries.sizes(), of.queries.options()).contiguous();
        sum_over_rows(states_gradient, of.rows);
        const auto of_means = Steps::log_sums_gradient(of.keys.scalar_type(), means, states_gradient);
        // What all latents' states have in common changes no weight of a point; without it products round less.
        const auto latents = means.narrow(3, 0, D), states = latents - latents.mean(2, true);
        for (std::int64_t b = 0; b < of.samples(); ++b)
            of_queries += samples[b].gradients(of.values[b], states[b], means[b], of_means[b], gradient[b], of_keys[b],
                                               of_values[b]);
        return {wrapped(of_keys.to(keys.scalar_type()), of.rows),
                wrapped(of_queries.unsqueeze(0).to(queries.scalar_type()),
                        of.rows ? weight_gradient_spec(*of.rows) : nullptr),
                wrapped(of_values.to(values.scalar_type()), of.rows)};
    }
};

/// Whether points are cut along heads or channels.
bool has_cut_heads(const at::Tensor& points)
{
    return is_sharded(points) && (spec_of(points)->axis_of_dim(2) >= 0 || spec_of(points)->axis_of_dim(3) >= 0);
}

}  // namespace

at::Tensor mix_through_latents(const at::Tensor& keys, const at::Tensor& queries, const at::Tensor& values)
{
    const bool fit = keys.dim() == 4 && queries.dim() == 4 && keys.sizes() == values.sizes() && queries.size(0) == 1 &&
                     queries.size(1) == keys.size(2) && queries.size(3) == keys.size(3);
    if (!fit) {
        const auto text = [](const at::Tensor& tensor) { return c10::str(tensor.sizes()); };
        throw InvalidInput("mix_through_latents: keys {}, queries {} and values {}, expected (B, N, H, D), (1, H, M, "
                           "D) and (B, N, H, D).",
                           text(keys), text(queries), text(values));
    }
    const bool is_double = keys.scalar_type() == at::kDouble || values.scalar_type() == at::kDouble;
    if (exact_mode() || has_cut_heads(keys) || has_cut_heads(values) ||
        (!keys.is_cpu() && (is_double || !have_kernels(keys))))
        return mix_through_latents_by_operators(keys, queries, values);
    if (keys.is_cpu()) return LatentMixing<TileMixing>::apply(keys, queries, values);
    const auto D = keys.size(3), whole = (D + 7) / 8 * 8;
    if (whole == D) return LatentMixing<KernelMixing>::apply(keys, queries, values);
    const auto padded = [&](const at::Tensor& x) { return at::constant_pad_nd(x, {0, whole - D}); };
    return LatentMixing<KernelMixing>::apply(padded(keys), padded(queries), padded(values)).narrow(3, 0, D);
}

at::Tensor mix_through_latents_by_operators(const at::Tensor& keys, const at::Tensor& queries, const at::Tensor& values)
{
    const auto logits = at::matmul(keys.transpose(1, 2), queries.transpose(-2, -1)).transpose(1, 2);  // (B, N, H, M)

    // Softmax over all points: numerators and denominators are sent in one message, like the sums of slices.
    // Subtracting the largest logit only avoids overflow and does not change the result, so that it needs no gradient.
    const auto largest = logits.detach().amax({1}, true);                        // (B, 1, H, M)
    const auto gathered = slice_tokens(at::exp(logits - largest), values, 0.0);  // (B, H, M, D)
    return deslice_tokens(at::softmax(logits, -1), gathered);
}

}  // namespace meshard
