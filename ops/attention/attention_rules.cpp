// SPDX-License-Identifier: Apache-2.0
// Scaled-dot-product attention. at::scaled_dot_product_attention would choose among several operators by device and
// shape; here it calls one operator, with the forward and backward signatures that LibTorch reserves for backends with
// their own attention.
#include "ops/attention/causal_attention.h"
#include "ops/attention/ring_attention.h"
#include "ops/rules/placement_algebra.h"
#include "sharding/tensor/exact_mode.h"
#include "sharding/tensor/redistribute.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

namespace meshard {
namespace {

using AxisLayouts = AxisLayouts;

/// How the work is divided among the ranks of one axis.
enum class Role : std::uint8_t {
    Whole,  ///< not divided: all ranks compute the same
    Batch,
    Heads,
    Queries,  ///< rows of the queries are divided; every rank has all keys
    Keys,     ///< rows of the keys are divided; every rank has all queries, and partial results are merged
    Ring,     ///< rows of both are divided; the keys are sent around a ring
};

constexpr std::int64_t kBatch = 0, kHeads = 1, kRows = 2;

/// Division of one attention among ranks, and the layouts of queries (B, H, L, D), keys and values (B, K, S, ...) and
/// mask (B or 1, H or 1, L or 1, S or 1).
struct Plan {
    c10::SmallVector<Role, 2> roles;
    AxisLayouts queries, keys, mask;

