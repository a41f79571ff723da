// SPDX-License-Identifier: Apache-2.0
// Neighbourhood attention of sharded grids. Along a cut axis of the grid every rank receives the keys and values that
// its queries need, and returns their gradients; samples and heads stay on their rank; cut channels are gathered.
#include "ops/attention/neighbourhood_attention.h"
#include "ops/grids/grid_cuts.h"
#include "ops/rules/rank_parts.h"
#include "sharding/tensor/exact_mode.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

constexpr std::int64_t kFirstAxis = 1, kWidthDim = 4;

/// Division of one call among the ranks.
struct Division {
    AxisLayouts layouts;                   ///< layouts of queries, keys, values and output
    std::array<GridAxis, 2> axes;          ///< this rank's part of the grid
    std::vector<RangeExchange> exchanges;  ///< exchanges of keys and values along each cut axis
    AxisLayouts received;                  ///< layouts of keys and values including those received
};

/// The layouts of the first operand that is sharded on an axis, except along channels. In exact mode every rank
/// computes the whole, so that no result depends on the sharding.
AxisLayouts shared_layouts(const RuleCall& call, c10::ArrayRef<at::Tensor> operands)
{
    AxisLayouts layouts(call.num_axes());
    if (exact_mode()) return layouts;
    bool taken[kWidthDim] = {};
    for (const auto axis : call.axes()) {
        for (const auto& operand : operands) {
            const auto& layout = call.layout(operand, axis);
            if (!layout.is_shard() || layout.placement.dim >= kWidthDim || taken[layout.placement.dim]) continue;
            taken[layout.placement.dim] = true;
            layouts[axis] = layout;
            break;
        }
    }
    return layouts;
}

/// Returns nothing for grids whose rows, columns or heads were flattened with other dimensions.
std::optional<Division> division(const RuleCall& call, c10::ArrayRef<at::Tensor> operands, at::IntArrayRef size,
                                 at::IntArrayRef dilation)
{
    Division result;
    result.layouts = shared_layouts(call, operands);
    const auto axis_of_dim = cut_axes(result.layouts, kWidthDim + 1, kFirstAxis);
    if (!axis_of_dim) return std::nullopt;
    result.received = result.layouts;
    for (int i = 0; i < 2; ++i) {
        const auto dim = kFirstAxis + i, length = operands[0].size(dim), axis = (*axis_of_dim)[dim];
        auto& grid = result.axes[i];
        grid = {{length, size[i], 0, length, 0, length}, dilation[i]};
        if (is_whole(call, axis)) continue;
        std::vector<Range> needed;
        Extents extents;
        for (const auto& own : meshard::ranges_of(*result.layouts[axis].extents)) {
            const auto [begin, end] = grid.seen(own.begin, own.end);
            needed.push_back({begin, end});
            extents.push_back(end - begin);
        }
        const RangeExchange exchange(call.device_mesh()->group(axis), result.layouts[axis], needed);
        result.received[axis] = cut_layout(result.layouts[axis], dim, extents);
        const auto own = exchange.owned(), seen = exchange.needed();
        grid.here.first_query = own.begin;
        grid.here.num_queries = own.size();
        grid.here.first_key = seen.begin;
        grid.here.num_keys = seen.size();
        result.exchanges.push_back(exchange);
    }
    return result;
}

/// neighbourhood_attention(query, key, value, size, dilation, scale) -> output, received keys and values for backward
void neighbourhood_rule(RuleCall& call)
{
    const std::vector<at::Tensor> operands{call.tensor(0), call.tensor(1), call.tensor(2)};
    call.reduce(operands);
    const auto plan = division(call, operands, call.arg(3).toIntVector(), call.arg(4).toIntVector());
    if (!plan) return gathered_rule(call);

    const auto local = [&](std::int64_t i) { return local_of(with_layouts(call, operands[i], plan->layouts)); };
    const auto queries = local(0);
    auto keys = local(1), values = local(2);
    auto received = at::empty({0}, queries.options());
    if (!plan->exchanges.empty()) {
        received = at::cat({keys, values}, kWidthDim);  // one message for both
        for (const auto& exchange : plan->exchanges) received = exchange.borrow(received);
        keys = received.narrow(kWidthDim, 0, queries.size(kWidthDim));
        values = received.narrow(kWidthDim, queries.size(kWidthDim), queries.size(kWidthDim));
    }
    const auto output = grid_attention(queries, keys, values, plan->axes, call.arg(5).toDouble());
    const auto kept = plan->exchanges.empty() ? call.replicated() : call.spec(plan->received);
    call.finish({wrap(output, call.spec(plan->layouts)), wrap(received, kept)});
}

/// neighbourhood_attention_backward(gradient, query, key, value, received, size, dilation, scale) -> gradients of
/// query, key and value
void neighbourhood_backward_rule(RuleCall& call)
{
    const std::vector<at::Tensor> operands{call.tensor(1), call.tensor(2), call.tensor(3)};
    call.reduce(call.tensors());
    const auto plan = division(call, operands, call.arg(5).toIntVector(), call.arg(6).toIntVector());
    if (!plan) return gathered_rule(call);

    const auto local = [&](const at::Tensor& tensor) { return local_of(with_layouts(call, tensor, plan->layouts)); };
    const auto queries = local(operands[0]);
    at::Tensor keys, values;
    if (plan->exchanges.empty()) {
        keys = local(operands[1]);
        values = local(operands[2]);
    } else {
        const auto& received = local_of(call.tensor(4));
        keys = received.narrow(kWidthDim, 0, queries.size(kWidthDim));
        values = received.narrow(kWidthDim, queries.size(kWidthDim), queries.size(kWidthDim));
    }
    auto gradients =
        grid_attention_backward(local(call.tensor(0)), queries, keys, values, plan->axes, call.arg(7).toDouble());
    if (!plan->exchanges.empty()) {
        auto sums = at::cat({gradients[1], gradients[2]}, kWidthDim);
        for (auto exchange = plan->exchanges.rbegin(); exchange != plan->exchanges.rend(); ++exchange)
            sums = exchange->give_back(sums);
        gradients[1] = sums.narrow(kWidthDim, 0, queries.size(kWidthDim));
        gradients[2] = sums.narrow(kWidthDim, queries.size(kWidthDim), queries.size(kWidthDim));
    }
    const auto spec = call.spec(plan->layouts);
    call.finish(
        {wrap(gradients[0], spec), wrap(gradients[1].contiguous(), spec), wrap(gradients[2].contiguous(), spec)});
}

const RuleRegistration neighbourhood_rules[] = {
    {"attention", {"meshard::neighbourhood_attention"}, neighbourhood_rule},
    {"attention", {"meshard::neighbourhood_attention_backward"}, neighbourhood_backward_rule},
};

}  // namespace
}  // namespace meshard