    std::int64_t axis_of(Role role) const
    {
        const auto found = std::ranges::find(roles, role);
        return found == roles.end() ? -1 : found - roles.begin();
    }
};

struct Operands {
    at::Tensor queries, keys, values, mask;
};

bool cuts(const AxisLayout& layout, std::int64_t dim)
{
    return layout.is_shard() && layout.placement.dim == dim;
}

AxisLayout even_cut(std::int64_t dim, std::int64_t length, std::int64_t ranks)
{
    return {Shard(dim), std::make_shared<Extents>(even_extents(length, ranks)), 1};
}

/// The sharding in one block: with the same extents if it has one block, with even ones if a flattened batch
/// interleaves the ranks.
AxisLayout in_one_block(const AxisLayout& layout, std::int64_t length)
{
    return layout.blocks == 1 ? layout : even_cut(layout.placement.dim, length, std::ssize(*layout.extents));
}

/// Extents of the keys' heads from those of the queries' heads, or vice versa; null if ranks would share a key head.
std::shared_ptr<const Extents> scaled(const Extents& extents, std::int64_t factor, std::int64_t divisor)
{
    auto result = std::make_shared<Extents>();
    for (const auto extent : extents) {
        if (extent * factor % divisor != 0) return nullptr;
        result->push_back(extent * factor / divisor);
    }
    return result;
}

void plan_heads(Plan& plan, std::int64_t axis, const AxisLayout& queries, const AxisLayout& keys, const Operands& whole,
                std::int64_t ranks)
{
    const auto members = whole.queries.size(kHeads) / std::max<std::int64_t>(1, whole.keys.size(kHeads));
    std::shared_ptr<const Extents> q, k;
    if (cuts(queries, kHeads)) {
        q = queries.extents;
        k = scaled(*q, 1, std::max<std::int64_t>(1, members));
    }
    if (!k) {
        k = cuts(keys, kHeads) ? keys.extents
                               : std::make_shared<const Extents>(even_extents(whole.keys.size(kHeads), ranks));
        q = scaled(*k, members, 1);
    }
    plan.queries[axis] = {Shard(kHeads), q, 1};
    plan.keys[axis] = {Shard(kHeads), k, 1};
}

/// Decides which rank computes which part, from the layouts only, so that all ranks decide alike.
Plan make_plan(const RuleCall& call, const Operands& whole, bool one_block)
{
    const auto num_axes = call.num_axes();
    Plan plan;
    plan.roles.assign(num_axes, Role::Whole);
    plan.queries.resize(num_axes);
    plan.keys.resize(num_axes);
    plan.mask.resize(num_axes);
    if (exact_mode()) return plan;  // every rank computes the whole, so that no result depends on the sharding
    bool query_taken[3] = {}, key_taken[3] = {};

    for (std::int64_t axis = 0; axis < num_axes; ++axis) {
        const auto cut_of = [&](const at::Tensor& tensor) {  // a tensor sharded along its last dimension is gathered
            const auto& layout = call.layout(tensor, axis);
            if (!layout.is_shard() || layout.placement.dim > kRows) return AxisLayout{};
            return one_block || layout.placement.dim != kBatch ? in_one_block(layout, tensor.size(layout.placement.dim))
                                                               : layout;
        };
        const auto q = cut_of(whole.queries);
        auto k = cut_of(whole.keys);
        const auto v = cut_of(whole.values);
        if (!k.is_shard() || (v.is_shard() && !cuts(k, kRows) && cuts(v, kRows))) k = v;
        if (!q.is_shard() && !k.is_shard()) continue;

        const auto dim = q.is_shard() ? q.placement.dim : k.placement.dim;
        auto role = Role::Batch;
        if (dim == kHeads) role = Role::Heads;
        if (dim == kRows) role = !q.is_shard() ? Role::Keys : k.is_shard() ? Role::Ring : Role::Queries;
        const bool of_queries = role != Role::Keys, of_keys = role != Role::Queries;
        // Another axis shards this dimension.
        if ((of_queries && query_taken[dim]) || (of_keys && key_taken[dim])) continue;
        query_taken[dim] |= of_queries;
        key_taken[dim] |= of_keys;

        plan.roles[axis] = role;
        const auto ranks = call.device_mesh()->size(axis);
        if (role == Role::Batch) plan.queries[axis] = plan.keys[axis] = q.is_shard() ? q : k;
        if (role == Role::Heads)
            plan_heads(plan, axis, in_one_block(q, whole.queries.size(kHeads)),
                       in_one_block(k, whole.keys.size(kHeads)), whole, ranks);
        if (role == Role::Queries || role == Role::Ring) plan.queries[axis] = q;
        if (role == Role::Keys || role == Role::Ring)
            plan.keys[axis] = cuts(k, kRows) ? k : even_cut(kRows, whole.keys.size(kRows), ranks);

        if (!whole.mask.defined()) continue;
        const auto mask_dim = role == Role::Keys ? 3 : dim;
        if (whole.mask.size(mask_dim) > 1) {
            plan.mask[axis] = role == Role::Keys ? plan.keys[axis] : plan.queries[axis];
            plan.mask[axis].placement.dim = mask_dim;
        }
    }
    return plan;
}

/// In exact mode returns a copy with standard strides: which kernel multiplies, and so how it rounds, may depend on
/// strides, even on those of dimensions of size 1.
at::Tensor in_plain_order(const at::Tensor& tensor)
{
    return exact_mode() ? at::empty(tensor.sizes(), tensor.options()).copy_(tensor) : tensor;
}

/// Converts a tensor to `layouts` and returns its local part.
at::Tensor local_in(const RuleCall& call, const at::Tensor& tensor, const AxisLayouts& layouts)
{
    if (!tensor.defined()) return tensor;
    const auto spec = call.spec(layouts);
    const auto source = is_sharded(tensor) ? tensor : wrap(tensor, call.replicated());
    return in_plain_order(*spec_of(source) == *spec ? local_of(source) : local_of(convert(source, spec)));
}

/// The rows of the whole that each rank of an axis holds; one range with all rows if no axis shards them.
std::vector<RowRange> ranges_of(const AxisLayouts& layouts, std::int64_t axis, std::int64_t length)
{
    if (axis < 0) return {{0, length}};
    std::vector<RowRange> ranges;
    std::int64_t start = 0;
    for (const auto extent : *layouts[axis].extents) {
        ranges.push_back({start, extent});
        start += extent;
    }
    return ranges;
}

/// Tensors and settings of one rank's part, forward and backward.
struct LocalAttention {
    Plan plan;
    AttentionSettings settings;
    at::Tensor queries;
    RowRange rows;
    AttentionKeys keys;
    RankGroup group;
    bool is_shared_out = false;  // causal self-attention: `causal_attention` balances the work
};

LocalAttention local_attention(RuleCall& call, const Operands& whole, double dropout, bool causal,
                               std::optional<double> scale, const at::Tensor& drawn)
{
    const auto plan = make_plan(call, whole, dropout > 0);
    LocalAttention local;
    local.plan = plan;
    local.settings.scale = scale.value_or(1 / std::sqrt(static_cast<double>(whole.queries.size(3))));
    local.settings.causal = causal;
    local.settings.dropout = dropout;
    if (dropout > 0 && drawn.scalar_type() == at::kBool)
        local.settings.kept = drawn;
    else if (dropout > 0)
        local.settings.seed = drawn.item<std::int64_t>();
    local.settings.num_heads = whole.queries.size(kHeads);
    const auto offset = [&](Role role) {
        const auto axis = plan.axis_of(role);
        return axis < 0 ? 0 : plan.queries[axis].offset(call.coordinate(axis));
    };
    local.settings.first_batch = offset(Role::Batch);
    local.settings.first_head = offset(Role::Heads);

    local.queries = local_in(call, whole.queries, plan.queries);
    local.keys.keys = local_in(call, whole.keys, plan.keys);
    local.keys.values = local_in(call, whole.values, plan.keys);
    local.keys.mask = local_in(call, whole.mask, plan.mask);

    const auto ring = plan.axis_of(Role::Ring), cut_keys = plan.axis_of(Role::Keys),
               cut_queries = ring >= 0 ? ring : plan.axis_of(Role::Queries);
    const auto query_ranges = ranges_of(plan.queries, cut_queries, whole.queries.size(kRows));
    local.rows = query_ranges[cut_queries < 0 ? 0 : call.coordinate(cut_queries)];
    const auto key_ranges = ranges_of(plan.keys, ring >= 0 ? ring : cut_keys, whole.keys.size(kRows));
    if (ring >= 0) {
        local.group = call.device_mesh()->group(ring);
        local.keys.ranges = key_ranges;
        local.is_shared_out = causal && query_ranges == key_ranges && !whole.mask.defined() && local.group.size() > 1;
    } else {
        const auto mine = key_ranges[cut_keys < 0 ? 0 : call.coordinate(cut_keys)];
        local.keys.ranges = {mine};
        local.keys.first_masked = mine.start;
    }
    return local;
}

/// Merges the results of ranks with different keys, weighted by their log-sum-exp.
void merge_over(const RankGroup& group, AttentionOutput& part)
{
    if (group.size() == 1) return;
    auto largest = part.log_sum_exp.clone(at::MemoryFormat::Contiguous);
    group.all_reduce(largest, Reduction::Max);
    largest.masked_fill_(largest == -INFINITY, 0);  // rows without any key
    const auto weight = part.log_sum_exp.sub(largest).exp_().unsqueeze(3);
    auto sums = at::cat({part.output.mul(weight), weight}, 3).contiguous();
    group.all_reduce(sums);
    const auto total = sums.narrow(3, part.output.size(3), 1);
    part.output = sums.narrow(3, 0, part.output.size(3)).div(total).masked_fill_(total == 0, 0);
    part.log_sum_exp = total.squeeze(3).log().add_(largest);
}

/// (B, H, L, E) with heads adjacent in memory, as in the results of LibTorch's own kernels.
at::Tensor heads_inside(const at::Tensor& output, at::ScalarType type)
{
    return output.transpose(1, 2).contiguous().to(type).transpose(1, 2);
}

/// The random choice of dropped weights, the same on every rank: for few weights the mask that the plain operator draws
/// on the CPU, (B, H, L, S); for larger masks a seed.
at::Tensor drawn_dropout(const RuleCall& call, const Operands& whole, double dropout)
{
    constexpr std::int64_t kLargestField = 1 << 24;
    const std::vector<std::int64_t> shape{whole.queries.size(0), whole.queries.size(1), whole.queries.size(2),
                                          whole.keys.size(2)};
    auto generator = call.device_mesh()->generator(at::kCPU);
    if (c10::multiply_integers(shape) <= kLargestField) {
        return at::empty(shape, at::kBool).bernoulli_(1 - dropout, generator).to(call.tensor(0).device());
    }
    const std::lock_guard lock(generator.mutex());
    return at::full({1}, static_cast<std::int64_t>(at::check_generator<at::CPUGeneratorImpl>(generator)->random64()),
                    at::kLong);
}

/// _scaled_dot_product_fused_attention_overrideable(query, key, value, attn_bias, dropout_p, is_causal,
/// return_debug_mask, scale)
void attention(RuleCall& call)
{
    const Operands whole{call.tensor(0), call.tensor(1), call.tensor(2), call.tensor(3)};
    call.reduce(call.tensors());
    const auto dropout = call.arg(4).toDouble();
    const auto drawn = dropout > 0 ? drawn_dropout(call, whole, dropout) : at::Tensor();
    const auto local =
        local_attention(call, whole, dropout, call.arg(5).toBool(), call.arg(7).toOptional<double>(), drawn);

    auto result = local.is_shared_out
                      ? causal_attention(local.settings, local.queries, local.keys, local.group)
                      : ring_attention(local.settings, local.queries, local.rows, local.keys, local.group);
    if (const auto axis = local.plan.axis_of(Role::Keys); axis >= 0)
        merge_over(call.device_mesh()->group(axis), result);

    const auto spec = call.spec(local.plan.queries);
    const auto h = whole.queries.size(1), l = whole.queries.size(2), e = whole.values.size(3);
    const auto output = wrap(heads_inside(result.output, whole.queries.scalar_type()), spec, {l * h * e, e, h * e, 1});
    const auto sum = wrap(result.log_sum_exp.masked_fill(result.log_sum_exp == -INFINITY, 0).contiguous(), spec);
    const auto saved = drawn.defined() ? wrap(drawn, call.replicated()) : drawn;  // returned in the place of the seed
    call.finish({output, sum, at::Tensor(), at::Tensor(), l, whole.keys.size(2), saved, at::Tensor(), at::Tensor()});
}

/// The layout of a gradient, which is a pending sum on the axes that divide the work without sharding this tensor.
SpecPtr gradient_spec(const RuleCall& call, const Plan& plan, AxisLayouts layouts)
{
    for (const auto axis : call.axes()) {
        if (plan.roles[axis] != Role::Whole && !layouts[axis].is_shard()) layouts[axis] = {Partial(), nullptr, 1};
    }
    return call.spec(layouts);
}

/// ..._backward(grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q,
/// max_k, dropout_p, is_causal, philox_seed, philox_offset, scale)
void attention_backward(RuleCall& call)
{
    const Operands whole{call.tensor(1), call.tensor(2), call.tensor(3), call.tensor(4)};
    call.reduce(call.tensors());
    const auto wanted = call.arg(5).toBoolList();
    const auto dropout = call.arg(12).toDouble();
    const auto local = local_attention(call, whole, dropout, call.arg(13).toBool(), call.arg(16).toOptional<double>(),
                                       local_of(call.tensor(14)));
    const auto& plan = local.plan;

    auto gradient = local_in(call, call.tensor(0), plan.queries);
    if (gradient.size(3) > 1 && gradient.stride(3) != 1) gradient = gradient.contiguous();
    const AttentionQueries queries{
        local.queries.size(3) > 1 && local.queries.stride(3) != 1 ? local.queries.contiguous() : local.queries,
        gradient, local_in(call, call.tensor(6), plan.queries), local_in(call, call.tensor(7), plan.queries),
        local.rows};
    const WantedGradients needed{wanted[0], wanted[1], wanted[2], wanted[3]};
    const auto gradients = local.is_shared_out
                               ? causal_attention_backward(local.settings, queries, local.keys, local.group, needed)
                               : ring_attention_backward(local.settings, queries, local.keys, local.group, needed);

    const auto wrapped = [&](const at::Tensor& sum, const at::Tensor& of, const AxisLayouts& layouts, bool want) {
        return sum.defined() && want ? wrap(sum.to(of.scalar_type()), gradient_spec(call, plan, layouts))
                                     : at::Tensor();
    };
    call.finish({wrapped(gradients.queries, whole.queries, plan.queries, wanted[0]),
                 wrapped(gradients.keys, whole.keys, plan.keys, wanted[1]),
                 wrapped(gradients.values, whole.values, plan.keys, wanted[2]),
                 wrapped(gradients.mask, whole.mask, plan.mask, wanted[3])});
}

const RuleRegistration attention_rules[] = {
    {"attention", {"aten::_scaled_dot_product_fused_attention_overrideable"}, attention},
    {"attention", {"aten::_scaled_dot_product_fused_attention_overrideable_backward"}, attention_backward},
};

/// Throws if `holds` is false. `what()` composes the message, which takes as long as an operator.
template <class F>
void require(bool holds, F&& what)
{
    if (!holds) throw InvalidInput("scaled_dot_product_attention: {}", what());
}

void require(bool holds, const char* what)
{
    require(holds, [&] { return std::string(what); });
}

std::string shape_of(const at::Tensor& tensor)
{
    std::string text = "(";
    for (std::int64_t d = 0; d < tensor.dim(); ++d) text += (d ? ", " : "") + std::to_string(tensor.size(d));
    return text + ")";
}

/// (..., H, R, X) to (B, H, R, X): the dimensions before the heads become one batch; without heads there is one head.
at::Tensor in_four_dims(at::Tensor tensor, std::int64_t num_dims)
{
    while (tensor.dim() < num_dims) tensor = tensor.unsqueeze(0);
    if (num_dims == 3) return tensor.unsqueeze(1);  // (N, L, D): the first dimension is the batch
    while (tensor.dim() < 4) tensor = tensor.unsqueeze(0);
    return tensor.dim() > 4 ? tensor.flatten(0, tensor.dim() - 4) : tensor;
}

/// Broadcasts the leading dimensions of `tensor`, all but the last `kept`, to `lead`.
at::Tensor with_lead(const at::Tensor& tensor, c10::IntArrayRef lead, std::int64_t kept)
{
    auto shape = lead.vec();
    const auto own = tensor.sizes().slice(tensor.dim() - kept);
    shape.insert(shape.end(), own.begin(), own.end());
    return tensor.sizes() == c10::IntArrayRef(shape) ? tensor : tensor.expand(shape);
}

/// at::scaled_dot_product_attention for sharded tensors: one attention operator for all devices and shapes.
at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                        const std::optional<at::Tensor>& mask, double dropout, bool causal,
                                        std::optional<double> scale, bool grouped)
{
    const auto [least_dims, num_dims] = std::minmax({query.dim(), key.dim(), value.dim()});
    require(least_dims >= 2, [&] {
        return "query " + shape_of(query) + ", key " + shape_of(key) + " and value " + shape_of(value) +
               " must have two or more dimensions.";
    });
    require(query.scalar_type() == key.scalar_type() && query.scalar_type() == value.scalar_type() &&
                query.is_floating_point(),
            "query, key and value must share one floating type.");
    require(query.size(-1) == key.size(-1) && key.size(-2) == value.size(-2), [&] {
        return "query " + shape_of(query) + " and key " + shape_of(key) +
               " must share their last dimension, key and value " + shape_of(value) + " their rows.";
    });
    require(!causal || !mask || !mask->defined(), "give a mask or is_causal, not both.");
    require(dropout >= 0 && dropout <= 1, "dropout_p must lie between 0 and 1.");
    auto bias = mask.value_or(at::Tensor());
    require(!bias.defined() || bias.scalar_type() == at::kBool || bias.scalar_type() == query.scalar_type() ||
                bias.scalar_type() == at::kFloat,
            "the mask must be bool, float or of the query's type.");
    require(!bias.defined() || (bias.dim() <= num_dims && bias.dim() >= 1),
            "the mask has more dimensions than the query.");

    auto q = query, k = key, v = value;
    for (auto* tensor : {&q, &k, &v}) {  // missing dimensions are added in front, as in matmul
        while (tensor->dim() < num_dims) *tensor = tensor->unsqueeze(0);
    }
    c10::DimVector lead;
    if (num_dims > 3) {
        const auto all_but = [](const at::Tensor& tensor) { return tensor.sizes().slice(0, tensor.dim() - 3); };
        lead = at::infer_size_dimvector(at::infer_size_dimvector(all_but(q), all_but(k)), all_but(v));
        q = with_lead(q, lead, 3);
        k = with_lead(k, lead, 3);
        v = with_lead(v, lead, 3);
        if (num_dims > 4 && bias.dim() > 3) bias = with_lead(bias, lead, 3);
    } else if (num_dims == 3) {
        lead = at::infer_size_dimvector(at::infer_size_dimvector(q.sizes().slice(0, 1), k.sizes().slice(0, 1)),
                                        v.sizes().slice(0, 1));
        q = with_lead(q, lead, 2);
        k = with_lead(k, lead, 2);
        v = with_lead(v, lead, 2);
    }
    q = in_four_dims(q, num_dims);
    k = in_four_dims(k, num_dims);
    v = in_four_dims(v, num_dims);
    if (bias.defined()) {
        bias = in_four_dims(bias, num_dims);
        const bool fits =
            at::is_expandable_to(bias.sizes(), {q.size(0), std::max(q.size(1), k.size(1)), q.size(2), k.size(2)});
        require(fits, [&] {
            return "the mask " + shape_of(*mask) + " does not broadcast to the scores of query " + shape_of(query) +
                   " and key " + shape_of(key) + ".";
        });
    }

    // Every key head is used by the same number of query heads, a single key head by all.
    const auto heads = grouped ? q.size(1) : std::max({q.size(1), k.size(1), v.size(1)});
    if (q.size(1) != heads) q = q.expand({-1, heads, -1, -1});
    for (auto* tensor : {&k, &v}) {
        const bool serves = tensor->size(1) == heads || tensor->size(1) == 1 ||
                            (grouped && tensor->size(1) > 0 && heads % tensor->size(1) == 0);
        require(serves, [&] {
            return "the heads of key " + shape_of(key) + " and value " + shape_of(value) +
                   " do not match those of query " + shape_of(query) + ".";
        });
    }
    if (k.size(1) != v.size(1)) {
        k = k.repeat_interleave(heads / k.size(1), 1);
        v = v.repeat_interleave(heads / v.size(1), 1);
    }

    auto output = std::get<0>(at::_scaled_dot_product_fused_attention_overrideable(
        q, k, v, bias.defined() ? std::make_optional(bias) : std::nullopt, dropout, causal, /*return_debug_mask=*/false,
        scale));
    if (num_dims == 2) return output.squeeze(0).squeeze(0);
    if (num_dims == 3) return output.squeeze(1);
    return num_dims == 4 ? output : output.unflatten(0, lead);
}

// Registered above and below autograd, so that the operator is decomposed in neither.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse2, library)
{
    library.impl("scaled_dot_product_attention", TORCH_FN(scaled_dot_product_attention));
}
TORCH_LIBRARY_IMPL(aten, PrivateUse2, library)
{
    library.impl("scaled_dot_product_attention", TORCH_FN(scaled_dot_product_attention));
}

}  // namespace
}  // namespace meshard
